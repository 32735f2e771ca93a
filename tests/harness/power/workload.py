"""The recorded run: an engine on a SQLite store, stepped without threads, so that a seed determines the run.

The engine receives in modes EXACTLY_ONCE and AT_LEAST_ONCE, with repeats and messages that cannot be mapped, and sends
in both modes. Its limits are so small (see `record`) that ids expire, segments are cleaned, and SQLite copies its log
many times.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from correlator.core.commit import CheckpointCommit, Recovered, Write
from correlator.core.monitor import Monitor, on
from correlator.core.state import StateTable
from correlator.events import Message, Outgoing, PropertyValue, event
from correlator.reliability import Reliability
from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.settings import (
    CheckpointSettings,
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.storage.store import SqlStore
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from tests.harness.power import facts

NAME = "power"
FILE = "store.db"
QUEUES = ("queue:orders", "queue:readings")
GROUPS = 6
MOST_STEPS = 20_000
"""Number of steps after which a run that does not come to rest fails."""

Tell = Callable[[facts.Mark], None]


@event
class Order:
    """Received in mode EXACTLY_ONCE."""

    id: str
    group: int


@event
class Reading:
    """Received in mode AT_LEAST_ONCE."""

    id: str
    group: int


class Ledger(Monitor, persistent=True):
    """Counts every id, and sends in both modes; each event replaces its state for groups and places."""

    handled: int = 0
    counts: StateTable[str, int]
    latest: StateTable[int, str]

    @on(Order)
    def order(self, order: Order) -> None:
        """Send EXACTLY_ONCE, and for every third order also AT_LEAST_ONCE."""
        self._count(order.id, order.group)
        self._send("exact", order.id)
        if order.group % 3 == 0:
            self._send("steady", order.id)

    @on(Reading)
    def reading(self, reading: Reading) -> None:
        """Send AT_LEAST_ONCE."""
        self._count(reading.id, reading.group)
        self._send("steady", reading.id)

    def _count(self, name: str, group: int) -> None:
        self.handled += 1
        self.counts[name] = self.counts.get(name, 0) + 1
        self.latest[group] = name
        self.latest[GROUPS + self.handled % GROUPS] = name

    def _send(self, sender: str, name: str) -> None:
        self.send(f"{self.handled}:{name}".encode(), to=sender)


class MarkingStore(SqlStore):
    """The store, which reports when the engine takes it over and commits.

    Args:
        directory: the directory of its file.
        tell: called with each mark.
    """

    def __init__(self, directory: Path, tell: Tell) -> None:
        super().__init__(f"sqlite:///{directory / FILE}", NAME)
        self._tell = tell

    def take_over(self, recovered: Recovered) -> None:
        """Report that the engine may write from now on."""
        super().take_over(recovered)
        self._tell(facts.Opened(recovered.checkpoint, recovered.digest))

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Report each checkpoint before and after its commit."""
        checkpoints = [write for write in writes if isinstance(write, CheckpointCommit)]
        for one in checkpoints:
            self._tell(facts.Announced(one.number, one.digest))
        super().commit(number, writes)
        for one in checkpoints:
            self._tell(facts.Reported(one.number))


class RecordedLife:
    """One engine from its recovery to its end, with a broker of its own.

    Args:
        directory: the directory of the store.
        identity: the unique part of the source ids of its senders.
        rng: the source of the random order of the steps.
        tell: called with each mark.
    """

    def __init__(self, directory: Path, identity: str, rng: random.Random, tell: Tell) -> None:
        self.clock = ManualClock()
        self._rng = rng
        self._tell = tell
        self._asked: int | None = None
        self._broker = MemoryBroker(on_event=self._happened)
        self._engine = Engine(
            SETTINGS,
            connections={"memory": self._broker.connection()},
            clock=self.clock,
            store=MarkingStore(directory, tell),
            blocking=False,
            identity=identity,
        )

    def run(self, messages: Mapping[str, Sequence[Message]]) -> bool:
        """Recover, handle and send everything, and stop; return whether the engine came to rest."""
        try:
            self._engine.recover()
            return self._steps(messages)
        finally:
            self._engine.stop(drain=False)

    def _steps(self, messages: Mapping[str, Sequence[Message]]) -> bool:
        actors = self._engine.actors()
        due = dict.fromkeys(actors, 0.0)
        pending = [(queue, one) for queue, ones in messages.items() for one in ones]
        self._rng.shuffle(pending)
        for _ in range(MOST_STEPS):
            if pending and self._rng.random() < 0.08:
                self._publish(*pending.pop())
            if not pending and self._rests():
                return True
            self._step(self._rng.choice(actors), due)
            self.clock.advance(self._rng.random() * 0.004)
        return False

    def _step(self, actor: Actor, due: dict[Actor, float]) -> None:
        if actor.take_wake() or due[actor] <= self.clock.now:
            delay = actor.step()
            due[actor] = float("inf") if delay is None else self.clock.now + delay

    def _publish(self, queue: str, message: Message) -> None:
        self._tell(facts.Published(queue, [message]))
        self._broker.publish(queue, [message])

    def _rests(self) -> bool:
        """Return whether all messages are acknowledged, handled and sent, and the store records this."""
        broker, engine = self._broker, self._engine
        if any(broker.waiting(queue) or broker.unacknowledged(queue) for queue in QUEUES):
            return False
        if not all(context.idle for context in engine.contexts.values()):
            return False
        if not all(sender.idle for sender in engine.senders.values()):
            return False
        assert engine.checkpointer is not None
        return not engine.checkpointer.busy and self._recorded()

    def _recorded(self) -> bool:
        """Return whether a checkpoint that was requested after that is committed."""
        assert self._engine.checkpointer is not None
        if self._asked is None:
            self._asked = self._engine.checkpointer.ask()
        return self._engine.checkpointer.answered(self._asked)

    def _happened(self, kind: str, part: str, _destination: str, messages: Sequence[Any]) -> None:
        if kind == "acknowledged":
            known = [(str(one.properties["pid"]), str(one.properties["id"])) for one in messages]
            self._tell(facts.Acknowledged(known))
        elif kind == "accepted":
            for one in messages:
                assert isinstance(one, Outgoing)
                self._tell(facts.Sent(part, one.source, one.sequence, one.message.body))


def messages_of(rng: random.Random, count: int, life: int) -> dict[str, list[Message]]:
    """Return the messages of one life by queue: some repeat an earlier message, some cannot be mapped."""
    made: dict[str, list[Message]] = {queue: [] for queue in QUEUES}
    for number in range(count):
        queue = QUEUES[number % 3 == 2]
        earlier = made[queue][-8:]
        if earlier and rng.random() < 0.15:
            repeated = rng.choice(earlier)
            made[queue].append(Message(repeated.body, {**repeated.properties, "pid": f"{life}.{number}"}))
            continue
        name = f"{'or'[queue == QUEUES[1]]}{life}.{number}"
        body = b"no JSON" if rng.random() < 0.04 else b'{"id":"%s","group":%d}' % (name.encode(), number % GROUPS)
        properties: dict[str, PropertyValue] = {
            "pid": f"{life}.{number}",
            "id": name,
            "uniqueMessageId": name,
            "messageSourceId": "P",
        }
        made[queue].append(Message(body, properties))
    return made


def _receiver(name: str, reliability: Reliability, event_type: type) -> ReceiverSettings:
    return ReceiverSettings(
        id=name,
        connection="memory",
        destination=f"queue:{name}",
        reliability=reliability,
        event=f"{__name__}:{event_type.__name__}",
        max_batch_size=5,
        max_batch_interval_ms=3,
    )


def _sender(name: str, reliability: Reliability) -> SenderSettings:
    return SenderSettings(
        id=name, connection="memory", destination=f"queue:{name}", reliability=reliability, max_batch_size=4
    )


SETTINGS = EngineSettings(
    name=NAME,
    checkpoint=CheckpointSettings(interval=0.02),
    receivers=(
        _receiver("orders", Reliability.EXACTLY_ONCE, Order),
        _receiver("readings", Reliability.AT_LEAST_ONCE, Reading),
    ),
    senders=(_sender("exact", Reliability.EXACTLY_ONCE), _sender("steady", Reliability.AT_LEAST_ONCE)),
    monitors=(MonitorSettings(type=f"{__name__}:Ledger"),),
    duplicate_detection=DuplicateDetectionSettings(per_source_window_size=6, expiry_time=0.05),
    status_interval=0.0,
)
"""Batches, windows and intervals are small, so that every mechanism is in use at any moment."""
