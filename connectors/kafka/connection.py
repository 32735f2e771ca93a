"""The entry point of the connector `kafka`: checks options; makes sources and sinks."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from connectors.kafka.broker import broker
from connectors.kafka.cluster import Cluster
from connectors.kafka.destinations import start_of, topic_of_receiver, topic_of_sender
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from correlator.connector import Features, Order
from correlator.errors import ConnectionLost, CorrelatorError
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class KafkaConnection:
    """A Kafka cluster. docs/kafka.md lists the options. It has topics only, no queues.

    Each source and each sink has clients of its own.
    """

    features = Features(order=Order.ANY, deduplicates_sends=True, shares=False)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._broker = broker(f"connections.{name}", settings.options)
        self.features = replace(
            self.features, holds_for_s=self._broker.holds_s, notices_loss_within_s=self._broker.session_s
        )

    def source(self, receiver: ReceiverSettings) -> KafkaSource:
        """A consumer in the group that has the name of the receiver's subscription."""
        return KafkaSource(self._broker, topic_of_receiver(receiver), start_of(receiver), receiver)

    def sink(self, sender: SenderSettings) -> KafkaSink:
        """A producer for the topic of the sender, or for the topics of its messages."""
        return KafkaSink(self._broker, topic_of_sender(sender), sender)

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Iterator[CorrelatorError]:
        """For `correlator doctor`: which topics are missing or may not be used. Changes nothing."""
        topics = [(f"receivers.{one.id}", topic_of_receiver(one)) for one in receivers]
        topics += [(f"senders.{one.id}", topic) for one in senders if (topic := topic_of_sender(one)) is not None]
        for where, topic in topics:
            try:
                with closing(Cluster(where, self._broker)) as cluster:
                    cluster.topic(topic)
            except ConnectionLost as error:
                yield error

    def close(self) -> None:
        """Do nothing: sources and sinks share nothing."""
