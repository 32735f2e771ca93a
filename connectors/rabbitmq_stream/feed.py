"""What a subscription has delivered, on its way from the I/O thread to the receiver's; and how much more may come."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from connectors.rabbitmq_stream.chunk import PackedBatch

MOST_CREDITS = 10
"""Chunks that may be under way."""


class EntryRun(NamedTuple):
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

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(map(len, self.entries))

    def part(self, begin: int, end: int) -> "EntryRun":
        """The entries from one offset up to another."""
        return EntryRun(begin, self.timestamp, self.entries[begin - self.first : end - self.first])


class PackedRun(NamedTuple):
    """Messages that a producer has packed, as `EntryRun`."""

    first: int
    timestamp: int
    batch: PackedBatch

    @property
    def end(self) -> int:
        """The offset behind the last one."""
        return self.first + self.batch.number

    @property
    def size(self) -> int:
        """The bytes that wait."""
        return len(self.batch.packed)

    def unpacked(self) -> EntryRun:
        """The messages."""
        return EntryRun(self.first, self.timestamp, self.batch.unpack())


class TakenRuns(NamedTuple):
    """What was taken; `reached` tells that nothing more lies before the offset where to stop."""

    runs: list[EntryRun]
    reached: bool


class Feed:
    """Chunks of one subscription.

    A server sends whole chunks, of any size, and one for each credit. So that what waits stays bounded, a credit is
    given only while there is room, for as many chunks as would fit if they were like the last one. A batch is unpacked
    when its first message is to be taken, so that of all that waits one is unpacked, whatever size it becomes.

    Args:
        subscription: its number on the connection.
        position: the offset where it begins.
        most: entries that may wait.
        most_bytes: their bytes.

    Attributes:
        position: the lowest offset that can still come.
        first_chunk: the offsets of the first chunk that came.
    """

    def __init__(self, subscription: int, position: int, most: int, most_bytes: int) -> None:
        self.subscription = subscription
        self.position = position
        self._most = most
        self._most_bytes = most_bytes
        self._credits = 0
        self._last_chunk = (most, most_bytes)
        self.first_chunk: range | None = None
        self._waiting: deque[EntryRun | PackedRun] = deque()
        self._count = 0
        self._bytes = 0
        self._stirred = threading.Condition()
        self._ended = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the entries that wait."""
        return self._bytes

    def put(self, chunk: Sequence[EntryRun | PackedRun]) -> None:
        """A chunk."""
        runs = [run for run in chunk if run.end > run.first]
        count, size = sum(run.end - run.first for run in runs), sum(run.size for run in runs)
        with self._stirred:
            self._credits -= 1
            self._last_chunk = (max(1, count), max(1, size))
            if runs:
                self.first_chunk = self.first_chunk or range(runs[0].first, runs[-1].end)
                self._waiting += runs
                self._count += count
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

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def take(self, start: int, until: int | None, most: int, timeout_s: float) -> TakenRuns:
        """The next entries in order from one offset up to another, waiting for the first.

        They have at most `most_bytes` together, or it is only one. What lies before `start` is dropped.
        """
        taken: list[EntryRun] = []
        size = 0
        with self._stirred:
            self._drop_before(start)
            self._stirred.wait_for(lambda: self._ended or self._next_from(start), timeout_s)
            while most > 0 and self._next_from(start):
                if until is not None and self._waiting[0].first >= until:
                    return TakenRuns(taken, reached=True)
                run = self._unpack()
                end = min(run.end, run.first + most, run.end if until is None else until)
                end, size = self._fitting(run, end, size, first=not taken)
                if end == run.first:
                    break
                taken.append(self._cut(end))
                most -= end - run.first
        return TakenRuns(taken, reached=False)

    def _next_from(self, start: int) -> bool:
        self._drop_before(start)
        return bool(self._waiting)

    def _drop_before(self, start: int) -> None:
        while self._waiting and self._waiting[0].first < start:
            if self._waiting[0].end > start:
                self._cut(start)
            else:
                self._remove()

    def _fitting(self, run: EntryRun, end: int, size: int, *, first: bool) -> tuple[int, int]:
        """How far the entries fit into the bytes of one batch, and the bytes with them."""
        for at in range(end - run.first):
            larger = size + len(run.entries[at])
            if larger > self._most_bytes and not (first and not at):
                return run.first + at, size
            size = larger
        return end, size

    def _cut(self, end: int) -> EntryRun:
        """Take the entries up to an offset out of the first run."""
        run = self._unpack()
        part = run if end == run.end else run.part(run.first, end)
        if part is not run:
            self._waiting[0] = run.part(end, run.end)
            self._waiting.appendleft(part)
        self._remove()
        return part

    def _unpack(self) -> EntryRun:
        """The first run, unpacked if it was not."""
        run = self._waiting[0]
        if isinstance(run, PackedRun):
            self._bytes -= run.size
            self._waiting[0] = run = run.unpacked()
            self._bytes += run.size
        return run

    def _remove(self) -> None:
        """The first run is taken, or not wanted."""
        run = self._waiting.popleft()
        self._count -= run.end - run.first
        self._bytes -= run.size
        self.position = run.end
