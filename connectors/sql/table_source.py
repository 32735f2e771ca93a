"""A source that looks for rows repeatedly, with one session: the base class for outbox tables and polled tables."""

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
        where: place of the receiver, for messages.
        receiver: the settings of the receiver.
        url: address of the database.
        table: name of the table.
        poll_interval_s: seconds after which the source looks for rows even without a notification.
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
        """Connect, check the table, and become its reader. Raises `UsageError` E2050 in a forked child."""
        if self._connection is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with translated(self._where, self.close):
            self._begin()
        self._next_look = 0.0

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the next rows that the receiver does not hold; see `connector.Source`."""
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
        """Close the connection; another source may then read the table. Does nothing in a forked child."""
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
        """Set up the connection, become the reader, and set up notifications of changes. Any error
        closes the source.
        """

    @abstractmethod
    def _look(self, connection: Connection, limit: int, now: float) -> Chunk:
        """Return the next rows, at most `limit`, and hold them. The connection is in a transaction that
        began after `now`.
        """

    @abstractmethod
    def _room(self) -> int:
        """Return how many more rows the receiver may hold."""

    def _pause_s(self, now: float) -> float:
        """Return the seconds after `now` until the next look, if the look at this time has found nothing."""
        del now
        return self._poll_interval_s

    def _connected(self) -> Connection:
        self._process.check(self._where)
        if self._connection is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._connection

    def _ids(self, unique: str) -> dict[str, PropertyValue]:
        """Return the properties that the templates of the receiver use, for a row with a unique id."""
        return self._wanted_ids.properties(unique, self._name)
