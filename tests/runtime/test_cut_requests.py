"""A context stops for a cut, and is woken when it may go on; one that is held back looks again by itself."""

import os

from correlator.core.context import Context
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.runtime.clock import EngineTime
from correlator.runtime.contexts import MonitorThread
from correlator.runtime.engine import Engine
from correlator.runtime.names import resolve
from correlator.settings import EngineSettings, MonitorSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk, ModelStore
from tests.runtime.flows import AlsoKeeps, Hears, Keeps, Note
from tests.runtime.world import monitor, numbered, receiver

SOON_S = 0.1


def test_a_context_that_stopped_for_a_cut_is_woken_after_it():
    engine = Engine(
        EngineSettings(name="test", monitors=(MonitorSettings(type="tests.runtime.flows:Keeps"),)),
        connections={"memory": MemoryBroker().connection()},
        store=ModelStore(Disk()),
        blocking=False,
    )
    engine.recover()
    context = engine.contexts["main"]
    context.take_wake()
    context.request_cut(requested=True)
    assert context.step() is None
    assert not context.take_wake()
    context.request_cut(requested=False)
    assert context.take_wake()


def test_a_context_that_is_held_back_looks_again_soon(script):
    """Nobody wakes it when a full queue of a sender, or the input log, has room again."""
    full = [True]
    thread = MonitorThread(
        Context("main", Routes(), resolve), EngineTime(ManualClock()), lambda: full[0], persistent=False
    )
    thread.context.load(Hears(), "stop")
    thread.queue.deliver(Run("", 0, (), (Note(text="a"),), stored=False))
    wait = thread.step()
    assert wait is not None
    assert (0 < wait <= SOON_S, script.of("Hears")) == (True, [])
    full[0] = False
    assert thread.step() == 0
    assert script.of("Hears") == ["note a"]


def test_t48_a_cut_is_taken_while_all_contexts_are_locked_and_between_two_handlers(world, script):
    """Given handlers in two contexts that change two things and ask for a checkpoint in between, then it holds both."""
    cuts: list[tuple[bool, bool]] = []

    def in_between(keeps, message):
        keeps.scratch = len(keeps.bodies) - 1
        engine.checkpointer.ask()
        os.sched_yield()
        keeps.scratch = len(keeps.bodies)

    script.message = in_between
    monitors = [Keeps, monitor(AlsoKeeps, context="other")]
    with world.engine(receiver(max_batch_size=10), monitors=monitors) as engine:
        threads = list(engine.contexts.values())
        both = [one for thread in threads for one in thread.context.monitors.instances]
        take = engine.checkpointer.checkpoint.cut

        def watched(*parts, **options):
            locked = all(thread.lock.locked() for thread in threads)
            cut = take(*parts, **options)
            whole = all(getattr(one, "scratch", 0) == one.count == len(one.bodies) for one in both)
            cuts.append((locked and all(thread.lock.locked() for thread in threads), whole))
            return cut

        engine.checkpointer.checkpoint.cut = watched
        world.publish(*numbered(200))
        world.wait(lambda: [one.count for one in both] == [200, 200])
        assert engine.checkpoint()
    assert set(cuts) == {(True, True)}
