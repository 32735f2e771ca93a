"""Refuses `async def` and generator functions where the engine calls a function of the application.

The engine does not await or iterate what a call returns, so nothing in such a function would run.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import lru_cache, partial, partialmethod
from typing import Any

from correlator.errors import UsageError

_COROUTINE = "'async def'"
_GENERATOR = "a generator (it has 'yield')"


def refuse_deferred(function: Any, where: str, *, may_yield: bool = False) -> None:
    """Refuse a function whose call only makes a coroutine or a generator.

    Args:
        function: a function, method or other callable object.
        where: the place, for the message.
        may_yield: allow generators, because the caller iterates them.

    Raises `UsageError` E4117.
    """
    while isinstance(function, partial | partialmethod):
        function = function.func
    kind = _kind(function if inspect.isroutine(function) or not callable(function) else type(function).__call__)
    if kind and not (may_yield and kind == _GENERATOR):
        raise _deferred(where, kind)


def refuse_result(result: Any, method: Callable[..., Any], where: str) -> None:
    """Refuse a coroutine or generator that a call has returned, since a decorator may hide it from `refuse_deferred`.

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
    """Return what a call would make instead of running the function; "" for a function that runs."""
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
        "Write 'def' without 'async', 'await' and 'yield'. For slow or asynchronous work let a sender call a function"
        " (docs/calls.md)",
    )
