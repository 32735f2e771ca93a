"""A declaration that cannot work is refused when the class is made, with a code and a name."""

from collections.abc import Callable
from typing import Any

import pytest

from correlator.core.monitor import Monitor, every, on
from correlator.core.state import StateTable
from correlator.errors import CorrelatorError, StateError, UsageError
from correlator.events import Message, SenderFlushed, event
from tests.core.test_context import Tick, a_context, deliver


def without_event(_self: Any) -> None: ...


def with_event(_self: Any, _event: Any) -> None: ...


def with_two(_self: Any, _one: Any, _other: Any) -> None: ...


def with_choice(_self: Any, _event: Any, _more: int = 1) -> None: ...


def annotated(**types: Any) -> Callable[[], object]:
    return lambda: type("Wrong", (Monitor,), {"__annotations__": types}, persistent=True)


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda: on(Tick)(without_event), "E4114 handler without_event: is called with 1 events"),
        (lambda: on(Tick)(with_two), "E4114 handler with_two:"),
        (lambda: every(1)(with_event), "E4114 handler with_event: is called with 0 events"),
        (lambda: on(int), "E4108 match: .*int.* is no type of events"),
        (lambda: on(Monitor), "E4108 match:"),
        (annotated(table=StateTable[int]), "E4101 monitor Wrong: StateTable 'table' has 1 type"),  # type: ignore[misc]
        (annotated(send=int), "E4122 monitor Wrong: attribute 'send'"),
        (annotated(wait=StateTable[str, int]), "E4122 monitor Wrong: attribute 'wait'"),
        (lambda: event(type("Tock", (Tick,), {})), "E4123 event Tock:"),
    ],
)
def test_what_cannot_work_is_refused_by_its_name(make: Callable[[], object], refusal: str) -> None:
    with pytest.raises(CorrelatorError, match=refusal):
        make()


@pytest.mark.parametrize("what", [Tick, Message, SenderFlushed])
@pytest.mark.parametrize("handler", [with_event, with_choice])
def test_what_can_be_called_is_taken(what: type[Any], handler: Callable[..., None]) -> None:
    on(what)(lambda *arguments: handler(*arguments))


class Times(Monitor):
    @on(Tick)
    def tick(self, _tick: Tick) -> None:
        self.wait(1, self.tick)


def test_a_timer_of_a_method_that_takes_an_event_is_refused_at_the_call() -> None:
    context = a_context(Times())
    with pytest.raises(UsageError, match="E4114 handler tick: is called with 0 events"):
        deliver(context, Tick(number=1))


class Holds(Monitor, persistent=True):
    fine: int = 0
    value: int | str = 0

    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.value = 2**70 if tick.kind == "big" else "\ud800"


@pytest.mark.parametrize("kind", ["big", "half"])
def test_a_checkpoint_names_the_attribute_that_no_store_takes(kind: str) -> None:
    context = a_context(Holds())
    deliver(context, Tick(number=1, kind=kind))
    with pytest.raises(StateError, match=r"E4102 monitor Holds\.value: value cannot be stored") as raised:
        context.take_state()
    assert "Its last handler before this checkpoint was tick. With on_error: skip or" in str(raised.value)
