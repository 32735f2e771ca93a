"""The sources of a session's consumers, and their unacknowledged messages."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from correlator.connector import Chunk, Source
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message

SOURCE_ID = "session"
"""The receiver id of all sources of sessions: files keep a position for each receiver id."""
MOST_UNACKNOWLEDGED = 1000
"""Largest number of unacknowledged messages of a consumer, except in mode AUTO. The broker may send as many ahead."""


class AcknowledgeMode(StrEnum):
    """Who acknowledges the messages of a session."""

    AUTO = "AUTO"
    """The session acknowledges: each message right before `receive` returns it, or when its listener has returned."""
    CLIENT = "CLIENT"
    """The program acknowledges: `Session.acknowledge` of a message also covers all messages that the session received
    before."""
    CLIENT_INDIVIDUAL = "CLIENT_INDIVIDUAL"
    """The program acknowledges: `Session.acknowledge` covers this message alone."""
    TRANSACTED = "TRANSACTED"
    """The program acknowledges: `Session.commit` covers all messages that the session received since the last `commit`
    or `rollback`. Not atomic with sends; the factory must have `emulate_transactions`."""


class Delivery(NamedTuple):
    """An unacknowledged message of the program."""

    message: Message
    intake: "ReconnectingSource"
    token: Any


class Unacknowledged:
    """The unacknowledged deliveries of all consumers of a session, in the order of receipt. Pure.

    It compares messages by identity: two messages of equal content are different deliveries.
    """

    def __init__(self) -> None:
        self._deliveries: OrderedDict[int, Delivery] = OrderedDict()

    def add(self, delivery: Delivery) -> None:
        """Add a delivery. Its message is kept, so that no other object gets the same `id`."""
        self._deliveries[id(delivery.message)] = delivery

    def take(self, message: Message) -> list[Delivery]:
        """Remove the delivery of this message; empty if it is not held any more."""
        delivery = self._deliveries.pop(id(message), None)
        return [] if delivery is None else [delivery]

    def take_through(self, message: Message) -> list[Delivery]:
        """Remove the delivery of this message and all older ones; empty if the message is not held any more."""
        taken: list[Delivery] = []
        if id(message) in self._deliveries:
            while not taken or taken[-1].message is not message:
                taken.append(self._deliveries.popitem(last=False)[1])
        return taken

    def take_all(self) -> list[Delivery]:
        """Remove all deliveries."""
        taken = list(self._deliveries.values())
        self._deliveries.clear()
        return taken

    def forget(self, intake: "ReconnectingSource") -> None:
        """Remove the deliveries of a source, whose messages come again."""
        for delivery in [one for one in self._deliveries.values() if one.intake is intake]:
            del self._deliveries[id(delivery.message)]


class ReconnectingSource:
    """A source that reconnects at the next use after a lost connection. Owned by the thread of its session.

    Every call may raise `ConnectionLost`. The session then forgets the deliveries of this source, since they come
    again.
    """

    def __init__(self, where: str, source: Source, unacknowledged: Unacknowledged, most_held: int) -> None:
        self._where = where
        self._source = source
        self._unacknowledged = unacknowledged
        self._most_held = most_held
        self._held = 0
        self._is_connected = False

    def connect(self) -> None:
        """Connect, so that the source receives messages that are sent to its topic from now on."""
        with self._connected():
            pass

    def receive(self, timeout_s: float) -> Chunk:
        """At most one message. Raises `UsageError` E7502 if too many are unacknowledged, since none would come."""
        if self._held >= self._most_held:
            what = f"{self._held} of its messages are not acknowledged, and no more may be"
            raise UsageError("E7502", self._where, what, "", "Acknowledge, recover, or use another consumer")
        with self._connected() as source:
            chunk = source.receive(1, timeout_s)
        self._held += len(chunk.messages)
        return chunk

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Acknowledge the messages of these tokens."""
        with self._connected() as source:
            source.acknowledge(tokens)
        self._held -= len(tokens)

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give back the messages of these tokens."""
        with self._connected() as source:
            source.reject(tokens)
        self._held -= len(tokens)

    def close(self) -> None:
        """Close the source, which gives its unacknowledged messages back. Never raises."""
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
            self.close()  # otherwise nobody would get the messages that the broker holds for this consumer
            raise

    def _let_go(self) -> None:
        self._is_connected = False
        self._held = 0
        self._unacknowledged.forget(self)
