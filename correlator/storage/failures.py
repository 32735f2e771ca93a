"""Turns errors of a database driver into errors of the store.

The class of the error decides what the caller does next (`correlator.errors`); its code names the cause.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import exc as sql_errors

from correlator.errors import CommitUnknown, StoreBusy, StoreError
from correlator.storage import files

BUSY_TIMEOUT_S = 5.0
"""Seconds that SQLite waits for the lock of another program."""

_RETRIED_SQLSTATES = {  # the server has rolled back, and another attempt may succeed
    "40001": "could not be serialized with another transaction",
    "40P01": "was chosen to end a deadlock",
    "53100": "found the disk of the server full",
    "53200": "found the server out of memory",
    "53300": "found no free connection",
    "55P03": "could not get a lock",
    "57014": "was cancelled by the server",
}


_MISSING_SQLSTATES = ("3F000", "42703", "42P01")  # a missing schema, column or table


UNREADABLE_NAME = "the name of a table or index is no text"
"""The damage of a SQLite file that the driver reports with `UnicodeDecodeError`: it cannot decode SQLite's message."""


@contextlib.contextmanager
def errors_of_sqlite(where: str) -> Iterator[None]:
    """Turn errors of the bare SQLite driver into `StoreError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise _sqlite_failure(where, error, committing=False) from error
    except UnicodeDecodeError as error:
        raise damaged(where, UNREADABLE_NAME) from error


def failure(dialect: str, where: str, error: sql_errors.DBAPIError, *, committing: bool) -> StoreError:
    """Return the error of the store for an error of SQLAlchemy.

    Args:
        dialect: `sqlite` or `postgresql`.
        where: the database, as messages name it.
        error: the error of SQLAlchemy.
        committing: whether COMMIT has raised the error. If so, the outcome is unknown unless the database says that it
            has rolled back.
    """
    if dialect == "sqlite":
        return _sqlite_failure(where, error.orig, committing=committing)
    return _postgres_failure(where, error, committing=committing)


def _sqlite_failure(where: str, error: BaseException | None, *, committing: bool) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        text = f"the store is locked by another program for {BUSY_TIMEOUT_S:g} s"
        return StoreBusy("E3102", where, text, "", "Close the program that has it open")
    if code == sqlite3.SQLITE_FULL:
        return StoreBusy("E3101", where, "the disk is full; nothing was written", "", "Free some space")
    if committing or code == sqlite3.SQLITE_IOERR:
        what = f"the disk failed ({error}); the next start shows whether the last transaction was committed"
        return StoreError("E3104", where, what)
    return _SQLITE_REFUSALS.get(code, _failed)(where, error)


def _not_sqlite(where: str, _: BaseException | None) -> StoreError:
    return StoreError("E3001", where, f"is not a SQLite database (starts with {files.beginning(Path(where))})")


def damaged(where: str, error: object) -> StoreError:
    """Return the error for a database whose structure is damaged (E3002)."""
    return StoreError(
        "E3002",
        where,
        f"is damaged: {error}",
        "Stopped without changing it",
        f"Run: correlator db check sqlite:///{where}",
    )


def is_damage(error: sql_errors.DBAPIError) -> bool:
    """Whether the error is SQLite's report that the structure of a database is damaged."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _failed(where: str, error: object) -> StoreError:
    text = " ".join(str(error).split())
    return StoreError("E3100", where, f"the database refused a statement: {text}")


def _unusable(where: str, error: object) -> StoreError:
    return files.unusable(Path(where), str(error))


_SQLITE_REFUSALS: dict[int, Callable[[str, BaseException | None], StoreError]] = {
    sqlite3.SQLITE_NOTADB: _not_sqlite,
    sqlite3.SQLITE_CORRUPT: damaged,
    sqlite3.SQLITE_READONLY: _unusable,
    sqlite3.SQLITE_CANTOPEN: _unusable,
    sqlite3.SQLITE_PERM: _unusable,
    sqlite3.SQLITE_AUTH: _unusable,
}


def _postgres_failure(where: str, error: sql_errors.DBAPIError, *, committing: bool) -> StoreError:
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _RETRIED_SQLSTATES and not error.connection_invalidated:
        return StoreBusy("E3103", where, f"the transaction {_RETRIED_SQLSTATES[state]} and was rolled back")
    if state == "25006":
        return only_reads(where)
    if state == "01000":
        todo = "The engine repeats the check until COMMIT has no warning"
        return CommitUnknown("E3111", where, _first_line(error), "", todo)
    # The server gives every error a state. A driver that raises an error without one has lost its session, although it
    # may not say so: psycopg in the middle of several rows raises "cannot exit pipeline mode while busy".
    in_session = committing or error.statement is not None
    if error.connection_invalidated or (in_session and not state and isinstance(error, sql_errors.OperationalError)):
        return unknown(where, error)
    refusal = _refused_statement(where, error, state) if state else _refused_connection(where, error)
    return refusal or _failed(where, _first_line(error))


def _refused_statement(where: str, error: sql_errors.DBAPIError, state: str) -> StoreError | None:
    """Return the error for a failure of a statement that an administrator can repair; `None` for any other failure."""
    if state in _MISSING_SQLSTATES:
        todo = "Restore a backup, or start anew with an empty schema"
        return StoreError("E3005", where, f"a part of the store is missing: {_first_line(error)}", "", todo)
    if state == "42501":
        return StoreError("E3304", where, f"not allowed: {_first_line(error)}", "", "Grant the rights to this user")
    return None


def _refused_connection(where: str, error: sql_errors.DBAPIError) -> StoreError | None:
    """Return the error for a failure to connect, which the driver describes only by a text; `None` for other
    failures.
    """
    text = _first_line(error)
    for part, code, what in _CONNECT_FAILURES:
        if part in str(error.orig):
            return StoreError(code, where, f"{what} ({text})")
    return None


_CONNECT_FAILURES = (
    ("password authentication failed", "E3302", "the user was refused"),
    ("no password supplied", "E3302", "the user was refused"),
    ("no pg_hba.conf entry", "E3302", "the server does not accept this user from here"),
    ("the database system is", "E3301", "the server is not ready"),  # starting up, shutting down, in recovery
    ("role", "E3302", "the user was refused"),
    ("database", "E3303", "the database cannot be used"),
    ("SSL", "E3309", "no encrypted connection could be made"),
    ("connection", "E3301", "cannot connect"),
)


def unknown(where: str, error: sql_errors.DBAPIError) -> CommitUnknown:
    """Return the error for a connection that was lost, or that could not be made again (E3105)."""
    return CommitUnknown("E3105", where, f"the connection was lost ({_first_line(error)})")


def only_reads(where: str) -> CommitUnknown:
    """Return the error for a server that is not, or not yet, the primary server (E3308, trap T34): the caller connects
    again.
    """
    return CommitUnknown("E3308", where, "the server only reads", "Only the primary server can be written")


def _first_line(error: sql_errors.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
