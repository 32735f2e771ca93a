"""The warning about a handler that does not return (bad input 109)."""

import threading
from typing import Any

from correlator.runtime.watchdog import LOOKS, Watchdog
from correlator.testing.clock import ManualClock
from tests.runtime.flows import Keeps
from tests.runtime.world import numbered, receiver, sender


def told(logs: list[Any]) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"].startswith("W5501")]


class Stuck:
    """A thread in a handler of a monitor, until it is let go.

    Args:
        gate: lets it go.
    """

    def __init__(self, gate: threading.Event, script: Any) -> None:
        self.inside = threading.Event()
        self._gate = gate
        script.message = self._wait
        self.thread = threading.Thread(target=lambda: Keeps().message(numbered(1)[0]))

    def __enter__(self) -> int:
        self.thread.start()
        assert self.inside.wait(120)
        return self.thread.ident or 0

    def __exit__(self, *_: object) -> None:
        self._gate.set()
        self.thread.join()

    def _wait(self, monitor: Any, message: Any) -> None:
        del monitor, message
        self.inside.set()
        self._gate.wait()


def test_109_w5501_comes_after_the_time_and_then_twice_as_late(logs, gate, script):
    clock = ManualClock()
    with Stuck(gate, script) as ident:
        watchdog = Watchdog(lambda: [ident], 30.0, clock)
        seconds = []
        for _ in range(260):
            before = len(logs)
            assert watchdog.step() == 30.0 / LOOKS
            seconds += [clock.now] * (len(logs) - before)
            clock.advance(1.0)
    assert seconds == [30.0, 60.0, 120.0, 240.0]
    assert logs[0]["event"] == "W5501 handler of monitor Keeps has run 30 s"
    assert logs[0]["log_level"] == "warning"
    assert logs[0]["handler"] == "message"
    assert ".py:" in logs[0]["at"]


def test_109_calls_that_return_are_not_added_up(logs, script):
    """The same handler at every look, each time another call."""
    clock = ManualClock()
    watchdog = Watchdog(lambda: [thread], 30.0, clock)
    for _ in range(20):
        with Stuck(threading.Event(), script) as thread:
            watchdog.step()
            clock.advance(5.0)
    assert told(logs) == []


def test_109_a_thread_that_handles_nothing_is_left_alone(logs):
    clock = ManualClock()
    watchdog = Watchdog(lambda: [threading.get_ident(), 12345], 30.0, clock)
    for _ in range(10):
        watchdog.step()
        clock.advance(30.0)
    assert told(logs) == []


def test_109_it_can_be_turned_off():
    assert Watchdog(lambda: [threading.get_ident()], 0.0, ManualClock()).step() is None


def test_109_an_engine_watches_its_contexts(world, script, gate, logs):
    script.message = lambda monitor, message: gate.wait() and None
    world.publish(*numbered(1))
    with world.engine(receiver(), sender(), monitors=[Keeps], handler_warning_after=0.05):
        world.wait(lambda: told(logs))
        gate.set()
    assert told(logs)[0]["event"].startswith("W5501 handler of monitor Keeps has run")


def test_109_a_handler_that_does_not_return_in_recovery_is_told_too(world, script, gate, logs):
    world.publish(*numbered(1))
    first = world.engine(receiver(), sender(), monitors=[Keeps], interval=3600.0)
    first.start()
    world.wait(world.received_rows)
    world.wait(lambda: script.of("Keeps"))
    world.crash(first)
    script.message = lambda monitor, message: gate.wait() and None
    engine = world.engine(receiver(), sender(), monitors=[Keeps], handler_warning_after=0.05)
    starting = threading.Thread(target=engine.start)
    starting.start()
    try:
        world.wait(lambda: told(logs))
    finally:
        gate.set()
        starting.join()
        engine.stop()
