"""A database that one process owns: the common base of SQLite and PostgreSQL for the store.

Two rules hold for both. First, if the outcome of a transaction is not known, no error says that it was rolled back.
With SQLite, an error of COMMIT other than "busy" and "full" ends the engine (the rows may be there after a restart);
with PostgreSQL, a lost connection raises `CommitUnknown`. Second, durability is checked: a database that would not
survive a power cut is refused.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy import exc as sql_errors

from correlator.errors import StoreError
from correlator.processes import Maker
from correlator.storage.failures import UNREADABLE_NAME, damaged, failure


class Database(ABC):
    """A database that this process owns: its lock and its only writing connection.

    Used by one thread at a time. After a fork the child cannot use it (E3107), and its `close` does nothing.

    Args:
        where: the name of the database in messages.
        application_id: marks the database as one that holds data of the expected kind.
    """

    engine: Engine

    def __init__(self, where: str, application_id: int) -> None:
        self.where = where
        self.application_id = application_id
        self._maker = Maker()
        self._connection: Connection | None = None

    @property
    def dialect(self) -> Dialect:
        """The SQL that this database understands; statements are compiled for it."""
        return self.engine.dialect

    @property
    def connection(self) -> Connection:
        """The one writing connection.

        Raises:
            StoreError: E3107 in a child process, E3109 if the database is closed.
        """
        if self._maker.is_another_process:
            raise StoreError(
                "E3107",
                self.where,
                f"store opened by pid {self._maker.pid}, used in pid {os.getpid()}",
                "A store does not survive a fork",
                "Start workers by 'spawn', or open the store in the child",
            )
        if self._connection is None:
            raise closed(self.where)
        return self._connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: commits at the end of the block, rolls back when the block raises.

        A commit to files that somebody has removed is lost, so it raises an error (E3112).

        Raises:
            StoreBusy: E3101 to E3103, rolled back; the caller may try again.
            CommitUnknown: E3105, E3308, E3111, PostgreSQL only: the outcome is not known, or this server can no longer
                be written. The caller calls `reconnect`, then reads whether the transaction is there.
            StoreError: any other failure; the process must stop using this database.
        """
        connection = self.connection
        with self.translated():
            transaction = connection.begin()
        try:
            with self.translated():
                yield connection
            with self.translated(committing=True):
                transaction.commit()
        except BaseException:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                transaction.rollback()
            raise
        self._check_files()

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """Let statements take any time within the block. For commands and revisions."""
        yield

    @contextlib.contextmanager
    def translated(self, *, committing: bool = False) -> Iterator[None]:
        """Turn errors of SQLAlchemy into `StoreError`.

        Args:
            committing: whether the block is a COMMIT; after its error it is unknown whether the commit happened.
        """
        try:
            yield
        except sql_errors.DBAPIError as error:
            raise failure(self.dialect.name, self.where, error, committing=committing) from error
        except UnicodeDecodeError as error:
            if self.dialect.name != "sqlite":
                raise
            raise damaged(self.where, UNREADABLE_NAME) from error

    @contextlib.contextmanager
    def looking(self) -> Iterator[Connection]:
        """Open a transaction to read; if a transaction is open, use it. Raises as `transaction`."""
        if not self.connection.in_transaction():
            with self.transaction() as connection:
                yield connection
        else:
            with self.translated():
                yield self.connection

    def open(self) -> None:
        """Take the lock, connect, and check that commits are durable; `storage.database.connect` calls it once."""
        try:
            with self.translated():
                self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection and release the lock; never raises."""
        if not self._maker.is_another_process:
            self._hang_up()
            self._unlock()

    @abstractmethod
    def reconnect(self) -> None:
        """Connect again after the connection was lost, and take the lock again.

        Raises:
            CommitUnknown: E3105, E3308, the database cannot be reached or written at present; try again later.
            Fenced: E3201, another process owns the database.
            StoreError: the database cannot be used any more.
        """

    @abstractmethod
    def confirm_lock(self, *, at_once: bool = False) -> float | None:
        """Check that the lock was not lost, if the check is due. Called while there is nothing to write.

        Args:
            at_once: whether to check even if the check is not due.

        Returns the seconds until the next check is due, `None` if a lock of this kind cannot be lost.

        Raises:
            CommitUnknown: E3105, the session is lost; the caller calls `reconnect`.
            Fenced: E3203, the session lives but no longer has the lock.
        """

    @abstractmethod
    def stamp(self, connection: Connection, schema: int) -> None:
        """Mark the database with its kind and schema number; called in the transaction that changes its schema."""

    @abstractmethod
    def back_up(self, suffix: str) -> Path | None:
        """Write a consistent copy beside a SQLite file, and return its path. With PostgreSQL do nothing, and return
        `None`.

        Args:
            suffix: the end of the name of the copy, after the name of the file.
        """

    @abstractmethod
    def check_integrity(self) -> None:
        """Look for damage that reading all rows might not show.

        Raises:
            StoreError: E3002, the database is damaged.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Return some of the space of deleted rows to the file system; called outside a transaction.

        Raises:
            StoreError: as `transaction`.
        """

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _unlock(self) -> None: ...

    @abstractmethod
    def _check_files(self) -> None:
        """Raise `StoreError` E3112 if files of the database were removed or replaced; called after a commit."""

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                self._connection.close()
            self._connection = None
            self.engine.dispose()


def foreign(where: str) -> StoreError:
    """Return the refusal of a database with data of another application (E3003)."""
    return StoreError(
        "E3003",
        where,
        "belongs to another application",
        "A store or a broker has a file (a schema of PostgreSQL) of its own",
        "Name another one",
    )


def no_store(where: str) -> StoreError:
    """Return the refusal of a database that no engine has opened yet (E3010)."""
    return StoreError("E3010", where, "holds no store", "", "Start the engine once, or name another store")


def closed(where: str) -> StoreError:
    """Return the refusal of a call before `open` or after `close` (E3109)."""
    return StoreError("E3109", where, "the store is closed")
