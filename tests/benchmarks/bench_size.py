"""What an id, a key of state and a waiting send need: bytes on disk and bytes of memory, each.

An engine fills its store with many of one kind, then a fresh process starts on it. Disk is what the pages in use of the
SQLite file hold; memory is what the process holds after its start. An engine with an empty store is subtracted. These
are counts, so other work on the machine does not change them.

    python -m tests.benchmarks.bench_size [--count 200000]
"""

import argparse
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from correlator import Message, Monitor, Reliability, StateTable, on
from correlator.runtime.reporter import resident_bytes
from correlator.settings import EngineSettings, MonitorSettings
from tests.benchmarks import bench_restart

KINDS = {
    "nothing": "an empty store",
    "ids": "an id of 32 characters in the window of its source",
    "keys": "a key of 12 characters with a number, in a StateTable",
    "sends": "a send of 256 bytes that waits for its broker",
}
BODY = b"x" * 256
_USED = "bytes of memory: "


class Fill(Monitor, persistent=True):
    """Keeps a key, or sends, as the key of the message asks."""

    keys: StateTable[str, int]

    @on(Message)
    def fill(self, message: Message) -> None:
        """Do it."""
        if message.key == "keys":
            self.keys[str(message.properties["name"])] = 1
        elif message.key == "sends":
            self.send(message.body, to="out")


def settings(directory: Path, kind: str) -> EngineSettings:
    """The engine."""
    made = bench_restart.settings(directory)
    (receiver,), (sender,) = made.receivers, made.senders
    mode = Reliability.EXACTLY_ONCE if kind == "ids" else Reliability.AT_LEAST_ONCE
    return replace(
        made,
        receivers=(replace(receiver, reliability=mode),),
        senders=(replace(sender, max_outstanding=1_000_000),),
        monitors=(MonitorSettings(type=f"{Fill.__module__}:Fill"),),
    )


def message(kind: str, number: int) -> Message:
    """What the engine gets for one of a kind."""
    properties = {"uniqueMessageId": f"{number:>012}:host.example:47:S01", "messageSourceId": "S01"}
    return Message(BODY, {"name": f"account{number:05}"} if kind == "keys" else properties, kind)


def used_on_disk(directory: Path) -> int:
    """Bytes of the pages in use."""
    with closing(sqlite3.connect(directory / "engine.db")) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def used_in_memory(directory: Path, kind: str) -> int:
    """Bytes of a fresh process after its start."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_size", "--start", str(directory), "--kind", kind]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # with lines of the log
    return next(int(line.removeprefix(_USED)) for line in printed.splitlines() if line.startswith(_USED))


def start(directory: Path, kind: str) -> None:
    """Start on a store, and print the memory of this process."""
    started, _ = bench_restart.engine(settings(directory, kind))
    started.start()
    print(f"{_USED}{resident_bytes()}")
    started.stop(drain=False)


def main() -> None:
    """Fill, start and compare, for each kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--start", type=Path, help="only start, on this directory")
    parser.add_argument("--kind", choices=tuple(KINDS))
    arguments = parser.parse_args()
    if arguments.start is not None:
        start(arguments.start, arguments.kind)
        return
    empty = (0, 0)
    for kind, what in KINDS.items():
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            numbers = range(0 if kind == "nothing" else arguments.count)
            bench_restart.fill(settings(directory, kind), [message(kind, number) for number in numbers])
            used = used_on_disk(directory), used_in_memory(directory, kind)
        if kind == "nothing":
            empty = used
            print(f"{what}: {used[0] / 1e6:.1f} MB on disk, {used[1] / 1e6:.0f} MB of memory")
            continue
        disk, memory = ((all_of_it - base) / arguments.count for all_of_it, base in zip(used, empty, strict=True))
        print(f"{what}: {disk:.0f} bytes on disk, {memory:.0f} bytes of memory")


if __name__ == "__main__":
    main()
