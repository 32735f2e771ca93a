"""The source of the file connector: each record of a CSV or JSON lines file is a message.

A receiver that follows its file continues with the next file of that name once the old file is read to its end and
completely acknowledged. The old file stays open until the next change of files, since a program may still write to it.
The source opens the next files as soon as it sees them, so that later renames do not matter.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from connectors.file.columns import mentioned_columns
from connectors.file.opened import OpenedFile, ReadOptions
from connectors.file.paths import Directory
from connectors.file.position import Kept, PositionFile
from connectors.file.rotation import find, following, identity_of, is_made_from
from connectors.ids import WantedIds
from connectors.records import Records
from connectors.sidecars import lock
from correlator.connector import NO_SUCH_DESTINATION, NOTHING, Backlog, Chunk
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, SOURCE_ID, UNIQUE_ID, Headers, Message, PropertyValue
from correlator.processes import LockFile, Maker
from correlator.settings import ReceiverSettings

MOST_SUCCESSORS = 16
"""Most files that are open before it is their turn; later files are found by their names when there is room again."""
_LOOK_AGAIN_S = 0.05


class FileSource:
    """Reads from the acknowledged position to the end of the file, or for ever if it follows the file.

    Properties of a message: `file` and `line`; `row.NAME` for columns that a template of the receiver mentions; for
    the default templates `uniqueMessageId` (`file:line:digest`) and `messageSourceId` (`file`). By these ids the engine
    recognises messages that are read again after a crash.

    The digest covers the first 4096 bytes of the file, but no further than the end of the line, and the files that had
    the name before. So the lines of a file have the same ids each time that they are read, even after the file has
    grown, and the lines of the next file of that name have other ids. There is one exception: if a file replaces
    another one while no position is stored, and both begin with the same 4096 bytes, their lines have the same ids.

    A record that is too large, or a CSV record without an end, is cut to its beginning, which is larger than
    `max_message_bytes`, and has the property `cut_from_bytes`: the engine makes a dead letter E5001 of it.
    """

    def __init__(
        self, where: str, directory: Directory, name: str, receiver: ReceiverSettings, *, follow: bool
    ) -> None:
        self._where = where
        self._directory = directory
        self._name = name
        self._receiver = receiver
        templates = (receiver.unique_message_id, receiver.message_source_id)
        self._options = ReadOptions(where, name, receiver, mentioned_columns(*templates), follow)
        self._position = PositionFile(
            directory.sidecar("position", name, receiver.subscription), str(directory.path / name)
        )
        self._wanted_ids = WantedIds.of(receiver)
        self._maker = Maker()
        self._lock: LockFile | None = None
        self._files: list[OpenedFile] = []
        self._successors: deque[OpenedFile] = deque()
        self._gap: ConnectionLost | None = None  # why it is unknown which file follows

    def connect(self) -> None:
        """Open the file and continue at the acknowledged position.

        Raises `ConnectionLost` while the file does not exist; `UsageError` E2050 in a forked child if its parent has
        the file open.
        """
        if self._lock is not None:
            self._maker.check(self._where)
        self.close()
        self._maker = Maker()
        with self._translated():
            sidecar = self._directory.sidecar("position.lock", self._name, self._receiver.subscription)
            self._lock = lock(sidecar, self._where)
            kept = self._position.load()
            for one in kept[:-1]:
                self._open_earlier(one)
            self._open_newest(kept[-1] if kept else None)
            if self._options.follow:
                self._save()

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the next records. A chunk without messages reports the end of the file, unless the
        source follows the file.
        """
        limit = min(max_messages, self._receiver.max_batch_size - sum(file.held for file in self._files))
        deadline = time.monotonic() + timeout_s
        while True:
            with self._translated():
                self._look()
                chunk = self._take(limit) if limit > 0 else None
            if chunk is not None:
                return chunk
            if limit > 0 and not self._options.follow:
                return Chunk((), (), ended=True)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return NOTHING
            time.sleep(min(_LOOK_AGAIN_S, remaining_s))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Move the position; it is on disk when this returns. A token from before a reconnect acknowledges nothing."""
        with self._translated():
            for file in self._connected():
                file.acknowledge(tokens)
            self._save()

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give these records back: the source reads them again before any new record. A token from before a reconnect
        does nothing.

        Raises `ConnectionLost` if the source is not connected.
        """
        for file in self._connected():
            file.reject(tokens)

    def backlog(self) -> Backlog:
        """Return the number of bytes that are not read yet, in all files that have or had the name."""
        with self._translated():
            return Backlog(size=sum(file.unread for file in (*self._connected(), *self._successors)))

    def close(self) -> None:
        """Close the files; the acknowledged position stays. Does nothing in a forked child."""
        if self._maker.is_another_process:
            return
        for file in (*self._files, *self._successors):
            file.close()
        self._files.clear()
        self._successors.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Close the files after any error; an `OSError` becomes `ConnectionLost`."""
        try:
            yield
        except FileNotFoundError as error:
            self.close()
            raise ConnectionLost(
                NO_SUCH_DESTINATION, self._where, f"no such file: {error.filename}", "", "It may appear later"
            ) from error
        except OSError as error:
            self.close()
            raise ConnectionLost("E7003", self._where, f"the file cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _connected(self) -> list[OpenedFile]:
        self._maker.check(self._where)
        if not self._files:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._files

    def _save(self) -> None:
        self._position.save([file.kept() for file in self._files])

    # --- which files ---

    def _open_earlier(self, kept: Kept) -> None:
        """Open a file that had the name before, since it may have grown. It was read to its end, and may be gone."""
        self._reopen(kept, self._directory.file(self._name))

    def _open_newest(self, kept: Kept | None) -> None:
        """Open the file that has the name, or a renamed file that had it when the position was stored."""
        path = self._directory.file(self._name)
        if kept is None:
            self._files.append(OpenedFile(self._options, path))
            self._files[-1].begin()
            return
        known = kept.file if self._options.follow else None
        if known is not None and not known.is_same_inode(identity_of(path)) and self._reopen(kept, path):
            return
        file = OpenedFile(self._options, path)
        self._files.append(file)
        is_certain = file.resume(self._position, kept)
        if not is_certain and known is not None and not known.is_same_inode(file.identity):
            what = "no line of the former file is acknowledged, and no name shows which file it is now"
            raise self._position.refused(what)

    def _reopen(self, kept: Kept, path: Path) -> bool:
        """Continue in a renamed file; return false if it is gone, or if another file may have got its inode."""
        renamed = find(path.parent, kept.file) if kept.file else None
        if renamed is None:
            return False
        file = OpenedFile(self._options, renamed)
        self._files.append(file)
        with suppress(ConnectionLost):
            is_certain = file.resume(self._position, kept)
            if is_certain or (renamed != path and is_made_from(renamed.name, kept.name or path.name)):
                return True
        self._files.pop().close()
        return False

    def _look(self) -> None:
        """Open the files that have got the name since the last look."""
        files = self._connected()
        if not self._options.follow:
            return
        self._gap = None
        try:
            while len(self._successors) < MOST_SUCCESSORS:
                file = self._successor(self._successors[-1] if self._successors else files[-1])
                if file is None:
                    return
                self._successors.append(file)
        except ConnectionLost as gap:
            self._gap = gap  # raised after all files before it are read

    def _successor(self, last: OpenedFile) -> OpenedFile | None:
        """Return the file that was written after `last`; `None` if there is none, or while names are changing."""
        there = identity_of(self._directory.path / self._name)
        if there == last.identity:
            return None
        if last.is_removed:
            raise self._position.refused("the file was removed while it was read, or replaced by another one")
        if there is None:
            return None
        path = self._directory.file(self._name)
        with suppress(FileNotFoundError), ExitStack() as undo:
            found = following(self._where, path, last.identity)
            file = OpenedFile(self._options, found)
            undo.callback(file.close)
            # If another file had been renamed before this one was opened, its new name would show now.
            is_sure = following(self._where, path, last.identity) == found and not last.is_removed
            if is_sure and file.identity != last.identity:
                undo.pop_all()
                return file
        return None

    def _go_on(self) -> bool:
        """If another file has got the name, end the newest file and begin that one; return whether
        there may be records.
        """
        if any(file.held for file in self._files):
            return False
        if not self._successors:
            if self._gap is not None:
                raise self._gap
            return False
        *earlier, newest = self._files
        if len(self._successors) == 1 and self._successors[0].size == 0:
            return False  # the writing program does not use it yet
        if newest.ended_at != newest.size:
            newest.ended_at = newest.size  # counts records since the last look, and a last line without a line end
            return True
        file = self._successors.popleft()
        file.history = newest.next_history
        for one in earlier:
            one.close()
        self._files = [newest, file]
        self._save()
        return True

    # --- messages ---

    def _take(self, limit: int) -> Chunk | None:
        while True:
            for file in self._files:
                taken = file.take(limit)
                if taken is not None:
                    records, tokens = taken
                    return Chunk(self._messages(file, records), tokens)
            if not self._go_on():
                return None

    def _messages(self, file: OpenedFile, records: Records) -> list[Message]:
        ids, name, wanted = file.ids(records), self._name, self._wanted_ids
        properties: list[dict[str, PropertyValue]] = [{"file": name, "line": line} for line in records.lines]
        if wanted.unique_id:
            for its, unique in zip(properties, ids, strict=True):
                its[UNIQUE_ID] = unique
        if wanted.source_id:
            for its in properties:
                its[SOURCE_ID] = name
        if file.read_columns is not None:
            file.read_columns(records.bodies, properties)
        if records.cut_from is not None:
            properties[0][CUT_FROM] = records.cut_from
        return [
            Message(body, its, None, None, Headers(message_id=unique))
            for body, its, unique in zip(records.bodies, properties, ids, strict=True)
        ]
