"""Databases as this product uses them: one owner, one writing connection, and every difference between dialects.

`connect` takes ownership (a lock that dies with the process) and opens the only connection that ever writes.
`open_reader` is for everybody else. Knows no table: the store of the engine and the embedded broker both use it.

Two things hold everywhere. A transaction whose outcome is not known is never reported as rolled back: on SQLite an
error of COMMIT other than "busy" and "full" ends the engine (the rows may appear after a restart), on PostgreSQL a
lost connection is `CommitUnknown`. And durability is read back, not assumed: a database that would not survive a
power cut is refused.
"""

import contextlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import quote

from sqlalchemy import URL, BigInteger, Connection, Dialect, Engine, Integer, NullPool, Row, Table, create_engine, event
from sqlalchemy import exc as sql_errors
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.sql import ClauseElement

from correlator import durable
from correlator.errors import ConfigError, Fenced, StoreError, quoted
from correlator.processes import LockFile, Maker, keep, never_finalize
from correlator.storage import failures, files
from correlator.storage.failures import damaged, errors_of_sqlite, failure, is_damage, unknown

with contextlib.suppress(ImportError):  # the driver is an extra; without it `postgres_engine` raises E3310
    from correlator.storage.session import Session

Number = BigInteger().with_variant(Integer(), "sqlite")  # 64 bits on both; SQLite's key must be called INTEGER

APPLICATION_ID = 0x636F7272  # "corr": what a store of this product carries in its header
NO_DATABASE = "E3010"
CONNECT_TIMEOUT_S = 10
OLDEST_POSTGRES = 15
PAGES_TIDIED = 10_000
LOOK_AT_LOCK_S = 5.0
"""While nothing is to be written, a session that must have a lock is asked for it after so many seconds."""
_NOTICE_LOST_CLIENTS = (
    "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),"
    " set_config('tcp_keepalives_count', '4', false)"
)
"""A host that vanished gives its lock up within half a minute; by the server's own settings it would take hours."""
LARGEST_IDLE_WAL = 64 * 1024 * 1024
"""Bytes to which the WAL of a SQLite file is cut when it begins anew, after a long reader had let it grow (trap T5)."""


def parse(url: str) -> URL:
    """Read the address of a database.

    Raises:
        ConfigError: E1301, not one of the two forms; the text of the address is not repeated, it may hold a password.
    """
    scheme, colon, _ = url.partition("://")
    scheme = scheme if colon else ""
    try:
        parsed = make_url(url)
    except (sql_errors.ArgumentError, ValueError) as error:
        raise _wrong_url(scheme) from error
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:") or parsed.query:
            raise _wrong_url(scheme)
        return parsed
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise _wrong_url(scheme)


def connect(url: str, *, application_id: int = APPLICATION_ID) -> "Database":
    """Take a database for this process alone and open its one writing connection.

    Args:
        url: `sqlite:///path` or `postgresql://…`.
        application_id: what kind of data it holds; a SQLite file that carries another one is refused.

    Raises:
        ConfigError: E1301.
        Fenced: E3201, owned by another process.
        StoreError: E30xx, E31xx, E33xx, E91xx: it cannot be used; nothing was changed.
    """
    parsed = parse(url)
    kind = SqliteDatabase if parsed.get_backend_name() == "sqlite" else PostgresDatabase
    database = kind(parsed, application_id)
    database.open()
    return database


def open_reader(url: str) -> Engine:
    """An engine whose connections can only read, usable while another process (or this one) writes.

    SQLite is opened `mode=ro`, so that it neither writes nor checkpoints (trap T6), and without BEGIN
    IMMEDIATE. Errors of its use are SQLAlchemy's; `reading` translates them.

    Raises:
        ConfigError: E1301.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        path = _path_of(parsed)
        if not path.exists():
            todo = "Start the engine once, or name another store"
            raise StoreError(NO_DATABASE, str(path), "there is no store yet", "", todo)
        engine = create_engine("sqlite://", creator=lambda: _dial_sqlite(path, "ro"), poolclass=NullPool)
        event.listen(engine, "begin", _begin)
        return engine
    if parsed.query.get("target_session_attrs") == "read-write":  # the same server, for a session that only reads
        parsed = parsed.update_query_dict({"target_session_attrs": "primary"})
    # By default each statement of PostgreSQL would see another moment.
    return postgres_engine(parsed).execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def connect_server(engine: Engine, where: str) -> Connection:
    """A session that may hold locks: with the server itself, which notices within half a minute that we are gone.

    It ends with this process, though children that it forked may live on.

    Raises:
        StoreError: E3311, a pooler stands between. The driver's errors pass.
    """
    connection = engine.connect()
    _keep_session(connection)
    try:
        _refuse_pooler(connection, where)
        connection.exec_driver_sql(_NOTICE_LOST_CLIENTS)
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_pooler(connection: Connection, where: str) -> None:
    """A pooler names a session of its own to its clients, since theirs may have another one at each transaction."""
    promised = _session_of(connection).info.backend_pid
    if connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != promised:
        _refuse(
            "E3311",
            where,
            "a connection pooler stands between this process and the PostgreSQL server",
            "A lock that says that its owner lives needs a session of its own",
            "Name the address of the server itself",
        )


@contextlib.contextmanager
def reading(url: str) -> Iterator[Connection]:
    """One consistent look at a database from outside: a single short read transaction.

    Raises:
        StoreError: E3006, E3001, E3002, E3102, E33xx as `connect` would.
    """
    with _session(open_reader(url), url) as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def administering(url: str) -> Iterator[Connection]:
    """A session with a PostgreSQL server in which each statement is a transaction of its own: schemas are made in it.

    Raises:
        StoreError: E31xx, E33xx as `connect` would.
    """
    engine = postgres_engine(parse(url)).execution_options(isolation_level="AUTOCOMMIT")
    with _session(engine, url) as connection:
        yield connection


@contextlib.contextmanager
def _session(engine: Engine, url: str) -> Iterator[Connection]:
    """One session for looks and commands, whose errors become those of this module."""
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                _session_of(connection).patient = True
            yield connection
    except sql_errors.DBAPIError as error:
        raise failure(engine.dialect.name, location(url), error, committing=False) from error
    finally:
        engine.dispose()


def copy_while_running(url: str, target: Path) -> None:
    """Write a consistent copy of a SQLite database, also while its owner writes; nothing is locked.

    Raises:
        StoreError: E3006, E3001, E3002 as `reading`.
        OSError: the target cannot be written.
    """
    path = _path_of(parse(url))
    with errors_of_sqlite(str(path)), contextlib.closing(_dial_sqlite(path, "ro")) as raw:
        _copy_sqlite(raw, str(path), target)


def structural_damage(connection: Connection) -> list[str]:
    """What is wrong with the pages and indices of a database, for a reader; a server checks its pages as they are read.

    At most 100 findings, and what ended the look if it could not be finished. The driver's other errors pass.
    """
    if connection.dialect.name != "sqlite":
        return []
    found: list[str] = []
    try:
        for finding in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
            found += [line for line in finding.splitlines() if line != "ok" and not line.startswith("***")]
    except sql_errors.DatabaseError as error:
        if not is_damage(error):
            raise
        found.append(str(error.orig))
    return found


def location(url: str) -> str:
    """A database as messages name it: the path of a file, the address of a server without its password."""
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        return str(_path_of(parsed))
    return parsed.set(drivername="postgresql").render_as_string(hide_password=True)


class Statement:
    """A statement compiled once, executed on the driver with rows as mappings: 10 µs instead of 100 µs a call."""

    def __init__(self, dialect: Dialect, clause: ClauseElement) -> None:
        compiled = clause.compile(dialect=dialect)
        self._sql = str(compiled)
        self._order: Sequence[str] | None = getattr(compiled, "positiontup", None)
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute with each row; returns how many rows of the table were met, where there was one set of values."""
        parameters = [self._parameters(row) for row in rows]
        return connection.exec_driver_sql(self._sql, parameters if len(parameters) > 1 else parameters[0]).rowcount

    def _parameters(self, row: Mapping[str, Any]) -> Any:
        values = {**self._fixed, **row} if self._fixed else row
        return dict(values) if self._order is None else tuple(values[name] for name in self._order)


def upsert(dialect: Dialect, table: Table, *, only: Sequence[str] = (), unless: str = "") -> ClauseElement:
    """Insert a row, or replace the one with its primary key.

    Args:
        dialect: of the database.
        table: where.
        only: the columns that a replacement changes; all but the key by default.
        unless: a column that never goes down: a row that would not raise it changes nothing.
    """
    insert = (sqlite.insert if dialect.name == "sqlite" else postgresql.insert)(table)
    keys = [column.name for column in table.primary_key]
    changed = only or [column.name for column in table.columns if column.name not in keys]
    condition = table.c[unless] < insert.excluded[unless] if unless else None
    return insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in changed}, where=condition
    )


class Database(ABC):
    """A database that this process owns: its lock and its only writing connection.

    Used by one thread at a time. After a fork the child cannot use it (E3107) and leaves the parent's alone.
    """

    engine: Engine

    def __init__(self, url: URL, application_id: int) -> None:
        self.url = url
        self.application_id = application_id
        self.where = location(url.render_as_string(hide_password=False))
        self._maker = Maker()
        self._connection: Connection | None = None

    @property
    def dialect(self) -> Dialect:
        """What statements are compiled for."""
        return self.engine.dialect

    @property
    def connection(self) -> Connection:
        """The one writing connection.

        Raises:
            StoreError: E3107 in a child process, E3109 when it is closed.
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
        """One transaction: committed at the end of the block, rolled back when the block raises.

        What is committed to files that somebody has removed is lost, so it does not count as committed (E3112).

        Raises:
            StoreBusy: E3101 to E3103, rolled back, may be tried again.
            CommitUnknown: E3105, E3308, PostgreSQL only: the connection was lost, or another server is the one that can
                be written; `reconnect`, then look.
            StoreError: anything else; the process must not go on with this database.
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
        self._check_place()

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """For commands and revisions: within the block a statement may take as long as it needs."""
        yield

    @contextlib.contextmanager
    def translated(self, *, committing: bool = False) -> Iterator[None]:
        """Turn errors of the driver into those of this module; `committing` when the outcome is then unknown."""
        try:
            yield
        except sql_errors.DBAPIError as error:
            raise failure(self.dialect.name, self.where, error, committing=committing) from error

    @contextlib.contextmanager
    def looking(self) -> Iterator[Connection]:
        """For reading: in the transaction that is going on, else in one of its own. Raises as `transaction`."""
        if not self.connection.in_transaction():
            with self.transaction() as connection:
                yield connection
        else:
            with self.translated():
                yield self.connection

    def open(self) -> None:
        """Lock, connect, and check that what is committed stays committed; called by `connect`."""
        try:
            with self.translated():
                self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection and give the lock up; never raises."""
        if not self._maker.is_another_process:
            self._hang_up()
            self._unlock()

    @abstractmethod
    def reconnect(self) -> None:
        """Connect again after the connection was lost, and own the database again.

        Raises:
            CommitUnknown: E3105, E3308, cannot be reached or written now; try again later.
            Fenced: another process owns it now.
            StoreError: it cannot be used any more.
        """

    @abstractmethod
    def confirm_lock(self) -> float | None:
        """While nothing is to be written: make sure that the lock was not lost; a look only where it is due.

        Returns the seconds until the next look is due, `None` where a lock cannot be lost.

        Raises:
            CommitUnknown: E3105, the session is lost: `reconnect`.
            Fenced: E3203, the session lives and has the lock no more.
        """

    @abstractmethod
    def stamp(self, connection: Connection, schema: int) -> None:
        """Mark the database, in the transaction that changes its schema, as ours with this schema number."""

    @abstractmethod
    def back_up(self, suffix: str) -> Path | None:
        """Write a consistent copy beside a SQLite file and return its path; `None` where the server has backups."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Look for damage that no row would show.

        Raises:
            StoreError: E3002.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Give space that deleted rows left back to the file system: a bounded piece of work, outside a transaction.

        Raises:
            StoreError: as `transaction`.
        """

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _unlock(self) -> None: ...

    @abstractmethod
    def _check_place(self) -> None:
        """After a commit: raises `StoreError` when it went to something that is not there any more."""

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                self._connection.close()
            self._connection = None
            self.engine.dispose()


class SqliteDatabase(Database):
    """A SQLite file: owned by `flock`, write-ahead log, a sync at every commit."""

    def __init__(self, url: URL, application_id: int) -> None:
        super().__init__(url, application_id)
        self.path = _path_of(url)
        self._lock: LockFile | None = None

    def _open(self) -> None:
        files.prepare(self.path)
        self._lock = files.lock(self.path)
        self.engine = create_engine("sqlite://", creator=self._dial, poolclass=NullPool)
        event.listen(self.engine, "begin", _begin_immediate)
        self._connect()

    def reconnect(self) -> None:
        """Open the file again; the lock was never lost."""
        self._hang_up()
        with self.translated():
            self._connect()

    def confirm_lock(self) -> float | None:
        """A lock of this process on a file ends with the process."""
        return None

    def stamp(self, connection: Connection, schema: int) -> None:
        """In the header of the file, where other programs look too."""
        connection.exec_driver_sql(f"PRAGMA application_id = {self.application_id:d}")
        connection.exec_driver_sql(f"PRAGMA user_version = {schema:d}")

    def back_up(self, suffix: str) -> Path | None:
        """Copy by SQLite itself; the name appears only when the copy is complete and durable."""
        target = files.beside(self.path, suffix)
        _copy_sqlite(self._raw(), self.where, target)
        return target

    def check_integrity(self) -> None:
        """Look at the structure of every page."""
        with errors_of_sqlite(self.where):
            (verdict,) = self._raw().execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(self.where, verdict)

    def tidy(self) -> None:
        """A bounded number of pages; without this a file never gets smaller (trap T68)."""
        with errors_of_sqlite(self.where):  # `execute` would stop after its first page: there are steps without rows
            self._raw().executescript(f"PRAGMA incremental_vacuum({PAGES_TIDIED:d})")

    def _dial(self) -> sqlite3.Connection:
        """Open the file; nothing is written to a file that is not ours."""
        raw = _dial_sqlite(self.path, "rw")
        try:
            with errors_of_sqlite(self.where):
                self._settle(raw)
        except BaseException:
            raw.close()
            raise
        return raw

    def _settle(self, raw: sqlite3.Connection) -> None:
        marker = _pragma(raw, "application_id")
        (objects,) = raw.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if marker != self.application_id and (marker or objects):
            raise foreign(self.where)
        if not objects:
            raw.execute("PRAGMA page_size = 16384")  # rows are batches: fewer, larger pages cost a commit less
            raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = FULL")
        # What is received is deleted soon: in a larger WAL most of it is superseded before it is copied to the file.
        raw.execute("PRAGMA wal_autocheckpoint = 2048")
        raw.execute(f"PRAGMA journal_size_limit = {LARGEST_IDLE_WAL:d}")
        raw.execute("PRAGMA fullfsync = ON")  # macOS: without it a sync stops at the cache of the disk
        if _pragma(raw, "journal_mode") != "wal" or _pragma(raw, "synchronous") != 2:
            raise StoreError("E3106", self.where, "SQLite does not accept WAL with synchronous=FULL", "", "")
        raw.execute("SELECT count(*) FROM sqlite_master")  # makes the log, for `files.Place`

    def _raw(self) -> sqlite3.Connection:
        raw = self.connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        return raw

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_place(self) -> None:
        self._place.check()

    def _connect(self) -> None:
        self._connection = self.engine.connect()
        self._place = files.Place(self.path)
        never_finalize(self._connection)  # in a child it would take the log from under the parent


class PostgresDatabase(Database):
    """A schema of a PostgreSQL database: an advisory lock says that the owner lives.

    The lock goes with the session, so it can move while the old owner still runs: whoever writes must check a number
    of its own in each transaction (the epoch).
    """

    def __init__(self, url: URL, application_id: int) -> None:
        super().__init__(url, application_id)
        self._confirmed = 0.0  # when the lock was last seen, by a monotonic clock
        self._sessions: list[int] = []  # backends that may have the lock for us; the last one is the present one

    def _open(self) -> None:
        self.engine = postgres_engine(self.url)
        self._begin_session()
        self._take_lock()

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """No answer comes too late."""
        session = _session_of(self.connection)
        session.patient = True
        try:
            yield
        finally:
            session.patient = False

    def reconnect(self) -> None:
        """A new session; a lost one of ours is ended first, so that no commit of its can come after we looked.

        One that was lost while it reconnected may have the lock as well, so each is remembered.
        """
        if self._connection is not None:
            self._connection.invalidate()  # hanging up would roll back first, over a connection in whatever state
        self._hang_up()
        try:
            self._begin_session()
            self._end_lost_sessions()
            self._take_lock()
        except sql_errors.DBAPIError as error:
            raise unknown(self.where, error) from error

    def confirm_lock(self) -> float | None:
        """By one query each `LOOK_AT_LOCK_S`."""
        due = self._confirmed + LOOK_AT_LOCK_S - time.monotonic()
        if due > 0:
            return due
        with self.transaction() as connection:
            (mine,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
            holder = self._holder()
        if holder is None or holder.pid != mine:
            raise Fenced("E3203", self.where, "the session lost the lock on the store", "", "This engine stops")
        self._confirmed = time.monotonic()
        return LOOK_AT_LOCK_S

    def stamp(self, connection: Connection, schema: int) -> None:
        """The table of versions says it all."""

    def back_up(self, suffix: str) -> Path | None:  # noqa: ARG002
        """The server's own backups are the place for this."""
        return None

    def check_integrity(self) -> None:
        """The server checks its pages itself."""

    def tidy(self) -> None:
        """The server vacuums by itself."""

    def _begin_session(self) -> None:
        """Connect and check; a session is known before it asks for the lock, since its answer may be lost."""
        self._connection = connect_server(self.engine, self.where)
        self._sessions.append(_session_of(self._connection).info.backend_pid)
        refuse_server(self.where, _server_facts(self.connection))
        self.connection.commit()

    def _take_lock(self) -> None:
        """Own the schema for the life of the session.

        Raises:
            Fenced: E3201 with what the owner says of itself.
        """
        taken = self.connection.exec_driver_sql(
            "SELECT pg_try_advisory_lock(%(kind)s, hashtext(current_schema()))", {"kind": self.application_id}
        ).scalar_one()
        owner = "" if taken else self._owner()
        self.connection.commit()
        if not taken:
            raise files.owned(self.where, owner)
        del self._sessions[:-1]
        self._confirmed = time.monotonic()

    def _owner(self) -> str:
        """The `application_name` of the session that has the lock; another user's may be hidden."""
        holder = self._holder()
        if holder is None:
            return "another session"
        return f"{holder.application_name} since {holder.backend_start.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def _end_lost_sessions(self) -> None:
        """End our own lost session if the server still has it (it might commit after we looked), and wait for that."""
        holder = self._holder()
        if holder and holder.pid in self._sessions[:-1]:
            self.connection.exec_driver_sql("SELECT pg_terminate_backend(%(pid)s)", {"pid": holder.pid})
            self.connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{CONNECT_TIMEOUT_S}s'")
            self.connection.exec_driver_sql(
                "SELECT pg_advisory_lock(%(kind)s, hashtext(current_schema()))", {"kind": self.application_id}
            )
        self.connection.commit()

    def _holder(self) -> Row[Any] | None:
        """The session that has the lock: backend, application name, begin."""
        return self.connection.exec_driver_sql(
            "SELECT a.pid, a.application_name, a.backend_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %(kind)s"
            " AND l.objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            {"kind": self.application_id},
        ).first()

    def close(self) -> None:
        """Give the lock up first: the server may take a moment to notice that a session has ended."""
        if self._connection is not None and not self._connection.invalidated and not self._maker.is_another_process:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                self._connection.rollback()
                self._connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
                self._connection.commit()
        super().close()

    def _unlock(self) -> None:
        """The lock went with the session."""

    def _check_place(self) -> None:
        """The server refuses to write into what has been dropped."""


class ServerFacts:
    """What decides whether a PostgreSQL server keeps what it has confirmed."""

    def __init__(
        self,
        *,
        version: int,
        encoding: str,
        fsync: str,
        synchronous_commit: str,
        read_only: bool,
        schema: str | None,
    ) -> None:
        self.version = version
        self.encoding = encoding
        self.fsync = fsync
        self.synchronous_commit = synchronous_commit
        self.read_only = read_only
        self.schema = schema


def refuse_server(where: str, facts: ServerFacts) -> None:
    """Check a server.

    Raises:
        CommitUnknown: E3308, it only reads now.
        StoreError: E3304 to E3307, one for each thing that a store cannot live with.
    """
    if facts.version < OLDEST_POSTGRES * 10_000:
        _refuse("E3307", where, f"PostgreSQL {facts.version // 10_000} is too old", f"{OLDEST_POSTGRES} or newer")
    if facts.read_only:
        raise failures.only_reads(where)
    if facts.encoding != "UTF8":
        _refuse("E3305", where, f"the database has the encoding {facts.encoding}", "Only UTF8 holds every name")
    if facts.fsync == "off":
        _refuse("E3306", where, "fsync is off: a power cut would lose acknowledged messages", "", "Set fsync = on")
    if facts.synchronous_commit == "off":
        _refuse(
            "E3306",
            where,
            "synchronous_commit is off: a crash would lose acknowledged messages",
            "",
            "Set synchronous_commit = on for this user or database",
        )
    if facts.schema is None:
        _refuse("E3304", where, "there is no schema that this user may use", "", "Create one, or set search_path")


def _keep_session(connection: Connection) -> None:
    keep(_session_of(connection))
    never_finalize(connection)


def _session_of(connection: Connection) -> "Session":
    return cast("Session", connection.connection.driver_connection)


def keep_uncompressed(connection: Connection, table: str, column: str) -> None:
    """Let PostgreSQL store large values of a column as they are: its compression took a third of a commit's time.

    For revisions; the names are theirs, not a user's. SQLite never compresses.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def foreign(where: str) -> StoreError:
    """The refusal of data that this product did not make (E3003)."""
    return StoreError(
        "E3003",
        where,
        "belongs to another application",
        "A store is a file (a schema of PostgreSQL) of its own",
        "Name another one",
    )


def closed(where: str) -> StoreError:
    """The refusal of a call before `open` or after `close` (E3109)."""
    return StoreError("E3109", where, "the store is closed")


def _server_facts(connection: Connection) -> ServerFacts:
    row = connection.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),"
        " current_setting('fsync'), current_setting('synchronous_commit'),"
        " pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', current_schema()"
    ).one()
    return ServerFacts(
        version=row[0],
        encoding=row[1],
        fsync=row[2],
        synchronous_commit=row[3],
        read_only=row[4],
        schema=row[5],
    )


def postgres_engine(url: URL) -> Engine:
    """Makes sessions with a PostgreSQL server that are lost when it does not answer (`correlator.storage.session`).

    Raises:
        StoreError: E3310, the driver is not installed.
    """
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args=_postgres_arguments(url))
    except ImportError as error:
        raise StoreError(
            "E3310", "store", "PostgreSQL needs the package 'psycopg'", "", "Install: pip install correlator[postgres]"
        ) from error
    event.listen(engine, "do_connect", _dial_postgres)
    return engine


def _dial_postgres(_dialect: Any, _record: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return Session.connect(*arguments, **named)


def _postgres_arguments(url: URL) -> dict[str, Any]:
    """Arguments of the driver that the address does not set: a dead peer is noticed within half a minute."""
    host = files.owner_text().partition(" since ")[0]
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": host,
        "client_encoding": "utf8",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def _path_of(url: URL) -> Path:
    return Path(os.path.abspath(url.database or ""))  # noqa: PTH100  # `resolve` would follow the links we refuse


def _dial_sqlite(path: Path, mode: str) -> sqlite3.Connection:
    """Connect with explicit transactions: the driver's own opens none for DDL (trap T66)."""
    uri = f"file:{quote(os.fsencode(path))}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=failures.BUSY_TIMEOUT_S
    )


def _copy_sqlite(raw: sqlite3.Connection, where: str, target: Path) -> None:
    """Copy by SQLite itself; the name appears only when the copy is complete and durable."""
    partial = files.beside(target, ".part")
    partial.unlink(missing_ok=True)
    os.close(durable.create_private(partial))
    with errors_of_sqlite(where):
        raw.execute("VACUUM INTO ?", (str(partial),))
    with partial.open("rb") as written:
        os.fsync(written.fileno())
    partial.replace(target)
    durable.sync_directory(target.parent)


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _pragma(raw: sqlite3.Connection, name: str) -> Any:
    return raw.execute(f"PRAGMA {name}").fetchone()[0]


def _refuse(code: str, where: str, what: str, allowed: str = "", todo: str = "") -> NoReturn:
    raise StoreError(code, where, what, allowed, todo)


def _wrong_url(scheme: str) -> ConfigError:
    return ConfigError(
        "E1301",
        "store",
        f"{quoted(scheme + ':…')} is not the address of a store",
        "",
        "Use sqlite:///path or postgresql://…",
    )
