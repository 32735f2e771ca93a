"""How soon a waiting consumer of another process is woken, and what waiting costs, on SQLite and PostgreSQL.

The delay runs from the return of a sender's commit to the return of the consumer's wait. Idle consumers look for
messages with a plain read every second, ten in one process and one in each of ten processes; the cost is the CPU time
of all their processes as a share of one core. The same follows for consumers that cannot listen and poll. At last: what
ringing costs a sender when nobody waits and when somebody does, against the time of its commit.

    python -m tests.benchmarks.bench_waking [--messages 300] [--idle 10]
"""

import argparse
import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from connectors.embedded.database import connect_postgres, connect_sqlite
from connectors.embedded.waking import Bells, bells
from correlator.storage.database import location, open_reader
from tests.servers import PostgresServer, running

DESTINATION = "queue:a"
CONSUMERS = 10
LOOK_S = 1.0
_LAST = "SELECT coalesce(max(n), 0) FROM numbers"
_spawn: Any = multiprocessing.get_context("spawn")


def connect(store: str) -> Connection:
    """A connection of a sender."""
    return connect_postgres(store) if store.startswith("postgresql") else connect_sqlite(Path(location(store)))


def consume(engine: Engine, ours: Bells, destination: str, woken: Callable[[tuple[int, float]], None]) -> None:
    """Look, and wait until there may be something, for ever."""
    with engine.connect() as connection:
        last = 0
        while True:
            rung = ours.rung(destination)
            with connection.begin():
                found = connection.exec_driver_sql(_LAST).scalar_one()
            if found > last:
                last = found
                woken((found, time.monotonic()))
            else:
                ours.wait(destination, rung, LOOK_S)


def consumers(store: str, count: int, pipe: Pipe, *, polls: bool) -> None:
    """The main function of a process with some consumers."""
    ours = bells(store)
    if polls:
        ours._channel.listener = ours._channel.poller  # type: ignore[method-assign]
    engine = open_reader(store)
    pipe.send("ready")
    for number in range(count):
        destination = DESTINATION if not number else f"queue:{number}"
        threading.Thread(target=consume, args=(engine, ours, destination, pipe.send), daemon=True).start()
    threading.Event().wait()


@contextmanager
def processes(store: str, each: int, count: int, *, polls: bool = False) -> Iterator[tuple[list[Any], list[Pipe]]]:
    """Some processes with consumers, killed at the end."""
    pipes = [_spawn.Pipe() for _ in range(count)]
    started = [
        _spawn.Process(target=consumers, args=(store, each, theirs), kwargs={"polls": polls}, daemon=True)
        for _, theirs in pipes
    ]
    for process in started:
        process.start()
    try:
        for ours, _ in pipes:
            assert ours.recv() == "ready"
        yield started, [ours for ours, _ in pipes]
    finally:
        for process in started:
            process.kill()
            process.join()


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def at(values: list[float], share: float) -> float:
    """A percentile, in milliseconds."""
    return sorted(values)[int(len(values) * share)] * 1000


def send(connection: Connection, number: int) -> None:
    """Store a number that is larger than all before."""
    with connection.begin():
        connection.exec_driver_sql(f"INSERT INTO numbers VALUES ({number:d})")  # the number is ours


def delays(store: str, messages: int, *, polls: bool) -> None:
    """Print the delay of messages to an idle consumer of another process."""
    found, chance, pause = [], random.Random(1), threading.Event()
    with processes(store, 1, 1, polls=polls) as (_, (pipe,)), connect(store) as connection:
        number = connection.exec_driver_sql(_LAST).scalar_one()
        connection.rollback()
        for ahead in range(messages + 10):
            pause.wait(chance.uniform(0.02, 0.06))
            number += 1
            send(connection, number)
            begin = time.monotonic()
            bells(store).ring([DESTINATION], connection)
            while (answer := pipe.recv())[0] != number:
                pass
            if ahead >= 10:  # earlier ones may come while the consumer starts
                found.append(answer[1] - begin)
    how = "polls" if polls else "listens"
    print(f"  {how}: delay p50 {at(found, 0.5):.2f} ms, p95 {at(found, 0.95):.2f} ms, p99 {at(found, 0.99):.2f} ms")


def idle(store: str, seconds: float, *, polls: bool) -> None:
    """Print the cost of consumers that wait."""
    for each, count in ((CONSUMERS, 1), (1, CONSUMERS)):
        with processes(store, each, count, polls=polls) as (started, _):
            pause = threading.Event()
            pause.wait(2.0)  # until they have begun to listen
            before = sum(cpu_s(process.pid) for process in started)
            pause.wait(seconds)
            used = sum(cpu_s(process.pid) for process in started) - before
        how = "polls" if polls else "listens"
        print(f"  {how}: {count} idle processes with {each} consumers each: {used / seconds * 100:.2f} % of a core")


def cost(store: str, messages: int) -> None:
    """Print what ringing costs a sender."""
    ours = bells(store)
    with connect(store) as connection:
        for waiting in (0, 1):
            with processes(store, waiting, waiting) as (_, pipes):
                commits, rings = [], []
                number = connection.exec_driver_sql(_LAST).scalar_one()
                connection.rollback()
                for _ in range(messages):
                    number += 1
                    begin = time.monotonic()
                    send(connection, number)
                    committed = time.monotonic()
                    ours.ring([DESTINATION], connection)
                    commits.append(committed - begin)
                    rings.append(time.monotonic() - committed)
                    while pipes and pipes[0].poll():
                        pipes[0].recv()
            print(
                f"  a sender, {waiting} processes wait: commit {at(commits, 0.5):.2f} ms, ring {at(rings, 0.5):.3f} ms,"
                f" all rings {sum(rings) / sum(commits) * 100:.1f} % of all commits"
            )


def measure(name: str, store: str, arguments: argparse.Namespace) -> None:
    """Everything for one store."""
    print(name)
    with connect(store) as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
        connection.exec_driver_sql("CREATE INDEX by_n ON numbers (n)")
        connection.commit()
    for polls in (False, True):
        delays(store, arguments.messages, polls=polls)
        idle(store, arguments.idle, polls=polls)
    cost(store, arguments.messages)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure("SQLite", f"sqlite:///{directory}/broker.db", arguments)
    with running(PostgresServer()) as server:
        measure("PostgreSQL", server.fresh_database(), arguments)


if __name__ == "__main__":
    main()
