"""What the performance breakdown costs (FEATURES A9.6): the engine with it and without it, in turn; ratio on/off.

python -m tests.benchmarks.bench_breakdown [--messages 100000] [--rounds 5]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.bench_engine import engine_rate, messages


def rate(inputs: list, *, measured: bool) -> float:
    """Messages a second of one run."""
    with tempfile.TemporaryDirectory() as directory:
        return engine_rate(Path(directory), inputs, log_performance_breakdown=measured)


def main() -> None:
    """Run the rounds; which of the two goes first alternates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    inputs = messages(options.messages)
    ratios = []
    for number in range(options.rounds):
        rates = {measured: rate(inputs, measured=measured) for measured in (number % 2 == 0, number % 2 == 1)}
        ratios.append(rates[True] / rates[False])
        print(f"off {rates[False]:,.0f}/s  on {rates[True]:,.0f}/s  ratio {ratios[-1]:.3f}")
    print(f"median ratio on/off {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
