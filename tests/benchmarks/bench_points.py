"""What fault points cost in production, where nobody has installed a handler.

The engine of `bench_engine` counts how many points a message passes; the price of a call is measured alone, in a loop
without which it would be nothing. Their product is held against the time that the engine has for a message.

    python -m tests.benchmarks.bench_points [--messages 100000] [--rounds 3]
"""

import argparse
import statistics
import tempfile
import timeit
from collections import Counter
from pathlib import Path

from correlator.core import faults
from correlator.core.faults import point
from correlator.events import Message
from tests.benchmarks.bench_engine import engine_rate, messages

CALLS = 2_000_000
WANTED = 0.001


def points_per_message(inputs: list[Message]) -> float:
    """How many points the engine passes for each message, from its start to its stop."""
    passed: Counter[str] = Counter()
    faults.install(lambda name: passed.update([name]))
    try:
        with tempfile.TemporaryDirectory() as name:
            engine_rate(Path(name), inputs)
    finally:
        faults.install(None)
    return sum(passed.values()) / len(inputs)


def call_ns() -> float:
    """Nanoseconds of one call, the loop around it taken off; the best of five."""
    with_calls = min(timeit.repeat(lambda: [point("rx.poll") for _ in range(CALLS)], number=1, repeat=5))
    without = min(timeit.repeat(lambda: [None for _ in range(CALLS)], number=1, repeat=5))
    return (with_calls - without) / CALLS * 1e9


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    inputs = messages(arguments.messages)
    passed, ns = points_per_message(inputs), call_ns()
    rates = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            rates.append(engine_rate(Path(name), inputs))
    message_ns = 1e9 / statistics.median(rates)
    share = passed * ns / message_ns
    print(
        f"{passed:.3f} points a message, {ns:.1f} ns a point, {message_ns:,.0f} ns a message: "
        f"{share:.4%} (wanted: at most {WANTED:.1%})"
    )


if __name__ == "__main__":
    main()
