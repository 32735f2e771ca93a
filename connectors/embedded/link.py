"""The link of a source or sink to the database, which hides all differences between SQLite and PostgreSQL.

SQLite: each writer first takes the gate, a lock among the threads of the process and a lock on a file among processes.
So no writer polls a busy database, and no two connections write or checkpoint the write-ahead log at the same time
(versions of SQLite before 3.51.3 can damage the file if they do). PostgreSQL needs no gate.

Other processes must notice at once, without heartbeats, if the process of a consumer or client is killed. So each
consumer and each client holds a lock (its life): with SQLite on a file of its own, with PostgreSQL an advisory lock of
its session. The operating system or the server frees the lock when the process ends.

Each link also takes a shared lock together with all other links. A link that gets this lock exclusively is the first
user of the broker: it starts the broker.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from connectors.embedded import schema
from connectors.embedded.database import (
    SqliteTransaction,
    connect_postgres,
    connect_sqlite,
    raw_sqlite,
)
from connectors.embedded.gates import Turn, gate
from connectors.embedded.sql import Sql
from connectors.embedded.starting import start
from correlator.durable import PRIVATE_DIRECTORY
from correlator.errors import ConnectionLost, StoreError
from correlator.processes import LockFile, Maker, never_finalize
from correlator.storage import files
from correlator.storage.database import copy_while_running, location
from correlator.storage.postgres import session_of

_BOOT = Sql("SELECT 1", "SELECT token FROM broker_boot")
_LOCK = Sql("SELECT 1", "SELECT pg_advisory_lock({lock_key})")
_TRY_LOCK = Sql("SELECT 1", "SELECT pg_try_advisory_lock({lock_key})")
_SHARE = Sql("SELECT 1", "SELECT pg_advisory_lock_shared({lock_key})")
_UNLOCK = Sql("SELECT 1", "SELECT pg_advisory_unlock({lock_key})")
_END_SHARE = Sql("SELECT 1", "SELECT pg_advisory_unlock_shared({lock_key})")
_IS_HELD = Sql("SELECT 1", "SELECT EXISTS (SELECT 1 FROM ({locked_keys}) AS locks WHERE key = {lock_key})")
_ANY_DEAD = Sql(
    "SELECT 1",
    "WITH locks AS MATERIALIZED ({locked_keys}) SELECT EXISTS (SELECT 1 FROM unnest(CAST(:names AS text[])) AS name"
    " WHERE NOT EXISTS (SELECT 1 FROM locks WHERE key = {key_of_name}))",
)
_NEW_BOOT = Sql("SELECT 1", "INSERT INTO broker_boot (token) VALUES (gen_random_uuid()) RETURNING token")
T = TypeVar("T")


class DatabaseLink(Protocol):
    """An open connection. One thread at a time uses it, in the process that made it.

    Attributes:
        boot: a text that changes with each start of the host (SQLite), or with each crash recovery of the server
            (PostgreSQL). If it has changed, commits that did not wait for the disk may be lost.
    """

    connection: Connection
    maker: Maker
    boot: str

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[Connection]:
        """Return a writing transaction: it commits at the end, and rolls back after an exception.

        Without `synced` the commit does not wait for the disk. PostgreSQL ignores `synced`: there, statements of the
        transaction set this themselves, which saves a round trip.
        """
        ...

    def write(self, do: Callable[[Connection], T], *, synced: bool = True) -> T:
        """Run `do` in a writing transaction. With SQLite this transaction may also contain writes of other threads."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a block whose statements only read, and wait for nobody. Only with SQLite it is one transaction."""
        ...

    def opening(self) -> AbstractContextManager[None]:
        """Keep other processes from opening the broker within the block, in which there may be transactions."""
        ...

    def back_up(self, suffix: str) -> None:
        """Copy a SQLite file beside itself; do nothing with PostgreSQL, whose backups are made with the
        server's tools.
        """
        ...

    def note_boot(self) -> None:
        """Set `boot`. Called while the broker is being opened, with the tables of this version."""
        ...

    def is_first(self) -> bool:
        """Return whether no other link is open, in any process. Called while the broker is being
        opened; `stay` follows.
        """
        ...

    def stay(self) -> None:
        """Show other processes that the broker is open, until the link is closed."""
        ...

    def live(self, name: str, *, together: bool = False) -> None:
        """Take the lock that shows that a consumer or client lives. Called in the transaction that registers it.

        With `together` several links share the lock: a client lives until the last of its links has ended.
        """
        ...

    def die(self, name: str) -> None:
        """Release the lock. Called outside a transaction; never raises."""
        ...

    def is_dead(self, name: str) -> bool:
        """Return whether the process or session of a consumer or client is gone. Called in a
        transaction that writes.
        """
        ...

    def is_any_dead(self, names: Sequence[str]) -> bool:
        """Return whether `is_dead` is true for one of these."""
        ...

    def close(self) -> None:
        """Close the connection; never raises. Does nothing in a forked child, since the connection is its parent's."""
        ...


DATABASE_ERRORS = (SQLAlchemyError, StoreError, sqlite3.Error, OSError)
"""Errors of the database and of the file system."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Within the block, turn errors of the database and of the file system into `ConnectionLost` E7003."""
    try:
        yield
    except DATABASE_ERRORS as error:
        raise database_failed(where, error) from error


def database_failed(where: str, error: Exception) -> ConnectionLost:
    """Make the error of a connection whose database has failed."""
    cause = getattr(error, "orig", None) or error
    return ConnectionLost("E7003", where, f"the broker's database failed: {str(cause).strip()}")


def open_link(store: str, *, make: bool = True) -> DatabaseLink:
    """Connect, bring the schema up to date, and start the broker if nobody else has it open.

    With `make` a SQLite file that does not exist is made; otherwise it is an error (E7003): a broker that was open and
    is gone, as on a disk that was unmounted, must not be replaced by an empty one. Raises errors that `translated`
    turns into `ConnectionLost`, and `ConnectionLost` E7003 and E7006.
    """
    link: DatabaseLink = SqliteLink(store, make=make) if is_sqlite(store) else PostgresLink(store)
    try:
        with link.opening():
            with link.reading() as connection:
                found = schema.revision(connection)
            if found != schema.HEAD:
                schema.refuse_unknown(location(store), found)
                if found:
                    link.back_up(f".backup-{found}")
                schema.upgrade(link.connection, found)
            link.note_boot()
            if link.is_first():
                with link.transaction() as connection:
                    start(connection, link)
            link.stay()
    except BaseException:
        link.close()
        raise
    return link


def is_sqlite(store: str) -> bool:
    """Return whether the URL names a SQLite file."""
    return make_url(store).get_backend_name() == "sqlite"


def is_alive(store: str, connection: Connection, name: str) -> bool:
    """Return whether a consumer lives whose row the connection has read. Changes nothing.

    A consumer takes its lock before its row becomes visible (`DatabaseLink.live`).
    """
    if not is_sqlite(store):
        return bool(_IS_HELD.one(connection, name=name))
    try:
        life = LockFile(_lives(sqlite_path(store)) / name, 0)
    except FileNotFoundError:
        return False
    try:
        return life.is_locked()
    finally:
        life.close()


def _lives(path: Path) -> Path:
    return Path(f"{path}.consumers")


def sqlite_path(store: str) -> Path:
    """Return the file that a SQLite URL names."""
    return Path(make_url(store).database or "")


class SqliteLink:
    """A connection to a SQLite file. `FILE.gate`, `FILE.users` and the directory `FILE.consumers` are
    beside the file.
    """

    def __init__(self, store: str, *, make: bool = True) -> None:
        self._path = path = sqlite_path(store)
        self.maker = Maker()
        self.boot = ""
        self._own: dict[str, LockFile] = {}
        self._lives = _lives(path)
        files.refuse_network(path)
        if not make and not path.exists():
            todo = "Put it back, with its file -wal; to begin with an empty broker instead, restart this process"
            raise ConnectionLost("E7003", str(path), "the broker's file is gone", "", todo)
        if make:
            path.parent.mkdir(PRIVATE_DIRECTORY, exist_ok=True)  # but not its parents: a disk may not be mounted
        threads = gate(store)
        self._group = threads.group
        with ExitStack() as opened:
            self._gate = LockFile(Path(f"{path}.gate"))
            opened.callback(self._gate.close)
            self._turn = Turn(threads, self._gate)
            self._users = LockFile(Path(f"{path}.users"))
            opened.callback(self._users.close)
            with self._turn:
                self.connection = connect_sqlite(path, make=make)
            never_finalize(self.connection)
            self._raw = raw_sqlite(self.connection)
            self._place = files.OpenFiles(path)
            opened.pop_all()  # nothing has failed: `close` closes them later

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[Connection]:
        """BEGIN IMMEDIATE to COMMIT, with the checkpoint of the log that may follow, while holding the gate.

        A later synced commit also brings earlier commits to the disk, since all share one log.
        """
        with self._turn:
            try:
                if not synced:
                    self._raw.execute("PRAGMA synchronous = NORMAL")
                with SqliteTransaction(self._raw, "BEGIN IMMEDIATE"):
                    yield self.connection
            finally:
                if not synced:
                    self._raw.execute("PRAGMA synchronous = FULL")
            self._place.check()

    def write(self, do: Callable[[Connection], T], *, synced: bool = True) -> T:
        """Run `do` in a transaction of the group."""
        return self._group.write(do, self.transaction, synced=synced)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """BEGIN to COMMIT, without the gate."""
        with SqliteTransaction(self._raw, "BEGIN"):
            yield self.connection
        self._place.check()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold the gate over all transactions of the block."""
        with self._turn.over_transactions():
            yield

    def back_up(self, suffix: str) -> None:
        """Let SQLite copy the database. The copy appears only when it is complete and durable."""
        copy_while_running(f"sqlite:///{self._path}", files.beside(self._path, suffix))

    def note_boot(self) -> None:
        """Set `boot` to the id that the kernel chose at its start."""
        with suppress(OSError):
            self.boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

    def is_first(self) -> bool:
        """Return whether nobody else has the shared lock on the file of the users."""
        return self._users.try_lock()

    def stay(self) -> None:
        """Take the shared lock on the file of the users. The gate keeps others from locking the file in between."""
        self._users.share()

    def live(self, name: str, *, together: bool = False) -> None:
        """Lock a file. The gate keeps others from finding the file before it is locked."""
        self._lives.mkdir(mode=0o700, exist_ok=True)
        life = self._own[name] = LockFile(self._lives / name)
        if together:
            life.share()
        else:
            life.try_lock()

    def die(self, name: str) -> None:
        """Remove the file, unless another link has locked it, too."""
        life = self._own.pop(name, None)
        if life is not None:
            if life.try_lock():
                life.path.unlink(missing_ok=True)
            life.close()

    def is_dead(self, name: str) -> bool:
        """Return whether nobody holds the lock on the file; if so, remove the file."""
        try:
            life = LockFile(self._lives / name, 0)
        except FileNotFoundError:
            return True
        try:
            dead = life.try_lock()
            if dead:
                life.path.unlink(missing_ok=True)
            return dead
        finally:
            life.close()

    def is_any_dead(self, names: Sequence[str]) -> bool:
        """Return whether nobody holds the lock on one of the files."""
        return any(map(self.is_dead, names))

    def close(self) -> None:
        """Close the database, then the locks."""
        if self.maker.is_another_process:
            return
        # The last connection to close checkpoints the log, so it goes through the gate like every writer.
        with suppress(SQLAlchemyError, OSError), self._turn:
            self.connection.close()
        for name in list(self._own):
            self.die(name)
        self._users.close()
        self._gate.close()


class PostgresLink:
    """A session of a PostgreSQL server."""

    def __init__(self, store: str) -> None:
        self.maker = Maker()
        self._own: dict[str, bool] = {}  # by name: whether others may have the lock, too
        self._first = False
        self.boot = ""
        self.connection = connect_postgres(store)

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[Connection]:  # noqa: ARG002
        """Run the block in a transaction of the session: commit at its end, or roll back after an exception.

        Ignores `synced`; see `DatabaseLink.transaction`.
        """
        with self.connection.begin():
            yield self.connection

    def write(self, do: Callable[[Connection], T], *, synced: bool = True) -> T:
        """Run `do` in a transaction."""
        with self.transaction(synced=synced) as connection:
            return do(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Let each statement of the block be a transaction of its own, which saves two round trips.

        A longer transaction would not see one moment of the database either: each of its statements sees what was
        committed before that statement.
        """
        with session_of(self.connection).each_alone():
            yield self.connection

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold a lock over the transactions of the block."""
        self._do(_LOCK, "tables")
        try:
            yield
        finally:
            if not self.connection.invalidated:
                self._do(_UNLOCK, "tables")

    def _do(self, statement: Sql, name: str) -> Any:
        with self.transaction() as connection:
            return statement.one(connection, name=name)

    def back_up(self, suffix: str) -> None:
        """Do nothing: an administrator backs up the server with its own tools."""

    def note_boot(self) -> None:
        """Read the token in an unlogged table, which a crash recovery empties; store a new one if there is none."""
        with self.transaction() as connection:
            found = _BOOT.one(connection)
            self.boot = str(found or _NEW_BOOT.one(connection))

    def is_first(self) -> bool:
        """Return whether nobody else has the shared lock of the users."""
        self._first = bool(self._do(_TRY_LOCK, "users"))
        return self._first

    def stay(self) -> None:
        """Take the shared lock of the users, then release the exclusive lock that `is_first` may have taken."""
        self._do(_SHARE, "users")
        if self._first:
            self._do(_UNLOCK, "users")

    def live(self, name: str, *, together: bool = False) -> None:
        """Take a lock that outlives the transaction and ends with the session."""
        (_SHARE if together else _LOCK).one(self.connection, name=name)
        self._own[name] = together

    def die(self, name: str) -> None:
        """Release the advisory lock that showed that a consumer or client lives; do nothing if there is
        none. Never raises.
        """
        if name in self._own:
            unlock = _END_SHARE if self._own.pop(name) else _UNLOCK
            with suppress(SQLAlchemyError):
                self._do(unlock, name)

    def is_dead(self, name: str) -> bool:
        """Return whether no session holds the lock, by reading `pg_locks`: trying the lock would show others a life."""
        return not _IS_HELD.one(self.connection, name=name)

    def is_any_dead(self, names: Sequence[str]) -> bool:
        """Return whether no session holds one of the locks, with one statement."""
        return bool(_ANY_DEAD.one(self.connection, names=list(names)))

    def close(self) -> None:
        """End the session, and with it all its advisory locks. Never raises; does nothing in a forked child."""
        if self.maker.is_another_process:
            return
        with suppress(SQLAlchemyError):
            self.connection.close()
