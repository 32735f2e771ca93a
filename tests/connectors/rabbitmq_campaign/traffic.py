"""A publisher and two engines, and what has become of their orders."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.connector import Connection
from correlator.events import PartStatus
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.connectors.campaign.board import Board, name_of
from tests.connectors.campaign.publisher import RETRY_S, Publisher
from tests.connectors.rabbit import sender
from tests.rabbit_server import RabbitServer

LARGEST_BATCH = 50


class Kind(StrEnum):
    """The kind of fault of a round."""

    KILLS = "kills"
    CUTS = "cuts"


class Role(StrEnum):
    """The owner of a connection."""

    PUBLISHER = "publisher"
    FORWARDING_RECEIVER = "forwarding receiver"
    FORWARDING_SENDER = "forwarding sender"
    COUNTING_RECEIVER = "counting receiver"

    @property
    def sends(self) -> bool:
        """Whether its requests hold messages; otherwise the replies of the server do."""
        return self in (Role.PUBLISHER, Role.FORWARDING_SENDER)


class ForwardingBoard(Board):
    """A board that also counts orders between the two engines.

    Attributes:
        forwards: how often the first engine handled each order. These engines never die, so it need not be state.
    """

    def clear(self) -> None:
        """Begin a new round: forget all orders."""
        super().clear()
        self.forwards: Counter[str] = Counter()

    @property
    def forwarded(self) -> int:
        """The number of different orders that the first engine has handled."""
        return len(self.forwards)

    def note_forwarded(self, name: str) -> None:
        """Note an order that the first engine has handled."""
        with self._changed:
            self.forwards[name] += 1
            self._changed.notify_all()


BOARD = ForwardingBoard()


class Forwards(Monitor, persistent=True):
    """Sends on each order."""

    forwarded: int = 0

    @on(Message)
    def order(self, order: Message) -> None:
        self.forwarded += 1
        self.send(order.body, to="out")
        BOARD.note_forwarded(name_of(order.body))


class Counts(Monitor, persistent=True):
    """Counts each order in its state."""

    counts: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        name = name_of(order.body)
        self.counts[name] = self.counts.get(name, 0) + 1
        BOARD.note(counted=name)


@dataclass(frozen=True, kw_only=True)
class Round:
    """The parameters of a round.

    Attributes:
        seed: seed of everything that is drawn in the round.
        kind: kind of its faults.
        faults: number of faults.
        queue_type: type of both queues.
        counting: reliability mode of the counting receiver; AT_LEAST_ONCE in a control.
    """

    seed: str
    kind: Kind
    faults: int
    queue_type: str
    counting: Reliability = Reliability.EXACTLY_ONCE

    @property
    def is_control(self) -> bool:
        """Whether it is a control: something must double, and the round ends as soon as it has."""
        return self.counting is not Reliability.EXACTLY_ONCE

    def enough(self) -> bool:
        """Whether the round needs no more faults."""
        return self.is_control and BOARD.doubled

    def __str__(self) -> str:
        control = ", a control" if self.is_control else ""
        return f"seed {self.seed} ({self.faults} {self.kind}, {self.queue_type} queues{control})"


@dataclass(frozen=True, kw_only=True)
class RabbitSite:
    """The server, the queues and the directory of a round.

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
        """The store of one of the engines."""
        return f"sqlite:///{self.directory / engine}.db"


def engine_of(
    place: RabbitSite,
    name: str,
    monitor: type[Monitor],
    ports: Mapping[Role, int],
    this: Round,
    reliability: Reliability,
) -> Engine:
    """Make one of the two engines; each of its connections has a port of its own."""
    source = place.queues[name == "counting"]
    connections: dict[str, Connection] = {
        role: place.rabbit.connection(port=port, queue_type=this.queue_type) for role, port in ports.items()
    }
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
        max_connection_retry_interval=RETRY_S,
        status_interval=0.0,
    )
    return Engine(settings, connections=connections)


class Traffic:
    """A publisher and two engines at work. Owned by the thread of the round."""

    def __init__(self, place: RabbitSite, this: Round, ports: Mapping[Role, int], rng: random.Random) -> None:
        forwarding, counting = Reliability.EXACTLY_ONCE, this.counting
        self.engines = (
            engine_of(place, "forwarding", Forwards, ports, this, forwarding),
            engine_of(place, "counting", Counts, ports, this, counting),
        )
        connection = place.rabbit.connection(port=ports[Role.PUBLISHER], queue_type=this.queue_type)
        self.publisher = Publisher(connection.sink(sender(place.queues[0])), place.queues[0], rng, BOARD)
        self._patience_s = place.patience_s
        self._published: Future[None] = Future()

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        """Run them within the block. At its end every order has come through."""
        with ThreadPoolExecutor(1) as pool, self.engines[0], self.engines[1]:
            self._published = pool.submit(self.publisher.run)
            try:
                yield
                self.publisher.finish()
                self.wait_until(lambda: self._published.done() and BOARD.under_way <= 0)
            finally:
                self.publisher.give_up()

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait as long as orders move. Raises `Stalled`, or the error that has ended an engine or the publisher."""
        BOARD.wait_as_long_as_it_moves(reached, self.look, self._patience_s)

    def look(self) -> None:
        """Raise the error that has ended an engine or the publisher, if there is one."""
        for engine in self.engines:
            engine.raise_failure()
        if self._published.done():
            self._published.result()

    @property
    def unconfirmed(self) -> int:
        """The number of orders whose confirm the publisher or the forwarding sender awaits."""
        return BOARD.begun - BOARD.confirmed + self.engines[0].status().senders["out"][2]

    @property
    def connected(self) -> int:
        """The number of receivers and senders that are connected."""
        conditions = [one for engine in self.engines for one in engine.status().conditions.values()]
        return sum(one.status is PartStatus.OK for one in conditions)
