"""APP_CONTROLLED receiving and flush notices (docs/rules.md, sections A4 and A5)."""

import re
from dataclasses import replace

import pytest

from correlator.core.intake import ReceiverState
from correlator.core.queue import Run
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.testing.clock import ManualClock
from correlator.testing.memory import Faults
from tests.runtime.flows import AlsoHears, Hears, Idles, Keeps
from tests.runtime.world import (
    APP_CONTROLLED,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Happened,
    message,
    monitor,
    numbered,
    receiver,
    sender,
)


def acknowledges(monitor, notice):
    monitor.acknowledge_and_resume(notice.receiver)


def controlled(size: int = 10, **fields):
    return receiver("in", APP_CONTROLLED, max_batch_size=size, **fields)


def suspensions(script) -> int:
    return script.of("Hears").count("suspended in")


def delivered(script) -> list[str]:
    return [one for one in script.of("Hears") if one != "suspended in"]


# --- A4 ---


def test_a4_1_it_needs_no_persistence(no_store, script):
    script.suspended = acknowledges
    no_store.publish(*numbered(3))
    with no_store.engine(controlled(), monitors=[Hears]):
        no_store.wait(lambda: no_store.broker.unacknowledged("queue:in") == 0 and suspensions(script))


def test_a4_2_the_cycle_of_receive_suspend_acknowledge_resume(no_store, script):
    def acknowledge(monitor, notice):
        assert no_store.broker.unacknowledged("queue:in") in (1000, 500)
        monitor.acknowledge_and_resume(notice.receiver)

    script.suspended = acknowledge
    no_store.publish(*numbered(2500))
    with no_store.engine(controlled(1000), monitors=[Hears]):
        no_store.wait(lambda: no_store.broker.waiting("queue:in") == no_store.broker.unacknowledged("queue:in") == 0)
    assert suspensions(script) == 3
    assert [one.count for one in no_store.trace if one.kind == "acknowledged"] == [1000, 1000, 500]


def test_a4_2_the_notice_comes_behind_the_messages_of_its_batch(no_store, script):
    script.suspended = acknowledges
    no_store.publish(*numbered(4))
    with no_store.engine(controlled(2), monitors=[Hears]):
        no_store.wait(lambda: suspensions(script) == 2)
    assert script.of("Hears") == ["m1", "m2", "suspended in", "m3", "m4", "suspended in"]


def test_t40_a_batch_that_is_held_for_long_is_told_once(no_store, script, logs):
    """Half of the time after which the broker takes it back; each batch anew, and none that is acknowledged in time."""
    clock = ManualClock()
    no_store.broker.features = replace(no_store.broker.features, holds_for_s=100)
    no_store.publish(*numbered(3))

    def warnings():
        return [one["after_s"] for one in logs if one["event"].startswith("W5408")]

    def acknowledge():
        before = suspensions(script)
        engine.receivers["in"].resume("main")()
        no_store.wait(lambda: suspensions(script) > before)

    def stepped(seconds):
        clock.advance(seconds)
        engine.receivers["in"].wake()

    with no_store.engine(controlled(1), monitors=[Hears], clock=clock) as engine:
        no_store.wait(lambda: suspensions(script) == 1)
        stepped(40)
        acknowledge()
        stepped(49)
        no_store.wait(lambda: engine.receivers["in"].state is ReceiverState.SUSPENDED)
        assert warnings() == []
        stepped(1)
        no_store.wait(lambda: warnings() == [100])
        stepped(60)
        acknowledge()
        assert warnings() == [100]
        stepped(50)
        no_store.wait(lambda: warnings() == [100, 100])


def test_a4_3_an_idle_receiver_never_suspends(no_store, script):
    script.suspended = acknowledges
    no_store.watch_points()
    with no_store.engine(controlled(), monitors=[Hears]):
        no_store.wait(lambda: len(no_store.happened("rx.poll")) >= 4)
        assert script.heard == []
        no_store.publish("a")
        no_store.wait(lambda: suspensions(script) == 1)
    assert script.of("Hears") == ["a", "suspended in"]


def test_a4_3_a_batch_of_dead_letters_alone_does_not_suspend(any_world, script):
    script.suspended = acknowledges
    with any_world.engine(controlled(event="tests.runtime.flows:Order"), monitors=[Hears]):
        any_world.publish("not JSON")
        any_world.wait(lambda: any_world.dead_letters())
        any_world.wait(lambda: any_world.broker.unacknowledged("queue:in") == 0)
        any_world.publish('{"id": 1}')
        any_world.wait(lambda: suspensions(script) == 1)
    assert script.of("Hears") == ["order 1", "suspended in"]


def test_a4_4_a_suspended_receiver_takes_nothing(no_store, script):
    resume = []
    script.suspended = lambda monitor, notice: resume.append(monitor)
    no_store.publish(*numbered(10))
    engine = no_store.engine(controlled(), receiver("resume", BEST_EFFORT), monitors=[Hears])
    script.message = lambda monitor, message: (
        monitor.acknowledge_and_resume("in") if message.body == b"resume now" else None
    )
    with engine:
        no_store.wait(lambda: suspensions(script) == 1)
        no_store.publish(*numbered(100, first=11))
        assert engine.status().receivers["in"][0] == "suspended"
        assert (no_store.broker.waiting("queue:in"), no_store.broker.unacknowledged("queue:in")) == (100, 10)
        no_store.publish("resume now", to="queue:resume")
        no_store.wait(lambda: suspensions(script) == 2)
        assert (no_store.broker.waiting("queue:in"), no_store.broker.unacknowledged("queue:in")) == (90, 10)
        no_store.crash(engine)


def test_a4_5_after_a_crash_before_the_call_the_whole_batch_comes_again(any_world, script):
    any_world.publish(*numbered(10))
    engine = any_world.engine(controlled(), monitors=[Hears])
    with engine:
        any_world.wait(lambda: suspensions(script) == 1)
        any_world.crash(engine)
    script.suspended = acknowledges
    with any_world.engine(controlled(), monitors=[Hears]):
        any_world.wait(lambda: suspensions(script) == 2)
    assert delivered(script) == [f"m{number}" for number in range(1, 11)] * 2


def test_a4_5_after_a_lost_connection_the_whole_batch_comes_again(no_store, script):
    """Invariant C5: an acknowledgement of before the reconnect acknowledges nothing after it."""

    class CutAtAcknowledge(Faults):
        cut = False

        def before_acknowledge(self, receiver, messages):
            if not self.cut:
                self.cut = True
                raise ConnectionLost("E7001", receiver, "the line was cut")

    no_store.broker.faults = CutAtAcknowledge()
    script.suspended = acknowledges
    no_store.publish(*numbered(10))
    with no_store.engine(controlled(), monitors=[Hears]):
        no_store.wait(lambda: suspensions(script) == 2 and no_store.broker.unacknowledged("queue:in") == 0)
    assert delivered(script) == [f"m{number}" for number in range(1, 11)] * 2


def test_a4_6_the_engine_drops_and_orders_nothing(any_world, script):
    script.suspended = acknowledges
    any_world.publish("b", "a", "b", "a")
    with any_world.engine(controlled(), monitors=[Hears]):
        any_world.wait(lambda: suspensions(script))
    assert delivered(script) == ["b", "a", "b", "a"]


def test_a4_7_acknowledged_after_the_flush_nothing_is_lost(no_store, script):
    """Invariant X1: an input is acknowledged only when the output made of it is confirmed; the line is cut again and again."""

    class Cuts(Faults):
        calls = 0

        def before_accept(self, sender, batch):
            self.calls += 1
            if self.calls % 2:
                raise ConnectionLost("E7001", sender, "the line was cut")

        def before_acknowledge(self, receiver, messages):
            bodies = {one.body for one in no_store.broker.destination("queue:out").log}
            assert {one.body for one in messages} <= bodies

    no_store.broker.faults = Cuts()
    script.message = lambda monitor, message: monitor.send(message.body, to="out")
    script.suspended = lambda monitor, notice: monitor.request_flush("out")
    script.flushed = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    no_store.publish(*numbered(50))
    for _ in range(4):
        engine = no_store.engine(controlled(), sender("out", BEST_EFFORT), monitors=[Hears])
        with engine:
            acknowledged = len(no_store.happened("acknowledged"))
            no_store.wait(lambda so_far=acknowledged: len(no_store.happened("acknowledged")) > so_far)
            no_store.crash(engine)
    with no_store.engine(controlled(), sender("out", BEST_EFFORT), monitors=[Hears]):
        no_store.wait(lambda: no_store.broker.waiting("queue:in") == no_store.broker.unacknowledged("queue:in") == 0)
    assert set(no_store.sent()) == {f"m{number}" for number in range(1, 51)}


def test_a4_8_only_a_context_that_handles_the_messages_may_acknowledge(no_store, script):
    with no_store.engine(controlled(), monitors=[Hears], stop_timeout=0.1) as engine:
        no_store.publish("a")
        no_store.wait(lambda: suspensions(script) == 1)
        with pytest.raises(UsageError, match="E7102 .*context 'audit' cannot acknowledge.* 'main'"):
            engine.receivers["in"].resume("audit")
        assert engine.status().receivers["in"][0] == "suspended"


@pytest.mark.parametrize("contexts", [("main", "audit"), ("audit", "main")])
def test_a4_8_t70_the_receiver_belongs_to_the_context_that_listens_for_its_batches(world, script, contexts):
    """Given another context, before or behind, when a batch comes, then only the one that acknowledges hears it."""
    script.suspended = acknowledges
    world.publish(*numbered(20))
    monitors = [monitor(Hears if name == "main" else Keeps, context=name) for name in contexts]
    with world.engine(controlled(), receiver("other"), monitors=monitors):
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
        world.publish("to all", to="queue:other")
        world.wait(lambda: "to all" in script.of("Hears") and "to all" in script.of("Keeps"))
    assert delivered(script) == [*(f"m{number}" for number in range(1, 21)), "to all"]
    assert script.of("Keeps") == ["to all"]


def test_a4_8_z2_a_monitor_of_another_context_that_acknowledges_fails_and_nothing_is_acknowledged(no_store, script):
    """`acknowledge_and_resume` is the one name of it; the error names both contexts."""
    parts = (controlled(), receiver("go", BEST_EFFORT))

    def acknowledge(monitor, message):
        if type(monitor) is AlsoHears and message.body == b"go":
            monitor.acknowledge_and_resume("in")

    script.message = acknowledge
    monitors = [Hears, monitor(AlsoHears, context="audit")]
    with no_store.engine(*parts, monitors=monitors, stop_timeout=0.1) as engine:
        no_store.publish(*numbered(3))
        no_store.wait(lambda: suspensions(script) == 1)
        assert script.of("AlsoHears") == []
        no_store.publish("go", to="queue:go")
        no_store.wait(lambda: engine.failure is not None)
    assert [one for one in no_store.trace if (one.kind, one.who) == ("acknowledged", "in")] == []
    assert str(engine.failure).startswith("E7102 receiver in: context 'audit' cannot acknowledge. Only 'main'")


def test_a4_8_a_pipeline_cannot_take_from_it(no_store):
    engine = no_store.engine(controlled(), monitors=[Hears], processors=[Idles()])
    with pytest.raises(ConfigError, match="E1207 receiver 'in'.reliability"):
        engine.start()


def test_a4_9_a_persistent_monitor_may_not_acknowledge(world, script):
    engine = world.engine(controlled(), receiver("go", BEST_EFFORT), monitors=[Keeps, Hears], stop_timeout=0.1)

    def acknowledge(monitor, message):
        if isinstance(monitor, Keeps) and message.body == b"go":
            monitor.acknowledge_and_resume("in")

    script.message = acknowledge
    with engine:
        world.publish("a")
        world.wait(lambda: suspensions(script) == 1)
        world.publish("go", to="queue:go")
        world.wait(lambda: engine.failure is not None)
        assert engine.failure.code == "E4110"
        assert world.happened("acknowledged")[1:] == []


def test_a4_10_a_monitor_without_persistence_may_in_a_persistent_engine(any_world, script):
    script.suspended = acknowledges
    any_world.publish(*numbered(20))
    with any_world.engine(controlled(), monitors=[Hears, Keeps]):
        any_world.wait(lambda: any_world.broker.waiting("queue:in") == any_world.broker.unacknowledged("queue:in") == 0)


def test_a4_11_a_call_without_a_suspended_batch_raises(no_store, script):
    script.message = lambda monitor, message: monitor.acknowledge_and_resume("in")
    engine = no_store.engine(controlled(), receiver("go", BEST_EFFORT), monitors=[Hears])
    with engine:
        no_store.publish("before anything was received", to="queue:go")
        no_store.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E7101"


def test_a4_11_a_second_call_for_the_same_batch_raises(no_store, script):
    def twice(monitor, notice):
        monitor.acknowledge_and_resume("in")
        monitor.acknowledge_and_resume("in")

    script.suspended = twice
    engine = no_store.engine(controlled(), monitors=[Hears])
    with engine:
        no_store.publish("a")
        no_store.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E7101"


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_an_acknowledgement_is_taken_back_when_its_handler_fails(any_world, script, policy):
    """Given a handler that acknowledges and then fails, when its event is left out, then the batch waits as before."""

    def acknowledges_and_fails(monitor, notice):
        monitor.acknowledge_and_resume("in")
        raise ValueError("after all")

    script.suspended = acknowledges_and_fails
    script.message = lambda monitor, message: monitor.acknowledge_and_resume("in") if message.body == b"go" else None
    monitors = [monitor(Hears, on_error=policy)]
    any_world.publish(*numbered(3))
    with any_world.engine(controlled(), receiver("go", BEST_EFFORT), monitors=monitors) as engine:
        any_world.wait(lambda: engine.handler_failures == 1)
        assert any_world.broker.unacknowledged("queue:in") == 3
        any_world.publish("go", to="queue:go")
        any_world.wait(lambda: any_world.broker.unacknowledged("queue:in") == 0)
        assert engine.handler_failures == 1


def test_a4_11_a_call_that_comes_after_the_removal_does_nothing(any_world, script):
    """Given a suspended receiver that was removed, when the monitor acknowledges late, then the engine goes on."""
    late = []
    script.suspended = lambda monitor, notice: late.append(monitor)
    script.message = lambda monitor, message: monitor.acknowledge_and_resume("in") if message.body == b"late" else None
    with any_world.engine(receiver("other", BEST_EFFORT), monitors=[Hears]) as engine:
        engine.add_receiver(controlled())
        any_world.publish("a")
        any_world.wait(lambda: late)
        engine.remove("in")
        any_world.wait(lambda: engine.removed("in"))
        any_world.publish("late", "after", to="queue:other")
        any_world.wait(lambda: "after" in script.of("Hears"))
        assert engine.failure is None
    assert any_world.broker.waiting("queue:in") + any_world.broker.unacknowledged("queue:in") == 1


def test_a4_12_mapping_failures_are_acknowledged_and_not_delivered(any_world, script):
    script.suspended = acknowledges
    bodies = [f'{{"id": {number}}}' for number in range(9)]
    any_world.publish(*bodies[:4], "not JSON", *bodies[4:])
    with any_world.engine(controlled(event="tests.runtime.flows:Order"), monitors=[Hears]) as engine:
        any_world.wait(lambda: any_world.broker.waiting("queue:in") == any_world.broker.unacknowledged("queue:in") == 0)
        assert engine.status().receivers["in"][1].dead_letters == 1
    assert delivered(script) == [f"order {number}" for number in range(9)]
    assert [one for one in any_world.trace if one.kind == "acknowledged"] == [Happened("acknowledged", "in", 10)]
    (reason,) = any_world.dead_letters()
    assert reason.startswith("E5101")


def test_a4_14_an_unknown_receiver_raises_when_it_is_used(no_store, script):
    script.message = lambda monitor, message: monitor.acknowledge_and_resume("nobody")
    engine = no_store.engine(receiver("in", BEST_EFFORT), monitors=[Hears])
    with engine:
        no_store.publish("a")
        no_store.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E7103"


# --- A5 ---


def flushing(no_of_sends: int):
    """A handler that sends so many messages and asks for a flush."""

    def handler(monitor, message):
        for number in range(no_of_sends):
            monitor.send(b"%s-%d" % (message.body, number), to="out")
        monitor.request_flush("out")

    return handler


def notices(script) -> list[str]:
    return [one for one in script.of("Hears") if one.startswith("flushed")]


@pytest.fixture
def best_effort(no_store, script):
    """An engine that flushes after the sends of each message."""
    return no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Hears])


def test_a5_1_the_notice_comes_after_the_confirms(no_store, script, best_effort):
    sent = []
    script.message = flushing(10)
    script.flushed = lambda monitor, notice: sent.append(len(no_store.sent()))
    with best_effort:
        no_store.publish("a")
        no_store.wait(lambda: notices(script) == ["flushed 1 failed 0"])
    assert sent == [10]


def test_a5_1_the_notice_goes_to_the_context_that_asked(no_store, script):
    """Given two contexts that ask in turn, when all is sent, then each gets the notices that it asked for and no other."""
    asked: dict[str, list[int]] = {"Hears": [], "AlsoHears": []}
    told: dict[str, list[int]] = {"Hears": [], "AlsoHears": []}

    def asks(one, message):
        name = type(one).__name__
        if message.body.decode() in (name, "both"):
            one.send(message.body, to="out")
            asked[name].append(one.request_flush("out"))

    script.message = asks
    script.flushed = lambda one, notice: told[type(one).__name__].append(notice.request_id)
    contexts = [monitor(Hears), monitor(AlsoHears, context="other")]
    with no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=contexts) as engine:
        no_store.publish("Hears", "AlsoHears", "both", "Hears")
        no_store.wait(lambda: len(told["Hears"]) >= 3 and len(told["AlsoHears"]) >= 2)
        no_store.publish("last")  # behind every notice: one that went astray would have been heard before
        no_store.wait(lambda: all("last" in script.of(name) for name in told))
        assert engine.failure is None
    assert told == asked
    assert sorted([*asked["Hears"], *asked["AlsoHears"]]) == [1, 2, 3, 4, 5]


def test_a5_2_messages_leave_without_any_flush(no_store, script, best_effort):
    script.message = lambda monitor, message: monitor.send(message.body, to="out")
    with best_effort:
        no_store.publish("a")
        no_store.wait_for("a")


def test_a5_3_flushes_in_flight_are_answered_in_order_with_their_ids(no_store, script, best_effort):
    no_store.broker.down = True
    script.message = flushing(3)
    with best_effort:
        for text in ("a", "b", "c"):
            best_effort.contexts["main"].queue.deliver(run_of(message(text)))
        best_effort.contexts["main"].wake()
        no_store.wait(lambda: len(script.of("Hears")) == 3)
        assert notices(script) == []
        no_store.broker.down = False
        no_store.wait(lambda: len(notices(script)) == 3)
    assert notices(script) == ["flushed 1 failed 0", "flushed 2 failed 0", "flushed 3 failed 0"]


def test_187_a_flush_that_waits_for_the_broker_says_so_once(no_store, script, best_effort, logs):
    no_store.broker.down = True
    script.message = flushing(3)
    with best_effort:
        best_effort.contexts["main"].queue.deliver(run_of(message("a")))
        best_effort.contexts["main"].wake()
        sent = best_effort.senders["out"].counters
        no_store.wait(lambda: any("I8201" in line["event"] for line in logs))
        tries = sent.connection_errors
        no_store.wait(lambda: sent.connection_errors > tries + 2)
        no_store.broker.down = False
        no_store.wait(lambda: len(notices(script)) == 1)
    told = [line["event"] for line in logs if "I8201" in line["event"]]
    assert len(told) == 1
    assert re.fullmatch(
        r"I8201 flush 1 waits: 3 messages not confirmed, broker down since \d{4}-\d\d-\d\dT[\d:]{8}Z", told[0]
    )


def run_of(one):
    """A run as a receiver without a store delivers it."""
    return Run("elsewhere", 1, [one], [one], stored=False)


def test_a5_4_a_flush_covers_messages_that_failed(no_store, script, best_effort, logs):
    class RefusesOne(Faults):
        def refused(self, sender, batch):
            return {at: "no such exchange" for at, one in enumerate(batch) if one.message.body == b"a-1"}

    no_store.broker.faults = RefusesOne()
    script.message = flushing(3)
    with best_effort:
        no_store.publish("a")
        no_store.wait(lambda: notices(script))
    assert notices(script) == ["flushed 1 failed 1"]
    assert no_store.sent() == ["a-0", "a-2"]
    told = "message refused; dropped, since there is no store"
    assert [one["log_level"] for one in logs if one["event"] == told] == ["error"]


def test_a5_5_a_lost_connection_delays_the_notice_and_loses_nothing(no_store, script, best_effort):
    script.message = flushing(3)
    with best_effort:
        no_store.wait(lambda: best_effort.senders["out"].connected)

        class Down(Faults):
            def before_accept(self, sender, batch):
                raise ConnectionLost("E7001", sender, "down")

        no_store.broker.faults = Down()
        no_store.publish("a")
        no_store.wait(lambda: best_effort.senders["out"].counters.connection_errors >= 3)
        assert notices(script) == []
        no_store.broker.faults = Faults()
        no_store.wait(lambda: notices(script) == ["flushed 1 failed 0"])
    assert no_store.sent() == ["a-0", "a-1", "a-2"]


def test_a5_6_a_reliable_sender_needs_no_flush(world, script):
    script.message = lambda monitor, message: monitor.request_flush("out")
    engine = world.engine(receiver("in", BEST_EFFORT), sender("out", EXACTLY_ONCE), monitors=[Hears])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E8202"
    assert "BEST_EFFORT" in str(engine.failure)


def test_a5_7_a_persistent_monitor_may_not_flush(world, script):
    script.message = lambda monitor, message: monitor.request_flush("out")
    engine = world.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Keeps])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E4110"


def test_a5_9_a_flush_with_nothing_outstanding_is_answered(no_store, script, best_effort):
    script.message = flushing(0)
    with best_effort:
        no_store.publish("a")
        no_store.wait(lambda: notices(script) == ["flushed 1 failed 0"])


def test_f2_t44_no_notice_of_an_earlier_life(any_world, script):
    parts = (receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT))
    script.message = flushing(1)
    engine = any_world.engine(*parts, monitors=[Hears])
    with engine:
        any_world.publish("a")
        any_world.wait(lambda: notices(script) == ["flushed 1 failed 0"])
        engine.checkpoint()
        any_world.crash(engine)
    with any_world.engine(*parts, monitors=[Hears]):
        any_world.publish("b")
        any_world.wait(lambda: len(notices(script)) == 2)
    assert notices(script) == ["flushed 1 failed 0"] * 2
