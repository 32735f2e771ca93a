"""Opens a user's database for a sink, and tells the errors that concern one row from all others."""

import logging
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from correlator.errors import ConfigError, ConnectionLost
from correlator.processes import never_finalize
from correlator.storage.database import location, parse
from correlator.storage.postgres import connect_server, postgres_engine
from correlator.storage.sqlite import path_of, writing_engine

_BUSY_TIMEOUT_S = 5.0
_OF_ONE_ROW = ("22", "23", "54", "P0001")
"""SQLSTATEs of PostgreSQL: data, constraint, limit of the server, RAISE EXCEPTION in a trigger."""


def address(where: str, text: str) -> URL:
    """Read the option `database`. Raises `ConfigError` E1022 without the text, which may hold a password."""
    try:
        return parse(text)
    except ConfigError as error:
        allowed = "Use sqlite:///path or postgresql://user:password@host/database"
        raise ConfigError("E1022", f"{where}.database", "is not the address of a database", allowed) from error


def open_database(where: str, url: URL) -> Connection:
    """Open a connection whose commits are on disk, and whose SQLite transactions take the write lock as they begin.

    Raises:
        ConnectionLost: E7010, there is no such SQLite file.
        sqlalchemy.exc.DBAPIError, sqlite3.Error, StoreError, OSError: the database cannot be used.
    """
    if url.get_backend_name() == "sqlite":
        path = path_of(url)
        if not path.exists():
            raise ConnectionLost("E7010", where, f"there is no database {path}", "", "Create it, with its tables")
        connection = writing_engine(lambda: _dial(path)).connect()
        never_finalize(connection)
        return connection
    logging.getLogger("psycopg").addFilter(_is_of_use)  # a filter that is there already is not added again
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


def refuses_a_row(error: DBAPIError) -> bool:
    """Whether a statement failed because of the values of a row, and would fail again with them."""
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_OF_ONE_ROW)
    return isinstance(error, DataError | IntegrityError)


def reason_of(error: BaseException) -> str:
    """What the database says, in one line."""
    cause = getattr(error, "orig", None) or error
    said = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    return " ".join(said.split())


def _dial(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    raw = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S)
    try:
        for pragma in ("foreign_keys = ON", "synchronous = FULL", "fullfsync = ON"):
            raw.execute(f"PRAGMA {pragma}")
    except BaseException:
        raw.close()
        raise
    return raw


def _is_of_use(record: logging.LogRecord) -> bool:
    """Whether a record of the driver tells more than that a statement failed, whose error it raises anyway."""
    return "error ignored terminating" not in str(record.msg)
