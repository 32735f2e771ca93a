"""The acknowledged position of a receiver in its files, kept in a sidecar that is replaced at each acknowledgement."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from connectors.file.paths import read_whole
from connectors.file.records import RecordBoundary
from connectors.file.rotation import Identity
from connectors.progress import ReadProgress, Span
from correlator import durable
from correlator.errors import ConnectionLost

_COMPARED_BYTES = 4096


class Extract(msgspec.Struct, frozen=True):
    """Bytes of the file before the position, by which it is known again."""

    offset: int
    length: int
    sha256: str


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one file is read.

    Attributes:
        offset, line: everything before is acknowledged.
        done: what is acknowledged beyond.
        extracts: by which the content is known again.
        file: by which the file is known again when it is renamed; versions without `follow` by rename wrote none.
        name: that it had when it was first opened; earlier versions wrote none.
        history: a digest of the files that had the name before, "" for the first.
        ended_at: bytes that it had when the next one was begun; 0 for the newest one.
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


class PositionFile:
    """The sidecar of one receiver and one name."""

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where

    def load(self) -> list[Kept]:
        """The files, the oldest first; none when nothing was acknowledged yet. Raises `ConnectionLost` E7011."""
        content = read_whole(self._path)
        if content is None:
            return []
        try:
            newest = msgspec.json.decode(content, type=_Position)
        except msgspec.MsgspecError as error:
            raise self.refused("its position file is damaged") from error
        return [*newest.earlier, newest]

    def save(self, files: Sequence[Kept]) -> None:
        """Keep the positions: durable when it returns."""
        *earlier, newest = files
        durable.replace(self._path, msgspec.json.encode(_Position(**msgspec.structs.asdict(newest), earlier=earlier)))

    def progress(self, kept: Kept, descriptor: int) -> ReadProgress[RecordBoundary]:
        """Where to go on in the open file. Raises `ConnectionLost` E7011 when it is not the one that was read."""
        if not is_same(kept, descriptor):
            raise self.refused(f"the content before line {kept.line} is not what was read before")
        return ReadProgress(
            RecordBoundary(kept.offset, kept.line),
            [Span(RecordBoundary(a, b), RecordBoundary(c, d)) for a, b, c, d in kept.done],
        )

    def refused(self, what: str) -> ConnectionLost:
        """The file is not the one that was read before, or is no more."""
        return ConnectionLost(
            "E7011",
            self._where,
            what,
            "A file may only grow, or be renamed and followed by a new one",
            f"Put it back, give the new file another name, or remove {self._path} to read it from its beginning",
        )


def is_same(kept: Kept, descriptor: int) -> bool:
    """Whether an open file is the one of a position, by its content."""
    return all(extract(descriptor, one.offset, one.length) == one for one in kept.extracts)


def extracts(descriptor: int, progress: ReadProgress[RecordBoundary]) -> list[Extract]:
    """Of the beginning, and before the last place that is acknowledged."""
    read_through = progress.done[-1].end.offset if progress.done else progress.position.offset
    length = min(_COMPARED_BYTES, read_through)
    return [extract(descriptor, offset, length) for offset in sorted({0, read_through - length})]


def extract(descriptor: int, offset: int, length: int) -> Extract:
    """Of these bytes."""
    return Extract(offset, length, hashlib.sha256(os.pread(descriptor, length, offset)).hexdigest())
