"""The cost of a checkpoint follows what changed: 1,000 changed keys with 10,000 and with 1,000,000 keys in state.

Both engines live in one process and take their checkpoints in turn, after so many rounds that the state log of both
cleans as fast as it grows; the ratio of the medians is printed.

    python -m tests.benchmarks.bench_checkpoint [--rounds 40]
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from correlator import Engine, Message, Monitor, Reliability, StateTable, event, on
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings
from correlator.testing.memory import MemoryBroker

CHANGED = 1000


@event
class Fill:
    """Sets many keys at once."""

    first: int
    count: int


@event
class Change:
    """Sets one key."""

    key: int


class Keys(Monitor, persistent=True):
    """State by key."""

    values: StateTable[int, str]

    @on(Fill)
    def fill(self, fill: Fill) -> None:
        """Set many keys."""
        for key in range(fill.first, fill.first + fill.count):
            self.values[key] = f"value {key:08d} of the first life ............"

    @on(Change)
    def change(self, change: Change) -> None:
        """Set one key."""
        self.values[change.key] = f"value {change.key:08d} changed {random.random():.12f}"


class Loaded:
    """An engine with so many keys in state."""

    def __init__(self, directory: Path, keys: int) -> None:
        self.keys = keys
        self.broker = MemoryBroker()
        module = __name__
        receivers = tuple(
            ReceiverSettings(
                id=name,
                connection="memory",
                destination=f"queue:{name}",
                reliability=Reliability.AT_LEAST_ONCE,
                event=f"{module}:{name}",
            )
            for name in ("Fill", "Change")
        )
        settings = EngineSettings(
            name="bench",
            store=f"sqlite:///{directory / f'{keys}.db'}",
            checkpoint=CheckpointSettings(interval=3600.0),
            receivers=receivers,
            monitors=(MonitorSettings(type=f"{module}:Keys"),),
        )
        self.engine = Engine(settings, connections={"memory": self.broker.connection()})
        self.engine.start()
        fills = [b'{"first": %d, "count": 10000}' % first for first in range(0, keys, 10_000)]
        self.handle("Fill", fills)
        self.checkpoint()

    def handle(self, name: str, bodies: list[bytes]) -> None:
        """Have the bodies handled."""
        before = self.engine.receivers[name].counters.delivered
        self.broker.publish(f"queue:{name}", [Message(body) for body in bodies])
        thread = self.engine.contexts["main"]
        while self.engine.receivers[name].counters.delivered < before + len(bodies) or not thread.idle:
            time.sleep(0.001)

    def checkpoint(self) -> float:
        """Take a checkpoint; returns its seconds."""
        begin = time.perf_counter()
        assert self.engine.checkpoint(300)
        return time.perf_counter() - begin

    def settle(self) -> None:
        """Change keys until half of what is stored is superseded: from then on each checkpoint cleans."""
        assert self.engine.writer is not None
        log = self.engine.writer.state_log
        while log.stored < 2 * log.living:
            self.round()
        for _ in range(self.keys // CHANGED):
            self.round()

    def round(self) -> float:
        """Change keys, then time the checkpoint."""
        self.handle("Change", [b'{"key": %d}' % key for key in random.sample(range(self.keys), CHANGED)])
        return self.checkpoint()


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--directory", default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        small, large = Loaded(Path(name), 10_000), Loaded(Path(name), 1_000_000)
        for loaded in (small, large):
            loaded.settle()
        times: dict[int, list[float]] = {small.keys: [], large.keys: []}
        for _ in range(arguments.rounds):
            for loaded in (small, large):
                times[loaded.keys].append(loaded.round())
        for loaded in (small, large):
            loaded.engine.stop()
    medians = {keys: statistics.median(taken) for keys, taken in times.items()}
    for keys, median in medians.items():
        print(f"{keys:>9,} keys: checkpoint of {CHANGED:,} changed keys takes {median * 1000:.1f} ms (median)")
    ratio = medians[1_000_000] / medians[10_000]
    print(f"ratio {ratio:.2f} (wanted: at most 1.50)")


if __name__ == "__main__":
    from tests.benchmarks import bench_checkpoint

    bench_checkpoint.main()
