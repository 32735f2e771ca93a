"""What a receiver takes in and how far it is with it, without a source, a writer, a clock or a thread."""

from typing import Any

import pytest

from correlator.connector import Chunk, Features
from correlator.core.intake import Intake, Numbers, ReceiverInput, ReceiverState
from correlator.events import UNREADABLE, Headers, Message
from correlator.reliability import Reliability
from correlator.selector import Selector
from correlator.settings import ReceiverSettings

STORED = Reliability.EXACTLY_ONCE


def intake(
    *,
    numbers: Numbers = Numbers(),  # noqa: B008  # frozen
    selector: str = "",
    own: dict[str, frozenset[str]] | None = None,
    features: Features = Features(),  # noqa: B008  # frozen
    connected: bool = True,
    **settings: Any,
) -> Intake:
    fields = {"reliability": STORED, "max_batch_size": 3, **settings}
    receiver = ReceiverSettings(id="in", connection="c", destination="topic:t", **fields)
    chosen = Selector.optional(selector or None, "in")
    made = Intake(receiver, features, chosen, numbers, domain="d", own_sources=lambda: own or {}, beside=lambda: 0)
    if connected:
        made.connected(0.0)
    return made


def chunk(*bodies: bytes, **fields: Any) -> Chunk:
    return Chunk([Message(body) for body in bodies], bodies, **fields)


def said(one: Intake) -> list[str]:
    return [warning.text.partition(" ")[0] for warning in one.warnings()]


def through_the_store(one: Intake, *bodies: bytes) -> None:
    """A batch that is stored, delivered and acknowledged."""
    one.take(chunk(*bodies), 0.0, 0.0)
    one.to_store()
    one.committed()
    one.acknowledged(0.0)
    one.number(len(bodies))


# --- the batch ---


def test_a_batch_takes_as_many_messages_as_its_size():
    one = intake()
    assert one.room == 3
    one.take(chunk(b"a", b"b"), 0.0, 0.0)
    assert (one.room, one.complete(0.0)) == (1, False)
    one.take(chunk(b"c"), 0.0, 0.0)
    assert (one.room, one.complete(0.0)) == (0, True)


def test_a_batch_is_complete_when_its_source_ends_or_the_receiver_drains():
    for made in (intake(), intake()):
        assert not made.complete(0.0)
    ended, drained = intake(), intake()
    ended.take(chunk(b"a", ended=True), 0.0, 0.0)
    drained.take(chunk(b"a"), 0.0, 0.0)
    assert (ended.complete(0.0), drained.complete(0.0)) == (True, False)
    drained.gate.drain()
    assert drained.complete(0.0)


def test_a_source_ends_behind_its_last_batch():
    one = intake()
    assert not one.end()
    one.take(chunk(ended=True), 0.0, 0.0)
    assert one.end()
    assert one.state is ReceiverState.ENDED


def test_batches_and_messages_are_counted_on():
    one = intake(numbers=Numbers(next_number=8, next_batch=4, confirmed_batch=3))
    through_the_store(one, b"a", b"b")
    assert (one.next_number, one.next_batch, one.state) == (10, 5, ReceiverState.RECEIVING)
    assert one.number(1) == 10
    assert (one.counters.delivered, one.batch.messages) == (3, [])


def test_what_is_lost_with_the_connection_comes_again():
    one = intake()
    one.take(chunk(b"a", ended=True), 0.0, 0.0)
    one.lost()
    assert (one.state, one.batch.messages, one.counters.connection_errors) == (ReceiverState.DISCONNECTED, [], 1)
    one.connected(0.0)
    assert not one.end()


@pytest.mark.parametrize("state", [ReceiverInput.BATCH_TO_STORE, None])
def test_it_is_idle_with_nothing_begun(state):
    one = intake()
    assert one.idle
    one.take(chunk(b"a"), 0.0, 0.0)
    if state is not None:
        one.to_store()
    assert not one.idle


# --- what is wanted ---


def test_expired_unselected_and_own_messages_are_not_mapped():
    one = intake(selector="n = 1", own={"source": frozenset({"mine"})}, no_local=True)
    messages = [
        Message(b"late", {"n": 1}, headers=Headers(expiration=1_000)),
        Message(b"other", {"n": 2}),
        Message(b"own", {"n": 1, "source": "mine"}),
        Message(b"wanted", {"n": 1, "source": "another"}),
    ]
    wanted = one.take(Chunk(messages, range(4), unselected=5), 0.0, 2.0)
    assert [message.body for message in wanted] == [b"wanted"]
    one.hand_on(2.0, lambda message: message.body.decode())
    counters = one.counters
    assert (counters.expired, counters.unselected, counters.own, counters.received) == (1, 6, 1, 4)
    assert said(one) == ["W5406", "W5405"]


def test_own_messages_are_taken_where_they_are_asked_for():
    one = intake(own={"source": frozenset({"mine"})})
    assert len(one.take(Chunk([Message(b"", {"source": "mine"})], [1]), 0.0, 0.0)) == 1
    assert said(one) == ["W5406"]


def test_unreadable_and_redelivered_messages_are_counted_and_told_of_once():
    one = intake()
    for _ in range(2):
        headers = Headers(redelivered=True, timestamp=1_000)
        one.take(Chunk([Message(b"", {UNREADABLE: "why"}, headers=headers)], [1]), 0.0, 0.0)
        one.hand_on(5.0, str)
        one.lost()
        one.connected(0.0)
    counters = one.counters
    assert (counters.unreadable, counters.redelivered, counters.max_delivery_s) == (2, 2, 4.0)
    assert said(one) == ["W5409"]


def test_conflicts_are_told_of_whenever_their_count_has_doubled():
    one = intake()
    told = []
    for _ in range(8):
        one.note_stored(1, 0, ["id"])
        told += said(one)
    assert (one.counters.conflicts, one.counters.duplicates, told) == (8, 8, ["W5402"] * 4)


def test_messages_without_id_count_where_duplicates_are_detected():
    for mode, count in ((STORED, 2), (Reliability.AT_LEAST_ONCE, 0)):
        one = intake(reliability=mode)
        one.note_stored(0, 2, [])
        assert one.counters.without_id == count


# --- the window ---


def test_the_window_bounds_the_batch():
    one = intake(flow_control=True, numbers=Numbers(next_number=5))
    assert (one.window, one.room) == (0, 0)
    one.allow(6)
    assert (one.window, one.room) == (2, 2)
    one.take(chunk(b"a"), 0.0, 0.0)
    assert one.room == 1
    one.number(1)
    assert one.window == 1
    one.allow(3)
    assert (one.window, one.room) == (0, 0)


def test_without_flow_control_there_is_no_window():
    assert intake().window == -1


# --- a suspended batch ---


def suspended(**fields: Any) -> Intake:
    one = intake(reliability=Reliability.APP_CONTROLLED, **fields)
    one.take(chunk(b"a"), 0.0, 0.0)
    assert one.delivered(1, 10.0) is ReceiverState.SUSPENDED
    return one


def test_a_suspended_batch_is_acknowledged_once_on_the_applications_word():
    one = suspended()
    assert not one.resumed()
    batch = one.suspended()
    assert batch is one.batch
    one.resume(batch)
    assert one.suspended() is None  # a second word is refused
    assert one.resumed()
    assert one.state is ReceiverState.ACKNOWLEDGING


def test_the_word_for_a_batch_that_was_lost_acknowledges_no_other():
    one = suspended()
    batch = one.suspended()
    assert batch is not None
    one.lost()
    one.resume(batch)
    one.connected(0.0)
    one.take(chunk(b"b"), 0.0, 0.0)
    one.delivered(1, 0.0)
    assert not one.resumed()
    assert one.suspended() is one.batch


def test_a_batch_of_dead_letters_is_not_suspended():
    one = intake(reliability=Reliability.APP_CONTROLLED)
    one.take(chunk(b"a"), 0.0, 0.0)
    assert one.delivered(0, 0.0) is ReceiverState.ACKNOWLEDGING


def test_a_batch_that_is_held_for_long_is_told_of_once():
    one = suspended(features=Features(holds_for_s=8.0))
    assert one.held(11.0) == 3.0
    assert one.held(14.0) is None
    assert said(one) == ["W5408"]
    assert one.held(20.0) is None
    assert said(one) == []


def test_a_broker_that_takes_nothing_back_is_not_waited_for():
    assert suspended().held(1e9) is None


# --- what comes again ---


def test_an_acknowledgement_under_way_is_in_doubt_when_the_connection_is_lost():
    one = intake(features=Features(acknowledges_surely=True))
    one.take(chunk(b"a", b"b"), 0.0, 0.0)
    one.to_store()
    one.committed()
    assert one.redeliveries.may_give_back == 3
    one.lost()
    assert one.redeliveries.may_give_back == 5
    assert one.redeliveries.sure.through == 0


def test_nothing_is_in_doubt_of_a_batch_that_was_not_stored():
    one = intake(features=Features(acknowledges_surely=True))
    one.take(chunk(b"a"), 0.0, 0.0)
    one.lost()
    assert one.redeliveries.may_give_back == 3
