"""Bugs that the simulation found, each as small as it can be told."""

from correlator.core.commit import IdRun, IdSegment, ReceiveCommit, ReceiveSegment
from correlator.core.context import Context
from correlator.core.monitor import Monitor, every
from correlator.core.routes import Routes
from correlator.events import Message
from correlator.reliability import Reliability
from correlator.runtime.clock import EngineTime
from correlator.runtime.engine import Engine
from correlator.runtime.names import resolve
from correlator.settings import EngineSettings, ReceiverSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from correlator.testing.schedule import Fault
from correlator.testing.simulation.small_world import small_world
from correlator.testing.store import Disk, ModelStore
from tests.harness.simulation.campaign import run_seed
from tests.storage.values import opened


class Beating(Monitor):
    @every(1.0)
    def beat(self) -> None:
        self.beats = getattr(self, "beats", 0) + 1


def test_a_timer_of_a_monitor_that_begins_anew_does_not_make_up_for_earlier_lives() -> None:
    context = Context("main", Routes(), resolve, engine_time=1000.0)
    monitor = Beating()
    context.load(monitor, "stop")
    context.work(10, 1000.5)
    assert not hasattr(monitor, "beats")
    context.work(10, 1001.0)
    assert monitor.beats == 1


def test_engine_time_catches_up_and_never_goes_back() -> None:
    clock = ManualClock()
    engine_time = EngineTime(clock, 5.0)
    engine_time.catch_up(8.0)
    engine_time.catch_up(7.0)
    clock.advance(1.0)
    assert engine_time.now() == 9.0


def test_ids_received_after_the_last_checkpoint_are_not_in_the_future_of_a_start() -> None:
    """Else the newest of them would make every id that is received next look expired."""
    disk = Disk()
    store = ModelStore(disk)
    opened(store)
    message = Message(b"{}", {"uniqueMessageId": "1:P"})
    ids = IdSegment("memory:in", 1, "in", 1, [IdRun(500.0, ["1:P"], ["P"], [0])])
    store.commit(1, [ReceiveCommit(receiver="in", segment=ReceiveSegment("in", 1, [message]), ids=ids)])
    receiver = ReceiverSettings(
        id="in", connection="memory", destination="queue:in", reliability=Reliability.EXACTLY_ONCE
    )
    engine = Engine(
        EngineSettings(name="test", receivers=(receiver,)),
        connections={"memory": MemoryBroker().connection()},
        store=ModelStore(disk),
        clock=ManualClock(),
        blocking=False,
    )
    engine.recover()
    assert engine.status().engine_time == 500.0


def test_a_broker_that_has_taken_two_more_acknowledgements_is_taken_to_have_the_one_before() -> None:
    """What docs/guarantees.md says of brokers that do not answer; this one has lost it all the same."""
    with small_world():
        outcome = run_seed(54425)
    assert Fault("ack.silent", 2) in outcome.faults
    assert outcome.found == []
