"""Calls of handlers by themselves: effects, and who may ask for them."""

from typing import Any

import pytest

from correlator.core.calls import HandlerCalls
from correlator.core.expressions import Moment
from correlator.core.instances import Instance, OnError
from correlator.core.monitor import Monitor
from correlator.core.queue import InputQueue
from correlator.core.staging import Staging
from correlator.errors import CorrelatorError, HandlerFailed, UsageError
from correlator.runtime.names import resolve


class Plain(Monitor):
    pass


class Keeps(Monitor, persistent=True):
    count: int = 0


class Threads:
    """A process whose calling thread the test decides."""

    def __init__(self) -> None:
        self.current = object()

    def thread(self) -> object:
        return self.current

    def check(self, where: str) -> None: ...


class Calls:
    """Handler calls, and what they have led to."""

    def __init__(self, monitor: Monitor, on_error: OnError = "stop", *, stored: bool = True) -> None:
        self.monitor = monitor
        self.made: list[Any] = []
        self.woken = 0
        self.failures: list[tuple[str, str]] = []
        self.staging = Staging(stored=stored)
        self.threads = Threads()
        self.calls = HandlerCalls(
            InputQueue(), self.staging, resolve, self._failed, self._wake, self.threads, Moment(5.0, 0.0)
        )
        self.instance = Instance(monitor, "0", on_error)

    def _failed(self, policy: OnError, error: CorrelatorError, about: str) -> None:
        self.failures.append((error.code, about))

    def _wake(self) -> None:
        self.woken += 1

    def handler(self, *effects: Any, fails: bool = False) -> Any:
        def handle(event: Any) -> None:
            before = list(self.made)
            for effect in effects:
                self.calls.stage(self.monitor, self.made.append, effect)
            assert self.made == before
            if fails:
                raise ValueError("no")

        return handle

    def call(self, method: Any) -> None:
        self.calls.call(self.instance, method, None)


def test_effects_are_made_in_their_order_when_the_handler_has_returned():
    world = Calls(Plain())
    world.call(world.handler(1, 2, 3))
    assert (world.made, world.woken) == ([1, 2, 3], 0)


def test_others_are_woken_once_for_all_effects_that_concern_them():
    world = Calls(Plain())
    world.calls.concerns_others = True
    world.call(world.handler(1, 2))
    world.call(world.handler(3))
    assert world.woken == 1


def test_an_effect_may_call_a_handler_whose_effects_follow():
    """As `spawn` does: the `onload` of the new monitor asks for more."""
    world = Calls(Plain())
    more = lambda _: world.calls.stage(world.monitor, world.made.append, 2)  # noqa: E731
    world.call(lambda _: world.calls.stage(world.monitor, lambda _: world.call(more), None))
    assert world.made == [2]


@pytest.mark.parametrize("on_error", ["stop", "skip", "dead_letter"])
def test_a_failed_handler_has_no_effect_then_or_later(on_error):
    world = Calls(Keeps(), on_error)
    if on_error == "stop":
        with pytest.raises(HandlerFailed, match="E5500 monitor Keeps: in a timer or life-cycle method raised"):
            world.call(world.handler(1, fails=True))
    else:
        world.call(world.handler(1, fails=True))
        assert world.failures == [("E5500", "from inside the engine")]
    advised = {"stop": "or set on_error: dead_letter or skip.", "dead_letter": "then replay the dead letter."}
    assert world.calls.failure.endswith(advised.get(on_error, "Correct the handler."))
    world.call(world.handler(2))
    assert world.made == [2]
    letters = [(one.origin, one.time) for one in world.staging.take_dead_letters()]
    assert letters == ([("Keeps", 5.0)] if on_error == "dead_letter" else [])


def test_without_a_store_the_cure_of_a_failed_handler_is_to_send_the_message_again():
    world = Calls(Plain(), "dead_letter", stored=False)
    world.call(world.handler(1, fails=True))
    cure = "Correct the handler, then send the message again: an engine without a store keeps no dead letters."
    assert world.calls.failure.endswith(f" {cure}")


@pytest.mark.parametrize(("monitor", "count"), [(Plain(), 0), (Keeps(), 1)])
def test_instances_of_persistent_monitors_that_were_called_are_taken_once(monitor, count):
    world = Calls(monitor)
    world.call(world.handler())
    assert [len(list(world.calls.take_changed())) for _ in range(2)] == [count, 0]


def test_only_the_thread_that_works_may_ask():
    world = Calls(Plain())
    with pytest.raises(UsageError, match="E8005 monitor Plain"):
        world.calls.refuse_outside(world.monitor)
    before = world.calls.enter()
    world.calls.refuse_outside(world.monitor)
    inner = world.calls.enter()
    world.calls.leave(inner)
    world.calls.refuse_outside(world.monitor)
    world.threads.current = object()
    with pytest.raises(UsageError, match="E8005"):
        world.calls.refuse_outside(world.monitor)
    world.calls.leave(before)
