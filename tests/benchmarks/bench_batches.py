"""Batch size against throughput and delay of an EXACTLY_ONCE receiver (rule A4.13).

A backlog is worked off for the rate; then single messages are published one after another for the delay until a monitor
has one.

    python -m tests.benchmarks.bench_batches [--messages 50000]
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings
from correlator.testing.memory import MemoryBroker
from tests.benchmarks.bench_engine import messages

SINGLES = 50


class Counts(Monitor):
    """Counts messages, and says when enough are there."""

    arrived = threading.Event()
    missing = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """One less."""
        del message
        Counts.missing -= 1
        if not Counts.missing:
            Counts.arrived.set()


def expect(count: int) -> None:
    """Wait for so many from now on."""
    Counts.missing = count
    Counts.arrived.clear()


def measure(inputs: list[Message], size: int, interval_ms: int) -> tuple[float, float]:
    """Messages a second, and the median delay of a single one in milliseconds."""
    broker = MemoryBroker()
    with tempfile.TemporaryDirectory() as directory:
        settings = EngineSettings(
            name="bench",
            store=f"sqlite:///{Path(directory) / 'engine.db'}",
            receivers=(
                ReceiverSettings(
                    id="in",
                    connection="memory",
                    destination="queue:in",
                    reliability=Reliability.EXACTLY_ONCE,
                    max_batch_size=size,
                    max_batch_interval_ms=interval_ms,
                ),
            ),
            monitors=(MonitorSettings(type=f"{__name__}:Counts"),),
        )
        expect(len(inputs))
        broker.publish("queue:in", inputs)
        begin = time.perf_counter()
        with Engine(settings, connections={"memory": broker.connection()}):
            assert Counts.arrived.wait(300)
            rate = len(inputs) / (time.perf_counter() - begin)
            delays = []
            for number in range(SINGLES):
                expect(1)
                begin = time.perf_counter()
                broker.publish("queue:in", [Message(b"", {"uniqueMessageId": f"single {number}"})])
                assert Counts.arrived.wait(60)
                delays.append(time.perf_counter() - begin)
    return rate, statistics.median(delays) * 1000


def main() -> None:
    """A line for each batch size and interval."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()
    inputs = messages(options.messages)
    for size, interval in ((1, 0), (10, 0), (100, 0), (1000, 0), (1000, 20), (1000, 200), (10_000, 20)):
        count = min(len(inputs), 2000 * size)
        rate, delay = measure(inputs[:count], size, interval)
        print(f"size {size:>6}  interval {interval:>4} ms  {rate:>10,.0f}/s  single {delay:7.1f} ms")


if __name__ == "__main__":
    main()
