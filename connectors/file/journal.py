"""One output file and the sidecar that tells how much of it was confirmed.

A batch is appended and synced, then the sidecar is replaced: it holds the length of the file and the last sequence of
each source. What lies in the file beyond that length was never confirmed. If it is of a process that was killed, the
engine sends it again, in the same order and with the same bytes: so it is compared with what is sent first, and stays
where it is the same. So the file holds each message once, in order, wherever the process was killed. What is not the
same was written by somebody else, and nothing of it is ever cut off.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from connectors.file.paths import (
    Directory,
    close_quietly,
    lock,
    read_whole,
)
from correlator import durable
from correlator.errors import ConnectionLost, quoted
from correlator.events import Outgoing

MOST_LIVES = 10
"""Sources of one life that are kept: a BEST_EFFORT sender has a new one in each life."""


class _Written(msgspec.Struct):
    length: int
    sequences: dict[str, int]
    lives: dict[str, int] = {}


class WriteOptions(NamedTuple):
    """How output files are written.

    Attributes:
        mode: permissions of a file that is made.
        sends_again: whether what was not confirmed is sent again after a crash.
    """

    mode: int
    sends_again: bool


class Journal:
    """An open output file. One owner at a time; raises `OSError` and `ConnectionLost`.

    A file that is there before the first message keeps its content. One that was moved away is begun anew.
    """

    def __init__(self, where: str, directory: Directory, name: str, manner: WriteOptions) -> None:
        self._where = where
        self._path = path = directory.file(name)
        self._manner = manner
        self._sidecar = directory.sidecar("written", name)
        self._lock = lock(directory.sidecar("written.lock", name), where)
        self._descriptor = -1
        self._unconfirmed = 0  # bytes behind those that were confirmed, until it is known whose they are
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _open(path, manner.mode)
            durable.sync_directory(path.parent)
            self._written = self._recover(path)
        except BaseException:
            self.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the file still has its name; one that was moved away is begun anew under that."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def append(self, batch: Sequence[tuple[Outgoing, bytes]]) -> None:
        """Write the lines that were not written before; all of them are on disk when it returns."""
        sequences = dict(self._written.sequences if self._manner.sends_again else self._written.lives)
        lines = []
        for out, line in batch:
            if out.source:
                if out.sequence <= sequences.get(out.source, 0):
                    continue
                sequences.pop(out.source, None)  # the last one used is the last to be forgotten
                sequences[out.source] = out.sequence
            lines.append(line)
        if lines:
            self._write(b"\n".join([*lines, b""]), sequences)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            close_quietly(self._descriptor)
        self._lock.close()

    def _write(self, content: bytes, sequences: dict[str, int]) -> None:
        self._check_length(self._written.length + self._unconfirmed)
        new = self._without_unconfirmed(content)
        length = self._written.length + len(content)
        if new:
            durable.write_all(self._descriptor, new)
            self._check_length(length + self._unconfirmed)
        os.fdatasync(self._descriptor)
        self._check_not_removed()
        if self._manner.sends_again:
            self._save(_Written(length, sequences, self._written.lives))
        else:
            self._save(_Written(length, self._written.sequences, dict(list(sequences.items())[-MOST_LIVES:])))

    def _without_unconfirmed(self, content: bytes) -> bytes:
        """The part of the content that is not in the file yet."""
        size = min(self._unconfirmed, len(content))
        there = os.pread(self._descriptor, size, self._written.length)
        if not content.startswith(there):
            if all(found in (0, sent) for found, sent in zip(there, content, strict=False)):
                self._fill_holes(content[:size])
            elif self._manner.sends_again:
                raise self._foreign()
            else:
                self._adopt_unconfirmed()
                return content
        self._unconfirmed -= size
        return content[size:]

    def _fill_holes(self, content: bytes) -> None:
        """After a power cut what was not confirmed may have holes: zero bytes, which no line has."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)  # one that does not always append
        try:
            os.pwrite(descriptor, content, self._written.length)
        finally:
            os.close(descriptor)

    def _adopt_unconfirmed(self) -> None:
        """Keep what nobody sends again, whoever wrote it, and go on behind it, on a line of its own."""
        length = self._end_line(self._written.length + self._unconfirmed)
        self._unconfirmed = 0
        self._written = _Written(length, self._written.sequences, self._written.lives)

    def _end_line(self, length: int) -> int:
        """The length of the file once its last line has its end."""
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            durable.write_all(self._descriptor, b"\n")
            os.fdatasync(self._descriptor)
            length += 1
        return length

    def _check_length(self, wanted: int) -> None:
        """Nobody else writes while this process does: what is confirmed must lie where it is thought to."""
        length = os.fstat(self._descriptor).st_size
        if length != wanted:
            what = f"{self._path} has {length} bytes, {wanted} were written to it: another program has changed it"
            raise ConnectionLost("E7029", self._where, what, "One program at a time writes to a file")

    def _check_not_removed(self) -> None:
        """What was written to a file without a name is lost."""
        if os.fstat(self._descriptor).st_nlink == 0:
            what = f"{self._path} was removed while it was being written; a new file is begun"
            raise ConnectionLost("E7029", self._where, what, "A file may be moved away, but not removed")

    def _foreign(self) -> ConnectionLost:
        begin = self._written.length
        found = os.pread(self._descriptor, 60, begin)
        return ConnectionLost(
            "E7029",
            self._where,
            f"bytes {begin} to {begin + self._unconfirmed} of {self._path} were written by another program: "
            f"{quoted(found.decode(errors='replace'))}",
            "Nothing is cut off, and nothing is written behind lines that may be half of a batch in doubt",
            "Move the file away: what is to be sent goes to a new file of that name",
        )

    def _save(self, written: _Written) -> None:
        durable.replace(self._sidecar, msgspec.json.encode(written))
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
        self._unconfirmed = length - written.length
        return written

    def _adopt(self, length: int) -> _Written:
        """Begin behind what others wrote, on a line of its own; recorded before the first message is appended."""
        length = self._end_line(length)
        written = _Written(length, {})
        durable.replace(self._sidecar, msgspec.json.encode(written))
        return written


def _open(path: Path, mode: int) -> int:
    """The file, made with just this mode if it is missing."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    with suppress(FileExistsError):
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
        os.fchmod(descriptor, mode)  # whatever the umask is
        return descriptor
    return os.open(path, flags)
