"""Status events, status words and the status line (rules A9.2 to A9.4, A3.14)."""

import pytest

from connectors.file.connection import FileConnection
from correlator import (
    ConnectionStatus,
    FlowControlMarker,
    Message,
    Monitor,
    PartStatus,
    ReceiverStatus,
    SenderStatus,
    on,
)
from correlator.cli import watching
from correlator.cli.watching import watcher
from correlator.errors import ConnectionLost
from correlator.events import Headers
from correlator.runtime.status import (
    CheckpointCounters,
    ReceiverCounters,
    SenderCounters,
    Status,
    status_line,
)
from correlator.runtime.statuses import Condition, Statuses
from correlator.settings import ConnectionSettings, ReceiverSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import Faults, MemoryBroker
from tests.benchmarks import bench_outstanding
from tests.runtime.flows import SCRIPT, Hears, Keeps
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    message,
    monitor,
    numbered,
    receiver,
    sender,
)


class Told(Monitor):
    """Hears how parts are."""

    @on(ConnectionStatus)
    def connection(self, told: ConnectionStatus) -> None:
        SCRIPT.hear(self, f"connection {told.connection} {told.status}{' !' if told.error else ''}")

    @on(SenderStatus)
    def sender(self, told: SenderStatus) -> None:
        SCRIPT.hear(self, f"sender {told.sender} {told.status}{' !' if told.error else ''}")

    @on(ReceiverStatus)
    def receiver(self, told: ReceiverStatus) -> None:
        SCRIPT.hear(self, f"receiver {told.receiver} {told.status}{' !' if told.error else ''}")


class Waits(Monitor, persistent=True):
    """Says when recovery is over."""

    def on_conclude_recovery(self) -> None:
        SCRIPT.hear(self, "concluded")
        SCRIPT.heard.append(("Told", "concluded"))


def told(script, kind: str) -> list[str]:
    return [what.removeprefix(f"{kind} ") for what in script.of("Told") if what.startswith(f"{kind} ")]


def walked(world, script, kind: str, *expected: str) -> None:
    world.wait(lambda: len(told(script, kind)) >= len(expected))
    assert told(script, kind) == list(expected)


def test_a9_4_the_walk_of_a_receiver_and_its_connection(no_store, script):
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=[Told]) as engine:
        walked(no_store, script, "receiver", "in CONNECTING", "in OK")
        walked(no_store, script, "connection", "memory CONNECTING", "memory OK")
        no_store.broker.down = True
        walked(no_store, script, "receiver", "in CONNECTING", "in OK", "in ERROR !")
        assert engine.status().conditions["in"].status is PartStatus.ERROR
        assert engine.status().connections["memory"].status == "ERROR"
        no_store.wait(lambda: engine.receivers["in"].counters.connection_errors > 3)
        no_store.broker.down = False
        walked(no_store, script, "receiver", "in CONNECTING", "in OK", "in ERROR !", "in OK")
        walked(no_store, script, "connection", "memory CONNECTING", "memory OK", "memory ERROR !", "memory OK")
        assert engine.status().connections["memory"][:2] == (PartStatus.OK, "")


def test_a9_4_the_walk_of_a_sender(no_store, script):
    with no_store.engine(sender("out", BEST_EFFORT), monitors=[Told]) as engine:
        walked(no_store, script, "sender", "out CONNECTING", "out OK")

        class CutTwice(Faults):
            cuts = 0

            def before_accept(self, sender, batch):
                self.cuts += 1
                if self.cuts <= 2:
                    raise ConnectionLost("E7001", sender, "the line was cut")

        no_store.broker.faults = CutTwice()
        engine.senders["out"].outbox.enqueue(message("a"))
        engine.senders["out"].wake()
        walk = ["out CONNECTING", "out OK", "out ERROR !", "out OK", "out ERROR !", "out OK"]
        walked(no_store, script, "sender", *walk)
        no_store.wait(lambda: no_store.sent() == ["a"])
        assert engine.status().senders["out"][0] == "OK"
    assert told(script, "connection")[:3] == ["memory CONNECTING", "memory OK", "memory ERROR !"]


def test_174_a_broker_that_takes_nothing_is_no_lost_connection(no_store, script):
    class Alarm(Faults):
        over = False

        def before_accept(self, sender, batch):
            if not self.over:
                raise ConnectionLost("E7026", sender, "the broker takes no messages at present")

    no_store.broker.faults = alarm = Alarm()
    with no_store.engine(sender("out", BEST_EFFORT), monitors=[Told]) as engine:
        engine.senders["out"].outbox.enqueue(message("a"))
        engine.senders["out"].wake()
        # It connects again and again meanwhile, and is blocked each time.
        walk = ["out CONNECTING", "out OK", "out BLOCKED !"]
        no_store.wait(lambda: told(script, "sender")[:3] == walk)
        assert engine.status().connections["memory"].status == "OK"
        alarm.over = True
        no_store.wait(lambda: no_store.sent() == ["a"] and engine.status().senders["out"][0] == "OK")
    assert "memory ERROR !" not in told(script, "connection")


def test_a9_4_a_part_that_is_removed_says_so_last(world, script):
    with world.engine(monitors=[Told, Keeps]) as engine:
        engine.add_receiver(receiver("in", BEST_EFFORT))
        engine.add_sender(sender("out", EXACTLY_ONCE))
        world.wait(lambda: told(script, "receiver")[-1:] == ["in OK"] and told(script, "sender")[-1:] == ["out OK"])
        engine.remove("in")
        engine.remove("out")
        walked(world, script, "receiver", "in CONNECTING", "in OK", "in REMOVED")
        walked(world, script, "sender", "out CONNECTING", "out OK", "out REMOVED")
        assert "in" not in engine.status().conditions


def test_a1_17_everything_sent_is_at_the_broker_before_removed(world, script):
    script.message = lambda one, message: one.send(message.body, to="out")
    with world.engine(receiver(), monitors=[Keeps, Told]) as engine:
        engine.add_sender(sender("out", EXACTLY_ONCE))
        world.broker.publish("queue:in", numbered(100))
        world.wait(lambda: len(script.of("Keeps")) == 100)
        engine.remove("out")
        world.wait(lambda: "out REMOVED" in told(script, "sender"))
        at_broker = world.sent()
    assert len(at_broker) == 100


def test_a9_4_a_missing_destination_is_no_lost_connection(world, script, tmp_path):
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    there = receiver("rows", AT_LEAST_ONCE, connection="files", destination="queue:rows.jsonl")
    with world.engine(there, monitors=[Told], connections={"files": files}) as engine:
        walked(world, script, "receiver", "rows CONNECTING", "rows DESTINATION_NOT_FOUND !")
        assert engine.status().conditions["rows"].error.startswith("E7010 ")
        walked(world, script, "connection", "files CONNECTING", "files OK")
        (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
        walked(world, script, "receiver", "rows CONNECTING", "rows DESTINATION_NOT_FOUND !", "rows OK")


def test_a9_4_a_failed_part_is_fatal(world, script):
    fails = receiver(event="tests.runtime.flows:Order", on_mapping_error="stop")
    with world.engine(fails, monitors=[Told]) as engine:
        world.publish("not JSON")
        world.wait(lambda: engine.failure is not None)
        status, error, *_ = engine.status().conditions["in"]
        assert (status, error[:5]) == (PartStatus.FATAL_ERROR, "E5101")


@pytest.mark.parametrize(
    ("bug", "says"),
    [(KeyError("what no connector may raise"), "'what no connector may raise'"), (OSError(), "OSError")],
)
def test_a9_4_a_sender_whose_broker_has_a_bug_is_fatal(any_world, script, bug, says):
    class HasABug(Faults):
        def before_accept(self, sender, batch):
            raise bug

    script.message = lambda one, message: one.send(message.body, to="out")
    any_world.broker.faults = HasABug()
    with any_world.engine(receiver(), sender("out", EXACTLY_ONCE), monitors=[Keeps, Told]) as engine:
        any_world.wait(lambda: engine.status().conditions["out"].status == "OK")
        any_world.publish("a")
        any_world.wait(lambda: engine.failure is not None)
        status = engine.status()
        assert status.conditions["out"][:2] == (PartStatus.FATAL_ERROR, says)
        assert (status.senders["out"][0], status.senders["out"][2]) == (PartStatus.FATAL_ERROR, 1)
        assert status.conditions["in"][:2] == (PartStatus.OK, "")
        assert status.connections["memory"][:2] == (PartStatus.OK, "")
        assert engine.failure is bug
    assert any_world.sent() == []
    assert any_world.outbox_rows() == 1


def test_a9_4_every_context_of_monitors_is_told(no_store, script):
    two = [monitor(Told), monitor(Told, context="other")]
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=two):
        no_store.wait(lambda: told(script, "receiver").count("in OK") == 2)


def test_a3_14_nothing_is_told_before_recovery_is_concluded(any_world, script):
    parts = (receiver(), sender())
    with any_world.engine(*parts, monitors=[Waits, Told]) as engine:
        any_world.publish("a")
        any_world.wait(lambda: engine.checkpoint() and told(script, "receiver")[-1:] == ["in OK"])
        any_world.crash(engine)
    del script.heard[:]
    with any_world.engine(*parts, monitors=[Waits, Told]):
        any_world.wait(lambda: told(script, "receiver")[-1:] == ["in OK"] and told(script, "sender")[-1:] == ["out OK"])
    assert script.of("Told")[0] == "concluded"
    assert script.of("Told").count("concluded") == 1


def test_a9_4_a_connection_with_several_parts():
    heard = []
    statuses = Statuses(
        lambda told: heard.append(str(told.status)) if isinstance(told, ConnectionStatus) else None,
        ManualClock(),
        lambda name, **values: None,
    )
    first, second = (ReceiverSettings(id=name, connection="c", destination="queue:q") for name in ("a", "b"))
    statuses.tell(first, PartStatus.CONNECTING)
    statuses.tell(second, PartStatus.CONNECTING)
    assert heard == ["CONNECTING"]
    statuses.tell(first, PartStatus.OK)
    statuses.tell(second, PartStatus.ERROR, "down")
    statuses.tell(first, PartStatus.ERROR, "down")
    statuses.tell(second, PartStatus.OK)
    assert heard == ["CONNECTING", "OK", "ERROR"]
    statuses.removed("a")
    assert heard == ["CONNECTING", "OK", "ERROR", "OK"]
    statuses.removed("b")
    assert statuses.of_connections()["c"][:2] == (PartStatus.OK, "")


# --- what waits, and where messages go ---


def test_o1_the_status_says_how_long_the_oldest_event_waits_and_how_busy_a_context_is(no_store, script, gate):
    clock = ManualClock()
    script.message = lambda *_: gate.wait(60)
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=[Hears], clock=clock, status_interval=0.0) as engine:
        assert engine.status().oldest_events == {"main": 0}
        no_store.publish("a")
        no_store.wait(lambda: script.of("Hears"))
        assert engine.status().oldest_events == {"main": 0}
        clock.advance(7.0)
        shown = engine.status().to_dict()
        assert shown["contexts"]["main"]["oldest_s"] == 7.0
        assert shown["time"] - shown["started"] == 7.0
        gate.set()
        no_store.wait(lambda: engine.status().monitors["main"].busy_s)
        no_store.wait(lambda: not engine.status().oldest_events["main"])
        assert engine.status().to_dict()["contexts"]["main"]["busy_s"] == 7.0


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_o1_the_status_says_how_long_the_oldest_send_waits(world, script, reliability):
    clock = ManualClock()
    script.message = lambda one, message: one.send(message.body, to="out")
    parts = receiver("in", BEST_EFFORT), sender("out", reliability, connection="far", destination="queue:far")
    far = MemoryBroker()
    far.down = True
    brokers = {"memory": world.broker.connection(), "far": far.connection("far")}
    with world.engine(*parts, monitors=[Keeps], clock=clock, connections=brokers, status_interval=0.0) as engine:
        world.publish("a")
        world.wait(lambda: engine.status().senders["out"][2] == 1)
        clock.advance(5.0)
        world.publish("b")
        world.wait(lambda: engine.status().senders["out"][2] == 2)
        shown = engine.status().to_dict()["senders"]["out"]
        assert (shown["oldest_s"], shown["connection"], shown["destination"]) == (5.0, "far", "queue:far")
        assert engine.status().to_dict()["receivers"]["in"]["delivers_to"] == ["main"]
        far.down = False
        clock.advance(60.0)
        engine.senders["out"].wake()
        if engine.checkpointer is not None:
            assert engine.checkpoint()
        world.wait(lambda: engine.status().oldest_sends == {"out": 0})


# --- the line ---


def a_status(engine_time: float, received: int = 0, sent: int = 0, **fields) -> Status:
    values = {
        "receivers": {
            "a": (
                "receiving",
                ReceiverCounters(received=received, redelivered=3, duplicates=2, conflicts=1, max_delivery_s=1.26),
            ),
            "b": ("receiving", ReceiverCounters(received=received, redelivered=1, duplicates=1, max_delivery_s=7.04)),
        },
        "senders": {"s": (PartStatus.OK, SenderCounters(sent=sent, dead_letters=2), 5)},
        "name": "x",
        "phase": "running",
        "time": 0.0,
        "started": 0.0,
        "places": {},
        "deliveries": {},
        "pipeline_senders": {},
        "reliabilities": {},
        "conditions": {},
        "connections": {"x": Condition(PartStatus.ERROR, "down"), "y": Condition(PartStatus.OK)},
        "windows": {},
        "waits": {},
        "paused": frozenset(),
        "duplicate_ids": 11,
        "removed_received": 100,
        "removed_sent": 1000,
        "resident_bytes": 123_456_789,
        "contexts": {"main": 4, "audit": 2},
        "monitors": {},
        "oldest_events": {},
        "oldest_sends": {},
        "outbox_limits": {},
        "latencies": {},
        "store_fails": None,
        "unhandled": {"a": 3, "b": 4},
        "unhandled_letters": 4,
        "handler_failures": 0,
        "handler_skips": 0,
        "pipelines": {},
        "checkpoints": CheckpointCounters(),
        "store_commits": 0,
        "engine_time": engine_time,
    }
    return Status(**{**values, **fields})


def test_a9_2_the_line_has_all_fields():
    line = status_line(a_status(10.0, 10, 20), a_status(15.0, 60, 45))
    assert line == (
        "Messaging Status: s=1 tx=1047 sRate=5 sOutst=5 r=2 rx=220 rRate=20 rWindow=-1 rRedel=4 "
        "rMaxDeliverySecs=7.0 rDupsDet=3 rConflicts=1 rDupIds=11 rUnhandled=7 connErr=1 iq=6 rWait=- rssMB=123"
    )


@pytest.mark.parametrize(("windows", "shown"), [({}, "-1"), ({"a": 0}, "0"), ({"a": 5, "b": 7}, "12")])
def test_a9_2_the_window_of_receivers_with_flow_control(windows, shown):
    assert f" rWindow={shown} " in status_line(a_status(1.0), a_status(2.0, windows=windows))


def test_a_run_without_a_terminal_logs_no_second_line(logs, monkeypatch):
    shown = watcher()
    monkeypatch.setattr(watching.time, "monotonic", lambda: 10.0**9)
    shown.tick(a_status(1.0))
    assert logs == []


def test_a9_2_no_time_between_two_looks_is_no_rate():
    assert " rRate=0 " in status_line(a_status(1.0, 1), a_status(1.0, 9))


def test_a9_2_a_line_comes_in_every_interval_and_none_when_it_is_off(no_store, logs):
    clock = ManualClock()
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=[Told], clock=clock) as engine:
        for lines in (1, 2, 3):
            clock.advance(5.0)
            engine.reporter.wake()
            no_store.wait(lambda lines=lines: len(status_lines(logs)) == lines)
        clock.advance(4.9)
        assert engine.reporter.step() == pytest.approx(0.1)
    assert {one["log_level"] for one in logs if one["event"].startswith("Messaging Status")} == {"info"}
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=[Told], status_interval=0.0) as engine:
        assert engine.reporter is None


def status_lines(logs) -> list[str]:
    return [one["event"] for one in logs if one["event"].startswith("Messaging Status: ")]


def figures(before, now) -> dict[str, str]:
    line = status_line(before, now)
    return dict(pair.split("=") for pair in line.removeprefix("Messaging Status: ").split())


class Refuses(Faults):
    """Refuses one body for ever."""

    def refused(self, sender, batch):
        return {at: "not wanted" for at, one in enumerate(batch) if one.message.body == b"m3"}


def test_a9_3_what_the_figures_mean(world, script, logs):
    """tx counts what exhausted its tries and what removed senders sent, rx no markers; both begin anew at a restart."""
    script.message = lambda one, message: one.send(message.body, to="dyn" if message.body < b"m5" else "out")
    world.broker.faults = Refuses()
    parts = (receiver("in", EXACTLY_ONCE, flow_control=True), sender("out", EXACTLY_ONCE))
    with world.engine(*parts, monitors=[Keeps, OpensWindow]) as engine:
        before = engine.status()
        engine.add_sender(sender("dyn", EXACTLY_ONCE, destination="queue:dyn"))
        world.broker.publish("queue:in", [*numbered(8), message("m8"), message("m1")])
        world.wait(lambda: engine.status().settled == 8)
        engine.remove("dyn")
        # the removal is told by an event, which waits in the queue of the context for a moment
        world.wait(lambda: engine.removed("dyn") and figures(before, engine.status())["iq"] == "0")
        now = engine.status()
    shown = figures(before, now)
    assert (shown["s"], shown["tx"], shown["sOutst"]) == ("1", "8", "0")
    assert (before.settled, before.received) == (0, 0)
    passed = now.engine_time - before.engine_time
    assert (shown["sRate"], shown["rRate"]) == (f"{8 / passed:.0f}", f"{10 / passed:.0f}")
    assert (shown["r"], shown["rx"], shown["rDupsDet"], shown["rDupIds"]) == ("1", "10", "2", "8")
    assert (shown["rWindow"], shown["connErr"], shown["iq"]) == ("92", "0", "0")
    assert int(shown["rssMB"]) > 10
    with world.engine(*parts, monitors=[Keeps, OpensWindow]) as engine:
        world.wait(lambda: engine.status().conditions["in"].status == "OK")
        shown = figures(engine.status(), engine.status())
    assert (shown["tx"], shown["rx"], shown["rDupIds"]) == ("0", "0", "8")


class OpensWindow(Monitor):
    """Opens the window once."""

    def __init__(self) -> None:
        super().__init__()
        self._open = False

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        if not self._open:
            self._open = True
            self.update_flow_control_window(marker, 100)


def test_100_odd_timestamps_harm_nothing(world, script):
    """1970, 9999, negative and missing timestamps of redelivered messages."""
    stamps = [0, 253_402_300_799_000, -5, None, 2**62]
    messages = [
        Message(b"m%d" % at, {"uniqueMessageId": f"{at}"}, headers=Headers(redelivered=True, timestamp=stamp))
        for at, stamp in enumerate(stamps)
    ]
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        world.broker.publish("queue:in", messages)
        world.wait(lambda: len(script.of("Keeps")) == len(stamps))
        counters = engine.status().receivers["in"][1]
    assert (counters.redelivered, counters.max_delivery_s) == (5, 0.0)


DELAYS = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
BACKS_OFF = {
    "jitter": lambda: 0.0,
    "connection_retry_interval": 1.0,
    "max_connection_retry_interval": 10.0,
    "stop_timeout": 0.0,
}


def fails_after(world, clock, part, attempts, delay):
    """The part has failed so often, waits so long, and goes on when that is over."""
    world.wait(
        lambda: part.counters.connection_errors == attempts and part._reconnection.wait() == pytest.approx(delay)
    )
    clock.advance(delay - 0.1)
    assert part.step() == pytest.approx(0.1)
    clock.advance(0.1)
    part.wake()


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_a9_5_a_broker_that_is_down_is_tried_less_and_less(no_store, script, kind):
    clock = ManualClock()
    no_store.broker.down = True
    part = receiver("in", BEST_EFFORT) if kind == "receiver" else sender("in", BEST_EFFORT)
    with no_store.engine(part, monitors=[Told], clock=clock, **BACKS_OFF) as engine:
        actor = engine.receivers["in"] if kind == "receiver" else engine.senders["in"]
        for attempts, delay in enumerate(DELAYS, 1):
            fails_after(no_store, clock, actor, attempts, delay)
        no_store.wait(lambda: told(script, kind) == ["in CONNECTING", "in ERROR !"])


class Drops(Faults):
    def before_receive(self, receiver):
        raise ConnectionLost("E7001", receiver, "the line was cut")


def test_183_a_broker_that_comes_and_goes_is_tried_less_and_less_too(no_store):
    clock = ManualClock()
    no_store.broker.faults = Drops()
    with no_store.engine(receiver("in", BEST_EFFORT), clock=clock, **BACKS_OFF) as engine:
        for attempts, delay in enumerate(DELAYS, 1):
            fails_after(no_store, clock, engine.receivers["in"], attempts, delay)


@pytest.mark.parametrize("mode", [BEST_EFFORT, EXACTLY_ONCE])
def test_a9_10_the_log_grows_with_no_message(world, script, logs, mode):
    lines = []
    script.message = lambda one, message: one.send(message.body, to="out")
    with world.engine(receiver("in", mode), sender("out", mode), monitors=[Keeps], status_interval=0.0) as engine:
        for count in (10, 10_000):
            world.broker.publish("queue:in", numbered(count, first=1 + sum(lines)))
            world.wait(lambda count=count: engine.status().settled == count + sum(lines))
            lines.append(count)
            assert [one for one in logs if one["log_level"] != "debug"] == []


def test_a9_11_the_queues_of_slow_applications_are_seen(no_store, script, gate):
    script.message = lambda one, message: gate.wait()
    two = [monitor(Hears), monitor(Hears, context="other")]
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=two, status_interval=0.0) as engine:
        no_store.publish(*numbered(10))
        no_store.wait(lambda: len(script.of("Hears")) == 2 and delivered(engine) == 10)
        assert figures(engine.status(), engine.status())["iq"] == "20"
        gate.set()
        no_store.wait(lambda: figures(engine.status(), engine.status())["iq"] == "0")


def delivered(engine) -> int:
    return engine.status().receivers["in"][1].delivered


def test_a9_17_a_load_test_keeps_its_bound():
    assert 0 < bench_outstanding.run(messages=12_000, bound=5000) <= 5000
