"""Deliberate bugs that the simulation must catch: the harness is tested by them, not the product.

Each mutant is a named patch of the real code. One that no run can tell from the original is no mutant but an
equivalent: it stands in `EQUIVALENT` with its proof.
"""

from typing import NamedTuple

from correlator.testing.mutants import receiving, recovery, sending, storing, working
from correlator.testing.mutants.catalogue import CATALOGUE, Mutant, applied
from correlator.testing.mutants.equivalent import EQUIVALENT
from correlator.testing.simulation.campaign import Outcome, run_seed, small_world

__all__ = ["CATALOGUE", "EQUIVALENT", "GROUPS", "Caught", "Mutant", "applied", "hunt"]

GROUPS = (receiving, storing, recovery, working, sending)
"""The modules that fill the catalogue, by being imported."""


class Caught(NamedTuple):
    """A mutant was caught after so many runs, by this outcome."""

    runs: int
    outcome: Outcome


def hunt(name: str, first_seed: int = 1) -> Caught | None:
    """Run seeds with the mutant until an invariant is violated; `None` when its budget is used up."""
    with small_world(), applied(name):
        for runs in range(1, CATALOGUE[name].budget + 1):
            outcome = run_seed(first_seed + runs - 1)
            if outcome.failed:
                return Caught(runs, outcome)
    return None
