"""How sources and sinks reach the broker: each over its own link, or all of a session over one shared link."""

import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from connectors.embedded import clients
from connectors.embedded.link import DATABASE_ERRORS, DatabaseLink, database_failed, is_sqlite, open_link, translated
from connectors.embedded.storing import Undone
from connectors.embedded.sweeping import Sweeper, sweeper
from connectors.embedded.waking import bells
from correlator.errors import ConnectionLost, SendRejected, UsageError

T = TypeVar("T")


class Access:
    """Opens a link, runs one transaction at a time on it, and closes it after a failure.

    If the link of a session fails, all its sources and sinks have lost their connection: each remembers the link over
    which it has connected, and `transaction` refuses any link other than the open one. Threads may share the object.

    Args:
        store: the broker's database.
        shared: whether several sources and sinks use it, so that `leave` keeps the link open.
        client: called before a link opens. It registers the client of this object if that is necessary, and returns the
            id of the client's row, or 0 if there is no client. The client lives at least as long as the link.
        auto_create: whether the use of a destination that does not exist makes the destination.

    Attributes:
        is_sqlite: whether the database is a file.
        waits: whether senders may wait for room.
        bell: the name of the bell that wakes the thread of a session that waits for room or for messages.
        bells: wakes consumers of this process and of other processes.
    """

    def __init__(
        self, store: str, *, shared: bool = False, client: Callable[[], int] = lambda: 0, auto_create: bool = True
    ) -> None:
        self.store = store
        self.auto_create = auto_create
        self.client = client
        self.is_sqlite = is_sqlite(store)
        self.waits = True
        self.bell = f"access {uuid.uuid4().hex}"
        self.bells = bells(store)
        self._shared = shared
        self._turn = threading.RLock()
        self._was_open = False
        self._link: DatabaseLink | None = None
        self._sweeper: Sweeper | None = None

    def connect(self, where: str) -> DatabaseLink:
        """Return the open link; open one if there is none. Raises `ConnectionLost`."""
        with self._turn:
            if self._link is None:
                client = self.client()
                with translated(where):
                    self._link = self._joined(where, client)
                if self._shared:
                    self._sweeper = sweeper(self.store)
                    self._sweeper.join()
            self._link.maker.check(where)
            return self._link

    def _joined(self, where: str, client: int) -> DatabaseLink:
        """Open a link that keeps the client alive."""
        link = open_link(self.store, make=not self._was_open)
        self._was_open = True
        try:
            if client:
                with link.transaction(synced=False) as connection:
                    clients.join(connection, client, where, link)
        except BaseException:
            link.close()
            raise
        return link

    def uses(self, link: DatabaseLink) -> bool:
        """Return whether this link is the open one."""
        return self._link is link

    def leave(self) -> None:
        """Close the link, unless others share it. Never raises."""
        if not self._shared:
            self.close()

    def close(self) -> None:
        """Close the link. Never raises."""
        with self._turn:
            if self._link is not None:
                self._link.close()
            self._link = None
            if self._sweeper is not None:
                self._sweeper.leave()
            self._sweeper = None

    def refuse_to_wait(self) -> None:
        """Let no sender wait for room until `allow_to_wait`. Any thread may call it."""
        self.waits = False
        self.bells.ring_here((self.bell,))

    def allow_to_wait(self) -> None:
        """Let senders wait for room again. Any thread may call it."""
        self.waits = True

    def ring(self, destinations: Collection[str]) -> None:
        """Wake consumers of these destinations, after a commit that made messages available. Never raises."""
        with self._turn:
            if self._link is not None and destinations:
                self.bells.ring(destinations, self._link.connection)

    @contextmanager
    def transaction(self, where: str, link: DatabaseLink | None, *, synced: bool = True) -> Iterator[Connection]:
        """Run the block in a writing transaction on the link; see `DatabaseLink.transaction`.

        Raises `ConnectionLost` E7003 after a failure and if the link is not the open one. The link stays open only
        after `SendRejected`, `UsageError` and `Undone`.
        """
        with self._exclusively(where, link) as own, own.transaction(synced=synced) as connection:
            yield connection

    def write(self, where: str, link: DatabaseLink | None, do: Callable[[Connection], T], *, synced: bool = True) -> T:
        """Run `do` in a writing transaction, perhaps together with writes of other threads. Raises as `transaction`."""
        with self._exclusively(where, link) as own:
            return own.write(do, synced=synced)

    def alone(self, where: str, link: DatabaseLink | None, do: Callable[[Connection], T]) -> T:
        """Let `do` execute a statement of PostgreSQL that is a transaction of its own. Raises as `transaction`."""
        with self._exclusively(where, link) as own:
            return do(own.connection)

    @contextmanager
    def reading(self, where: str, link: DatabaseLink | None) -> Iterator[Connection]:
        """Run a block that only reads; see `DatabaseLink.reading`. Raises as `transaction`."""
        with self._exclusively(where, link) as own, own.reading() as connection:
            yield connection

    @contextmanager
    def _exclusively(self, where: str, link: DatabaseLink | None) -> Iterator[DatabaseLink]:
        if link is None:
            raise ConnectionLost("E7003", where, "not connected")
        link.maker.check(where)
        with self._turn:
            if link is not self._link:
                raise ConnectionLost("E7003", where, "not connected")
            try:
                yield link
            except (SendRejected, UsageError, Undone):
                raise
            except DATABASE_ERRORS as error:
                self.close()
                raise database_failed(where, error) from error
            except BaseException:
                self.close()
                raise
