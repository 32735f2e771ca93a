"""Runs a test body under one plan of faults after another until a run fails or the budget ends; shrinks failures."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from correlator.testing.crashtest.runs import Body, Level, Outcome, RunPlan
from correlator.testing.schedule import Fault

SINGLES_SHARE = 0.5
"""Share of the budget for runs with a single fault; the rest is for random plans with many faults."""
SHRINK_S = 20.0
SHARES = 2
"""Number of parts in which runs with a single fault publish their messages, so that the life after a death has work."""
TRIES = 3
"""How often a plan is repeated before it counts as a plan that does not fail: runs of real processes differ."""


@dataclass(slots=True)
class CrashTestFigures:
    """The figures of a campaign.

    Attributes:
        level: the name of the level.
        runs: runs of the body, including the first one without faults.
        without_fault: runs in which no fault struck.
        crashes: engines that died.
        faults: number of faults that struck, by kind.
        points: deaths by named fault point, if the level knows the point.
        singles: places at which a single fault can strike, as the first run passed them.
        singles_tried: how many of these places were tried.
        seconds: duration of the campaign.
    """

    level: str
    runs: int = 0
    without_fault: int = 0
    crashes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    singles: int = 0
    singles_tried: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one run, with its faults and deaths, to the figures. `singles_tried` and `seconds` are left to the
        caller.
        """
        self.runs += 1
        self.without_fault += not outcome.faults
        self.crashes += outcome.crashes
        self.faults.update(fault.kind for fault in outcome.faults)
        self.points.update(record.who for _, record in outcome.history.of("died"))

    def line(self) -> str:
        """Return the figures as one line of text."""
        return (
            f"level {self.level}: {self.runs:,} runs ({self.without_fault:,} without a fault), "
            f"{self.crashes:,} crashes, {self.singles_tried:,} of {self.singles:,} single faults, {self.seconds:.1f} s"
        )


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a campaign.

    Attributes:
        figures: what the campaign did.
        reference: the outcome of the run without faults.
        found: the outcome of the first run that failed, `None` if none did.
        shrunk: the outcome of a run with the same failure and as few faults as shrinking found to be enough.
    """

    figures: CrashTestFigures
    reference: Outcome
    found: Outcome | None = None
    shrunk: Outcome | None = None


def campaign(level: Level, body: Body, *, budget_s: float, seed: int) -> Result:
    """Run a body without faults, then with one fault at each place in turn, then with many random faults.

    Args:
        level: runs the body.
        body: the test body; see `runs.Body`.
        budget_s: seconds after which no other run begins. Shrinking a failure takes up to `SHRINK_S` seconds more.
        seed: determines all random choices.
    """
    begin = time.monotonic()
    figures = CrashTestFigures(level.name)
    reference = level.run(body, RunPlan(seed, (), SHARES))
    figures.add(reference)
    result = Result(figures=figures, reference=reference)
    if reference.violated is not None:
        result.found = result.shrunk = reference
    else:
        singles = list(level.singles(reference))
        figures.singles = len(singles)
        for plan, single in _plans(singles, seed, begin, budget_s):
            outcome = level.run(body, plan)
            figures.add(outcome)
            figures.singles_tried += single
            if outcome.violated is not None:
                result.found, result.shrunk = outcome, shrink(level, body, outcome)
                break
    figures.seconds = time.monotonic() - begin
    return result


def repeated(level: Level, body: Body, plan: RunPlan) -> Result:
    """Run a plan once. If the level is not deterministic, run it up to `TRIES` times until a run fails."""
    begin = time.monotonic()
    figures = CrashTestFigures(level.name)
    for _ in range(1 if level.deterministic else TRIES):
        outcome = level.run(body, plan)
        figures.add(outcome)
        if outcome.violated is not None:
            break
    figures.seconds = time.monotonic() - begin
    failed = outcome if outcome.violated is not None else None
    return Result(figures=figures, reference=outcome, found=failed, shrunk=failed)


def _plans(
    singles: list[tuple[Fault, ...]], seed: int, begin: float, budget_s: float
) -> Iterator[tuple[RunPlan, bool]]:
    """Yield plans as long as the budget lasts, at least one; the flag tells that the plan has a single fault."""
    random.Random(f"singles {seed}").shuffle(singles)
    for number, faults in enumerate(singles):
        if number and time.monotonic() - begin > budget_s * SINGLES_SHARE:
            break
        yield RunPlan(seed, faults, SHARES), True
    drawn = seed
    while time.monotonic() - begin < budget_s:
        drawn += 1
        yield RunPlan(drawn), False


def shrink(level: Level, body: Body, failure: Outcome) -> Outcome:
    """Leave out faults as long as the run violates the same invariant: first half of the faults at once, then fewer.

    Ends after `SHRINK_S` seconds with the smallest plan found so far. Removes the directories that all other runs keep.
    """
    deadline = time.monotonic() + SHRINK_S
    best = _fails_again(level, body, failure, failure.faults)
    if best is None:
        return failure
    size = max(1, len(best.faults) // 2)
    while time.monotonic() < deadline:
        smaller = _without_some(level, body, best, size, deadline)
        if smaller is not None:
            best.forget()
            best = smaller
        elif size == 1:
            break
        size = max(1, min(size // 2 if smaller is None else size, len(best.faults)))
    return best


def _without_some(level: Level, body: Body, failure: Outcome, size: int, deadline: float) -> Outcome | None:
    """Leave out `size` neighbouring faults of a failure, at the first place where the run still fails."""
    faults = list(failure.faults)
    for start in range(0, len(faults), size):
        if time.monotonic() > deadline:
            return None
        fewer = _fails_again(level, body, failure, faults[:start] + faults[start + size :])
        if fewer is not None:
            return fewer
    return None


def _fails_again(level: Level, body: Body, failure: Outcome, faults: Sequence[Fault]) -> Outcome | None:
    """Return a run with exactly these faults that violates the same invariant as the failure; `None` if
    it does not fail.
    """
    assert failure.violated is not None
    for _ in range(TRIES):
        outcome = level.run(body, RunPlan(failure.plan.seed, tuple(faults), failure.plan.shares))
        if outcome.violated is not None and outcome.violated.id == failure.violated.id:
            return outcome
        outcome.forget()
        if level.deterministic:
            break
    return None
