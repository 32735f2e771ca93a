"""Functions that an application gives to be called. A call must do the work: what it returns is not waited for."""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import lru_cache, partial, partialmethod
from typing import Any

from correlator.errors import UsageError

_COROUTINE = "'async def'"
_GENERATOR = "a generator (it has 'yield')"


def refuse_deferred(function: Any, where: str, *, may_yield: bool = False) -> None:
    """Refuse a function whose call only makes a coroutine or a generator: what stands in it would never run.

    Args:
        function: a function, method or other object that can be called.
        where: for the message.
        may_yield: whether the caller runs generators.

    Raises `UsageError` E4117.
    """
    while isinstance(function, partial | partialmethod):
        function = function.func
    kind = _kind(function if inspect.isroutine(function) or not callable(function) else type(function).__call__)
    if kind and not (may_yield and kind == _GENERATOR):
        raise _deferred(where, kind)


def refuse_result(result: Any, method: Callable[..., Any], where: str) -> None:
    """Refuse what a call has returned when it is a coroutine or a generator: a decorator may have hidden it.

    Raises `UsageError` E4117.
    """
    if isinstance(result, Coroutine | Generator):
        result.close()  # or Python warns that it was never awaited
    if isinstance(result, Coroutine | AsyncGenerator):
        raise _deferred(f"{where}{_named(method)}", _COROUTINE)
    if isinstance(result, Generator):
        raise _deferred(f"{where}{_named(method)}", _GENERATOR)


@lru_cache(maxsize=10_000)
def _kind(function: Callable[..., Any]) -> str:
    """What a call would only make; "" for a function that runs."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return _COROUTINE
    return _GENERATOR if inspect.isgeneratorfunction(function) else ""


def _named(method: Callable[..., Any]) -> str:
    name = getattr(method, "__name__", "")
    return f".{name}" if name.isidentifier() else ""


def _deferred(where: str, kind: str) -> UsageError:
    return UsageError(
        "E4117",
        where,
        f"is {kind}: the call would return at once and nothing in it would run",
        "A plain function, which has done its work when it returns",
        "Write 'def' without 'async', 'await' and 'yield'; send a message to whoever waits for something outside",
    )
