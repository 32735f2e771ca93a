"""Opens a user's database for a sink or a source, and distinguishes errors that concern one row from all others."""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Inspector, inspect
from sqlalchemy.dialects.postgresql.base import PGInspector
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from connectors.sql import mysql
from correlator.errors import ConfigError, ConnectionLost, StoreError, quoted
from correlator.processes import never_finalize
from correlator.storage.database import location, parse
from correlator.storage.postgres import connect_server, postgres_engine
from correlator.storage.sqlite import deferring_engine, path_of, writing_engine

_BUSY_TIMEOUT_S = 5.0
_OF_ONE_ROW = ("22", "23", "44", "54", "P0001", "45000")
"""SQLSTATEs of errors in data, of constraints and of the check option of a view; of PostgreSQL also server limits and
RAISE in a trigger; SIGNAL of MySQL.
"""
_OF_ONE_ROW_IN_MYSQL = {1118, 1265, 1364, 1366, 1369, 1411, 1525, 1526, 3819}
"""Numbers of MySQL's errors about values that have no such SQLSTATE: row too large, value cut, no default, wrong value
for a column, function or partition, CHECK, check option of a view.
"""
_OF_A_VALUE = (ArithmeticError, RecursionError, TypeError, ValueError)
"""Errors of code that converts a value for the driver, before the database gets the statement."""
_NO_RIGHT_IN_MYSQL = {1044, 1142, 1143}


def address(where: str, text: str) -> URL:
    """Read the option `database`. Raises `ConfigError` E1022, whose text omits the address: it may
    contain a password.
    """
    if text.startswith(mysql.SCHEMES):
        return mysql.parse(where, text)
    try:
        return parse(text)
    except ConfigError as error:
        allowed = "Use sqlite:///path, postgresql://user:password@host/database or mysql://user:password@host/database"
        raise ConfigError("E1022", f"{where}.database", "is not the address of a database", allowed) from error


def open_database(where: str, url: URL, *, defers: bool = False) -> Connection:
    """Open a connection whose commits are on disk.

    Args:
        where: the place of the sender or receiver.
        url: address of the database.
        defers: whether transactions of SQLite take the write lock at their first write, not as they begin.

    Raises:
        ConnectionLost: E7010, there is no such SQLite file; E7016, E7643: MySQL cannot be used.
        sqlalchemy.exc.DBAPIError, sqlite3.Error, StoreError, OSError: the database cannot be used.
    """
    if url.get_backend_name() == "sqlite":
        path = path_of(url)
        if not path.exists():
            raise ConnectionLost("E7010", where, f"there is no database {path}", "", "Create it, with its tables")
        engine = (deferring_engine if defers else writing_engine)(lambda: _dial(path))
        connection = engine.connect()
        never_finalize(connection)
        return connection
    if url.get_backend_name() == "mysql":
        return mysql.open_mysql(where, url)
    logging.getLogger("psycopg").addFilter(_is_of_use)  # adding it twice has no effect
    connection = connect_server(postgres_engine(url), location(url.render_as_string(hide_password=False)))
    try:
        connection.exec_driver_sql(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def close_quietly(connection: Connection) -> None:
    """Close a connection in any state. Never raises."""
    try:
        connection.close()
    except (SQLAlchemyError, sqlite3.Error, OSError):
        connection.invalidate()


@contextmanager
def translated(where: str, close: Callable[[], object]) -> Iterator[None]:
    """Call `close` after any error, and turn an error of the database into `ConnectionLost` E7003."""
    try:
        yield
    except (SQLAlchemyError, StoreError, sqlite3.Error, OSError) as error:
        close()
        raise ConnectionLost("E7003", where, f"the database failed: {reason_of(error)}") from error
    except BaseException:
        close()
        raise


def check_table(inspector: Inspector, where: str, table: str, schema: str | None, *, no_view: str = "") -> str:
    """Check that such a table exists; return its name for messages.

    Args:
        inspector: inspector of the open database.
        where: the place of the sender or receiver.
        table: the name of the table.
        schema: its schema, or `None` for the one that the database searches first.
        no_view: why the table may not be a view; empty if a view is allowed.

    Raises:
        ConnectionLost: E7010, there is no such table; E7042, it is a view; E7640, its engine in MySQL has no
            transactions.
    """
    name = f"table {quoted(table)}" if schema is None else f"table {quoted(table)} of schema {quoted(schema)}"
    if not inspector.has_table(table, schema=schema):
        raise ConnectionLost("E7010", where, f"the database has no {name}", "", "Create it, or name another table")
    if no_view:
        views = inspector.get_view_names(schema)
        if inspector.dialect.name == "postgresql":
            views += inspector.get_materialized_view_names(schema)
        if table in views:
            raise ConnectionLost("E7042", where, f"{name} is a view", no_view)
        if inspector.dialect.name == "mysql":
            mysql.check_engine(connection_of(inspector), where, name, table, schema)
    return name


def connection_of(inspector: Inspector) -> Connection:
    """Return the connection that an inspector uses."""
    assert isinstance(inspector.bind, Connection)
    return inspector.bind


def oid_of(connection: Connection, table: str, schema: str | None) -> int:
    """Return the number of an existing table in PostgreSQL."""
    inspector = inspect(connection)
    assert isinstance(inspector, PGInspector)
    return inspector.get_table_oid(table, schema=schema)


def same_table(where: str, url: URL, table: str, schemas: Sequence[str | None]) -> bool:
    """Whether a table of PostgreSQL is the same one in two schemas; `None` is the one that the database searches first.

    False if there is no such table, or the database cannot be asked.
    """
    names = [identifier(table) if one is None else f"{identifier(one)}.{identifier(table)}" for one in schemas]
    try:
        with open_database(where, url) as connection:
            found = connection.exec_driver_sql("SELECT to_regclass(%s) = to_regclass(%s)", tuple(names)).scalar()
    except (SQLAlchemyError, StoreError, OSError):
        return False
    return found is True


def identifier(name: str) -> str:
    """Return a name as it is written in a statement."""
    return '"' + name.replace('"', '""') + '"'


def raw_sqlite(connection: Connection) -> sqlite3.Connection:
    """Return the driver's connection below a connection to a file of SQLite."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def refuses_a_row(error: StatementError | RecursionError) -> bool:
    """Return whether a statement failed because of the values of a row, and would fail again with them."""
    if not isinstance(error, DBAPIError):
        return isinstance(getattr(error, "orig", None) or error, _OF_A_VALUE)
    if error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_OF_ONE_ROW) or _number_of(error) in _OF_ONE_ROW_IN_MYSQL
    return isinstance(error, DataError | IntegrityError)


def is_denied(error: DBAPIError) -> bool:
    """Return whether MySQL refused a statement because the user lacks the right."""
    return _number_of(error) in _NO_RIGHT_IN_MYSQL


def reason_of(error: BaseException) -> str:
    """Return the text of the database in one line."""
    cause = getattr(error, "orig", None) or error
    said = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    if isinstance(error, DBAPIError) and _number_of(error):
        said = str(cause.args[-1])
    return " ".join(said.split())


def _number_of(error: DBAPIError) -> int:
    """Return the number of an error of MySQL; 0 in other databases."""
    number = error.orig.args[0] if error.orig is not None and error.orig.args else 0
    return number if isinstance(number, int) else 0


def _dial(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    raw = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S)
    try:
        # EXTRA syncs the directory, too: without a WAL a commit is the removal of a file.
        for pragma in ("foreign_keys = ON", "synchronous = EXTRA", "fullfsync = ON"):
            raw.execute(f"PRAGMA {pragma}")
    except BaseException:
        raw.close()
        raise
    return raw


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return false for a record of the driver that only repeats an error which the driver raises anyway."""
    return "error ignored terminating" not in str(record.msg)
