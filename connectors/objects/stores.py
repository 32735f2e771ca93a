"""What sources and sinks require of a place with objects: a folder of this machine, or a bucket of an S3 store.

The names of objects are paths below the place of the connection, with `/`.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from correlator.errors import ConnectionLost, quoted
from correlator.options import is_name
from correlator.processes import LockFile

LONGEST_NUMBER = 20
"""Digits of a number in the name of an object: names sort in the order of the numbers."""
ONCE = "once-"
"""Begins the name of the folder of a source that never comes back. Other sources begin with a digest."""


class Found(NamedTuple):
    """An object of a listing.

    Attributes:
        name: its path.
        size: in bytes.
        tag: differs if the object was replaced.
        modified: when it was made or changed, in seconds since the epoch.
    """

    name: str
    size: int
    tag: str
    modified: float


class Content(Protocol):
    """An object that is being read. One owner."""

    size: int

    def read(self, size: int, offset: int) -> bytes:
        """Read up to so many bytes; fewer at the end only. Raises `ConnectionLost` E7661 if the object has changed."""
        ...

    def close(self) -> None:
        """Let go of the object."""
        ...


class Store(Protocol):
    """A place with objects, for one source or sink. Each method raises `ConnectionLost`."""

    def connect(self, where: str) -> None:
        """Make sure that the place can be used; `where` names the receiver or sender from now on. Changes nothing."""
        ...

    def close(self) -> None:
        """Let go of the place. Never raises."""
        ...

    def found(self, folder: str) -> Iterator[Found]:
        """All objects below a folder, except those that have a part of their path with `_` or `.` at its beginning."""
        ...

    def names(self, folder: str) -> Iterator[str]:
        """The names of all objects that lie directly in a folder; none if there is no such folder."""
        ...

    def newest(self, folder: str, ending: str) -> str | None:
        """The object with the highest number among those of a folder whose name is a number and the ending."""
        ...

    def check_creation(self, folder: str) -> None:
        """Raise `ConnectionLost` E7660 if `create` would replace an object. May make an object that is not shown."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Make an object, whole, unless there is one of this name; on disk then. Returns whether this call made it."""
        ...

    def open(self, found: Found) -> Content:
        """Open an object for reading. Raises `ConnectionLost` E7661 if it has changed, E7662 if it is gone."""
        ...

    def head(self, name: str) -> Found | None:
        """Look at one object; `None` if there is none."""
        ...

    def remove(self, found: Found, moved_to: str) -> None:
        """Remove an object, unless it is gone or has changed; keep it under the name `moved_to` unless that is ""."""
        ...

    def lock(self, folder: str, source: str) -> LockFile | None:
        """Let no other process write with a source; `None` if the place has no locks. Raises `ConnectionLost` E7012."""
        ...


class AsFile(io.RawIOBase):
    """A content as a file, for libraries that read files."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        """Read into the buffer as many bytes as it holds, or fewer."""
        block = self._content.read(len(buffer), self._at)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def is_shown(name: str, folder: str) -> bool:
    """Whether no part of the path below a folder begins with `_` or `.`; other programs hide their files so."""
    return not any(part.startswith(("_", ".")) for part in name.removeprefix(f"{folder}/").split("/"))


def check_name(where: str, name: str) -> str:
    """The name. Raises `ConnectionLost` E7665 if no message could carry it."""
    if not is_name(name):
        what = f"{quoted(name)} has a name that is too long, or has characters that no message can carry"
        raise ConnectionLost("E7665", where, what, "", "Give the object another name, or move it away")
    return name


def changed(where: str, name: str) -> ConnectionLost:
    """The error for an object that was replaced."""
    what = f"{quoted(name)} has changed since it was listed or read"
    todo = "Put the former object back; or move this one away, and give new content another name"
    return ConnectionLost("E7661", where, what, "An object never changes", todo)


def gone(where: str, name: str) -> ConnectionLost:
    """The error for an object that has vanished before it was read to its end."""
    what = f"{quoted(name)} has vanished before it was read to its end"
    todo = "Put it back; or put an empty object of this name in its place, to go on without the rest"
    return ConnectionLost("E7662", where, what, "An object stays until it was read", todo)
