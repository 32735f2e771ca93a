"""The engine against the disk: EXACTLY_ONCE in, a keyed persistent monitor, EXACTLY_ONCE out.

The limit is what the same bytes cost when they are committed raw to SQLite, once for in and once for out, 1,000 rows a
commit, with the same durability. Both run in turn, several rounds; the ratio of each round is printed, and its median.
With `--postgres` both use a PostgreSQL server of their own, and the raw rows are written by `COPY`.

    python -m tests.benchmarks.bench_engine [--messages 200000] [--rounds 5] [--postgres] [--profile]
"""

import argparse
import contextlib
import cProfile
import json
import pstats
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from correlator import Engine, Message, Monitor, Reliability, StateTable, event, on
from correlator.settings import (
    EngineSettings,
    HttpSettings,
    MonitorSettings,
    OpenTelemetrySettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.memory import MemoryBroker
from tests.benchmarks.comparison import spread_of
from tests.servers import PostgresServer, running

BATCH = 1000


@event
class Trade:
    """What comes in."""

    account: str
    quantity: int
    note: str


@event
class Position:
    """What goes out."""

    account: str
    position: int
    note: str


class Positions(Monitor, persistent=True):
    """State per account."""

    positions: StateTable[str, int]

    @on(Trade)
    def trade(self, trade: Trade) -> None:
        """Add up and tell."""
        position = self.positions.get(trade.account, 0) + trade.quantity
        self.positions[trade.account] = position
        self.send(Position(account=trade.account, position=position, note=trade.note), to="out")


def messages(count: int) -> list[Message]:
    """Messages with bodies of 256 bytes of JSON."""
    made = []
    for number in range(count):
        body = {"account": f"A{number % 1000:05d}", "quantity": number % 90 + 10, "note": ""}
        body["note"] = "x" * (256 - len(json.dumps(body)))
        properties = {"uniqueMessageId": f"{number + 1}:bench:S01", "messageSourceId": "bench:S01"}
        made.append(Message(json.dumps(body).encode(), properties))
    return made


@contextlib.contextmanager
def synced_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A database of SQLite that syncs each commit, as a store does; it begins no transaction by itself."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        yield connection


def raw_rate(directory: Path, bodies: list[bytes]) -> float:
    """Messages a second that can be committed raw, twice each."""
    with synced_database(directory / "raw.db") as connection:
        connection.execute("CREATE TABLE raw (number INTEGER PRIMARY KEY, body BLOB)")
        number = 0
        begin = time.perf_counter()
        for at in range(0, len(bodies), BATCH):
            for _ in ("in", "out"):
                connection.execute("BEGIN IMMEDIATE")
                rows = [(number + offset, body) for offset, body in enumerate(bodies[at : at + BATCH])]
                connection.executemany("INSERT INTO raw VALUES (?, ?)", rows)
                connection.execute("COMMIT")
                number += len(rows)
        elapsed = time.perf_counter() - begin
    return len(bodies) / elapsed


def copied_rate(url: str, bodies: list[bytes]) -> float:
    """Messages a second that `COPY` writes to PostgreSQL, twice each."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE raw (number BIGINT PRIMARY KEY, body BYTEA)")
        connection.commit()
        number = 0
        begin = time.perf_counter()
        for at in range(0, len(bodies), BATCH):
            for _ in ("in", "out"):
                with connection.cursor().copy("COPY raw FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["int8", "bytea"])
                    for body in bodies[at : at + BATCH]:
                        number += 1
                        copy.write_row((number, body))
                connection.commit()
        elapsed = time.perf_counter() - begin
    return len(bodies) / elapsed


def settings_in(
    directory: Path,
    *,
    store: str | None = None,
    input_log: str | None = None,
    http: HttpSettings | None = None,
    opentelemetry: OpenTelemetrySettings | None = None,
    **fields: Any,
) -> EngineSettings:
    """The settings of the engine; the arguments are those of `engine_rate`."""
    return EngineSettings(
        name="bench",
        store=store or f"sqlite:///{directory / 'engine.db'}",
        receivers=(
            ReceiverSettings(
                id="in",
                connection="memory",
                destination="queue:in",
                reliability=Reliability.EXACTLY_ONCE,
                event=f"{__name__}:Trade",
                max_batch_size=BATCH,
                **fields,
            ),
        ),
        senders=(
            SenderSettings(
                id="out",
                connection="memory",
                destination="queue:out",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=BATCH,
                **fields,
            ),
        ),
        monitors=(MonitorSettings(type=f"{__name__}:Positions"),),
        input_log=input_log,
        http=http,
        opentelemetry=opentelemetry,
    )


def engine_rate(
    directory: Path,
    inputs: list[Message],
    *,
    store: str | None = None,
    input_log: str | None = None,
    http: HttpSettings | None = None,
    opentelemetry: OpenTelemetrySettings | None = None,
    **fields: Any,
) -> float:
    """Messages a second through the engine, until the last one is at the broker.

    Args:
        directory: for the store.
        inputs: what comes in.
        store: where the engine keeps its state; SQLite in the directory by default.
        input_log: where the engine records its inputs.
        http: where it answers.
        opentelemetry: where its spans go.
        fields: more settings, of the receiver and of the sender.
    """
    arrived = threading.Event()
    missing = len(inputs)

    def count(kind: str, _endpoint: str, _destination: str, sent: Sequence[Any]) -> None:
        nonlocal missing
        if kind == "accepted":
            missing -= len(sent)
            if not missing:
                arrived.set()

    broker = MemoryBroker(on_event=count)
    broker.publish("queue:in", inputs)
    settings = settings_in(
        directory, store=store, input_log=input_log, http=http, opentelemetry=opentelemetry, **fields
    )
    with Engine(settings, connections={"memory": broker.connection()}):
        begin = time.perf_counter()
        assert arrived.wait(300)
        elapsed = time.perf_counter() - begin
    return len(inputs) / elapsed


def profile_threads(run: Callable[[], object]) -> None:
    """Profile each thread of one run and print where its time goes (waits included)."""
    profiles: dict[str, cProfile.Profile] = {}
    original = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profile = profiles[thread.name] = cProfile.Profile(time.thread_time)
        profile.runcall(original, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign]
    try:
        run()
    finally:
        threading.Thread.run = original  # type: ignore[method-assign]
    for name, profile in profiles.items():
        print(f"--- thread {name}: CPU seconds")
        pstats.Stats(profile).sort_stats("tottime").print_stats(8)


def rates(directory: Path, inputs: list[Message], server: PostgresServer | None) -> tuple[float, float]:
    """Messages a second, first raw, then through the engine."""
    bodies = [message.body for message in inputs]
    if server is None:
        return raw_rate(directory, bodies), engine_rate(directory, inputs)
    raw = copied_rate(server.fresh_database(), bodies)
    return raw, engine_rate(directory, inputs, store=server.fresh_database())


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--directory", default=None, help="where the databases lie; a temporary directory by default")
    arguments = parser.parse_args()
    inputs = messages(arguments.messages)
    ratios = []
    with running(PostgresServer()) if arguments.postgres else contextlib.nullcontext() as server:
        for number in range(arguments.rounds):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
                raw, ours = rates(Path(name), inputs, server)
            ratios.append(ours / raw)
            print(f"round {number + 1}: raw {raw:,.0f}/s  engine {ours:,.0f}/s  ratio {ours / raw:.2f}")
        print(f"median ratio {spread_of(ratios)}")
        if arguments.profile:
            with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
                profile_threads(lambda: rates(Path(name), inputs, server))


if __name__ == "__main__":
    main()
