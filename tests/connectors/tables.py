"""Databases with tables of a user, and a look at them by means of the drivers alone."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import sqlalchemy as sa

from tests.mysql_server import MysqlServer
from tests.servers import PostgresServer

DATABASES = ["sqlite", *(pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("postgres", "mysql"))]
"""Parameters of a fixture that calls `fresh`."""


class _Connected(Protocol):
    """A source or sink."""

    def connect(self) -> None:
        """Connect it."""

    def close(self) -> None:
        """Close it."""


Made = TypeVar("Made", bound=_Connected)


@contextlib.contextmanager
def connecting(make: Callable[..., Made]) -> Iterator[Callable[..., Made]]:
    """Yields a function that makes sources or sinks and connects them; closes them at the end."""
    made: list[Made] = []

    def connected(*given: object, **more: object) -> Made:
        made.append(make(*given, **more))
        made[-1].connect()
        return made[-1]

    yield connected
    for one in made:
        one.close()


def sqlite_file(directory: Path) -> str:
    """Make an empty database; returns its address."""
    path = directory / "tables.db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode = WAL")
    return f"sqlite:///{path}"


def fresh(request: pytest.FixtureRequest, directory: Path) -> str:
    """Make an empty database of the kind that the parameter of a fixture names; returns its address."""
    if request.param == "sqlite":
        return sqlite_file(directory)
    server: PostgresServer | MysqlServer = request.getfixturevalue(f"{request.param}_server")
    return server.fresh_schema() if isinstance(server, PostgresServer) else server.fresh_database()


@contextlib.contextmanager
def sql_engine(url: str) -> Iterator[sa.Engine]:
    """An engine of SQLAlchemy, which leaves no connection open."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    """Run statements in one transaction."""
    with sql_engine(url) as engine, engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with sql_engine(url) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


class Dead(BaseException):
    """The process ends here."""


def dying(dialect: object, name: str, left: list[int]) -> Callable[..., object]:
    """The method of a dialect, which ends the process behind the call at which nothing is left."""
    original = getattr(dialect, name)

    def called(*arguments: object, **named: object) -> object:
        result = original(*arguments, **named)
        left[0] -= 1
        if not left[0]:
            raise Dead
        return result

    return called
