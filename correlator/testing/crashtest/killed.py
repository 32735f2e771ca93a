"""Level `kill9`: the engine of a configuration file runs in processes that are killed."""

import contextlib
import functools
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from correlator.events import DeadLetter, Outgoing
from correlator.settings import CheckpointSettings, EngineSettings
from correlator.storage import inspect
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.runs import Body, Outcome, RunPlan, judge
from correlator.testing.crashtest.world import ConfiguredWorld
from correlator.testing.invariants.history import History
from correlator.testing.kill9 import draws, stored, wire
from correlator.testing.kill9.directory import directory_of_a_run, keep
from correlator.testing.kill9.lives import G7, ProcessRun
from correlator.testing.kill9.stores import StoreOfRun
from correlator.testing.kill9.zygote import Zygote
from correlator.testing.power.outages import Outages
from correlator.testing.schedule import BROKER_KINDS, KILL, Fault, Schedule, draw_rates
from correlator.testing.simulation.brokers import Parcel
from correlator.testing.simulation.scenario import Scenario

RETRY_S = 0.02
INTERVALS_S = (0.005, 0.02, 0.1)
LIVES = (1, 2, 3, 5)
SPARED = wire.Kill()
"""The kill of a life that ends without being killed."""
NewStore = Callable[[], str]
"""Makes an empty store for a run, and returns its address."""


class Kill9World(ConfiguredWorld):
    """The `worlds.World` of one run with real processes.

    Args:
        level: the name of the level.
        configured: the file under test.
        lives: the run in real processes.
        kills: one kill for each life under faults.
        shares: the number of parts in which messages are published.
    """

    restless = G7

    def __init__(
        self, level: str, configured: Configured, lives: ProcessRun, kills: deque[wire.Kill], shares: int
    ) -> None:
        super().__init__(configured)
        self.level = level
        self.lives = lives
        self.shares = shares
        self._kills = kills

    def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters in the store, oldest first; none if the store does not exist yet."""
        store = self._store_with_content()
        return [row.letter for row in inspect.dead_letters(store)] if store is not None else []

    def _hand_over(self, parcels: Sequence[Parcel]) -> None:
        self.lives.publish(parcels)

    def _run(self) -> None:
        self.lives.run(self._kills, shares=self.shares)

    def _history(self) -> History:
        return self.lives.history

    def _accepted(self) -> Mapping[str, Sequence[Outgoing]]:
        return self.lives.brokers.accepted

    def _held(self) -> Mapping[str, list[dict[str, Any]]]:
        store = self._store_with_content()
        return stored.state(store) if store is not None else {}

    def _store_with_content(self) -> str | None:
        store = self.lives.store
        return store if store is not None and inspect.exists(store) else None


class Kill9:
    """The level `kill9`; see `runs.Level`. Every run has a directory of its own, which stays if the run fails.

    Args:
        configured: the file under test.
        new_store: makes the stores, in place of SQLite files in the directories of the runs.
        prepare: import paths; see `wire.Job`.
    """

    name = "kill9"
    deterministic = False
    by_call = draws.BY_CALL
    imports: Sequence[str] = ()
    disturbances: Collection[str] = BROKER_KINDS
    """Kinds of faults that do not kill the process."""

    def __init__(self, configured: Configured, new_store: NewStore | None = None, prepare: Sequence[str] = ()) -> None:
        self.configured = configured
        self._new_store = new_store
        self._prepare = prepare
        self._passed: Counter[str] = Counter()

    @functools.cached_property
    def _zygote(self) -> Zygote:
        paths = (*self.configured.classes(), *self._prepare, *self.imports)
        modules = sorted({path.partition(":")[0] for path in paths})
        return Zygote(modules)

    def run(self, body: Body, plan: RunPlan) -> Outcome:
        """See `runs.Level`; a failed run keeps its directory."""
        schedule = self._schedule(plan)
        with directory_of_a_run() as directory:
            with self._world(plan, schedule, directory) as world:
                violated = judge(body, world)
            lives = world.lives
            if violated is not None:
                keep(directory, lives.history)
        self._passed |= lives.passed
        return Outcome(
            plan=replace(plan, shares=world.shares),
            violated=violated,
            faults=tuple(schedule.fired),
            told=[f"{fault.kind} ({fault.n})" for fault in schedule.fired],
            points=lives.points,
            crashes=lives.crashes,
            history=lives.history,
            kept=directory if violated is not None else None,
        )

    @contextlib.contextmanager
    def world(self, plan: RunPlan) -> Iterator[Kill9World]:
        """Make a world of real processes for one plan of faults, in a directory that is removed unless
        the run fails.
        """
        with directory_of_a_run() as directory, self._world(plan, self._schedule(plan), directory) as world:
            yield world

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        """See `runs.Level`: yield a kill for each passing of a fault point, and for each call that changes a file."""
        for fault in draws.singles(reference.points):
            yield (fault,)

    def close(self) -> None:
        """End the server that forks the children, if a run has started it."""
        if "_zygote" in vars(self):
            self._zygote.close()

    @contextlib.contextmanager
    def _world(self, plan: RunPlan, schedule: Schedule, directory: Path) -> Iterator[Kill9World]:
        configured = self.configured
        outages = self._outages(directory, plan.seed)
        with self._stored(plan, directory if outages is None else outages.disk) as store:
            scenario = _scenario(configured, plan.seed, store.url)
            lives = ProcessRun(
                scenario,
                schedule,
                self._zygote,
                directory,
                known=functools.partial(configured.known, own=True),
                pipelines=str(configured.file) if configured.settings.pipelines else "",
                prepare=self._prepare,
                store=store,
                outages=outages,
            )
            kills = self._kills(plan, schedule, scenario.lives)
            try:
                yield Kill9World(
                    self.name, configured, lives, kills, plan.shares if plan.faults is not None else len(kills) + 1
                )
            finally:
                lives.close()

    def _kills(self, plan: RunPlan, schedule: Schedule, lives: int) -> deque[wire.Kill]:
        """Return one kill for each life under faults. If other faults need a life to strike in, one
        life is not killed.
        """
        if plan.faults is not None:
            kills = draws.kills_of(one for one in plan.faults if one.kind not in self.disturbances)
            return kills if len(kills) == len(plan.faults) else deque([*kills, SPARED])
        if not schedule.rates.get(KILL):
            return deque([SPARED] if schedule.rates else ())
        rng = random.Random(f"kills {plan.seed}")
        by_call = self.by_call if self._zygote.counts_calls else 0
        return draws.drawn_kills(rng, lives, self._passed, by_call=by_call)

    def _outages(self, directory: Path, seed: int) -> Outages | None:
        """Return the losses of power of a run; `None` at levels without them."""
        del directory, seed
        return None

    @contextlib.contextmanager
    def _stored(self, plan: RunPlan, directory: Path) -> Iterator[StoreOfRun]:
        """Make an empty store for a run."""
        del plan
        if not self.configured.persistent:
            yield StoreOfRun(None)
        else:
            yield StoreOfRun(self._new_store() if self._new_store is not None else f"sqlite:///{directory}/store.db")

    @staticmethod
    def _schedule(plan: RunPlan) -> Schedule:
        if plan.faults is None:
            return Schedule(plan.seed, draw_rates(plan.seed))
        return Schedule(plan.seed, {}, [fault for fault in plan.faults if fault.kind in BROKER_KINDS])


def _scenario(configured: Configured, seed: int, store: str | None) -> Scenario:
    rng = random.Random(f"scenario {seed}")
    return Scenario(
        seed=seed,
        settings=_settings(configured.settings, store, rng.choice(INTERVALS_S)),
        persistent=configured.persistent,
        brokers=configured.brokers,
        lives=rng.choice(LIVES),
        longest_lives=(),
        slice=rng.choice((1, 2, 3, 1000)),
        setup=configured.setup(),
        ends_lives=False,
        overtakes=False,
        awaits_timers=False,
    )


def _settings(settings: EngineSettings, store: str | None, interval: float) -> EngineSettings:
    """Return the settings of the file with the store of the run and short waits, and without the
    options of connections.
    """
    connections = {name: replace(one, options={}) for name, one in settings.connections.items()}
    return replace(
        settings,
        store=store,
        connections=connections,
        checkpoint=CheckpointSettings(interval=min(interval, settings.checkpoint.interval)),
        connection_retry_interval=min(RETRY_S, settings.connection_retry_interval),
        max_connection_retry_interval=min(RETRY_S, settings.max_connection_retry_interval),
        senders=tuple(
            replace(
                one,
                retry_interval=min(RETRY_S, one.retry_interval),
                max_retry_interval=min(RETRY_S, one.max_retry_interval),
            )
            for one in settings.senders
        ),
        status_interval=0.0,
        http=None,
        opentelemetry=None,
        input_log=None,
    )
