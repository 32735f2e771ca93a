"""Opens the connections of the embedded broker: every commit is durable, a transaction is only where it begins.

The store of an engine has one owner, which `correlator.storage.database.connect` sees to; a broker has many users at
once, so it opens its own connections and shares only the reading of addresses and the readers.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from correlator.durable import create_private
from correlator.errors import ConnectionLost
from correlator.storage.database import connect_server, location, parse, postgres_engine

APPLICATION_ID = 0x636F7262
"""What a SQLite file of a broker carries in its header: "corb"."""
_BUSY_TIMEOUT_S = 10.0


def connect_sqlite(path: Path) -> Connection:
    """A connection to a file in WAL mode with `synchronous=FULL`; every transaction begins IMMEDIATE."""
    engine = create_engine("sqlite://", creator=lambda: _dial(path), poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    return engine.connect()


def _dial(path: Path) -> sqlite3.Connection:
    _create(path)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _settle(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Make a file for its owner alone; never touch one that exists: closing it would drop SQLite's locks."""
    with contextlib.suppress(FileExistsError):
        os.close(create_private(path))


def _settle(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is not a broker's, without changing it; then make every commit durable."""

    def pragma(text: str) -> Any:
        return connection.execute(f"PRAGMA {text}").fetchone()[0]

    marker = pragma("application_id")
    if marker != APPLICATION_ID:
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if marker or objects:
            raise ConnectionLost("E3003", str(path), "belongs to another application", "A broker has a file of its own")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: without it a sync stops at the cache of the disk
    if pragma("journal_mode = WAL") != "wal" or pragma("synchronous") != 2:
        raise ConnectionLost("E3106", str(path), "SQLite does not accept WAL with synchronous=FULL")
    connection.execute("SELECT count(*) FROM sqlite_master")  # makes the log, for `files.Place`


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def connect_postgres(store: str) -> Connection:
    """A session of a server that is not a pooler, and whose commits are durable whatever the server's default is.

    The address may choose more than that (`synchronous_commit=remote_apply`); it is only never `off`.
    """
    connection = connect_server(postgres_engine(parse(store)), location(store))
    connection.exec_driver_sql(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.commit()
    return connection
