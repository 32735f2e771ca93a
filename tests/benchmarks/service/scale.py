"""What a great many messages, or several processes, do to others who use the same SQLite file.

- `expiry`: all messages of a deep queue have expired, and the sweeper ends them, in another process or in the one that
  sends and receives. How much slower are sends and receives of another queue, and how long are its transactions?
- `browse`: another process takes a snapshot of a deep queue. How much slower are sends and receives of the same queue,
  and how large is the write-ahead log?
- `snapshot`: the same while another process holds a transaction open that reads.
- `writers`: several processes send. Has each its share, and how long does a send wait?

What disturbs is there by turns; ratios are those of each round. The processor time is that of the process that sends and
receives, for one message; a sweeper in this process counts. It is the steadier figure where others use the machine. The
file lies in the directory for temporary files, which should be on a disk.

    python -m tests.benchmarks.service.scale [--only expiry,browse,snapshot,writers] [--depth 1000000]
        [--round-ms 4000] [--seconds 60] [--json FILE]
"""

import argparse
import itertools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from connectors.embedded import EmbeddedConnection, sending
from connectors.embedded.content import encode
from connectors.embedded.destinations import DEAD_MESSAGES
from connectors.embedded.link import open_link
from connectors.embedded.sending import Terms
from connectors.embedded.storing import NewMessage
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings
from tests.benchmarks.service.__main__ import machine, names
from tests.benchmarks.service.clients import BODY, Client, python_client
from tests.benchmarks.service.processor import processor_s
from tests.benchmarks.service.report import Row, Table, ratios, spread

_DEEP, _OTHER = "queue:deep", "queue:other"
_AT_ONCE = 5000
_WRITERS = 4
_ROUNDS = 5
_EXCHANGE = ("send us", "receive us", "longest send ms", "longest receive ms", "cpu us")
_MIB = 1024 * 1024


class File:
    """A new store with one deep queue.

    Args:
        directory: where it lies.
        depth: how many messages are in the queue.
        lives_ms: their time to live; 0 for without limit.
    """

    def __init__(self, directory: Path, depth: int, lives_ms: int = 0) -> None:
        self._path = directory / "broker.db"
        self.store = f"sqlite:///{self._path}"
        self.connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": self.store}))
        self.connection.create(_DEEP)
        content = encode(Message(BODY, headers=Headers(persistent=True)))
        with closing(open_link(self.store)) as link:
            for first in range(0, depth, _AT_ONCE):
                numbers = range(first, min(first + _AT_ONCE, depth))
                entries = [NewMessage("", 0, f"ID:{number}", content, lives_ms=lives_ms) for number in numbers]
                with link.transaction(synced=False) as connection:
                    sending.store(connection, _DEEP, entries, Terms(link, set()))

    def client(self) -> Client:
        """Start a client, which the caller closes."""
        return Client(python_client("scale_client", self.store))

    def waiting(self, queue: str) -> int:
        """How many messages a queue holds."""
        states = self.connection.administration().destinations()
        return sum(one.ready for one in states if one.destination == queue)

    def log_mib(self) -> float:
        """The size of the write-ahead log."""
        return Path(f"{self._path}-wal").stat().st_size / _MIB


@contextmanager
def _file(depth: int, lives_ms: int = 0) -> Iterator[File]:
    with tempfile.TemporaryDirectory(prefix="correlator-scale-") as directory:
        yield File(Path(directory), depth, lives_ms)


@contextmanager
def _clients(file: File, number: int) -> Iterator[list[Client]]:
    clients = [file.client() for _ in range(number)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


class Exchanges:
    """What the exchanges of each round have found, calm and disturbed."""

    def __init__(self, client: Client, milliseconds: int, queue: str) -> None:
        self._client = client
        self._words = "exchange", milliseconds, queue
        self._calm: dict[str, list[Sequence[float]]] = defaultdict(list)
        self._disturbed: dict[str, list[Sequence[float]]] = defaultdict(list)

    def run(self) -> Sequence[float]:
        """One exchange; the answer is in the columns of the table."""
        cpu_s = processor_s(self._client.pid)
        count, sends, receives, longest_send, longest_receive = self._client.call(*self._words)
        cpu_s = processor_s(self._client.pid) - cpu_s
        return (
            sends / count / 1e3,
            receives / count / 1e3,
            longest_send / 1e6,
            longest_receive / 1e6,
            cpu_s / count * 1e6,
        )

    def add(self, name: str, calm: Sequence[float], disturbed: Sequence[float]) -> None:
        """Note a round."""
        self._calm[name].append(calm)
        self._disturbed[name].append(disturbed)

    def table(self, title: str, goal: str) -> Table:
        """All rounds."""
        calm = [round_ for found in self._calm.values() for round_ in found]
        rows = [Row("calm", [spread(values) for values in zip(*calm, strict=True)])]
        compared = []
        for name, found in self._disturbed.items():
            rows.append(Row(name, [spread(values) for values in zip(*found, strict=True)]))
            pairs = zip(zip(*found, strict=True), zip(*self._calm[name], strict=True), strict=True)
            compared.append(Row(f"{name} : calm", [ratios(one, other) for one, other in pairs]))
        return Table(title, _EXCHANGE, rows, compared, goal)


def _expiry(arguments: argparse.Namespace) -> Iterator[Table]:
    """Rounds until no message is left; nothing of the last one counts, since it has had pauses without work."""
    transactions: list[Sequence[float]] = []
    swept_s = 0.0
    with _file(arguments.depth, lives_ms=1) as file, _clients(file, 2) as (client, other):
        exchanges = Exchanges(client, arguments.round_ms, _OTHER)
        for turn in itertools.count():
            calm = exchanges.run()
            begin = time.monotonic()
            if turn % 2:
                client.call("sweep_aside", arguments.round_ms)
            else:
                other.ask("sweep", arguments.round_ms)
            disturbed = exchanges.run()
            none_left, count, *took_ns = client.call("swept") if turn % 2 else other.answer()
            swept_s += time.monotonic() - begin
            transactions.append((count, *(one / 1e6 for one in took_ns)))
            if turn < 2 or not none_left:
                exchanges.add("swept by the same process" if turn % 2 else "swept by another process", calm, disturbed)
            if none_left:
                break
        dead = file.waiting(DEAD_MESSAGES)
    assert dead == arguments.depth, f"{dead} of {arguments.depth} messages are dead"
    yield exchanges.table(
        f"{arguments.depth:,} messages of another queue expire, {swept_s:.0f} s of sweeping", "at most 2"
    )
    columns = ("transactions", "median ms", "longest ms", "longest cpu ms")
    row = Row("all", [spread(values) for values in zip(*transactions, strict=True)])
    yield Table("transactions of the sweeper, by round", columns, [row], (), "at most 50 ms")


def _browse(arguments: argparse.Namespace) -> Iterator[Table]:
    """Each round has a snapshot of the whole queue, which takes longer than the exchange."""
    took: list[float] = []
    log: list[float] = []
    with _file(arguments.depth) as file, _clients(file, 2) as (client, reader):
        exchanges = Exchanges(client, arguments.round_ms, _DEEP)
        while sum(took) < arguments.seconds:
            calm = exchanges.run()
            begin = time.monotonic()
            reader.ask("browse", _DEEP)
            exchanges.add("browsed", calm, exchanges.run())
            log.append(file.log_mib())
            (shown,) = reader.answer()
            took.append(time.monotonic() - begin)
            assert abs(shown - arguments.depth) <= 1, f"{shown} messages, not {arguments.depth}"  # one is on its way
        exchanges.run()
        after = file.log_mib()
    yield exchanges.table(f"a process browses {arguments.depth:,} messages of the same queue", "receive: at most 1.2")
    yield Table("the snapshots, by round", ["seconds", "log MiB"], [Row("all", [spread(took), spread(log)])])
    yield _log_after(after)


def _snapshot(arguments: argparse.Namespace) -> Iterator[Table]:
    """As a program does that copies the file, or that looks at it and forgets to end its transaction."""
    rounds = arguments.seconds * 1000 // arguments.round_ms
    with _file(arguments.depth) as file, _clients(file, 2) as (client, reader):
        exchanges = Exchanges(client, arguments.round_ms, _DEEP)
        calm = [exchanges.run() for _ in range(rounds)]
        reader.call("hold")
        disturbed = [exchanges.run() for _ in range(rounds)]
        during = file.log_mib()
        reader.call("let_go")
        for pair in zip(calm, disturbed, strict=True):
            exchanges.add("a transaction reads", *pair)
        exchanges.run()
        after = file.log_mib()
    yield exchanges.table(
        f"a transaction reads for {arguments.seconds} s, {arguments.depth:,} messages in the queue", ""
    )
    yield Table("the log at its end", ["MiB"], [Row("all", [spread([during])])])
    yield _log_after(after)


def _log_after(mib: float) -> Table:
    return Table("the log after it", ["MiB"], [Row("all", [spread([mib])])], (), "at most 64")


def _writers(arguments: argparse.Namespace) -> Iterator[Table]:
    """Shares and waits are those of each round."""
    shares, longest, rates = [], [], []
    with _file(0) as file, _clients(file, _WRITERS) as clients:
        for _ in range(_ROUNDS):
            for client in clients:
                client.ask("send", arguments.round_ms, _OTHER)
            answers = [client.answer() for client in clients]
            sent = [count for count, _ in answers]
            shares.append(min(sent) / max(sent))
            longest.append(max(longest_ns for _, longest_ns in answers) / 1e6)
            rates.append(sum(sent) / arguments.round_ms * 1e3)
    columns = ("least : greatest share", "longest send ms", "sends/s together")
    row = Row("all", [spread(values) for values in (shares, longest, rates)])
    goal = "a share of at least 0.5, a send of at most 500 ms"
    yield Table(f"{_WRITERS} processes send singly, {_ROUNDS} rounds", columns, [row], (), goal)


_MEASUREMENTS: Mapping[str, Callable[[argparse.Namespace], Iterator[Table]]] = {
    "expiry": _expiry,
    "browse": _browse,
    "snapshot": _snapshot,
    "writers": _writers,
}


def main(words: Sequence[str] | None = None) -> None:
    """Print each table as soon as it is complete. `words` stand for those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.service.scale")
    parser.add_argument("--only", type=names(tuple(_MEASUREMENTS)), default=tuple(_MEASUREMENTS))
    parser.add_argument("--depth", type=int, default=1_000_000)
    parser.add_argument("--round-ms", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=60, help="of each reader, at least")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    found: dict[str, object] = {"machine": machine()}
    print(found["machine"])
    for name in arguments.only:
        tables = []
        for table in _MEASUREMENTS[name](arguments):
            print(f"\n{name}: {table}", flush=True)
            tables.append(table.as_json())
        found[name] = tables
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
