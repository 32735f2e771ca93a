"""What a sender gives its broker next and what becomes of it, without a sink, a clock, a log or a thread (rules A2)."""

from typing import Any

import pytest

from correlator.connector import Features
from correlator.core.dispatch import Dispatcher, SendBatch, SenderCounters
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import SendRejected
from correlator.events import DeadLetter, Message
from correlator.reliability import Reliability
from correlator.settings import SenderSettings

REFUSED = SendRejected("E8102", "queue:out", "too large")
RETRY_S = 0.5
ENGINE_TIME = 77.0


def dispatcher(
    *,
    reliability: Reliability = Reliability.BEST_EFFORT,
    features: Features = Features(),  # noqa: B008  # frozen
    chance: float = 0.0,
    keeps_dead_letters: bool = True,
    **settings: Any,
) -> Dispatcher:
    sender = SenderSettings(id="out", connection="c", reliability=reliability, retry_interval=RETRY_S, **settings)
    outbox = Outbox("out", reliability, "s", "queue:out", "id", "source")
    return Dispatcher(sender, features, outbox, jitter=lambda: chance, keeps_dead_letters=keeps_dead_letters)


def give(one: Dispatcher, *bodies: bytes | int) -> None:
    """Sends, and the ids of flush requests, of a BEST_EFFORT sender."""
    for body in bodies:
        one.outbox.enqueue(FlushRequest(body, "main") if isinstance(body, int) else Message(body))


def bodies(batch: SendBatch | None) -> list[bytes]:
    return [] if batch is None else [send.message.body for send in batch.sends]


def answer(one: Dispatcher, now: float, *refused: bytes) -> list[bytes]:
    """The broker takes the next batch but for some bodies; returns the bodies that were given up."""
    batch = one.next_batch(now)
    assert batch is not None
    results = [REFUSED if body in refused else None for body in bodies(batch)]
    return [send.message.body for send, _ in one.settle(batch, results, now, ENGINE_TIME)]


def stored(one: Dispatcher) -> list[DeadLetter]:
    return one.outbox.cut([])[2]


# --- batches ---


def test_a2_15_a_batch_holds_at_most_as_many_sends_as_its_size():
    one = dispatcher(max_batch_size=2)
    give(one, b"a", b"b", b"c")
    assert bodies(one.next_batch(0.0)) == [b"a", b"b"]
    answer(one, 0.0)
    assert bodies(one.next_batch(0.0)) == [b"c"]
    answer(one, 0.0)
    assert (one.next_batch(0.0), one.wait(0.0)) == (None, None)


def test_a2_15_an_incomplete_batch_waits_for_its_interval_from_the_first_look_on():
    one = dispatcher(max_batch_size=3, max_batch_interval_ms=500)
    assert (one.next_batch(9.0), one.filling) == (None, False)
    give(one, b"a")
    assert (one.next_batch(10.0), one.filling, one.wait(10.0)) == (None, True, 0.5)
    give(one, b"b")
    assert (one.next_batch(10.25), one.wait(10.25)) == (None, 0.25)
    assert bodies(one.next_batch(10.5)) == [b"a", b"b"]


def test_a2_15_the_interval_begins_anew_with_each_batch():
    one = dispatcher(max_batch_interval_ms=500)
    give(one, b"a")
    assert one.next_batch(0.0) is None
    answer(one, 0.5)
    assert not one.filling
    give(one, b"b")
    assert (one.next_batch(0.75), one.wait(0.75)) == (None, 0.5)


def test_a2_15_a_full_batch_waits_for_nothing():
    one = dispatcher(max_batch_size=2, max_batch_interval_ms=500)
    give(one, b"a")
    assert one.next_batch(0.0) is None
    give(one, b"b")
    assert bodies(one.next_batch(0.1)) == [b"a", b"b"]


def test_a2_12_a_batch_that_is_not_settled_stays_the_next_one():
    one = dispatcher(max_batch_interval_ms=500)
    give(one, b"a")
    assert one.next_batch(0.0) is None
    assert bodies(one.next_batch(0.5)) == bodies(one.next_batch(60.0)) == [b"a"]
    assert one.counters == SenderCounters()


def test_a_broker_that_answers_to_only_some_sends_settles_none():
    one = dispatcher()
    give(one, b"a", b"b")
    batch = one.next_batch(0.0)
    assert batch is not None
    with pytest.raises(ValueError, match="shorter"):
        one.settle(batch, [None], 0.0, ENGINE_TIME)
    assert bodies(one.next_batch(0.0)) == [b"a", b"b"]
    assert one.outbox.outstanding == 2


# --- refusals ---


def test_a2_11_the_sends_behind_a_refused_one_go_on():
    one = dispatcher()
    give(one, b"a", b"b", b"c")
    assert answer(one, 0.0, b"b") == []
    assert (one.next_batch(0.1), one.wait(0.1)) == (None, RETRY_S - 0.1)
    give(one, b"d")
    assert bodies(one.next_batch(0.1)) == [b"d"]


def test_a2_11_refused_sends_are_tried_again_together_and_before_new_ones():
    one = dispatcher()
    give(one, b"a", b"b", b"c")
    answer(one, 0.0, b"a", b"c")
    give(one, b"d")
    assert bodies(one.next_batch(RETRY_S)) == [b"a", b"c"]
    answer(one, RETRY_S)
    assert bodies(one.next_batch(RETRY_S)) == [b"d"]
    assert (one.counters.retries, one.counters.sent) == (2, 3)


@pytest.mark.parametrize(("chance", "waits"), [(0.0, [0.5, 1.0, 2.0, 3.0]), (1.0, [0.25, 0.5, 1.0, 1.5])])
def test_a2_11_the_back_off_doubles_up_to_its_longest_less_the_jitter(chance, waits):
    one = dispatcher(max_tries=9, max_retry_interval=3.0, chance=chance)
    give(one, b"a")
    now = 0.0
    for wait in waits:
        answer(one, now, b"a")
        assert (one.next_batch(now), one.wait(now)) == (None, wait)
        now += wait


def test_of_several_retries_the_one_that_is_due_first_comes_first():
    one = dispatcher(max_tries=9)
    give(one, b"a")
    answer(one, 0.0, b"a")
    answer(one, 0.5, b"a")  # due at 1.5
    give(one, b"b")
    answer(one, 0.75, b"b")  # due at 1.25
    assert (one.next_batch(0.75), one.wait(0.75)) == (None, 0.5)
    assert bodies(one.next_batch(2.0)) == [b"b"]
    answer(one, 2.0)
    assert bodies(one.next_batch(2.0)) == [b"a"]


def test_a_retry_that_is_due_before_an_incomplete_batch_shortens_the_wait():
    one = dispatcher(max_batch_size=2, max_batch_interval_ms=60_000)
    give(one, b"a", b"b")
    answer(one, 0.0, b"a")
    give(one, b"c")
    assert (one.next_batch(0.25), one.wait(0.25)) == (None, 0.25)
    assert bodies(one.next_batch(0.5)) == [b"a"]


def test_a2_12_a_retry_that_is_not_settled_is_no_try():
    one = dispatcher(max_tries=2)
    give(one, b"a")
    answer(one, 0.0, b"a")
    assert bodies(one.next_batch(1.0)) == bodies(one.next_batch(2.0)) == [b"a"]
    assert answer(one, 3.0, b"a") == [b"a"]


# --- dead letters ---


def test_a2_11_z7_a_send_that_is_refused_often_enough_becomes_a_dead_letter():
    one = dispatcher(max_tries=3)
    give(one, b"a", b"b")
    assert [answer(one, now, b"a") for now in (0.0, 1.0, 9.0)] == [[], [], [b"a"]]
    assert one.next_batch(99.0) is None
    letter = DeadLetter(
        kind="send",
        origin="out",
        reason=str(REFUSED),
        message=stored(one)[0].message,
        unique_id="1:s",
        time=ENGINE_TIME,
    )
    assert stored(one) == [letter]
    assert (letter.message.body, letter.message.destination) == (b"a", None)
    assert one.counters == SenderCounters(sent=1, retries=2, dead_letters=1, batches=3)
    assert one.counters.settled == 2


def test_only_what_is_refused_again_becomes_a_dead_letter():
    one = dispatcher(max_tries=2)
    give(one, b"a", b"b", b"c")
    answer(one, 0.0, b"a", b"b")
    assert answer(one, 1.0, b"b") == [b"b"]
    assert [letter.message.body for letter in stored(one)] == [b"b"]
    assert one.outbox.outstanding == 0


def test_t35_a_broker_that_drops_repeats_gets_one_try():
    one = dispatcher(features=Features(deduplicates_sends=True), max_tries=3)
    give(one, b"a")
    assert answer(one, 0.0, b"a") == [b"a"]
    assert (one.next_batch(99.0), len(stored(one))) == (None, 1)


def test_without_checkpoints_a_dead_letter_is_counted_but_not_kept():
    one = dispatcher(max_tries=1, keeps_dead_letters=False)
    give(one, b"a")
    assert answer(one, 0.0, b"a") == [b"a"]
    assert (stored(one), one.counters.dead_letters) == ([], 1)


def test_a2_8_a_reliable_send_behind_a_refused_one_is_settled_only_with_it():
    one = dispatcher(reliability=Reliability.EXACTLY_ONCE, max_tries=2)
    for segment in one.outbox.cut([Message(b"a"), Message(b"b")])[1]:
        one.outbox.release(segment)
    answer(one, 0.0, b"a")
    assert one.outbox.cut([])[0].confirmed_through == 0
    answer(one, 1.0)
    assert one.outbox.cut([])[0].confirmed_through == 2


# --- flushes ---


def test_a5_1_a_flush_is_settled_when_all_sends_before_it_are():
    one = dispatcher(max_tries=2)
    give(one, b"a", 1, b"b", 2)
    assert one.take_flush() is None
    answer(one, 0.0, b"a")
    assert one.take_flush() is None
    answer(one, 1.0)
    assert one.take_flush() == (FlushRequest(1, "main"), 0)
    assert one.take_flush() is None
    answer(one, 1.0)
    assert one.take_flush() == (FlushRequest(2, "main"), 0)


def test_a_flush_counts_the_sends_that_failed_since_the_one_before():
    one = dispatcher(max_tries=1)
    give(one, b"a", b"b", 1, b"c", 2)
    answer(one, 0.0, b"a", b"b")
    assert one.take_flush() == (FlushRequest(1, "main"), 2)
    answer(one, 0.0)
    assert one.take_flush() == (FlushRequest(2, "main"), 0)


def test_a_waiting_flush_is_reported_once():
    one = dispatcher()
    assert one.waiting_flush() is None
    give(one, b"a", b"b", 1, b"c", 2)
    answer_to_all = FlushRequest(1, "main"), 2
    assert [one.waiting_flush(), one.waiting_flush()] == [answer_to_all, None]
    answer(one, 0.0, b"b")
    assert one.waiting_flush() is None
    answer(one, 1.0)
    one.take_flush()
    assert one.waiting_flush() == (FlushRequest(2, "main"), 1)
