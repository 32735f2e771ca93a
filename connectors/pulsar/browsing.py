"""Copies of the messages of a queue, read from its first unacknowledged entry on, without using its subscription."""

import heapq
import itertools
from collections.abc import Iterator, Sequence

import pulsar

from connectors.pulsar.backlog import Backlog, backlog_of
from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.link import PulsarLink
from connectors.pulsar.received import decoded, position_of
from correlator.errors import UsageError, quoted
from correlator.events import Message


def copies(where: str, broker: PulsarBroker, topic: str, subscription: str, limit: int) -> Sequence[Message]:
    """Return the oldest messages, including held ones; messages of partitions are merged by the time of sending.

    Raises `ConnectionLost`, `UsageError` E2027 if the topic does not exist.
    """
    link = PulsarLink(where, broker)
    try:
        link.open()
        parts = [_Partition(where, broker, link, part).messages(subscription, limit) for part in link.partitions(topic)]
        in_order = heapq.merge(*parts, key=lambda message: message.publish_timestamp())
        oldest = itertools.islice(in_order, limit)
        return [decoded(message, position_of(message.message_id()), broker.namespace) for message in oldest]
    finally:
        link.close()


class _Partition:
    """A partition, or a topic without partitions."""

    def __init__(self, where: str, broker: PulsarBroker, link: PulsarLink, topic: str) -> None:
        self._where = where
        self._broker = broker
        self._link = link
        self._topic = topic

    def messages(self, subscription: str, limit: int) -> Iterator[pulsar.Message]:
        """Yield the unacknowledged messages, at most `limit`. Asks the broker when the first one is needed."""
        backlog = backlog_of(self._where, self._broker, self._topic, subscription)
        if backlog is None:
            raise UsageError("E2027", quoted(self._topic), "the broker has no such topic")
        reader = self._link.reader(self._topic, *backlog.behind)
        while limit > 0 and (message := self._next(reader, backlog)) is not None:
            limit -= 1
            yield message

    def _next(self, reader: pulsar.Reader, backlog: Backlog) -> pulsar.Message | None:
        while self._link.call(self._topic, reader.has_message_available):
            message = self._link.call(self._topic, lambda: reader.read_next(self._broker.timeout_s * 1000))
            at = position_of(message.message_id())
            if (at.ledger, at.entry) > backlog.last:
                return None
            if backlog.holds((at.ledger, at.entry)):
                return message
        return None
