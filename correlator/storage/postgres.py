"""PostgreSQL: sessions that notice a lost server, the check of servers, and a store in a schema of a server.

The embedded broker opens its sessions with this module, too.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any, NoReturn, cast

from sqlalchemy import URL, Connection, Engine, NullPool, Row, create_engine, event
from sqlalchemy import exc as sql_errors

from correlator.errors import Fenced, StoreError
from correlator.processes import keep, never_finalize
from correlator.secrets import without_secrets
from correlator.storage import failures, files
from correlator.storage.failures import unknown
from correlator.storage.owned import Database

with contextlib.suppress(ImportError):  # the driver is an extra; without it `postgres_engine` raises E3310
    from correlator.storage.session import PostgresSession

CONNECT_TIMEOUT_S = 10
OLDEST_POSTGRES = 15
LOOK_AT_LOCK_S = 5.0
"""Seconds between two checks whether the session still has its lock, while nothing is written."""
_NOTICE_LOST_CLIENTS = (
    "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),"
    " set_config('tcp_keepalives_count', '4', false)"
)
"""With these settings the server frees the lock of a vanished host within half a minute; its defaults take hours."""


def address_of(url: URL) -> str:
    """Return the text of an address for messages, without its password, even if the password is a parameter."""
    return str(without_secrets(url.set(drivername="postgresql").render_as_string(hide_password=True)))


def postgres_engine(url: URL) -> Engine:
    """Make an engine of SQLAlchemy whose sessions are lost if the server does not answer
    (`correlator.storage.session`).

    Raises:
        StoreError: E3310, the driver is not installed.
    """
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args=_driver_arguments(url))
    except ImportError as error:
        raise StoreError(
            "E3310", "store", "PostgreSQL needs the package 'psycopg'", "", "Install: pip install correlator[postgres]"
        ) from error
    event.listen(engine, "do_connect", _dial)
    return engine


def open_reader(url: URL) -> Engine:
    """Make an engine of SQLAlchemy whose transactions only read, and see one moment of the database each.

    Raises:
        StoreError: E3310, the driver is not installed.
    """
    if url.query.get("target_session_attrs") == "read-write":  # the same server, for a session that only reads
        url = url.update_query_dict({"target_session_attrs": "primary"})
    # By default each statement would see the database at a different moment.
    return postgres_engine(url).execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _dial(_dialect: Any, _record: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return PostgresSession.connect(*arguments, **named)


def _driver_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments with which the driver notices a dead server in half a minute, except those that the address
    sets.
    """
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


def connect_server(engine: Engine, where: str) -> Connection:
    """Open a session that may hold locks.

    The session is with the server itself. The server notices the loss of this host within half a minute. The session
    ends with this process, even if children that the process has forked live on.

    Raises:
        StoreError: E3311, a connection pooler stands between this process and the server.
        sqlalchemy.exc.DBAPIError: the session cannot be opened.
    """
    connection = engine.connect()
    keep(session_of(connection))
    never_finalize(connection)
    try:
        _refuse_pooler(connection, where)
        connection.exec_driver_sql(_NOTICE_LOST_CLIENTS)
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def replication_session(url: URL) -> "PostgresSession":
    """Open a session that can read the log of the server, beside statements without parameters.

    As with `connect_server`, the server notices the loss of this host, and the session ends with this process. Connect
    to the server in the usual way first; this checks the address and the driver.

    Raises:
        psycopg.Error: the session cannot be opened.
    """
    arguments, named = postgres_engine(url).dialect.create_connect_args(url)
    all_named: dict[str, Any] = {**named, **_driver_arguments(url), "replication": "database", "autocommit": True}
    session = PostgresSession.connect(*arguments, **all_named)
    keep(session)
    never_finalize(session)
    try:
        session.execute(_NOTICE_LOST_CLIENTS)
    except BaseException:
        session.close()
        raise
    return session


def session_of(connection: Connection) -> "PostgresSession":
    """Return the session of the driver that a connection of SQLAlchemy uses."""
    return cast("PostgresSession", connection.connection.driver_connection)


def _refuse_pooler(connection: Connection, where: str) -> None:
    """Raise `StoreError` E3311 if a connection pooler stands before the server.

    The check compares the backend id that the client got with the backend id that the server has. A pooler gives its
    clients a different id, and may use another backend after any commit.
    """
    promised = session_of(connection).info.backend_pid
    if connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != promised:
        _refuse(
            "E3311",
            where,
            "a connection pooler stands between this process and the PostgreSQL server",
            "A lock that says that its owner lives needs a session of its own",
            "Name the address of the server itself",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Settings of a PostgreSQL server that decide whether it keeps what it has confirmed."""

    version: int
    encoding: str
    fsync: str
    synchronous_commit: str
    read_only: bool
    schema: str | None


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


def refuse_server(where: str, facts: ServerFacts) -> None:
    """Refuse a server that cannot hold a store.

    Raises:
        CommitUnknown: E3308, the server only reads at present.
        StoreError: E3304 to E3307, a setting that would lose messages or names.
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


def _refuse(code: str, where: str, what: str, allowed: str = "", todo: str = "") -> NoReturn:
    raise StoreError(code, where, what, allowed, todo)


class PostgresDatabase(Database):
    """A store in a schema of a PostgreSQL database. An advisory lock shows that its owner lives.

    The lock ends with its session, so another process can take it while the former owner still runs. Therefore each
    transaction that writes must check a fencing token (the epoch).

    Args:
        url: the address.
        application_id: see `Database`.
        displace: whether to end the session of another owner that has the same application name. The caller knows that
            this owner has lost the right to the store, although it may live: its process is frozen, or its host cannot
            be reached.
    """

    def __init__(self, url: URL, application_id: int, *, displace: bool = False) -> None:
        super().__init__(address_of(url), application_id)
        self._url = url
        self._displace = displace
        self._confirmed = 0.0  # monotonic time of the last query that has found the lock
        self._sessions: list[int] = []  # the backends of this process that may have the lock; the last one is in use

    def _open(self) -> None:
        self.engine = postgres_engine(self._url)
        self._begin_session()
        if self._displace:
            self._end_other_owner()
        self._take_lock()

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """Let the session wait for answers without a time limit within the block."""
        session = session_of(self.connection)
        session.patient = True
        try:
            yield
        finally:
            session.patient = False

    def reconnect(self) -> None:
        """Open a new session. The server first ends the lost session, which could commit even after the caller has
        looked up the outcome.

        If a session is lost while this method takes the lock, it may have the lock, too. So the method remembers each
        session.
        """
        if self._connection is not None:
            self._connection.invalidate()  # `close` would first roll back, on a connection that may be in any state
        self._hang_up()
        try:
            self._begin_session()
            self._end_lost_sessions()
            self._take_lock()
        except sql_errors.DBAPIError as error:
            raise unknown(self.where, error) from error

    def confirm_lock(self, *, at_once: bool = False) -> float | None:
        """Ask the server which session has the lock, every `LOOK_AT_LOCK_S` seconds or at once."""
        due = self._confirmed + LOOK_AT_LOCK_S - time.monotonic()
        if due > 0 and not at_once:
            return due
        with self.transaction() as connection:
            (mine,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
            holder = self._holder()
        if holder is None or holder.pid != mine:
            raise Fenced("E3203", self.where, "the session lost the lock on the store", "", "This engine stops")
        self._confirmed = time.monotonic()
        return LOOK_AT_LOCK_S

    def stamp(self, connection: Connection, schema: int) -> None:
        """Do nothing: the table of schema versions marks the schema."""

    def back_up(self, suffix: str) -> Path | None:  # noqa: ARG002
        """Do nothing: an administrator makes backups with the server's tools."""
        return None

    def check_integrity(self) -> None:
        """Do nothing: the server checks its pages as it reads them."""

    def tidy(self) -> None:
        """Do nothing: the server vacuums by itself."""

    def _begin_session(self) -> None:
        """Connect and check the server.

        The session is noted before it asks for the lock, since the answer may be lost.
        """
        self._connection = connect_server(self.engine, self.where)
        self._sessions.append(session_of(self._connection).info.backend_pid)
        refuse_server(self.where, _server_facts(self.connection))
        self.connection.commit()

    def _take_lock(self) -> None:
        """Lock the schema until the session ends.

        Raises:
            Fenced: E3201, another session has the lock.
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
        """Name and start of the session that has the lock; PostgreSQL may hide both if the session belongs to another
        user.
        """
        holder = self._holder()
        if holder is None:
            return "another session"
        return f"{holder.application_name} since {holder.backend_start.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def _end_lost_sessions(self) -> None:
        """End a lost session of this process that still has the lock, and wait for its end: it might still commit."""
        holder = self._holder()
        if holder and holder.pid in self._sessions[:-1]:
            self._end_session(holder.pid)
        self.connection.commit()

    def _end_other_owner(self) -> None:
        """End the session that has the lock, if its application name is that of this session, and wait for its end."""
        mine = self.connection.exec_driver_sql("SELECT current_setting('application_name')").scalar_one()
        holder = self._holder()
        if holder and holder.application_name == mine:
            self._end_session(holder.pid)
        self.connection.commit()

    def _end_session(self, pid: int) -> None:
        self.connection.exec_driver_sql("SELECT pg_terminate_backend(%(pid)s)", {"pid": pid})
        self.connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{CONNECT_TIMEOUT_S}s'")
        self.connection.exec_driver_sql(
            "SELECT pg_advisory_lock(%(kind)s, hashtext(current_schema()))", {"kind": self.application_id}
        )

    def _holder(self) -> Row[Any] | None:
        """The session that has the lock: process id of its backend, application name, start; `None` if no session has
        the lock.
        """
        return self.connection.exec_driver_sql(
            "SELECT a.pid, a.application_name, a.backend_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %(kind)s"
            " AND l.objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            {"kind": self.application_id},
        ).first()

    def close(self) -> None:
        """Release the lock, then end the session: the server may notice the end of a session only after a moment."""
        if self._connection is not None and not self._connection.invalidated and not self._maker.is_another_process:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                self._connection.rollback()
                self._connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
                self._connection.commit()
        super().close()

    def _unlock(self) -> None:
        """Do nothing: the lock has ended with the session."""

    def _check_files(self) -> None:
        """Do nothing: the server refuses to write into dropped tables."""
