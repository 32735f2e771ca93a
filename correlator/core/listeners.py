"""Which listeners an event wakes: the cost follows the matches, not the number of listeners.

Listeners of a type that ask for the same fields share one table from values to listeners.
"""

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from correlator.core.expressions import Pattern


class Waiting(Protocol):
    """What waits for a pattern."""

    @property
    def pattern(self) -> Pattern:
        """What it waits for."""
        ...


W = TypeVar("W", bound=Waiting)


class _OfType(Generic[W]):
    """Listeners of one event type."""

    __slots__ = ("_every", "_sequence", "keyed")

    def __init__(self) -> None:
        self._every: dict[W, None] = {}
        self._sequence: tuple[W, ...] | None = ()
        self.keyed: dict[tuple[str, ...], dict[tuple[Any, ...], dict[W, None]]] = {}

    @property
    def every(self) -> tuple[W, ...]:
        """Those that ask for no field; the sequence is made when it is needed, since many may come and go between."""
        if self._sequence is None:
            self._sequence = tuple(self._every)
        return self._sequence

    def add(self, listener: W) -> None:
        pattern = listener.pattern
        if pattern.fields:
            self.keyed.setdefault(pattern.fields, {}).setdefault(pattern.values, {})[listener] = None
        else:
            self._every[listener] = None
            self._sequence = None

    def remove(self, listener: W) -> None:
        pattern = listener.pattern
        if not pattern.fields:
            self._every.pop(listener, None)
            self._sequence = None
            return
        by_values = self.keyed[pattern.fields]
        matching = by_values.get(pattern.values, {})
        matching.pop(listener, None)
        if not matching:
            by_values.pop(pattern.values, None)
        if not by_values:
            del self.keyed[pattern.fields]


class ListenerIndex(Generic[W]):
    """What waits in a context. Owner: the context's thread."""

    def __init__(self) -> None:
        self._types: dict[type[Any], _OfType[W]] = {}

    def add(self, listener: W) -> None:
        """Add a listener."""
        self._types.setdefault(listener.pattern.event_type, _OfType()).add(listener)

    def remove(self, listener: W) -> None:
        """Remove a listener that was added."""
        self._types[listener.pattern.event_type].remove(listener)

    def matching(self, event: Any) -> Iterable[W]:
        """The listeners to wake; a fixed sequence, whatever handlers add or remove meanwhile."""
        of_type = self._types.get(type(event))
        if of_type is None:
            return ()
        if not of_type.keyed:
            return of_type.every
        found = list(of_type.every)
        for fields, by_values in of_type.keyed.items():
            try:
                found.extend(by_values.get(tuple([getattr(event, field) for field in fields]), ()))
            except TypeError:  # a value that changes, as a list: nothing can ask for it
                continue
        return found
