"""How long a message takes through an engine that is not busy: EXACTLY_ONCE in, a keyed persistent monitor, EXACTLY_ONCE
out, at a steady rate, with the state in SQLite.

The limit is the disk: an engine must sync the received message before it acknowledges it, and the checkpoint before it
sends the result. So the durations are divided by that of two commits of one row, measured in the same run. It runs
twice: with the default settings, and with those that wait for nothing: `max_batch_interval_ms: 0` and
`checkpoint.interval: 1ms`.

    python -m tests.benchmarks.bench_latency [--rate 1000] [--seconds 10] [--rounds 3]
"""

import argparse
import dataclasses
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from correlator import Engine
from correlator.settings import CheckpointSettings
from correlator.testing.memory import MemoryBroker
from tests.benchmarks.bench_engine import messages, settings_in, synced_database
from tests.benchmarks.comparison import spread_of

SETTINGS: dict[str, tuple[CheckpointSettings, dict[str, int]]] = {
    "default": (CheckpointSettings(), {}),
    "quick": (CheckpointSettings(interval=0.001), {"max_batch_interval_ms": 0}),
}
COMMITS = 500


def two_commits(directory: Path, body: bytes) -> float:
    """Seconds of two commits of one row, the median."""
    durations = []
    with synced_database(directory / "raw.db") as connection:
        connection.execute("CREATE TABLE raw (body BLOB)")
        for _ in range(COMMITS):
            begin = time.perf_counter()
            for _ in ("in", "out"):
                connection.execute("INSERT INTO raw VALUES (?)", (body,))
            durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def latencies(directory: Path, which: str, rate: int, seconds: float) -> list[float]:
    """Seconds of each message, from the moment at which it is due to be published until the broker has its result."""
    inputs = messages(round(rate * seconds))
    due: list[float] = []
    arrived: list[float] = []
    done = threading.Event()

    def note(kind: str, _endpoint: str, _destination: str, sent: Sequence[Any]) -> None:
        if kind == "accepted":
            arrived.extend([time.perf_counter()] * len(sent))
            if len(arrived) == len(inputs):
                done.set()

    broker = MemoryBroker(on_event=note)
    checkpoint, batches = SETTINGS[which]
    settings = dataclasses.replace(settings_in(directory, **batches), checkpoint=checkpoint)
    with Engine(settings, connections={"memory": broker.connection()}):
        begin = time.perf_counter() + 0.5
        for number, message in enumerate(inputs):
            due.append(begin + number / rate)
            time.sleep(max(0.0, due[-1] - time.perf_counter()))
            broker.publish("queue:in", [message])
        assert done.wait(60)
    return [end - start for start, end in zip(due, arrived, strict=True)]


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    body = messages(1)[0].body
    for name in SETTINGS:
        ratios = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as directory:
                limit = two_commits(Path(directory), body)
                taken = sorted(latencies(Path(directory), name, arguments.rate, arguments.seconds))
            p50, p99 = (taken[round((len(taken) - 1) * share)] for share in (0.5, 0.99))
            ratios.append((p50 / limit, p99 / limit))
            print(f"{name}: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, two commits {limit * 1e3:.2f} ms")
        for at, share in enumerate(("p50", "p99")):
            print(f"settings {name}: {share} {spread_of([ratio[at] for ratio in ratios], 1)}")


if __name__ == "__main__":
    main()
