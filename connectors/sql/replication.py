"""Streaming sessions with PostgreSQL: the log of the server through a replication slot, and the rows of a query.

The driver has no calls for this, so this module uses the libpq functions below the driver.
"""

import contextlib
import math
import select
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import URL

from connectors.sql.database import identifier, reason_of
from connectors.sql.pgoutput import Keepalive, Wal, lsn_of, lsn_text, read_frame, status
from correlator.errors import ConnectionLost
from correlator.storage.postgres import replication_session

with contextlib.suppress(ImportError):  # the driver is an extra; without it `open_database` raises E3310
    import psycopg
    from psycopg import generators
    from psycopg.pq import ExecStatus

SESSION = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'iso_8601'; SET timezone = 'UTC'; SET extra_float_digits = 1;"
    " SET bytea_output = 'hex'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;"
    " SET idle_session_timeout = 0"
)
"""Makes the texts of values independent of settings of the server or the user, and lets a stream take a long time."""
STATUS_S = 10.0
"""Seconds between two messages to the server."""
SILENT_S = 30.0
"""Fewest seconds without an answer after which a server counts as lost; see `silence_s`."""
_SENDER_TIMEOUT = "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'"
_CREATE_S = 20
_END_S = 1.0


def silence_s(sender_timeout_ms: int) -> float:
    """Return the number of seconds without an answer after which a server counts as lost.

    While it decodes a large transaction, a working server may send nothing for half its `wal_sender_timeout` or more.
    If that setting is 0, there is no limit. Then only TCP notices a lost server: the session has keepalives and a
    `tcp_user_timeout`.
    """
    return max(SILENT_S, 2 * sender_timeout_ms / 1000) if sender_timeout_ms else math.inf


class Made(NamedTuple):
    """A slot that was made: the place in the log where it begins, and the name of a snapshot of this moment."""

    lsn: int
    snapshot: str | None


class CopyStream:
    """Takes the pieces of a COPY one by one, and waits no longer than the caller wants.

    Args:
        session: a session that executes no other statement meanwhile.
        command: the statement that begins to copy out, or in both directions.

    The methods raise `psycopg.Error`.

    Attributes:
        heard: time of the last piece, in seconds of the monotonic clock.
    """

    def __init__(self, session: "psycopg.Connection[Any]", command: str) -> None:
        self._session = session
        self.heard = time.monotonic()
        session.pgconn.send_query(command.encode())
        (result,) = session.wait(generators.execute(session.pgconn))
        if result.status not in (ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH):
            raise psycopg.errors.error_from_result(result)

    def take(self, timeout_s: float) -> bytes | None:
        """Return the next piece; `None` if it did not arrive completely in time, an empty one at the end."""
        pgconn = self._session.pgconn
        size, piece = pgconn.get_copy_data(1)
        if size == 0:
            sockets = select.poll()
            sockets.register(pgconn.socket, select.POLLIN)
            if not sockets.poll(math.ceil(max(timeout_s, 0.0) * 1000)):
                return None
            self.heard = time.monotonic()
            pgconn.consume_input()
            size, piece = pgconn.get_copy_data(1)
        if size == -1:
            while result := pgconn.get_result():
                if result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)
            return b""
        return bytes(piece) if size else None

    def put(self, piece: bytes) -> None:
        """Send a piece to the server, or with a later one if the server takes nothing at present."""
        self._session.pgconn.put_copy_data(piece)
        self._session.pgconn.flush()

    def end(self, within_s: float) -> None:
        """Tell the server to end the COPY, and wait at most `within_s` seconds until it has done so."""
        deadline = time.monotonic() + within_s
        self._session.pgconn.put_copy_end()
        self._session.pgconn.flush()
        while self.take(deadline - time.monotonic()) != b"" and time.monotonic() < deadline:
            pass


class Replication:
    """A session that makes a replication slot, and reads it. The receiver's thread uses it.

    Args:
        where: place of the receiver, for messages.
        url: address of the database.

    Raises:
        ConnectionLost: the session failed; all methods except `close` raise it, too.
    """

    def __init__(self, where: str, url: URL) -> None:
        self._where = where
        self._stream: CopyStream | None = None
        self._next_status = 0.0
        self._asked: float | None = None
        """Time since which the server owes an answer; `None` if it owes none."""
        with driver_told(where):
            self._session = replication_session(url)
            try:
                self._session.execute(SESSION)
                row = self._session.execute(_SENDER_TIMEOUT).fetchone()
            except BaseException:
                self._session.close()
                raise
        assert row is not None
        self._silent_s = silence_s(row[0])

    def create(self, slot: str, *, exports: bool) -> Made:
        """Make the slot, and wait until all transactions that began earlier have ended.

        Args:
            slot: name of the slot.
            exports: whether to make a snapshot of its beginning. It can be used until the next call of a method.
        """
        option = "export" if exports else "nothing"
        with driver_told(self._where):
            self._session.execute(f"SET lock_timeout = '{_CREATE_S}s'")
            command = f"CREATE_REPLICATION_SLOT {identifier(slot)} LOGICAL pgoutput (SNAPSHOT '{option}')"
            row = self._session.execute(command.encode()).fetchone()
        assert row is not None
        return Made(lsn_of(row[1]), row[2])

    def begin(self, slot: str, publication: str, lsn: int) -> None:
        """Let the server send the transactions that end after this place."""
        names = identifier(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(lsn)}"
            f" (proto_version '1', publication_names '{names}')"
        )
        with driver_told(self._where):
            self._stream = CopyStream(self._session, command)

    @property
    def is_due(self) -> bool:
        """Return whether it is time to tell the server what the receiver has."""
        return time.monotonic() >= self._next_status

    def take(self, timeout_s: float) -> Wal | Keepalive | None:
        """Return the next message of the server; `None` if none comes in time."""
        assert self._stream is not None
        with driver_told(self._where):
            piece = self._stream.take(timeout_s)
        if piece is None:
            asked, heard = self._asked, self._stream.heard
            if asked is not None and time.monotonic() - max(asked, heard) >= self._silent_s - STATUS_S:
                raise ConnectionLost("E7003", self._where, f"the server has sent nothing for {self._silent_s:g} s")
            return None
        if not piece:
            raise ConnectionLost("E7003", self._where, "the server has ended the replication")
        self._asked = None
        return read_frame(piece)

    def tell(self, received: int, flushed: int, *, at_once: bool = False) -> None:
        """Tell the server what the receiver has, at once or when it is due; call this often. The server answers."""
        is_due = self.is_due
        if self._stream is None or not (is_due or at_once):
            return
        with driver_told(self._where):
            self._stream.put(status(received, flushed, time.time_ns(), asks=is_due))
        if is_due:
            now = time.monotonic()
            self._next_status = now + STATUS_S
            self._asked = self._asked or now

    def close(self) -> None:
        """End the session, so that another session can read the slot. Never raises."""
        with contextlib.suppress(psycopg.Error, OSError):
            if self._stream is not None:
                self._stream.end(_END_S)
        self._session.close()


@contextlib.contextmanager
def driver_told(where: str) -> Iterator[None]:
    """Within the block, turn an error of the driver into `ConnectionLost`."""
    try:
        yield
    except psycopg.Error as error:
        state, said = error.sqlstate or "", reason_of(error)
        if state == "42704" and "publication" in said:
            what = f"the slot has to read the log of a time at which the publication did not exist: {said}"
            raise ConnectionLost("E7609", where, what, "", _MADE_ANEW) from error
        if state == "55P03":
            what = "transactions that began before the slot have been open for too long"
            raise ConnectionLost("E7611", where, what, "", "End them; the receiver tries again") from error
        if state == "55006":
            what = f"another session reads the slot: {said}"
            raise ConnectionLost("E7607", where, what, "Only one receiver at a time may read it") from error
        raise ConnectionLost("E7003", where, f"the database failed: {said}") from error


_MADE_ANEW = "Never drop a publication that a receiver uses; drop the slot and remove the position to begin anew"
