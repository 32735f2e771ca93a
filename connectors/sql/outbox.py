"""The source of an outbox table: it reads the rows that a user's program has committed, and deletes acknowledged ones.

One source at a time reads a table: in PostgreSQL it holds an advisory lock as long as its session lives, beside a file
of SQLite the lock on a file. It reads in the order of the keys, and leaves out only the rows that it holds. So it also
finds a row whose transaction has committed after rows with higher keys were read.
"""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import URL, Connection
from sqlalchemy.exc import SQLAlchemyError

from connectors.sql.database import close_quietly, open_database, translated
from connectors.sql.outbox_table import Outbox, OutboxRow, OutboxTable
from connectors.sql.waking import Changes, Notices, Watch
from correlator.connector import NOTHING, Chunk, Held, readable
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Headers, Message, PropertyValue
from correlator.processes import LockFile, Maker
from correlator.settings import ReceiverSettings
from correlator.storage.files import beside
from correlator.storage.sqlite import path_of

UNIQUE_ID, SOURCE_ID = "uniqueMessageId", "messageSourceId"
"""Properties that the default templates of unique ids use; the source sets them if a message does not have them."""
_LOCK = 0x636F7278
"""The upper half of the key of an advisory lock; the lower half is the number of the table."""
_HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory'"
    " AND l.classid = %(kind)s AND l.objid = %(oid)s::bigint::oid AND l.objsubid = 1 AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_properties = msgspec.json.Decoder(dict[str, bool | int | float | str | None] | None)


class OutboxSource:
    """Reads an outbox table.

    Args:
        receiver: the settings of the receiver.
        url: address of the database.
        outbox: the table.
        poll_interval_s: after so many seconds the source looks for rows although nothing has told it of any.
    """

    def __init__(self, receiver: ReceiverSettings, url: URL, outbox: Outbox, poll_interval_s: float) -> None:
        self._where = outbox.where
        self._receiver = receiver
        self._url = url
        self._outbox = outbox
        self._poll_interval_s = poll_interval_s
        templates = (receiver.unique_message_id, receiver.message_source_id)
        self._wanted = [name for name in (UNIQUE_ID, SOURCE_ID) if any(f"property.{name}" in one for one in templates)]
        self._process = Maker()
        self._connection: Connection | None = None
        self._lock: LockFile | None = None
        self._held: Held[tuple[int, bytes]] = Held()
        """Key and unique id of each row."""
        self._next_look = 0.0

    def connect(self) -> None:
        """Connect, look at the table, and become its reader. `UsageError` E2050 in a forked child.

        Raises `ConnectionLost` E7009 while another receiver reads the table.
        """
        if self._connection is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with translated(self._where, self.close):
            connection = self._connection = open_database(self._where, self._url, defers=True)
            with connection.begin():
                self._table = OutboxTable(connection, self._outbox)
            self._become_reader(connection)
            self._watch: Watch = (
                Notices(connection, f"correlator_outbox_{self._table.oid}") if self._table.oid else Changes(connection)
            )
        self._next_look = 0.0

    def peek(self, limit: int) -> Sequence[Message]:
        """The first rows, whether a receiver holds them or not. Changes nothing; close the source afterwards."""
        with translated(self._where, self.close):
            connection = self._connection = open_database(self._where, self._url, defers=True)
            with connection.begin():
                self._table = OutboxTable(connection, self._outbox)
            return [self._message(row) for row in self._look(connection, limit)]

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """The first rows that it does not hold."""
        limit = min(max_messages, self._receiver.max_batch_size - len(self._held))
        deadline = time.monotonic() + timeout_s
        with translated(self._where, self.close):
            connection = self._connected()
            while True:
                if limit > 0 and (time.monotonic() >= self._next_look or self._watch.wait(0.0)):
                    self._watch.begin()
                    rows = self._look(connection, limit)
                    if rows:
                        self._next_look = 0.0  # there may be more
                        tokens = self._held.hold([(row.id, row.unique_id) for row in rows])
                        return Chunk([self._message(row) for row in rows], tokens)
                    self._next_look = time.monotonic() + self._poll_interval_s
                now = time.monotonic()
                if now >= deadline:
                    return NOTHING
                if limit > 0:
                    self._watch.wait(min(deadline, self._next_look) - now)
                else:
                    time.sleep(deadline - now)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Delete these rows in one transaction. A token from before a reconnect acknowledges nothing."""
        with translated(self._where, self.close):
            connection = self._connected()
            rows = self._held.release(tokens)
            if rows:
                with connection.begin():
                    self._table.delete(connection, rows)

    def reject(self, tokens: Sequence[int]) -> None:
        """Return these rows again, before all rows with higher keys."""
        self._connected()
        self._held.release(tokens)
        self._next_look = 0.0

    def close(self) -> None:
        """Close the connection; another source may read the table. In a forked child it does nothing."""
        if self._process.is_another_process:
            return
        self._held.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.dialect.name == "postgresql" and not connection.invalidated:
                # The server may notice the end of the session only after a moment.
                with suppress(SQLAlchemyError), connection.begin():
                    connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
            close_quietly(connection)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _connected(self) -> Connection:
        self._process.check(self._where)
        if self._connection is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._connection

    def _become_reader(self, connection: Connection) -> None:
        """Take the lock that one reader of the table has. Raises `ConnectionLost` E7009."""
        if self._table.oid:
            keys = {"kind": _LOCK, "oid": self._table.oid}
            lock = "SELECT pg_try_advisory_lock(%(kind)s::bigint << 32 | %(oid)s::bigint)"
            with connection.begin():
                if connection.exec_driver_sql(lock, keys).scalar_one():
                    return
                holder = connection.exec_driver_sql(_HOLDER, keys).scalar() or "another session"
            raise self._taken(holder)
        path = path_of(self._url).resolve()
        digest = hashlib.sha256(self._outbox.table.encode()).hexdigest()[:16]
        self._lock = LockFile(beside(path, f".outbox-{digest}.lock"))
        if not self._lock.try_lock():
            raise self._taken("another process")

    def _taken(self, holder: str) -> ConnectionLost:
        what = f"another receiver reads the outbox table ({holder})"
        return ConnectionLost("E7009", self._where, what, "One receiver reads it at a time, which keeps the order")

    def _look(self, connection: Connection, limit: int) -> list[OutboxRow]:
        receiver = self._receiver
        with connection.begin():
            return self._table.read(
                connection,
                [key for key, _ in self._held],
                limit,
                (receiver.max_message_bytes, receiver.max_batch_bytes),
            )

    def _message(self, row: OutboxRow) -> Message:
        unique = row.unique_id.decode(errors="backslashreplace")
        known = {UNIQUE_ID: unique, SOURCE_ID: self._outbox.table}
        ids: dict[str, PropertyValue] = {name: known[name] for name in self._wanted}
        headers = Headers(message_id=unique, timestamp=row.created)
        plain = Message(row.body, dict(ids), None, None, headers)
        message, text = plain, row.properties
        if text is not None:
            message = readable(
                lambda: msgspec.structs.replace(plain, properties=ids | (_properties.decode(text) or {})),
                lambda: plain,
                "properties",
            )
        if row.size > len(row.body):
            message.properties[CUT_FROM] = row.size
        return message
