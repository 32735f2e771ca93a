"""Level `sim`: the engine of a configuration file runs in a simulation, in which a crash costs a millisecond."""

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from correlator.events import DeadLetter, Outgoing
from correlator.settings import EngineSettings
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.modules import OwnModules
from correlator.testing.crashtest.pipelines import Pipelines
from correlator.testing.crashtest.runs import Body, Outcome, RunPlan, judge
from correlator.testing.crashtest.world import ConfiguredWorld
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.history import History
from correlator.testing.schedule import KILL, Fault, Schedule, draw_rates
from correlator.testing.simulation import inspection
from correlator.testing.simulation.brokers import Parcel
from correlator.testing.simulation.operating import Operator, StartOfLife
from correlator.testing.simulation.probe import innocent_messages, observed
from correlator.testing.simulation.run import SimulatedRun
from correlator.testing.simulation.scenario import LONGEST_LIVES, Scenario
from correlator.testing.simulation.small_world import small_world

LONG_LIFE = 1000


class NewProcess(Operator):
    """Imports the user's modules anew for each life, as a new process would.

    Args:
        modules: the user's modules.
        pipelines: the pipelines of the file.
    """

    def __init__(self, modules: OwnModules, pipelines: Pipelines) -> None:
        self._modules = modules
        self._pipelines = pipelines

    def start(self, settings: EngineSettings, life: int, *, faults: bool) -> StartOfLife:
        """Start a life as `Operator.start`, after importing the modules anew; raises as `OwnModules.renew`."""
        del life, faults
        self._modules.renew()
        return StartOfLife(settings, self._pipelines.of_engine())


class SimulatedWorld(ConfiguredWorld):
    """The `worlds.World` of one simulated run.

    Args:
        configured: the file under test.
        plan: the plan of the faults.
        pipelines: the pipelines of the file.
    """

    level = "sim"
    restless = "the engine comes to rest"

    def __init__(self, configured: Configured, plan: RunPlan, pipelines: Pipelines) -> None:
        super().__init__(configured)
        rates = draw_rates(plan.seed) if plan.faults is None else {}
        schedule = Schedule(plan.seed, rates, plan.faults)
        known = partial(configured.known, own=True)
        operator = NewProcess(configured.modules, pipelines)
        self.simulated = SimulatedRun(_scenario(configured, plan.seed), schedule, known, operator)

    def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters on the simulated disk, oldest first; see `worlds.World.dead_letters`."""
        return self.simulated.disk.dead_letters

    def _hand_over(self, parcels: Sequence[Parcel]) -> None:
        self.simulated.publish(parcels)

    def _run(self) -> None:
        with observed(self.simulated.record), self._configured.modules.present():
            history = self.simulated.run_until_rest()
        rest = history.of("rest")[-1][1].data
        errors = [record.data for _, record in history.of("warned")]
        if not rest.reached:
            last = f"the last error was: {errors[-1]}" if errors else f"left at brokers: {rest.unacknowledged}"
            what = f"not quiet after {rest.seconds:.0f} s of virtual time and {self.simulated.crashes} crashes; {last}"
            raise InvariantViolated(Violation("G7", self.restless, what))
        if self.simulated.engine is None:  # the engine that should show the final state did not start
            raise InvariantViolated(Violation("G8", "an engine always starts", errors[-1]))

    def _history(self) -> History:
        return self.simulated.history

    def _accepted(self) -> Mapping[str, Sequence[Outgoing]]:
        return self.simulated.brokers.accepted

    def _held(self) -> Mapping[str, list[dict[str, Any]]]:
        return inspection.state_of_disk(self.simulated.disk)


class Simulated:
    """The level `sim`; see `runs.Level`.

    Args:
        configured: the file under test.

    Raises `ConfigError` as `Pipelines`, if the file has pipelines.
    """

    name = "sim"
    deterministic = True

    def __init__(self, configured: Configured) -> None:
        self._configured = configured
        self._pipelines = Pipelines(configured.settings, configured.file.parent, configured.places)

    def run(self, body: Body, plan: RunPlan) -> Outcome:
        """See `runs.Level`. The same plan makes the same history."""
        with self.world(plan) as world:
            violated = judge(body, world)
        simulated = world.simulated
        return Outcome(
            plan=plan,
            violated=violated,
            faults=tuple(simulated.schedule.fired),
            told=tuple(simulated.struck),
            points=dict(simulated.kills.passed),
            crashes=simulated.crashes,
            history=simulated.history,
        )

    @contextlib.contextmanager
    def world(self, plan: RunPlan) -> Iterator[SimulatedWorld]:
        """Make a simulated world for one plan of faults; nothing is left of it after the block."""
        with small_world(), innocent_messages():
            yield SimulatedWorld(self._configured, plan, self._pipelines)

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        """See `runs.Level`: yield a kill for each passing of a fault point."""
        for n in range(1, sum(reference.points.values()) + 1):
            yield (Fault(KILL, n),)

    def close(self) -> None:
        """Close the pipelines, and with them Spark; no run may follow."""
        self._pipelines.close()


def _scenario(configured: Configured, seed: int) -> Scenario:
    rng = random.Random(f"scenario {seed}")
    settings = configured.settings
    return Scenario(
        seed=seed,
        settings=replace(settings, status_interval=0.0, http=None, opentelemetry=None, input_log=None),
        persistent=configured.persistent,
        brokers=configured.brokers,
        lives=rng.choice((1, 2, 4, 8)),
        longest_lives=(*LONGEST_LIVES, LONG_LIFE),
        slice=rng.choice((1, 2, 3, 1000)),
        setup=configured.setup(),
        ends_lives=False,
        overtakes=not (settings.store or "").startswith("sqlite:"),  # a paused process keeps the lock of SQLite
        awaits_timers=False,
    )
