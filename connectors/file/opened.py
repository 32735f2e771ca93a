"""One open file of a receiver: reads its records, keeps track of acknowledgements, and makes the ids of its lines."""

import hashlib
import os
import stat
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from connectors.file.columns import ReadColumns, csv_columns, json_columns
from connectors.file.growing import GrowingFile
from connectors.file.paths import close_quietly
from connectors.file.position import Kept, PositionFile, extracts
from connectors.file.rotation import Identity
from connectors.progress import ReadProgress
from connectors.records import BYTE_ORDER_MARK, RecordBoundary, RecordReader, Records
from correlator.errors import ConnectionLost
from correlator.settings import ReceiverSettings

_TOLD_APART_BY_BYTES = 4096
_DIGEST_CHARACTERS = 8
_HISTORY_CHARACTERS = 16


class ReadOptions(NamedTuple):
    """How a receiver reads its files.

    Attributes:
        where: the receiver, for messages.
        name: name of the file in ids.
        receiver: the settings of the receiver.
        columns: the columns that its templates mention.
        follow: whether the file may grow.
    """

    where: str
    name: str
    receiver: ReceiverSettings
    columns: Sequence[str]
    follow: bool

    @property
    def is_csv(self) -> bool:
        """Return whether the file has a header, and quotes may contain line ends."""
        return self.name.endswith(".csv")


class OpenedFile:
    """An open file. The receiver's thread owns it. Methods raise `OSError` and `ConnectionLost`.

    Args:
        options: how to read it.
        path: the file.

    Attributes:
        history: a digest of the files that had the name before, "" for the first file; part of all ids.
        identity: device and inode, by which a renamed file is recognised.
        name: the name of the file when it was first opened.
        ended_at: size when a successor was found, which also ends a last line without a line end; 0 before.
        read_columns: reads the columns of a record; `None` if no template mentions any, or before there is a header.
    """

    def __init__(self, options: ReadOptions, path: Path) -> None:
        self.history = ""
        self.name = path.name
        self.ended_at = 0
        self.read_columns: ReadColumns | None = None
        self._options = options
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise ConnectionLost("E7003", options.where, f"{path} is not a regular file")
        self.identity = Identity.of(found)
        self._file = GrowingFile(options.where, self._descriptor)
        self._reader = RecordReader(self._file.read, quotes=options.is_csv, kept=options.receiver.max_message_bytes + 1)
        self._beginning = b""
        self._progress: ReadProgress[RecordBoundary] | None = None
        self._kept: Kept | None = None

    @property
    def size(self) -> int:
        """The present size of the file in bytes; another program may lengthen the file meanwhile."""
        return os.fstat(self._descriptor).st_size

    @property
    def is_removed(self) -> bool:
        """Return whether the file no longer has any name."""
        return os.fstat(self._descriptor).st_nlink == 0

    @property
    def held(self) -> int:
        """Number of returned messages that are not acknowledged."""
        return 0 if self._progress is None else self._progress.held

    @property
    def unread(self) -> int:
        """Number of bytes after the last record that was returned."""
        return max(0, self.size - (0 if self._progress is None else self._progress.next()[0].offset))

    @property
    def next_history(self) -> str:
        """The `history` of the next file, once this one is read to its end."""
        size = self.size
        end = os.pread(self._descriptor, _TOLD_APART_BY_BYTES, max(0, size - _TOLD_APART_BY_BYTES))
        content = b"\0".join((self.history.encode(), b"%d" % size, end))
        return hashlib.sha256(content).hexdigest()[:_HISTORY_CHARACTERS]

    def resume(self, positions: PositionFile, kept: Kept) -> bool:
        """Continue at the stored position. Raises `ConnectionLost` E7011 if this is another file.

        Return false if no record was acknowledged yet, so that the content does not show whether this is another file.
        """
        self.name, self.history, self.ended_at = kept.name or self.name, kept.history, kept.ended_at
        progress = positions.progress(kept, self._descriptor)
        beginning = self._begin()
        if beginning is None or progress.position < beginning:  # nothing was begun, because there was no header
            return False
        self._progress = progress
        return bool(progress.done) or beginning < progress.position

    def begin(self) -> bool:
        """Find the first record; return false while there is no header yet."""
        if self._progress is None and (beginning := self._begin()) is not None:
            self._progress = ReadProgress(beginning)
        return self._progress is not None

    def take(self, limit: int) -> tuple[Records, Sequence[int]] | None:
        """Return the next records, and their tokens; `None` if there are none yet."""
        if not self.begin():
            return None
        assert self._progress is not None
        begin, until = self._progress.next()
        self._reader.seek(begin)
        end = None if until is None else until.offset
        is_final = not self._options.follow or 0 < self.size <= self.ended_at
        records = self._reader.take(limit, self._options.receiver.max_batch_bytes, end, final=is_final)
        if not records.bodies:
            return None
        return records, self._progress.take(records.ends)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Acknowledge the records of these tokens; ignore tokens of other files."""
        if self._progress is not None and self._progress.held:
            self._progress.acknowledge(tokens)
            self._kept = None

    def reject(self, tokens: Sequence[int]) -> None:
        """Let the records of these tokens be read again."""
        if self._progress is not None:
            self._progress.reject(tokens)

    def kept(self) -> Kept:
        """The acknowledged position, for the sidecar.

        Raises `ConnectionLost` E7011 if the content has changed: the position would describe what was never read.
        """
        if self._kept is None or self._kept.ended_at != self.ended_at:
            progress = self._progress or ReadProgress(RecordBoundary(0, 1))
            self._kept = Kept(
                offset=progress.position.offset,
                line=progress.position.line,
                done=[(*span.start, *span.end) for span in progress.done],
                extracts=extracts(self._descriptor, progress),
                file=self.identity,
                name=self.name,
                history=self.history,
                ended_at=self.ended_at,
            )
            self._file.check()
        return self._kept

    def ids(self, records: Records) -> list[str]:
        """Return the id of each line: name of the file, line, and a digest that distinguishes files of
        the same name.
        """
        name = self._options.name
        if len(self._beginning) < _TOLD_APART_BY_BYTES:
            self._beginning = os.pread(self._descriptor, _TOLD_APART_BY_BYTES, 0)
        within = bisect_left(records.ends, _TOLD_APART_BY_BYTES, key=lambda end: end.offset)
        first = [
            f"{name}:{line}:{self._digest(end.offset)}"
            for line, end in zip(records.lines[:within], records.ends[:within], strict=True)
        ]
        digest = self._digest(_TOLD_APART_BY_BYTES)
        return first + [f"{name}:{line}:{digest}" for line in records.lines[within:]]

    def close(self) -> None:
        """Close the descriptor of the file; never raises. The acknowledged progress stays in the object."""
        if self._descriptor >= 0:
            close_quietly(self._descriptor)
            self._descriptor = -1

    def _begin(self) -> RecordBoundary | None:
        """Read the header; return where the first record begins, or `None` while there is no header."""
        options, reader = self._options, self._reader
        mark = os.pread(self._descriptor, len(BYTE_ORDER_MARK), 0)
        beginning = RecordBoundary(len(mark) if mark == BYTE_ORDER_MARK else 0, 1)
        reader.seek(beginning)
        if not options.is_csv:
            self.read_columns = json_columns(options.columns) if options.columns else None
            return beginning
        header = reader.take(1, 1, None, final=not options.follow)
        if not header.bodies:
            return None
        if header.cut_from is not None:
            what = f"the header has no end within {header.cut_from} bytes"
            raise ConnectionLost("E7014", options.where, what, "", "Look for a quote that is not closed")
        self.read_columns = csv_columns(options.where, header.bodies[0], options.columns) if options.columns else None
        return header.ends[0]

    def _digest(self, end: int) -> str:
        """Return a digest of the beginning of the file up to the end of a line, which is the same with
        and without line end.
        """
        content = self.history.encode() + self._beginning[:end].rstrip(b"\r\n")
        return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
