"""A context stops for a cut, and is woken when it may go on."""

from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings, MonitorSettings
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk, ModelStore


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
