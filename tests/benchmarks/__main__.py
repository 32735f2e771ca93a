"""Runs a choice of the benchmarks with small sizes, and prints one table of their ratios.

    python -m tests.benchmarks report [--only engine,rabbitmq] [--json FILE]

Each row is the figure of correlator divided by that of a peer in the same run, so that a slow or busy machine changes
both. A benchmark is a process of its own; its last line for each row is where the ratio is read, and all that it prints
is shown before the table.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from correlator.testing.files import write_json
from tests.benchmarks.service.__main__ import machine, names
from tests.harness.processes import ROOT, environment

_RATIO = r"(?P<median>\d+\.\d+)(?: \((?P<low>\d+\.\d+) to (?P<high>\d+\.\d+)\))?"


class Benchmark(NamedTuple):
    """A benchmark of the report.

    Attributes:
        words: its module and arguments.
        rows: what is compared, and the text before the ratio in the line that the benchmark prints.
        peer: what correlator is compared with, and its settings.
        packages: whose versions matter.
    """

    words: Sequence[str]
    rows: dict[str, str]
    peer: str
    packages: Sequence[str] = ()


class Ratio(NamedTuple):
    """A row of the table; the least and the greatest of the rounds, if the benchmark tells them."""

    benchmark: str
    what: str
    median: float
    low: float | None
    high: float | None


BENCHMARKS = {
    "engine": Benchmark(
        ["tests.benchmarks.bench_engine", "--messages", "50000", "--rounds", "3"],
        {"rate of an EXACTLY_ONCE engine": "median ratio "},
        "the same bytes committed to SQLite, once in and once out, 1,000 rows a commit, synchronous=FULL",
    ),
    "postgres": Benchmark(
        ["tests.benchmarks.bench_engine", "--postgres", "--messages", "50000", "--rounds", "3"],
        {"rate of an EXACTLY_ONCE engine with its store in PostgreSQL": "median ratio "},
        "the same bytes written by COPY, once in and once out, 1,000 rows a commit",
        ["psycopg"],
    ),
    "latency": Benchmark(
        ["tests.benchmarks.bench_latency", "--seconds", "5"],
        {
            "delay of a message, median, default settings": "settings default: p50 ",
            "delay of a message, median, settings that wait for nothing": "settings quick: p50 ",
        },
        "two commits of one row to SQLite, synchronous=FULL",
    ),
    "checkpoint": Benchmark(
        ["tests.benchmarks.bench_checkpoint", "--rounds", "10"],
        {"duration of a checkpoint with 1,000,000 keys": "ratio "},
        "the same checkpoint with 10,000 keys",
    ),
    "contexts": Benchmark(
        ["tests.benchmarks.bench_contexts", "--messages", "10000"],
        {"rate of ten contexts": "median ratio "},
        "one context",
    ),
    "input-log": Benchmark(
        ["tests.benchmarks.bench_input_log", "--messages", "30000", "--rounds", "3"],
        {"rate with an input log": "median ratio "},
        "the same engine without one",
    ),
    "http": Benchmark(
        ["tests.benchmarks.bench_http", "--messages", "50000", "--rounds", "3"],
        {
            "rate while /status and /metrics are read": "medians: rate ",
            "processor time of a message meanwhile": "medians: rate [0-9.]+, CPU time of a message ",
        },
        "the same engine without the HTTP server",
    ),
    "rabbitmq": Benchmark(
        ["tests.benchmarks.rabbitmq.bench_client", "--messages", "10000", "--rounds", "3"],
        {
            "RabbitMQ: rate of publishing with confirms, batches of 500": "publish, batches of 500 +median of ratios: rate ",
            "RabbitMQ: rate of publishing with confirms, batches of 5,000": "publish, batches of 5000 +median of ratios: rate ",
            "RabbitMQ: rate of consuming": "consume.* median of ratios: rate ",
        },
        "pika alone, same prefetch and same number of unconfirmed messages",
        ["pika"],
    ),
    "shovel": Benchmark(
        ["tests.benchmarks.rabbitmq.bench_shovel", "--messages", "20000", "--rounds", "3"],
        {"RabbitMQ: rate of an EXACTLY_ONCE engine from queue to queue": "median of ratios "},
        "the shovel of the server, on-confirm, which keeps no state",
    ),
    "kafka": Benchmark(
        ["tests.benchmarks.kafka.bench_topics", "--messages", "20000", "--rounds", "3"],
        {"Kafka: rate of an EXACTLY_ONCE engine from topic to topic": "engine to loop: median of ratios "},
        "confluent-kafka alone, with transactions",
        ["confluent-kafka"],
    ),
}


def main() -> int:
    """Run what the command line asks for; the exit status is 1 if a benchmark failed or printed no ratio."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("command", choices=("report",))
    parser.add_argument("--only", type=names(tuple(BENCHMARKS)), default=tuple(BENCHMARKS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    at = machine()
    rows: list[Ratio] = []
    failed = []
    for name in arguments.only:
        words = BENCHMARKS[name].words
        print(f"\n{name}: python -m {' '.join(words)}", flush=True)
        printed = printed_by(words)
        found = ratios(name, printed)
        rows += found
        if len(found) < len(BENCHMARKS[name].rows):
            failed.append(name)
    chosen = {name: BENCHMARKS[name] for name in arguments.only}
    versions = {package: version(package) for one in chosen.values() for package in ("correlator", *one.packages)}
    print("\n" + "\n".join(report(at, rows, versions, failed)))
    if arguments.json is not None:
        content = {
            "machine": at,
            "versions": versions,
            "benchmarks": {name: {"words": one.words, "peer": one.peer} for name, one in chosen.items()},
            "ratios": [row._asdict() for row in rows],
            "failed": failed,
        }
        write_json(arguments.json, content)
    return 1 if failed else 0


def printed_by(words: Sequence[str]) -> str:
    """What a benchmark prints; shown while it runs."""
    lines = []
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"    {line}", end="", flush=True)
            lines.append(line)
    return "".join(lines)


def ratios(name: str, printed: str) -> list[Ratio]:
    """Read the rows of a benchmark from what it has printed; a row that is not there is left out."""
    found = []
    for what, before in BENCHMARKS[name].rows.items():
        matches = list(re.finditer(rf"^{before}{_RATIO}", printed, re.MULTILINE))
        if matches:
            median, low, high = (one and float(one) for one in matches[-1].group("median", "low", "high"))
            found.append(Ratio(name, what, median, low, high))
    return found


def report(at: str, rows: Sequence[Ratio], versions: dict[str, str], failed: Sequence[str]) -> list[str]:
    """The table as lines of text."""
    lines = [at, ", ".join(f"{package} {number}" for package, number in versions.items())]
    width = max((len(row.what) for row in rows), default=0)
    for row in rows:
        spread = "" if row.low is None else f" ({row.low:.2f} to {row.high:.2f})"
        lines.append(f"{row.what:{width}}  {row.median:.2f}{spread:16}  against {BENCHMARKS[row.benchmark].peer}")
    return [*lines, *(f"{name}: no ratio was printed" for name in failed)]


if __name__ == "__main__":
    sys.exit(main())
