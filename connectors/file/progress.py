"""What of a file is acknowledged, what is held and what comes next: spans between places. Pure; no file is touched."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from connectors.file.records import Place


class Span(NamedTuple):
    """Records from one place to another."""

    start: Place
    end: Place


_tokens = itertools.count(1)
"""Of the whole process: a token never means another chunk after a reconnect."""


class Progress:
    """The state of one receiver in one file.

    Everything before `position` is acknowledged, and the spans of `done` beyond it; these grow together. What was
    given back is read again before anything new.
    """

    def __init__(self, position: Place, done: Sequence[Span] = ()) -> None:
        self.position = position
        self.done = sorted(done)
        self._held: dict[int, tuple[Span, int]] = {}
        self._returned = list(_gaps(position, self.done))
        self._frontier = self.done[-1].end if self.done else position

    @property
    def held(self) -> int:
        """How many records are held."""
        return sum(count for _, count in self._held.values())

    def next(self) -> tuple[Place, int | None]:
        """Where to read now, and the offset where to stop at the latest."""
        if self._returned:
            return self._returned[0].start, self._returned[0].end.offset
        return self._frontier, None

    def take(self, end: Place, count: int) -> int:
        """Hold `count` records from the place that `next` named to `end`; the token of them."""
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

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """These are done for ever; unknown tokens change nothing."""
        acknowledged = [self._held.pop(token)[0] for token in tokens if token in self._held]
        self.done = sorted([*self.done, *acknowledged])
        while self.done and self.done[0].start == self.position:
            self.position = self.done.pop(0).end

    def reject(self, tokens: Sequence[Any]) -> None:
        """These come again, the oldest first."""
        given_back = [self._held.pop(token)[0] for token in tokens if token in self._held]
        self._returned = sorted([*self._returned, *given_back])


def _gaps(position: Place, done: Sequence[Span]) -> Iterator[Span]:
    """What lies before and between the spans that are done."""
    begin = position
    for span in done:
        if begin < span.start:
            yield Span(begin, span.start)
        begin = span.end
