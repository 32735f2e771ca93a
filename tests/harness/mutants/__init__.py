"""Deliberate bugs (mutants) that the simulation must find. They test the harness, not the product.

Each mutant is a named patch of the product's code. If no run can distinguish a patch from the original, `EQUIVALENT`
lists it with the proof.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from correlator.testing.files import write_json
from correlator.testing.invariants.catalogue import Violation
from correlator.testing.invariants.history import History, Setup
from correlator.testing.simulation.small_world import small_world
from tests.harness import processes
from tests.harness.mutants import (
    changing,
    leaving,
    listening,
    poison,
    receiving,
    recovery,
    sending,
    storing,
    working,
)
from tests.harness.mutants.catalogue import CATALOGUE, Mutant, applied
from tests.harness.mutants.equivalent import EQUIVALENT
from tests.harness.simulation.campaign import SeedOutcome, run_seed

__all__ = ["CATALOGUE", "EQUIVALENT", "GROUPS", "Caught", "Fate", "Mutant", "applied", "command", "hunt", "hunt_all"]

GROUPS = (receiving, storing, recovery, working, sending, poison, listening, leaving, changing)
"""The modules that fill the catalogue when they are imported."""
PROCESSES = 6


class Caught(NamedTuple):
    """How a mutant was caught: the number of runs, and the outcome of the last one."""

    runs: int
    outcome: SeedOutcome


class Fate(NamedTuple):
    """The fate of a mutant; `caught` is `None` if it survives its budget."""

    mutant: Mutant
    caught: Caught | None

    @property
    def invariants(self) -> list[str]:
        """Return the ids of the violated invariants, sorted."""
        return sorted({one.id for one in self.caught.outcome.found}) if self.caught else []

    @property
    def runs(self) -> int:
        """Return how many runs it took to catch the mutant; the whole budget if it survived."""
        return self.caught.runs if self.caught else self.mutant.budget

    def line(self) -> str:
        """Return the fate as one line."""
        killed = f"killed after {self.runs:3} runs by {', '.join(self.invariants)}"
        return f"{self.mutant.name:44} {killed if self.caught else f'SURVIVED {self.runs} runs'}"


class CaughtMutant(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant of the catalogue, and how it was caught. A mutant that survived has no runs and no invariants."""

    name: str
    budget: int
    runs: int = 0
    invariants: list[str] = []


class MutantsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a hunt for all mutants of the catalogue."""

    mutants: int
    survived: int
    seconds: float
    caught: list[CaughtMutant]


def command(report: Path | None) -> int:
    """Hunt every mutant, print a line for each, and write the report. Return 1 if a mutant survives, else 0."""
    found: list[CaughtMutant] = []
    begin = time.monotonic()
    for fate in hunt_all():
        sys.stdout.write(fate.line() + "\n")
        sys.stdout.flush()
        name, budget, runs = fate.mutant.name, fate.mutant.budget, fate.runs if fate.caught else 0
        found.append(CaughtMutant(name=name, budget=budget, runs=runs, invariants=fate.invariants))
    survived = sum(not one.runs for one in found)
    sys.stdout.write(f"{len(found)} mutants, {survived} survived\n")
    if report:
        seconds = round(time.monotonic() - begin, 2)
        write_json(report, MutantsReport(mutants=len(found), survived=survived, seconds=seconds, caught=found))
    return 1 if survived else 0


def hunt_all() -> Iterator[Fate]:
    """Hunt every mutant of the catalogue."""
    for name, mutant in CATALOGUE.items():
        yield Fate(mutant, hunt(name))


def hunt(name: str) -> Caught | None:
    """Run seeds with the mutant until an invariant is violated; return `None` if its budget is used up."""
    mutant = CATALOGUE[name]
    if "G9" in mutant.expected:
        return _hunt_in_processes(name)
    with small_world(), applied(name):
        for runs in range(1, mutant.budget + 1):
            outcome = run_seed(mutant.seed + runs - 1)
            if outcome.failed:
                return Caught(runs, outcome)
    return None


def _hunt_in_processes(name: str) -> Caught | None:
    """Run a seed in processes that order sets differently: the histories must be equal (invariant G9)."""
    command = [sys.executable, "-m", "tests.harness.simulation", "--digest", "42", "--mutant", name]
    digests: set[bytes] = set()
    for runs in range(1, PROCESSES + 1):
        environment = processes.environment(PYTHONHASHSEED=str(runs))
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        if len(digests) > 1:
            violation = Violation("G9", "the same seed makes the same history", f"{len(digests)} histories of seed 42")
            return Caught(runs, SeedOutcome(seed=42, found=[violation], history=History(Setup())))
    return None
