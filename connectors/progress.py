"""Tracks the acknowledged, held and next parts of a file or stream, as spans between positions. Does no I/O.

Each span begins where the previous one ends, although messages need not have consecutive offsets: the server of a
stream uses some offsets itself.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from correlator.connector import Held


class Ordered(Protocol):
    """The type of a position: a boundary between records of a file, or an offset of a stream."""

    def __lt__(self, other: Any, /) -> bool: ...


P = TypeVar("P", bound=Ordered)


class Span(NamedTuple, Generic[P]):
    """The messages from one position up to another one, which is excluded."""

    start: P
    end: P


class ReadProgress(Generic[P]):
    """The progress of one receiver since it connected. The receiver's thread owns it.

    All messages before `position` are acknowledged, and further ones in the spans of `done`. Messages that were given
    back are read again before new ones.
    """

    def __init__(self, position: P, done: Sequence[Span[P]] = ()) -> None:
        self.position = position
        self.done = sorted(done)
        self._held: Held[tuple[P, P]] = Held()
        self._returned = list(_gaps(position, self.done))
        self._frontier = self.done[-1].end if self.done else position

    @property
    def held(self) -> int:
        """Return how many messages the receiver holds: taken, and neither acknowledged nor given back."""
        return len(self._held)

    def next(self) -> tuple[P, P | None]:
        """Return the position to read from, and the last position at which to stop; `None` for no limit."""
        if self._returned:
            return self._returned[0]
        return self._frontier, None

    def take(self, ends: Sequence[P]) -> Sequence[int]:
        """Hold the messages that end at these positions, the first of which begins at the position of `next`.

        Return their tokens.
        """
        begin, until = self.next()
        end = ends[-1]
        if until is not None:
            self._returned[:1] = [Span(end, until)] if end < until else []
        self._frontier = max(self._frontier, end)
        return self._held.hold(list(itertools.pairwise((begin, *ends))))

    def acknowledge(self, tokens: Sequence[int]) -> bool:
        """Acknowledge messages; ignore unknown tokens. Return whether `position` has moved."""
        before = self.position
        self.done = _joined([*self.done, *self._held.release(tokens)])
        if self.done and self.done[0].start == before:
            self.position = self.done.pop(0).end
        return self.position != before

    def reject(self, tokens: Sequence[int]) -> None:
        """Give messages back; they are read again, the oldest first."""
        self._returned = _joined([*self._returned, *self._held.release(tokens)])


def _joined(spans: Iterable[tuple[P, P]]) -> list[Span[P]]:
    """Return the spans in order; join spans that touch each other.

    Spans of single messages are plain tuples: the garbage collector does not track tuples of numbers.
    """
    ordered = sorted(spans)
    if not ordered:
        return []
    joined: list[Span[P]] = []
    start, end = ordered[0]
    for begin, until in ordered[1:]:
        if begin != end:
            joined.append(Span(start, end))
            start = begin
        end = until
    return [*joined, Span(start, end)]


def _gaps(position: P, done: Sequence[Span[P]]) -> Iterator[Span[P]]:
    """Yield the spans before and between those that are done."""
    begin = position
    for span in done:
        if begin < span.start:
            yield Span(begin, span.start)
        begin = span.end
