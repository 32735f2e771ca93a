"""The kills of a run: chosen at random from a seed, or taken from a plan."""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from correlator.errors import UsageError, quoted
from correlator.testing.kill9.wire import Kill
from correlator.testing.schedule import Fault

KILL = "kill "
"""Kinds of faults that are kills begin with this text; the name of a fault point follows, or one of these:"""
SYSCALL = "syscall"
TIME = "time"
FEW = (25, 60, 60, 120, 300)
"""Numbers of fault points, of which one is chosen: the most that a life passes before it is killed. Recovery passes
25.
"""
MOST_CALLS = 80
BY_CALL = 0.15
"""Share of the kills that strike before a call that changes a file."""
LONGEST_MS = 120


def drawn_kills(rng: random.Random, lives: int, passed: Mapping[str, int], *, by_call: float = BY_CALL) -> deque[Kill]:
    """Choose one kill for each life at random.

    Args:
        rng: the source of the random choices.
        lives: number of lives.
        passed: how often a life passes each of the known fault points.
        by_call: share of the kills that strike before a call that changes a file; 0 where calls cannot be counted.
    """
    return deque(_drawn(rng, passed, by_call) for _ in range(lives))


def _drawn(rng: random.Random, passed: Mapping[str, int], by_call: float) -> Kill:
    kind = rng.random()
    if kind < 0.15:
        return Kill(after_ms=rng.randint(1, LONGEST_MS))
    if kind < 0.15 + by_call:
        return Kill(syscall=rng.randint(1, MOST_CALLS))
    if kind < 0.5 and passed:
        point = rng.choice(sorted(passed))
        return Kill(point=point, hit=rng.randint(1, min(passed[point], 10)))
    return Kill(hit=rng.randint(1, rng.choice(FEW)))


def kills_of(faults: Iterable[Fault]) -> deque[Kill]:
    """Return the kills of a plan, the i-th for the i-th life; raises `UsageError` E2432 for a fault that is not a
    kill.
    """
    kills: deque[Kill] = deque()
    for fault in faults:
        if not fault.kind.startswith(KILL) or fault.n < 1:
            what = f"{quoted(fault)} is not a fault of this level"
            raise UsageError("E2432", "faults of a crash test", what, "", "See: --crash-points")
        kills.append(_kill(fault.kind.removeprefix(KILL), fault.n))
    return kills


def _kill(where: str, n: int) -> Kill:
    if where == SYSCALL:
        return Kill(syscall=n)
    if where == TIME:
        return Kill(after_ms=n)
    return Kill(point=where, hit=n)


def singles(passed: Mapping[str, int]) -> Sequence[Fault]:
    """Return every passing of every point, and every call that changes a file, as a kill."""
    return [Fault(f"{KILL}{point}", hit) for point, hits in sorted(passed.items()) for hit in range(1, hits + 1)]
