"""Flights through our pipelines, against the same jobs in plain Structured Streaming.

    python -m tests.benchmarks.bench_flights [--rounds 2] [--rows 336776] [--jobs keyed stateless] [--memory]

Both run as whole processes in turn, start and stop of Spark included, and must find the same. The job `keyed` is
config/flights-all.yaml: late departures, and alerts by a keyed step. The job `stateless` is the same without that step.
More `--rows` than the year has are those of further years, with the same flights.

`run`: records a second of the whole process. `cycle`: records a second of the time that the batches take, which for us
is the time of the pipeline's thread, for Structured Streaming that of its triggers; receiving, commits and senders run
beside our pipeline, while a trigger reads and writes files, too. Each is a ratio of rates, more is better for us.

With `--memory`, the resident memory of the driver, of its JVM and of the Python workers is sampled each second: the
largest sum, and the slope over the second half of the run.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.peer_structured_streaming import APIS, JOBS, MANY, cut, lines_in
from tests.spark_cluster import children, command_of

ROOT = Path(__file__).parents[2]
DATA = "flights-all.csv"
YEAR = 336_776
"""Departures of a year."""
PIECE = 50_000
"""Records of a trigger."""
PARTS = ("driver", "jvm", "workers")
WANTED = {"keyed": 1.0, "stateless": 0.9}


class Sample(NamedTuple):
    """Resident memory at a time, in MB by part."""

    at_s: float
    parts: dict[str, float]


class Found(NamedTuple):
    """What a run took and found."""

    run_s: float
    cycles_s: float
    alerts: int
    delayed: int
    samples: Sequence[Sample]


def make(directory: Path, rows: int) -> Path:
    """A file with so many records."""
    copy(directory)
    command = [sys.executable, "config/flights/make_data.py", "--all"]
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    data = directory / "config/data" / DATA
    header, *year = data.read_text(encoding="utf-8").splitlines(keepends=True)
    with data.open("w", encoding="utf-8") as file:
        file.write(header)
        file.writelines(islice(years(year), rows))
    return data


def copy(directory: Path) -> None:
    """A copy of the examples."""
    ignored = shutil.ignore_patterns(".positions", "*.jsonl", DATA)
    shutil.copytree(ROOT / "config", directory / "config", ignore=ignored)


def years(year: Sequence[str]) -> Iterator[str]:
    """The records of a year, and again those of the years after it."""
    later = 0
    while True:
        for line in year:
            yield line if not later else re.sub("201[34]-", lambda one: f"{int(one[0][:4]) + later}-", line)  # noqa: B023
        later += 1


def stateless(file: Path) -> Path:
    """The pipeline without its keyed step, beside the file."""
    made = file.with_name("flights-stateless.yaml")
    lines = file.read_text().splitlines(keepends=True)
    made.write_text("".join(line for line in lines if "alerts" not in line and "monitor" not in line))
    return made


def ours(directory: Path, data: Path, job: str, *, memory: bool) -> Found:
    """`correlator run`."""
    copy(directory)
    (directory / "config/data" / DATA).hardlink_to(data)
    file = directory / "config/flights-all.yaml"
    file = stateless(file) if job == "stateless" else file
    command = [str(Path(sys.executable).with_name("correlator")), "run", "--log-json", str(file)]
    run_s, output, log, samples = timed(command, directory, memory=memory)
    (ended,) = (json.loads(line) for line in log.splitlines() if '"time of a pipeline"' in line)
    cycles_s = sum(ended[part] for part in ("take_s", "plan_s", "compute_s", "apply_s"))
    print(
        f"          {ended['batches']} batches: " + ", ".join(f"{k} {v}" for k, v in ended.items() if k.endswith("_s"))
    )
    alerts = re.search(r"sender alerts\D+(\d+)\D+(\d+)", output)
    delayed = (directory / "config/data/delayed-all.jsonl").read_bytes().count(b"\n")
    return Found(run_s, cycles_s, int(alerts.group(2)) if alerts else 0, delayed, samples)


def peer(directory: Path, pieces: Path, job: str, api: str, *, many: bool, memory: bool) -> Found:
    """The same of Structured Streaming."""
    out = directory / "out"
    options = ["--pieces", pieces, "--job", job, "--api", api, "--keep", out, *(["--many"] if many else [])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.peer_structured_streaming", *map(str, options)]
    run_s, output, _, samples = timed(command, ROOT, memory=memory)
    cycles_s = json.loads(output.splitlines()[-1])["cycles_s"]
    return Found(run_s, cycles_s, lines_in(out / "alerts"), lines_in(out / "delayed" / "malformed=false"), samples)


def timed(command: Sequence[str], directory: Path, *, memory: bool) -> tuple[float, str, str, Sequence[Sample]]:
    """Seconds, standard output and standard error of a command, and samples of its memory."""
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        with (
            subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True) as process,
            sampled(process.pid, memory=memory) as samples,
        ):
            output, _ = process.communicate()
        seconds = time.perf_counter() - began
        log.seek(0)
        text = log.read()
    assert process.returncode == 0, text[-4000:]
    return seconds, output, text, samples


@contextmanager
def sampled(pid: int, *, memory: bool) -> Iterator[list[Sample]]:
    """Take samples of a process and of those that it has started, until the end of the block."""
    samples: list[Sample] = []
    ended = threading.Event()

    def take() -> None:
        began = time.monotonic()
        while not ended.wait(1.0):
            samples.append(Sample(time.monotonic() - began, memory_of(pid)))

    thread = threading.Thread(target=take)
    if memory:
        thread.start()
    try:
        yield samples
    finally:
        ended.set()
        if memory:
            thread.join()


def memory_of(pid: int) -> dict[str, float]:
    """MB of a driver, of its JVM, and of all processes below that one."""
    jvms = [one for one in children(pid) if b"java" in command_of(one)]
    workers = [below for jvm in jvms for one in children(jvm) for below in (one, *children(one))]
    return {part: sum(map(resident, some)) for part, some in zip(PARTS, ([pid], jvms, workers), strict=True)}


def resident(pid: int) -> float:
    """MB; 0 for a process that has ended."""
    with suppress(OSError):
        found = re.search(r"^VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def told(samples: Sequence[Sample]) -> str:
    """The largest memory of each part, and its slope over the second half."""
    half = samples[len(samples) // 2 : -2]  # at the very end the parts go
    times = [one.at_s / 60 for one in half]
    parts = []
    for part in PARTS:
        most = max(one.parts[part] for one in samples)
        slope = statistics.linear_regression(times, [one.parts[part] for one in half]).slope if len(half) > 2 else 0.0
        parts.append(f"{part} {most:,.0f} MB ({slope:+,.0f} MB/min)")
    return ", ".join(parts)


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=YEAR, help="records")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--api", choices=APIS, default=APIS[0], help="how Structured Streaming keeps state")
    parser.add_argument("--memory", action="store_true", help="sample the memory of both")
    arguments = parser.parse_args()
    ratios: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        data, pieces = make(Path(name), arguments.rows), Path(name) / "pieces"
        cut(data, PIECE, pieces)
        for number, job in product(range(arguments.rounds), arguments.jobs):
            with tempfile.TemporaryDirectory() as run:
                mine = ours(Path(run), data, job, memory=arguments.memory)
                many = arguments.rows > MANY
                theirs = peer(Path(run), pieces, job, arguments.api, many=many, memory=arguments.memory)
            assert (mine.alerts, mine.delayed) == (theirs.alerts, theirs.delayed), (mine[2:4], theirs[2:4])
            rates = []
            for what, one, other in (("run", mine.run_s, theirs.run_s), ("cycle", mine.cycles_s, theirs.cycles_s)):
                ratios.setdefault((job, what), []).append(other / one)
                rates.append(
                    f"{what} {arguments.rows / one:,.0f}/s : {arguments.rows / other:,.0f}/s = {other / one:.2f}"
                )
            found = f"{mine.alerts} alerts and {mine.delayed} delayed departures in both"
            print(f"{job:9} round {number + 1}: {', '.join(rates)}; {found}", flush=True)
            if arguments.memory:
                print(f"          memory, ours: {told(mine.samples)}\n          memory, peer: {told(theirs.samples)}")
    for (job, what), some in ratios.items():
        print(f"{job:9} median ratio, {what}: {statistics.median(some):.2f} (wanted: at least {WANTED[job]:.2f})")


if __name__ == "__main__":
    main()
