"""Passes delivered chunks from the I/O thread to the receiver's thread, and decides how many more may be sent."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from connectors.rabbitmq_stream.chunk import PackedBatch

MOST_CREDITS = 10
"""Largest number of chunks that the server may send ahead."""


class EntryRun(NamedTuple):
    """Consecutive entries of a stream.

    Attributes:
        first: the offset of the first entry.
        timestamp: time at which their chunk was written, in milliseconds since the epoch.
    """

    first: int
    timestamp: int
    entries: list[bytes]

    @property
    def end(self) -> int:
        """The offset after the last entry."""
        return self.first + len(self.entries)

    @property
    def size(self) -> int:
        """Return the number of bytes of all entries together."""
        return sum(map(len, self.entries))

    def part(self, begin: int, end: int) -> "EntryRun":
        """Return the entries from one offset up to another one, which is excluded."""
        return EntryRun(begin, self.timestamp, self.entries[begin - self.first : end - self.first])


class PackedRun(NamedTuple):
    """Consecutive messages that their producer has packed into one entry."""

    first: int
    timestamp: int
    batch: PackedBatch

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.first + self.batch.number

    @property
    def size(self) -> int:
        """Number of bytes of the packed entry."""
        return len(self.batch.packed)

    def unpacked(self) -> EntryRun:
        """Return the messages as entries of their own, with consecutive offsets from `first`.

        The receiver's thread calls it. If the batch cannot be unpacked, each entry is a `chunk.Packed` that tells why.
        """
        return EntryRun(self.first, self.timestamp, self.batch.unpack())


class TakenRuns(NamedTuple):
    """The result of `Feed.take`; `reached`: no further entry is before the offset `until`."""

    runs: list[EntryRun]
    reached: bool


class Feed:
    """The waiting chunks of one subscription.

    The server sends one chunk, of any size, for each credit. To bound the memory, the feed gives credits only while it
    has room, for as many chunks as would fit if they were as large as the last one. It unpacks a packed batch only when
    the first message of that batch is taken, so at most one batch is unpacked at a time.

    Args:
        subscription: number of the subscription on the connection.
        position: first offset of the subscription.
        most: largest number of waiting entries.
        most_bytes: largest number of bytes of these entries.

    Attributes:
        position: lowest offset that can still arrive.
        first_chunk: offsets of the first chunk that arrived.
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
        """Return the number of bytes of the waiting entries."""
        return self._bytes

    def put(self, chunk: Sequence[EntryRun | PackedRun]) -> None:
        """Add a delivered chunk. Called by the I/O thread."""
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
        """Return the number of credits to give to the server now; the feed counts them as given."""
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
        """Wake the receiver's thread for good: nothing more will arrive."""
        with self._stirred:
            self._ended = True
            self._stirred.notify()

    @property
    def empty(self) -> bool:
        """Return whether no entry waits to be taken. Only the thread of the receiver calls it."""
        return not self._waiting

    def take(self, start: int, until: int | None, most: int, timeout_s: float) -> TakenRuns:
        """Return the next entries in order, from the offset `start` up to `until`; wait `timeout_s` for the first
        entry.

        Together they have at most `most_bytes`; a larger entry is returned alone. Entries before `start` are dropped.
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
        """Return the offset after the last entry that still fits into `most_bytes`, and the number of
        bytes up to there.
        """
        for at in range(end - run.first):
            larger = size + len(run.entries[at])
            if larger > self._most_bytes and not (first and not at):
                return run.first + at, size
            size = larger
        return end, size

    def _cut(self, end: int) -> EntryRun:
        """Remove the entries up to an offset from the first run, and return them."""
        run = self._unpack()
        part = run if end == run.end else run.part(run.first, end)
        if part is not run:
            self._waiting[0] = run.part(end, run.end)
            self._waiting.appendleft(part)
        self._remove()
        return part

    def _unpack(self) -> EntryRun:
        """Unpack the first run if it is packed, and return it."""
        run = self._waiting[0]
        if isinstance(run, PackedRun):
            self._bytes -= run.size
            self._waiting[0] = run = run.unpacked()
            self._bytes += run.size
        return run

    def _remove(self) -> None:
        """Remove the first run."""
        run = self._waiting.popleft()
        self._count -= run.end - run.first
        self._bytes -= run.size
        self.position = run.end
