"""The figures of a campaign, for its report in JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from tests.harness.simulation.campaign import SimulationFigures


class CampaignReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a campaign.

    Attributes:
        first_seed: the first seed.
        step: the difference between a seed and the next one.
        runs: how many runs.
        crashes: engines that died.
        violations: runs that violate an invariant.
        without_fault: runs in which no fault struck and no engine was killed.
        seconds: CPU time.
        by_invariant: runs that violate an invariant, by invariant.
        killed_at: kills by fault point.
    """

    first_seed: int
    step: int
    runs: int
    crashes: int
    violations: int
    without_fault: int
    seconds: float
    by_invariant: Mapping[str, int]
    killed_at: Mapping[str, int]


def campaign_report(first_seed: int, step: int, totals: SimulationFigures) -> CampaignReport:
    """Return the figures of a campaign, for its report."""
    ids = (sorted({violation.id for violation in failure.found}) for failure in totals.failures)
    return CampaignReport(
        first_seed=first_seed,
        step=step,
        runs=totals.runs,
        crashes=totals.crashes,
        violations=len(totals.failures),
        without_fault=totals.without_fault,
        seconds=round(totals.cpu_s, 2),
        by_invariant=dict(sorted(Counter(one for found in ids for one in found).items())),
        killed_at=dict(sorted(totals.killed_at.items())),
    )


def merged(parts: Sequence[CampaignReport]) -> CampaignReport:
    """Return one report of several campaigns that have shared the seeds."""
    by_invariant: Counter[str] = Counter()
    killed_at: Counter[str] = Counter()
    for part in parts:
        by_invariant.update(part.by_invariant)
        killed_at.update(part.killed_at)
    return CampaignReport(
        first_seed=min(part.first_seed for part in parts),
        step=1,
        runs=sum(part.runs for part in parts),
        crashes=sum(part.crashes for part in parts),
        violations=sum(part.violations for part in parts),
        without_fault=sum(part.without_fault for part in parts),
        seconds=round(sum(part.seconds for part in parts), 2),
        by_invariant=dict(sorted(by_invariant.items())),
        killed_at=dict(sorted(killed_at.items())),
    )
