"""The entry point of the connector `rabbitmq`: checks options; makes sources and sinks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connectors.rabbitmq.broker import broker
from connectors.rabbitmq.browsing import copies
from connectors.rabbitmq.destinations import (
    check_subscription,
    destination_of_receiver,
    destination_of_sender,
    destination_of_subscriber,
    subscription_queue,
)
from connectors.rabbitmq.examination import examine
from connectors.rabbitmq.removal import delete_queue, make_temporary
from connectors.rabbitmq.sink import RabbitSink
from connectors.rabbitmq.source import RabbitSource
from connectors.rabbitmq_server import public_secrets
from correlator.connector import NO_SUCH_DESTINATION, Features, Subscriber, is_temporary
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, UsageError, quoted
from correlator.events import Message
from correlator.options import check_destination, flag_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

MISSED_HEARTBEATS = 3
"""Heartbeat intervals after which a server has certainly dropped a silent client: it checks once in each interval, and
drops the client after two intervals without a frame.
"""
SPARE_S = 5
"""Seconds until the unacknowledged messages of a lost consumer are back in the queue."""

MOST_QUEUES = 1000
"""Queues of which a connection knows who reads them. A program may use any number of temporary ones."""


class RabbitConnection:
    """A RabbitMQ server. docs/rabbitmq.md lists its options and those of receivers and senders.

    Each source and each sink has a link of its own: a server that blocks publishers reads nothing from their AMQP
    connections, so acknowledgements on the same connection would not arrive.
    """

    public_secrets = staticmethod(public_secrets)
    routing_options: Collection[str] = ("exchange", "routing_key")

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = f"connections.{name}"
        self._broker = broker(self._where, settings.options)
        self.features = Features(
            holds_for_s=self._broker.consumer_timeout_s,
            notices_loss_within_s=MISSED_HEARTBEATS * self._broker.heartbeat_s + SPARE_S,
        )
        self._destinations: dict[str, str] = {}
        """The destination of the receivers of each queue, for the newest queues."""

    def source(self, receiver: ReceiverSettings) -> RabbitSource:
        """Make a consumer of the queue, or of the receiver's own queue of the topic. Raises `ConfigError`: among others
        E1224 if a receiver of another destination has the same queue.
        """
        where = f"receivers.{receiver.id}"
        destination = destination_of_receiver(receiver, self._broker)
        other = self._destinations.setdefault(destination.queue, receiver.destination)
        if other != receiver.destination:
            what = f"its queue {quoted(destination.queue)} is also the queue of a receiver of {quoted(other)}"
            allowed = "Each topic needs queues of its own. The default name of a queue is TOPIC:SUBSCRIPTION"
            todo = "Name another queue in the option queue of one of them"
            raise ConfigError("E1224", f"{where}.destination", what, allowed, todo)
        if len(self._destinations) > MOST_QUEUES:
            del self._destinations[next(iter(self._destinations))]
        return RabbitSource(where, self._broker, destination, receiver)

    def group(self, receiver: ReceiverSettings) -> str:
        """The queue of a receiver; see `correlator.connector.Grouping`."""
        return destination_of_receiver(receiver, self._broker).queue

    def is_same_place(
        self, before: ReceiverSettings | SenderSettings, after: ReceiverSettings | SenderSettings
    ) -> bool:
        """Whether messages take the same way; see `correlator.connector.Placing`."""
        return self._way(before) == self._way(after)

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> RabbitSource:
        """A consumer of the queue of a subscription; see `correlator.connector.Subscribing`."""
        destination = destination_of_subscriber(receiver, subscriber, self._broker)
        return RabbitSource(f"receivers.{receiver.id}", self._broker, destination, receiver)

    def sink(self, sender: SenderSettings) -> RabbitSink:
        """Make a publisher, with a link of its own, for the destination of the sender or those of its messages; does
        not connect.

        Raises `ConfigError` if the destination or an option of the sender is wrong.
        """
        where = f"senders.{sender.id}"
        if sender.destination is not None and is_temporary(sender.destination):
            # It is never declared: if it has ended, its messages are refused.
            sender = replace(sender, destination=None)
        destination = destination_of_sender(sender, self._broker)
        is_topic = sender.destination is not None and sender.destination.startswith("topic:")
        return RabbitSink(
            where,
            self._broker,
            destination,
            sender,
            text=flag_option(where, sender.options, "text"),
            mandatory=flag_option(where, sender.options, "mandatory", default=not is_topic),
        )

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the oldest messages that no consumer holds.

        Consumes the messages and gives them back, since the protocol has no other way: meanwhile other consumers do not
        see them, and afterwards they are marked as redelivered. They keep their order if there is no other consumer.
        Raises `UsageError` E2110 if the destination is not a queue, E2027 if there is no such queue; `ConnectionLost`
        if the server cannot be reached.
        """
        parsed = check_destination(self._where, destination)
        if parsed.kind != "queue":
            raise UsageError("E2110", destination, "only queues can be browsed")
        try:
            return copies(self._where, self._broker, parsed.name, limit)
        except ConnectionLost as error:
            if error.code != NO_SUCH_DESTINATION:
                raise
            raise UsageError("E2027", quoted(destination), "the broker has no such queue") from error

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete the queue of a subscription; see `correlator.connector.Unsubscribable`.

        Raises `ConfigError` E1022 for a name with a colon.
        """
        check_subscription(f"unsubscribe {topic}", subscription)
        queue = subscription_queue(check_destination(self._where, topic).name, subscription)
        if not delete_queue(self._where, self._broker, queue, topic):
            raise UsageError("E7512", topic, f"it has no subscription {quoted(subscription)}")

    def make_temporary(self, destination: str) -> None:
        """Make a temporary destination; see `correlator.connector.MakesTemporaries`. A topic needs nothing."""
        parsed = check_destination(self._where, destination)
        if parsed.kind == "queue":
            make_temporary(self._where, self._broker, parsed.name)

    def delete(self, destination: str) -> None:
        """Delete a queue; see `correlator.connector.Deletable`. Nothing is left of a topic without subscriptions."""
        parsed = check_destination(self._where, destination)
        if parsed.kind == "queue":
            delete_queue(self._where, self._broker, parsed.name, destination)

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return findings about queues at the server that delete messages or take them back; see docs/rabbitmq.md.

        Changes nothing.
        """
        return list(examine(self._where, self._broker, receivers, senders))

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""

    def _way(self, part: ReceiverSettings | SenderSettings) -> tuple[str, ...]:
        """The queue of a receiver; the exchange and the routing key of a sender, if it has a destination."""
        if isinstance(part, ReceiverSettings):
            return (destination_of_receiver(part, self._broker).queue,)
        found = destination_of_sender(part, self._broker)
        return () if found is None else (found.exchange, found.routing_key)
