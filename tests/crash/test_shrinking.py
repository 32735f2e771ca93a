"""What a campaign does with a failure: as few faults as are enough, and nothing left that nobody is told of."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from correlator.testing.crashtest import report
from correlator.testing.crashtest.campaign import CrashTestFigures, Result, campaign, shrink
from correlator.testing.crashtest.runs import Outcome, RunPlan
from correlator.testing.invariants.catalogue import Violation
from correlator.testing.invariants.history import History, Setup
from correlator.testing.schedule import Fault

NEEDED = {Fault("kill", 3), Fault("kill", 5)}
PLAN = RunPlan(1, tuple(Fault("kill", n) for n in range(8)), 4)


class Keeping:
    """A level whose runs fail with two of the faults, and otherwise with one of them; each failed run keeps a directory."""

    name = "keeping"
    deterministic = True

    def __init__(self, place: Path) -> None:
        self.place = place
        self.shares: set[int] = set()

    def run(self, body: object, plan: RunPlan) -> Outcome:
        del body
        self.shares.add(plan.shares)
        struck = NEEDED & set(plan.faults or ())
        violated = Violation("A2" if len(struck) == 2 else "A1", "a promise", "is broken") if struck else None
        kept = Path(tempfile.mkdtemp(dir=self.place)) if violated else None
        outcome = Outcome(plan=plan, violated=violated, faults=plan.faults or (), history=History(Setup()))
        return replace(outcome, kept=kept)

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        del reference
        yield from ((fault,) for fault in PLAN.faults or ())


@pytest.fixture
def level(tmp_path: Path) -> Keeping:
    return Keeping(tmp_path)


def test_one_fault_is_tried_however_short_the_budget(level: Keeping) -> None:
    result = campaign(level, lambda _: None, budget_s=0.0, seed=1)  # type: ignore[arg-type]
    assert (result.figures.runs, result.figures.singles_tried) == (2, 1)


def test_the_faults_that_are_enough_are_left_and_two_directories(level: Keeping) -> None:
    failure = level.run(None, PLAN)
    shrunk = shrink(level, lambda _: None, failure)  # type: ignore[arg-type]
    assert set(shrunk.faults) == NEEDED
    assert level.shares == {PLAN.shares}
    assert set(level.place.iterdir()) == {failure.kept, shrunk.kept}
    result = Result(figures=CrashTestFigures("keeping"), reference=failure, found=failure, shrunk=shrunk)
    assert f"kept: {shrunk.kept}, before shrinking: {failure.kept}" in report.failure(result, "again")
