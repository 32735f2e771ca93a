"""The cycle of a receiver, the limits of a batch, and what the modes mean (docs/rules.md, sections A3 and A4)."""

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from correlator.core import intake
from correlator.core.batch import ReceiveBatch
from correlator.core.intake import ReceiverCycle, ReceiverInput, ReceiverState, transitions
from correlator.events import Message
from correlator.reliability import RECEIVING, SENDING, Reliability


def in_state(state: ReceiverState, reliability: Reliability = Reliability.EXACTLY_ONCE) -> ReceiverCycle:
    made = ReceiverCycle(RECEIVING[reliability])
    made.now = state
    return made


@pytest.mark.parametrize("reliability", Reliability)
@pytest.mark.parametrize("state", ReceiverState)
@pytest.mark.parametrize("event", ReceiverInput)
def test_an_event_leads_where_the_table_says_or_raises_and_changes_nothing(state, event, reliability):
    receiver = in_state(state, reliability)
    target = transitions(RECEIVING[reliability]).get((state, event))
    if target is None:
        with pytest.raises(ValueError, match=f"a receiver that is {state} cannot take the input: {event}"):
            receiver.receive(event)
    else:
        assert receiver.receive(event) is target
    assert receiver.now is (target or state)


CYCLES = {
    Reliability.BEST_EFFORT: [ReceiverInput.BATCH_DELIVERED, ReceiverInput.ACKNOWLEDGED],
    Reliability.AT_LEAST_ONCE: [ReceiverInput.BATCH_TO_STORE, ReceiverInput.COMMITTED, ReceiverInput.ACKNOWLEDGED],
    Reliability.EXACTLY_ONCE: [ReceiverInput.BATCH_TO_STORE, ReceiverInput.COMMITTED, ReceiverInput.ACKNOWLEDGED],
    Reliability.APP_CONTROLLED: [ReceiverInput.BATCH_DELIVERED, ReceiverInput.RESUMED, ReceiverInput.ACKNOWLEDGED],
}


@pytest.mark.parametrize("reliability", Reliability)
def test_the_cycle_of_each_mode_returns_to_receiving(reliability):
    receiver = ReceiverCycle(RECEIVING[reliability])
    receiver.receive(ReceiverInput.CONNECTED)
    for _ in range(3):
        for event in CYCLES[reliability]:
            receiver.receive(event)
        assert receiver.now is ReceiverState.RECEIVING


@pytest.mark.parametrize("reliability", Reliability)
def test_only_app_controlled_suspends(reliability):
    state = in_state(ReceiverState.RECEIVING, reliability).receive(ReceiverInput.BATCH_DELIVERED)
    assert (state is ReceiverState.SUSPENDED) == (reliability is Reliability.APP_CONTROLLED)


@pytest.mark.parametrize("reliability", [Reliability.AT_LEAST_ONCE, Reliability.EXACTLY_ONCE])
def test_a3_2_nothing_is_acknowledged_before_its_commit(reliability):
    """The only way to ACKNOWLEDGING from RECEIVING leads through COMMITTING, but for what is not stored."""
    table = transitions(RECEIVING[reliability])
    stored = {
        state
        for (state, event), target in table.items()
        if event is not ReceiverInput.BATCH_DELIVERED and target is ReceiverState.ACKNOWLEDGING
    }
    assert stored == {ReceiverState.COMMITTING, ReceiverState.SUSPENDED}


@pytest.mark.parametrize(
    ("reliability", "stored", "deduplicated", "by_application"),
    [
        (Reliability.BEST_EFFORT, False, False, False),
        (Reliability.AT_LEAST_ONCE, True, False, False),
        (Reliability.EXACTLY_ONCE, True, True, False),
        (Reliability.APP_CONTROLLED, False, False, True),
    ],
)
def test_z1_what_the_receiving_modes_promise(reliability, stored, deduplicated, by_application):
    mode = RECEIVING[reliability]
    assert (mode.stored, mode.deduplicated, mode.acknowledged_by_application) == (stored, deduplicated, by_application)
    assert mode.needs_persistence == stored


@pytest.mark.parametrize(
    ("reliability", "stored", "stamps_id"),
    [
        (Reliability.BEST_EFFORT, False, True),
        (Reliability.AT_LEAST_ONCE, True, False),
        (Reliability.EXACTLY_ONCE, True, True),
    ],
)
def test_z9_what_the_sending_modes_promise(reliability, stored, stamps_id):
    assert (SENDING[reliability].stored, SENDING[reliability].stamps_id) == (stored, stamps_id)
    assert SENDING[reliability].needs_persistence == stored
    assert Reliability.APP_CONTROLLED not in SENDING


def described() -> Iterator[tuple[set[Reliability], list[tuple[ReceiverState, ReceiverState]]]]:
    """The steps of the lines of the module's docstring, each with its modes."""
    for title, way in re.findall(r"^- (.*?): (.* → .*)$", intake.__doc__, re.MULTILINE):
        modes = set(Reliability) if title.startswith("all modes") else {one for one in Reliability if one in title}
        named = way.replace("every state", ", ".join(ReceiverState.__members__))
        states = [ReceiverState[name] for name in re.split(", | → ", named)]
        yield modes, [(state, states[-1]) for state in states[:-1]] if ", " in named else list(pairwise(states))


def test_the_docstring_shows_the_transitions():
    """It has every step that some mode can take, and no step that its mode cannot take."""
    tables = {one: {(state, to) for (state, _), to in transitions(RECEIVING[one]).items()} for one in Reliability}
    for modes, steps in described():
        assert modes
        assert all(set(steps) <= tables[one] for one in modes)
    assert {step for _, steps in described() for step in steps} == set.union(*tables.values())


# --- batches ---


def a_batch(*, messages: int = 3, size: int = 1000, interval: float = 1.0) -> ReceiveBatch:
    return ReceiveBatch(messages, size, interval)


@pytest.mark.parametrize(("count", "closed"), [(2, False), (3, True)])
def test_a3_11_a_batch_closes_at_its_size(count, closed):
    batch = a_batch()
    batch.add([Message(b"")] * count, range(count), 0.0, 0.0)
    assert (batch.closed(0.0), batch.room) == (closed, 3 - count)


@pytest.mark.parametrize(("size", "closed"), [(999, False), (1000, True), (1001, True)])
def test_a_batch_closes_at_its_bytes(size, closed):
    batch = a_batch()
    batch.add([Message(b"x" * size)], [1], 0.0, 0.0)
    assert batch.closed(0.0) is closed


@pytest.mark.parametrize(("now", "closed"), [(5.9, False), (6.0, True), (6.1, True)])
def test_a3_12_a_batch_closes_its_interval_after_the_first_message(now, closed):
    batch = a_batch()
    batch.add([Message(b"")], [1], 5.0, 7.0)
    batch.add([Message(b"")], [2], 5.5, 8.0)
    assert batch.began == 7.0
    assert batch.closed(now) is closed
    assert batch.remaining(5.5) == 0.5


def test_a4_3_an_empty_batch_never_closes():
    assert not a_batch(interval=0.0).closed(1e9)


def test_a_batch_keeps_what_acknowledges_it():
    batch = a_batch()
    batch.add([Message(b"a")], ["one"], 0.0, 0.0)
    batch.add([Message(b"b")], ["two"], 0.0, 0.0)
    assert (batch.tokens, [message.body for message in batch.messages]) == (["one", "two"], [b"a", b"b"])
