"""Splits the bytes of a file into records, block by block: most blocks contain no quote, so one `split` is enough.

A CSV record ends at a line end outside of quotes. A quote opens only at the beginning of a field, so a stray quote
(`a 5" pipe`) is an ordinary character. Positions are counted in bytes and in physical lines of the file.

A line that is too long is cut: its beginning is the record, and the reader skips the rest of the line. A CSV record
without an end is cut as well. Most likely a quote is not closed, so the reader skips only its first line, and reads the
following lines as if no quote were open.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

BLOCK_BYTES = 512 * 1024
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Size in bytes at which a record without an end is cut, unless the reader keeps more bytes of a record."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_REST_OF_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*("?)')
_NEXT_QUOTED = re.compile(rb'(?:^|,)"')


class RecordBoundary(NamedTuple):
    """A boundary between two records: the offset in bytes, and the number of the line that begins there."""

    offset: int
    line: int


class Records(NamedTuple):
    """Records in parallel lists: bodies without line ends, numbers of their first lines, boundaries after them.

    `cut_from`: the size in bytes of a record that was cut; such a record is returned alone.
    """

    bodies: Sequence[bytes]
    lines: Sequence[int]
    ends: Sequence[RecordBoundary]
    cut_from: int | None = None


_NONE = Records((), (), ())
_boundary: Callable[[tuple[int, int]], RecordBoundary] = partial(tuple.__new__, RecordBoundary)
"""Makes a boundary of a pair, in a third of the time of a call of `RecordBoundary`."""


class RecordReader:
    """Reads records from a file, from any boundary. Empty lines are not records.

    Args:
        read: returns a number of bytes from an offset on, or fewer at the end of the file.
        quotes: whether quotes may contain line ends.
        kept: the size in bytes to which a record is cut; a record of this size or smaller is never cut.
    """

    def __init__(self, read: Callable[[int, int], bytes], *, quotes: bool, kept: int) -> None:
        self._read = read
        self._quotes = quotes
        self._kept = kept
        self._most = max(MAX_RECORD_BYTES, kept)
        self.seek(RecordBoundary(0, 1))

    def seek(self, boundary: RecordBoundary) -> None:
        """Continue from this boundary; keep records that were read ahead if they begin there."""
        if getattr(self, "_boundary", None) == boundary:
            return
        self._boundary = boundary
        self._ready = _NONE
        self._next = 0
        self._rest = b""
        self._rest_boundary = boundary
        self._passed = 0

    def take(self, limit: int, max_bytes: int, until: int | None, *, final: bool) -> Records:
        """Return the next records; at least one if there is one before the offset `until`.

        Args:
            limit: largest number of records.
            max_bytes: largest number of bytes, unless the first record alone is longer.
            until: offset at which the last record must have ended; `None` for no limit.
            final: whether the end of the file ends a last record without a line end.
        """
        while self._next == len(self._ready.bodies):
            if not self._fill(final=final):
                return _NONE
        first = self._next
        bound = self._boundary.offset + max_bytes if until is None else min(self._boundary.offset + max_bytes, until)
        fitting = bisect_right(self._ready.ends, bound, lo=first, key=lambda boundary: boundary.offset)
        stop = min(first + limit, max(fitting, first + 1))
        self._next = stop
        self._boundary = self._ready.ends[stop - 1]
        ready = self._ready
        return Records(ready.bodies[first:stop], ready.lines[first:stop], ready.ends[first:stop], ready.cut_from)

    def _fill(self, *, final: bool) -> bool:
        """Read the next block; return false at the end of the file."""
        if len(self._rest) > self._most:
            self._end_at_first_line()
            return True
        size = max(
            BLOCK_BYTES, len(self._rest)
        )  # double the size each time, so that a long record is not split again and again
        offset = self._rest_boundary.offset + len(self._rest) + self._passed
        block = self._read(size, offset)
        if not block:
            if not (final and self._rest):
                return False
            if self._passed:
                self._end_cut(self._passed, line_end=0)
            else:
                rest, self._rest = self._rest, b""
                self._ready, self._rest_boundary = whole(rest, self._rest_boundary)
        elif self._passed:
            self._pass_over(block)
        else:
            cut = cut_quoted if self._quotes else cut_plain
            self._ready, self._rest, self._rest_boundary = cut(self._rest + block, self._rest_boundary)
            if len(self._rest) > self._most and b"\n" not in self._rest:
                self._begin_cut()
        self._next = 0
        return True

    def _end_at_first_line(self) -> None:
        """Cut a record that does not end; continue after its first line."""
        boundary = self._rest_boundary
        behind = RecordBoundary(boundary.offset + self._rest.index(b"\n") + 1, boundary.line + 1)
        self._ready = Records([self._rest[: self._kept]], [boundary.line], [behind], len(self._rest))
        self._rest, self._rest_boundary, self._next = b"", behind, 0

    def _begin_cut(self) -> None:
        self._passed = len(self._rest) - self._kept
        self._rest = self._rest[: self._kept]

    def _pass_over(self, block: bytes) -> None:
        end = block.find(b"\n")
        if end < 0:
            self._ready = _NONE
            self._passed += len(block)
        else:
            self._end_cut(self._passed + end, line_end=1)

    def _end_cut(self, passed: int, *, line_end: int) -> None:
        """End the record that is cut, `passed` bytes after its kept beginning."""
        boundary, size = self._rest_boundary, len(self._rest) + passed
        behind = RecordBoundary(boundary.offset + size + line_end, boundary.line + line_end)
        self._ready = Records([self._rest], [boundary.line], [behind], size)
        self._rest, self._rest_boundary, self._passed = b"", behind, 0


def whole(rest: bytes, boundary: RecordBoundary) -> tuple[Records, RecordBoundary]:
    """Return the last record of a file without a line end, and the boundary after it."""
    body = rest.removesuffix(b"\r")
    behind = RecordBoundary(boundary.offset + len(rest), boundary.line + rest.count(b"\n"))
    return (Records([body], [boundary.line], [behind]) if body else _NONE), behind


def cut_plain(data: bytes, boundary: RecordBoundary) -> tuple[Records, bytes, RecordBoundary]:
    """Return each line as a record; the rest without a line end; the boundary before the rest."""
    lines = data.split(b"\n")
    rest = lines.pop()
    return _records(lines, data, boundary, rest)


def cut_quoted(data: bytes, boundary: RecordBoundary) -> tuple[Records, bytes, RecordBoundary]:
    """Do the same as `cut_plain`, but a line end within quotes belongs to the record."""
    if b'"' not in data:
        return cut_plain(data, boundary)
    lines = data.split(b"\n")
    lines.pop()
    raw: list[bytes] = []
    begun: list[bytes] = []
    for line in lines:
        begun.append(line)
        if not ends_within_quotes(line, within=len(begun) > 1):
            raw.append(b"\n".join(begun))
            begun.clear()
    cut = sum(map(len, raw)) + len(raw)
    return _records(raw, data, boundary, data[cut:])


def ends_within_quotes(line: bytes, *, within: bool) -> bool:
    """Return whether a quoted field is open at the end of the line; `within`: whether one was open at its beginning."""
    at = 0
    while True:
        if not within:
            opening = _NEXT_QUOTED.search(line, at)
            if opening is None:
                return False
            at = opening.end()
        closing = _REST_OF_QUOTED.match(line, at)
        if closing is None or not closing.group(1):
            return True
        at = closing.end()
        within = False


def _records(
    raw: list[bytes], data: bytes, boundary: RecordBoundary, rest: bytes
) -> tuple[Records, bytes, RecordBoundary]:
    """Return the records of consecutive raw texts without line ends, beginning at `boundary`."""
    offsets = list(accumulate([len(record) + 1 for record in raw], initial=boundary.offset))
    if len(raw) == data.count(b"\n"):
        numbers = list(range(boundary.line, boundary.line + len(raw) + 1))
    else:
        numbers = list(accumulate([record.count(b"\n") + 1 for record in raw], initial=boundary.line))
    boundaries = list(map(_boundary, zip(offsets, numbers, strict=True)))
    bodies = [record.removesuffix(b"\r") for record in raw] if b"\r" in data else raw
    if b"" in bodies:
        kept = [at for at, body in enumerate(bodies) if body]
        records = Records([bodies[i] for i in kept], [numbers[i] for i in kept], [boundaries[i + 1] for i in kept])
    else:
        records = Records(bodies, numbers[:-1], boundaries[1:])
    return records, rest, boundaries[-1]
