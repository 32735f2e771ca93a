"""What a receiver remembers about the objects that it reads, in two files in the directory `state`.

`NAME.position` lists the objects that the receiver has begun; each acknowledgement replaces the file. `NAME.read` has a
line for each object that was read to its end and stays in the store, and a line without a tag for each of these that
has vanished since.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from connectors.progress import ReadProgress, Span
from connectors.records import RecordBoundary
from connectors.sidecars import read_whole
from correlator import durable
from correlator.errors import ConnectionLost

T = TypeVar("T")
MOST_READ = 1_000_000
"""Largest number of objects that a receiver remembers because they were read and stay in the store."""


class Begun(msgspec.Struct, frozen=True):
    """How far an object is acknowledged.

    Attributes:
        name, size, tag: name, size in bytes and tag of the object.
        offset, line: all records before this boundary are acknowledged.
        done: further acknowledged spans after this boundary: offset and line of their beginnings and ends.
        ended: whether the object has no records after these.
    """

    name: str
    size: int
    tag: str
    offset: int
    line: int
    done: list[tuple[int, int, int, int]]
    ended: bool

    @property
    def progress(self) -> ReadProgress[RecordBoundary]:
        """Return the progress in the object."""
        spans = [Span(RecordBoundary(a, b), RecordBoundary(c, d)) for a, b, c, d in self.done]
        return ReadProgress(RecordBoundary(self.offset, self.line), spans)


class _Position(msgspec.Struct):
    version: int
    begun: list[Begun]


_decoder = msgspec.json.Decoder(_Position)
_line = msgspec.json.Decoder(tuple[str, str | None])
_VERSION = 1


class PositionFiles:
    """The two files of one receiver. Raises `OSError`, and `ConnectionLost` E7017 if they are damaged, E7664.

    Attributes:
        read: the objects that were read to their ends and stay in the store, with their tags.
    """

    def __init__(self, where: str, position: Path, read: Path) -> None:
        self._where = where
        self._position = position
        self._read = read
        self.read: dict[str, str] = {}
        self._saved: bytes | None = None
        self._lines = 0  # number of lines of the file `NAME.read`

    def load(self) -> Sequence[Begun]:
        """Return the objects that were begun, in the order in which they are read."""
        self.read, self._saved = {}, None
        lines = self._whole_lines()
        self._lines = len(lines)
        for line in lines:
            name, tag = self._decoded(_line, line, self._read)
            if tag is None:
                self.read.pop(name, None)
            else:
                self.read[name] = tag
        content = read_whole(self._position)
        begun = [] if content is None else self._decoded(_decoder, content, self._position).begun
        return [one for one in begun if self.read.get(one.name) != one.tag]

    def save(self, begun: Sequence[Begun]) -> None:
        """Replace the position, unless it is the same; it is durable when this returns."""
        content = msgspec.json.encode(_Position(_VERSION, list(begun)))
        if content != self._saved:
            durable.replace(self._position, content)
            self._saved = content

    def add(self, name: str, tag: str) -> None:
        """Remember an object that was read to its end; durable when this returns."""
        if len(self.read) >= MOST_READ:
            what = f"{MOST_READ} objects were read and are still in the store"
            todo = "Set after: delete or after: move; or let the receiver read a folder with newer objects only"
            raise ConnectionLost("E7664", self._where, what, "A receiver remembers no more", todo)
        self._append([(name, tag)])
        self.read[name] = tag

    def forget(self, names: Collection[str]) -> None:
        """Forget objects that were read to their ends and have vanished; durable when this returns."""
        kept = {name: tag for name, tag in self.read.items() if name not in names}
        if self._lines + len(names) >= 2 * len(kept):
            durable.replace(self._read, _encoded(list(kept.items())))
            self._lines = len(kept)
        else:
            self._append([(name, None) for name in names])
        self.read = kept

    def _append(self, lines: Sequence[tuple[str, str | None]]) -> None:
        is_new = not self._read.exists()
        descriptor = os.open(self._read, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, durable.PRIVATE_FILE)
        try:
            durable.write_all(descriptor, _encoded(lines))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            durable.sync_directory(self._read.parent)
        self._lines += len(lines)

    def _whole_lines(self) -> Sequence[bytes]:
        """Return the lines. If the last one lacks its end, cut it off: its object still counts as begun."""
        content = read_whole(self._read) or b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._read, len(whole))
        return whole.splitlines()

    def _decoded(self, decoder: msgspec.json.Decoder[T], content: bytes, path: Path) -> T:
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            todo = "Restore it, or remove both files of the receiver to read all objects again"
            raise ConnectionLost("E7017", self._where, f"{path} is damaged: {error}", "", todo) from error


def _encoded(lines: Sequence[tuple[str, str | None]]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
