"""The acknowledged position of a receiver in its files. A sidecar holds it; each acknowledgement
replaces the sidecar.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from connectors.file.rotation import Identity
from connectors.progress import ReadProgress, Span
from connectors.records import RecordBoundary
from connectors.sidecars import read_whole
from correlator import durable
from correlator.errors import ConnectionLost

_COMPARED_BYTES = 4096


class Extract(msgspec.Struct, frozen=True):
    """A digest of bytes before the position; it shows whether a file is still the same."""

    offset: int
    length: int
    sha256: str


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The acknowledged position in one file.

    Attributes:
        offset, line: all records before this boundary are acknowledged.
        done: further acknowledged spans after this boundary: offset and line of their beginnings and ends.
        extracts: digests by which the content is recognised.
        file: device and inode, by which a renamed file is recognised; absent in sidecars of earlier versions.
        name: the name of the file when it was first opened; absent in sidecars of earlier versions.
        history: a digest of the files that had the name before, "" for the first file.
        ended_at: size of the file when the next one was begun; 0 for the newest file.
    """

    offset: int
    line: int
    done: list[tuple[int, int, int, int]]
    extracts: list[Extract]
    file: Identity | None = None
    name: str = ""
    history: str = ""
    ended_at: int = 0


class _Position(Kept, frozen=True, omit_defaults=True):
    earlier: list[Kept] = []


_decoder = msgspec.json.Decoder(_Position)


class PositionFile:
    """The sidecar with the position of one receiver in the files of one name."""

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where

    def load(self) -> list[Kept]:
        """Return the positions in all files, oldest file first; none before the first save. Raises
        `ConnectionLost` E7011.
        """
        content = read_whole(self._path)
        if content is None:
            return []
        try:
            newest = _decoder.decode(content)
        except msgspec.MsgspecError as error:
            raise self.refused("its position file is damaged") from error
        return [*newest.earlier, newest]

    def save(self, files: Sequence[Kept]) -> None:
        """Replace the sidecar; it is durable when this returns."""
        *earlier, newest = files
        durable.replace(self._path, msgspec.json.encode(_Position(**msgspec.structs.asdict(newest), earlier=earlier)))

    def progress(self, kept: Kept, descriptor: int) -> ReadProgress[RecordBoundary]:
        """Return the progress in an open file. Raises `ConnectionLost` E7011 if it is not the file that was read."""
        if not is_same(kept, descriptor):
            raise self.refused(f"the content before line {kept.line} differs from what was read")
        return ReadProgress(
            RecordBoundary(kept.offset, kept.line),
            [Span(RecordBoundary(a, b), RecordBoundary(c, d)) for a, b, c, d in kept.done],
        )

    def refused(self, what: str) -> ConnectionLost:
        """Make the error for a file that is not the one that was read before, or that is gone."""
        return ConnectionLost(
            "E7011",
            self._where,
            what,
            "A file may only grow, or be renamed and followed by a new one",
            f"Restore it, give the new file another name, or remove {self._path} to read it from its beginning",
        )


def is_same(kept: Kept, descriptor: int) -> bool:
    """Return whether an open file has the content that a position expects."""
    return all(extract(descriptor, one.offset, one.length) == one for one in kept.extracts)


def extracts(descriptor: int, progress: ReadProgress[RecordBoundary]) -> list[Extract]:
    """Return digests of the beginning of the file, and of the bytes before its last acknowledged record."""
    read_through = progress.done[-1].end.offset if progress.done else progress.position.offset
    length = min(_COMPARED_BYTES, read_through)
    return [extract(descriptor, offset, length) for offset in sorted({0, read_through - length})]


def extract(descriptor: int, offset: int, length: int) -> Extract:
    """Return the digest of these bytes."""
    return Extract(offset, length, hashlib.sha256(os.pread(descriptor, length, offset)).hexdigest())
