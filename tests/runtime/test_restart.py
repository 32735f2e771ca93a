"""What a start makes of what the store holds."""

import pytest

from correlator.core import faults
from correlator.settings import DuplicateDetectionSettings
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.flows import Keeps
from tests.runtime.stepped import stepped, work
from tests.runtime.world import monitor, numbered, receiver, the_monitor


class Dies(BaseException):
    """The end of a life."""


def die_before_acknowledging(point: str) -> None:
    if point == "rx.ack.before":
        raise Dies


def test_the_first_batch_stays_known_until_it_has_come_again():
    """Given three messages without acknowledgement and a window of one, when they come again, then none is new."""
    disk, broker = Disk(), MemoryBroker()
    broker.publish("queue:in", numbered(3))
    small = DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0)
    options = {"monitors": (monitor(Keeps),), "duplicate_detection": small}
    faults.install(die_before_acknowledging)
    with pytest.raises(Dies):
        work(stepped(disk, broker, receiver(max_batch_size=3), **options))
    faults.install(None)
    engine = stepped(disk, broker, receiver(max_batch_size=1), **options)
    work(engine)
    assert broker.waiting("queue:in") == broker.unacknowledged("queue:in") == 0
    assert engine.status().receivers["in"][1].duplicates == 3
    assert the_monitor(engine, Keeps).bodies == ["m1", "m2", "m3"]
