"""What a session has taken from its brokers' queues, and still has to acknowledge."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from correlator.connector import Chunk, Source
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message

SOURCE_ID = "session"
"""The receiver that all sources of sessions are, to brokers that keep a position for each: files."""
MOST_UNACKNOWLEDGED = 1000
"""Messages that one consumer may have given to a program that acknowledges itself: so many the broker sends ahead."""


class AcknowledgeMode(StrEnum):
    """Who acknowledges what a session receives."""

    AUTO = "AUTO"
    """The session: each message right before `receive` returns it (rule Q9)."""
    CLIENT = "CLIENT"
    """The program: `Session.acknowledge` takes along everything that the session received before (rule R11)."""
    CLIENT_INDIVIDUAL = "CLIENT_INDIVIDUAL"
    """The program: `Session.acknowledge` is about that message alone (rule R12)."""
    TRANSACTED = "TRANSACTED"
    """The program: `Session.commit` acknowledges everything that was received since the last one (rule S5.3)."""


class Delivery(NamedTuple):
    """A message that the program has and has not acknowledged."""

    message: Message
    intake: "ReconnectingSource"
    token: Any


class Unacknowledged:
    """The deliveries of a session in the order in which they were received, by whichever consumer (rule R11).

    Messages are known by identity: two of equal content are different deliveries. Pure.
    """

    def __init__(self) -> None:
        self._deliveries: OrderedDict[int, Delivery] = OrderedDict()

    def add(self, delivery: Delivery) -> None:
        """The newest one; the message is kept, so that no other object gets its identity."""
        self._deliveries[id(delivery.message)] = delivery

    def take(self, message: Message) -> list[Delivery]:
        """That of this message; none when it is not held any more."""
        delivery = self._deliveries.pop(id(message), None)
        return [] if delivery is None else [delivery]

    def take_through(self, message: Message) -> list[Delivery]:
        """That of this message and all older ones; none when it is not held any more."""
        taken: list[Delivery] = []
        if id(message) in self._deliveries:
            while not taken or taken[-1].message is not message:
                taken.append(self._deliveries.popitem(last=False)[1])
        return taken

    def take_all(self) -> list[Delivery]:
        """All of them."""
        taken = list(self._deliveries.values())
        self._deliveries.clear()
        return taken

    def forget(self, intake: "ReconnectingSource") -> None:
        """Those that came from here come again."""
        for delivery in [one for one in self._deliveries.values() if one.intake is intake]:
            del self._deliveries[id(delivery.message)]


class ReconnectingSource:
    """A source that is connected again when it is used after a loss. Owned by the thread of its session.

    Every call may raise `ConnectionLost`. Then the session has forgotten what came from here, since it comes again.
    """

    def __init__(self, where: str, source: Source, unacknowledged: Unacknowledged, most_held: int) -> None:
        self._where = where
        self._source = source
        self._unacknowledged = unacknowledged
        self._most_held = most_held
        self._held = 0
        self._is_connected = False

    def connect(self) -> None:
        """Begin to take: what is sent to a topic from now on is received."""
        with self._connected():
            pass

    def receive(self, timeout_s: float) -> Chunk:
        """At most one message. Raises `UsageError` E7502 when as many are held as may be, since none would come."""
        if self._held >= self._most_held:
            what = f"{self._held} of its messages are not acknowledged, and no more may be"
            raise UsageError("E7502", self._where, what, "", "Acknowledge, recover, or use another consumer")
        with self._connected() as source:
            chunk = source.receive(1, timeout_s)
        self._held += len(chunk.messages)
        return chunk

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """These messages are done."""
        with self._connected() as source:
            source.acknowledge(tokens)
        self._held -= len(tokens)

    def reject(self, tokens: Sequence[Any]) -> None:
        """These messages are to come again."""
        with self._connected() as source:
            source.reject(tokens)
        self._held -= len(tokens)

    def close(self) -> None:
        """Give back what is held; never raises."""
        self._source.close()
        self._let_go()

    @contextmanager
    def _connected(self) -> Iterator[Source]:
        try:
            if not self._is_connected:
                self._source.connect()
                self._is_connected = True
            yield self._source
        except ConnectionLost:
            self.close()  # what a broker still holds for this consumer would come to nobody
            raise

    def _let_go(self) -> None:
        self._is_connected = False
        self._held = 0
        self._unacknowledged.forget(self)
