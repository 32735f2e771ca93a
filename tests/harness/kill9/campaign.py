"""Many runs of the project's workload, with random kills or with every pair of kills."""

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
from correlator.testing.kill9 import draws, wire
from correlator.testing.kill9.directory import directory_of_a_run, keep
from correlator.testing.kill9.lives import ProcessRun
from correlator.testing.kill9.zygote import Zygote
from correlator.testing.schedule import KILL, Fault, Schedule, draw_rates
from tests.harness.kill9 import reference
from tests.harness.simulation.invariants import violations

MOST_VIOLATIONS = 3
"""How many runs may fail before a campaign ends."""
LIVES_OF_A_TRAIL = 30
_FIRST = wire.Kill(point="stop.begin", hit=1)
"""The kill of a first life after it has handled its messages."""
_BEFORE_THE_SCHEMA = ("rec.lock", "rec.migrate.begin", "rec.migrate.step")
"""Fault points that a start passes before its store has a schema."""


class FailedRun(msgspec.Struct, frozen=True):
    """A run that failed.

    Attributes:
        seed: the seed of the run.
        faults: the faults that struck.
        violated: the violation as one line.
        kept: the directory with the store, the log and the history.
    """

    seed: int
    faults: Sequence[Fault]
    violated: str
    kept: str


class KillFigures(msgspec.Struct):
    """The figures of a campaign.

    Attributes:
        runs: runs from an empty store until everything is quiet.
        kills: processes that a planned kill ended.
        deaths: processes that ended early, including those ended by a message or by a failed handler.
        by_kind: kills by kind: at a fault point, before a call that changes a file, at a time.
        by_point: kills by fault point.
        without_fault: runs in which no fault struck.
        pairs: ordered pairs of kills that the workload has.
        pairs_tried: how many of these pairs were tried.
        missed: how many of these pairs were missed, since a life ended before its kill.
        violations: runs that failed.
        found: the failed runs.
        seconds: duration of the campaign; the caller sets it.
        cpu_seconds: CPU time of all processes together.
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
        """Add the figures of another campaign that ran at the same time with other seeds."""
        for name in ("runs", "kills", "deaths", "without_fault", "violations", "cpu_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_kind.update(other.by_kind)
        self.by_point.update(other.by_point)
        self.found += other.found
        self.seconds = max(self.seconds, other.seconds)

    def line(self) -> str:
        """Return the figures as one line."""
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
        zygote: makes child processes; it has imported the modules of `reference.APPLICATION`.
        prepare: import paths of functions that each child calls after those of the application; used for mutants.

    Attributes:
        figures: the figures of all runs.
        passed: for each fault point, how often a life that was not killed passed it, the highest count of all lives.
    """

    def __init__(self, zygote: Zygote, prepare: Sequence[str] = ()) -> None:
        self.figures = KillFigures()
        self._zygote = zygote
        self._prepare = prepare
        self.passed: Counter[str] = Counter()

    def drawn(self, seed: int, most_kills: int) -> None:
        """Run once; the seed determines all random choices."""
        workload = reference.drawn(seed)
        rates = draw_rates(seed)
        rng = random.Random(f"kills {seed}")
        lives = min(workload.scenario.lives, most_kills) if rates.get(KILL) else 0
        passed = self.passed
        new = {point: hits for point, hits in passed.items() if point not in self.figures.by_point}
        kills = draws.drawn_kills(rng, lives, new or passed, by_call=draws.BY_CALL if self._zygote.counts_calls else 0)
        if rates and not kills:
            kills.append(wire.Kill())  # other faults need a life in which they can strike
        self._run(workload, Schedule(seed, rates), kills, shares=lives + 1)

    def one_after_another(self, mode: Reliability, way: Sequence[wire.Kill], trail: Sequence[wire.Kill]) -> int:
        """Run with these kills, and with new messages in each life; return how many kills of the trail struck."""
        kills = (_FIRST, *way, *trail)
        lives = self.exactly(reference.smallest(mode, len(kills)), *kills, shares=len(kills))
        struck = max(0, lives.killed - len(kills) + len(trail))
        self.figures.pairs_tried += max(0, struck - 1)
        return struck

    def exactly(self, workload: reference.Reference, *kills: wire.Kill, shares: int = 1) -> ProcessRun:
        """Run once with exactly these kills. The messages are published in `shares` parts, one for each life.

        If the first kill strikes after the schema exists, the run begins with a store that has its schema: making the
        schema takes most of the time of a life.
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
        """Return the content of an empty store, as `correlator db upgrade` makes it."""
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
    """Run seeds from `seed` on, until `kills` processes were killed or too many runs have failed.

    With `step` n, only every n-th seed runs, so that several processes share the seeds.
    """
    figures = campaign.figures
    while figures.kills < kills and figures.violations < MOST_VIOLATIONS:
        campaign.drawn(seed, kills - figures.kills)
        seed += step


def pairs(campaign: KillCampaign, mode: Reliability, *, kills: int | None, seed: int) -> None:
    """Run every possible ordered pair of kills, in two lives of which the second continues the first.

    Kills take place where a life passes fault points. Which points a life passes depends on the kill that ended the
    life before it. So for each kill, the campaign first runs the life after it: the points that this life passes are
    the possible second kills. Then the campaign combines the pairs to trails, in which each pair occurs once, and runs
    each trail as one run of many lives, with new messages in each life. The points that only the first life of a store
    passes are killed in runs of their own, with every point that the life after them passes.

    Args:
        campaign: runs the pairs.
        mode: the reliability mode of the workload.
        kills: how many killed processes end the campaign, but not before all possible pairs are known; `None` for all
            pairs.
        seed: determines the order of the pairs.
    """
    figures, map_ = campaign.figures, Map(campaign, mode)
    figures.pairs = sum(map(len, (*map_.follows.values(), *map_.of_a_new_store.values())))

    def enough() -> bool:
        return figures.violations >= MOST_VIOLATIONS or (kills is not None and figures.kills >= kills)

    again: list[tuple[wire.Kill, wire.Kill]] = []
    trails = Trails(map_.follows, random.Random(seed))
    while not enough() and (trail := trails.one()):
        struck = campaign.one_after_another(mode, map_.ways[trail[0]], trail)
        if struck < len(trail):  # a life ended before its kill
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
        campaign: runs a life after each kill.
        mode: the reliability mode of the workload.

    Attributes:
        follows: for each kill of a life that continues an earlier one, the points that the life after it passes, as
            kills.
        ways: for each kill, the kills of earlier lives without which a run does not reach it.
        of_a_new_store: as `follows`, for the points that only the first life of a store passes.
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
    """Combines pairs of kills to trails in which neighbours are pairs, in a random order.

    Args:
        follows: the second kills of the pairs, by the first kills.
        rng: the source of the random order.
    """

    def __init__(self, follows: Mapping[wire.Kill, Sequence[wire.Kill]], rng: random.Random) -> None:
        self._left = {kill: rng.sample(others, len(others)) for kill, others in follows.items() if others}
        self._rng = rng

    def one(self) -> list[wire.Kill]:
        """Return the next trail: each two neighbours are a pair that no earlier trail has. Empty if no
        pairs are left.
        """
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
        """Return the pairs of a trail that a run did not reach."""
        for kill, other in pairwise(trail):
            self._left.setdefault(kill, []).append(other)


def _hits(lives: ProcessRun) -> list[wire.Kill]:
    """Return a kill for each fault point that the last life of a run passed."""
    points = {name: hits for name, hits in lives.passed_at_last.items() if name != draws.SYSCALL}
    return list(draws.kills_of(draws.singles(points)))
