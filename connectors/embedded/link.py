"""The link of a source or sink to the database, with all differences between SQLite and PostgreSQL.

SQLite: each writer first takes the gate, a lock among the threads of the process and a lock on a file among processes.
So no writer polls a busy database, and no two connections write or checkpoint the write-ahead log at the same time
(versions of SQLite before 3.51.3 can damage the file if they do). PostgreSQL needs no gate.

Other consumers must notice at once, without heartbeats, that the process of a consumer was killed. So each consumer
holds a lock: with SQLite on a file of its own, with PostgreSQL an advisory lock of its session. The operating system or
the server frees the lock when the process ends.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from connectors.embedded import ledger
from connectors.embedded.database import APPLICATION_ID, connect_postgres, connect_sqlite
from connectors.embedded.neighbours import neighbours
from connectors.embedded.tables import SCHEMA_VERSION
from correlator.durable import PRIVATE_DIRECTORY
from correlator.errors import ConnectionLost, StoreError
from correlator.processes import LockFile, Maker, never_finalize
from correlator.storage import files

GATE_TIMEOUT_S = 10.0


class DatabaseLink(Protocol):
    """An open connection. Used by one thread at a time of the process that made it."""

    connection: Connection
    maker: Maker

    def transaction(self) -> AbstractContextManager[Connection]:
        """A writing transaction: commits at the end, rolls back after an exception."""
        ...

    def lock_schema(self) -> None:
        """Keep other connections from making tables until the transaction ends."""
        ...

    def announce(self, consumer: int) -> None:
        """Take the lock that shows that the consumer lives. Called in the transaction that registers the consumer."""
        ...

    def is_dead(self, consumer: int) -> bool:
        """Whether the process or session of a consumer is gone. Called in a transaction."""
        ...

    def close(self) -> None:
        """Close the connection; never raises. Does nothing in a forked child, since the connection is its parent's."""
        ...


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn errors of the database and of the file system into `ConnectionLost` E7003."""
    try:
        yield
    except (SQLAlchemyError, StoreError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise ConnectionLost("E7003", where, f"the broker's database failed: {str(cause).strip()}") from error


def open_link(store: str) -> DatabaseLink:
    """Connect, and make missing tables. Raises errors that `translated` turns into `ConnectionLost`."""
    link: DatabaseLink = SqliteLink(store) if is_sqlite(store) else PostgresLink(store)
    try:
        with link.transaction() as connection:
            link.lock_schema()
            version = ledger.create(connection)
    except BaseException:
        link.close()
        raise
    if version > SCHEMA_VERSION:
        link.close()
        raise ConnectionLost(
            "E7006",
            store,
            f"written by a newer version (schema {version}, this is {SCHEMA_VERSION})",
            "",
            "Upgrade first",
        )
    return link


def is_sqlite(store: str) -> bool:
    """Whether the URL names a SQLite file."""
    return make_url(store).get_backend_name() == "sqlite"


def sqlite_path(store: str) -> Path:
    """The file that a SQLite URL names."""
    return Path(make_url(store).database or "")


class SqliteLink:
    """A connection to a SQLite file. Beside it lie `FILE.gate` and the directory `FILE.consumers`."""

    def __init__(self, store: str) -> None:
        path = sqlite_path(store)
        self.maker = Maker()
        self._life: LockFile | None = None
        self._lives = Path(f"{path}.consumers")
        self._neighbours = neighbours(store)
        files.refuse_network(path)
        path.parent.mkdir(PRIVATE_DIRECTORY, exist_ok=True)  # not its parents: a disk may not be mounted
        self._gate = LockFile(Path(f"{path}.gate"))
        try:
            with self._alone():
                self.connection = connect_sqlite(path)
            never_finalize(self.connection)
            self._place = files.OpenFiles(path)
        except BaseException:
            self._gate.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """BEGIN IMMEDIATE to COMMIT, with the checkpoint of the log that may follow, while holding the gate."""
        with self._alone():
            with self.connection.begin():
                yield self.connection
            self._place.check()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the gate, against other threads and processes. Raises `TimeoutError`."""
        deadline = time.monotonic() + GATE_TIMEOUT_S
        if not self._neighbours.gate.acquire(timeout=GATE_TIMEOUT_S):
            raise TimeoutError(f"no turn to write within {GATE_TIMEOUT_S:g} s")
        try:
            if not self._gate.try_lock(deadline - time.monotonic()):
                raise TimeoutError(f"no turn to write within {GATE_TIMEOUT_S:g} s")
            try:
                yield
            finally:
                self._gate.unlock()
        finally:
            self._neighbours.gate.release()

    def lock_schema(self) -> None:
        """Do nothing: the gate keeps others out."""

    def announce(self, consumer: int) -> None:
        """Lock the consumer's file. The gate keeps others from finding the file before it is locked."""
        self._lives.mkdir(mode=0o700, exist_ok=True)
        self._life = LockFile(self._lives / str(consumer))
        self._life.try_lock()

    def is_dead(self, consumer: int) -> bool:
        """Whether nobody holds the lock on the consumer's file; removes the file of a dead consumer."""
        try:
            life = LockFile(self._lives / str(consumer), 0)
        except FileNotFoundError:
            return True
        try:
            dead = life.try_lock()
            if dead:
                life.path.unlink(missing_ok=True)
            return dead
        finally:
            life.close()

    def close(self) -> None:
        """Close the database, then the locks."""
        if self.maker.is_another_process:
            return
        # The last connection to close checkpoints the log, so it goes through the gate like every writer.
        with suppress(SQLAlchemyError, OSError), self._alone():
            self.connection.close()
        if self._life is not None:
            self._life.path.unlink(missing_ok=True)
            self._life.close()
            self._life = None
        self._gate.close()


class PostgresLink:
    """A session of a PostgreSQL server."""

    def __init__(self, store: str) -> None:
        self.maker = Maker()
        self.connection = connect_postgres(store)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """BEGIN to COMMIT."""
        with self.connection.begin():
            yield self.connection

    def lock_schema(self) -> None:
        """Take a lock: if two sessions made the same missing table, one would fail."""
        self.connection.execute(select(func.pg_advisory_xact_lock(_lock_of("tables"))))

    def announce(self, consumer: int) -> None:
        """Take the consumer's lock; it outlives the transaction and ends with the session."""
        self.connection.execute(select(func.pg_advisory_lock(_lock_of(consumer))))

    def is_dead(self, consumer: int) -> bool:
        """Whether no session holds the consumer's lock."""
        return bool(self.connection.execute(select(func.pg_try_advisory_xact_lock(_lock_of(consumer)))).scalar())

    def close(self) -> None:
        """End the session."""
        if self.maker.is_another_process:
            return
        with suppress(SQLAlchemyError):
            self.connection.close()


def _lock_of(what: int | str) -> ColumnElement[int]:
    """The key of an advisory lock. Its name includes the schema, since all schemas of a database share the keys."""
    name = func.concat("correlator broker ", func.current_schema(), " ", str(what))
    return func.hashtextextended(name, APPLICATION_ID)
