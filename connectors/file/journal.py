"""One output file, and a sidecar with its confirmed length.

A batch is appended and synced; then the sidecar is replaced. It contains the length of the file and the last sequence
of each source. Bytes of the file after that length were never confirmed. If a killed process wrote them, the engine
sends the same bytes again, in the same order. So the journal compares them with the first bytes that are sent, and
keeps equal ones: the file has each message once, in order, wherever the process was killed. Any other bytes come from
another program, and the journal never cuts them off.

If the file was rotated after a kill, the journal finds it in its directory by the inode, and first completes the batch
there. Otherwise messages of this batch would be in both files.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from connectors.file.paths import Directory, close_quietly
from connectors.file.rotation import Identity, find, identity_of, is_made_from
from connectors.sidecars import lock, read_whole
from correlator import durable
from correlator.errors import ConnectionLost, quoted
from correlator.events import Outgoing

MOST_LIVES = 10
"""Most sources of BEST_EFFORT senders that the sidecar keeps: such a sender has a new source in each life."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class _Written(msgspec.Struct):
    """The content of the sidecar.

    Attributes:
        length: confirmed length of the file in bytes.
        sequences: number of the last confirmed message, by source.
        lives: the same for sources of BEST_EFFORT senders.
        file: device and inode of the file; absent in sidecars of earlier versions.
    """

    length: int
    sequences: dict[str, int]
    lives: dict[str, int] = {}
    file: Identity | None = None


_decoder = msgspec.json.Decoder(_Written)


class WriteOptions(NamedTuple):
    """How output files are written.

    Attributes:
        mode: permissions of new files.
        sends_again: whether the sender sends unconfirmed messages again after a crash.
    """

    mode: int
    sends_again: bool


class Journal:
    """An open output file. It has one owner at a time. Methods raise `OSError` and `ConnectionLost`.

    A file that exists before the first message keeps its content. After a file was moved away, a new one is made.
    """

    def __init__(self, where: str, directory: Directory, name: str, options: WriteOptions) -> None:
        self._where = where
        self._path = self._opened = path = directory.file(name)
        self._options = options
        self._sidecar = directory.sidecar("written", name)
        self._lock = lock(directory.sidecar("written.lock", name), where)
        self._descriptor = -1
        self._unconfirmed = 0  # bytes after the confirmed ones whose writer is not known yet
        self._written = _Written(0, {})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            written = self._stored()
            self._begin(self._unfinished(written) or path, written)
        except BaseException:
            self.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Return whether the file still has its name. Otherwise it was moved away, and a new one is made."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def append(self, batch: Sequence[tuple[Outgoing, bytes]]) -> None:
        """Write the lines that are not in the file yet; all lines are on disk when this returns."""
        sequences = dict(self._written.sequences if self._options.sends_again else self._written.lives)
        lines = []
        for out, line in batch:
            if out.source:
                if out.sequence <= sequences.get(out.source, 0):
                    continue
                sequences.pop(out.source, None)  # so that the source that was used last is forgotten last
                sequences[out.source] = out.sequence
            lines.append(line)
        if lines:
            content = b"\n".join([*lines, b""])
            if self._opened != self._path and not self._is_ours(content):
                self._begin(self._path, self._written)  # the user has moved the file away because of such bytes
            self._write(content, sequences)

    def close(self) -> None:
        """Close the file and release its lock. Call it once, after the last `append`."""
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
        if self._options.sends_again:
            self._save(_Written(length, sequences, self._written.lives))
        else:
            self._save(_Written(length, self._written.sequences, dict(list(sequences.items())[-MOST_LIVES:])))

    def _without_unconfirmed(self, content: bytes) -> bytes:
        """Compare the content with the unconfirmed bytes of the file; return the part that the file
        does not have yet.
        """
        size = min(self._unconfirmed, len(content))
        if not content.startswith(self._beginning(size)):
            if self._is_ours(content):
                self._fill_holes(content[:size])
            elif self._options.sends_again:
                raise self._foreign()
            else:
                self._adopt_unconfirmed()
                return content
        self._unconfirmed -= size
        return content[size:]

    def _beginning(self, size: int) -> bytes:
        """Return this number of unconfirmed bytes."""
        return os.pread(self._descriptor, size, self._written.length)

    def _is_ours(self, content: bytes) -> bool:
        """Return whether the unconfirmed bytes may come from a write of this content."""
        there = self._beginning(min(self._unconfirmed, len(content)))
        return content.startswith(there) or all(found in (0, sent) for found, sent in zip(there, content, strict=False))

    def _fill_holes(self, content: bytes) -> None:
        """Overwrite zero bytes: after a power cut unconfirmed bytes may be zero, and no line contains such a byte."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_APPEND)  # with this flag, `pwrite` would append
        try:
            os.pwrite(self._descriptor, content, self._written.length)
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def _adopt_unconfirmed(self) -> None:
        """Keep unconfirmed bytes that nobody sends again, and continue after them, on a new line."""
        length = self._end_line(self._written.length + self._unconfirmed)
        self._unconfirmed = 0
        self._written = _Written(length, self._written.sequences, self._written.lives)

    def _end_line(self, length: int) -> int:
        """End the last line of the file if it lacks its end; return the length of the file."""
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            durable.write_all(self._descriptor, b"\n")
            os.fdatasync(self._descriptor)
            length += 1
        return length

    def _check_length(self, wanted: int) -> None:
        """Raise `ConnectionLost` E7029 if another program has changed the size of the file."""
        length = os.fstat(self._descriptor).st_size
        if length != wanted:
            what = f"{self._opened} has {length} bytes, {wanted} were written: another program has changed it"
            raise ConnectionLost("E7029", self._where, what, "Only one program at a time may write to a file")

    def _check_not_removed(self) -> None:
        """Raise `ConnectionLost` E7029 if the file was removed, since its content is lost then."""
        if os.fstat(self._descriptor).st_nlink == 0:
            what = f"{self._opened} was removed while it was being written; a new file is begun"
            raise ConnectionLost("E7029", self._where, what, "A file may be moved away, but not removed")

    def _foreign(self) -> ConnectionLost:
        begin = self._written.length
        found = os.pread(self._descriptor, 60, begin)
        return ConnectionLost(
            "E7029",
            self._where,
            f"bytes {begin} to {begin + self._unconfirmed} of {self._opened} were written by another program: "
            f"{quoted(found.decode(errors='replace'))}",
            "The sender cuts nothing off, and writes nothing after lines that may be half of an unconfirmed batch",
            "Move the file away; the sender then makes a new file of that name",
        )

    def _save(self, written: _Written) -> None:
        written.file = Identity.of(os.fstat(self._descriptor))
        durable.replace(self._sidecar, msgspec.json.encode(written))
        self._written = written

    def _stored(self) -> _Written | None:
        """Return the confirmed state; `None` if there is none yet. Raises `ConnectionLost` E7017 if it is damaged."""
        content = read_whole(self._sidecar)
        if content is None:
            return None
        try:
            return _decoder.decode(content)
        except msgspec.MsgspecError as error:
            raise ConnectionLost("E7017", self._where, f"{self._sidecar} is damaged") from error

    def _unfinished(self, written: _Written | None) -> Path | None:
        """Return the former file if it was rotated and has unconfirmed bytes, which the engine may send again."""
        if written is None or written.file is None or not self._options.sends_again:
            return None
        if written.file.is_same_inode(identity_of(self._path)):
            return None
        renamed = find(self._path.parent, written.file)
        if renamed is None or not is_made_from(renamed.name, self._path.name):  # another file may have got the inode
            return None
        return renamed if renamed.stat().st_size > written.length else None

    def _begin(self, path: Path, written: _Written | None) -> None:
        """Open a file in place of the present one, and compare it with the confirmed state."""
        is_new = path == self._path
        descriptor = _open(path, self._options.mode) if is_new else os.open(path, _FLAGS)
        if self._descriptor >= 0:
            close_quietly(self._descriptor)
        self._descriptor, self._opened = descriptor, path
        found = os.fstat(descriptor)
        identity, length = Identity.of(found), found.st_size
        if not is_new and written is not None and not identity.is_same_inode(written.file):
            raise FileNotFoundError(errno.ENOENT, "the file was renamed again", str(path))
        durable.sync_directory(path.parent)
        if written is None:
            self._adopt(length)
            return
        if length == 0 and (written.length or not identity.is_same_inode(written.file)):
            written.length = 0  # a new file: a batch in it, confirmed or not, begins at its beginning
            self._save(written)
        if length < written.length:
            raise ConnectionLost(
                "E7011",
                self._where,
                f"{path} has {length} bytes, {written.length} were written to it",
                "A file may be moved away, but not cut",
                f"Put it back, or move it and remove {self._sidecar}",
            )
        self._written = written
        self._unconfirmed = length - written.length

    def _adopt(self, length: int) -> None:
        """Begin after the present content, on a new line. The sidecar is written before the first message."""
        self._save(_Written(self._end_line(length), {}))


def _open(path: Path, mode: int) -> int:
    """Open the file; create it with exactly this mode if it does not exist."""
    with suppress(FileExistsError):
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, mode)
        os.fchmod(descriptor, mode)  # independent of the umask
        return descriptor
    return os.open(path, _FLAGS)
