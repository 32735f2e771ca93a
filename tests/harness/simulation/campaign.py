"""Runs many seeds; shrinks a failed run and shows it on one screen."""

import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from correlator.testing.invariants.catalogue import Violation
from correlator.testing.invariants.history import History
from correlator.testing.schedule import KILL, Fault, Schedule, draw_rates
from correlator.testing.simulation.kills import Killed
from correlator.testing.simulation.run import SimulatedRun
from correlator.testing.simulation.small_world import small_world
from tests.harness.simulation import application, keyed
from tests.harness.simulation.invariants import violations
from tests.harness.simulation.operating import CampaignOperator
from tests.harness.simulation.probes import WorldProbe
from tests.harness.simulation.scenario import draw

LINES = 14


@dataclass(slots=True, kw_only=True)
class SeedOutcome:
    """The outcome of one run.

    Attributes:
        seed: the seed of the run.
        crashes: engines that died.
        faults: the faults that struck.
        found: the violations of invariants.
        history: the whole history.
        killed_at: kills by fault point.
    """

    seed: int
    crashes: int = 0
    faults: list[Fault] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)
    history: History
    killed_at: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether an invariant is violated."""
        return bool(self.found)


@dataclass(slots=True)
class SimulationFigures:
    """The figures of a campaign."""

    runs: int = 0
    without_fault: int = 0
    crashes: int = 0
    records: int = 0
    cpu_s: float = 0.0
    failures: list[SeedOutcome] = field(default_factory=list)
    killed_at: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: SeedOutcome) -> None:
        """Count a run."""
        self.runs += 1
        self.without_fault += not outcome.crashes and not outcome.faults
        self.crashes += outcome.crashes
        self.records += len(outcome.history)
        self.killed_at.update(outcome.killed_at)
        if outcome.failed:
            self.failures.append(outcome)

    def line(self) -> str:
        """Return the figures as one line."""
        rate = self.crashes / self.cpu_s if self.cpu_s else 0.0
        return (
            f"{self.runs:,} runs ({self.without_fault:,} without a fault), {self.crashes:,} crashes, "
            f"{len(self.failures)} violations, "
            f"{self.cpu_s:.1f} s of CPU, {rate:,.0f} crashes/s, {len(self.killed_at)} fault points killed at"
        )


def run_seed(seed: int, exactly: Collection[Fault] | None = None) -> SeedOutcome:
    """Run a seed, inside `small_world`. An error that no engine may raise counts as a violation of G8."""
    scenario, workload = draw(seed)
    rates, order = draw_rates(seed), random.Random(f"order {seed}")
    operator = CampaignOperator(scenario, workload, order, kills=KILL in rates)
    run = SimulatedRun(scenario, Schedule(seed, rates, exactly), operator=operator, order=order)
    run.publish(workload.parcels(next(iter(run.brokers.of)), order))
    application.watch(WorldProbe(run.record, run.open_receivers, _die))
    found: list[Violation] = []
    try:
        run.run_until_rest()
    except Exception as error:  # noqa: BLE001  # every exception is a finding
        found.append(Violation("G8", "an engine starts, and fails only by documented errors", repr(error)))
    finally:
        application.watch(application.Probe())
    found = found or [*violations(run.history), *keyed.violations(seed)]
    return SeedOutcome(
        seed=seed,
        crashes=run.crashes,
        faults=run.schedule.fired,
        found=found,
        history=run.history,
        killed_at=run.kills.at,
    )


def _die(where: str) -> None:
    raise Killed(where)


def campaign(first_seed: int, *, crashes: int, most_failures: int = 3, step: int = 1) -> SimulationFigures:
    """Run seeds from `first_seed` on, until `crashes` engines have died or `most_failures` runs have failed.

    With `step` n, only every n-th seed runs, so that several processes share the seeds.
    """
    totals = SimulationFigures()
    begin = time.process_time()
    seed = first_seed
    with small_world():
        while totals.crashes < crashes and len(totals.failures) < most_failures:
            totals.add(run_seed(seed))
            seed += step
    totals.cpu_s = time.process_time() - begin
    return totals


def shrink(failure: SeedOutcome) -> SeedOutcome:
    """Leave out faults one by one as long as the same invariant is violated."""
    wanted = failure.found[0].id
    best = failure
    with small_world():
        replayed = run_seed(failure.seed, failure.faults)
        if not any(one.id == wanted for one in replayed.found):
            return failure
        kept = list(failure.faults)
        for fault in failure.faults:
            fewer = [one for one in kept if one != fault]
            outcome = run_seed(failure.seed, fewer)
            if any(one.id == wanted for one in outcome.found):
                kept, best = fewer, outcome
    return best


def report(failure: SeedOutcome, shrunk: SeedOutcome) -> str:
    """Return one screen: the invariant, the command that repeats the run, the necessary faults, the end
    of the history.
    """
    first, setup = shrunk.found[0], shrunk.history.setup
    windows = f"window={setup.window} expiry={setup.expiry}"
    faults = "  ".join(f"{fault.kind}#{fault.n}" for fault in shrunk.faults) or "none"
    return "\n".join(
        (
            f"{first}",
            f"  reproduce: python -m tests.harness.simulation --only {failure.seed}",
            f"  shrunk from {len(failure.faults)} faults to {len(shrunk.faults)}: {faults}",
            f"  setup: on_error={setup.on_error} {windows} receivers={', '.join(setup.receivers)}",
            f"  timeline (last {LINES} of {len(shrunk.history)}):",
            *(f"    {line}" for line in shrunk.history.last(LINES)),
        )
    )
