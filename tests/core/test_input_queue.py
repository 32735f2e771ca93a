"""The input queue of a context: order, what a cut records, what a restart brings back (rules A3.4, A3.16)."""

from hypothesis import given
from hypothesis import strategies as st

from correlator.core.checkpoint import consumed
from correlator.core.commit import QueueRun, ReceiveSegment
from correlator.core.queue import InputQueue, Run
from correlator.core.recovery import ReceiveLog, restored_runs
from correlator.events import Message


def a_run(receiver: str, first: int, count: int, *, stored: bool = True) -> Run:
    messages = [Message(str(number).encode()) for number in range(first, first + count)]
    return Run(receiver, first, messages, messages, stored=stored)


def inside(event: str) -> Run:
    return Run("", 0, (), (event,), stored=True)


def encoded(event: str) -> tuple[str, bytes]:
    return "str", event.encode()


def a_queue(*runs: Run) -> InputQueue:
    queue = InputQueue()
    for run in runs:
        queue.deliver(run)
    return queue


def test_runs_are_handled_in_the_order_of_delivery():
    queue = a_queue(a_run("r", 1, 2), inside("x"), a_run("r", 3, 1))
    handled = []
    while (run := queue.head()) is not None:
        handled.append((run.receiver, run.first))
        queue.advance(run, len(run))
    assert handled == [("r", 1), ("", 0), ("r", 3)]


def test_a3_16_a_cut_records_received_messages_by_reference_and_inner_events_by_value():
    queue = a_queue(a_run("r", 1, 5), inside("x"), a_run("s", 7, 2))
    queue.advance(queue.head(), 3)
    assert queue.cut(encoded) == (
        {"r": 5, "s": 8},
        [QueueRun("r", 4, 2), QueueRun("", 0, 1, [("str", b"x")]), QueueRun("s", 7, 2)],
    )


def test_what_is_not_stored_is_not_recorded():
    assert a_queue(a_run("besteffort", 1, 5, stored=False)).cut(encoded) == ({}, [])


def test_a3_4_what_is_delivered_after_the_cut_has_not_entered():
    queue = a_queue(a_run("r", 1, 2))
    entered, _ = queue.cut(encoded)
    queue.deliver(a_run("r", 3, 2))
    assert entered == {"r": 2}
    assert queue.entered == {"r": 2}
    assert queue.cut(encoded)[0] == {"r": 4}


def test_backlog_counts_messages_of_a_receiver_that_wait():
    queue = a_queue(a_run("r", 1, 5), a_run("r", 6, 5))
    assert queue.backlog("r") == 10
    queue.advance(queue.head(), 4)
    assert (queue.backlog("r"), queue.waiting) == (6, 6)
    assert queue.backlog("unknown") == 0


def test_a_batch_that_a_processor_has_taken_leaves_room_for_the_next():
    queue = a_queue(a_run("r", 1, 5), a_run("r", 6, 5))
    queue.take(queue.head(), 4)
    assert (queue.untaken("r"), queue.backlog("r")) == (6, 10)
    queue.take(queue.head(), 0)
    assert queue.untaken("r") == 6, "nothing was taken"
    queue.advance(queue.head(), 5)
    assert (queue.untaken("r"), queue.backlog("r")) == (5, 5)
    queue.forget("r")
    queue.deliver(a_run("r", 1, 2))
    assert queue.untaken("r") == 2


def test_backlog_is_right_after_a_restart():
    queue = InputQueue()
    queue.restore({"r": 9, "s": 4}, [a_run("r", 6, 4)])
    assert (queue.backlog("r"), queue.backlog("s")) == (4, 0)


def test_a_queue_begins_where_it_is_told_unless_more_has_entered():
    queue = InputQueue()
    queue.restore({"r2": 9}, [])
    queue.begin("r1", 7)
    queue.begin("r2", 7)
    assert queue.entered == {"r1": 7, "r2": 9}
    assert (queue.backlog("r1"), queue.backlog("r2")) == (0, 0)


def test_a_removed_receiver_begins_its_numbers_anew():
    queue = a_queue(a_run("r", 1, 5))
    queue.advance(queue.head(), 5)
    queue.forget("r")
    queue.deliver(a_run("r", 1, 2))
    assert queue.backlog("r") == 2


# --- what the receive log may lose ---


def test_consumed_is_what_every_context_has_handled():
    slow, quick = a_queue(a_run("r", 1, 5)), a_queue(a_run("r", 1, 5))
    slow.advance(slow.head(), 2)
    quick.advance(quick.head(), 5)
    assert consumed({"slow": slow, "quick": quick}, {"r": ["slow", "quick"]}) == {"r": 2}
    assert consumed({"quick": quick}, {"r": ["quick"]}) == {"r": 5}


def test_what_waits_in_a_context_that_a_receiver_delivers_to_no_more_is_not_consumed():
    slow, quick = a_queue(a_run("r", 1, 5)), a_queue(a_run("r", 1, 5))
    slow.advance(slow.head(), 2)
    quick.advance(quick.head(), 5)
    assert consumed({"slow": slow, "quick": quick}, {"r": ["quick"]}) == {"r": 2}


def test_consumed_of_a_context_that_nothing_entered_is_nothing():
    waiting, empty = a_queue(a_run("r", 1, 5)), InputQueue()
    waiting.advance(waiting.head(), 5)
    assert consumed({"a": waiting, "b": empty}, {"r": ["a", "b"], "nobody": []}) == {"r": 0}


def test_consumed_stops_at_a_message_that_waits_behind_another_receiver():
    queue = a_queue(a_run("s", 1, 1), a_run("r", 1, 3))
    queue.enter()
    assert consumed({"main": queue}, {"r": ["main"], "s": ["main"]}) == {"r": 0, "s": 0}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("deliver"), st.sampled_from("rs"), st.integers(1, 4)),
            st.tuples(st.just("inside"), st.just(""), st.just(1)),
            st.tuples(st.just("handle"), st.just(""), st.integers(1, 5)),
            st.tuples(st.just("restart"), st.just(""), st.just(0)),
        )
    )
)
def test_a_restart_loses_and_repeats_nothing(steps):
    """The receive log keeps all messages beyond `consumed`; cut, log and later messages together restore the queue."""
    queue, handled = InputQueue(), []
    log: dict[str, list[Message]] = {"r": [], "s": []}
    inner = 0
    expected: dict[str, list[bytes]] = {"r": [], "s": [], "": []}
    for what, receiver, count in steps:
        if what == "deliver":
            run = a_run(receiver, len(log[receiver]) + 1, count)
            log[receiver] += run.messages
            expected[receiver] += [message.body for message in run.messages]
            queue.deliver(run)
        elif what == "inside":
            inner += 1
            expected[""].append(str(inner).encode())
            queue.deliver(inside(str(inner)))
        elif what == "handle":
            for _ in range(count):
                if (run := queue.head()) is not None:
                    event = run.events[run.position]
                    handled.append((run.receiver, event.encode() if isinstance(event, str) else event.body))
                    queue.advance(run, run.position + 1)
        else:
            queue = _restarted(queue, log)
    while (run := queue.head()) is not None:
        event = run.events[run.position]
        handled.append((run.receiver, event.encode() if isinstance(event, str) else event.body))
        queue.advance(run, run.position + 1)
    for receiver, bodies in expected.items():
        assert [body for source, body in handled if source == receiver] == bodies


def _restarted(queue: InputQueue, log: dict[str, list[Message]]) -> InputQueue:
    entered, recorded = queue.cut(encoded)
    done = consumed({"main": queue}, {"r": ["main"], "s": ["main"]})
    kept = ReceiveLog(
        [
            ReceiveSegment(receiver, done[receiver] + 1, messages[done[receiver] :])
            for receiver, messages in log.items()
            if messages[done[receiver] :]
        ]
    )
    again = InputQueue()
    same = {receiver: lambda _, messages: messages for receiver in log}
    again.restore(entered, restored_runs("main", recorded, kept, same, lambda one: one[1].decode()))
    for receiver in log:
        for first, messages in kept.beyond("main", receiver, entered.get(receiver, 0)):
            again.deliver(Run(receiver, first, messages, messages, stored=True))
    return again
