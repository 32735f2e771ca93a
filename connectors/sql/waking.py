"""Tells a source that the database has changed: by LISTEN in PostgreSQL, by a counter of SQLite.

It only shortens a wait: each source also looks for rows by itself from time to time.
"""

import math
import select
import time
from typing import Protocol

from sqlalchemy import Connection

from connectors.sql.database import raw_sqlite
from correlator.storage.postgres import session_of

_LOOK_AGAIN_S = 0.05
_NOTICES_LOST_READER = "SET tcp_user_timeout = '60s'"
"""The server ends a session that reads no notices for this long, such as the session of a paused receiver. Otherwise it
would keep all notices for this session, and let COMMIT fail once it has no more room.
"""


class Watch(Protocol):
    """Notices changes. One thread at a time calls the methods; they raise errors of the database."""

    def begin(self) -> None:
        """Notice changes from now on. Call this before a look at the table."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be a change since `begin`; return false if there was none within `timeout_s` seconds."""
        ...


class Notices:
    """Listens to a channel of PostgreSQL with the session of the source, which has no transaction meanwhile.

    Args:
        connection: a connection that is not in a transaction.
        channel: name of letters, digits and `_`.
    """

    def __init__(self, connection: Connection, channel: str) -> None:
        self._session = session_of(connection)
        self._has_come = False
        self._session.add_notify_handler(lambda _notice: self._note())
        with connection.begin():
            connection.exec_driver_sql(_NOTICES_LOST_READER)
            connection.exec_driver_sql(f"LISTEN {channel}")

    def begin(self) -> None:
        """See `Watch`."""
        self._has_come = False

    def wait(self, timeout_s: float) -> bool:
        """See `Watch`. The loss of the session counts as a change: the next look raises the error."""
        while self._session.pgconn.notifies():  # it came together with the last answer
            self._has_come = True
        if self._has_come:
            return True
        sockets = select.poll()
        sockets.register(self._session, select.POLLIN)
        return bool(sockets.poll(math.ceil(max(timeout_s, 0.0) * 1000)))

    def _note(self) -> None:
        self._has_come = True


class Changes:
    """Watches the number that SQLite changes whenever another connection changes the database."""

    def __init__(self, connection: Connection) -> None:
        self._raw = raw_sqlite(connection)
        self._seen = -1

    def begin(self) -> None:
        """See `Watch`."""
        self._seen = self._version()

    def wait(self, timeout_s: float) -> bool:
        """See `Watch`."""
        deadline = time.monotonic() + timeout_s
        while self._version() == self._seen:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            time.sleep(min(_LOOK_AGAIN_S, remaining_s))
        return True

    def _version(self) -> int:
        (version,) = self._raw.execute("PRAGMA data_version").fetchone()
        return int(version)


class Nothing:
    """Notices nothing, for databases without notifications."""

    def begin(self) -> None:
        """See `Watch`."""

    def wait(self, timeout_s: float) -> bool:
        """See `Watch`."""
        time.sleep(max(timeout_s, 0.0))
        return False
