"""Opens database connections of the embedded broker. Commits are durable, and transactions begin explicitly.

The store of an engine has one owner (`correlator.storage.database.connect`). A broker has many users at the same time:
each opens a connection of its own here, without the lock of the database.
"""

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, NullPool, create_engine, event

from correlator.errors import ConnectionLost, StoreError
from correlator.storage import files
from correlator.storage.database import location, parse
from correlator.storage.postgres import connect_server, postgres_engine
from correlator.storage.sqlite import open_durable, read_pragma

APPLICATION_ID = 0x636F7262
"""Marks a SQLite file as a broker: "corb", in its header."""


def connect_sqlite(path: Path, *, make: bool = True) -> Connection:
    """Open a connection to the file of a broker. With `make` it makes the file if there is none; its directory must
    exist.

    Raises:
        ConnectionLost: E3003, the file belongs to another application and was not changed; E3106, SQLite does not
            accept the settings that make commits durable.
        sqlalchemy.exc.DBAPIError, sqlite3.Error, OSError: the file cannot be used.
    """
    if make:
        files.make_private_file(path)
    engine = create_engine("sqlite://", creator=lambda: _dial(path), poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    return engine.connect()


def _begin(connection: Connection) -> None:
    """Begin a transaction of SQLAlchemy, which revisions use, unless a `SqliteTransaction` is open."""
    raw = raw_sqlite(connection)
    if not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")


_SETTINGS = (
    "SELECT set_config('enable_sort', 'off', false), set_config('enable_bitmapscan', 'off', false),"
    " set_config('enable_seqscan', 'off', false),"
    " set_config('jit', 'off', false), set_config('synchronous_commit',"
    " CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,"
    " false)"
)


class SqliteTransaction:
    """A transaction of the driver, which takes 15 µs less than a transaction of SQLAlchemy.

    Args:
        raw: the driver's connection.
        begin: the statement that begins it. A transaction that writes needs BEGIN IMMEDIATE, which takes the write lock
            at once: if it took the lock later, it would fail after another transaction had written.
    """

    def __init__(self, raw: sqlite3.Connection, begin: str) -> None:
        self._raw = raw
        self._begin = begin

    def __enter__(self) -> None:
        try:
            self._raw.execute(self._begin)
        except BaseException:
            self._raw.rollback()  # an interrupt may come after the beginning
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                commit(self._raw)
        finally:
            self._raw.rollback()  # does nothing after a commit


def commit(raw: sqlite3.Connection) -> None:
    """Commit. If this fails, the transaction may still be open."""
    raw.execute("COMMIT")


def _dial(path: Path) -> sqlite3.Connection:
    try:
        raw = open_durable(path, APPLICATION_ID)
    except StoreError as error:
        raise ConnectionLost(error.code, error.where, error.what, error.allowed, error.todo) from error
    try:
        if read_pragma(raw, "application_id") != APPLICATION_ID:
            raw.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
    except BaseException:
        raw.close()
        raise
    return raw


def raw_sqlite(connection: Connection) -> sqlite3.Connection:
    """Return the driver's connection below a connection."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def connect_postgres(store: str) -> Connection:
    """Open a session with a server that is not a pooler. Commits are durable whatever the server's default is.

    The address may ask for more than that (`synchronous_commit=remote_apply`); only `off` is replaced.

    Each query of the broker for the next messages has an index in its order. The session sorts, and reads bitmaps and
    whole tables, only if there is no other way: otherwise a server whose statistics take a queue for nearly empty reads
    all of its messages for each batch. It compiles nothing (`jit`), since the server takes such plans for expensive.

    Raises:
        ConfigError: E1301.
        StoreError: E3310, E3311 as `storage.postgres`.
        sqlalchemy.exc.DBAPIError: the session cannot be opened.
    """
    connection = connect_server(postgres_engine(parse(store)), location(store))
    connection.exec_driver_sql(_SETTINGS)
    connection.commit()
    return connection
