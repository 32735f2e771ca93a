"""A connector to Apache Pulsar, in the message format of Starlight for JMS."""

from connectors.pulsar.connection import PulsarConnection

__all__ = ["PulsarConnection"]
