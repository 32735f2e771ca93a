"""The file of an input log: records one after the other, each with its length and a CRC-32.

The log is for diagnosis. It has a thread of its own, which writes records and never syncs them. If a write to the disk
fails, the thread logs an error and writes no further records; the engine goes on. If the process is killed, the records
that wait for this thread are lost; but a checkpoint is committed only after the file has the record of its cut. A
record that was cut short ends the log.
"""

import contextlib
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from correlator import durable
from correlator.core.tape import Batch, Forgotten, Record, Start
from correlator.errors import RecoveryRefused, UsageError
from correlator.processes import keep
from correlator.runtime.actor import Actor
from correlator.runtime.logs import get_logger

_NAME = b"correlator input log "
_FORMAT = 2
MAGIC = b"%s%d\n" % (_NAME, _FORMAT)
MOST_WAITING = 100
"""How many records may wait for the disk before contexts pause."""
LOOK_FOR_STOP_S = 0.2
_FRAME = struct.Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Record)


class InputLog(Actor):
    """Writes the log of one life. Any thread may call `append` and read `full`.

    Args:
        path: prefix of the names of all logs of this engine. The log adds the first free number to it.

    Raises `UsageError` E2041 if no file can be made there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__("input-log")
        self.path, self._file = _create(path)
        self._waiting: deque[Record | threading.Event] = deque()
        self._written: dict[str, int] = {}
        self._broken = False
        self._log = get_logger(input_log=str(self.path))

    @property
    def full(self) -> bool:
        """Whether `MOST_WAITING` or more records wait for the disk: contexts pause while this is so."""
        return len(self._waiting) >= MOST_WAITING

    def append(self, record: Record) -> None:
        """Let the thread write a record after all earlier records; do nothing after a write has failed."""
        if not self._broken:
            self._waiting.append(record)
            self.wake()

    def flush(self) -> None:
        """Wait until the file has all earlier records, or until a write has failed or the thread is stopped.

        The records are then safe even if the process is killed, but not if the machine loses power: they are not
        synced.
        """
        reached = threading.Event()
        self._waiting.append(reached)
        self.wake()
        while not self.stopping and not reached.wait(LOOK_FOR_STOP_S):
            pass

    def step(self) -> float | None:
        """Write the records that wait."""
        while self._waiting:
            record = self._waiting.popleft()
            if isinstance(record, threading.Event):
                record.set()
            elif self._is_new(record) and not self._broken:
                self._write(record)
        return None

    def finish(self) -> None:
        """Write the records that wait, and close the file."""
        self.step()
        with contextlib.suppress(OSError):
            self._file.close()

    def _is_new(self, record: Record) -> bool:
        """Whether the log lacks this record: a batch that enters several contexts is written only once."""
        if isinstance(record, Start):
            for segment in record.receive_log:
                self._written[segment.receiver] = segment.first
        elif isinstance(record, Forgotten):
            self._written.pop(record.receiver, None)
        elif isinstance(record, Batch):
            if record.first <= self._written.get(record.receiver, 0):
                return False
            self._written[record.receiver] = record.first
        return True

    def _write(self, record: Record) -> None:
        content = _encode(record)
        try:
            durable.write_all(self._file.fileno(), _FRAME.pack(len(content), zlib.crc32(content)) + content)
        except OSError as error:
            self._broken = True
            self._log.error("E2043 the input log ends here: it cannot be written", error=error)


def read_log(path: Path) -> Iterator[Record]:
    """Yield the records of a log, in order; a record that was cut short by the end of the process ends the log.

    Raises `UsageError` E2041 if the file cannot be read, `RecoveryRefused` E4320 if it is not an input log, has another
    format, or is damaged.
    """
    try:
        with path.open("rb") as file:
            _check_format(path, file.readline(len(MAGIC)))
            size = path.stat().st_size
            while (content := _next(path, file, size)) is not None:
                yield _decode(path, content)
    except OSError as error:
        raise _unusable(path, error) from error


def _check_format(path: Path, begin: bytes) -> None:
    if begin == MAGIC:
        return
    if not begin.startswith(_NAME):
        raise _damaged(path, "is not an input log")
    raise RecoveryRefused(
        "E4320",
        str(path),
        f"is of format {begin.removeprefix(_NAME).decode(errors='replace').strip()}",
        f"This version reads format {_FORMAT}",
        "Replay it with the version that wrote it",
    )


def _next(path: Path, file: BinaryIO, size: int) -> bytes | None:
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, crc = _FRAME.unpack(head)
    if file.tell() + length > size:
        return None
    content = file.read(length)
    if zlib.crc32(content) != crc:
        if file.tell() == size:
            return None
        raise _damaged(path, f"is damaged before byte {file.tell()}")
    return content


def _decode(path: Path, content: bytes) -> Record:
    try:
        record: Record = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise _damaged(path, f"holds a record that this version does not know: {error}") from error
    return record


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """Make a file whose name is the path with the first free number after it; only its owner may read the file."""
    number = 1
    try:
        while True:
            numbered = path.with_name(f"{path.name}.{number}")
            try:
                descriptor = durable.create_private(numbered)
                break
            except FileExistsError:
                number += 1
        file = os.fdopen(descriptor, "wb", buffering=0)
        keep(file)
        durable.write_all(file.fileno(), MAGIC)
    except OSError as error:
        raise _unusable(path, error) from error
    return numbered, file


def _unusable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "E2041", str(path), f"cannot be used: {error.strerror}", "", "Name another file for the input log"
    )


def _damaged(path: Path, what: str) -> RecoveryRefused:
    return RecoveryRefused("E4320", str(path), what, "An input log is written by an engine with 'input_log'")
