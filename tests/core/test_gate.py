"""The orders to a receiver whether to begin batches, and when it has come to rest (docs/control.md)."""

from correlator.core.gate import Gate


def opened() -> Gate:
    gate = Gate()
    gate.open()
    return gate


def test_a_receiver_that_is_not_open_is_quiet():
    gate = Gate()
    assert (gate.quiet, gate.shut) == (True, False)
    gate.open()
    assert (gate.quiet, gate.is_open) == (False, True)


def test_a_paused_receiver_is_quiet_once_it_has_seen_the_pause_without_a_message():
    gate = opened()
    gate.note(idle=True, empty=True)
    gate.pause()
    assert (gate.paused, gate.shut, gate.quiet) == (True, True, False)
    gate.note(idle=False, empty=False)
    assert not gate.quiet
    gate.note(idle=True, empty=True)
    assert gate.quiet
    gate.go_on()
    assert (gate.paused, gate.shut, gate.quiet) == (False, False, False)


def test_who_rests_in_an_earlier_pause_does_not_yet_rest_in_the_next():
    """In between it may have begun a batch."""
    gate = opened()
    gate.pause()
    gate.note(idle=True, empty=True)
    gate.go_on()
    gate.pause()
    assert not gate.quiet
    gate.note(idle=True, empty=True)
    assert gate.quiet


def test_a_drained_receiver_is_quiet_once_it_has_no_batch_to_finish_and_for_good():
    gate = opened()
    gate.note(idle=True, empty=True)
    gate.drain()
    assert (gate.shut, gate.quiet) == (True, False)
    gate.note(idle=False, empty=False)
    assert not gate.quiet
    gate.note(idle=True, empty=False)  # a suspended batch
    assert gate.quiet
    gate.note(idle=False, empty=False)
    assert gate.quiet
