"""The entry point of the connector `kafka`: checks options; makes sources and sinks."""

from collections.abc import Sequence
from dataclasses import replace

from connectors.kafka.broker import broker
from connectors.kafka.destinations import start_of, topic_of_sender, topics_of_receiver
from connectors.kafka.examination import examine
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from correlator.connector import Features, Order
from correlator.errors import CorrelatorError
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class KafkaConnection:
    """A Kafka cluster. docs/kafka.md lists the options. It has topics only, no queues.

    Each source and each sink has clients of its own.
    """

    features = Features(order=Order.ANY, deduplicates_sends=True, shares=False)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = f"connections.{name}"
        self._broker = broker(self._where, settings.options)
        self.features = replace(
            self.features, holds_for_s=self._broker.holds_s, notices_loss_within_s=self._broker.session_s
        )

    def source(self, receiver: ReceiverSettings) -> KafkaSource:
        """Make a consumer in the group that has the name of the receiver's subscription. Raises `ConfigError`."""
        return KafkaSource(self._broker, topics_of_receiver(receiver), start_of(receiver), receiver)

    def sink(self, sender: SenderSettings) -> KafkaSink:
        """Make a producer for the topic of the sender, or for the topics of its messages. Raises `ConfigError`."""
        return KafkaSink(self._broker, topic_of_sender(sender), sender)

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return findings about topics and about settings of the brokers; see docs/kafka.md. Changes nothing."""
        return list(examine(self._where, self._broker, receivers, senders))

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""
