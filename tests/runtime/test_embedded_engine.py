"""The engine as a library in the user's process (rules U1, U7), over the embedded broker."""

import threading
from pathlib import Path

import pytest

from correlator import Engine
from correlator.errors import ConfigError
from correlator.events import Headers, Message
from correlator.storage import inspect
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.world import (
    BEST_EFFORT,
    EXACTLY_ONCE,
    Queues,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

FILE = """
version: 1
name: forwards
store: sqlite:///{directory}/engine.db
checkpoint: {{interval: 20ms}}
connections:
  local: {{type: embedded, store: "{broker}"}}
receivers:
  - {{id: in, connection: local, destination: "queue:in", reliability: EXACTLY_ONCE}}
senders:
  - {{id: out, connection: local, destination: "queue:out", reliability: EXACTLY_ONCE}}
monitors:
  - {{type: "tests.runtime.flows:Forwards"}}
"""


@pytest.fixture
def queues(tmp_path: Path) -> Queues:
    """An embedded broker."""
    return Queues(tmp_path)


@pytest.fixture
def file(tmp_path: Path, queues: Queues) -> Path:
    """A configuration file over it."""
    path = tmp_path / "forwards.yaml"
    path.write_text(FILE.format(directory=tmp_path, broker=queues.url))
    return path


def test_u7_an_engine_from_a_file_runs_in_this_process(file, queues, world):
    queues.publish(numbered(3))
    with Engine.from_yaml(file) as engine:
        world.wait(lambda: engine.senders["out"].counters.sent == 3)
    assert queues.bodies() == ["1:m1", "2:m2", "3:m3"]


def test_u7_it_goes_on_where_it_stopped(file, queues, world):
    for life in range(3):
        queues.publish(numbered(2, first=2 * life + 1))
        with Engine.from_yaml(file) as engine:
            world.wait(lambda engine=engine: engine.senders["out"].counters.sent == 2)
    assert queues.bodies() == [f"{number}:m{number}" for number in range(1, 7)]


def test_u7_run_forever_returns_when_a_stop_is_asked_for(file, queues):
    with Engine.from_yaml(file) as engine:
        running = threading.Thread(target=engine.run_forever)
        running.start()
        engine.request_stop()
        running.join(120)
        assert not running.is_alive()


def test_u7_an_exception_in_the_block_stops_without_drain(file, queues, world):
    with pytest.raises(ZeroDivisionError), Engine.from_yaml(file):
        raise ZeroDivisionError
    with Engine.from_yaml(file):
        pass


def test_u7_a_start_that_fails_leaves_nothing_open(world):
    engine = world.engine(receiver(event="tests.runtime.flows:Nothing"), monitors=[Hears])
    with pytest.raises(ConfigError, match="E1501"):
        engine.start()
    with world.engine(receiver(), monitors=[Hears]):
        pass


def test_u7_an_exit_without_a_start_is_no_error(world):
    world.engine(monitors=[Hears]).stop()


def test_u1_a_checkpoint_is_one_transaction(any_world):
    """All of a checkpoint, or nothing of it: the commit fails at its last statement."""
    engine = any_world.engine(receiver(), sender(), monitors=[Forwards], interval=3600.0)
    with engine:
        any_world.publish(*numbered(3))
        any_world.wait(lambda: the_monitor(engine, Forwards).count == 3)
        any_world.fail_at("ck.tx.commit.before", MemoryError())
        assert not engine.checkpoint(timeout=120)
    assert isinstance(engine.failure, MemoryError)
    assert inspect.checkpoints(any_world.store) == []
    assert inspect.state_keys(any_world.store) == []
    assert (any_world.outbox_rows(), any_world.received_rows()) == (0, 3)


def test_a5_8_a_best_effort_send_may_ask_for_persistence(world, script):
    persistent = Message(b"x", headers=Headers(persistent=True))
    script.message = lambda monitor, message: monitor.send(persistent, to="out")
    with world.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Hears]):
        world.publish("a")
        world.wait(lambda: world.sent())
    assert world.broker.received("queue:out")[0].headers.persistent is True


def test_monitors_may_be_configured_with_initial_values(world):
    with world.engine(receiver("in", EXACTLY_ONCE), monitors=[monitor(Keeps, options={"count": 40})]) as engine:
        world.publish("a")
        world.wait(lambda: the_monitor(engine, Keeps).count == 41)


def test_two_receivers_with_their_own_event_types(world, script):
    parts = [receiver("in"), receiver("orders", event="tests.runtime.flows:Order")]
    with world.engine(*parts, monitors=[Keeps]):
        world.publish("plain")
        world.publish(message('{"id": 7}', "o7"), to="queue:orders")
        world.wait(lambda: sorted(script.of("Keeps")) == ["order 7", "plain"])
