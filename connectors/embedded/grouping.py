"""Group commit: writes of several threads of a process that wait for the same SQLite file share one transaction.

SQLite has one writer at a time, and each commit waits for the disk. While one thread commits, other threads line
up. Then the first of them, the leader, writes for all. PostgreSQL shares commits among its sessions by itself.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from connectors.embedded.database import raw_sqlite

MOST = 64
"""Largest number of writes in one transaction."""
T = TypeVar("T")


class Transaction(Protocol):
    """Begins the transaction of a group; see `DatabaseLink.transaction`."""

    def __call__(self, *, synced: bool) -> AbstractContextManager[Connection]:
        """Return the context from BEGIN to COMMIT."""
        ...


class _Write:
    """A write that one thread requests.

    Attributes:
        woken: set when the thread must lead a group, or when its write has ended; `None` if the thread leads at once.
    """

    def __init__(self, do: Callable[[Connection], Any], *, synced: bool) -> None:
        self.do = do
        self.synced = synced
        self.woken: threading.Event | None = None
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def leads(self) -> bool:
        """Return whether the thread must lead, unless the write has ended."""
        return self.woken is None or self.woken.is_set()

    def wake(self) -> None:
        if self.woken is not None:
            self.woken.set()

    def run_alone(self, connection: Connection) -> None:
        self.result = self.do(connection)

    def run_among_others(self, connection: Connection) -> None:
        """Run the write within a savepoint, so that its error undoes only this write."""
        raw = raw_sqlite(connection)
        raw.execute("SAVEPOINT one")
        try:
            self.result = self.do(connection)
        except Exception as error:
            if not raw.in_transaction:  # SQLite has undone all writes: the disk is full, for example
                raise
            self.error = error
            raw.execute("ROLLBACK TO one")
        raw.execute("RELEASE one")


class Group:
    """The threads of this process that want to write to one file. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: list[_Write] = []
        self._has_leader = False

    def write(self, do: Callable[[Connection], T], transaction: Transaction, *, synced: bool) -> T:
        """Write, perhaps together with other threads; return when the transaction has committed.

        Args:
            do: function that writes in a transaction. Another thread may call it, while this one waits.
            transaction: begins a transaction on the link of this thread; called if this thread leads the group.
            synced: whether the commit must wait for the disk.

        Raises the error of `do`, whose write is then undone, or the error of `transaction`, if the transaction fails.
        """
        own = _Write(do, synced=synced)
        try:
            with self._lock:
                if self._has_leader:
                    own.woken = threading.Event()
                self._line.append(own)
                self._has_leader = True
            if own.woken is not None:
                own.woken.wait()
            if not own.ended:
                self._lead(own, transaction)
        except BaseException:
            self._withdraw(own)
            raise
        if own.error is not None:
            raise own.error
        result: T = own.result
        return result

    def _lead(self, own: _Write, transaction: Transaction) -> None:
        """Write for the first threads of the queue, which begins with the leader."""
        group: list[_Write] = []
        try:
            with self._lock:
                group, self._line = self._line[:MOST], self._line[MOST:]
            _commit(group, transaction)
        except Exception as error:  # noqa: BLE001  # each thread raises it
            _fail(group, error)
        except BaseException:
            _fail([write for write in group if write is not own], OSError("the thread that writes was interrupted"))
            raise
        finally:
            try:
                with self._lock:
                    self._appoint()
            finally:
                for write in group:
                    write.ended = True
                    write.wake()

    def _appoint(self) -> None:
        """Let the next thread lead. Called under the lock."""
        self._has_leader = bool(self._line)
        if self._line:
            self._line[0].wake()

    def _withdraw(self, own: _Write) -> None:
        """Remove the write of a thread from the queue if the thread was interrupted before it wrote."""
        with self._lock:
            if own in self._line:
                self._line.remove(own)
                if own.leads():
                    self._appoint()


def _commit(group: Sequence[_Write], transaction: Transaction) -> None:
    with transaction(synced=any(write.synced for write in group)) as connection:
        if len(group) == 1:
            group[0].run_alone(connection)
        else:
            for write in group:
                write.run_among_others(connection)


def _fail(group: Sequence[_Write], error: BaseException) -> None:
    for write in group:
        write.error = error
