"""What the performance breakdown and the status line cost (rules A9.2, A9.6), as shares of the engine's time.

Throughput with and without the breakdown differs by less than two equal runs do on a shared machine. So the cost is
counted: how often the engine's threads look at the clock in one run, times what one look costs, against the time of the
run; and what one status line costs, against the interval between two. The ratio of whole runs, in CPU seconds, which
other work disturbs less than seconds, is printed beside it.

    python -m tests.benchmarks.bench_breakdown [--messages 100000] [--rounds 5]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from correlator import Engine
from correlator.runtime.breakdown import SENDER_ITEMS, Breakdown
from correlator.runtime.status import status_line
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.memory import MemoryBroker
from tests.benchmarks.bench_engine import engine_rate, messages

LOOKS = 200_000
LINES = 200
PARTS = 10


def run(inputs: list, *, measured: bool) -> tuple[float, float]:
    """Seconds and CPU seconds of one run."""
    with tempfile.TemporaryDirectory() as directory:
        begin = time.process_time()
        rate = engine_rate(Path(directory), inputs, log_performance_breakdown=measured)
        return len(inputs) / rate, time.process_time() - begin


def looks_of_a_run(inputs: list) -> tuple[int, float]:
    """How often threads say what they have done, and the seconds of the run."""
    looks = 0
    original = {name: getattr(Breakdown, name) for name in ("lap", "lap_until", "batch", "restart")}

    def counting(name: str) -> Any:
        def method(self: Breakdown, *arguments: Any) -> None:
            nonlocal looks
            looks += 1
            original[name](self, *arguments)

        return method

    for name in original:
        setattr(Breakdown, name, counting(name))
    try:
        seconds, _ = run(inputs, measured=True)
    finally:
        for name, method in original.items():
            setattr(Breakdown, name, method)
    return looks, seconds


def cost_of_a_look() -> float:
    """Seconds."""
    breakdown = Breakdown(SENDER_ITEMS, time.monotonic, 60.0, lambda _: None)
    begin = time.perf_counter()
    for _ in range(LOOKS):
        breakdown.lap("SENDING")
    return (time.perf_counter() - begin) / LOOKS


def cost_of_a_line() -> float:
    """Seconds for the status line of an engine with ten receivers and ten senders."""
    receivers = tuple(
        ReceiverSettings(id=f"in{n}", connection="memory", destination=f"queue:in{n}") for n in range(PARTS)
    )
    senders = tuple(
        SenderSettings(id=f"out{n}", connection="memory", destination=f"queue:out{n}") for n in range(PARTS)
    )
    settings = EngineSettings(
        name="bench",
        receivers=receivers,
        senders=senders,
        monitors=(MonitorSettings(type="correlator:Monitor"),),
        status_interval=0.0,
    )
    with Engine(settings, connections={"memory": MemoryBroker().connection()}) as engine:
        before = engine.status()
        begin = time.perf_counter()
        for _ in range(LINES):
            status_line(before, engine.status())
        return (time.perf_counter() - begin) / LINES


def main() -> None:
    """Count, then run the rounds; which of the two goes first alternates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    inputs = messages(options.messages)
    looks, seconds = looks_of_a_run(inputs)
    look = cost_of_a_look()
    share = looks * look / seconds
    print(f"breakdown: {looks} looks of {look * 1e9:.0f} ns in {seconds:.2f} s: {share:.3%} of the time")
    line, interval = cost_of_a_line(), EngineSettings(name="bench").status_interval
    print(f"status line: {line * 1e3:.2f} ms every {interval:.0f} s: {line / interval:.4%} of the time")
    ratios = []
    for number in range(options.rounds):
        cpu = {measured: run(inputs, measured=measured)[1] for measured in (number % 2 == 0, number % 2 == 1)}
        ratios.append(cpu[False] / cpu[True])
        print(f"CPU off {cpu[False]:.2f} s  on {cpu[True]:.2f} s  ratio {ratios[-1]:.3f}")
    print(f"median ratio of throughput per CPU second, on/off {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
