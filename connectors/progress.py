"""What of a file or stream is acknowledged, what is held and what comes next: spans of places. Pure; touches nothing.

Spans follow one another without gaps although places do not (the server of a stream uses some offsets itself): each
begins where the one before ends.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Ordered(Protocol):
    """What can be a place: a byte and line of a file, an offset of a stream."""

    def __lt__(self, other: Any, /) -> bool: ...


P = TypeVar("P", bound=Ordered)


class Span(NamedTuple, Generic[P]):
    """From one place up to, and without, another."""

    start: P
    end: P


_tokens = itertools.count(1)
"""Of the whole process: a token never means another chunk after a reconnect (trap T41)."""


class ReadProgress(Generic[P]):
    """The state of one receiver since it connected. Owned by the receiver's thread.

    Everything before `position` is acknowledged, and the spans of `done` beyond it; these grow together. What was
    given back is read again before anything new.
    """

    def __init__(self, position: P, done: Sequence[Span[P]] = ()) -> None:
        self.position = position
        self.done = sorted(done)
        self._held: dict[int, tuple[Span[P], int]] = {}
        self._returned = list(_gaps(position, self.done))
        self._frontier = self.done[-1].end if self.done else position

    @property
    def held(self) -> int:
        """How many messages are held."""
        return sum(count for _, count in self._held.values())

    def next(self) -> tuple[P, P | None]:
        """Where to read now, and the place where to stop at the latest."""
        if self._returned:
            return self._returned[0]
        return self._frontier, None

    def take(self, end: P, count: int) -> int:
        """Hold `count` messages from the place that `next` named up to `end`; the token of them."""
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
        """These are done for ever; unknown tokens change nothing. Returns whether `position` has moved."""
        before = self.position
        self.done = sorted([*self.done, *self._released(tokens)])
        while self.done and self.done[0].start == self.position:
            self.position = self.done.pop(0).end
        return self.position != before

    def reject(self, tokens: Sequence[int]) -> None:
        """These come again, the oldest first."""
        self._returned = sorted([*self._returned, *self._released(tokens)])

    def _released(self, tokens: Sequence[int]) -> list[Span[P]]:
        return [self._held.pop(token)[0] for token in tokens if token in self._held]


def _gaps(position: P, done: Sequence[Span[P]]) -> Iterator[Span[P]]:
    """What lies before and between the spans that are done."""
    begin = position
    for span in done:
        if begin < span.start:
            yield Span(begin, span.start)
        begin = span.end
