"""A context stops for a cut, and is woken when it may go on; one that is held back looks again by itself."""

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
from tests.runtime.flows import Hears, Note

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
