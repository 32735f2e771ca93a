"""What an input log costs: messages a second through the engine without and with it, alternating.

`python -m tests.benchmarks.bench_input_log`; EXACTLY_ONCE in and out, one persistent monitor, SQLite.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks import bench_engine


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    inputs = bench_engine.messages(arguments.messages)
    ratios = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as off, tempfile.TemporaryDirectory() as on:
            rates = {}
            for name in (off, on) if number % 2 else (on, off):
                log = f"{on}/input.log" if name == on else None
                rates[name] = bench_engine.engine_rate(Path(name), inputs, input_log=log)
            size = Path(f"{on}/input.log.1").stat().st_size / arguments.messages
        ratios.append(rates[on] / rates[off])
        print(
            f"round {number + 1}: off {rates[off]:,.0f}/s  on {rates[on]:,.0f}/s  ratio {ratios[-1]:.2f}  "
            f"{size:.0f} bytes a message"
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
