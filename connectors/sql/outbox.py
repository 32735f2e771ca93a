"""The source of an outbox table: it reads the rows that a user's program has committed, and deletes acknowledged rows.

One source at a time reads a table. In PostgreSQL and MySQL it holds a lock of the server as long as its session lives;
with SQLite it holds the lock on a file beside the database. It reads rows in the order of their keys, and skips only
the rows that it holds. So it also finds a row whose transaction has committed after rows with higher keys were read.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import URL, Connection
from sqlalchemy.exc import SQLAlchemyError

from connectors.sql.database import open_database, translated
from connectors.sql.outbox_dialects import Key
from connectors.sql.outbox_table import Outbox, OutboxRow, OutboxTable
from connectors.sql.table_source import TableSource
from connectors.sql.waking import Changes, Nothing, Notices
from correlator.connector import Chunk, Held, readable
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Headers, Message
from correlator.processes import LockFile
from correlator.settings import ReceiverSettings
from correlator.storage.files import beside
from correlator.storage.sqlite import path_of

_LOCK = 0x636F7278
"""The upper half of the key of an advisory lock; the lower half is the number of the table."""
_POSTGRES_LOCK = "SELECT pg_try_advisory_lock(%(kind)s::bigint << 32 | %(oid)s::bigint)"
_POSTGRES_HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory'"
    " AND l.classid = %(kind)s AND l.objid = %(oid)s::bigint::oid AND l.objsubid = 1 AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_MYSQL_LOCK = "SELECT GET_LOCK(%(name)s, 0)"
_MYSQL_HOLDER = "SELECT CONCAT('connection ', IS_USED_LOCK(%(name)s))"
_UNLOCK = {"postgresql": "SELECT pg_advisory_unlock_all()", "mysql": "SELECT RELEASE_ALL_LOCKS()"}
_properties = msgspec.json.Decoder(dict[str, bool | int | float | str | None] | None)


class OutboxSource(TableSource):
    """Reads an outbox table.

    Args:
        receiver: the settings of the receiver.
        url: address of the database.
        outbox: the table.
        poll_interval_s: see `TableSource`.
    """

    def __init__(self, receiver: ReceiverSettings, url: URL, outbox: Outbox, poll_interval_s: float) -> None:
        super().__init__(outbox.where, receiver, url, outbox.table, poll_interval_s)
        self._outbox = outbox
        self._held: Held[Key] = Held()

    def peek(self, limit: int) -> Sequence[Message]:
        """Return the first rows, whether a receiver holds them or not. Changes nothing; close the source afterwards."""
        with translated(self._where, self.close):
            connection = self._open()
            with connection.begin():
                return [self._message(row) for row in self._read(connection, limit)]

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Delete these rows in one transaction. A token from before a reconnect acknowledges nothing."""
        with translated(self._where, self.close):
            connection = self._connected()
            rows = self._held.release(tokens)
            if rows:
                with connection.begin():
                    self._table.delete(connection, rows)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these rows back: `receive` returns them before rows with higher keys. Raises `ConnectionLost`."""
        self._connected()
        self._held.release(tokens)
        self._next_look = 0.0

    def close(self) -> None:
        """See `TableSource`. Also release the lock: the server may notice the end of the session only
        after a moment.
        """
        connection = self._connection
        if connection is not None and not connection.invalidated and not self._process.is_another_process:
            with suppress(SQLAlchemyError), connection.begin():
                if connection.dialect.name in _UNLOCK:
                    connection.exec_driver_sql(_UNLOCK[connection.dialect.name])
        super().close()

    def _begin(self) -> None:
        """See `TableSource`. Raises `ConnectionLost` E7009 while another receiver reads the table."""
        connection = self._open()
        self._held.clear()
        self._become_reader(connection)
        if connection.dialect.name == "postgresql":
            self._watch = Notices(connection, f"correlator_outbox_{self._table.oid}")
        else:
            self._watch = Changes(connection) if connection.dialect.name == "sqlite" else Nothing()

    def _look(self, connection: Connection, limit: int, now: float) -> Chunk:
        del now
        rows = self._read(connection, limit)
        tokens = self._held.hold([(row.id, row.unique_id) for row in rows])
        return Chunk([self._message(row) for row in rows], tokens)

    def _room(self) -> int:
        return self._receiver.max_batch_size - len(self._held)

    def _open(self) -> Connection:
        connection = self._connection = open_database(self._where, self._url, defers=True)
        with connection.begin():
            self._table = OutboxTable(connection, self._outbox)
        return connection

    def _become_reader(self, connection: Connection) -> None:
        """Take the lock that only one reader of the table can have. Raises `ConnectionLost` E7009."""
        if connection.dialect.name == "sqlite":
            path = path_of(self._url).resolve()
            digest = hashlib.sha256(self._outbox.table.encode()).hexdigest()[:16]
            self._lock = LockFile(beside(path, f".outbox-{digest}.lock"))
            if not self._lock.try_lock():
                raise self._taken("another process")
            return
        values: dict[str, int | str] = {"kind": _LOCK, "oid": self._table.oid}
        lock, whose = _POSTGRES_LOCK, _POSTGRES_HOLDER
        if connection.dialect.name == "mysql":
            place = f"{self._outbox.schema or self._url.database}.{self._outbox.table}"
            digest = hashlib.sha256(place.encode()).hexdigest()[:32]
            lock, whose, values = _MYSQL_LOCK, _MYSQL_HOLDER, {"name": f"correlator_outbox_{digest}"}
        with connection.begin():
            if connection.exec_driver_sql(lock, values).scalar_one():
                return
            holder = connection.exec_driver_sql(whose, values).scalar() or "another session"
        raise self._taken(holder)

    def _taken(self, holder: str) -> ConnectionLost:
        what = f"another receiver reads the outbox table ({holder})"
        return ConnectionLost("E7009", self._where, what, "Only one receiver reads it at a time, to keep the order")

    def _read(self, connection: Connection, limit: int) -> list[OutboxRow]:
        bounds = self._receiver.max_message_bytes, self._receiver.max_batch_bytes
        return self._table.read(connection, [key for key, _ in self._held], limit, bounds)

    def _message(self, row: OutboxRow) -> Message:
        unique = row.unique_id.decode(errors="backslashreplace")
        ids = self._ids(unique)
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
