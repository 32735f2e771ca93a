"""What a single send cannot avoid: its statements, one small transaction, and the wait for the disk.

Each commit writes the pages that it has changed into the write-ahead log: they are counted, too. All run in this process by turns, so that the load of the machine changes all of them alike.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from connectors.embedded import EmbeddedConnection, sql
from connectors.embedded.database import connect_sqlite, raw_sqlite
from connectors.messaging import ConnectionFactory, Producer
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings
from correlator.storage.session import PostgresSession
from tests.benchmarks.service.clients import BODY
from tests.benchmarks.service.report import Row, Table, ratios, spread
from tests.servers import PostgresServer, running

_QUEUE = "queue:q"
_MESSAGE = Message(BODY, headers=Headers(persistent=True))
_PAGE = bytes(4096)
_COMMITS = 100


def measure(messages: int, rounds: int) -> Table:
    """Microseconds of each with SQLite: a send of a session, then the same with less and less around the disk's work."""
    directory = Path(tempfile.mkdtemp(prefix="correlator-floor-"))
    try:
        store = directory / "broker.db"
        factory = ConnectionFactory(EmbeddedConnection, {"store": f"sqlite:///{store}"})
        with factory.create_connection() as connection, connection.create_session() as session:
            producer = session.create_producer(_QUEUE)
            statements = _statements(producer)
            with closing(connect_sqlite(store)) as bare, _open(directory / "row.db") as row:
                raw = raw_sqlite(bare)
                ways: dict[str, Callable[[], object]] = {
                    "send of a session": lambda: producer.send(_MESSAGE),
                    "its statements by the driver": lambda: _transact(raw, statements),
                    "one row in one table": lambda: _transact(row, [("INSERT INTO t VALUES (NULL, :b)", {"b": BODY})]),
                }
                pages = {"send of a session": raw, "one row in one table": row}
                counted = {name: count_pages(file, ways[name]) for name, file in pages.items()}
                with (directory / "file").open("wb", buffering=0) as file:
                    ways["a synced write of 4 KiB"] = lambda: _write(file.fileno())
                    return _table("a SQLite store", ways, counted, messages, rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure_postgres(messages: int, rounds: int) -> Table:
    """Microseconds of each with PostgreSQL: a send of a session, and the least that stores as much."""
    with running(PostgresServer()) as server:
        url = server.fresh_database()
        connection = EmbeddedConnection("floor", ConnectionSettings(type="embedded", options={"store": url}))
        connection.create(_QUEUE)
        factory = ConnectionFactory(EmbeddedConnection, {"store": url})
        with factory.create_connection() as client, client.create_session() as session:
            unlimited = session.create_producer(_QUEUE)
            limited = session.create_producer(f"{_QUEUE}-default")
            with PostgresSession.connect(url) as bare:
                bare.execute("CREATE TABLE t (id bigserial PRIMARY KEY, b bytea)")
                bare.commit()

                def insert() -> None:
                    bare.execute("INSERT INTO t (b) VALUES (%s)", (BODY,))

                def insert_and_commit() -> None:
                    insert()
                    bare.commit()

                def insert_alone() -> None:
                    with bare.alone():
                        insert()

                ways = {
                    "send of a session": lambda: unlimited.send(_MESSAGE),
                    "send to a queue with the limit of the default": lambda: limited.send(_MESSAGE),
                    "BEGIN, INSERT and COMMIT by the driver": insert_and_commit,
                    "INSERT alone by the driver": insert_alone,
                }
                return _table("a PostgreSQL server", ways, {}, messages, rounds)


def _statements(producer: Producer) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """What a send executes, with its values; the number of the message is left to SQLite, since it must be new."""
    seen: list[tuple[str, Mapping[str, Any]]] = []
    execute = sql._SqliteStatement.execute

    def noting(statement: Any, connection: Any, rows: Sequence[Mapping[str, Any]]) -> sqlite3.Cursor:
        seen.append((statement.sql, statement._values(rows[0])))
        return execute(statement, connection, rows)

    producer.send(_MESSAGE)
    sql._SqliteStatement.execute = noting  # type: ignore[method-assign]
    try:
        producer.send(_MESSAGE)
    finally:
        sql._SqliteStatement.execute = execute  # type: ignore[method-assign]
    return seen


def _transact(raw: sqlite3.Connection, statements: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    raw.execute("BEGIN IMMEDIATE")
    number = None
    for text, values in statements:
        if number is not None:
            values = {**values, "number": number, "first": number, "last": number}  # noqa: PLW2901
        rows = raw.execute(text, values).fetchall()
        if number is None and rows:
            number = rows[0][0]
    raw.execute("COMMIT")


def _open(path: Path) -> "closing[sqlite3.Connection]":
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)")
    return closing(raw)


def count_pages(file: sqlite3.Connection, do: Callable[[], object]) -> float:
    """How many pages a commit of this database writes, over so few commits that SQLite copies no log meanwhile."""
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for _ in range(_COMMITS):
        do()
    _, pages, _ = file.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return float(pages / _COMMITS)


def _write(file: int) -> None:
    os.write(file, _PAGE)
    os.fdatasync(file)


def _table(
    store: str, ways: Mapping[str, Callable[[], object]], pages: Mapping[str, float], messages: int, rounds: int
) -> Table:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(messages):
                way()
            found[name].append((time.perf_counter() - begin) / messages * 1e6)
    ours, *others = found
    return Table(
        f"one message of {len(BODY)} bytes to {store}, {messages} messages, medians of {rounds} rounds",
        ["microseconds", "pages"],
        [
            Row(name, [spread(values), spread([pages[name]]) if name in pages else None])
            for name, values in found.items()
        ],
        [Row(f"{ours} : {other}", [ratios(found[ours], found[other]), None]) for other in others],
    )
