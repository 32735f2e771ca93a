"""What a subscription has delivered, on its way from the I/O thread to the receiver's; and how much more may come."""

import threading
from collections import deque
from typing import NamedTuple

MOST_CREDITS = 10
"""Chunks that may be under way."""


class Run(NamedTuple):
    """Entries of a stream that follow one another.

    Attributes:
        first: the offset of the first one.
        timestamp: when their chunk was written, in milliseconds since the epoch.
    """

    first: int
    timestamp: int
    entries: list[bytes]

    @property
    def end(self) -> int:
        """The offset behind the last one."""
        return self.first + len(self.entries)

    def part(self, begin: int, end: int) -> "Run":
        """The entries from one offset up to another."""
        return Run(begin, self.timestamp, self.entries[begin - self.first : end - self.first])


class Taken(NamedTuple):
    """What was taken; `reached` tells that nothing more lies before the offset where to stop."""

    runs: list[Run]
    reached: bool


class Feed:
    """Chunks of one subscription.

    A server sends whole chunks, of any size, and one for each credit. So that what waits stays bounded, a credit is
    given only while there is room, for as many chunks as would fit if they were like the last one.

    Args:
        subscription: its number on the connection.
        position: the offset where it begins.
        most: entries that may wait.
        most_bytes: their bytes.

    Attributes:
        position: the lowest offset that can still come.
    """

    def __init__(self, subscription: int, position: int, most: int, most_bytes: int) -> None:
        self.subscription = subscription
        self.position = position
        self._most = most
        self._most_bytes = most_bytes
        self._credits = 0
        self._last_chunk = (most, most_bytes)
        self._waiting: deque[Run] = deque()
        self._count = 0
        self._bytes = 0
        self._stirred = threading.Condition()
        self._ended = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the entries that wait."""
        return self._bytes

    def put(self, run: Run) -> None:
        """A chunk."""
        size = sum(map(len, run.entries))
        with self._stirred:
            self._credits -= 1
            self._last_chunk = (max(1, len(run.entries)), max(1, size))
            if run.entries:
                self._waiting.append(run)
                self._count += len(run.entries)
                self._bytes += size
                self._stirred.notify()

    def room(self) -> int:
        """How many credits are to be given now; they count as given."""
        with self._stirred:
            left, left_bytes = self._most - self._count, self._most_bytes - self._bytes
            if left <= 0 or left_bytes <= 0:
                return 0
            count, size = self._last_chunk
            wanted = max(1, min(MOST_CREDITS, left // count, left_bytes // size))
            more = max(0, wanted - self._credits)
            self._credits += more
            return more

    def end(self) -> None:
        """Nothing more comes: end the wait."""
        with self._stirred:
            self._ended = True
            self._stirred.notify()

    def peek(self) -> Run | None:
        """What waits as the next, if anything does."""
        with self._stirred:
            return self._waiting[0] if self._waiting else None

    def take(self, start: int, until: int | None, most: int, timeout_s: float) -> Taken:
        """The next entries in order from one offset up to another, waiting for the first.

        They have at most `most_bytes` together, or it is only one. What lies before `start` is dropped.
        """
        taken: list[Run] = []
        size = 0
        with self._stirred:
            self._drop_before(start)
            self._stirred.wait_for(lambda: self._ended or self._next_from(start), timeout_s)
            while most > 0 and self._next_from(start):
                run = self._waiting[0]
                if until is not None and run.first >= until:
                    return Taken(taken, reached=True)
                end = min(run.end, run.first + most, run.end if until is None else until)
                end, size = self._fitting(run, end, size, first=not taken)
                if end == run.first:
                    break
                taken.append(self._cut(end))
                most -= end - run.first
        return Taken(taken, reached=False)

    def _next_from(self, start: int) -> bool:
        self._drop_before(start)
        return bool(self._waiting)

    def _drop_before(self, start: int) -> None:
        while self._waiting and self._waiting[0].first < start:
            self._cut(min(start, self._waiting[0].end))

    def _fitting(self, run: Run, end: int, size: int, *, first: bool) -> tuple[int, int]:
        """How far the entries fit into the bytes of one batch, and the bytes with them."""
        for at in range(end - run.first):
            larger = size + len(run.entries[at])
            if larger > self._most_bytes and not (first and not at):
                return run.first + at, size
            size = larger
        return end, size

    def _cut(self, end: int) -> Run:
        """Take the entries up to an offset out of the first run."""
        run = self._waiting.popleft()
        part = run if end == run.end else run.part(run.first, end)
        if part is not run:
            self._waiting.appendleft(run.part(end, run.end))
        self._count -= len(part.entries)
        self._bytes -= sum(map(len, part.entries))
        self.position = end
        return part
