"""All flights of the year through our pipeline, against the same job in plain Structured Streaming.

Both run as whole processes in turn, start of Spark included, and must find the same alerts and delayed departures.

    python -m tests.benchmarks.bench_flights [--rounds 2] [--rows 50000]
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLIGHTS = 336_776


def prepare(directory: Path) -> Path:
    """A copy of the example with the data of the whole year; returns the data."""
    shutil.copytree(ROOT / "config", directory / "config", ignore=shutil.ignore_patterns(".positions", "*.jsonl"))
    make = [sys.executable, "config/flights/make_data.py", "--all"]
    subprocess.run(make, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return directory / "config/data/flights-all.csv"


def ours(directory: Path) -> tuple[float, int, int]:
    """Seconds, alerts, delayed departures."""
    command = [str(Path(sys.executable).with_name("correlator")), "run", "config/flights-all.yaml"]
    began = time.perf_counter()
    output = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - began
    delayed = (directory / "config/data/delayed-all.jsonl").read_bytes().count(b"\n")
    found = re.search(r"sender alerts\D+(\d+)\D+(\d+)", output)
    assert found, output
    return seconds, int(found.group(2)), delayed


def peer(data: Path, rows: int) -> tuple[float, int, int]:
    """The same of Structured Streaming, `rows` records a trigger."""
    module = "tests.benchmarks.peer_structured_streaming"
    command = [sys.executable, "-W", "ignore", "-m", module, "--input", str(data), "--rows", str(rows)]
    began = time.perf_counter()
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - began
    found = re.search(r"(\d+) alerts, .*malformed='false', count=(\d+)", output)
    assert found, output
    return seconds, int(found.group(1)), int(found.group(2))


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    ratios = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            data = prepare(Path(name))
            mine, *found = ours(Path(name))
            theirs, *expected = peer(data, arguments.rows)
        assert found == expected, (found, expected)
        ratios.append(theirs / mine)
        print(
            f"round {number + 1}: ours {FLIGHTS / mine:,.0f}/s, Structured Streaming {FLIGHTS / theirs:,.0f}/s, "
            f"ratio {theirs / mine:.2f}; {found[0]} alerts and {found[1]} delayed departures in both"
        )
    print(f"median ratio {statistics.median(ratios):.2f} (wanted: at least 0.50)")


if __name__ == "__main__":
    main()
