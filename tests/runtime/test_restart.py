"""What a start makes of what the store holds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from correlator.connector import Order
from correlator.core import faults, redeliveries
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.settings import DuplicateDetectionSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MEMORY_FEATURES, Faults, MemoryBroker
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


class Broken(Faults):
    """Both receivers lose their lines before their first acknowledgements; then one of them is kept away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = ""

    def before_receive(self, receiver: str) -> None:
        if receiver == self.away:
            raise ConnectionLost("E7001", f"receiver {receiver}", "is away")

    def before_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        if receiver not in self.asked:
            self.asked.append(receiver)
            self.away = self.asked[0]
            raise ConnectionLost("E7001", f"receiver {receiver}", "the line is cut")


class Silent(Faults):
    """The first acknowledgement of either receiver is lost without a word, then both lose their lines; one stays away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._cut: set[str] = set()

    def loses_acknowledgement(self, receiver: str, messages: Sequence[Message]) -> bool:
        if receiver in self.asked:
            return False
        self.asked.append(receiver)
        return True

    def before_receive(self, receiver: str) -> None:
        if len(self.asked) == 2 and (receiver == self.asked[0] or receiver not in self._cut):
            self._cut.add(receiver)
            raise ConnectionLost("E7001", f"receiver {receiver}", "the line is cut")


@pytest.mark.parametrize(
    ("lines", "surely", "dies"),
    [(Broken(), True, False), (Broken(), True, True), (Silent(), False, False)],
    ids=["line cut", "process dies", "acknowledgements without an answer"],
)
def test_what_another_receiver_of_the_queue_had_in_doubt_may_come_first(lines: Any, surely: bool, dies: bool):
    """Given two receivers with a batch in doubt each, when one is given the other's first, then it knows its own yet."""
    disk = Disk()
    broker = MemoryBroker(features=dataclasses.replace(MEMORY_FEATURES, acknowledges_surely=surely), faults=lines)
    broker.publish("queue:in", numbered(63))
    small = DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0)
    parts = [receiver(name, destination="queue:in", max_batch_size=size) for name, size in (("one", 60), ("two", 3))]
    options = {"monitors": (monitor(Keeps),), "duplicate_detection": small, "connection_retry_interval": 0.0}
    engine = stepped(disk, broker, *parts, **options)
    work(engine, rounds=4 if dies else 200)
    assert lines.asked == ["one", "two"]
    if dies:
        engine = stepped(disk, broker, *parts, **options)
        work(engine, rounds=200)
    counters = engine.status().receivers["two"][1]
    assert counters.duplicates == 63
    assert the_monitor(engine, Keeps).bodies == [f"m{number}" for number in range(1, 64)]


class NoticedLate(Faults):
    """The first acknowledgement is lost with its line, and the broker notices that only after eight seconds."""

    def __init__(self) -> None:
        self.lost = False

    def before_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        if not self.lost:
            self.lost = True
            raise ConnectionLost("E7001", f"receiver {receiver}", "the line is cut")

    def noticed_after(self, receiver: str, messages: Sequence[Message]) -> float:
        return 8.0


@pytest.mark.parametrize("dies", [False, True], ids=["line cut", "host gone"])
@pytest.mark.parametrize(("within_s", "known"), [(10.0, True), (0.0, False)], ids=["told so", "told at once"])
def test_what_a_broker_gives_again_late_is_known_yet(within_s: float, known: bool, dies: bool):
    """Given windows of one id, when newer messages come before the broker notices the loss, then the old one is known."""
    clock, disk = ManualClock(), Disk()
    features = dataclasses.replace(MEMORY_FEATURES, order=Order.ANY, notices_loss_within_s=within_s)
    broker = MemoryBroker(features=features, faults=NoticedLate(), clock=clock.monotonic)
    small = DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0)
    options = {"monitors": (monitor(Keeps),), "duplicate_detection": small, "connection_retry_interval": 0.0}
    engine = stepped(disk, broker, receiver(max_batch_size=1), clock=clock, **options)
    broker.publish("queue:in", numbered(40)[:1])
    work(engine, rounds=4 if dies else 40)
    if dies:
        engine = stepped(disk, broker, receiver(max_batch_size=1), clock=clock, **options)
    broker.publish("queue:in", numbered(40)[1:30])
    work(engine, rounds=400)
    clock.advance(8.0)
    work(engine, rounds=400)
    clock.advance(10.0)
    broker.publish("queue:in", numbered(40)[30:])
    work(engine, rounds=400)
    assert broker.waiting("queue:in") == broker.unacknowledged("queue:in") == 0
    assert engine.status().receivers["in"][1].duplicates == known
    assert (the_monitor(engine, Keeps).bodies == [f"m{number}" for number in range(1, 41)]) == known


class Losing(Faults):
    """Every acknowledgement is lost with its line, but the broker notices it at once."""

    def __init__(self) -> None:
        self.on = True

    def before_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        if self.on:
            raise ConnectionLost("E7001", f"receiver {receiver}", "the line is cut")


def test_where_lost_lines_leave_much_in_doubt_a_receiver_waits_until_they_are_noticed(monkeypatch: pytest.MonkeyPatch):
    """Given a broker that may take ten seconds to notice, when ten batches are in doubt, then nothing is received."""
    monkeypatch.setattr(redeliveries, "MOST_IN_DOUBT", 0)
    clock, lines = ManualClock(), Losing()
    features = dataclasses.replace(MEMORY_FEATURES, notices_loss_within_s=10.0)
    broker = MemoryBroker(features=features, faults=lines, clock=clock.monotonic)
    broker.publish("queue:in", numbered(30))
    options = {"monitors": (monitor(Keeps),), "connection_retry_interval": 0.0}
    engine = stepped(Disk(), broker, receiver(max_batch_size=1), clock=clock, **options)
    work(engine, rounds=400)
    lines.on = False
    work(engine)
    assert engine.status().waits == {"in": "doubt"}
    assert broker.waiting("queue:in") == 30
    clock.advance(10.0)
    work(engine, rounds=400)
    assert broker.waiting("queue:in") == broker.unacknowledged("queue:in") == 0
    assert the_monitor(engine, Keeps).bodies == [f"m{number}" for number in range(1, 31)]


class Forgetful(Faults):
    """Acknowledgements are lost without a word until the line was cut so often: after so many of them each time."""

    def __init__(self, after: int, cuts: int = 1) -> None:
        self.lost = 0
        self._after = after
        self._cuts = cuts

    def loses_acknowledgement(self, receiver: str, messages: Sequence[Message]) -> bool:
        self.lost += self._cuts > 0
        return self._cuts > 0

    def before_receive(self, receiver: str) -> None:
        if self._cuts and self.lost == self._after:
            self._cuts -= 1
            self.lost = 0
            raise ConnectionLost("E7001", f"receiver {receiver}", "the line is cut")


@pytest.mark.parametrize(
    ("lines", "written_within_s", "duplicates"),
    [(Forgetful(5), 10.0, 5), (Forgetful(2, cuts=2), 0.0, 4), (Forgetful(5), 0.0, 1)],
    ids=["written late", "lost twice", "more than it may forget"],
)
def test_what_a_broker_may_forget_stays_known(lines: Forgetful, written_within_s: float, duplicates: int):
    """Given windows of one id, when the broker gives again what it was told is done, then what it may is known yet."""
    features = dataclasses.replace(
        MEMORY_FEATURES, acknowledges_surely=False, acknowledgements_written_within_s=written_within_s
    )
    broker = MemoryBroker(features=features, faults=lines)
    small = DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0)
    options = {"monitors": (monitor(Keeps),), "duplicate_detection": small, "connection_retry_interval": 0.0}
    engine = stepped(Disk(), broker, receiver(max_batch_interval_ms=0), **options)
    for message in numbered(9):
        broker.publish("queue:in", [message])
        work(engine)
    assert broker.waiting("queue:in") == broker.unacknowledged("queue:in") == 0
    assert engine.status().receivers["in"][1].duplicates == duplicates
    accepted = the_monitor(engine, Keeps).bodies
    assert (len(accepted) > 9) == (duplicates == 1)
