"""Wakes the consumers of other processes by LISTEN and NOTIFY of PostgreSQL.

With NOTIFY in the transaction that stores messages, all senders would commit one after another: the server holds a lock
from NOTIFY until the commit is on disk. So a sender notifies after its commit, in a transaction that is not synced, and
only if somebody waits. A process that waits for a bell has a shared advisory lock on it; the sender tries to take this
lock exclusively. If nobody waits, the sender does not try again for `_QUIET_S`. So a process that begins to wait must
look for messages once more after this time: then it finds the messages of senders that did not try.
"""

import contextlib
import secrets
import select
import time

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from connectors.embedded.database import APPLICATION_ID, connect_postgres
from correlator.storage.postgres import session_of

with contextlib.suppress(ImportError):  # the driver is an extra; without it `connect_postgres` raises E3310
    from psycopg import sql

_QUIET_S = 0.02
_SELF_TEST_S = 5.0
_NOTIFY = """
    SELECT bell, CASE WHEN pg_try_advisory_lock(key) THEN NOT pg_advisory_unlock(key)
        ELSE (set_config('synchronous_commit', 'off', true), pg_notify('correlator_' || key, %(token)s)) IS NOT NULL END
    FROM (
        SELECT bell, hashtextextended(concat('correlator broker ', current_schema(), ' bell ', bell), %(kind)s) AS key
        FROM unnest(%(bells)s::int[]) AS bell
    ) AS keys
"""
_KEYS = """
    SELECT bell, hashtextextended(concat('correlator broker ', current_schema(), ' bell ', bell), %(kind)s)
    FROM generate_series(0, %(last)s) AS bell
"""
"""The locks of all bells. A key includes the schema, since the schemas of a database share locks and channels."""


class Notices:
    """The channel of the processes that use one schema of a PostgreSQL database."""

    def __init__(self, store: str, bells: int) -> None:
        self._store = store
        self._token = secrets.token_hex(8)
        self._quiet_until = [0.0] * bells

    def notify(self, bells: set[int], connection: Connection) -> None:
        """Notify the processes in which somebody waits. Raises `psycopg.Error`."""
        now = time.monotonic()
        asked = [bell for bell in bells if self._quiet_until[bell] <= now]
        if not asked:
            return
        session = session_of(connection)
        with session.each_alone():
            answers = session.execute(
                _NOTIFY, {"kind": APPLICATION_ID, "token": self._token, "bells": asked}
            ).fetchall()
        for bell, somebody_waits in answers:
            if not somebody_waits:
                self._quiet_until[bell] = now + _QUIET_S

    def listener(self) -> "NoticeListener":
        """Open a session that listens. Raises errors of the database, and `StoreError` as `connect_postgres`."""
        return NoticeListener(self._store, self._token, len(self._quiet_until))

    def poller(self) -> "Ticker":
        """Make a listener that lets consumers look every 50 ms."""
        return Ticker()


class NoticeListener:
    """A session of its own, never in a transaction: otherwise the server would keep notifications for it.

    Raises:
        TimeoutError: the server does not deliver notifications. Other errors are those of `Notices.listener`.
    """

    interval_s: float | None = None
    settles_after_s = _QUIET_S + 0.005

    def __init__(self, store: str, token: str, bells: int) -> None:
        self._token = token
        self._heard: set[str] = set()
        self._listened: set[int] = set()
        self._connection = connect_postgres(store)
        try:
            self._session = session_of(self._connection)
            self._session.autocommit = True
            self._session.add_notify_handler(lambda notice: self._note(notice.channel, notice.payload))
            self._keys = dict(self._session.execute(_KEYS, {"kind": APPLICATION_ID, "last": bells - 1}).fetchall())
            self._bells = {_channel(key): bell for bell, key in self._keys.items()}
            self._test()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the socket of the session."""
        return self._session.fileno()

    def listen(self, bells: set[int]) -> None:
        """Listen to the channels, then take the locks that make senders notify. Raises `psycopg.Error`."""
        added, removed = bells - self._listened, self._listened - bells
        for bell in removed:
            self._session.execute("SELECT pg_advisory_unlock_shared(%s)", (self._keys[bell],))
            self._session.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(_channel(self._keys[bell]))))
        for bell in added:
            self._session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_channel(self._keys[bell]))))
            self._session.execute("SELECT pg_advisory_lock_shared(%s)", (self._keys[bell],))
        self._listened = bells

    def heard(self) -> set[int]:
        """Return the bells of the received notifications. Raises `psycopg.Error` if the session is lost."""
        self._receive()
        heard = {self._bells[channel] for channel in self._heard}  # also bells to which it no longer listens
        self._heard.clear()
        return heard & self._listened

    def close(self) -> None:
        """End the session with the server, which ends all its LISTENs and advisory locks. Never raises."""
        with contextlib.suppress(SQLAlchemyError):
            self._connection.invalidate()  # a lost session cannot be rolled back
            self._connection.close()

    def _test(self) -> None:
        """Notify this session itself."""
        channel = f"correlator_{self._token}"
        self._session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._session.execute("SELECT pg_notify(%s, '')", (channel,))
        sockets = select.poll()
        sockets.register(self, select.POLLIN)
        deadline = time.monotonic() + _SELF_TEST_S
        while channel not in self._heard:
            if not sockets.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError("the server does not deliver notifications to this session")
            self._receive()
        self._session.execute("UNLISTEN *")
        self._heard.clear()

    def _receive(self) -> None:
        self._session.pgconn.consume_input()
        while notice := self._session.pgconn.notifies():
            self._note(notice.relname.decode(), notice.extra.decode())

    def _note(self, channel: str, sender: str) -> None:
        if sender != self._token:
            self._heard.add(channel)


class Ticker:
    """Simulates that every bell rings every 50 ms."""

    interval_s: float | None = 0.05
    settles_after_s = 0.0

    def __init__(self) -> None:
        self._bells: set[int] = set()

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def listen(self, bells: set[int]) -> None:
        """Set the bells that ring."""
        self._bells = bells

    def heard(self) -> set[int]:
        """Return all bells that were set."""
        return self._bells

    def close(self) -> None:
        """Do nothing: a ticker holds no resources."""


def _channel(key: int) -> str:
    return f"correlator_{key}"
