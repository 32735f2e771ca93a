"""The acknowledged position of a receiver in a file, kept in a sidecar that is replaced at each acknowledgement."""

import hashlib
import os
from pathlib import Path

import msgspec

from connectors.file.places import read_whole, replace_durably
from connectors.file.records import Place
from connectors.progress import Progress, Span
from correlator.errors import ConnectionLost

_COMPARED_BYTES = 4096


class _Extract(msgspec.Struct, frozen=True):
    """Bytes of the file before the position, by which it is known again."""

    offset: int
    length: int
    sha256: str


class _Position(msgspec.Struct, frozen=True):
    offset: int
    line: int
    done: list[tuple[int, int, int, int]]
    extracts: list[_Extract]


class PositionFile:
    """The sidecar of one receiver and one file."""

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where

    def load(self, descriptor: int, beginning: Place) -> Progress[Place]:
        """Where to go on in the open file: at `beginning` when there is no sidecar.

        Raises `ConnectionLost` when the file is not the one that was read before.
        """
        content = read_whole(self._path)
        if content is None:
            return Progress(beginning)
        try:
            kept = msgspec.json.decode(content, type=_Position)
        except msgspec.MsgspecError as error:
            raise self._refused("its position file is damaged") from error
        for extract in kept.extracts:
            if _extract(descriptor, extract.offset, extract.length) != extract:
                raise self._refused(f"the content before line {kept.line} is not what was read before")
        done = [Span(Place(a, b), Place(c, d)) for a, b, c, d in kept.done]
        return Progress(Place(kept.offset, kept.line), done)

    def save(self, descriptor: int, progress: Progress[Place]) -> None:
        """Keep the acknowledged position: durable when it returns."""
        read_through = progress.done[-1].end.offset if progress.done else progress.position.offset
        length = min(_COMPARED_BYTES, read_through)
        offsets = sorted({0, read_through - length})
        kept = _Position(
            offset=progress.position.offset,
            line=progress.position.line,
            done=[(*span.start, *span.end) for span in progress.done],
            extracts=[_extract(descriptor, offset, length) for offset in offsets],
        )
        replace_durably(self._path, msgspec.json.encode(kept))

    def _refused(self, what: str) -> ConnectionLost:
        return ConnectionLost(
            "E7011",
            self._where,
            what,
            "A file may only grow",
            f"Put it back, give the new file another name, or remove {self._path} to read it from its beginning",
        )


def _extract(descriptor: int, offset: int, length: int) -> _Extract:
    return _Extract(offset, length, hashlib.sha256(os.pread(descriptor, length, offset)).hexdigest())
