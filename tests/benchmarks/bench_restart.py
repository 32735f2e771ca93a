"""Restart with 1,000,000 duplicate ids and 100,000 outbound messages: time until receivers are open, and memory.

The store is filled through the engine itself: ids by receiving, sends by a sender whose broker is down. A fresh process
then starts an engine on it; the split of its start is printed.

    python -m tests.benchmarks.bench_restart [--ids 1000000] [--sends 100000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.core.faults import install
from correlator.settings import (
    CheckpointSettings,
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.memory import MemoryBroker

BODY = b'{"account": "A00001", "note": "' + b"x" * 224 + b'"}'
PART = 20_000


class Forward(Monitor, persistent=True):
    """Sends on what carries the mark."""

    @on(Message)
    def forward(self, message: Message) -> None:
        """Send it."""
        if message.key == "send":
            self.send(message, to="out")


def settings(directory: Path) -> EngineSettings:
    """The engine."""
    return EngineSettings(
        name="bench",
        store=f"sqlite:///{directory / 'engine.db'}",
        checkpoint=CheckpointSettings(interval=0.5),
        duplicate_detection=DuplicateDetectionSettings(per_source_window_size=10_000_000, expiry_time=3600.0),
        receivers=(
            ReceiverSettings(
                id="in", connection="memory", destination="queue:in", reliability=Reliability.EXACTLY_ONCE
            ),
        ),
        senders=(
            SenderSettings(id="out", connection="down", destination="queue:out", reliability=Reliability.EXACTLY_ONCE),
        ),
        monitors=(MonitorSettings(type="tests.benchmarks.bench_restart:Forward"),),
    )


def engine(made: EngineSettings) -> tuple[Engine, MemoryBroker]:
    """An engine with a broker that gives, in the connection `memory`, and one that cannot be reached, in `down`."""
    gives, unreachable = MemoryBroker(), MemoryBroker()
    unreachable.down = True
    connections = {"memory": gives.connection(), "down": unreachable.connection()}
    return Engine(made, connections=connections), gives


def fill(made: EngineSettings, messages: Sequence[Message]) -> None:
    """Fill the store of an engine with what follows from messages; ends without an orderly stop."""
    filling, broker = engine(made)
    filling.start()
    for first in range(0, len(messages), PART):
        batch = messages[first : first + PART]
        broker.publish("queue:in", batch)
        while filling.receivers["in"].counters.delivered < first + len(batch):
            time.sleep(0.005)
    while not filling.contexts["main"].idle:
        time.sleep(0.005)
    filling.checkpoint()
    filling.stop(drain=False)


def peak_memory_mb() -> float:
    """Peak memory of this process; `getrusage` would report that of the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def start(directory: Path) -> None:
    """Start on the filled store and print the split."""
    begin = last = time.perf_counter()
    marks: dict[str, float] = {}
    order = [
        "rec.lock",
        "rec.load.meta",
        "cfg.compare",
        "rec.epoch.commit.after",
        "rec.load.outbox",
        "rec.open_senders",
    ]

    def mark(name: str) -> None:
        nonlocal last
        if name in order and name not in marks:
            now = time.perf_counter()
            marks[name] = now - last
            last = now

    install(mark)
    restarted, _ = engine(settings(directory))
    restarted.start()
    ready = time.perf_counter() - begin
    install(None)
    peak = peak_memory_mb()
    detectors = restarted.writer.domains.detectors if restarted.writer else {}
    ids = sum(len(detector) for detector in detectors.values())
    print(f"ids {ids:,}, outbound {restarted.senders['out'].outbox.outstanding:,}")
    for name, seconds in marks.items():
        print(f"  until {name}: {seconds:.2f} s")
    print(f"ready in {ready:.2f} s (wanted: at most 5), peak memory {peak:.0f} MB (wanted: at most 500)")
    restarted.stop(drain=False)


def main() -> None:
    """Fill, then start in a fresh process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--sends", type=int, default=100_000)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--start", type=Path, default=None, help="only start, on this directory")
    arguments = parser.parse_args()
    if arguments.start is not None:
        start(arguments.start)
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        messages = [
            Message(
                BODY,
                {"uniqueMessageId": f"{number}:host.example:4711/123:1:S01", "messageSourceId": "S01"},
                "send" if number < arguments.sends else None,
            )
            for number in range(arguments.ids)
        ]
        fill(settings(Path(name)), messages)
        command = [sys.executable, "-m", "tests.benchmarks.bench_restart", "--start", name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    from tests.benchmarks import bench_restart

    bench_restart.main()
