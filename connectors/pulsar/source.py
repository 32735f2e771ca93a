"""The source: one consumer of a subscription, which acknowledges message by message."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pulsar

from connectors.pulsar.broker import Broker
from connectors.pulsar.content import Received, decode
from connectors.pulsar.failures import not_connected
from connectors.pulsar.link import Link
from connectors.pulsar.places import Place
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.ports import Chunk
from correlator.settings import ReceiverSettings

LONGEST_WAIT_MS = 1000
"""Of one call into the client, which does not hear signals meanwhile."""
_MOST_AHEAD = 1000
_tokens = itertools.count(1)
"""Of the whole process: a token never means another chunk after a reconnect (RELIABILITY T41)."""
_T = TypeVar("_T")


class _Taken(NamedTuple):
    """A message that the broker waits to hear about; `number` counts them, `place` is where it lies in the topic."""

    number: int
    place: tuple[int, int, int, int]
    message: pulsar.Message


class PulsarSource:
    """Takes from a topic, under a subscription that lasts.

    The client connects again by itself, and the broker then gives everything again that is not acknowledged. So the
    source looks at every call whether there is a connection, and at every message whether it holds it already; either
    is a `ConnectionLost`, after which the subscription is opened anew.

    Nobody is told whether an acknowledgement has arrived. The client keeps it for a tenth of a second, and a broker
    that is killed forgets those of its last second or so. What they were about comes again.

    At most `max_batch_size` messages are handed out and not acknowledged. Up to a tenth as many, and at least one, wait
    in the client meanwhile: it asks for more as soon as it has handed something out, and can be stopped only by taking
    nothing out of it. What a producer has packed into one entry the broker sends as a whole.
    """

    def __init__(self, where: str, broker: Broker, place: Place, receiver: ReceiverSettings) -> None:
        self._where = where
        self._broker = broker
        self._place = place
        self._most = receiver.max_batch_size
        self._most_bytes = receiver.max_batch_bytes
        self._ahead = max(1, min(self._most // 10, _MOST_AHEAD))
        self._link: Link | None = None
        self._consumer: pulsar.Consumer | None = None
        self._forget()

    def connect(self) -> None:
        """Subscribe anew: what is not acknowledged comes again, oldest first."""
        self.close()
        self._link = Link(self._where, self._broker)
        try:
            self._link.open()
            self._consumer = self._link.subscribe(self._place, self._ahead)
        except BaseException:
            self.close()
            raise

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """The next messages; those that were given back come before others."""
        consumer = self._connected()
        room = min(max_messages, self._most - sum(map(len, self._held.values())))
        taken = self._again(room) or list(self._next(consumer, room, timeout_s))
        if not taken:
            return Chunk((), None)
        token = next(_tokens)
        self._held[token] = taken
        return Chunk([_decoded(one) for one in taken], token)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Tell the client, which tells the broker."""
        consumer = self._connected()
        for taken in self._released(tokens):
            self._places.discard(taken.place)
            self._call(consumer.acknowledge, taken.message)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give messages back where others share the subscription; otherwise hand them out again first.

        The broker would give all that are not acknowledged to the only consumer of a subscription.
        """
        consumer = self._connected()
        released = self._released(tokens)
        if not self._place.is_shared:
            self._returned += released
            self._returned.sort()
            return
        for taken in released:
            self._places.discard(taken.place)
            self._call(consumer.negative_acknowledge, taken.message)

    def close(self) -> None:
        """Close the consumer behind the acknowledgements; what is not acknowledged comes again to the next one."""
        if self._link is not None:
            self._link.close()
        self._link = self._consumer = None
        self._forget()

    def _forget(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, list[_Taken]] = {}
        self._returned: list[_Taken] = []
        self._places: set[tuple[int, int, int, int]] = set()

    def _connected(self) -> pulsar.Consumer:
        if self._consumer is None:
            raise not_connected(self._where)
        if not self._consumer.is_connected():
            raise self._lost("the connection was lost")
        return self._consumer

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost("E7001", self._where, f"{self._broker.service_url}: {what}")

    def _call(self, function: Callable[..., _T], *arguments: object) -> _T:
        assert self._link is not None
        return self._link.call(self._place.topic, lambda: function(*arguments))

    def _released(self, tokens: Sequence[int]) -> list[_Taken]:
        return [taken for token in tokens for taken in self._held.pop(token, ())]

    def _again(self, room: int) -> list[_Taken]:
        again = self._returned[: max(0, room)]
        del self._returned[: len(again)]
        return again

    def _next(self, consumer: pulsar.Consumer, room: int, timeout_s: float) -> Iterator[_Taken]:
        """Waits for the first; the others are those that are there."""
        deadline = time.monotonic() + timeout_s
        size = 0
        while room > 0 and size < self._most_bytes:
            message = self._one(consumer, deadline)
            if message is None:
                return
            yield self._taken(message)
            deadline = 0.0
            room -= 1
            size += len(message.data())

    def _one(self, consumer: pulsar.Consumer, deadline: float) -> pulsar.Message | None:
        """The next message; `None` when there was none until then."""
        while True:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000))
            message = self._call(_received, consumer, min(left_ms, LONGEST_WAIT_MS))
            if message is not None or left_ms <= LONGEST_WAIT_MS:
                return message

    def _taken(self, message: pulsar.Message) -> _Taken:
        place = message.message_id()
        at = (place.ledger_id(), place.entry_id(), place.batch_index(), place.partition())
        if at in self._places:
            raise self._lost("the connection was lost and made again; what is not acknowledged comes again")
        self._places.add(at)
        return _Taken(next(self._numbers), at, message)


def _received(consumer: pulsar.Consumer, wait_ms: int) -> pulsar.Message | None:
    try:
        return consumer.receive(wait_ms)
    except pulsar.exceptions.Timeout:
        return None


def _decoded(taken: _Taken) -> Message:
    message = taken.message
    ledger, entry, batch, partition = taken.place
    name = f"{ledger}:{entry}:{partition}"
    return decode(
        Received(
            None if message.has_null_value() else message.data(),
            message.properties(),
            message.partition_key(),
            message.event_timestamp(),
            message.publish_timestamp(),
            message.redelivery_count(),
            name if batch < 0 else f"{name}:{batch}",
        )
    )
