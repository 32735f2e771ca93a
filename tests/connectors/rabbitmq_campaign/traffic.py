"""A publisher and two engines, and what has become of their orders."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.errors import ConnectionLost
from correlator.events import Outgoing, PartStatus
from correlator.ports import Sink
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.connectors.rabbit import sender
from tests.rabbit_server import RabbitServer

LOOK_S = 0.5
RETRY_S = 0.1
MOST_UNDER_WAY = 300
LARGEST_PUBLICATION = 40
LARGEST_BATCH = 50


class Kind(StrEnum):
    """What is done to the server."""

    KILLS = "kills"
    CUTS = "cuts"


class Role(StrEnum):
    """Whose connection it is."""

    PUBLISHER = "publisher"
    FORWARDING_RECEIVER = "forwarding receiver"
    FORWARDING_SENDER = "forwarding sender"
    COUNTING_RECEIVER = "counting receiver"

    @property
    def sends(self) -> bool:
        """Whether messages are in its requests; otherwise they are in the replies."""
        return self in (Role.PUBLISHER, Role.FORWARDING_SENDER)


class Stalled(Exception):
    """Nothing moves."""


class Board:
    """What has happened in a round. Handlers, the publisher and who injects faults use it, each from its thread.

    Attributes:
        begun: orders that the publisher has ever tried to publish.
        confirmed: those of them that the server has.
        forwards: how often the first engine handled each.
        counts: the same of the second one. These engines never die, so it need not be state.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.clear()

    def clear(self) -> None:
        """A new round."""
        self.begun = self.confirmed = 0
        self.forwards: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    @property
    def forwarded(self) -> int:
        """Different orders that the first engine has handled."""
        return len(self.forwards)

    @property
    def counted(self) -> int:
        """Different orders that have come through."""
        return len(self.counts)

    @property
    def under_way(self) -> int:
        """Orders that have not come through."""
        return self.begun - self.counted

    @property
    def doubled(self) -> bool:
        """Whether something was handled twice."""
        return self.counts.total() > self.counted

    def has_come_to(self, where: str, goal: int) -> bool:
        """Whether so many orders are `confirmed`, `forwarded` or `counted`."""
        return bool(getattr(self, where) >= goal)

    def note(self, *, begun: int = 0, confirmed: int = 0, forwarded: str = "", counted: str = "") -> None:
        """So many more."""
        with self._changed:
            self.begun += begun
            self.confirmed += confirmed
            if forwarded:
                self.forwards[forwarded] += 1
            if counted:
                self.counts[counted] += 1
            self._changed.notify_all()

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition on it; says whether it holds."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def wait_as_long_as_it_moves(
        self, reached: Callable[[], bool], look: Callable[[], None], patience_s: float
    ) -> None:
        """Wait for a condition, however long new orders come through.

        Args:
            reached: the condition.
            look: called now and then; raises what stands in the way.
            patience_s: longest standstill.

        Raises:
            Stalled: nothing new was confirmed or counted for so long.
        """
        moved, deadline = (0, 0), 0.0
        while not self.wait(reached, LOOK_S):
            look()
            if moved != (self.confirmed, self.counted):
                moved, deadline = (self.confirmed, self.counted), time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise Stalled(f"of {self.begun} orders {self.confirmed} are confirmed and {self.counted} counted")


BOARD = Board()


def body_of(number: int) -> bytes:
    """Of different sizes, so that one in another's place is seen."""
    return b"%d " % number + b"x" * (number * 37 % 400)


def name_of(body: bytes) -> str:
    """The number of an order; of what is none, all of it."""
    number = body.partition(b" ")[0]
    return number.decode() if number.isdigit() and body == body_of(int(number)) else repr(body)


class Forwards(Monitor, persistent=True):
    """Sends on what comes."""

    forwarded: int = 0

    @on(Message)
    def order(self, order: Message) -> None:
        self.forwarded += 1
        self.send(order.body, to="out")
        BOARD.note(forwarded=name_of(order.body))


class Counts(Monitor, persistent=True):
    """Counts each order in its state."""

    counts: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        name = name_of(order.body)
        self.counts[name] = self.counts.get(name, 0) + 1
        BOARD.note(counted=name)


class Publisher:
    """Publishes orders with ids that stay, in a thread of its own, and repeats what was not confirmed.

    Attributes:
        repeated: orders that were sent again.
        connection_errors: connections that it lost or did not get.
    """

    def __init__(self, sink: Sink, queue: str, rng: random.Random) -> None:
        self.repeated = 0
        self.connection_errors = 0
        self._sink = sink
        self._queue = queue
        self._rng = rng
        self._connected = False
        self._finishing = threading.Event()
        self._given_up = threading.Event()

    def finish(self) -> None:
        """Wait until all is counted, send one more order behind it, and end."""
        self._finishing.set()

    def give_up(self) -> None:
        """End now."""
        self._given_up.set()

    def run(self) -> None:
        """Publish; raises what the server refuses."""
        try:
            while not (self._finishing.is_set() or self._given_up.is_set()):
                if BOARD.wait(lambda: BOARD.under_way < MOST_UNDER_WAY, LOOK_S):
                    self._publish(self._rng.randint(1, LARGEST_PUBLICATION))
            while not (self._given_up.is_set() or BOARD.wait(lambda: BOARD.under_way <= 0, LOOK_S)):
                continue
            if not self._given_up.is_set():
                self._publish(1)
        finally:
            self._sink.close()

    def _publish(self, count: int) -> None:
        first = BOARD.begun
        batch = [self._outgoing(number) for number in range(first, first + count)]
        BOARD.note(begun=count)
        tried = False
        while not self._given_up.is_set():
            try:
                self._connect()
                self.repeated += count if tried else 0
                tried = True
                for refused in filter(None, self._sink.send(batch)):
                    raise refused
            except ConnectionLost:
                self._connected = False
                self.connection_errors += 1
                self._given_up.wait(RETRY_S)
            else:
                BOARD.note(confirmed=count)
                return

    def _connect(self) -> None:
        if not self._connected:
            self._sink.connect()
            self._connected = True

    def _outgoing(self, number: int) -> Outgoing:
        properties: dict[str, Any] = {"uniqueMessageId": f"{number}:publisher", "messageSourceId": "publisher"}
        return Outgoing(number + 1, "publisher", f"queue:{self._queue}", Message(body_of(number), properties))


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round does.

    Attributes:
        seed: of everything that is drawn in it.
        kind: of its faults.
        faults: how many.
        queue_type: of both queues.
        counting: what the counting receiver promises; a control receives AT_LEAST_ONCE.
    """

    seed: str
    kind: Kind
    faults: int
    queue_type: str
    counting: Reliability = Reliability.EXACTLY_ONCE

    @property
    def is_control(self) -> bool:
        """Whether it must double; it ends as soon as it has."""
        return self.counting is not Reliability.EXACTLY_ONCE

    def enough(self) -> bool:
        """Whether no more faults are needed."""
        return self.is_control and BOARD.doubled

    def __str__(self) -> str:
        control = ", a control" if self.is_control else ""
        return f"seed {self.seed} ({self.faults} {self.kind}, {self.queue_type} queues{control})"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a round happens.

    Attributes:
        rabbit: the server; nobody else may use it while it is killed.
        directory: of the stores.
        queues: that are forwarded from and to.
        patience_s: longest standstill.
    """

    rabbit: RabbitServer
    directory: Path
    queues: tuple[str, str]
    patience_s: float

    def store(self, engine: str) -> str:
        """Of one of the engines."""
        return f"sqlite:///{self.directory / engine}.db"


def engine_of(
    place: Place, name: str, monitor: type[Monitor], ports: Mapping[Role, int], this: Round, reliability: Reliability
) -> Engine:
    """One of the two: each of its connections has a port of its own."""
    source = place.queues[name == "counting"]
    connections = {role: place.rabbit.connection(port=port, queue_type=this.queue_type) for role, port in ports.items()}
    settings = EngineSettings(
        name=name,
        store=place.store(name),
        checkpoint=CheckpointSettings(interval=0.02),
        receivers=(
            ReceiverSettings(
                id=f"{name} in",
                connection=Role(f"{name} receiver"),
                destination=f"queue:{source}",
                reliability=reliability,
                max_batch_size=LARGEST_BATCH,
                max_batch_interval_ms=5,
            ),
        ),
        senders=(
            SenderSettings(
                id="out",
                connection=Role.FORWARDING_SENDER,
                destination=f"queue:{place.queues[1]}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_BATCH,
            ),
        )
        if name == "forwarding"
        else (),
        monitors=(MonitorSettings(type=f"{monitor.__module__}:{monitor.__name__}"),),
        connection_retry_interval=RETRY_S,
        status_interval=0.0,
    )
    return Engine(settings, connections=connections)


class Traffic:
    """A publisher and two engines at work. Owned by the thread of the round."""

    def __init__(self, place: Place, this: Round, ports: Mapping[Role, int], rng: random.Random) -> None:
        forwarding, counting = Reliability.EXACTLY_ONCE, this.counting
        self.engines = (
            engine_of(place, "forwarding", Forwards, ports, this, forwarding),
            engine_of(place, "counting", Counts, ports, this, counting),
        )
        connection = place.rabbit.connection(port=ports[Role.PUBLISHER], queue_type=this.queue_type)
        self.publisher = Publisher(connection.sink(sender(place.queues[0])), place.queues[0], rng)
        self._patience_s = place.patience_s
        self._published: Future[None] = Future()

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        """Within the block; at its end everything has come through."""
        with ThreadPoolExecutor(1) as pool, self.engines[0], self.engines[1]:
            self._published = pool.submit(self.publisher.run)
            try:
                yield
                self.publisher.finish()
                self.wait_until(lambda: self._published.done() and BOARD.under_way <= 0)
            finally:
                self.publisher.give_up()

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait as long as orders move. Raises `Stalled`, or what has ended an engine or the publisher."""
        BOARD.wait_as_long_as_it_moves(reached, self.look, self._patience_s)

    def look(self) -> None:
        """Raises what has ended an engine or the publisher."""
        for engine in self.engines:
            engine.raise_failure()
        if self._published.done():
            self._published.result()

    @property
    def unconfirmed(self) -> int:
        """Orders that the publisher or the forwarding sender waits to have confirmed."""
        return BOARD.begun - BOARD.confirmed + self.engines[0].status().senders["out"][2]

    @property
    def connected(self) -> int:
        """Receivers and senders that are."""
        conditions = [one for engine in self.engines for one in engine.status().conditions.values()]
        return sum(one.status is PartStatus.OK for one in conditions)
