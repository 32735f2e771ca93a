"""The sink of Pulsar: one producer for each topic; if the broker deduplicates, one for each topic and source id.

A broker that deduplicates identifies a producer by its name, and its messages by their numbers: it confirms a number
that is not above the highest one of that name, and does not store the message. So the name of a producer is the source
id of its messages, which is the same after a crash, and the numbers are those of the engine, from 1 on. After a failure
the sink drops all producers, and the engine sends unconfirmed messages again, the lowest number first (trap T35). While
the broker still knows the producer of a lost connection, the name is in use (trap T36), and the engine tries again.
"""

import functools
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import pulsar

from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.content import Encoded, encode
from connectors.pulsar.destinations import PulsarRoute, is_queue, topic_of
from connectors.pulsar.failures import WAITED_FOR, lost, not_connected, of_name, refused, silent
from connectors.pulsar.flight import BatchInFlight
from connectors.pulsar.link import PulsarLink
from correlator.errors import SendRejected, quoted
from correlator.events import Outgoing
from correlator.settings import SenderSettings

MOST_PRODUCERS = 1000
"""Largest number of open producers of a sink; a further one replaces the oldest (rule S5.6)."""
_LONGEST_DELAY_MS = 100 * 365 * 86_400_000
"""A hundred years in milliseconds: the client adds the delay to the present time."""
_NUMBERS = range(1, 2**63)
"""Allowed numbers: for the client 0 means that there is no number."""


class _Publication(NamedTuple):
    """A message that is ready to be sent by the producer of this name; "" if the broker does not deduplicate."""

    topic: str
    name: str
    number: int
    encoded: Encoded
    is_for_queue: bool
    delivery_delay: timedelta | None


class PulsarSink:
    """Sends messages, and waits for the broker's confirm of each.

    If the broker fails to store a message, the sink closes its client. When it opens the producer again, it learns
    whether the broker refuses all messages of that topic at every try.
    """

    def __init__(
        self, where: str, broker: PulsarBroker, route: PulsarRoute, sender: SenderSettings, connection_id: str
    ) -> None:
        self._where = where
        self._broker = broker
        self._route = route
        self._own_destination = sender.destination
        self._durable = sender.reliability != "BEST_EFFORT"
        self._connection_id = connection_id
        self._life = uuid.uuid4().hex
        self._topic_of = functools.lru_cache(MOST_PRODUCERS)(functools.partial(topic_of, broker=broker))
        self._link: PulsarLink | None = None
        self._producers: dict[tuple[str, str], pulsar.Producer] = {}
        self._kept: set[str] = set()
        self._confirmed: set[tuple[str, int]] = set()
        """Source and number of messages of a failed batch that the broker has stored; the engine sends them again."""
        self._max_tries = sender.max_tries
        self._too_large: dict[tuple[str, int], int] = {}
        """Source and number of messages that were refused for their size, and the number of their tries.

        If the broker deduplicates, such a message stays refused until its sender gives it up: the broker has stored
        higher numbers, and would drop the message as a repeat if it accepted larger messages by then.
        """

    def connect(self) -> None:
        """Connect, and open a producer for the sender's own topic, so that problems show before the first message."""
        self.close()
        self._link = link = PulsarLink(self._where, self._broker)
        try:
            link.open()
            if self._route.topic is not None and self._own_destination is not None:
                self._look_at(link, self._route.topic, is_for_queue=is_queue(self._own_destination))
        except BaseException:
            self.close()
            raise

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send the batch and wait for the last confirm. Raises `ConnectionLost`."""
        link = self._link
        if link is None:
            raise not_connected(self._where)
        try:
            return self._send(link, batch)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the client. Unconfirmed messages may still have arrived."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._producers = {}
        self._kept = set()

    def _send(self, link: PulsarLink, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        flight = BatchInFlight()
        try:
            results = self._send_all(link, batch, flight)
        except BaseException:
            self._confirmed = {_id(one) for at, one in enumerate(batch) if at in flight.confirmed or self._has(one)}
            raise
        finally:
            if self._broker.deduplication:
                self._too_large.update((_id(batch[index]), 0) for index in flight.too_large)
        if self._too_large:
            self._count_tries(batch, results)
        return results

    def _count_tries(self, batch: Sequence[Outgoing], results: Sequence[SendRejected | None]) -> None:
        for outgoing, result in zip(batch, results, strict=True):
            tries = self._too_large.get(_id(outgoing))
            if result is None or tries is None:
                continue
            if tries + 1 < self._max_tries:
                self._too_large[_id(outgoing)] = tries + 1
            else:
                del self._too_large[_id(outgoing)]

    def _send_all(
        self, link: PulsarLink, batch: Sequence[Outgoing], flight: BatchInFlight
    ) -> Sequence[SendRejected | None]:
        results: list[SendRejected | None] = [None] * len(batch)
        refusals: dict[str, str] = {}  # a topic refuses either all messages of the batch or none
        now_ms = time.time_ns() // 1_000_000
        topic = ""
        for index, outgoing in enumerate(batch):
            if self._has(outgoing):
                continue
            if self._too_large and _id(outgoing) in self._too_large:
                results[index] = _too_large(_where(outgoing))
                continue
            publication = self._publication(outgoing, now_ms)
            if isinstance(publication, SendRejected):
                results[index] = publication
                continue
            topic = publication.topic
            producer = self._producer(link, flight, publication, refusals)
            if producer is None:
                results[index] = refused(_where(outgoing), refusals[topic], topic, self._broker)
                continue
            size = len(publication.encoded.content or b"")
            self._go_on(flight.begin(size, self._broker.timeout_s), flight, topic)
            _dispatch(producer, publication, functools.partial(flight.settle, index, size))
        self._go_on(flight.finish(self._broker.timeout_s), flight, topic)
        for index in flight.too_large:
            results[index] = _too_large(_where(batch[index]))
        return results

    def _has(self, outgoing: Outgoing) -> bool:
        """Return whether the broker has confirmed the message at an earlier try."""
        return bool(self._confirmed) and _id(outgoing) in self._confirmed

    def _go_on(self, going: bool, flight: BatchInFlight, topic: str) -> None:
        if going:
            return
        if flight.failure:
            raise lost(self._where, flight.failure, topic, self._broker)
        raise silent(self._where, self._broker)

    # --- producers ---

    def _look_at(self, link: PulsarLink, topic: str, *, is_for_queue: bool) -> None:
        """Open a producer for the topic. Raises `ConnectionLost`, except for refusals that are reported
        for each message.
        """
        try:
            self._open(link, topic, "", is_for_queue=is_for_queue)
        except pulsar.PulsarException as error:
            name = of_name(error)
            if name in WAITED_FOR or refused(self._where, name, topic, self._broker) is None:
                raise lost(self._where, name, topic, self._broker) from error

    def _producer(
        self, link: PulsarLink, flight: BatchInFlight, publication: _Publication, refusals: dict[str, str]
    ) -> pulsar.Producer | None:
        """Return the producer for a message; `None` if the topic refuses it, with the reason in `refusals`."""
        topic, name = publication.topic, publication.name
        if topic in refusals:
            return None
        known = self._producers.get((topic, name))
        if known is not None:
            return known
        if len(self._producers) >= MOST_PRODUCERS:
            self._go_on(flight.finish(self._broker.timeout_s), flight, topic)
            oldest = next(iter(self._producers))
            link.call(oldest[0], self._producers.pop(oldest).close)
        try:
            return self._open(link, topic, name, is_for_queue=publication.is_for_queue)
        except pulsar.PulsarException as error:
            refusals[topic] = of_name(error)
            if refused(self._where, refusals[topic], topic, self._broker) is None:
                raise lost(self._where, refusals[topic], topic, self._broker) from error
            return None

    def _open(self, link: PulsarLink, topic: str, name: str, *, is_for_queue: bool) -> pulsar.Producer:
        """Open a producer. For a queue, make its subscription first: without one the broker may drop messages."""
        if is_for_queue and topic not in self._kept:
            link.keep(self._route.subscription_of_queue(topic))
            self._kept.add(topic)
        self._producers[topic, name] = producer = link.producer(topic, name)
        return producer

    # --- messages ---

    def _publication(self, outgoing: Outgoing, now_ms: int) -> _Publication | SendRejected:
        topic = self._topic_of(outgoing.destination)
        if topic is None:
            what = f"{quoted(outgoing.destination)} is not a topic"
            return SendRejected("E8104", _where(outgoing), what, "Use queue:NAME or topic:NAME")
        name = outgoing.source if self._broker.deduplication else ""
        if name and outgoing.sequence not in _NUMBERS:
            return SendRejected("E8105", _where(outgoing), "cannot be the number of a message", "From 1 on")
        message_id = outgoing.message_id or f"ID:{outgoing.sequence}:{outgoing.source or self._life}"
        try:
            name.encode()
            delay = self._delay(outgoing)
            encoded = encode(
                outgoing,
                message_id,
                self._connection_id,
                now_ms,
                delay_ms=0 if delay is None else round(delay.total_seconds() * 1000),
                text=self._route.text,
                durable=self._durable,
                namespace=self._broker.namespace,
            )
        except (ValueError, TypeError, AttributeError) as error:  # application code may put any value into a message
            return SendRejected("E8110", _where(outgoing), f"Pulsar cannot carry the message: {error}")
        return _Publication(topic, name, outgoing.sequence, encoded, is_queue(outgoing.destination), delay)

    def _delay(self, outgoing: Outgoing) -> timedelta | None:
        """Return the delay of the message, or else that of the sender. Raises `ValueError` if it is out of range."""
        headers = outgoing.message.headers
        if headers is None or headers.delivery_delay_ms is None:
            return self._route.delivery_delay
        if not 0 <= headers.delivery_delay_ms <= _LONGEST_DELAY_MS:
            raise ValueError(f"a delay of {headers.delivery_delay_ms} ms is not between 0 and {_LONGEST_DELAY_MS}")
        return timedelta(milliseconds=headers.delivery_delay_ms) if headers.delivery_delay_ms else None


def _id(outgoing: Outgoing) -> tuple[str, int]:
    return outgoing.source, outgoing.sequence


def _where(outgoing: Outgoing) -> str:
    return f"message {outgoing.sequence}:{outgoing.source}"


def _too_large(where: str) -> SendRejected:
    return SendRejected("E8106", where, "with its properties the message is larger than the broker's maxMessageSize")


def _dispatch(producer: pulsar.Producer, publication: _Publication, settle: Callable[..., None]) -> None:
    encoded = publication.encoded
    producer.send_async(
        encoded.content,
        settle,
        properties=encoded.properties,
        partition_key=encoded.key,
        sequence_id=publication.number if publication.name else None,
        event_timestamp=encoded.event_timestamp,
        deliver_after=publication.delivery_delay,
    )
