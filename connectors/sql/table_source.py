"""A source that looks for rows again and again, over one session: the base of those of outbox and polled tables."""

import time
from abc import ABC, abstractmethod

from sqlalchemy import URL, Connection

from connectors.ids import WantedIds
from connectors.sql.database import close_quietly, translated
from connectors.sql.waking import Nothing, Watch
from correlator.connector import NOTHING, Chunk
from correlator.errors import ConnectionLost
from correlator.events import PropertyValue
from correlator.processes import LockFile, Maker
from correlator.settings import ReceiverSettings


class TableSource(ABC):
    """Reads rows of a table.

    Args:
        where: place for messages.
        receiver: the settings of the receiver.
        url: address of the database.
        table: name of the table.
        poll_interval_s: after so many seconds the source looks for rows although nothing has told it of any.
    """

    def __init__(self, where: str, receiver: ReceiverSettings, url: URL, table: str, poll_interval_s: float) -> None:
        self._where = where
        self._receiver = receiver
        self._url = url
        self._name = table
        self._poll_interval_s = poll_interval_s
        self._wanted_ids = WantedIds.of(receiver)
        self._process = Maker()
        self._connection: Connection | None = None
        self._lock: LockFile | None = None
        self._watch: Watch = Nothing()
        self._next_look = 0.0

    def connect(self) -> None:
        """Connect, look at the table, and become its reader. `UsageError` E2050 in a forked child."""
        if self._connection is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with translated(self._where, self.close):
            self._begin()
        self._next_look = 0.0

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """The next rows that it does not hold."""
        deadline = time.monotonic() + timeout_s
        with translated(self._where, self.close):
            connection = self._connected()
            limit = min(max_messages, self._room())
            while True:
                now = time.monotonic()
                if limit > 0 and (now >= self._next_look or self._watch.wait(0.0)):
                    self._watch.begin()
                    with connection.begin():
                        chunk = self._look(connection, limit, now)
                    if chunk.messages:
                        self._next_look = 0.0  # there may be more
                        return chunk
                    self._next_look = now + self._pause_s(now)
                    now = time.monotonic()
                if now >= deadline:
                    return NOTHING
                if limit > 0:
                    self._watch.wait(min(deadline, self._next_look) - now)
                else:
                    time.sleep(deadline - now)

    def close(self) -> None:
        """Close the connection; another source may take its place. In a forked child it does nothing."""
        if self._process.is_another_process:
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            close_quietly(connection)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @abstractmethod
    def _begin(self) -> None:
        """Set the connection, become the reader, and set what tells of changes. Any error closes the source."""

    @abstractmethod
    def _look(self, connection: Connection, limit: int, now: float) -> Chunk:
        """The next rows, at most `limit`, and hold them. The connection is in a transaction that began after `now`."""

    @abstractmethod
    def _room(self) -> int:
        """How many more rows the receiver may hold."""

    def _pause_s(self, now: float) -> float:
        """How many seconds after `now` to look again, if the look at this time has found nothing."""
        del now
        return self._poll_interval_s

    def _connected(self) -> Connection:
        self._process.check(self._where)
        if self._connection is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._connection

    def _ids(self, unique: str) -> dict[str, PropertyValue]:
        """The properties that the templates of the receiver use, for a row with a unique id."""
        return self._wanted_ids.properties(unique, self._name)
