"""What a campaign found, and what each campaign is."""

import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

MOST_S = 0.1
"""CPU seconds that a call may take."""
MOST_MIB = 300 * 1000 * 1000 // 2**20
"""The most memory that the process of a campaign may ever have: 300 MB."""


@dataclass(slots=True)
class Outcome:
    """Figures of a campaign.

    Attributes:
        campaign: its name.
        seed: its seed.
        cases: number of cases.
        answers: how often each answer came: the code of an error, or another word.
        slowest_s: the largest CPU time of one call.
        violations: what must not be, with the number of the case.
    """

    campaign: str
    seed: int
    cases: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    def violated(self, number: int, what: str) -> None:
        """Note a violation."""
        self.violations.append(f"{self.campaign} --seed {self.seed} --only {number}: {what}")

    def timed(self, number: int, what: str, may_s: float, used_s: float, again: Callable[[], float]) -> None:
        """Note the CPU time of a call; a violation, unless a repetition is fast enough: other programs disturb it."""
        if used_s > may_s:
            used_s = min(used_s, *(again() for _ in range(2)))
        self.slowest_s = max(self.slowest_s, used_s)
        if used_s > may_s:
            self.violated(number, f"{what}: {used_s * 1000:.0f} ms CPU instead of at most {may_s * 1000:.0f} ms")

    def line(self) -> str:
        """The figures in a line."""
        common = ", ".join(f"{name} {count}" for name, count in self.answers.most_common(12))
        return (
            f"{self.campaign}: {self.cases} cases, {len(self.violations)} violations, "
            f"slowest call {self.slowest_s * 1000:.0f} ms CPU, peak {peak_mib()} MiB; {common}"
        )

    def report(self) -> dict[str, Any]:
        """The figures for a report."""
        return {
            "campaign": self.campaign,
            "seed": self.seed,
            "cases": self.cases,
            "answers": dict(self.answers),
            "slowest_call_cpu_ms": round(self.slowest_s * 1000, 1),
            "peak_mib": peak_mib(),
            "cpu_s": round(time.process_time(), 1),
            "violations": self.violations,
        }


class Campaign(Protocol):
    """Cases that a seed and a number make; what they need is made in `__enter__`."""

    def __init__(self, seed: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, number: int, outcome: Outcome) -> None:
        """Run a case, and note what it found."""


def peak_mib() -> int:
    """The most memory that this process had at any time, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
