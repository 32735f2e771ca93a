"""One output file and the sidecar that tells how much of it was confirmed.

A batch is appended and synced, then the sidecar is replaced: it holds the length of the file and the last sequence of
each source. What lies in the file beyond that length was never confirmed: it is cut off when the file is opened, since
the engine sends it again. So the file holds each message once, in order, wherever the process was killed.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from connectors.file.places import (
    Directory,
    Lock,
    close_quietly,
    read_whole,
    replace_durably,
    sync_directory,
    write_all,
)
from correlator.errors import ConnectionLost
from correlator.events import Outgoing


class _Written(msgspec.Struct):
    length: int
    sequences: dict[str, int]


class Journal:
    """An open output file. One owner at a time; raises `OSError` and `ConnectionLost`.

    A file that is there before the first message keeps its content. One that was moved away is begun anew.
    """

    def __init__(self, where: str, directory: Directory, name: str) -> None:
        self._where = where
        path = directory.file(name)
        self._sidecar = directory.sidecar("written", name)
        self._lock = Lock(directory.sidecar("written.lock", name), where)
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync_directory(path.parent)
            self._written = self._recover(path)
        except BaseException:
            self.close()
            raise

    def append(self, batch: Sequence[tuple[Outgoing, bytes]]) -> None:
        """Write the lines that were not written before; all of them are on disk when it returns."""
        sequences = dict(self._written.sequences)
        lines = []
        for out, line in batch:
            if out.source:
                if out.sequence <= sequences.get(out.source, 0):
                    continue
                sequences[out.source] = out.sequence
            lines.append(line)
        if lines:
            self._write(b"\n".join([*lines, b""]), sequences)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            close_quietly(self._descriptor)
        self._lock.release()

    def _write(self, content: bytes, sequences: dict[str, int]) -> None:
        write_all(self._descriptor, content)
        os.fdatasync(self._descriptor)
        self._save(_Written(self._written.length + len(content), sequences))

    def _save(self, written: _Written) -> None:
        replace_durably(self._sidecar, msgspec.json.encode(written))
        self._written = written

    def _recover(self, path: Path) -> _Written:
        """Bring file and sidecar together."""
        length = os.fstat(self._descriptor).st_size
        content = read_whole(self._sidecar)
        if content is None:
            return self._adopt(length)
        try:
            written = msgspec.json.decode(content, type=_Written)
        except msgspec.MsgspecError as error:
            raise ConnectionLost("E7017", self._where, f"{self._sidecar} is damaged") from error
        if length == 0:
            written.length = 0
        if length < written.length:
            raise ConnectionLost(
                "E7011",
                self._where,
                f"{path} has {length} bytes, {written.length} were written to it",
                "A file may be moved away, but not cut",
                f"Put it back, or move it and remove {self._sidecar}",
            )
        if length > written.length:
            os.ftruncate(self._descriptor, written.length)
            os.fsync(self._descriptor)
        return written

    def _adopt(self, length: int) -> _Written:
        """Begin behind what others wrote, on a line of its own; recorded before the first message is appended."""
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            write_all(self._descriptor, b"\n")
            os.fdatasync(self._descriptor)
            length += 1
        written = _Written(length, {})
        replace_durably(self._sidecar, msgspec.json.encode(written))
        return written
