"""The source of captured changes: it reads them from the log of PostgreSQL, through a replication slot.

It makes the slot and, unless the option `snapshot` is `never`, begins with the rows that exist at this moment (the
snapshot). The changes of each transaction follow, in the order of the commits. A file holds the position, which is
never behind the slot: the source writes the file before it tells the server which part of the log it no longer needs.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import URL, Connection

from connectors.ids import WantedIds
from connectors.sidecars import lock, read_whole, sidecar
from connectors.sql.change_progress import ChangeProgress
from connectors.sql.changes import OLD, Content, Layout
from connectors.sql.database import close_quietly, open_database, translated
from connectors.sql.pgoutput import Begin, Change, Commit, Keepalive, Relation, Truncate, lsn_text, read_change
from connectors.sql.polled_dialects import Place
from connectors.sql.replication import SESSION, CopyStream, Replication, driver_told
from connectors.sql.replication_slot import Captured, Server, Table, check_slot, check_unread, server_of, tables_of
from correlator import durable
from correlator.connector import NOTHING, Chunk
from correlator.errors import ConnectionLost, quoted
from correlator.events import CUT_FROM, Headers, Message, PropertyValue
from correlator.processes import LockFile, Maker
from correlator.settings import ReceiverSettings
from correlator.storage.postgres import session_of

_MOST_CHANGES = 10_000
"""Most changes to remember after an unacknowledged one, in addition to those that the receiver holds."""
_LOOK_AT_CLOCK = 1000
"""Number of pieces of the log without a message after which `receive` checks whether its time is over."""


class _Position(msgspec.Struct):
    """The content of the sidecar.

    Attributes:
        system: number of the server.
        database: name of the database.
        slot: name of the slot.
        has_begun: false until all rows of the snapshot are acknowledged.
        flushed: the place in the log before which the receiver needs nothing.
        place: in the transactions after `flushed`, all changes up to this place are acknowledged.
        done: the places of further changes that are acknowledged.
    """

    system: str
    database: str
    slot: str
    has_begun: bool
    flushed: int = 0
    place: list[int] = []
    done: list[list[int]] = []


_decoder = msgspec.json.Decoder(_Position)


class _Snapshot:
    """Reads the tables as they were when the slot was made.

    Args:
        connection: a connection in a transaction that sees this moment.
        tables: the tables.
        again: whether an earlier snapshot was interrupted, so that rows of it may be gone.
    """

    def __init__(self, connection: Connection, tables: Sequence[Table], *, again: bool) -> None:
        self.connection = connection
        self._tables = deque(tables)
        self._again = again
        self._layout: Layout | None = None
        self._rows: CopyStream | None = None
        self.ended = False

    def take(self, timeout_s: float) -> Content | None:
        """Return the next row; `None` if none comes in time, and at the end. Raises `psycopg.Error` and
        `ValueError`.
        """
        while not self.ended:
            if self._rows is None or self._layout is None:
                if not self._tables:
                    self.ended = True
                    return None
                table = self._tables.popleft()
                self._layout = Layout(table.relation)
                self._rows = CopyStream(session_of(self.connection), f"COPY ({table.query}) TO STDOUT")
                if self._again:
                    return self._layout.truncated()
            line = self._rows.take(timeout_s)
            if line is None:
                return None
            if line:
                return self._layout.read(line)
            self._rows = None
        return None


class CaptureSource:
    """Reads the changes of the tables of a publication.

    Args:
        receiver: the settings of the receiver.
        url: address of the database.
        captured: the slot and the publication.
        state: the directory of the sidecar with the position.
    """

    def __init__(self, receiver: ReceiverSettings, url: URL, captured: Captured, state: Path) -> None:
        self._where = captured.where
        self._receiver = receiver
        self._url = url
        self._captured = captured
        self._path = sidecar(state, "capture", captured.publication, receiver.subscription)
        self._lock_path = sidecar(state, "capture.lock", captured.publication, receiver.subscription)
        self._wanted_ids = WantedIds.of(receiver)
        self._process = Maker()
        self._lock: LockFile | None = None
        self._replication: Replication | None = None
        self._snapshot: _Snapshot | None = None
        self._position = _Position("", "", "", has_begun=False)
        self._progress = ChangeProgress(0)
        self._time_ms: int | None = None
        self._layouts: dict[int, Layout] = {}
        self._waiting: deque[tuple[Place, Content]] = deque()
        """Messages of a piece of the log that did not fit into the last chunk."""
        self._messages: dict[Place, Message] = {}
        """Messages that the receiver holds or has given back."""

    def connect(self) -> None:
        """Connect, and continue after the acknowledged position. Raises `UsageError` E2050 in a forked child.

        Raises `ConnectionLost` E7012 while another receiver uses the position, E7017 if it is damaged, and E7600 to
        E7611 if the server cannot send the changes after it.
        """
        if self._replication is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        self._layouts, self._messages = {}, {}
        self._waiting.clear()
        with translated(self._where, self.close):
            self._lock = lock(self._lock_path, self._where)
            connection = open_database(self._where, self._url, defers=True)
            try:
                self._begin(connection)
            finally:
                if self._snapshot is None:
                    close_quietly(connection)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the changes that were given back, then the next ones; see `connector.Source`."""
        deadline = time.monotonic() + timeout_s
        with translated(self._where, self.close):
            replication = self._connected()
            rows = self._progress.rows
            limit = min(
                max_messages,
                self._receiver.max_batch_size - rows.held,
                self._receiver.max_batch_size + _MOST_CHANGES - len(rows),
            )
            places: list[Place] = []
            if limit > 0:
                places = self._again(limit) or self._read(replication, limit, deadline)
            self._tell(replication)
            if places:
                tokens = self._progress.rows.hold(places)  # read anew: a snapshot may have ended meanwhile
                return Chunk([self._messages[place] for place in places], tokens)
            if limit <= 0:
                time.sleep(max(deadline - time.monotonic(), 0.0))
            return NOTHING

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Move the position; it is on disk when this returns. A token from before a reconnect acknowledges nothing."""
        with translated(self._where, self.close):
            replication = self._connected()
            places = self._progress.acknowledge(tokens)
            for place in places:
                del self._messages[place]
            if not self._position.has_begun:
                self._end_snapshot()
            elif places:
                self._save()
                self._tell(replication, at_once=True)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these changes back: `receive` returns them again, before any new one."""
        self._connected()
        self._progress.rows.reject(tokens)

    def close(self) -> None:
        """Close the connection; slot and position stay. Does nothing in a forked child."""
        if self._process.is_another_process:
            return
        replication, self._replication = self._replication, None
        if replication is not None:
            replication.close()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.connection.invalidate()  # it is in the middle of a COPY
            close_quietly(snapshot.connection)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _connected(self) -> Replication:
        self._process.check(self._where)
        if self._replication is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._replication

    # --- beginning ---

    def _begin(self, connection: Connection) -> None:
        """Continue from the stored position. Without one, make the slot."""
        captured = self._captured
        with connection.begin():
            connection.exec_driver_sql(SESSION)
            server = server_of(connection, captured)
        kept = self._kept(server)
        if kept is not None and kept.has_begun:
            check_slot(captured, server, kept.flushed, begin_anew=self._begin_anew)
            self._position = kept
            self._progress = ChangeProgress(kept.flushed, tuple(kept.place), [tuple(one) for one in kept.done])
        elif captured.takes_snapshot:
            self._take_snapshot(connection, server, again=kept is not None)
            return
        else:
            self._adopt(server)
        self._replication = Replication(self._where, self._url)
        self._stream(self._replication)

    def _kept(self, server: Server) -> _Position | None:
        """Read the sidecar. Raises `ConnectionLost` E7017 if it is damaged, E7603 if it belongs to another slot."""
        content = read_whole(self._path)
        if content is None:
            return None
        try:
            kept = _decoder.decode(content)
        except msgspec.MsgspecError as error:
            what = f"the position in {self._path} is damaged"
            raise ConnectionLost("E7017", self._where, what, "", self._begin_anew) from error
        present = (server.system, server.database, self._captured.slot)
        if (kept.system, kept.database, kept.slot) != present:
            belongs = f"slot {quoted(kept.slot)} of database {quoted(kept.database)} of server {kept.system}"
            reads = (
                f"slot {quoted(self._captured.slot)} of database {quoted(server.database)} of server {server.system}"
            )
            what = (
                f"the position {lsn_text(kept.flushed)} in {self._path} belongs to {belongs}, and the receiver reads"
                f" {reads}, whose log ends at {lsn_text(server.lsn)}"
            )
            raise ConnectionLost("E7603", self._where, what, "", self._begin_anew)
        return kept

    @property
    def _begin_anew(self) -> str:
        slot = self._captured.slot
        return f"To begin anew, drop slot {quoted(slot)} if it is there, and remove {self._path}"

    def _adopt(self, server: Server) -> None:
        """Continue where the slot stands, and make it if it does not exist. Store this position."""
        if server.slot is None:
            replication = Replication(self._where, self._url)
            try:
                flushed = replication.create(self._captured.slot, exports=False).lsn
            finally:
                replication.close()
        else:
            check_slot(self._captured, server, server.slot.flushed, begin_anew=self._begin_anew)
            flushed = server.slot.flushed
        self._position = self._new_position(server, has_begun=True)
        self._progress = ChangeProgress(flushed)
        self._save()

    def _take_snapshot(self, connection: Connection, server: Server, *, again: bool) -> None:
        """Make the slot and a snapshot of the same moment. Every start does so again until all rows are
        acknowledged.
        """
        captured = self._captured
        if server.slot is not None and not again:
            what = (
                f"replication slot {quoted(captured.slot)} is there, and the receiver has no position in {self._path}"
            )
            todo = f"{self._begin_anew}. To continue where the slot stands, set snapshot: never"
            raise ConnectionLost("E7606", self._where, what, "", todo)
        self._position = self._new_position(server, has_begun=False)
        durable.replace(self._path, msgspec.json.encode(self._position))
        if server.slot is not None:
            check_unread(captured, server.slot)
            with connection.begin():
                connection.exec_driver_sql("SELECT pg_drop_replication_slot(%(slot)s)", {"slot": captured.slot})
        self._replication = replication = Replication(self._where, self._url)
        made = replication.create(captured.slot, exports=True)
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'")
        self._snapshot = _Snapshot(connection, tables_of(connection, captured), again=again)
        self._progress = ChangeProgress(made.lsn)
        self._progress.begin(made.lsn)

    def _new_position(self, server: Server, *, has_begun: bool) -> _Position:
        return _Position(server.system, server.database, self._captured.slot, has_begun)

    def _end_snapshot(self) -> bool:
        """Once all rows are read and acknowledged, begin with the changes; return whether this is so."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.ended or self._progress.rows.first is not None:
            return False
        self._progress = ChangeProgress(self._progress.flushed)
        self._position.has_begun = True
        self._save()
        self._snapshot = None
        close_quietly(snapshot.connection)
        self._stream(self._connected())
        return True

    def _save(self) -> None:
        position, progress = self._position, self._progress
        position.flushed = progress.flushed
        position.place = [int(one) for one in progress.rows.place]
        position.done = [[int(one) for one in place] for place in progress.rows.done]
        durable.replace(self._path, msgspec.json.encode(position))

    # --- reading ---

    def _again(self, limit: int) -> list[Place]:
        """Return the places of changes that were given back."""
        places: list[Place] = []
        size = 0
        for place in self._progress.rows.returned[:limit]:
            if size < self._receiver.max_batch_bytes:
                places.append(place)
                size += _size(self._messages[place])
        return places

    def _read(self, replication: Replication, limit: int, deadline: float) -> list[Place]:
        """Return the places of the next messages; none if none comes in time."""
        places: list[Place] = []
        size, pieces = 0, 0
        while len(places) < limit and size < self._receiver.max_batch_bytes:
            if not self._waiting:
                wait_s = 0.0 if places else deadline - time.monotonic()
                try:
                    was_something = self._take(replication, wait_s)
                except ValueError as error:
                    read = "log" if self._snapshot is None else "snapshot"
                    raise ConnectionLost("E7003", self._where, f"the {read} cannot be read: {error}") from error
                if not was_something and (places or time.monotonic() >= deadline):
                    break
                pieces += 1
                if pieces % _LOOK_AT_CLOCK == 0 and time.monotonic() >= deadline:
                    break
            else:
                place, content = self._waiting.popleft()
                message = self._messages[place] = self._message(place, content)
                places.append(place)
                size += _size(message)
        return places

    def _take(self, replication: Replication, wait_s: float) -> bool:
        """Read one row of the snapshot, or one piece of the log; return whether there was one.

        Raises `ValueError` if its content cannot be read.
        """
        if self._snapshot is not None:
            with driver_told(self._where):
                row = self._snapshot.take(wait_s)
            if row is not None:
                self._add(lambda: row)
                return True
            if not self._end_snapshot():
                if self._snapshot.ended:  # the receiver still holds rows of it
                    time.sleep(max(wait_s, 0.0))
                return False
        frame = replication.take(wait_s)
        if frame is None:
            return False
        if isinstance(frame, Keepalive):
            self._progress.told(frame.end)
            if frame.wants_answer:
                self._tell(replication, at_once=True)
        else:
            self._change(frame.content)
        return True

    def _stream(self, replication: Replication) -> None:
        replication.begin(self._captured.slot, self._captured.publication, self._progress.flushed)

    def _tell(self, replication: Replication, *, at_once: bool = False) -> None:
        """Tell the server what the receiver has and what it no longer needs, at once or when it is due;
        store it first.
        """
        progress = self._progress
        if self._position.has_begun and progress.flushed > self._position.flushed and (at_once or replication.is_due):
            self._save()
        replication.tell(progress.received, self._position.flushed, at_once=at_once)

    def _change(self, content: bytes) -> None:
        found, progress = read_change(content), self._progress
        if isinstance(found, Change):
            self._add(lambda: self._layout(found.relation).changed(found))
        elif isinstance(found, Begin):
            progress.begin(found.lsn)
            self._time_ms = found.time_ms
        elif isinstance(found, Commit):
            progress.end(found.end)
        elif isinstance(found, Relation):
            self._layouts[found.oid] = Layout(found)
        elif isinstance(found, Truncate):
            for relation in found.relations:
                self._add(self._layout(relation).truncated)

    def _layout(self, relation: int) -> Layout:
        if relation not in self._layouts:
            raise ValueError("a change of a table that was not described")
        return self._layouts[relation]

    def _add(self, content: Callable[[], Content]) -> None:
        """Count the next change, and make its message unless it was acknowledged earlier."""
        place = self._progress.next()
        if place is not None:
            self._waiting.append((place, content()))

    def _message(self, place: Place, content: Content) -> Message:
        lsn, index = place
        kind = "" if self._position.has_begun else "s"
        unique = f"{self._position.system}:{self._captured.slot}:{lsn_text(int(lsn))}:{kind}{index}"
        properties = content.properties | self._wanted_ids.properties(unique, self._captured.publication)
        body, old, most = content.body, _old(content.properties), self._receiver.max_message_bytes + 1
        size = len(body) + len(old)
        if size >= most:
            properties.pop(OLD, None)
            properties[CUT_FROM] = size
            body = (body[:most] + old[:most])[:most]
        timestamp = self._time_ms if self._position.has_begun else None
        return Message(body, properties, None, None, Headers(message_id=unique, timestamp=timestamp))


def _old(properties: Mapping[str, PropertyValue]) -> bytes:
    """Return the property `old`, which may be as large as a body; empty if there is none."""
    return str(properties.get(OLD, "")).encode()


def _size(message: Message) -> int:
    return len(message.body) + len(_old(message.properties))
