"""The embedded message service against OpenMQ, ActiveMQ and RabbitMQ, in one run.

Messages have 256 bytes. Each peer has one process that sends and one that receives. All run in turn, several rounds;
ratios are those of each round, and their median, least and greatest are printed. The peers need Java, Maven and a
RabbitMQ; they run on loopback, with their data in the directory for temporary files.

    python -m tests.benchmarks.service [--only singly,batches] [--peers sqlite,openmq] [--messages 1000] [--rounds 5]
        [--depth 1000000] [--json FILE]
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.service import consumers, delay, depth, floor, idle, modes, rates, threads
from tests.benchmarks.service.java_peers import activemq, activemq_waiting, openmq
from tests.benchmarks.service.ours import OURS, postgres, sqlite
from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.rabbitmq import rabbitmq
from tests.benchmarks.service.report import Table

_PEERS: dict[str, Callable[[], BrokerPeer]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "openmq": openmq,
    "activemq": activemq,
    "activemq_waiting": activemq_waiting,
    "rabbitmq": rabbitmq,
}
_BATCH = 100
_FETCHES = 20
"""Consumers share at least so many times a thousand messages, which is as many as each of them fetches ahead."""
_LISTENERS = 10
_LISTENING_S = 5.0


def main(words: Sequence[str] | None = None) -> None:
    """Print each table as soon as it is complete. `words` stand for those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.service")
    parser.add_argument("--only", type=names(tuple(_MEASUREMENTS)), default=tuple(_MEASUREMENTS))
    parser.add_argument("--peers", type=names(tuple(_PEERS)), default=tuple(_PEERS))
    parser.add_argument(
        "--messages",
        type=int,
        default=1000,
        help="singly; ten times as many in batches, and twenty times as many for several consumers",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    found: dict[str, object] = {"machine": machine()}
    print(found["machine"])
    with ExitStack() as stack:
        peers = [_PEERS[name]() for name in arguments.peers]
        for peer in peers:
            stack.callback(peer.stop)
            peer.start()
            print(f"{peer.name}: {peer.settings}", flush=True)
        found["peers"] = {peer.name: peer.settings for peer in peers}
        for name in arguments.only:
            tables = []
            for table in _MEASUREMENTS[name](peers, arguments):
                print(f"\n{name}: {table}", flush=True)
                tables.append(table.as_json())
            found[name] = tables
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(found, indent=1))


def machine() -> str:
    """What the figures depend on: processors, their load, and the time that a synced write takes."""
    with tempfile.TemporaryFile() as file:
        took = []
        for _ in range(200):
            begin = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin)
    synced_ms = statistics.median(took) * 1e3
    cores, load = os.cpu_count(), os.getloadavg()[0]
    python = platform.python_version()
    return f"{cores} cores, load {load:.1f}, a synced write of 4 KiB {synced_ms:.2f} ms, Python {python}"


def names(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument that is a list of some of these names, with commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(allowed):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(allowed)}")
        return names

    return read


def _ours(peers: Sequence[BrokerPeer]) -> list[BrokerPeer]:
    return [peer for peer in peers if peer.name in OURS]


def _singly(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield rates.measure(peers, arguments.messages, 1, arguments.rounds)


def _floor(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    measures = {"sqlite": floor.measure, "postgres": floor.measure_postgres}
    for peer in _ours(peers):
        yield measures[peer.name](arguments.messages, arguments.rounds)


def _batches(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield rates.measure(peers, arguments.messages * 10, _BATCH, arguments.rounds)


def _depth(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    for peer in _ours(peers):
        yield depth.measure(_PEERS[peer.name], arguments.depth, arguments.messages, arguments.rounds)


def _delay(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield delay.measure(peers, max(100, arguments.messages // 10), arguments.rounds)


def _idle(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield idle.measure(_ours(peers), _LISTENERS, _LISTENING_S, arguments.rounds)


def _consumers(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    for peer in _ours(peers):
        yield consumers.measure(peer, arguments.messages * _FETCHES, arguments.rounds)


def _threads(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield threads.measure(_ours(peers), arguments.messages, arguments.rounds)


def _modes(peers: Sequence[BrokerPeer], arguments: argparse.Namespace) -> Iterator[Table]:
    yield modes.measure(_ours(peers), arguments.messages // 2, arguments.rounds)


_MEASUREMENTS: dict[str, Callable[[Sequence[BrokerPeer], argparse.Namespace], Iterator[Table]]] = {
    "singly": _singly,
    "floor": _floor,
    "batches": _batches,
    "depth": _depth,
    "delay": _delay,
    "idle": _idle,
    "consumers": _consumers,
    "threads": _threads,
    "modes": _modes,
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    main()
