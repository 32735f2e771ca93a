"""Handlers whose call would run nothing are refused: where they are written, or at the latest when they are called."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from correlator.core.context import Context
from correlator.core.expressions import match
from correlator.core.instances import StoredMonitor, StoredTimer, restore_monitor
from correlator.core.keyed import KeyedMonitor
from correlator.core.monitor import Monitor, every, on
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.errors import UsageError
from correlator.events import event
from correlator.handlers import refuse_deferred
from correlator.runtime.names import resolve


@event
class Tick:
    number: int


async def coroutine(_self: Any, *_: Any) -> None: ...


async def asynchronous_generator(_self: Any, *_: Any) -> AsyncIterator[int]:
    yield 1


def generator(_self: Any, *_: Any) -> Iterator[int]:
    yield 1


DEFERRED = pytest.mark.parametrize("deferred", [coroutine, asynchronous_generator, generator])
HOOKS = ["onload", "on_unload", "on_begin_recovery", "on_conclude_recovery"]


@DEFERRED
@pytest.mark.parametrize("declare", [on(Tick), on(match(Tick).then(match(Tick))), every(1)])
def test_a_declared_handler(declare: Callable[[Any], Any], deferred: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=rf"E4117 handler {deferred.__name__}: is .* Write 'def' without"):
        declare(deferred)


@DEFERRED
@pytest.mark.parametrize("name", HOOKS)
def test_a_life_cycle_method(name: str, deferred: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=rf"E4117 handler Lazy\.{name}:"):
        type("Lazy", (Monitor,), {name: deferred})


def test_the_migration_of_state() -> None:
    with pytest.raises(UsageError, match=r"E4117 handler Lazy\.migrate_state:"):
        type("Lazy", (Monitor,), {"migrate_state": classmethod(coroutine)})


def test_a_method_that_takes_the_place_of_a_declared_one_and_keeps_its_marks() -> None:
    @on(Tick)
    def plain(_self: Any, _tick: Tick) -> None: ...

    @functools.wraps(plain)
    async def marked(_self: Any, _tick: Tick) -> None: ...

    with pytest.raises(UsageError, match=r"E4117 handler Lazy\.plain:"):
        type("Lazy", (Monitor,), {"plain": marked})


CALLS: list[Callable[[Any], Any]] = [
    lambda monitor: monitor.once(match(Tick), monitor.late),
    lambda monitor: monitor.on_all(match(Tick), monitor.late),
    lambda monitor: monitor.once(match(Tick).then(match(Tick)), monitor.late),
    lambda monitor: monitor.wait(1, monitor.late),
]


@DEFERRED
@pytest.mark.parametrize("call", CALLS)
def test_what_a_call_names_is_refused_at_the_call(call: Callable[[Any], Any], deferred: Callable[..., Any]) -> None:
    late = FunctionType(deferred.__code__, {}, "late")
    monitor = type("Lazy", (Monitor,), {"late": late})()
    Context("main", Routes(), resolve).load(monitor, "stop")
    with pytest.raises(UsageError, match=r"E4117 handler Lazy\.late:"):
        call(monitor)


class Later(Monitor, persistent=True):
    """Its handler was a plain function when the timer was stored."""

    async def late(self) -> None: ...


def test_what_the_store_holds_is_refused_by_the_start() -> None:
    stored = StoredMonitor(
        "test_handlers:Later", "main", 1, Later().state_codec().encode({}), [], [StoredTimer(1, 1.0, None, "late")], 2
    )
    context = Context("main", Routes(), resolve)
    with pytest.raises(UsageError, match=r"E4117 handler Later\.late:"):
        context.load(restore_monitor(Later, "0", stored, {}), "stop", "0", stored)


def hidden(deferred: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without `functools.wraps`."""
    return lambda *arguments: deferred(*arguments)


@DEFERRED
@pytest.mark.parametrize("persistent", [True, False])
def test_what_a_decorator_hides_is_the_failure_of_the_handler(
    deferred: Callable[..., Any], *, persistent: bool
) -> None:
    handler = hidden(deferred)
    handler.__name__ = "tick"
    monitor = type("Lazy", (Monitor,), {"tick": on(Tick)(handler)}, persistent=persistent)()
    errors: list[Any] = []
    context = Context("main", Routes(), resolve, lambda _policy, error, _about: errors.append(error))
    context.load(monitor, "dead_letter")
    context.queue.deliver(Run("", 0, (), (Tick(number=1),), stored=True))
    context.work(10, 0.0)
    assert [error.code for error in errors] == ["E4117"]
    assert "handler Lazy.tick" in str(errors[0])
    assert len(context.staging.take_dead_letters()) == 1


def test_what_a_decorator_hides_stops_an_engine_that_may_not_go_on() -> None:
    handler = hidden(coroutine)
    handler.__name__ = "tick"
    context = Context("main", Routes(), resolve)
    context.load(type("Lazy", (Monitor,), {"tick": on(Tick)(handler)})(), "stop")
    context.queue.deliver(Run("", 0, (), (Tick(number=1),), stored=True))
    with pytest.raises(UsageError, match=r"E4117 handler Lazy\.tick"):
        context.work(10, 0.0)


@pytest.mark.parametrize("name", ["on_event", "on_time"])
@pytest.mark.parametrize("deferred", [coroutine, asynchronous_generator])
def test_a_keyed_monitor(name: str, deferred: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=rf"E4117 handler Lazy\.{name}:"):
        type("Lazy", (KeyedMonitor,), {name: deferred})


def test_a_keyed_monitor_may_yield_its_outputs() -> None:
    assert type("Plain", (KeyedMonitor,), {"on_event": generator}).on_event is generator


class Called:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("function", [functools.partial(coroutine, None), Called(), Called().__call__])
def test_whatever_can_be_called(function: Any) -> None:
    with pytest.raises(UsageError, match="E4117"):
        refuse_deferred(function, "function")


class Base(Monitor):
    @on(Tick)
    def tick(self, tick: Tick) -> None: ...

    @every(1)
    def again(self) -> None: ...


def plain(_self: Any, *_: Any) -> None: ...


class Beside:
    tick = plain


@pytest.mark.parametrize(
    ("bases", "name", "value", "told"),
    [
        (
            (Base,),
            "tick",
            plain,
            r"E4121 handler Sub\.tick: takes the place of Base\.tick, which has @on, and has none",
        ),
        ((Base,), "again", plain, r"E4121 handler Sub\.again: takes the place of Base\.again, which has @every"),
        ((Base,), "tick", staticmethod(plain), r"E4121 handler Sub\.tick"),
        ((Base,), "tick", 5, r"E4121 handler Sub\.tick"),
        ((Beside, Base), "other", plain, r"E4121 handler Beside\.tick: takes the place of Base\.tick"),
    ],
)
def test_a_method_that_takes_the_place_of_a_handler_is_one_itself(
    bases: tuple[type, ...], name: str, value: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        type("Sub", bases, {name: value, "__qualname__": "Sub"})
    assert "to let nothing be called, write" in str(caught.value)


def test_a_handler_may_be_changed_left_out_and_defined_anew() -> None:
    changed = type("Changed", (Base,), {"tick": on(Tick, number=1)(lambda _self, _tick: None)})
    assert [spec.expression.fields for spec in changed.listeners] == [("number",)]
    left_out = type("LeftOut", (Base,), {"tick": None, "again": None})
    assert (left_out.listeners, left_out.timers) == ((), ())
    anew = type("Anew", (left_out,), {"tick": plain})
    assert anew.listeners == ()


def test_a_monitor_of_two_bases_has_the_handlers_of_both() -> None:
    class Other(Monitor):
        @on(Tick)
        def tock(self, tick: Tick) -> None: ...

    both = type("Both", (Base, Other), {})
    assert sorted(spec.handler for spec in both.listeners) == ["tick", "tock"]
