"""What of a stream is acknowledged, what is held and what comes next: spans of offsets. Pure; no broker is touched.

Spans follow one another without gaps although offsets do not (the server uses some itself): each begins where the one
before ends.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Offsets from one up to, and without, another."""

    start: int
    end: int


_tokens = itertools.count(1)
"""Of the whole process: a token never means another chunk after a reconnect (RELIABILITY T41)."""


class Progress:
    """The state of one receiver since it connected. Owned by the receiver's thread.

    Attributes:
        position: everything before it is acknowledged; all that the server can keep.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._frontier = position
        self._done: list[Span] = []
        self._held: dict[int, tuple[Span, int]] = {}
        self._returned: list[Span] = []

    @property
    def held(self) -> int:
        """How many messages are held."""
        return sum(count for _, count in self._held.values())

    def next(self) -> tuple[int, int | None]:
        """Where to read now, and the offset where to stop at the latest: what was given back comes first."""
        if self._returned:
            return self._returned[0]
        return self._frontier, None

    def take(self, end: int, count: int) -> int:
        """Hold `count` messages from the offset that `next` named up to `end`; the token of them."""
        if self._returned:
            span = self._returned.pop(0)
            if end < span.end:
                self._returned.insert(0, Span(end, span.end))
            taken = Span(span.start, end)
        else:
            taken = Span(self._frontier, end)
            self._frontier = end
        token = next(_tokens)
        self._held[token] = taken, count
        return token

    def acknowledge(self, tokens: Sequence[int]) -> bool:
        """These are done; unknown tokens change nothing. Returns whether `position` has moved."""
        before = self.position
        self._done = sorted([*self._done, *(self._held.pop(token)[0] for token in tokens if token in self._held)])
        while self._done and self._done[0].start == self.position:
            self.position = self._done.pop(0).end
        return self.position != before

    def reject(self, tokens: Sequence[int]) -> None:
        """These come again, the oldest first."""
        given_back = [self._held.pop(token)[0] for token in tokens if token in self._held]
        self._returned = sorted([*self._returned, *given_back])
