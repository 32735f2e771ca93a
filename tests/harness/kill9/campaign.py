"""Many runs of the project's workload, with drawn kills or with every pair of kills."""

import functools
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from correlator.reliability import Reliability
from correlator.storage import migrate
from correlator.testing import files
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.violations import violations
from correlator.testing.kill9 import draws, wire
from correlator.testing.kill9.directory import directory_of_a_run, keep
from correlator.testing.kill9.lives import ProcessRun
from correlator.testing.kill9.zygote import Zygote
from correlator.testing.schedule import KILL, Fault, Schedule, draw_rates
from tests.harness.kill9 import reference

MOST_VIOLATIONS = 3
"""Runs that may fail before a campaign ends."""
LIVES_OF_A_TRAIL = 30
_FIRST = wire.Kill(point="stop.begin", hit=1)
"""The kill of a first life that has done its share."""
_BEFORE_THE_SCHEMA = ("rec.lock", "rec.migrate.begin", "rec.migrate.step")
"""Points that the start of an engine passes before its store has a schema."""


class FailedRun(msgspec.Struct, frozen=True):
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


class KillFigures(msgspec.Struct):
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
    found: list[FailedRun] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, lives: ProcessRun, fired: Sequence[Fault]) -> None:
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

    def merge(self, other: "KillFigures") -> None:
        """Count what another campaign did at the same time, with seeds of its own."""
        for name in ("runs", "kills", "deaths", "without_fault", "violations", "cpu_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_kind.update(other.by_kind)
        self.by_point.update(other.by_point)
        self.found += other.found
        self.seconds = max(self.seconds, other.seconds)

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


class KillCampaign:
    """Runs of the project's workload, one after another.

    Args:
        zygote: makes children; it has imported the modules of `reference.APPLICATION`.
        prepare: import paths, called in each child after those of the application: mutants.

    Attributes:
        figures: of all runs.
        passed: how often lives that came to their end passed each fault point, the most in one.
    """

    def __init__(self, zygote: Zygote, prepare: Sequence[str] = ()) -> None:
        self.figures = KillFigures()
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

    def one_after_another(self, mode: Reliability, way: Sequence[wire.Kill], trail: Sequence[wire.Kill]) -> int:
        """A run of these kills, the messages of the workload anew in each life; how many of the trail's struck."""
        kills = (_FIRST, *way, *trail)
        lives = self.exactly(reference.smallest(mode, len(kills)), *kills, shares=len(kills))
        struck = max(0, lives.killed - len(kills) + len(trail))
        self.figures.pairs_tried += max(0, struck - 1)
        return struck

    def exactly(self, workload: reference.Reference, *kills: wire.Kill, shares: int = 1) -> ProcessRun:
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
    ) -> ProcessRun:
        with directory_of_a_run() as directory:
            if with_schema and workload.scenario.persistent:
                files.write(directory / reference.STORE, [self._schema])
            scenario = reference.stored_in(workload.scenario, directory)
            lives = ProcessRun(scenario, schedule, self._zygote, directory, prepare=(*workload.prepare, *self._prepare))
            lives.publish(workload.parcels)
            violated = _violated(lives, kills, shares, one_each=one_each)
            if violated is not None:
                keep(directory, lives.history)
                self.figures.violations += 1
                self.figures.found.append(FailedRun(scenario.seed, schedule.fired, str(violated), str(directory)))
        self.passed |= lives.passed
        self.figures.add(lives, schedule.fired)
        return lives

    @functools.cached_property
    def _schema(self) -> bytes:
        """A store as `correlator db upgrade` makes it."""
        with directory_of_a_run() as directory:
            migrate.upgrade(f"sqlite:///{directory}/{reference.STORE}")
            return (directory / reference.STORE).read_bytes()


def _violated(lives: ProcessRun, kills: deque[wire.Kill], shares: int, *, one_each: bool) -> Violation | None:
    try:
        lives.run(kills, shares=shares, one_each=one_each)
        return next((Violation(*one) for one in violations(lives.history)), None)
    except InvariantViolated as error:
        return error.violation
    finally:
        lives.close()


def drawn(campaign: KillCampaign, *, kills: int, seed: int, step: int = 1) -> None:
    """Runs with seeds from this one on until so many processes were killed, or too many runs have failed.

    With `step` n only every n-th seed, so that several processes share the seeds.
    """
    figures = campaign.figures
    while figures.kills < kills and figures.violations < MOST_VIOLATIONS:
        campaign.drawn(seed, kills - figures.kills)
        seed += step


def pairs(campaign: KillCampaign, mode: Reliability, *, kills: int | None, seed: int) -> None:
    """Every ordered pair of kills that can be, in two lives of which the second goes on from the first.

    Kills are the passings of points. What a life passes depends on where the one before it died; so for each kill the
    life behind it is looked at first, and its passings are what may follow. Then trails through these pairs, each of
    which comes once, are gone in runs of many lives, with the messages of the workload anew in each. What only the
    first life of a store passes is killed in runs of its own, with every passing of the life behind it.

    Args:
        campaign: runs them.
        mode: of the workload.
        kills: ends it when so many processes were killed, but not before all that may follow is known; `None` for all.
        seed: of the order.
    """
    figures, map_ = campaign.figures, Map(campaign, mode)
    figures.pairs = sum(map(len, (*map_.follows.values(), *map_.of_a_new_store.values())))

    def enough() -> bool:
        return figures.violations >= MOST_VIOLATIONS or (kills is not None and figures.kills >= kills)

    again: list[tuple[wire.Kill, wire.Kill]] = []
    trails = Trails(map_.follows, random.Random(seed))
    while not enough() and (trail := trails.one()):
        struck = campaign.one_after_another(mode, map_.ways[trail[0]], trail)
        if struck < len(trail):  # a life came to its end before its kill
            again += pairwise(trail[max(struck - 1, 0) : struck + 1])
            trails.put_back(trail[struck:])
    for first, second in again:
        if not enough():
            figures.missed += campaign.one_after_another(mode, map_.ways[first], [first, second]) < 2
    for first, seconds in map_.of_a_new_store.items():
        for second in seconds:
            if enough():
                return
            both = campaign.exactly(reference.smallest(mode, 2), first, second, shares=2).killed == 2
            figures.pairs_tried += both
            figures.missed += not both


class Map:
    """Which kills may follow which.

    Args:
        campaign: runs a life behind each kill.
        mode: of the workload.

    Attributes:
        follows: for each kill of a life that goes on from an earlier one, the passings of the life behind it.
        ways: kills of the lives before it, without which it is not reached.
        of_a_new_store: the same as `follows` for what only the first life of a store passes.
    """

    def __init__(self, campaign: KillCampaign, mode: Reliability) -> None:
        undisturbed = _hits(campaign.exactly(reference.smallest(mode, 2), _FIRST, shares=2))
        self.ways: dict[wire.Kill, tuple[wire.Kill, ...]] = dict.fromkeys(undisturbed, ())
        self.follows: dict[wire.Kill, list[wire.Kill]] = {}
        unknown = deque(undisturbed)
        while unknown:
            kill = unknown.popleft()
            way = (_FIRST, *self.ways[kill], kill)
            lives = campaign.exactly(reference.smallest(mode, len(way) + 1), *way, shares=len(way) + 1)
            self.follows[kill] = _hits(lives) if lives.killed == len(way) else []
            for other in self.follows[kill]:
                if other not in self.ways:
                    self.ways[other] = way[1:]
                    unknown.append(other)
        self.of_a_new_store = {
            kill: _hits(campaign.exactly(reference.smallest(mode, 2), kill, shares=2))
            for kill in _hits(campaign.exactly(reference.smallest(mode)))
            if not self.follows.get(kill)
        }


class Trails:
    """Takes pairs apart into trails of neighbours, in a drawn order.

    Args:
        follows: the second ones of the pairs, by the first ones.
        rng: draws.
    """

    def __init__(self, follows: Mapping[wire.Kill, Sequence[wire.Kill]], rng: random.Random) -> None:
        self._left = {kill: rng.sample(others, len(others)) for kill, others in follows.items() if others}
        self._rng = rng

    def one(self) -> list[wire.Kill]:
        """Kills of which each two neighbours are a pair that no other trail has; empty when none is left."""
        if not self._left:
            return []
        trail = [self._rng.choice(list(self._left))]
        while trail[-1] in self._left and len(trail) < LIVES_OF_A_TRAIL:
            others = self._left[trail[-1]]
            other = others.pop()
            if not others:
                del self._left[trail[-1]]
            trail.append(other)
        return trail

    def put_back(self, trail: Sequence[wire.Kill]) -> None:
        """The pairs of a trail that was not gone to its end."""
        for kill, other in pairwise(trail):
            self._left.setdefault(kill, []).append(other)


def _hits(lives: ProcessRun) -> list[wire.Kill]:
    """A kill for each passing of a point in the last life of a run."""
    points = {name: hits for name, hits in lives.passed_at_last.items() if name != draws.SYSCALL}
    return list(draws.kills_of(draws.singles(points)))
