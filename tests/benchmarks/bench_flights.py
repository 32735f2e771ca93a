"""Flights through our pipelines, against the same jobs in plain Structured Streaming.

    python -m tests.benchmarks.bench_flights [--rounds 2] [--rows 336776] [--jobs keyed stateless windows] [--memory]
    python -m tests.benchmarks.bench_flights --piece 1000 --rows 100000 --jobs keyed

Both run as whole processes in turn, start and stop of Spark included, and must find the same. The job `keyed` is
config/flights-all.yaml: late departures, and alerts by a keyed step. The job `stateless` is the same without that step,
and `windows` has an `aggregate` instead, against the native aggregation of Spark. `--piece` is the number of records in
a trigger and the largest number in a batch; without it a trigger has 50,000, and a batch what the receiver has got. More
`--rows` than the year has are those of further years, with the same flights.

`run`: records a second of the whole process. `cycle`: records a second of the time that the batches take, which for us
is the time of the pipeline's thread, for Structured Streaming that of its triggers; receiving, commits and senders run
beside our pipeline, while a trigger reads and writes files, too. Each is a ratio of rates, more is better for us.

`cpu`: the same of the processor time of driver, JVM and Python workers together, which other work disturbs less. It
and the resident memory are sampled each half second; with `--memory` the largest memory of each part is shown, and its
slope over the second half of the run.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.peer_structured_streaming import APIS, JOBS, MANY, cut, lines_in
from tests.spark_cluster import children, command_of

ROOT = Path(__file__).parents[2]
DATA, WINDOWS = "flights-all.csv", "windows-all.jsonl"
YEAR = 336_776
"""Departures of a year."""
PIECE = 50_000
"""Records of a trigger."""
PARTS = ("driver", "jvm", "workers")
LOOK_S = 0.5
LAST_LOOKS = 4
"""At the end of a run its parts go."""
WANTED = {"keyed": 1.0, "stateless": 0.9, "windows": 1.0}
AGGREGATE = (
    "{name: hours, key: carrier, event_time: scheduled, window: 1h, lateness: 48h, values: "
    "{departures: count(*), mean: avg(dep_delay), worst: max(dep_delay)}}"
)


class Found(NamedTuple):
    """What a run took and found."""

    run_s: float
    cycles_s: float
    alerts: int
    ends: Sequence[datetime]
    delayed: int
    watched: "Watched"


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


def pipeline(file: Path, job: str, piece: int | None) -> Path:
    """The file of a job, beside the one of the job `keyed`."""
    made = file.with_name("flights-job.yaml")
    lines = file.read_text().splitlines(keepends=True)
    if job == "stateless":
        lines = [line for line in lines if "alerts" not in line and "monitor" not in line]
    if piece is not None:
        lines = [f"{line}    max_batch_rows: {piece}\n" if "from: [" in line else line for line in lines]
    text = "".join(lines)
    if job == "windows":
        text = re.sub(r"monitor: .*", f"aggregate: {AGGREGATE}", text)
        text = text.replace(
            'connection: local, destination: "queue:alerts"', f'connection: files, destination: "queue:{WINDOWS}"'
        )
    made.write_text(text)
    return made


def ends_of(lines: Iterable[str]) -> Sequence[datetime]:
    """The ends of these windows, in order."""
    return sorted(datetime.fromisoformat(json.loads(line)["window_end"]) for line in lines)


def in_both(mine: Sequence[datetime], theirs: Sequence[datetime]) -> tuple[int, int]:
    """How many windows each has closed up to the last one of the other.

    Structured Streaming does not close the last windows when its input has ended.
    """
    last = min(mine[-1], theirs[-1])
    return bisect(mine, last), bisect(theirs, last)


def ours(directory: Path, data: Path, job: str, piece: int | None) -> Found:
    """`correlator run`."""
    copy(directory)
    (directory / "config/data" / DATA).hardlink_to(data)
    file = pipeline(directory / "config/flights-all.yaml", job, piece)
    command = [str(Path(sys.executable).with_name("correlator")), "run", "--log-json", str(file)]
    run_s, output, log, watched = timed(command, directory)
    (ended,) = (json.loads(line) for line in log.splitlines() if '"time of a pipeline"' in line)
    cycles_s = sum(ended[part] for part in ("take_s", "plan_s", "compute_s", "apply_s"))
    alerts = re.search(r"sender alerts\D+(\d+)\D+(\d+)", output)
    ends: Sequence[datetime] = ()
    if job == "windows":
        ends = ends_of((directory / "config/data" / WINDOWS).read_text().splitlines())
    delayed = (directory / "config/data/delayed-all.jsonl").read_bytes().count(b"\n")
    return Found(run_s, cycles_s, int(alerts.group(2)) if alerts else 0, ends, delayed, watched)


def peer(directory: Path, pieces: Path, job: str, api: str, *, many: bool) -> Found:
    """The same of Structured Streaming."""
    out = directory / "out"
    options = ["--pieces", pieces, "--job", job, "--api", api, "--keep", out, *(["--many"] if many else [])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.peer_structured_streaming", *map(str, options)]
    run_s, output, _, watched = timed(command, ROOT)
    cycles_s = json.loads(output.splitlines()[-1])["cycles_s"]
    ends: Sequence[datetime] = ()
    if job == "windows":
        ends = ends_of(line for one in (out / job).glob("part-*.json") for line in one.read_text().splitlines())
    delayed = lines_in(out / "delayed" / "malformed=false")
    return Found(run_s, cycles_s, lines_in(out / "alerts"), ends, delayed, watched)


def timed(command: Sequence[str], directory: Path) -> tuple[float, str, str, "Watched"]:
    """Seconds, standard output and standard error of a command, and what was seen of its processes."""
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        with (
            subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True) as process,
            closing(Watched(process.pid)) as watched,
        ):
            output, _ = process.communicate()
        seconds = time.perf_counter() - began
        log.seek(0)
        text = log.read()
    assert process.returncode == 0, text[-4000:]
    return seconds, output, text, watched


class Watched:
    """Looks at a driver, its JVM and the Python workers below that until it is closed.

    Attributes:
        memory: for each look the time, in minutes, and the resident memory of each part, in MB.
    """

    def __init__(self, pid: int) -> None:
        self.memory: list[tuple[float, tuple[float, ...]]] = []
        self._pid = pid
        self._spent: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """Processor time of all parts."""
        return sum(spent for _, spent in self._spent.values())

    def cpu_of(self, part: str) -> float:
        """Processor time of a part."""
        return sum(spent for its_part, spent in self._spent.values() if its_part == part)

    def shown(self) -> str:
        """The largest memory of each part, and its slope over the second half."""
        half = self.memory[len(self.memory) // 2 : -LAST_LOOKS]
        shown = []
        for at, part in enumerate(PARTS):
            most = max(sizes[at] for _, sizes in self.memory)
            times, sizes = [when for when, _ in half], [sizes[at] for _, sizes in half]
            slope = statistics.linear_regression(times, sizes).slope if len(half) > 1 else 0.0
            shown.append(f"{part} {most:,.0f} MB ({slope:+,.0f} MB/min)")
        return ", ".join(shown)

    def _look(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(LOOK_S):
            jvms = [one for one in children(self._pid) if b"java" in command_of(one)]
            workers = [below for jvm in jvms for one in children(jvm) for below in (one, *children(one))]
            sizes = tuple(
                sum(self._seen(part, one) for one in pids)
                for part, pids in zip(PARTS, ([self._pid], jvms, workers), strict=True)
            )
            self.memory.append(((time.monotonic() - began) / 60, sizes))

    def _seen(self, part: str, pid: int) -> float:
        """Note the processor time of a process; returns its resident memory, 0 if it has ended."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        self._spent[pid] = part, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=YEAR, help="records")
    parser.add_argument("--piece", type=int, help="records of a trigger, and the most of a batch")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--api", choices=APIS, default=APIS[0], help="how Structured Streaming keeps state")
    parser.add_argument("--memory", action="store_true", help="sample the memory of both")
    arguments = parser.parse_args()
    ratios: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        data, pieces = make(Path(name), arguments.rows), Path(name) / "pieces"
        cut(data, arguments.piece or PIECE, pieces)
        for number, job in product(range(arguments.rounds), arguments.jobs):
            with tempfile.TemporaryDirectory() as run:
                mine = ours(Path(run), data, job, arguments.piece)
                theirs = peer(Path(run), pieces, job, arguments.api, many=arguments.rows > MANY)
            counts = in_both(mine.ends, theirs.ends) if job == "windows" else (mine.alerts, theirs.alerts)
            assert (counts[0], mine.delayed) == (counts[1], theirs.delayed), (counts, mine.delayed, theirs.delayed)
            rates = []
            for what, one, other in (
                ("run", mine.run_s, theirs.run_s),
                ("cycle", mine.cycles_s, theirs.cycles_s),
                ("cpu", mine.watched.cpu_s, theirs.watched.cpu_s),
            ):
                ratios.setdefault((job, what), []).append(other / one)
                rates.append(
                    f"{what} {arguments.rows / one:,.0f}/s : {arguments.rows / other:,.0f}/s = {other / one:.2f}"
                )
            found = f"{counts[0]} {'windows' if job == 'windows' else 'alerts'} and {mine.delayed} delayed departures in both"
            print(f"{job:9} round {number + 1}: {', '.join(rates)}; {found}", flush=True)
            for who, one in (("ours", mine.watched), ("peer", theirs.watched)):
                spent = ", ".join(f"{part} {one.cpu_of(part):.1f}" for part in PARTS)
                memory = f"; memory {one.shown()}" if arguments.memory else ""
                print(f"{'':9} {who}: cpu {spent} s{memory}", flush=True)
    for (job, what), some in ratios.items():
        print(f"{job:9} median ratio, {what}: {statistics.median(some):.2f} (wanted: at least {WANTED[job]:.2f})")


if __name__ == "__main__":
    main()
