"""MySQL and MariaDB: the address of a server, sessions with it, and requirements on tables and statements.

DDL commits the transaction there, tables of some engines have no transactions, and without its strict mode the server
cuts values without an error. So the session sets the mode, and senders and receivers use only tables of InnoDB.
"""

import contextlib
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, NullPool, create_engine, event
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from correlator.errors import ConfigError, ConnectionLost, StoreError, quoted
from correlator.processes import keep, never_finalize
from correlator.serving import is_loopback

with contextlib.suppress(ImportError):  # the driver is an extra; without it `open_mysql` raises E7642
    from connectors.sql.mysql_session import MysqlSession, dial

SCHEMES = ("mysql:", "mysql+pymysql:", "mariadb:", "mariadb+pymysql:")
OF_BYTES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB)
"""Types of columns that hold bytes, in any database."""
_ALLOWED = "Use mysql://user:password@host/database, and after it ?ssl_ca=FILE, ssl_cert, ssl_key or ssl_disabled=true"
_LONGEST_NAME, _LAST_CHARACTER = 64, "\uffff"
_TLS_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_QUERY = (*_TLS_FILES, "ssl_disabled")
_CONNECT_TIMEOUT_S = 10
_MODE = "TRADITIONAL,NO_BACKSLASH_ESCAPES"
"""`TRADITIONAL` is strict. A backslash in a text means a backslash, as in SQLite and PostgreSQL."""
_SETTINGS = (
    "SET SESSION time_zone = '+00:00', wait_timeout = 31536000, innodb_lock_wait_timeout = 20, lock_wait_timeout = 20"
)
"""A session may be idle for a long time. The server ends a wait for a lock before the session counts as lost."""
_OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0, 13)}
_ENGINE = "InnoDB"
_ENGINES = """
    SELECT engine FROM information_schema.tables
    WHERE table_schema = COALESCE(%(schema)s, DATABASE()) AND table_name = %(table)s
"""
_OTHER_ENGINES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'
"""
_UNIQUE_KEYS = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = COALESCE(%(schema)s, DATABASE()) AND table_name = %(table)s AND non_unique = 0
    ORDER BY index_name, seq_in_index
"""
_JSON_COLUMNS = """
    SELECT constraint_name FROM information_schema.check_constraints
    WHERE constraint_schema = COALESCE(%(schema)s, DATABASE()) AND table_name = %(table)s
    AND check_clause = CONCAT('json_valid(`', constraint_name, '`)')
"""
"""In MariaDB, a column of the type JSON has the type LONGTEXT and this constraint."""


def parse(where: str, text: str) -> URL:
    """Read an address that begins with one of `SCHEMES`. Raises `ConfigError` E1022, whose text omits the address."""
    place = f"{where}.database"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigError("E1022", place, "is not the address of a database", _ALLOWED) from error
    problem = _problem_of(url)
    if problem:
        raise ConfigError("E1022", place, problem, _ALLOWED)
    return url.set(drivername="mysql+pymysql")


def check_name(where: str, table: str) -> None:
    """Check the name of a table of a receiver or sender. Raises `ConfigError` E1216 if MySQL does not
    allow such a name.
    """
    if len(table) > _LONGEST_NAME or max(table) > _LAST_CHARACTER or table.endswith(" "):
        what = f"{quoted(table)} is not a name of a table in MySQL"
        allowed = f"At most {_LONGEST_NAME} characters up to U+FFFF, and no space at the end"
        raise ConfigError("E1216", f"{where}.destination", what, allowed)


def open_mysql(where: str, url: URL) -> Connection:
    """Open a session in which nothing is cut silently, with a server that is not too old.

    Raises:
        ConnectionLost: E7016, no encrypted session; E7643, the server is too old.
        StoreError: E7642, the driver is not installed.
        sqlalchemy.exc.DBAPIError: the session cannot be opened.
    """
    arguments = {
        "host": url.host,
        "port": url.port or 0,
        "user": url.username,
        "password": (url.password or "").encode(),
        "database": url.database,
        "charset": "utf8mb4",
        "sql_mode": _MODE,
        "init_command": _SETTINGS,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        **_tls(where, url),
    }
    try:  # this imports the driver; with other defaults of the server, a session might see uncommitted changes
        engine = create_engine(
            url.set(query={}), poolclass=NullPool, pool_reset_on_return=None, isolation_level="REPEATABLE READ"
        )
    except ImportError as error:
        todo = "Install: pip install correlator[mysql]"
        raise StoreError("E7642", where, "MySQL and MariaDB need the package 'pymysql'", "", todo) from error
    event.listen(engine, "do_connect", lambda *_: dial(where, arguments))
    connection = engine.connect()
    session = session_of(connection)
    keep(session)
    never_finalize(connection)
    try:
        _check_version(where, connection)
        session.largest = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def session_of(connection: Connection) -> "MysqlSession":
    """Return the session of the driver that a connection of SQLAlchemy uses."""
    session = connection.connection.driver_connection
    assert isinstance(session, MysqlSession)
    return session


def check_engine(connection: Connection, where: str, name: str, table: str, schema: str | None) -> None:
    """Check that a rollback removes rows from a table again. Raises `ConnectionLost` E7640.

    Args:
        connection: an open connection.
        where: the place of the sender or receiver.
        name: name of the table, for messages.
        table: name of the table in the database.
        schema: its database, or `None` for the database of the address.
    """
    for engine in connection.exec_driver_sql(_ENGINES, {"schema": schema, "table": table}).scalars():
        if engine != _ENGINE:
            raise _no_transactions(where, f"{name} has the engine {engine}, which is not supported")


def check_targets(connection: Connection, where: str, statement: str) -> None:
    """Check the tables that a statement names. Raises `ConnectionLost` E7640."""
    for table in connection.exec_driver_sql(_OTHER_ENGINES).scalars():
        if re.search(rf"(?:\b(?:into|update|from|join|ignore)\s|,)\s*`?{re.escape(table)}\b", statement, re.IGNORECASE):
            raise _no_transactions(where, f"the statement names table {quoted(table)}, whose engine is not supported")


def explain_statement(connection: Connection) -> str:
    """Return the words before a statement that make the server explain it.

    By default, MySQL 9 explains statements as a tree, and cannot do so for an INSERT into a view.
    """
    return "EXPLAIN" if connection.dialect.is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"  # type: ignore[attr-defined]


def unique_keys(connection: Connection, table: str, schema: str | None) -> Sequence[Sequence[str | None]]:
    """Return the columns of each unique key of a table, with `None` for a part that is not a whole column."""
    keys: dict[str, list[str | None]] = {}
    for name, column, part in connection.exec_driver_sql(_UNIQUE_KEYS, {"schema": schema, "table": table}):
        keys.setdefault(name, []).append(column if part is None else None)
    return list(keys.values())


def json_columns(connection: Connection, table: str, schema: str | None) -> set[str]:
    """Return the columns of a table of MariaDB that contain JSON. MySQL has a type of its own for them."""
    if not connection.dialect.is_mariadb:  # type: ignore[attr-defined]
        return set()
    return set(connection.exec_driver_sql(_JSON_COLUMNS, {"schema": schema, "table": table}).scalars())


def in_utf8(text: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an expression as a text in UTF-8."""
    return sa.func.convert(text.op("USING")(sa.literal_column("utf8mb4")))


def flushes_each_commit(connection: Connection) -> bool:
    """Return whether a transaction is on disk when the server confirms it."""
    return bool(connection.exec_driver_sql("SELECT @@innodb_flush_log_at_trx_commit").scalar_one() == 1)


def _problem_of(url: URL) -> str:
    """Return what is wrong with an address; empty if nothing is."""
    if not url.host or not url.database:
        return "names no host or no database"
    for name, value in url.query.items():
        if name not in _QUERY:
            return f"has the unknown parameter {quoted(name)}"
        if not isinstance(value, str) or not value:
            return f"needs one value for {name}"
    files = [name for name in _TLS_FILES if name in url.query]
    if url.query.get("ssl_disabled", "false") not in ("true", "false"):
        return "has a wrong value for ssl_disabled"
    if url.query.get("ssl_disabled") == "true" and files:
        return "names files for TLS, and disables TLS"
    return "names ssl_key without ssl_cert" if "ssl_key" in files and "ssl_cert" not in files else ""


def _no_transactions(where: str, what: str) -> ConnectionLost:
    todo = f"ALTER TABLE … ENGINE = {_ENGINE}"
    return ConnectionLost("E7640", where, what, f"Only {_ENGINE} is supported", todo)


def _check_version(where: str, connection: Connection) -> None:
    kind = "MariaDB" if connection.dialect.is_mariadb else "MySQL"  # type: ignore[attr-defined]
    version = connection.dialect.server_version_info or ()
    if version < _OLDEST[kind]:
        what = f"{kind} {'.'.join(map(str, version))} is too old"
        raise ConnectionLost("E7643", where, what, f"{'.'.join(map(str, _OLDEST[kind]))} or newer")


def _tls(where: str, url: URL) -> Mapping[str, Any]:
    """Return the arguments of the driver for TLS. A server on another machine must prove its identity.

    On this machine TLS is used if the server offers it: some kinds of login need it.
    """
    if url.query.get("ssl_disabled") == "true":
        return {"ssl_disabled": True}
    if is_loopback(url.host or "") and not any(name in url.query for name in _TLS_FILES):
        return {}
    files = {name: str(url.query[name]) for name in _TLS_FILES if name in url.query}
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca"))
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], files.get("ssl_key"))
    except OSError as error:
        raise ConnectionLost("E7016", where, f"the files for TLS cannot be used: {error}") from error
    return {"ssl": context}
