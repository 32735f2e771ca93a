"""What a single send to a SQLite store cannot avoid: its statements, one small transaction, and the wait for the disk.

All run in this process by turns, so that the load of the machine changes all of them alike.
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
from tests.benchmarks.service.clients import BODY
from tests.benchmarks.service.report import Row, Table, ratios, spread

_QUEUE = "queue:q"
_MESSAGE = Message(BODY, headers=Headers(persistent=True))
_PAGE = bytes(4096)


def measure(messages: int, rounds: int) -> Table:
    """Microseconds of each: a send of a session, then the same with less and less around the disk's work."""
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
                with (directory / "file").open("wb", buffering=0) as file:
                    ways["a synced write of 4 KiB"] = lambda: _write(file.fileno())
                    return _table(ways, messages, rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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


def _write(file: int) -> None:
    os.write(file, _PAGE)
    os.fdatasync(file)


def _table(ways: Mapping[str, Callable[[], object]], messages: int, rounds: int) -> Table:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(messages):
                way()
            found[name].append((time.perf_counter() - begin) / messages * 1e6)
    ours, *others = found
    return Table(
        f"one message of {len(BODY)} bytes to a SQLite store, {messages} messages, medians of {rounds} rounds",
        ["microseconds"],
        [Row(name, [spread(values)]) for name, values in found.items()],
        [Row(f"{ours} : {other}", [ratios(found[ours], found[other])]) for other in others],
    )
