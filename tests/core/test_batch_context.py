"""The context of a pipeline: batches out of its queue, and their effects all at once."""

import pytest

from correlator.core.batch_context import BatchContext, Delivered, Effects
from correlator.core.commit import StateEntry, Suspect
from correlator.core.outbox import Outbox
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.errors import UsageError
from correlator.events import DeadLetter, Message
from correlator.reliability import Reliability

BODIES = [Message(bytes([number]) * 10) for number in range(6)]
LETTER = DeadLetter(kind="pipeline", origin="p", reason="E6…", message=BODIES[0])


def a_context() -> BatchContext:
    """Two runs: messages 1 to 4 of receiver `a`, the third one without an event, and 1 to 2 of receiver `b`."""
    context = BatchContext("p")
    context.queue.deliver(Run("a", 1, BODIES[:4], [1, 2, None, 4], stored=True))
    context.queue.deliver(Run("b", 1, BODIES[4:], (), stored=True))
    return context


def routes() -> Routes:
    made = Routes()
    made.outboxes = {
        name: Outbox(name, mode, "src:S01", f"queue:{name}", "id", "source")
        for name, mode in (("out", Reliability.EXACTLY_ONCE), ("quick", Reliability.BEST_EFFORT))
    }
    return made


def places(batch: list[Delivered]) -> list[tuple[str, int]]:
    return [(one.receiver, one.number) for one in batch]


@pytest.mark.parametrize(
    ("limits", "batch", "positions"),
    [
        ((100, 1000), [("a", 1), ("a", 2), ("a", 4), ("b", 1), ("b", 2)], [4, 2]),
        ((2, 1000), [("a", 1), ("a", 2)], [2]),
        ((100, 15), [("a", 1), ("a", 2)], [2]),
        ((100, 1000, 3), [("a", 1), ("a", 2)], [3]),
        ((100, 1000, 5), [("a", 1), ("a", 2), ("a", 4), ("b", 1)], [4, 1]),
        ((100, 1000, 0), [], [0]),
    ],
    ids=["all", "rows", "bytes", "places", "places of two runs", "none"],
)
def test_a_batch_ends_at_rows_bytes_or_places(limits, batch, positions):
    context = a_context()
    taken, reached = context.take(*limits)
    assert (places(taken), [position for _, position in reached]) == (batch, positions)


def test_until_its_effects_are_applied_a_batch_has_changed_nothing():
    context = a_context()
    assert context.take(100, 1000) == context.take(100, 1000)
    entered, waiting = context.cut().entered, context.cut().queue
    assert (entered, [(run.receiver, run.first, run.count) for run in waiting]) == (
        {"a": 4, "b": 2},
        [("a", 1, 4), ("b", 1, 2)],
    )


def test_effects_take_place_together_with_the_progress_of_the_batch():
    context, where = a_context(), routes()
    _, reached = context.take(100, 1000, 5)
    state = [StateEntry("step:p/s", b"k", b"1"), StateEntry("step:p/s", b"gone", None)]
    sends = [("out", BODIES[0]), ("quick", BODIES[1]), ("out", BODIES[2])]
    context.apply(Effects(sends, state, [LETTER]), reached, where)
    assert [(run.receiver, run.first) for run in context.cut().queue] == [("b", 2)]
    assert context.staging.take_sends() == {"out": [BODIES[0], BODIES[2]]}
    assert len(where.outboxes["quick"].take(5)) == 1
    assert context.staging.take_dead_letters() == [LETTER]
    assert (context.get("step:p/s", b"k"), context.items("step:p/s")) == (b"1", [(b"k", b"1")])
    assert (context.take_state(), context.take_state()) == (state, [])


@pytest.mark.parametrize(("closing", "code"), [((), "E8001"), (("gone",), "E8002")])
def test_a_refused_send_leaves_all_other_effects_out(closing, code):
    context, where = a_context(), routes()
    where.closing = frozenset(closing)
    _, reached = context.take(100, 1000)
    effects = Effects([("out", BODIES[0]), ("gone", BODIES[1])], [StateEntry("step:p/s", b"k", b"1")], [LETTER])
    with pytest.raises(UsageError, match=f"{code} pipeline p: .*sender 'gone'"):
        context.apply(effects, reached, where)
    assert (context.staging.take_sends(), context.staging.take_dead_letters(), context.take_state()) == ({}, [], [])
    assert len(context.queue) == 2


def test_loaded_state_is_no_change():
    context = BatchContext("p")
    context.load({"step:p/s": {b"k": b"1"}})
    assert (context.get("step:p/s", b"k"), context.get("step:p/s", b"x"), context.take_state()) == (b"1", None, [])


def test_a_condemned_message_is_left_out_as_a_dead_letter():
    context = a_context()
    context.queue.enter()
    reason = context.leave_out(Suspect("p", "a", 1, 1, 2))
    (letter,) = context.staging.take_dead_letters()
    assert (letter.kind, letter.origin, letter.number, letter.reason) == ("poison", "p", 1, reason)
    assert places(context.take(1, 1000)[0]) == [("a", 2)]
