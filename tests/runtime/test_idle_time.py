"""Engine time of an engine that has nothing to do: what its timers wait for survives its lives."""

import pytest

from correlator import Monitor
from correlator.core.checkpoint import LONGEST_UNSTORED_S
from correlator.core.expressions import wait
from correlator.settings import CheckpointSettings
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.stepped import stepped, work
from tests.runtime.world import monitor

INTERVAL_S = 1.0
LIFE_S = 90
WAIT_S = 250


class ByTimer(Monitor, persistent=True):
    """Waits once."""

    fired: list[float] = []

    def onload(self) -> None:
        self.wait(WAIT_S, then=self.fires)

    def fires(self) -> None:
        self.fired.append(self.engine_time)


class ByExpression(ByTimer, persistent=True):
    """Waits once, by an expression."""

    def onload(self) -> None:
        self.once(wait(WAIT_S), then=self.fires)


class Nothing(Monitor, persistent=True):
    """Waits for nothing."""


def lives(cls, count, disk, committed=lambda *_: None):
    """Idle lives that are killed; returns the monitor of the last one."""
    for _ in range(count):
        settings = CheckpointSettings(interval=INTERVAL_S)
        engine = stepped(disk, MemoryBroker(), monitors=(monitor(cls),), checkpoint=settings, committed=committed)
        work(engine, 5)
        for _ in range(LIFE_S):
            engine._clock.advance(1.0)
            work(engine, 3)
    return next(iter(engine.contexts["main"].context.monitors.instances))


@pytest.mark.parametrize("cls", [ByTimer, ByExpression])
def test_a_timer_fires_though_each_idle_life_is_killed(cls):
    """Each of these lives is shorter than the wait, and loses at most the stated bound of its time."""
    needed = -(-WAIT_S // int(LIFE_S - LONGEST_UNSTORED_S - INTERVAL_S))
    assert len(lives(cls, needed, Disk()).fired) == 1


def test_an_engine_on_which_nothing_waits_writes_nothing():
    commits = []
    disk = Disk()
    lives(Nothing, 1, disk, committed=lambda epoch, number, writes: commits.append(writes))
    assert len(commits) == 1


def test_an_engine_on_which_something_waits_writes_at_the_bound_and_not_at_each_interval():
    commits = []
    lives(ByTimer, 1, Disk(), committed=lambda epoch, number, writes: commits.append(writes))
    assert [write.engine_time for (write,) in commits] == [1 + 10 * number for number in range(9)]
