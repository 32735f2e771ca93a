"""Deliberate bugs that the simulation must catch: the harness is tested by them, not the product.

Each mutant is a named patch of the real code. One that no run can tell from the original is no mutant but an
equivalent: it stands in `EQUIVALENT` with its proof.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from correlator.testing.invariants.catalogue import Violation
from correlator.testing.invariants.history import History, Setup
from correlator.testing.mutants import (
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
from correlator.testing.mutants.catalogue import CATALOGUE, Mutant, applied
from correlator.testing.mutants.equivalent import EQUIVALENT
from correlator.testing.simulation.campaign import Outcome, run_seed, small_world

__all__ = ["CATALOGUE", "EQUIVALENT", "GROUPS", "Caught", "Fate", "Mutant", "applied", "hunt", "hunt_all"]

GROUPS = (receiving, storing, recovery, working, sending, poison, listening, leaving, changing)
"""The modules that fill the catalogue, by being imported."""
PROCESSES = 6


class Caught(NamedTuple):
    """A mutant was caught after so many runs, by this outcome."""

    runs: int
    outcome: Outcome


class Fate(NamedTuple):
    """What became of a mutant; `caught` is `None` for one that survives its budget."""

    mutant: Mutant
    caught: Caught | None

    @property
    def invariants(self) -> list[str]:
        """Ids of those that have caught it."""
        return sorted({one.id for one in self.caught.outcome.found}) if self.caught else []

    @property
    def runs(self) -> int:
        """Until it was caught, or all that it was given."""
        return self.caught.runs if self.caught else self.mutant.budget

    def line(self) -> str:
        """One line."""
        killed = f"killed after {self.runs:3} runs by {', '.join(self.invariants)}"
        return f"{self.mutant.name:44} {killed if self.caught else f'SURVIVED {self.runs} runs'}"


def hunt_all() -> Iterator[Fate]:
    """Every mutant of the catalogue, until it is caught."""
    for name, mutant in CATALOGUE.items():
        yield Fate(mutant, hunt(name))


def hunt(name: str) -> Caught | None:
    """Run seeds with the mutant until an invariant is violated; `None` when its budget is used up."""
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
    """One seed in processes that order sets differently must make one history (G9)."""
    command = [sys.executable, "-m", "correlator.testing.simulation", "--digest", "42", "--mutant", name]
    digests: set[bytes] = set()
    for runs in range(1, PROCESSES + 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(runs)}
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)  # noqa: S603
        if len(digests) > 1:
            violation = Violation("G9", "the same seed makes the same history", f"{len(digests)} histories of seed 42")
            return Caught(runs, Outcome(seed=42, found=[violation], history=History(Setup())))
    return None
