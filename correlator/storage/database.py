"""Opens the database that an address names: as its owner, which may write, or as a reader.

`connect` takes the lock of a database for this process and opens the only connection that ever writes; everybody else
calls `reading`. This module knows no table: the store of the engine and the embedded broker both use it.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, Connection, Engine
from sqlalchemy import exc as sql_errors
from sqlalchemy.engine import make_url

from correlator.errors import ConfigError, quoted
from correlator.secrets import is_secret_name
from correlator.storage import postgres, sqlite
from correlator.storage.failures import UNREADABLE_NAME, damaged, failure
from correlator.storage.owned import Database
from correlator.storage.postgres import PostgresDatabase
from correlator.storage.sqlite import SqliteDatabase

APPLICATION_ID = 0x636F7272
"""Marks a database as a store: "corr", in the header of a SQLite file and in the key of a PostgreSQL lock."""


def parse(url: str) -> URL:
    """Read the address of a database: `sqlite:///path` or `postgresql://…`.

    Raises:
        ConfigError: E1301, the address has another form. The message does not repeat it: it may hold a password.
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


def location(url: str) -> str:
    """Return the name of a database for messages: the path of a file, or the address of a server without its password.

    Raises:
        ConfigError: E1301.
    """
    parsed = parse(url)
    return str(sqlite.path_of(parsed)) if _is_sqlite(parsed) else postgres.address_of(parsed)


def digest_of(url: str) -> str:
    """Return a digest of the address of a database without its password, which tells databases apart.

    The path of a file counts as it is written, so that the digest is the same in every directory. Raises as `parse`.
    """
    parsed = parse(url)
    public = {name: value for name, value in parsed.query.items() if not is_secret_name(name)}
    address = parsed.set(query=public).render_as_string(hide_password=True)
    return hashlib.sha256(address.encode(errors="backslashreplace")).hexdigest()[:16]


def connect(url: str, *, application_id: int = APPLICATION_ID, displace: bool = False) -> Database:
    """Take the lock of a database for this process and open its only writing connection.

    Args:
        url: `sqlite:///path` or `postgresql://…`.
        application_id: marks the kind of data; a SQLite file with another mark is refused.
        displace: whether to end the session of an owner of a PostgreSQL database that has the same application name.

    Raises:
        ConfigError: E1301.
        Fenced: E3201, another process owns the database.
        StoreError: E30xx, E31xx, E33xx, E91xx, the database cannot be used; nothing was changed.
    """
    parsed = parse(url)
    database: Database
    if _is_sqlite(parsed):
        database = SqliteDatabase(parsed, application_id)
    else:
        database = PostgresDatabase(parsed, application_id, displace=displace)
    database.open()
    return database


def open_reader(url: str) -> Engine:
    """Make an engine of SQLAlchemy whose connections can only read, even while another process (or this one) writes.

    Its connections raise errors of SQLAlchemy; `reading` translates them.

    Raises:
        ConfigError: E1301.
        StoreError: E3010, there is no such SQLite file; E3310, the driver of PostgreSQL is not installed.
    """
    parsed = parse(url)
    return sqlite.open_reader(sqlite.path_of(parsed)) if _is_sqlite(parsed) else postgres.open_reader(parsed)


@contextlib.contextmanager
def reading(url: str) -> Iterator[Connection]:
    """Read a database within one short transaction, so that all statements see the same moment.

    Raises:
        ConfigError: E1301.
        StoreError: E3010, there is no such SQLite file; E3001, E3002, E3006, E3102, E33xx as `connect`.
    """
    with _session(open_reader(url), url) as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def administering(url: str) -> Iterator[Connection]:
    """Open a session with a PostgreSQL server in which each statement is a transaction of its own, to create or drop
    schemas.

    Raises:
        StoreError: E31xx, E33xx as `connect`.
    """
    engine = postgres.postgres_engine(parse(url)).execution_options(isolation_level="AUTOCOMMIT")
    with _session(engine, url) as connection:
        yield connection


@contextlib.contextmanager
def _session(engine: Engine, url: str) -> Iterator[Connection]:
    """Open a session for a command: it waits for an answer as long as necessary, and errors become `StoreError`."""
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                postgres.session_of(connection).patient = True
            yield connection
    except sql_errors.DBAPIError as error:
        raise failure(engine.dialect.name, location(url), error, committing=False) from error
    except UnicodeDecodeError as error:
        if engine.dialect.name != "sqlite":
            raise
        raise damaged(location(url), UNREADABLE_NAME) from error
    finally:
        engine.dispose()


def copy_while_running(url: str, target: Path) -> None:
    """Write a consistent copy of a SQLite database, even while its owner writes to it; takes no lock.

    Raises:
        StoreError: as `reading`.
        OSError: the target cannot be written.
    """
    sqlite.copy_while_running(sqlite.path_of(parse(url)), target)


def structural_damage(connection: Connection) -> list[str]:
    """Describe the damage of the pages and indices of a database; at most 100 findings.

    Always empty for PostgreSQL, which checks pages as it reads them. Raises errors of SQLAlchemy that are not about
    damage.
    """
    return sqlite.structural_damage(connection) if connection.dialect.name == "sqlite" else []


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _wrong_url(scheme: str) -> ConfigError:
    return ConfigError(
        "E1301",
        "store",
        f"{quoted(scheme + ':…')} is not the address of a store",
        "",
        "Use sqlite:///path or postgresql://…",
    )
