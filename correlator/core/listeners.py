"""The index that finds the listeners of an event. Its cost depends on the matches, not on the number of listeners.

Listeners for one event type and the same fields share one table from values of these fields to listeners.
"""

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from correlator.core.expressions import Pattern


class Waiting(Protocol):
    """What the index must know of a listener, or of a pattern of an attempt."""

    @property
    def pattern(self) -> Pattern:
        """The pattern of the events that it waits for."""
        ...


W = TypeVar("W", bound=Waiting)


class _OfType(Generic[W]):
    """Listeners of one event type."""

    __slots__ = ("_every", "keyed", "sequence")

    def __init__(self) -> None:
        self._every: dict[W, None] = {}
        self.sequence: tuple[W, ...] | None = ()
        self.keyed: dict[tuple[str, ...], dict[tuple[Any, ...], dict[W, None]]] = {}

    def every(self) -> tuple[W, ...]:
        """The listeners without fields; they stay in `sequence` until the next change, since changes are frequent."""
        self.sequence = tuple(self._every)
        return self.sequence

    def add(self, listener: W) -> None:
        pattern = listener.pattern
        if pattern.fields:
            self.keyed.setdefault(pattern.fields, {}).setdefault(pattern.values, {})[listener] = None
        else:
            self._every[listener] = None
            self.sequence = None

    def remove(self, listener: W) -> None:
        pattern = listener.pattern
        if not pattern.fields:
            self._every.pop(listener, None)
            self.sequence = None
            return
        by_values = self.keyed[pattern.fields]
        matching = by_values.get(pattern.values, {})
        matching.pop(listener, None)
        if not matching:
            by_values.pop(pattern.values, None)
        if not by_values:
            del self.keyed[pattern.fields]


class ListenerIndex(Generic[W]):
    """The listeners of one context. Owner: the context's thread.

    Attributes:
        types: the listeners by event type; empty until a listener is added.
    """

    def __init__(self) -> None:
        self.types: dict[type[Any], _OfType[W]] = {}

    def add(self, listener: W) -> None:
        """Add a listener, so that `matching` returns it for events that fit its pattern. Add no listener twice."""
        self.types.setdefault(listener.pattern.event_type, _OfType()).add(listener)

    def remove(self, listener: W) -> None:
        """Remove a listener that was added."""
        self.types[listener.pattern.event_type].remove(listener)

    def matching(self, event: Any) -> Iterable[W]:
        """Return the listeners of an event. Handlers may add and remove listeners while the caller iterates."""
        of_type = self.types.get(type(event))
        if of_type is None:
            return ()
        every = of_type.every() if of_type.sequence is None else of_type.sequence
        if not of_type.keyed:
            return every
        found = list(every)
        for fields, by_values in of_type.keyed.items():
            try:
                found.extend(by_values.get(tuple([getattr(event, field) for field in fields]), ()))
            except TypeError:  # the event has a mutable value, such as a list, which no listener can name
                continue
        return found
