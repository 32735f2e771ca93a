"""The source of RabbitMQ: one consumer, with the receiver's `max_batch_size` as its prefetch count."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.content import decode
from connectors.rabbitmq.deliveries import Inbox, UnsettledTags
from connectors.rabbitmq.destinations import RabbitDestination
from connectors.rabbitmq.link import RabbitLink
from correlator.connector import IN_USE, NO_SUCH_DESTINATION, NOTHING, Chunk
from correlator.errors import ConnectionLost
from correlator.settings import ReceiverSettings

_MOST_PREFETCHED = 65_535
"""Largest prefetch count of the protocol."""


class RabbitSource:
    """Consumes from a queue.

    When the consumer, the channel or the connection has ended, the next call raises `ConnectionLost`. The source drops
    deliveries that it has not returned by then, since the server redelivers them.
    """

    def __init__(
        self, where: str, broker: RabbitBroker, destination: RabbitDestination, receiver: ReceiverSettings
    ) -> None:
        self._where = where
        self._broker = broker
        self._destination = destination
        self._prefetch = min(receiver.max_batch_size, _MOST_PREFETCHED)
        self._most_bytes = receiver.max_batch_bytes
        self._link: RabbitLink | None = None
        self._inbox = Inbox()
        self._unsettled = UnsettledTags()
        self._proof: Future[Any] | None = None
        self._was_there = False

    def connect(self) -> None:
        """Connect, declare what the options ask for, and consume. Raises `ConnectionLost`.

        If the queue existed at an earlier call and is gone, the source declares it again and raises `ConnectionLost`
        W7020, so that the loss of its messages is reported.
        """
        self.close()
        self._inbox, self._unsettled = Inbox(), UnsettledTags(self._unsettled.delivered)
        self._link = link = RabbitLink(self._where, self._broker, self._inbox.stir, self._inbox.put)
        try:
            link.open()
            self._declare(link)
            if self._destination.is_alone:
                self._refuse_others(link, own=0)
            link.consume(self._destination.queue, self._prefetch, exclusive=self._destination.is_alone)
            if self._destination.is_alone:
                self._refuse_others(link, own=1)
        except BaseException:
            self.close()
            raise

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take the next deliveries in order, as `connector.Source.receive`. Raises `ConnectionLost` if the link has
        ended.
        """
        self._connected()
        deliveries = self._inbox.take(max_messages, self._most_bytes, timeout_s)
        if not deliveries:
            return NOTHING
        tokens = self._unsettled.tokens(deliveries[0].tag, deliveries[-1].tag)
        return Chunk([decode(one.properties, one.body, redelivered=one.redelivered) for one in deliveries], tokens)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Acknowledge the messages; with one cumulative frame if they are the oldest ones.

        The server does not answer an acknowledgement. So the source sends a request after it, and the next call waits
        for the answer, which shows that the server has read the acknowledgement.
        """
        link = self._connected()
        if self._proof is not None:
            link.finish(self._proof)
        settlements = self._unsettled.settle(tokens)
        link.tell(lambda channel: [channel.basic_ack(tag, multiple) for tag, multiple in settlements])
        self._proof = link.begin(self._destination.queue_declaration(passive=True))

    def reject(self, tokens: Sequence[int]) -> None:
        """Give the messages back; a quorum queue redelivers them after prefetched messages, or after
        all other messages.
        """
        link = self._connected()
        settlements = self._unsettled.settle(tokens)
        link.tell(lambda channel: [channel.basic_nack(tag, multiple, requeue=True) for tag, multiple in settlements])

    def close(self) -> None:
        """Close the connection after the acknowledgements; the next consumer gets the unacknowledged messages."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._proof = None

    def _connected(self) -> RabbitLink:
        if self._link is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        self._link.check()
        return self._link

    def _declare(self, link: RabbitLink) -> None:
        lost = self._was_there and self._destination.declare and not self._is_there(link)
        self._destination.declare_on(link)
        self._was_there = not (lost and self._destination.exclusive)  # such a queue ends once more with this link
        if lost:
            what = f"queue '{self._destination.queue}' was gone and has been declared again; its messages are lost"
            raise ConnectionLost("W7020", self._where, what)

    def _refuse_others(self, link: RabbitLink, *, own: int) -> None:
        """Raise `ConnectionLost` if the queue has more than its `own` consumers: quorum queues ignore that a consumer
        is exclusive.

        Before the source consumes, since a quorum queue counts each message that it sends to a refused consumer as a
        delivery; and after, since of two consumers that begin at the same time each sees the other one only then.
        """
        there = link.ask(self._destination.queue_declaration(passive=True)).method.consumer_count
        if there > own:
            raise ConnectionLost(IN_USE, self._where, f"queue '{self._destination.queue}' has another consumer")

    def _is_there(self, link: RabbitLink) -> bool:
        try:
            link.ask(self._destination.queue_declaration(passive=True))
        except ConnectionLost as error:
            if error.code != NO_SUCH_DESTINATION:
                raise
            link.open_channel()
            return False
        return True
