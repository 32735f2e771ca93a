"""How much memory a receiver that captures changes takes for one large transaction.

A process of its own takes the rows of one transaction, batch by batch, and acknowledges each batch. The growth of its
largest resident set is printed for a small transaction and, in another process, for the large one. The slot must not
move behind the transaction until its last row is acknowledged.

    python -m tests.benchmarks.bench_capture_memory [--rows 200000] [--body 1000]
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from contextlib import closing

from connectors.sql import SqlConnection
from correlator.runtime.reporter import resident_bytes
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.connectors.tables import execute, rows
from tests.servers import PostgresServer, database_of, running

SMALL = 2_000
PATIENCE_S = 300.0
_IS_BEHIND = "SELECT confirmed_flush_lsn >= '{}' FROM pg_replication_slots WHERE slot_name = '{}'"


def take(url: str, count: int, body: int) -> None:
    """Write so many rows in one transaction, and take them; runs in a process of its own."""
    with tempfile.TemporaryDirectory() as state:
        options = {"database": url, "state": state}
        receiver = ReceiverSettings(
            id="r", connection="c", destination="topic:p", options={"slot": database_of(url), "snapshot": "never"}
        )
        with closing(SqlConnection("c", ConnectionSettings(type="sql", options=options)).source(receiver)) as source:
            source.connect()
            execute(url, f"INSERT INTO t SELECT i, repeat('x', {body}) FROM generate_series(1, {count}) AS i")
            ((end,),) = rows(url, "SELECT pg_current_wal_lsn()::text")
            is_behind = _IS_BEHIND.format(end, database_of(url))
            before_kb, begin = resident_bytes() // 1024, time.monotonic()
            taken = 0
            while taken < count:
                if rows(url, is_behind) != [(False,)]:
                    raise RuntimeError("the slot has moved behind a transaction that is not acknowledged")
                chunk = source.receive(1000, PATIENCE_S)
                taken += len(chunk.messages)
                source.acknowledge(chunk.tokens)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
            seconds = time.monotonic() - begin
            print(f"{count} rows, {count * body / 1e6:.0f} MB: {grown:.0f} MB of memory, {seconds:.0f} s")


def main() -> None:
    """Let a process take a small transaction, and another one the large one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1_000)
    parsed = parser.parse_args()
    with running(PostgresServer(settings=["wal_level=logical"])) as server:
        for count in (SMALL, parsed.rows):
            url = server.fresh_database()
            execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)", "CREATE PUBLICATION p FOR TABLE t")
            process = multiprocessing.get_context("spawn").Process(target=take, args=(url, count, parsed.body))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
