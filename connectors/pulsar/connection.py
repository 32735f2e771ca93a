"""The connector's entry point: checks the options, opens nothing."""

import uuid

from connectors.pulsar.broker import broker
from connectors.pulsar.places import place_of_receiver, way_of_sender
from connectors.pulsar.sink import PulsarSink
from connectors.pulsar.source import PulsarSource
from correlator.ports import Features
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class PulsarConnection:
    """A Pulsar broker or cluster.

    Each source and each sink has a client of its own.
    """

    features = Features()

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._broker = broker(f"connections.{name}", settings.options)
        self._id = uuid.uuid4().hex
        self.features = Features(deduplicates_sends=self._broker.deduplication)

    def source(self, receiver: ReceiverSettings) -> PulsarSource:
        """A consumer of the topic."""
        place = place_of_receiver(receiver, self._broker)
        return PulsarSource(f"receivers.{receiver.id}", self._broker, place, receiver)

    def sink(self, sender: SenderSettings) -> PulsarSink:
        """Producers."""
        way = way_of_sender(sender, self._broker)
        return PulsarSink(f"senders.{sender.id}", self._broker, way, sender, self._id)

    def close(self) -> None:
        """Nothing is shared."""
