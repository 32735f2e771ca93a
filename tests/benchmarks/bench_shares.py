"""Four members against one: how fast eight shares of a pipeline move messages.

    python -m tests.benchmarks.bench_shares [--rows 20000] [--rounds 2]

Each share receives from a queue of its own, decodes, filters and sends to one queue. The store and the embedded broker
are databases of one PostgreSQL server. Each member is a process `correlator run` with a JVM of its own. The time counts
from the moment at which all rows are there until the last one has left; before that, each share has sent a message. The
processor time is that of the members with their JVMs and Python workers, and that of the whole machine meanwhile, as
shares of all processors.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator import Message
from tests.benchmarks.bench_flights import Watched
from tests.servers import PostgresServer, running

SHARES = 8
LOOK_S = 0.1
_LEFT = "SELECT sum(messages) FROM broker_tally t JOIN broker_destination d ON d.id = t.destination WHERE d.name LIKE '%out'"
PATIENCE_S = 500.0
MOST_MESSAGES = 1_000_000
WANTED = 1.5
FILE = """
version: 1
name: totals
store: {store}
shares: {{count: {shares}, lease: 30s}}
spark: {{master: "local[2]"}}
connections: {{broker: {{type: embedded, store: "{broker}"}}}}
receivers:
  - {{id: orders, connection: broker, destination: "queue:orders-${{share}}", reliability: EXACTLY_ONCE}}
senders:
  - {{id: out, connection: broker, destination: "queue:out", reliability: EXACTLY_ONCE}}
pipelines:
  - name: large
    from: [orders]
    steps:
      - decode: {{format: json, schema: "id BIGINT, customer STRING, amount INT"}}
      - where: "amount >= 0"
      - select: {{id: id, twice: "amount * 2"}}
      - route: out
"""


class Queues:
    """The queues of a broker."""

    def __init__(self, url: str) -> None:
        factory = ConnectionFactory(EmbeddedConnection, {"store": url}, tx_producer_max_num_msgs=MOST_MESSAGES)
        self._connection = factory.create_connection()
        self._session = self._connection.create_session(AcknowledgeMode.TRANSACTED)
        self._producers = [self._session.create_producer(f"queue:orders-{share}") for share in range(SHARES)]
        self._database = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def publish(self, rows: int) -> None:
        """Publish so many messages to each share, all at the same moment."""
        for producer in self._producers:
            for number in range(rows):
                body = {"id": number, "customer": f"c{number % 97}", "amount": number % 1000}
                producer.send(Message(json.dumps(body).encode()))
        self._session.commit()

    def wait(self, count: int) -> None:
        """Wait until so many messages have left in all."""
        deadline = time.monotonic() + PATIENCE_S
        while (left := self._database.execute(_LEFT).fetchone()[0] or 0) < count:
            assert time.monotonic() < deadline, f"{left} of {count} messages have left"
            time.sleep(LOOK_S)


@contextmanager
def members(directory: Path, count: int) -> Iterator[list[Watched]]:
    """So many members of the file in a directory, each watched."""
    command = [str(Path(sys.executable).with_name("correlator")), "run", "totals.yaml"]
    with (directory / "log").open("w") as log:
        processes = [subprocess.Popen(command, cwd=directory, stderr=log, stdout=log) for _ in range(count)]
        watched = [Watched(one.pid) for one in processes]
        try:
            yield watched
        finally:
            for one in watched:
                one.close()
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(PATIENCE_S)


def busy_s() -> float:
    """Seconds that all processors have worked since the machine started."""
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measured(server: PostgresServer, count: int, rows: int) -> float:
    """Messages a second that so many members move."""
    store, broker = server.fresh_database(), server.fresh_database()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "totals.yaml").write_text(FILE.format(store=store, broker=broker, shares=SHARES))
        (Path(name) / "totals.yaml").chmod(0o600)
        with closing(Queues(broker)) as queues, members(Path(name), count) as watched:
            queues.publish(1)
            queues.wait(SHARES)
            queues.publish(rows)
            began, spent, busy = time.perf_counter(), sum(one.cpu_s for one in watched), busy_s()
            queues.wait((rows + 1) * SHARES)
            seconds = time.perf_counter() - began
            spent, busy = sum(one.cpu_s for one in watched) - spent, busy_s() - busy
    whole = seconds * (os.cpu_count() or 1)
    rate = rows * SHARES / seconds
    print(
        f"{count} members: {rate:,.0f}/s; members {spent / whole:.0%}, machine {busy / whole:.0%} of the processors",
        flush=True,
    )
    return rate


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="messages of each share")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with running(PostgresServer()) as server:
        rates = [[measured(server, count, arguments.rows) for count in (1, 4)] for _ in range(arguments.rounds)]
    ratios = [four / one for one, four in rates]
    print(f"median ratio {statistics.median(ratios):.2f} (wanted: at least {WANTED}, or full processors)")


if __name__ == "__main__":
    main()
