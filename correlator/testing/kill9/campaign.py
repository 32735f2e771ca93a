"""Many runs of our own workload: drawn kills, or every pair of them."""

import functools
import random
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from correlator.core.reliability import Reliability
from correlator.storage import migrate
from correlator.testing import files
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.violations import violations
from correlator.testing.kill9 import draws, reference, wire
from correlator.testing.kill9.directory import directory_of_a_run, keep
from correlator.testing.kill9.lives import Lives
from correlator.testing.kill9.zygote import Zygote
from correlator.testing.schedule import KILL, Fault, Schedule, draw_rates

MOST_VIOLATIONS = 3
"""Runs that may fail before a campaign ends."""
LIVES_OF_A_WALK = 30
_FIRST = wire.Kill(point="stop.begin", hit=1)
"""The kill of a first life that has done its share."""
_BEFORE_THE_SCHEMA = ("rec.lock", "rec.migrate.begin", "rec.migrate.step")
"""Points that the start of an engine passes before its store has a schema."""


class Found(msgspec.Struct, frozen=True):
    """A run that failed.

    Attributes:
        seed: of the run.
        faults: that struck.
        violated: what, as one line.
        kept: directory with the store, the log and the history.
    """

    seed: int
    faults: Sequence[Fault]
    violated: str
    kept: str


class Figures(msgspec.Struct):
    """What a campaign did.

    Attributes:
        runs: from an empty store to rest.
        kills: processes that were killed by a planned kill.
        deaths: processes that ended before their time, also by a message or a failing handler.
        by_kind: kills by kind: at a point, before a call that changes a file, at a time.
        by_point: kills by fault point.
        without_fault: runs in which no fault struck.
        pairs: ordered pairs of kills that the workload has.
        pairs_tried: of these.
        missed: of these, where a life came to its end before its kill.
        violations: runs that failed.
        found: these.
        seconds: that it took, set by who measures.
        cpu_seconds: of all processes together.
    """

    runs: int = 0
    kills: int = 0
    deaths: int = 0
    by_kind: Counter[str] = msgspec.field(default_factory=Counter)
    by_point: Counter[str] = msgspec.field(default_factory=Counter)
    without_fault: int = 0
    pairs: int = 0
    pairs_tried: int = 0
    missed: int = 0
    violations: int = 0
    found: list[Found] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, lives: Lives, fired: Sequence[Fault]) -> None:
        """Count a run."""
        self.runs += 1
        self.deaths += lives.crashes
        self.without_fault += not fired
        for fault in fired:
            if fault.kind.startswith(draws.KILL):
                where = fault.kind.removeprefix(draws.KILL)
                self.kills += 1
                self.by_kind[where if where in (draws.SYSCALL, draws.TIME) else "point"] += 1
                if where not in (draws.SYSCALL, draws.TIME):
                    self.by_point[where] += 1

    def line(self) -> str:
        """One line."""
        rates = " kills/s, ".join(f"{self.kills / max(one, 0.001):.1f}" for one in (self.seconds, self.cpu_seconds))
        kinds = ", ".join(f"{count:,} by {kind}" for kind, count in sorted(self.by_kind.items()))
        pairs = f"{self.pairs_tried:,} of {self.pairs:,} pairs ({self.missed:,} missed), " if self.pairs else ""
        return (
            f"{pairs}{self.runs:,} runs ({self.without_fault:,} without a fault), {self.kills:,} kills ({kinds}) at "
            f"{len(self.by_point)} fault points, {self.violations} violations, {self.seconds:.0f} s, "
            f"{rates} per second of CPU"
        )


class Campaign:
    """Runs of our own workload, in one process after another.

    Args:
        zygote: makes children; it has imported the modules of `reference.APPLICATION`.
        prepare: import paths, called in each child after those of the application: mutants.

    Attributes:
        figures: of all runs.
        passed: how often lives that came to their end passed each fault point, the most in one.
    """

    def __init__(self, zygote: Zygote, prepare: Sequence[str] = ()) -> None:
        self.figures = Figures()
        self._zygote = zygote
        self._prepare = prepare
        self.passed: Counter[str] = Counter()

    def drawn(self, seed: int, most_kills: int) -> None:
        """One run with everything drawn from a seed."""
        workload = reference.drawn(seed)
        rates = draw_rates(seed)
        rng = random.Random(f"kills {seed}")
        lives = min(workload.scenario.lives, most_kills) if rates.get(KILL) else 0
        passed = self.passed
        new = {point: hits for point, hits in passed.items() if point not in self.figures.by_point}
        kills = draws.drawn_kills(rng, lives, new or passed, by_call=draws.BY_CALL if self._zygote.counts_calls else 0)
        if rates and not kills:
            kills.append(wire.Kill())  # what else goes wrong needs a life to strike in
        self._run(workload, Schedule(seed, rates), kills, shares=lives + 1)

    def one_after_another(self, mode: Reliability, kills: Sequence[wire.Kill]) -> int:
        """A run over a store that is not new, the messages of the workload anew in each life; how many kills struck."""
        before = self.figures.kills
        self.exactly(reference.smallest(mode, len(kills) + 1), _FIRST, *kills, shares=len(kills) + 1)
        struck = max(0, self.figures.kills - before - 1)
        self.figures.pairs_tried += max(0, struck - 1)
        return struck

    def exactly(self, workload: reference.Reference, *kills: wire.Kill, shares: int = 1) -> Lives:
        """One run with exactly these kills, the messages published in so many shares, one for each life.

        Where the first kill comes later, the store begins with its schema: making it is the larger part of a life.
        """
        with_schema = bool(kills) and kills[0].point not in _BEFORE_THE_SCHEMA
        schedule = Schedule(workload.scenario.seed, {}, ())
        return self._run(workload, schedule, deque(kills), shares=shares, one_each=True, with_schema=with_schema)

    def _run(
        self,
        workload: reference.Reference,
        schedule: Schedule,
        kills: deque[wire.Kill],
        *,
        shares: int,
        one_each: bool = False,
        with_schema: bool = False,
    ) -> Lives:
        with directory_of_a_run() as directory:
            if with_schema and workload.scenario.persistent:
                files.write(directory / reference.STORE, [self._schema])
            scenario = reference.stored_in(workload.scenario, directory)
            lives = Lives(scenario, schedule, self._zygote, directory, prepare=(*workload.prepare, *self._prepare))
            lives.publish(workload.parcels)
            violated = _violated(lives, kills, shares, one_each=one_each)
            if violated is not None:
                keep(directory, lives.history)
                self.figures.violations += 1
                self.figures.found.append(Found(scenario.seed, schedule.fired, str(violated), str(directory)))
        self.passed |= lives.passed
        self.figures.add(lives, schedule.fired)
        return lives

    @functools.cached_property
    def _schema(self) -> bytes:
        """A store as `correlator db upgrade` makes it."""
        with directory_of_a_run() as directory:
            migrate.upgrade(f"sqlite:///{directory}/{reference.STORE}")
            return (directory / reference.STORE).read_bytes()


def _violated(lives: Lives, kills: deque[wire.Kill], shares: int, *, one_each: bool) -> Violation | None:
    try:
        lives.run(kills, shares=shares, one_each=one_each)
        return next((Violation(*one) for one in violations(lives.history)), None)
    except InvariantViolated as error:
        return error.violation
    finally:
        lives.close()


def drawn(campaign: Campaign, *, kills: int, seed: int) -> None:
    """Runs with seeds from this one on until so many processes were killed, or too many runs have failed."""
    figures = campaign.figures
    while figures.kills < kills and figures.violations < MOST_VIOLATIONS:
        campaign.drawn(seed, kills - figures.kills)
        seed += 1


def pairs(campaign: Campaign, mode: Reliability, *, kills: int | None, seed: int) -> None:
    """Every ordered pair of kills in two lives of which the second goes on from the first.

    Kills are the passings of points in a life that goes on from an earlier one and has the messages of the workload to
    do. A walk on which each ordered pair of them follows one another once is gone in runs of many lives. What only the
    first life of a store passes comes in runs of its own, with each passing of the next life behind it.

    Args:
        campaign: runs them.
        mode: of the workload.
        kills: ends it when so many processes were killed; `None` for all pairs.
        seed: of the order.
    """
    figures, workload = campaign.figures, reference.smallest(mode)

    def enough() -> bool:
        return figures.violations >= MOST_VIOLATIONS or (kills is not None and figures.kills >= kills)

    later = _hits(campaign.exactly(reference.smallest(mode, 2), _FIRST, shares=2))
    names = {hit.point for hit in later}
    first_only = [hit for hit in _hits(campaign.exactly(workload)) if hit.point not in names]
    random.Random(seed).shuffle(later)
    figures.pairs = len(later) ** 2
    missed: list[list[wire.Kill]] = []
    way = walk(later)
    while len(way) > 1 and not enough():
        there, way = way[:LIVES_OF_A_WALK], way[LIVES_OF_A_WALK - 1 :]
        struck = campaign.one_after_another(mode, there)
        if struck < len(there):  # a life came to its end before its kill: go on behind it
            way = there[struck + 1 :] + way[1:]
            missed += [there[max(struck - 1, 0) : struck + 1], [there[struck], *way[:1]]]
    again = [pair for pair in missed if len(pair) == 2]
    figures.missed = sum(campaign.one_after_another(mode, pair) < 2 for pair in again if not enough())
    for first in first_only:
        seconds = [] if enough() else _hits(campaign.exactly(workload, first))
        figures.pairs += len(seconds)
        for second in seconds:
            if enough():
                break
            before = figures.kills
            campaign.exactly(workload, first, second)
            figures.pairs_tried += figures.kills == before + 2
            figures.missed += figures.kills < before + 2


def _hits(lives: Lives) -> list[wire.Kill]:
    """A kill for each passing of a point in the last life of a run."""
    points = {name: hits for name, hits in lives.passed_at_last.items() if name != draws.SYSCALL}
    return list(draws.kills_of(draws.singles(points)))


def walk(kills: Sequence[wire.Kill]) -> list[wire.Kill]:
    """Each ordered pair, those of equals too, as neighbours exactly once: a cycle of de Bruijn, opened."""
    cycle = [
        one for at, kill in enumerate(kills) for one in (kill, *(x for other in kills[at + 1 :] for x in (kill, other)))
    ]
    return [*cycle, *cycle[:1]]
