"""The warning about a handler that does not return (bad input 109)."""

import re
import threading
from typing import Any

import pytest

from correlator.core.calls import HandlerCalls, OneThread
from correlator.core.expressions import Moment
from correlator.core.instances import Instance
from correlator.core.queue import InputQueue
from correlator.core.staging import Staging
from correlator.runtime.names import resolve
from correlator.runtime.watchdog import LOOKS, Watchdog, Watched
from correlator.testing.clock import ManualClock
from tests.runtime.flows import Keeps
from tests.runtime.world import numbered, receiver, sender


def told(logs: list[Any]) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"].startswith("W5501")]


class Calling:
    """A thread that calls a handler of `Keeps`, once for each `call`; the handler runs until `release`."""

    def __init__(self) -> None:
        self._calls = HandlerCalls(
            InputQueue(), Staging(), resolve, lambda *_: None, lambda: None, OneThread(), Moment(0.0, 0.0)
        )
        self._instance = Instance(Keeps(), "0", "stop")
        self._inside, self._released = threading.Semaphore(0), threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def watched(self) -> list[Watched]:
        return [Watched(self._threads[-1].ident or 0, self._calls.running)]

    def call(self) -> None:
        self._threads.append(threading.Thread(target=self._work))
        self._threads[-1].start()
        assert self._inside.acquire(timeout=120)

    def release(self) -> None:
        self._released.release()
        self._threads[-1].join()

    def _work(self) -> None:
        before = self._calls.enter()
        try:
            self._calls.call(self._instance, self.slow_handler, None)
        finally:
            self._calls.leave(before)

    def slow_handler(self, event: Any) -> None:
        del event
        self._inside.release()
        self._released.acquire()


@pytest.fixture
def calling():
    made = Calling()
    made.call()
    yield made
    made.release()


def test_109_w5501_comes_after_the_time_and_then_twice_as_late(logs, calling):
    clock = ManualClock()
    watchdog = Watchdog(calling.watched, 30.0, clock)
    seconds = []
    for _ in range(260):
        before = len(logs)
        assert watchdog.step() == 30.0 / LOOKS
        seconds += [clock.now] * (len(logs) - before)
        clock.advance(1.0)
    assert seconds == [30.0, 60.0, 120.0, 240.0]
    assert logs[0]["event"] == "W5501 handler of monitor Keeps has run 30 s"
    assert logs[0]["log_level"] == "warning"
    assert logs[0]["handler"] == "slow_handler"
    assert re.fullmatch(r".+\.py:\d+", logs[0]["at"])


def test_109_calls_that_return_are_not_added_up(logs, calling):
    """The same handler at every look, each time another call."""
    clock = ManualClock()
    watchdog = Watchdog(calling.watched, 30.0, clock)
    for _ in range(20):
        watchdog.step()
        calling.release()
        calling.call()
        clock.advance(5.0)
    assert told(logs) == []


def test_109_a_context_that_handles_nothing_is_left_alone(logs, calling):
    clock = ManualClock()
    watchdog = Watchdog(calling.watched, 30.0, clock)
    watchdog.step()
    calling.release()
    for _ in range(10):
        watchdog.step()
        clock.advance(30.0)
    assert told(logs) == []
    calling.call()


def test_109_the_warning_comes_also_if_the_stack_cannot_be_read(logs, calling):
    clock = ManualClock()
    watchdog = Watchdog(lambda: [one._replace(thread=12345) for one in calling.watched()], 30.0, clock)
    watchdog.step()
    clock.advance(30.0)
    watchdog.step()
    (line,) = told(logs)
    assert (line["handler"], line["at"]) == ("", "")


def test_109_it_can_be_turned_off():
    assert Watchdog(list, 0.0, ManualClock()).step() is None


def test_109_an_engine_watches_its_contexts(world, script, gate, logs):
    script.message = lambda monitor, message: gate.wait() and None
    world.publish(*numbered(1))
    with world.engine(receiver(), sender(), monitors=[Keeps], handler_warning_after=0.05):
        world.wait(lambda: told(logs))
        gate.set()
    assert told(logs)[0]["event"].startswith("W5501 handler of monitor Keeps has run")
    assert told(logs)[0]["handler"] == "message"


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
