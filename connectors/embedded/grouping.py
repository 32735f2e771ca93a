"""Group commit: writes of several threads of a process that wait for the same SQLite file share one transaction.

SQLite has one writer at a time, and each commit waits for the disk. While one commits, other threads line up, and the
first of them then writes for all. PostgreSQL shares commits among its sessions by itself.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from connectors.embedded.database import raw_sqlite

MOST = 64
"""Most writes of one transaction."""
T = TypeVar("T")
_SET = threading.Event()
_SET.set()


class Transaction(Protocol):
    """Begins the transaction of a group, as `DatabaseLink.transaction`."""

    def __call__(self, *, synced: bool) -> AbstractContextManager[Connection]:
        """BEGIN to COMMIT."""
        ...


class _Write:
    """What one thread wants to write.

    Attributes:
        woken: set when the thread shall lead a group, or when its write has ended.
    """

    def __init__(self, do: Callable[[Connection], Any], woken: threading.Event, *, synced: bool) -> None:
        self.do = do
        self.synced = synced
        self.woken = woken
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run_alone(self, connection: Connection) -> None:
        self.result = self.do(connection)

    def run_among_others(self, connection: Connection) -> None:
        """An error undoes this write only."""
        raw = raw_sqlite(connection)
        raw.execute("SAVEPOINT one")
        try:
            self.result = self.do(connection)
        except Exception as error:  # noqa: BLE001  # the thread that wants the write raises it
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
        """Write, perhaps together with other threads; returns when the transaction has committed.

        Args:
            do: writes in a transaction. Another thread may call it, while this one waits.
            transaction: of the link of this thread, if it writes for the group.
            synced: whether the commit must wait for the disk.

        Raises what `do` raises, and nothing is written then; what `transaction` raises if it fails.
        """
        with self._lock:
            own = _Write(do, threading.Event() if self._has_leader else _SET, synced=synced)
            self._has_leader = True
            self._line.append(own)
        try:
            own.woken.wait()
        except BaseException:
            self._withdraw(own)
            raise
        if not own.ended:
            self._lead(own, transaction)
        if own.error is not None:
            raise own.error
        result: T = own.result
        return result

    def _lead(self, own: _Write, transaction: Transaction) -> None:
        """Write for the first ones in the line, which begins with the leader."""
        with self._lock:
            group, self._line = self._line[:MOST], self._line[MOST:]
        try:
            _commit(group, transaction)
        except Exception as error:  # noqa: BLE001  # each thread raises it
            _fail(group, error)
        except BaseException:
            _fail([write for write in group if write is not own], OSError("the thread that writes was interrupted"))
            raise
        finally:
            with self._lock:
                self._appoint()
            for write in group:
                write.ended = True
                write.woken.set()

    def _appoint(self) -> None:
        """Let the next thread lead. Called under the lock."""
        self._has_leader = bool(self._line)
        if self._line:
            self._line[0].woken.set()

    def _withdraw(self, own: _Write) -> None:
        """The thread was interrupted while it waited."""
        with self._lock:
            if own in self._line:
                led = own.woken.is_set()
                self._line.remove(own)
                if led:
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
