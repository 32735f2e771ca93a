"""From command to result: `correlator run` and `correlator test` against a bare PySpark session with one query.

    python -m tests.benchmarks.bench_start [--rounds 5]

All are whole processes, in turn. `run` and `test` get config/flights.yaml in a copy of the examples of their own. The
archive of classes is made first if it is missing. Each ratio is a duration divided by that of the
bare session in the same round; less is better for us. The processor time is that of the process, its JVM and Python
workers, sampled each half second.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.bench_flights import copy, timed
from tests.benchmarks.comparison import spread_of

BARE = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[*]").getOrCreate()
print(session.range(1000).selectExpr("sum(id)").collect())
session.stop()
"""
WANTED = {"run": 0.8, "test": 0.9}
_CORRELATOR = str(Path(sys.executable).with_name("correlator"))
COMMANDS = {
    "bare": [sys.executable, "-W", "ignore", "-c", BARE],
    "run": [_CORRELATOR, "run", "config/flights.yaml"],
    "test": [_CORRELATOR, "test", "config/flights.yaml"],
}


def measured(name: str) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of a command."""
    with tempfile.TemporaryDirectory() as directory:
        copy(Path(directory))
        seconds, _, _, watched = timed(COMMANDS[name], Path(directory))
    return seconds, watched.cpu_s


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    subprocess.run([sys.executable, "-m", "correlator.pipeline.archiver", "0"], check=True)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in WANTED}
    for number in range(rounds):
        found = {name: measured(name) for name in (COMMANDS if number % 2 else reversed(COMMANDS))}
        for name in WANTED:
            ratios[name].append((found[name][0] / found["bare"][0], found[name][1] / found["bare"][1]))
        print(", ".join(f"{name} {found[name][0]:.1f} s, cpu {found[name][1]:.1f} s" for name in COMMANDS), flush=True)
    for name, some in ratios.items():
        wall, cpu = zip(*some, strict=True)
        print(
            f"{name:5} median ratio {spread_of(wall)}, of processor time {spread_of(cpu)}, "
            f"wanted: at most {WANTED[name]}"
        )


if __name__ == "__main__":
    main()
