"""The source of the file connector: each record of a CSV or JSON lines file is a message."""

import hashlib
import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from connectors.file.columns import ReadColumns, csv_columns, json_columns, mentioned_columns
from connectors.file.places import Directory, Lock, close_quietly
from connectors.file.position import PositionFile
from connectors.file.records import BYTE_ORDER_MARK, Place, RecordReader, Records
from connectors.progress import Progress
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Headers, Message, PropertyValue
from correlator.ports import Chunk
from correlator.settings import ReceiverSettings

_LOOK_AGAIN_S = 0.05
_TOLD_APART_BY_BYTES = 4096
_DIGEST_CHARACTERS = 8


class FileSource:
    """Reads from the acknowledged position to the end of the file, or for ever when it follows the file.

    Properties of a message: `file` and `line`; `row.NAME` for columns that a template of the receiver mentions; and
    for the default templates `uniqueMessageId` (`file:line:digest`) and `messageSourceId` (`file`), by which a batch
    that is read again after a crash is recognised.

    The digest is of the file's first 4096 bytes, or of what there is up to the end of the line. So the lines of the
    same file have the same ids however often it is read and however it grows, and those of another file that takes its
    name have others, from the first line on that differs among those bytes. Files that begin alike for longer, and are
    not the same, need a template for ids of their own.

    A record that is too large to be kept, or of CSV that does not end, comes as its beginning, larger than
    `max_message_bytes`, and has the property `cut_from_bytes`: the engine makes a dead letter E5001 of it.
    """

    def __init__(
        self, where: str, directory: Directory, name: str, receiver: ReceiverSettings, *, follow: bool
    ) -> None:
        self._where = where
        self._directory = directory
        self._name = name
        self._receiver = receiver
        self._follow = follow
        self._csv = name.endswith(".csv")
        self._position = PositionFile(directory.sidecar("position", name, receiver.id), str(directory.path / name))
        templates = (receiver.unique_message_id, receiver.message_source_id)
        self._columns = mentioned_columns(*templates)
        self._wants_id = any("property.uniqueMessageId" in template for template in templates)
        self._wants_source = any("property.messageSourceId" in template for template in templates)
        self._lock: Lock | None = None
        self._descriptor = -1
        self._reader: RecordReader | None = None
        self._beginning = b""
        self._progress: Progress[Place] | None = None
        self._read_columns: ReadColumns | None = None

    def connect(self) -> None:
        """Open the file and go on at the acknowledged position. `ConnectionLost` while the file is missing."""
        self.close()
        with self._translated():
            path = self._directory.file(self._name)
            sidecar = self._directory.sidecar("position.lock", self._name, self._receiver.id)
            self._lock = Lock(sidecar, self._where)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            kept = self._receiver.max_message_bytes + 1
            self._reader = RecordReader(self._where, self._descriptor, quotes=self._csv, kept=kept)
            self._beginning = b""
            self._progress = self._begin(self._reader)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """The next records; the end is told once everything was given out, in a chunk without messages."""
        limit = min(max_messages, self._receiver.max_batch_size - (self._progress.held if self._progress else 0))
        deadline = time.monotonic() + timeout_s
        while True:
            chunk = self._take(limit) if limit > 0 else None
            if chunk is not None:
                return chunk
            if limit > 0 and not self._follow:
                return Chunk((), None, ended=True)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return Chunk((), None)
            time.sleep(min(_LOOK_AGAIN_S, remaining_s))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Move the position, durably. A token from before a reconnect acknowledges nothing."""
        self._check_connected()
        if self._progress is not None:
            with self._translated():
                self._progress.acknowledge(tokens)
                self._position.save(self._descriptor, self._progress)

    def reject(self, tokens: Sequence[Any]) -> None:
        """Read these records again."""
        self._check_connected()
        if self._progress is not None:
            self._progress.reject(tokens)

    def close(self) -> None:
        """Close the file; the position stays where it was acknowledged."""
        if self._descriptor >= 0:
            close_quietly(self._descriptor)
        if self._lock is not None:
            self._lock.release()
        self._descriptor = -1
        self._lock = self._reader = self._progress = self._read_columns = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What goes wrong closes the file and becomes `ConnectionLost`."""
        try:
            yield
        except FileNotFoundError as error:
            self.close()
            raise ConnectionLost(
                "E7010", self._where, f"no such file: {error.filename}", "", "It may appear later"
            ) from error
        except OSError as error:
            self.close()
            raise ConnectionLost("E7003", self._where, f"the file cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _check_connected(self) -> RecordReader:
        if self._reader is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._reader

    def _begin(self, reader: RecordReader) -> Progress[Place] | None:
        """Read the header and the position; nothing while there is no header yet."""
        mark = os.pread(self._descriptor, len(BYTE_ORDER_MARK), 0)
        beginning = Place(len(mark) if mark == BYTE_ORDER_MARK else 0, 1)
        reader.seek(beginning)
        if not self._csv:
            self._read_columns = json_columns(self._columns) if self._columns else None
            return self._position.load(self._descriptor, beginning)
        header = reader.take(1, 1, None, final=not self._follow)
        if not header.bodies:
            self._position.load(self._descriptor, beginning)  # refuses a file that has been emptied
            return None
        if header.cut_from is not None:
            what = f"the header has no end within {header.cut_from} bytes"
            raise ConnectionLost("E7014", self._where, what, "", "Look for a quote that is not closed")
        self._read_columns = csv_columns(self._where, header.bodies[0], self._columns) if self._columns else None
        return self._position.load(self._descriptor, header.ends[0])

    def _take(self, limit: int) -> Chunk | None:
        reader = self._check_connected()
        with self._translated():
            self._progress = progress = self._progress or self._begin(reader)
            if progress is None:
                return None
            place, until = progress.next()
            reader.seek(place)
            end = None if until is None else until.offset
            records = reader.take(limit, self._receiver.max_batch_bytes, end, final=not self._follow)
            if not records.bodies:
                return None
            token = progress.take(records.ends[-1], len(records.bodies))
            return Chunk(self._messages(records), token)

    def _messages(self, records: Records) -> list[Message]:
        messages = [
            Message(body, self._properties(body, line, unique), None, None, Headers(message_id=unique))
            for body, line, unique in zip(records.bodies, records.lines, self._ids(records), strict=True)
        ]
        if records.cut_from is not None:
            messages[0].properties[CUT_FROM] = records.cut_from
        return messages

    def _ids(self, records: Records) -> list[str]:
        name = self._name
        if len(self._beginning) < _TOLD_APART_BY_BYTES:
            self._beginning = os.pread(self._descriptor, _TOLD_APART_BY_BYTES, 0)
        within = bisect_left(records.ends, _TOLD_APART_BY_BYTES, key=lambda place: place.offset)
        first = [
            f"{name}:{line}:{self._digest(end.offset)}"
            for line, end in zip(records.lines[:within], records.ends[:within], strict=True)
        ]
        digest = self._digest(_TOLD_APART_BY_BYTES)
        return first + [f"{name}:{line}:{digest}" for line in records.lines[within:]]

    def _digest(self, end: int) -> str:
        """Of the file's beginning up to the end of a line, which is the same before and after it has its line end."""
        return hashlib.sha256(self._beginning[:end].rstrip(b"\r\n")).hexdigest()[:_DIGEST_CHARACTERS]

    def _properties(self, body: bytes, line: int, unique: str) -> dict[str, PropertyValue]:
        properties: dict[str, PropertyValue] = {"file": self._name, "line": line}
        if self._wants_id:
            properties["uniqueMessageId"] = unique
        if self._wants_source:
            properties["messageSourceId"] = self._name
        if self._read_columns is not None:
            properties.update(self._read_columns(body))
        return properties
