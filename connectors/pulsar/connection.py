"""The entry point of the connector `pulsar`: checks options; makes sources and sinks."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from connectors.pulsar import clients
from connectors.pulsar.advice import REDELIVERY_OPTIONS, advice
from connectors.pulsar.broker import broker
from connectors.pulsar.browsing import copies
from connectors.pulsar.destinations import (
    is_queue,
    own_subscription,
    queue_subscription,
    route_of_sender,
    subscription_of_receiver,
    subscription_of_subscriber,
    topic_of,
)
from connectors.pulsar.examination import examine
from connectors.pulsar.removal import delete_subscription, delete_topic
from connectors.pulsar.sink import PulsarSink
from connectors.pulsar.source import PulsarSource
from correlator.connector import Features, Order, Subscriber
from correlator.errors import CorrelatorError, UsageError
from correlator.events import Message
from correlator.selector import Selector
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

ACKNOWLEDGEMENTS_WRITTEN_WITHIN_S = 2.0
"""The client sends an acknowledgement after a tenth of a second. The broker writes acknowledgements once a second (its
setting `managedLedgerDefaultMarkDeleteRateLimit`), and writes one that it has skipped only together with a later one.
"""

NOTICES_LOSS_WITHIN_S = 65.0
"""After 30 seconds a broker sends a keep-alive to a silent client (its setting `keepAliveIntervalSeconds`). After 30
more seconds it drops the client, and delivers its unacknowledged messages to others.
"""


class PulsarConnection:
    """A Pulsar broker or cluster. docs/pulsar.md lists its options.

    Each source and each sink has a client of its own. Two open connections of a process to the same service cannot have
    the same `client_id`, unless they have the same settings object, as the sessions of one connection do. Other
    processes are not checked.

    Raises `ConfigError` for a wrong option, E1226 for a `client_id` that is in use.
    """

    features = Features(
        delays=True,
        selects=True,
        acknowledgements_written_within_s=ACKNOWLEDGEMENTS_WRITTEN_WITHIN_S,
        notices_loss_within_s=NOTICES_LOSS_WITHIN_S,
    )
    redelivery_options = REDELIVERY_OPTIONS
    advice = staticmethod(advice)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = f"connections.{name}"
        self._broker = broker(self._where, settings.options)
        self._id = uuid.uuid4().hex
        self.features = replace(
            self.features, deduplicates_sends=self._broker.deduplication, holds_for_s=self._broker.ack_timeout_s
        )
        clients.claim(self, name, settings, self._broker)

    def source(self, receiver: ReceiverSettings) -> PulsarSource:
        """Make a consumer of the topic. Raises `ConfigError`.

        The source applies the selector if other consumers may want the other messages; otherwise the engine does.
        """
        where = f"receivers.{receiver.id}"
        subscription = subscription_of_receiver(receiver, self._broker)
        selects = subscription.is_shared or is_queue(receiver.destination)
        selector = Selector.optional(receiver.selector, f"{where}.selector") if selects else None
        return PulsarSource(where, self._broker, subscription, receiver, selector)

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> PulsarSource:
        """A consumer of a topic; see `correlator.connector.Subscribing`. The session applies the selector.

        A subscription that is not durable stays at the broker if the process is killed, or if the broker cannot be
        reached when its last consumer is closed.
        """
        subscription = subscription_of_subscriber(receiver, subscriber, self._broker)
        return PulsarSource(f"receivers.{receiver.id}", self._broker, subscription, receiver, None)

    def order(self, receiver: ReceiverSettings, subscriber: Subscriber | None = None) -> Order:
        """POSITION for one topic with one consumer at a time and without priorities, otherwise ANY."""
        if subscriber is None:
            subscription = subscription_of_receiver(receiver, self._broker)
        else:
            subscription = subscription_of_subscriber(receiver, subscriber, self._broker)
        mixed = subscription.is_shared or subscription.topics or subscription.pattern or self._broker.priority_mapping
        return Order.ANY if mixed else Order.POSITION

    def group(self, receiver: ReceiverSettings) -> str:
        """The subscription of a receiver; see `correlator.connector.Grouping`."""
        return subscription_of_receiver(receiver, self._broker).name

    def sink(self, sender: SenderSettings) -> PulsarSink:
        """Make a sink, with a client of its own, for the topic of the sender or those of its messages; does not
        connect.

        Raises `ConfigError` if the destination or an option of the sender is wrong.
        """
        route = route_of_sender(sender, self._broker)
        return PulsarSink(f"senders.{sender.id}", self._broker, route, sender, self._id)

    def browse(self, destination: str, limit: int, options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the oldest messages that the queue's subscription has not acknowledged, including held ones.

        The option `queue_subscription` names the subscription. Nothing is taken or marked. Only the REST interface
        shows which messages are acknowledged. Raises `UsageError` E2014 without `web_service_url`, E2110 if the
        destination is not a queue, E2027 if there is no such queue; `ConnectionLost` if the broker cannot be reached.
        """
        topic = topic_of(destination, self._broker) if is_queue(destination) else None
        if topic is None:
            raise UsageError("E2110", destination, "only queues can be browsed")
        self._check_rest("E2014", "cannot show messages")
        subscription = queue_subscription(self._where, options)
        return copies(self._where, self._broker, topic, subscription, limit)

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription; see `correlator.connector.Unsubscribable`. Raises `UsageError` E7511 as `delete`."""
        self._check_rest("E7511", "cannot delete subscriptions")
        name = own_subscription(subscription, self._broker)
        delete_subscription(self._where, self._broker, topic, self._topic(topic), name)

    def delete(self, destination: str) -> None:
        """Delete a topic; see `correlator.connector.Deletable`. Raises `UsageError` E7511 without `web_service_url`."""
        self._check_rest("E7511", "cannot delete topics")
        delete_topic(self._where, self._broker, destination, self._topic(destination))

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Find for `correlator doctor` what would stop receivers and senders, lose messages, or store them twice."""
        return list(examine(self._where, self._broker, receivers, senders))

    def close(self) -> None:
        """Free the `client_id`, so that another connection of this process can use it. Never raises."""
        clients.release(self)

    def _check_rest(self, code: str, what: str) -> None:
        if not self._broker.web_service_url:
            raise UsageError(code, self._where, what, "", "Set web_service_url")

    def _topic(self, destination: str) -> str:
        topic = topic_of(destination, self._broker)
        if topic is None:
            raise UsageError("E7511", destination, "is not one topic")
        return topic
