"""Reads the trace: what a process did to the files below one directory, call by call, in order.

The file is a sequence of records as `syscalls.c` writes them: kind, length of the path, offset, size, path, content.
"""

import enum
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from correlator.errors import UsageError

_HEADER = struct.Struct("=IIqQ")
_LONGEST_PATH = 4096


class CallKind(enum.IntEnum):
    """The kind of a record. All kinds but the last two are *writing calls*."""

    CREATE = 1
    """A file was made."""
    WRITE = 2
    """`content` was written at `offset`."""
    TRUNCATE = 3
    """The file was cut to `offset` bytes, or lengthened to them by zeros."""
    FSYNC = 4
    """Content and name of a file are durable, or, with path "", the names in the directory."""
    FDATASYNC = 5
    """The content of a file is durable."""
    RENAME = 6
    """The file has the new name that `content` holds."""
    UNLINK = 7
    """The name was removed."""
    MARK = 8
    """A fact that the process itself has put into the trace by `library.mark`."""
    STRUCK = 9
    """A fault struck; `offset` is the kind of the call. The part of the call that took place has a record of its own.
    """


WRITING = frozenset(CallKind) - {CallKind.MARK, CallKind.STRUCK}
"""The kinds of writing calls."""


class CallRecord(NamedTuple):
    """One call that succeeded, a mark, or a struck call.

    Attributes:
        kind: what happened.
        path: the file, relative to the watched directory; "" is the directory itself.
        offset: depends on the kind; 0 if the kind has none.
        content: depends on the kind; empty if the kind has none.
    """

    kind: CallKind
    path: str
    offset: int
    content: bytes


class Trace:
    """The records of a trace file, in order. It can be iterated several times.

    Args:
        path: the file. If it is still growing, an iteration ends at the present end.
        ends_anywhere: whether the writer may have been killed in the middle of a record. If so, an incomplete last
            record is left out.

    Raises:
        UsageError: E2403 during the iteration, the file is not a trace, or ends within a record.
    """

    def __init__(self, path: Path, *, ends_anywhere: bool = False) -> None:
        self.path = path
        self._ends_anywhere = ends_anywhere

    def __iter__(self) -> Iterator[CallRecord]:
        with self.path.open("rb") as file:
            while header := file.read(_HEADER.size):
                if len(header) < _HEADER.size:
                    self._end()
                    return
                kind, path_size, offset, size = _HEADER.unpack(header)
                if kind not in iter(CallKind) or path_size > _LONGEST_PATH:
                    raise self._damaged("contains something that is not a record")
                path, content = file.read(path_size), file.read(size)
                if len(path) + len(content) < path_size + size:
                    self._end()
                    return
                yield CallRecord(CallKind(kind), path.decode(errors="surrogateescape"), offset, content)

    def _end(self) -> None:
        """Raise the error of a file that ends within a record, unless it may end anywhere."""
        if not self._ends_anywhere:
            raise self._damaged("ends within a record")

    def _damaged(self, what: str) -> UsageError:
        return UsageError("E2403", str(self.path), what, "A trace is written by the library of correlator.testing")


def encoded(record: CallRecord) -> bytes:
    """Return a record in the format of a trace file, for traces made by hand."""
    path = record.path.encode(errors="surrogateescape")
    return _HEADER.pack(record.kind, len(path), record.offset, len(record.content)) + path + record.content
