"""The operator of the campaign: changes the configuration between lives, and adds and removes parts."""

import random

from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings
from correlator.testing.simulation.operating import Operator, StartOfLife
from correlator.testing.simulation.scenario import Scenario
from tests.harness.simulation import changes, churn
from tests.harness.simulation.scenario import Workload

CHANGED = 0.6
"""Share of lives that start with another configuration, in runs in which the configuration changes."""
CHURN = 0.03
"""Share of steps before which a part is added or removed, in runs with such changes."""


class CampaignOperator(Operator):
    """Operates the engines of a run as its workload requires.

    Args:
        scenario: the scenario of the run.
        workload: decides whether the configuration changes, and whether parts are added and removed.
        order: the random generator.
        kills: whether lives are killed. If not, there is one life, which leaves nothing behind.
    """

    def __init__(self, scenario: Scenario, workload: Workload, order: random.Random, *, kills: bool) -> None:
        first = workload.first
        self._accepted = first.healed() if first is not None and not kills else first
        self._chosen = self._accepted
        self._other_windows = changes.windows(scenario.seed, scenario.settings.duplicate_detection)
        self._putting_back = False
        self._churns = churn.SOURCE in workload.messages
        self._order = order
        self._kills = kills

    def start(self, settings: EngineSettings, life: int, *, faults: bool) -> StartOfLife:
        """See `Operator`."""
        if self._accepted is None:
            return StartOfLife(settings)
        chosen = self._chosen = self._choose(self._accepted, life, faults=faults)
        return StartOfLife(chosen.settings(settings), chosen.processors(), chosen.told())

    def _choose(self, accepted: changes.Configuration, life: int, *, faults: bool) -> changes.Configuration:
        putting_back, self._putting_back = self._putting_back, False
        if not faults:
            return accepted.healed()
        if self._kills and life > 1 and not putting_back and self._order.random() < CHANGED:
            return changes.change(accepted, self._other_windows, self._order)
        return accepted

    def accepted(self) -> None:
        """See `Operator`."""
        self._accepted = self._chosen

    def refused(self) -> bool:
        """See `Operator`."""
        assert self._accepted is not None
        again = self._chosen in (self._accepted, self._accepted.healed())
        self._putting_back = not again
        return again

    def intervenes(self) -> bool:
        """See `Operator`."""
        return self._churns and self._order.random() <= CHURN

    def intervene(self, engine: Engine) -> Actor | None:
        """See `Operator`."""
        return churn.churn(engine, self._order)

    def settle(self, engine: Engine) -> Actor | None:
        """See `Operator`."""
        return churn.settle(engine) if self._churns else None
