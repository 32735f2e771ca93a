"""The source of objects: each record of the objects below a folder is a message.

The source lists the folder from time to time. It reads the objects that it finds one after another, and remembers each
of them. So it also reads a new object whose name sorts before objects that it has read already.
"""

import heapq
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from connectors.ids import WantedIds
from connectors.objects.formats import ReadLimits
from connectors.objects.opened import OpenedObject, resumed
from connectors.objects.position import Begun, PositionFiles
from connectors.objects.stores import LONGEST_NUMBER, ONCE, Found, Store, changed
from connectors.records import Records
from connectors.sidecars import lock, sidecar
from correlator.connector import NOTHING, Backlog, Chunk
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, SOURCE_ID, UNIQUE_ID, Headers, Message, PropertyValue
from correlator.processes import LockFile, Maker
from correlator.settings import ReceiverSettings

MOST_WAITING = 10_000
"""Largest number of listed objects that wait for their turn; further objects are found in a later listing."""
MOVED = "_done"


class Reading(NamedTuple):
    """How a receiver reads objects.

    Attributes:
        folder: folder of the objects.
        ending: ending of their names.
        by_time: whether objects that were found together are read in the order of their creation, or else by name.
        after: what to do with an object that was read: `keep`, `delete` or `move`.
        poll_interval_s: seconds between two listings of the folder.
        state: directory for the position.
        names: names that distinguish the position of this receiver from others in the directory.
    """

    folder: str
    ending: str
    by_time: bool
    after: str
    poll_interval_s: float
    state: Path
    names: Sequence[str]


class ObjectsSource:
    """Reads the objects below a folder. It never ends.

    Properties of a message: `object` and `row`; for the default templates `uniqueMessageId` (`object:row:digest`) and
    `messageSourceId` (the destination). The digest distinguishes objects that have had the same name.

    A line that is too large is cut to its beginning, which is larger than `max_message_bytes`, and has the property
    `cut_from_bytes`: the engine makes a dead letter E5001 of it.
    """

    def __init__(self, receiver: ReceiverSettings, store: Store, reading: Reading) -> None:
        self._where = where = f"receivers.{receiver.id}"
        self._receiver = receiver
        self._store = store
        self._reading = reading
        self._limits = ReadLimits(receiver.max_message_bytes + 1, receiver.max_batch_bytes)
        self._lock_path = sidecar(reading.state, "position.lock", *reading.names)
        self._position = PositionFiles(
            where, sidecar(reading.state, "position", *reading.names), sidecar(reading.state, "read", *reading.names)
        )
        self._wanted_ids = WantedIds.of(receiver)
        self._maker = Maker()
        self._lock: LockFile | None = None
        self._begun: list[OpenedObject] = []
        self._waiting: deque[Found] = deque()
        self._newest: Mapping[str, str] = {}
        self._next_look = 0.0

    def connect(self) -> None:
        """List the objects, and continue at the acknowledged position. Raises `UsageError` E2050 in a forked child."""
        if self._lock is not None:
            self._maker.check(self._where)
        self.close()
        self._maker = Maker()
        with self._translated():
            self._store.connect(self._where)
            self._lock = lock(self._lock_path, self._where)
            self._look(self._position.load())

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the next records; see `connector.Source`."""
        self._check_connected()
        limit = min(max_messages, self._receiver.max_batch_size - sum(one.held for one in self._begun))
        deadline = time.monotonic() + timeout_s
        while True:
            if limit > 0:
                with self._translated():
                    if (chunk := self._take(limit)) is not None:
                        return chunk
                    if time.monotonic() >= self._next_look:
                        self._look([one.begun() for one in self._begun])
                        continue
            now = time.monotonic()
            if now >= deadline:
                return NOTHING
            until = min(deadline, self._next_look) if limit > 0 else deadline
            time.sleep(max(0.0, until - now))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Move the position; it is on disk when this returns. A token from before a reconnect acknowledges nothing."""
        self._check_connected()
        with self._translated():
            for one in self._begun:
                one.acknowledge(tokens)
            self._save()
            self._finish()

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give these records back: the source reads them again before any new record."""
        self._check_connected()
        for one in self._begun:
            one.reject(tokens)

    def backlog(self) -> Backlog | None:
        """Return the bytes of the objects that wait for their turn; `None` if there are more objects than are known."""
        self._check_connected()
        if len(self._waiting) >= MOST_WAITING:
            return None
        return Backlog(size=sum(found.size for found in self._waiting))

    def close(self) -> None:
        """Close the objects; the acknowledged position stays. Does nothing in a forked child."""
        if self._maker.is_another_process:
            return
        for one in self._begun:
            one.close()
        self._begun.clear()
        self._waiting.clear()
        self._store.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Close the source after any error; an `OSError` concerns the position."""
        try:
            yield
        except OSError as error:
            self.close()
            raise ConnectionLost("E7003", self._where, f"the position cannot be stored: {error}") from error
        except BaseException:
            self.close()
            raise

    def _check_connected(self) -> None:
        self._maker.check(self._where)
        if self._lock is None:
            raise ConnectionLost("E7003", self._where, "not connected")

    # --- which objects ---

    def _look(self, begun: Sequence[Begun]) -> None:
        """List the objects; `begun` are those that need not be found again."""
        known = {one.name: one for one in begun}
        there: dict[str, Found] = {}
        newest: dict[str, str] = {}
        vanished = set(self._position.read)
        opened = {one.found.name: one for one in self._begun}
        new = self._new(known, there, newest, vanished)
        self._waiting.extend(heapq.nsmallest(MOST_WAITING, new, key=self._order))
        resumed_now = [
            opened.get(one.name) or resumed(self._where, self._store, one, there.get(one.name), self._limits)
            for one in begun
            if not one.ended or one.name in there
        ]
        self._begun = [one for one in resumed_now if one is not None]
        self._newest = newest
        if vanished:
            self._save()  # it may still list them as begun
            self._position.forget(vanished)
        self._finish()
        has_all = len(self._waiting) < MOST_WAITING
        self._next_look = time.monotonic() + self._reading.poll_interval_s if has_all else 0.0

    def _new(
        self, known: Mapping[str, Begun], there: dict[str, Found], newest: dict[str, str], vanished: set[str]
    ) -> Iterator[Found]:
        """Yield the objects that were neither begun nor read.

        Fills `there` with those that were begun, and `newest`; removes what it finds from `vanished`.
        """
        ending = self._reading.ending
        for found in self._store.found(self._reading.folder):
            if not found.name.endswith(ending):
                continue
            vanished.discard(found.name)
            folder, _, stem = found.name.removesuffix(ending).rpartition("/")
            if len(stem) == LONGEST_NUMBER and stem.isdigit():
                newest[folder] = max(newest.get(folder, ""), found.name)
            one = known.get(found.name)
            if one is not None and not (one.ended and one.tag != found.tag):
                there[found.name] = found
                continue
            tag = self._position.read.get(found.name)
            if tag is None:
                yield found
            elif tag != found.tag:
                raise changed(self._where, found.name)

    def _order(self, found: Found) -> tuple[float, str]:
        return (found.modified if self._reading.by_time else 0.0), found.name

    def _finish(self) -> None:
        """Do what `after` says with objects that are done. A later life repeats it if the process dies meanwhile."""
        done = [one for one in self._begun if one.is_done]
        if self._reading.after != "keep":
            done = [one for one in done if self._may_go(one.found.name)]
            if done:
                self._save()
        for one in done:
            if self._reading.after == "keep":
                self._position.add(one.found.name, one.found.tag)
            else:
                self._store.remove(one.found, self._moved_to(one) if self._reading.after == "move" else "")
            one.close()
            self._begun.remove(one)

    def _may_go(self, name: str) -> bool:
        """Return false for the newest object of a sender that may come back: the sender needs it to
        know what the store has.
        """
        folder = name.rpartition("/")[0]
        return folder.rpartition("/")[2].startswith(ONCE) or name != self._newest.get(folder)

    def _moved_to(self, one: OpenedObject) -> str:
        folder, ending = self._reading.folder, self._reading.ending
        below = one.found.name.removeprefix(f"{folder}/").removesuffix(ending)
        return f"{folder}/{MOVED}/{below}.{one.digest}{ending}"

    def _save(self) -> None:
        self._position.save([one.begun() for one in self._begun])

    # --- messages ---

    def _take(self, limit: int) -> Chunk | None:
        while True:
            for one in self._begun:
                taken = one.take(limit)
                if taken is not None:
                    records, tokens = taken
                    return Chunk(self._messages(one, records), tokens)
            self._finish()
            if not self._waiting:
                return None
            self._begun.append(OpenedObject(self._where, self._store, self._waiting.popleft(), self._limits))

    def _messages(self, one: OpenedObject, records: Records) -> list[Message]:
        messages = [self._message(one, body, line) for body, line in zip(records.bodies, records.lines, strict=True)]
        if records.cut_from is not None:
            messages[0].properties[CUT_FROM] = records.cut_from
        return messages

    def _message(self, one: OpenedObject, body: bytes, line: int) -> Message:
        unique = one.unique_id(line)
        properties: dict[str, PropertyValue] = {"object": one.found.name, "row": line}
        if self._wanted_ids.unique_id:
            properties[UNIQUE_ID] = unique
        if self._wanted_ids.source_id:
            properties[SOURCE_ID] = self._receiver.destination
        return Message(body, properties, None, None, Headers(message_id=unique))
