"""What sources and sinks require of a place with objects: a folder on this machine, or a bucket of an S3 store.

The names of objects are paths below the place of the connection, with `/`.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from correlator.errors import ConnectionLost, quoted
from correlator.options import is_name
from correlator.processes import LockFile

LONGEST_NUMBER = 20
"""Number of digits of a number in the name of an object, so that names sort in the order of the numbers."""
ONCE = "once-"
"""Begins the name of the folder of a source that never comes back. Names for other sources begin with a digest."""


class Found(NamedTuple):
    """An object of a listing.

    Attributes:
        name: path of the object.
        size: size in bytes.
        tag: differs if the object was replaced.
        modified: time of its creation or last change, in seconds since the epoch.
    """

    name: str
    size: int
    tag: str
    modified: float


class Content(Protocol):
    """An object that is being read. It has one owner."""

    size: int

    def read(self, size: int, offset: int) -> bytes:
        """Read at most `size` bytes; fewer only at the end. Raises `ConnectionLost` E7661 if the object has changed."""
        ...

    def close(self) -> None:
        """Close the object; no more reads are allowed. Never raises."""
        ...


class Store(Protocol):
    """A place with objects, for one source or sink. Each method raises `ConnectionLost`."""

    def connect(self, where: str) -> None:
        """Check that the place can be used; from now on `where` names the receiver or sender in errors.
        Changes nothing.
        """
        ...

    def close(self) -> None:
        """Close all connections to the place. Never raises."""
        ...

    def found(self, folder: str) -> Iterator[Found]:
        """Yield all objects below a folder, except those with a part of their path that begins with `_` or `.`."""
        ...

    def names(self, folder: str) -> Iterator[str]:
        """Return the names of all objects directly in a folder; none if there is no such folder."""
        ...

    def newest(self, folder: str, ending: str) -> str | None:
        """Return the object with the highest number in a folder, of those whose name consists of a
        number and the ending.
        """
        ...

    def check_creation(self, folder: str) -> None:
        """Raise `ConnectionLost` E7660 if `create` would replace an object. May make an object that
        `found` does not show.
        """
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Make a whole object unless the name exists; it is on disk when this returns. Returns whether
        this call made it.
        """
        ...

    def open(self, found: Found) -> Content:
        """Open an object for reading. Raises `ConnectionLost` E7661 if it has changed, E7662 if it is gone."""
        ...

    def head(self, name: str) -> Found | None:
        """Return the object of this name; `None` if there is none."""
        ...

    def remove(self, found: Found, moved_to: str) -> None:
        """Remove an object, unless it is gone or has changed; if `moved_to` is not "", keep it under that name."""
        ...

    def lock(self, folder: str, source: str) -> LockFile | None:
        """Exclude other processes from writing with a source; `None` if the place has no locks. Raises
        E7012 if one writes.
        """
        ...


class AsFile(io.RawIOBase):
    """Presents a content as a file, for libraries that read files."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the position in bytes from the beginning."""
        return self._at

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        """Read into the buffer as many bytes as it holds, or fewer at the end."""
        block = self._content.read(len(buffer), self._at)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def is_shown(name: str, folder: str) -> bool:
    """Return whether no part of the path below a folder begins with `_` or `.`; such names mark hidden files."""
    return not any(part.startswith(("_", ".")) for part in name.removeprefix(f"{folder}/").split("/"))


def check_name(where: str, name: str) -> str:
    """Return the name. Raises `ConnectionLost` E7665 if no message could carry it."""
    if not is_name(name):
        what = f"{quoted(name)} is too long for a message, or has characters that no message can carry"
        raise ConnectionLost("E7665", where, what, "", "Give the object another name, or move it away")
    return name


def changed(where: str, name: str) -> ConnectionLost:
    """Make the error for an object that was replaced."""
    what = f"{quoted(name)} has changed since it was listed or read"
    todo = "Restore the former object; or move this one away, and give new content another name"
    return ConnectionLost("E7661", where, what, "An object never changes", todo)


def gone(where: str, name: str) -> ConnectionLost:
    """Make the error for an object that vanished before it was read to its end."""
    what = f"{quoted(name)} has vanished before it was read to its end"
    todo = "Restore it; or make an empty object with this name, to continue without the rest"
    return ConnectionLost("E7662", where, what, "An object stays until it was read", todo)
