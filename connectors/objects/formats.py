"""The formats of objects: how messages become the content of an object, and how an object is read.

The ending of a destination names the format: `.jsonl`, `.jsonl.gz` (compressed), or `.parquet`.
"""

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.json_lines import one_line
from connectors.objects.stores import AsFile, Content
from connectors.records import BYTE_ORDER_MARK, RecordBoundary, RecordReader, Records
from connectors.table_columns import columns_from
from connectors.table_rows import RowMaker
from correlator.errors import ConnectionLost, quoted
from correlator.events import Outgoing
from correlator.options import check_options

LINES, PACKED_LINES, PARQUET = ".jsonl", ".jsonl.gz", ".parquet"
ENDINGS = (LINES, PACKED_LINES, PARQUET)
_BLOCK_BYTES = 1024 * 1024
_ROWS, _BYTES_OF_ROWS = 1024, 16 * 1024 * 1024
_BROKEN = (EOFError, zlib.error, pa.ArrowException, OSError, OverflowError, ValueError)


class ReadLimits(NamedTuple):
    """Limits of what a receiver reads.

    Attributes:
        kept: number of bytes to which a longer record is cut.
        batch_bytes: number of bytes after which one call returns no further records.
    """

    kept: int
    batch_bytes: int


class Reader(Protocol):
    """Reads the records of an object. Raises `ConnectionLost`, E7663 if the object is broken."""

    begin: RecordBoundary

    def take(self, begin: RecordBoundary, limit: int, until: int | None) -> Records:
        """Return the records from a boundary on; none at the end of the object.

        Args:
            begin: where to begin.
            limit: largest number of records.
            until: offset at which the last record must have ended; `None` for no limit.
        """
        ...


class LineReader:
    """Reads JSON lines. The offset of a boundary counts bytes, before compression."""

    def __init__(self, where: str, name: str, content: Content, limits: ReadLimits) -> None:
        self._where, self._name, self._limits = where, name, limits
        read = _Unpacked(content).read if name.endswith(PACKED_LINES) else content.read
        self._records = RecordReader(read, quotes=False, kept=limits.kept)
        with _broken(where, name):
            mark = read(len(BYTE_ORDER_MARK), 0)
        self.begin = RecordBoundary(len(mark) if mark == BYTE_ORDER_MARK else 0, 1)

    def take(self, begin: RecordBoundary, limit: int, until: int | None) -> Records:
        """Return the next lines; see `Reader`."""
        with _broken(self._where, self._name):
            self._records.seek(begin)
            return self._records.take(limit, self._limits.batch_bytes, until, final=True)


class _Unpacked:
    """The content of a compressed object. Going back begins to decompress from the start."""

    def __init__(self, content: Content) -> None:
        self._file = gzip.GzipFile(fileobj=io.BufferedReader(AsFile(content), _BLOCK_BYTES), mode="rb")

    def read(self, size: int, offset: int) -> bytes:
        if self._file.tell() != offset:
            self._file.seek(offset)
        return self._file.read(size)


class RowReader:
    """Reads Parquet: each row becomes a JSON object. The offset of a boundary counts rows."""

    begin = RecordBoundary(0, 1)

    def __init__(self, where: str, name: str, content: Content, limits: ReadLimits) -> None:
        self._where, self._name, self._limits = where, name, limits
        with _broken(where, name):
            self._file = pq.ParquetFile(AsFile(content), buffer_size=_BLOCK_BYTES)
        self._at = 0
        self._ready: Sequence[bytes] = ()
        self._batches = self._from(0)

    def take(self, begin: RecordBoundary, limit: int, until: int | None) -> Records:
        """Return the next rows; see `Reader`."""
        with _broken(self._where, self._name):
            if begin.offset != self._at:
                self._at, self._ready, self._batches = begin.offset, (), self._from(begin.offset)
            while not self._ready:
                batch = next(self._batches, None)
                if batch is None:
                    return Records((), (), ())
                self._ready = batch
        stop, size = 0, 0
        most = limit if until is None else min(limit, until - begin.offset)
        while stop < min(most, len(self._ready)) and (not stop or size < self._limits.batch_bytes):
            size += len(self._ready[stop])
            stop += 1
        taken, self._ready = self._ready[:stop], self._ready[stop:]
        rows = range(begin.offset + 1, begin.offset + len(taken) + 1)
        self._at = begin.offset + len(taken)
        return Records(taken, list(rows), [RecordBoundary(row, row + 1) for row in rows])

    def _from(self, row: int) -> Iterator[Sequence[bytes]]:
        """Yield the rows from this one on, encoded, group by group."""
        first = 0
        for group in range(self._file.num_row_groups):
            described = self._file.metadata.row_group(group)
            if first + described.num_rows > row:
                average = described.total_byte_size // max(1, described.num_rows)
                size = max(1, min(_ROWS, _BYTES_OF_ROWS // max(1, average)))
                at = first
                for batch in self._file.iter_batches(batch_size=size, row_groups=[group]):
                    skipped = max(0, row - at)
                    if skipped < batch.num_rows:
                        yield _encoded(batch.slice(skipped))
                    at += batch.num_rows
            first += described.num_rows


def _encoded(batch: Any) -> Sequence[bytes]:
    """Encode rows as JSON objects. Times with nanoseconds are cut to microseconds, which is Python's resolution."""
    columns = []
    for column in batch.columns:
        is_fine = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        columns.append(column.cast(pa.timestamp("us", column.type.tz), safe=False) if is_fine else column)
    plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    try:
        return [msgspec.json.encode(row) for row in plain.to_pylist()]
    except TypeError as error:
        raise ValueError(f"a value cannot become JSON: {error}") from error


def reader(where: str, name: str, content: Content, limits: ReadLimits) -> Reader:
    """Make the reader for the format that the ending of the name shows."""
    return (RowReader if name.endswith(PARQUET) else LineReader)(where, name, content, limits)


class Writer(Protocol):
    """Makes the content of objects. It has no state, so equal messages give equal content in each life."""

    def row(self, out: Outgoing) -> Any:
        """Return the row of a message. Raises `ValueError` with the reason if the message does not fit."""
        ...

    def content(self, rows: Sequence[Any]) -> bytes:
        """Return the content of an object with these rows."""
        ...


class LineWriter:
    """Writes the body of each message as a line."""

    def __init__(self, *, packs: bool) -> None:
        self._packs = packs

    def row(self, out: Outgoing) -> bytes:
        """Return the body as a line. Raises `ValueError` unless the body is JSON."""
        try:
            return one_line(out.message.body)
        except ValueError as error:
            raise ValueError(f"the body is not JSON: {error}") from error

    def content(self, rows: Sequence[bytes]) -> bytes:
        """Return the lines one after another, compressed if the ending says so."""
        lines = b"\n".join([*rows, b""])
        return gzip.compress(lines, mtime=0) if self._packs else lines


class RowWriter:
    """Writes a row for each message."""

    def __init__(self, maker: RowMaker) -> None:
        self.row = maker.row
        self._maker = maker

    def content(self, rows: Sequence[Any]) -> bytes:
        """Return a file with these rows."""
        sink = pa.BufferOutputStream()
        pq.write_table(self._maker.table(rows), sink)
        content: bytes = sink.getvalue().to_pybytes()
        return content


def writer(where: str, ending: str, options: Mapping[str, Any]) -> Writer:
    """Make the writer of a sender from its options. Raises `ConfigError`."""
    if ending == PARQUET:
        return RowWriter(RowMaker(columns_from(where, options, has_times=True)))
    check_options(where, options, ("missing_up_to",))
    return LineWriter(packs=ending == PACKED_LINES)


def count_rows(where: str, name: str, content: Content) -> int:
    """Return the number of rows of an object that `Writer.content` has made. Raises `ConnectionLost`
    E7663 if it is broken.
    """
    with _broken(where, name):
        if name.endswith(PARQUET):
            return int(pq.ParquetFile(AsFile(content)).metadata.num_rows)
        read = _Unpacked(content).read if name.endswith(PACKED_LINES) else content.read
        lines, at = 0, 0
        while block := read(_BLOCK_BYTES, at):
            lines += block.count(b"\n")
            at += len(block)
        return lines


@contextmanager
def _broken(where: str, name: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        what = f"{quoted(name)} is broken: {error}"
        todo = "Replace it with a complete object, or remove it"
        raise ConnectionLost("E7663", where, what, "", todo) from error
