"""Engines under load whose disk is full at some write: once, for a while, or until they are started again.

    python -m tests.crash.disk_full --runs 200

An engine waits for space, or ends with a documented error; then there is space, and the next one finishes the work.
Every order counts once in the state and leaves once by each sender, and the store is whole.
"""

import argparse
import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.crash.armed import Armed, End, Order, full
from tests.crash.campaign import check, publish, write_report
from tests.crash.child import Job

ONCE, A_WHILE, TO_THE_END = "once", "for a while", "until the restart"
WRITES = 330
"""About as many as an undisturbed engine makes for the orders of a life."""
BYTES = 3_000_000
LONGEST_WHILE = 5
"""Writes in vain; an engine waits twice as long after each of them."""
MOST_STRUCK = 5
"""After so many writes in vain an engine without space is killed and started again, with space."""
DOCUMENTED = ("E3006", "E3101", "E3104")
"""A start that found no space, and a store whose file of memory could not grow."""


@dataclass(slots=True)
class Figures:
    """What the runs did.

    Attributes:
        runs: stores, each with one engine that is struck and one that finishes.
        faults: runs in which the fault struck, by its duration.
        runs_without_fault: the first engine was done before.
        survived: engines that were struck, waited, and finished by themselves.
        ended: engines that were struck and ended, by the code of their error; "killed" when they waited for ever.
        violations: texts.
        seconds: of all.
    """

    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    runs_without_fault: int = 0
    survived: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, duration: str, end: End) -> None:
        """Count a run by what its first engine met."""
        self.runs += 1
        if not end.struck:
            self.runs_without_fault += 1
            return
        self.faults[duration] += 1
        if end.status:
            self.ended[end.code or "killed"] += 1
        else:
            self.survived += 1

    def line(self) -> str:
        """One line."""
        faults = ", ".join(f"{count} {duration}" for duration, count in sorted(self.faults.items()))
        ended = ", ".join(f"{count} {how}" for how, count in sorted(self.ended.items()))
        return (
            f"{self.runs} runs, disk full in {self.faults.total()} ({faults}), {self.runs_without_fault} not reached; "
            f"{self.survived} engines went on by themselves, {self.ended.total()} ended ({ended}); "
            f"{len(self.violations)} violations, {self.seconds:.0f} s"
        )


def starve(runs: int, *, seed: int) -> Figures:
    """So many runs."""
    figures = Figures()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="correlator-full-") as directory, contextlib.closing(Armed()) as armed:
        for number in range(runs):
            one_run(armed, Path(directory) / f"run{number}", random.Random(f"{seed} {number}"), figures)
    figures.seconds = time.monotonic() - begin
    return figures


def one_run(armed: Armed, directory: Path, rng: random.Random, figures: Figures) -> None:
    """One store: an engine that meets a full disk, and one that does not."""
    where = directory / "store"
    where.mkdir(mode=0o700, parents=True)
    broker = f"sqlite:///{directory / 'broker.db'}"
    published = publish(rng, broker, 0)
    duration = rng.choice((ONCE, A_WHILE, TO_THE_END))
    times = {ONCE: 1, A_WHILE: rng.randint(2, LONGEST_WHILE), TO_THE_END: 0}[duration]
    in_bytes = rng.random() < 0.5
    fault = full(rng.randint(1, BYTES if in_bytes else WRITES), times=times, in_bytes=in_bytes)
    job = Job(store=f"sqlite:///{where / 'engine.db'}", broker=broker, expected=published)
    end = armed.live(Order(job=job, directory=str(where), fault=fault, most_struck=0 if times else MOST_STRUCK))
    figures.add(duration, end)
    try:
        assert end.status in (0, -9) or end.code in DOCUMENTED, f"the engine ended with {end}"
        intact(where / "engine.db", directory / "copy")
        last = armed.live(Order(job=job, directory=str(where)))
        assert last.status == 0, f"with space again, the engine ended with {last}"
        check(job.store, broker, published)
        intact(where / "engine.db", directory / "copy")
    except AssertionError as error:
        figures.violations.append(f"{duration} {fault}: {error}")


def intact(store: Path, copy: Path) -> None:
    """Every page and every index of the database is whole, once SQLite has recovered it: looked at in a copy."""
    shutil.copytree(store.parent, copy)
    with contextlib.closing(sqlite3.connect(copy / store.name)) as raw:
        try:
            verdict = raw.execute("PRAGMA integrity_check").fetchall()
        except sqlite3.Error as error:
            verdict = [str(error)]
    shutil.rmtree(copy)
    assert verdict == [("ok",)], f"the store is damaged: {verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 1 on a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.disk_full")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args(arguments)
    figures = starve(parsed.runs, seed=parsed.seed)
    for violation in figures.violations:
        sys.stdout.write(f"{violation}\n")
    sys.stdout.write(figures.line() + "\n")
    write_report(parsed.report, msgspec.to_builtins(figures))
    return int(bool(figures.violations))


if __name__ == "__main__":
    sys.exit(main())
