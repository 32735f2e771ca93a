"""Sends do not wait for the whole interval of checkpoints while their context has nothing else to do."""

from collections.abc import Callable

from correlator.runtime.engine import Engine
from correlator.settings import CheckpointSettings, MonitorSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.stepped import stepped, work
from tests.runtime.world import BEST_EFFORT, numbered, receiver, sender

INTERVAL_S = 10.0
TENTH_S = 1.0
LITTLE_S = 0.01
SLICE = 1000


class Lives:
    """An engine that sends on what it receives, and a clock that the test moves."""

    def __init__(self, monitor: str = "Forwards", commit_s: Callable[[], float] = lambda: 0.0) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.engine: Engine = stepped(
            Disk(),
            self.broker,
            receiver(max_batch_size=SLICE),
            sender(),
            sender("log", BEST_EFFORT),
            clock=self.clock,
            committed=lambda *_: self.clock.advance(commit_s()),
            monitors=(MonitorSettings(type=f"tests.runtime.flows:{monitor}"),),
            checkpoint=CheckpointSettings(interval=INTERVAL_S),
        )

    def publish(self, count: int, first: int = 1) -> None:
        self.broker.publish("queue:in", numbered(count, first=first))

    @property
    def sent(self) -> int:
        return len(self.broker.received("queue:out"))

    @property
    def taken(self) -> int:
        assert self.engine.checkpointer is not None
        return self.engine.checkpointer.counters.taken

    def after(self, seconds: float) -> int:
        """How many sends the broker has when this time has passed and every part has done what it can."""
        self.clock.advance(seconds)
        work(self.engine)
        return self.sent


def test_a2_9_sends_of_a_context_at_rest_wait_for_a_tenth_of_the_interval():
    lives = Lives()
    lives.after(INTERVAL_S)
    lives.publish(1)
    assert lives.after(0.0) == 0
    assert lives.after(TENTH_S - LITTLE_S) == 0
    assert lives.after(LITTLE_S) == 1
    lives.publish(1, first=2)
    assert lives.after(TENTH_S - LITTLE_S) == 1
    assert lives.after(LITTLE_S) == 2


def test_a2_9_while_a_context_has_events_the_whole_interval_passes():
    """Otherwise a backlog would be interrupted by ten times as many checkpoints."""
    lives = Lives()
    lives.after(INTERVAL_S)
    checkpointer, context = lives.engine.checkpointer, lives.engine.contexts["main"]
    assert checkpointer is not None
    lives.publish(1)
    lives.after(0.0)
    lives.publish(2 * SLICE, first=2)
    for _ in range(10):
        for actor in lives.engine.actors():
            if actor not in (context, checkpointer):
                actor.step()
    assert context.step() == 0
    assert not context.idle  # it has handled one slice, and another one waits
    lives.clock.advance(INTERVAL_S - LITTLE_S)
    checkpointer.step()
    assert not checkpointer.busy
    lives.clock.advance(LITTLE_S)
    checkpointer.step()
    assert checkpointer.busy


def test_a2_9_early_checkpoints_take_a_fifth_of_the_time_at_most():
    """A checkpoint that took 2 s is followed by a pause of 8 s, even for sends of a context at rest."""
    commit_s = [0.0]
    lives = Lives(commit_s=lambda: commit_s[0])
    lives.after(INTERVAL_S)
    lives.publish(1)
    lives.after(0.0)
    commit_s[0] = 2.0
    assert lives.after(TENTH_S) == 1
    commit_s[0] = 0.0
    lives.publish(1, first=2)
    assert lives.after(8.0 - LITTLE_S) == 1
    assert lives.after(LITTLE_S) == 2


def test_a_context_whose_handlers_send_nothing_reliable_takes_no_early_checkpoint():
    lives = Lives("Keeps")
    lives.after(INTERVAL_S)
    lives.publish(1)
    taken = lives.taken
    lives.after(TENTH_S)
    assert lives.taken == taken
    lives.after(INTERVAL_S)
    assert lives.taken == taken + 1
