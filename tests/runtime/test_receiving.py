"""Receiving (docs/rules.md, section A3): batches, store before acknowledgement, recovery before anything new."""

import itertools
import threading

import pytest

from correlator import Monitor
from correlator.errors import ConnectionLost, UsageError
from correlator.runtime.clock import SystemClock
from correlator.storage import inspect
from correlator.storage.database import reading
from correlator.storage.loading import received_of
from correlator.storage.tables import receive_log
from correlator.testing.clock import ManualClock
from correlator.testing.memory import Faults
from tests.runtime.flows import SCRIPT, AlsoHears, AlsoKeeps, Forwards, Hears, Keeps, Note, Watches
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

HOUR = 3600.0
STORED = [AT_LEAST_ONCE, EXACTLY_ONCE]


def bodies(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


# --- the batch ---


@pytest.mark.parametrize("reliability", STORED)
def test_a3_1_a_batch_is_acknowledged_as_one(world, reliability):
    world.publish(*numbered(30))
    with world.engine(receiver("in", reliability, max_batch_size=10), monitors=[Keeps]):
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    assert [one.count for one in world.trace if one.kind == "acknowledged"] == [10, 10, 10]


@pytest.mark.parametrize("reliability", STORED)
def test_a3_2_batches_are_stored_then_acknowledged_then_the_next_is_received(world, reliability):
    world.watch_points()
    world.publish(*numbered(30))
    with world.engine(receiver("in", reliability, max_batch_size=10), monitors=[Keeps], interval=HOUR):
        world.wait(lambda: world.happened("acknowledged") == ["acknowledged"] * 3)
        order = world.happened("delivered", "rx.tx.commit.before", "rx.tx.commit.after", "acknowledged")
    assert order == ["delivered", "rx.tx.commit.before", "rx.tx.commit.after", "acknowledged"] * 3


class AcknowledgementNeverArrives(Faults):
    """The line is cut when the first batch is acknowledged."""

    cut = False

    def before_acknowledge(self, receiver, messages):
        if not self.cut:
            self.cut = True
            raise ConnectionLost("E7001", receiver, "the line was cut")


@pytest.mark.parametrize(("reliability", "times"), [(EXACTLY_ONCE, 1), (AT_LEAST_ONCE, 2)])
def test_a3_2_t16_a_batch_redelivered_after_its_commit_is_dropped_or_handled_twice(
    any_world, script, reliability, times
):
    any_world.broker.faults = AcknowledgementNeverArrives()
    any_world.publish(*numbered(5))
    with any_world.engine(receiver("in", reliability, max_batch_size=5), monitors=[Keeps]) as engine:
        any_world.wait(lambda: "acknowledged" in any_world.happened("acknowledged"))
        any_world.wait(lambda: len(script.of("Keeps")) == 5 * times)
        assert engine.status().receivers["in"][1].duplicates == (5 if times == 1 else 0)
    assert script.of("Keeps") == bodies(1, 5) * times


@pytest.mark.parametrize("reliability", STORED)
def test_a3_3_no_context_sees_a_batch_before_its_commit(world, script, reliability):
    world.watch_points()
    script.message = lambda monitor, message: world.trace.append(Heard(type(monitor).__name__))
    both = [monitor(Hears), monitor(AlsoHears, context="other")]
    world.publish("a")
    with world.engine(receiver("in", reliability), monitors=both, interval=3600):
        world.wait(lambda: len(script.heard) == 2)
    order = world.happened("rx.tx.commit.after", "Hears", "AlsoHears")
    assert order[0] == "rx.tx.commit.after"
    assert sorted(order[1:]) == ["AlsoHears", "Hears"]


def test_z6_a_receive_transaction_and_a_checkpoint_hold_what_they_are_for(any_world):
    """Messages and their ids in the one; state, queues, sends and progress in the other; each with its own fence."""
    any_world.watch_points()
    with any_world.engine(receiver(), sender(), monitors=[Forwards], interval=HOUR) as engine:
        any_world.publish("m1")
        any_world.wait(lambda: any_world.received_rows() == 1 and any_world.stored_ids() == ["m1"])
        any_world.wait(lambda: the_monitor(engine, Forwards).count == 1)
        received = [one.kind for one in any_world.trace if one.kind.startswith(("rx.tx", "ck.tx"))]
        assert (any_world.outbox_rows(), inspect.checkpoints(any_world.store)) == (0, [])
        any_world.trace.clear()
        assert engine.checkpoint()
        kept = [one.kind for one in any_world.trace if one.kind.startswith(("rx.tx", "ck.tx"))]
        assert any_world.received_rows() == 0
    assert received[:2] == ["rx.tx.begin", "rx.tx.fence"]
    assert {"rx.tx.insert", "rx.tx.dedup"} < set(received)
    assert received[-2:] == ["rx.tx.commit.before", "rx.tx.commit.after"]
    assert not {one for one in received if one.startswith("ck.")}
    assert {"ck.tx.fence", "ck.tx.state", "ck.tx.outbox", "ck.tx.prune_rx", "ck.tx.meta"} < set(kept)
    assert not {one for one in kept if one.startswith("rx.")}


class Heard:
    """A line of the trace that a monitor wrote."""

    def __init__(self, kind: str) -> None:
        self.kind, self.who, self.count = kind, "", 0


@pytest.mark.parametrize("reliability", STORED)
def test_a3_4_what_enters_during_a_commit_keeps_its_row_until_the_next_checkpoint(any_world, script, reliability):
    """A message that enters the queue behind the cut is no part of the checkpoint, though it is handled before the commit."""
    with any_world.engine(receiver("in", reliability), monitors=[Keeps], interval=HOUR) as engine:
        any_world.publish("early")
        any_world.wait(lambda: script.of("Keeps") == ["early"] and not any_world.broker.unacknowledged("queue:in"))
        of_batch, of_checkpoint = any_world.hold_at("rx.tx.begin", "ck.tx.begin")
        any_world.publish("late")
        of_batch.wait_reached()
        number = engine.checkpointer.ask()
        any_world.wait(lambda: engine.checkpointer.busy)
        of_batch.open()
        of_checkpoint.wait_reached()
        any_world.wait(lambda: script.of("Keeps") == ["early", "late"])
        assert rows_of_messages(any_world) == [1, 2]
        of_checkpoint.open()
        assert engine.checkpointer.wait_answered(number, 20)
        assert rows_of_messages(any_world) == [2]
        assert engine.checkpoint()
        assert rows_of_messages(any_world) == []


def rows_of_messages(world) -> list[int]:
    """The numbers of the messages in the receive log."""
    return [number for row in inspect.receive_log(world.store) for number in range(row.first, row.last + 1)]


def test_a3_5_t15_ids_outlive_the_messages_and_a_restart(any_world, script):
    parts = receiver()
    with any_world.engine(parts, monitors=[Keeps]) as engine:
        any_world.publish("a", "b")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b"])
        assert engine.checkpoint()
        assert (any_world.received_rows(), any_world.stored_ids()) == (0, ["a", "b"])
    with any_world.engine(parts, monitors=[Keeps]) as engine:
        any_world.publish("b", "c")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b", "c"])
        assert engine.status().receivers["in"][1].duplicates == 1


def test_a3_6_89_90_messages_without_id_are_received_at_least_once(any_world, script, logs):
    without = [message("x", ""), message("x", ""), message("y", "")]
    with any_world.engine(receiver(), monitors=[Keeps]) as engine:
        any_world.publish(*without)
        any_world.wait(lambda: script.of("Keeps") == ["x", "x", "y"])
        assert engine.checkpoint()
        assert (any_world.received_rows(), any_world.stored_ids()) == (0, [])
        any_world.publish(*without)
        any_world.wait(lambda: len(script.of("Keeps")) == 6)
        assert engine.status().receivers["in"][1].without_id == 6
    assert len([line for line in logs if "W5401" in line["event"]]) == 1


def test_a3_7_a_long_body_leaves_the_store_with_its_effect_and_the_id_stays(any_world, script):
    long = message("x" * 1_000_000, "the id")
    with any_world.engine(receiver(), monitors=[Hears], interval=HOUR) as engine:
        any_world.publish(long)
        any_world.wait(lambda: script.of("Hears"))
        assert any_world.received_rows() == 1
        assert engine.checkpoint()
        with reading(any_world.store) as connection:
            assert [received_of(row) for row in connection.execute(receive_log.select())] == []
        assert any_world.stored_ids() == ["the id"]


# --- recovery ---


def held_in(world, script, gate, name: str, hook: str) -> threading.Event:
    """Have a life-cycle method of a monitor wait for the gate; set when it is entered. Its end stands in the trace."""
    entered = threading.Event()

    def called(monitor, which):
        if (type(monitor).__name__, which) == (name, hook):
            entered.set()
            gate.wait(120)
        world.note(f"{type(monitor).__name__} {which}")

    script.hook = called
    return entered


def starting(engine) -> threading.Thread:
    """The thread in which the engine starts."""
    thread = threading.Thread(target=engine.start)
    thread.start()
    return thread


def let_try(engine) -> None:
    """Give every receiver and sender a turn: what may not act yet does nothing with it."""
    assert [part.step() for part in (*engine.receivers.values(), *engine.senders.values())] == [None, None]


RECEIVES = ("rx.reconnect", "rx.poll", "delivered")
"""What of a trace shows that a receiver has begun."""


@pytest.mark.parametrize("reliability", [*STORED, BEST_EFFORT])
def test_a3_8_nothing_is_received_before_recovery_is_concluded(any_world, script, reliability, gate):
    """Concluded is what `on_conclude_recovery` says in all persistent monitors: here the last one takes its time."""
    parts = (receiver("in", reliability), sender())
    monitors = [Keeps, monitor(AlsoKeeps, context="other")]
    with any_world.engine(*parts, monitors=monitors) as engine:
        assert engine.checkpoint()
    any_world.publish("waits at the broker")
    any_world.trace.clear()
    any_world.watch_points()
    entered = held_in(any_world, script, gate, "AlsoKeeps", "on_conclude_recovery")
    engine = any_world.engine(*parts, monitors=monitors)
    thread = starting(engine)
    assert entered.wait(120)
    any_world.publish("and another")
    let_try(engine)
    assert (any_world.happened(*RECEIVES), script.heard, any_world.broker.waiting("queue:in")) == ([], [], 2)
    any_world.note("gate")
    gate.set()
    thread.join(120)
    any_world.wait(lambda: len(script.heard) == 4)
    engine.stop()
    concluded = [f"{name} on_conclude_recovery" for name in ("Keeps", "AlsoKeeps")]
    order = any_world.happened("gate", *concluded, *RECEIVES)
    assert order[:6] == [concluded[0], "gate", concluded[1], "rx.reconnect", "rx.poll", "delivered"]


def test_a3_9_what_was_stored_is_delivered_from_the_store_before_anything_new(any_world, script, gate):
    script.message = lambda monitor, message: gate.wait(120)
    parts = receiver(max_batch_size=5)
    engine = any_world.engine(parts, monitors=[Keeps], interval=HOUR)
    with engine:
        any_world.publish(*numbered(5))
        any_world.wait(lambda: any_world.received_rows() == 5 and not any_world.broker.unacknowledged("queue:in"))
        gate.set()
        any_world.crash(engine)
    assert any_world.broker.waiting("queue:in") == 0
    script.heard.clear()
    any_world.publish(*numbered(3, first=6))
    with any_world.engine(parts, monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).bodies == bodies(1, 8))


def test_a3_9_a9_14_a_monitor_without_persistence_hears_stored_messages_when_it_listens_early(any_world, script, gate):
    """The order of recovery (rule A9.14): objects, begin, onload, stored events, conclude, then receivers."""
    script.message = lambda monitor, message: gate.wait(120)
    both = [Keeps, Hears]
    engine = any_world.engine(receiver(), monitors=both, interval=HOUR)
    with engine:
        assert engine.checkpoint()
        any_world.publish("a", "b")
        any_world.wait(lambda: any_world.received_rows() == 2 and script.heard)
        gate.set()
        any_world.crash(engine)
    script.heard.clear()
    script.hook = lambda monitor, hook: script.hear(monitor, hook)
    script.message = lambda monitor, message: None
    any_world.publish("new")
    with any_world.engine(receiver(), monitors=both):
        any_world.wait(lambda: ("Hears", "new") in script.heard)
    assert script.of("Keeps") == ["on_begin_recovery", "a", "b", "on_conclude_recovery", "new"]
    assert script.of("Hears") == ["onload", "on_begin_recovery", "a", "b", "on_conclude_recovery", "new"]
    assert script.heard.index(("Keeps", "on_begin_recovery")) < script.heard.index(("Hears", "onload"))
    assert script.heard.index(("Hears", "b")) < script.heard.index(("Keeps", "on_conclude_recovery"))


def test_a9_14_the_order_of_a_recovery(any_world, script, gate):
    """Objects, begin, onload as configured, timers that are due, stored events, conclude; then brokers and checkpoints.

    Engine time goes on where the last checkpoint left it: 5 s here, though the engine lived to 50 s and was away.
    """
    clock = ManualClock()
    parts = (receiver(), sender())
    monitors = [monitor(AlsoHears, context="other"), Keeps, Hears, monitor(AlsoKeeps, context="other"), Rings]
    script.message = lambda one, message: gate.wait(120)
    engine = any_world.engine(*parts, monitors=monitors, clock=clock, interval=HOUR)
    with engine:
        clock.advance(5)
        assert engine.checkpoint()
        any_world.publish("a", "b")
        any_world.wait(lambda: any_world.received_rows() == 2 and script.heard)
        clock.advance(45)
        gate.set()
        any_world.crash(engine)
    clock.advance(1000)
    any_world.publish("new")
    any_world.trace.clear()
    any_world.watch_points()

    def called(one, hook):
        any_world.note(f"{type(one).__name__} {hook}")
        if (type(one).__name__, hook) == ("Hears", "onload"):
            clock.advance(10)

    script.hook = called
    script.message = lambda one, message: any_world.note(f"{type(one).__name__} {message.body.decode()}")
    script.note = lambda one, note: any_world.note(f"rings at {note.text}")
    with any_world.engine(*parts, monitors=monitors, clock=clock) as engine:
        any_world.wait(lambda: len(any_world.happened("Hears new", "AlsoHears new", "Keeps new", "AlsoKeeps new")) == 4)
        any_world.wait(lambda: engine.senders["out"].connected and engine.status().checkpoints.taken)
        clock.advance(15)
        engine.contexts["main"].wake()
        any_world.wait(lambda: any_world.happened("rings at 30"))
    lines = [one.kind for one in any_world.trace]
    persistent, others = ("AlsoKeeps", "Keeps"), ("AlsoHears", "Hears")
    stages = [
        ["rec.load.state"],
        [f"{name} on_begin_recovery" for name in persistent],
        [f"{name} onload" for name in others],
        [f"{name} on_begin_recovery" for name in others],
        ["rings at 10"],
        [f"{name} {body}" for body in ("a", "b") for name in (*persistent, *others)],
        [f"{name} on_conclude_recovery" for name in (*persistent, *others)],
        ["rx.reconnect", "tx.reconnect", "ck.trigger", "delivered"],
    ]
    places = [[lines.index(line) for line in stage] for stage in stages]
    assert all(max(before) < min(after) for before, after in itertools.pairwise(places))
    assert places[2] == sorted(places[2])
    assert lines.index("delivered") < lines.index("rings at 30")
    for name in (*persistent, *others):
        assert any_world.happened(f"{name} a", f"{name} b", f"{name} new") == [f"{name} a", f"{name} b", f"{name} new"]


class Rings(Monitor, persistent=True):
    """Has timers that ring at 10 s and at 30 s of engine time."""

    def onload(self) -> None:
        self.wait(10, then=self.ten)
        self.wait(30, then=self.thirty)

    def ten(self) -> None:
        SCRIPT.note(self, Note(text="10"))

    def thirty(self) -> None:
        SCRIPT.note(self, Note(text="30"))


def test_a_first_start_is_no_recovery(world, script):
    script.hook = lambda monitor, hook: script.hear(monitor, hook)
    with world.engine(monitors=[Keeps, Hears]):
        pass
    assert script.heard == [("Keeps", "onload"), ("Hears", "onload")]


def test_a3_14_nothing_is_delivered_before_the_application_is_initialised(any_world, script, gate):
    """The application is initialised when `onload` has returned in all monitors: no message, and no status event."""
    any_world.publish("waits")
    any_world.watch_points()
    entered = held_in(any_world, script, gate, "AlsoHears", "onload")
    monitors = [Keeps, Watches, Hears, monitor(AlsoHears, context="other")]
    engine = any_world.engine(receiver(), sender(), monitors=monitors)
    thread = starting(engine)
    assert entered.wait(120)
    any_world.publish("waits too")
    let_try(engine)
    assert (any_world.happened(*RECEIVES), script.heard, any_world.broker.waiting("queue:in")) == ([], [], 2)
    assert [thread.queue.waiting for thread in engine.contexts.values()] == [0, 0]
    any_world.note("gate")
    gate.set()
    thread.join(120)
    any_world.wait(lambda: {"in OK", "out OK", "memory OK"} <= set(script.of("Watches")))
    any_world.wait(lambda: all(script.of(name) == ["waits", "waits too"] for name in ("Keeps", "Hears", "AlsoHears")))
    engine.stop()
    loaded = [f"{name} onload" for name in ("Keeps", "Hears", "AlsoHears")]
    assert any_world.happened("gate", *loaded, *RECEIVES)[:5] == [*loaded[:2], "gate", loaded[2], "rx.reconnect"]


def test_a3_16_what_waits_in_a_queue_is_part_of_the_checkpoint(any_world, script, gate):
    def slow(monitor, message):
        if message.body == b"m3":
            gate.wait(120)

    script.message = slow
    parts = receiver(max_batch_size=10)
    engine = any_world.engine(parts, monitors=[Keeps], interval=HOUR)
    with engine:
        any_world.publish(*numbered(50))
        any_world.wait(lambda: any_world.received_rows() == 50 and "m3" in script.of("Keeps"))
        number = engine.checkpointer.ask()
        any_world.wait(lambda: engine.contexts["main"].context.cut_requested)
        gate.set()
        assert engine.checkpointer.wait_answered(number, 20)
        any_world.crash(engine)
    (taken,) = inspect.checkpoints(any_world.store)
    assert taken.waiting == {"main": 47}
    script.heard.clear()
    any_world.publish(*numbered(5, first=51))
    with any_world.engine(parts, monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).bodies == bodies(1, 55))
    assert script.of("Keeps") == bodies(4, 55)


def test_events_that_contexts_sent_each_other_survive(any_world, script, gate):
    """What waits in a channel is recorded by value: `second` is at its first message when the checkpoint is asked for."""

    def pass_on(monitor, message):
        if isinstance(monitor, Hears):
            monitor.send(Note(text=message.body.decode()), to="channel:second")
        else:
            gate.wait(120)

    script.message = pass_on
    monitors = [monitor(Hears), monitor(Keeps, context="second")]
    engine = any_world.engine(receiver(), monitors=monitors, interval=HOUR)
    with engine:
        any_world.publish("a", "b")
        any_world.wait(lambda: script.of("Hears") == ["a", "b"] and script.of("Keeps") == ["a"])
        number = engine.checkpointer.ask()
        any_world.wait(lambda: engine.contexts["second"].context.cut_requested)
        gate.set()
        assert engine.checkpointer.wait_answered(number, 20)
        any_world.crash(engine)
    assert inspect.checkpoints(any_world.store)[0].waiting == {"main": 0, "second": 3}
    with any_world.engine(receiver(), monitors=monitors) as engine:
        assert sorted(the_monitor(engine, Keeps, "second").bodies) == ["a", "b", "note a", "note b"]


# --- acknowledgements and bounds ---


def test_a3_10_acknowledgements_do_not_wait_for_checkpoints(world):
    with world.engine(receiver(max_batch_size=10), monitors=[Keeps], interval=HOUR) as engine:
        world.publish(*numbered(50))
        world.wait(lambda: len(world.happened("acknowledged")) >= 5)
        assert engine.status().checkpoints.taken == 0


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("reliability", [*STORED, BEST_EFFORT])
def test_a3_11_what_is_not_acknowledged_is_bounded_by_the_batch(world, reliability, size):
    most = 0

    class Watches(Faults):
        def before_acknowledge(self, receiver, messages):
            nonlocal most
            most = max(most, world.broker.unacknowledged("queue:in"))

    world.broker.faults = Watches()
    world.publish(*numbered(500))
    with world.engine(receiver("in", reliability, max_batch_size=size), monitors=[Hears]):
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    assert most == size


def test_a3_12_a_single_message_waits_its_interval_and_no_longer(world, script):
    clock = SystemClock()
    with world.engine(receiver(max_batch_interval_ms=100), monitors=[Hears]):
        begin = clock.monotonic()
        world.publish("a")
        world.wait(lambda: script.of("Hears") == ["a"])
        assert 0.1 <= clock.monotonic() - begin < 60


def test_a3_12_a_batch_is_closed_by_its_bytes(world, script):
    settings = receiver(max_batch_interval_ms=3_600_000, max_batch_bytes=1000)
    with world.engine(settings, monitors=[Hears]):
        world.publish(message("x" * 999, "long"))
        world.publish("y")
        world.wait(lambda: len(script.of("Hears")) == 2)


@pytest.mark.parametrize("reliability", STORED)
def test_a3_13_what_was_not_persisted_is_handled_again_on_the_recovered_state(any_world, script, reliability):
    parts = receiver("in", reliability)
    engine = any_world.engine(parts, monitors=[Keeps], interval=HOUR)
    with engine:
        any_world.publish("a")
        any_world.wait(lambda: script.of("Keeps") == ["a"])
        assert engine.checkpoint()
        any_world.publish("b")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b"])
        any_world.crash(engine)
    with any_world.engine(parts, monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).bodies == ["a", "b"])
    assert script.of("Keeps") == ["a", "b", "b"]


def test_a3_15_a8_20_several_receivers_on_one_queue_drop_each_others_duplicates(any_world, script):
    pair = [receiver(name, destination="queue:in", max_batch_size=7) for name in ("r1", "r2")]
    once = numbered(200)
    any_world.publish(*[one for pair_of in zip(once, once, strict=True) for one in pair_of])
    with any_world.engine(*pair, monitors=[Keeps]) as engine:
        any_world.wait(lambda: any_world.broker.waiting("queue:in") == any_world.broker.unacknowledged("queue:in") == 0)
        any_world.wait(lambda: the_monitor(engine, Keeps).count == 200)
        status = engine.status().receivers
        assert sum(counters.duplicates for _, counters in status.values()) == 200
    assert sorted(script.of("Keeps")) == sorted(bodies(1, 200))


def test_back_pressure_pauses_receiving_and_loses_nothing(world, script, gate):
    script.message = lambda monitor, message: gate.wait(120)
    world.publish(*numbered(300))
    with world.engine(receiver(max_batch_size=10), monitors=[Keeps], max_queued=50) as engine:
        world.wait(lambda: engine.status().contexts["main"] >= 49)
        assert world.broker.waiting("queue:in") >= 230
        gate.set()
        world.wait(lambda: the_monitor(engine, Keeps).count == 300)
    assert script.of("Keeps") == bodies(1, 300)


@pytest.mark.parametrize("reliability", [*STORED, BEST_EFFORT])
def test_a_lost_connection_is_made_again_and_nothing_is_lost(world, script, reliability):
    with world.engine(receiver("in", reliability, max_batch_size=3), monitors=[Keeps]) as engine:
        for number in range(10):
            world.publish(f"m{number}")
            world.broker.drop_connections()
            world.wait(lambda number=number: f"m{number}" in script.of("Keeps"))
        assert engine.status().receivers["in"][1].connection_errors >= 1


def test_u3_a_broker_that_is_away_at_the_start_is_waited_for(world, script):
    world.broker.down = True
    with world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        world.publish("a")
        world.wait(lambda: engine.status().receivers["in"][1].connection_errors >= 2)
        world.broker.down = False
        world.wait_for("1:a")


def test_an_orderly_stop_leaves_nothing_behind(any_world):
    any_world.publish(*numbered(100))
    with any_world.engine(receiver(max_batch_size=9), sender(), monitors=[Forwards], interval=HOUR) as engine:
        any_world.wait(lambda: the_monitor(engine, Forwards).count >= 50)
    taken = len(any_world.sent())
    assert taken + any_world.broker.waiting("queue:in") == 100
    assert (any_world.received_rows(), any_world.outbox_rows()) == (0, 0)
    assert any_world.broker.unacknowledged("queue:in") == 0


def test_a_message_sent_by_a_stranger_thread_is_refused_outside_of_an_engine(world):
    with pytest.raises(UsageError, match="E8003"):
        Hears().send(b"x", to="out")
