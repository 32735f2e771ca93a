"""When a run over sources that end is over: all of it is handled, sent and confirmed (rules U6, U7)."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.file import FileConnection
from correlator.core import faults
from correlator.core.batch_context import Effects
from correlator.events import Message
from correlator.runtime.status import Status
from correlator.settings import ConnectionSettings, ReceiverSettings
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import AlsoHears, Forwards, Hears, Idles
from tests.runtime.world import EXACTLY_ONCE, Held, monitor, receiver, sender, the_monitor

LINES = ["1", "2", "3"]
OFTEN_S = 0.005
NO_END = 1000
"""Looks after which nobody believes any more that the run will end."""


class Unended:
    """Told of each look that found the run not over; lets it go on at the second one."""

    def __init__(self, go_on: Callable[[], object]) -> None:
        self.looks = 0
        self._go_on = go_on

    def __call__(self, status: Status) -> None:
        self.looks += 1
        if self.looks == 2:
            self._go_on()
        assert self.looks < NO_END, "the run does not end"


class Concludes(Idles):
    """Sends a last message when all input has ended, and it is let."""

    name = "concludes"

    def __init__(self, gate: threading.Event) -> None:
        self.asked = threading.Event()
        self._gate = gate

    def conclude(self, state, engine_time):
        self.asked.set()
        self._gate.wait()
        return Effects([("out", Message(b"last"))])


@pytest.fixture
def lines() -> ReceiverSettings:
    """A receiver of a file."""
    return receiver(connection="files", destination="queue:lines.jsonl")


@pytest.fixture
def connections(world, tmp_path: Path) -> dict:
    """A file of three lines, and the broker."""
    (tmp_path / "lines.jsonl").write_text("\n".join(LINES) + "\n")
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    return {"files": files, "memory": world.broker.connection()}


def ended(engine) -> bool:
    return all(one.state == "ended" for one in engine.receivers.values())


def test_u7_a_source_without_an_end_is_run_until_a_stop_is_asked_for(world):
    with world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        unended = Unended(engine.request_stop)
        engine.run_until_ended(unended, OFTEN_S)
    assert unended.looks == 2


def test_u6_the_run_ends_when_the_last_context_has_handled_all(world, lines, connections, script):
    late = Held()
    faults.install(
        lambda name: late.passed() if (name, threading.current_thread().name) == ("app.event", "context-late") else None
    )
    monitors = [monitor(Hears), monitor(AlsoHears, context="late")]
    with world.engine(lines, monitors=monitors, connections=connections) as engine:
        world.wait(lambda: ended(engine) and script.of("Hears") == LINES and engine.contexts["main"].idle)
        late.wait_reached()
        unended = Unended(late.open)
        engine.run_until_ended(unended, OFTEN_S)
        assert (script.of("AlsoHears"), unended.looks >= 2) == (LINES, True)


def test_u6_the_run_ends_when_every_pipeline_has_concluded(world, lines, connections, gate):
    processors = [Idles(), last := Concludes(gate)]
    with world.engine(lines, sender(), processors=processors, connections=connections) as engine:
        world.wait(lambda: last.asked.is_set() and engine.contexts["pipe"].concluded)
        unended = Unended(gate.set)
        engine.run_until_ended(unended, OFTEN_S)
        assert (world.sent(), unended.looks >= 2) == (["last"], True)


def test_u6_the_run_ends_when_the_last_source_without_an_end_is_removed(world, lines, connections, gate):
    gate.set()
    last = Concludes(gate)
    with world.engine(lines, sender(), processors=[last], monitors=[Hears], connections=connections) as engine:
        engine.add_receiver(receiver("endless"))
        world.wait(lambda: engine.receivers["in"].state == "ended")
        unended = Unended(lambda: engine.remove("endless"))
        engine.run_until_ended(unended, OFTEN_S)
        assert (world.sent(), unended.looks >= 2) == (["last"], True)


def test_u6_the_run_ends_when_a_broker_that_was_away_has_everything(world, lines, connections):
    """Another sender has nothing to wait for."""
    away = MemoryBroker()
    away.down = True
    connections["away"] = away.connection()
    parts = [lines, sender("out", EXACTLY_ONCE, connection="away"), sender("spare")]
    with world.engine(*parts, monitors=[Forwards], connections=connections, interval=3600.0) as engine:
        world.wait(lambda: ended(engine) and the_monitor(engine, Forwards).count == 3 and engine.contexts["main"].idle)
        unended = Unended(lambda: setattr(away, "down", False))
        engine.run_until_ended(unended, OFTEN_S)
        assert [one.body for one in away.received("queue:out")] == [b"1:1", b"2:2", b"3:3"]
        assert unended.looks >= 2


def test_u6_the_run_ends_when_the_store_knows_what_was_sent(world, lines, connections, monkeypatch):
    """Given a broker that confirms as soon as a checkpoint has released, when the run ends, then nothing is in doubt."""
    parts = {"monitors": [Forwards], "connections": connections, "interval": 3600.0}
    with world.engine(lines, sender(), **parts) as engine:
        checkpoint = engine.checkpoint

        def confirmed(timeout: float) -> bool:
            taken = checkpoint(timeout)
            world.wait(lambda: engine.senders["out"].idle)
            return taken

        monkeypatch.setattr(engine, "checkpoint", confirmed)
        engine.run_until_ended(Unended(lambda: None), OFTEN_S)
        assert (world.sent(), world.outbox_rows(), world.received_rows()) == (["1:1", "2:2", "3:3"], 0, 0)
