"""Keeps track of the acknowledged, held and next parts of a file or stream, as spans between positions. Pure.

Each span begins where the one before it ends, although messages do not have consecutive offsets: the server of a stream
uses some offsets itself.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Ordered(Protocol):
    """The type of a position: a boundary between records of a file, or an offset of a stream."""

    def __lt__(self, other: Any, /) -> bool: ...


P = TypeVar("P", bound=Ordered)


class Span(NamedTuple, Generic[P]):
    """The messages from one position up to, and without, another."""

    start: P
    end: P


_tokens = itertools.count(1)
"""Counts tokens of the whole process, so that a token never means another chunk after a reconnect (trap T41)."""


class ReadProgress(Generic[P]):
    """The progress of one receiver since it connected. Owned by the receiver's thread.

    All messages before `position` are acknowledged, and further ones in the spans of `done`. Messages that were given
    back are read again before new ones.
    """

    def __init__(self, position: P, done: Sequence[Span[P]] = ()) -> None:
        self.position = position
        self.done = sorted(done)
        self._held: dict[int, tuple[Span[P], int]] = {}
        self._returned = list(_gaps(position, self.done))
        self._frontier = self.done[-1].end if self.done else position

    @property
    def held(self) -> int:
        """Number of held messages."""
        return sum(count for _, count in self._held.values())

    def next(self) -> tuple[P, P | None]:
        """The position to read from, and the position where to stop at the latest; `None` for no limit."""
        if self._returned:
            return self._returned[0]
        return self._frontier, None

    def take(self, end: P, count: int) -> int:
        """Hold `count` messages, from the position that `next` returned up to `end`; returns their token."""
        if self._returned:
            span = self._returned.pop(0)
            if end < span.end:
                self._returned.insert(0, Span(end, span.end))
            taken = Span(span.start, end)
        else:
            taken = Span(self._frontier, end)
        self._frontier = max(self._frontier, end)
        token = next(_tokens)
        self._held[token] = taken, count
        return token

    def acknowledge(self, tokens: Sequence[int]) -> bool:
        """Acknowledge messages; ignore unknown tokens. Returns whether `position` has moved."""
        before = self.position
        self.done = sorted([*self.done, *self._released(tokens)])
        while self.done and self.done[0].start == self.position:
            self.position = self.done.pop(0).end
        return self.position != before

    def reject(self, tokens: Sequence[int]) -> None:
        """Give messages back; they are read again, the oldest first."""
        self._returned = sorted([*self._returned, *self._released(tokens)])

    def _released(self, tokens: Sequence[int]) -> list[Span[P]]:
        return [self._held.pop(token)[0] for token in tokens if token in self._held]


def _gaps(position: P, done: Sequence[Span[P]]) -> Iterator[Span[P]]:
    """The spans before and between those that are done."""
    begin = position
    for span in done:
        if begin < span.start:
            yield Span(begin, span.start)
        begin = span.end
