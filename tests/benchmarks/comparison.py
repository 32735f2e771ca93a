"""A connector against the bare client of its broker: what one run of either takes, and their ratios."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

BODY = bytes(256)
WANTED = 0.8
"""Of the bare client's rate."""


class Result(NamedTuple):
    """Messages a second, and microseconds of processor time of this process for each."""

    rate: float
    cost_us: float

    def __str__(self) -> str:
        return f"{self.rate:>7,.0f}/s {self.cost_us:>5.1f} us"


class Stopwatch:
    """Measures from its making to `result`."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def result(self, count: int) -> Result:
        """For so many messages."""
        wall, processor = time.perf_counter() - self._wall, time.process_time() - self._processor
        return Result(count / wall, processor / count * 1e6)


def spread_of(values: Sequence[float], digits: int = 2) -> str:
    """The median of the rounds, with the least and the greatest."""
    median, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})"


def compare(
    name: str,
    rounds: int,
    bare: Callable[[], Result],
    ours: Callable[[], Result],
    *,
    before: Callable[[], object] = lambda: None,
    wanted: float = WANTED,
) -> None:
    """Rates of both in turn, each after the same preparation, and their ratios; which is first alternates."""
    ratios, costs = [], []
    for number in range(rounds):
        results = {}
        for one in (bare, ours) if number % 2 else (ours, bare):
            before()
            results[one] = one()
        ratios.append(results[ours].rate / results[bare].rate)
        costs.append(results[ours].cost_us / results[bare].cost_us)
        print(f"{name:26} bare {results[bare]}  ours {results[ours]}  rate {ratios[-1]:.2f}  cost {costs[-1]:.2f}")
    print(f"{name:26} median of ratios: rate {spread_of(ratios)}, cost {spread_of(costs)}, wanted: rate {wanted:.2f}")
