"""What a process did to the files below one directory, call by call, in the order in which it happened.

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
    """What a record tells. All but the last two are *writing calls*: those that count."""

    CREATE = 1
    """A file came into being."""
    WRITE = 2
    """`content` was written at `offset`."""
    TRUNCATE = 3
    """The file was cut, or lengthened by zeros, to `offset` bytes."""
    FSYNC = 4
    """Content and name of a file, or the names in a directory (path ""), are durable."""
    FDATASYNC = 5
    """The content of a file is durable."""
    RENAME = 6
    """The file has the name that `content` holds."""
    UNLINK = 7
    """The name is gone."""
    MARK = 8
    """A fact that the process stated itself."""
    STRUCK = 9
    """A fault struck; `offset` is the kind of the call. What of the call took place has a record of its own."""


WRITING = frozenset(CallKind) - {CallKind.MARK, CallKind.STRUCK}
"""The kinds that count as writing calls."""


class CallRecord(NamedTuple):
    """One call that succeeded, or a mark.

    Attributes:
        kind: what happened.
        path: of the file, relative to the watched directory; "" is the directory itself.
        offset: as the kind says, else 0.
        content: as the kind says, else empty.
    """

    kind: CallKind
    path: str
    offset: int
    content: bytes


class Trace:
    """The records of a trace file, in order; iterable as often as wanted.

    Args:
        path: the file; it may still grow, then an iteration ends where it is.
        ends_anywhere: whether its writer may have been killed from outside while it wrote: then the last record, of
            which a part is missing, is left out.

    Raises:
        UsageError: E2403 while iterating, the file is no trace, or ends within a record.
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
                    raise self._damaged("holds something that is no record")
                path, content = file.read(path_size), file.read(size)
                if len(path) + len(content) < path_size + size:
                    self._end()
                    return
                yield CallRecord(CallKind(kind), path.decode(errors="surrogateescape"), offset, content)

    def _end(self) -> None:
        """It ends within a record."""
        if not self._ends_anywhere:
            raise self._damaged("ends within a record")

    def _damaged(self, what: str) -> UsageError:
        return UsageError("E2403", str(self.path), what, "A trace is written by the library of correlator.testing")


def encoded(record: CallRecord) -> bytes:
    """A record as it stands in a trace file, for traces made by hand."""
    path = record.path.encode(errors="surrogateescape")
    return _HEADER.pack(record.kind, len(path), record.offset, len(record.content)) + path + record.content
