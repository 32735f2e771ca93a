"""Deletes unused subscriptions and topics."""

from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker
from correlator.errors import UsageError, quoted


def delete_subscription(where: str, broker: PulsarBroker, destination: str, topic: str, name: str) -> None:
    """Delete a subscription; `name`: its name at the broker. See `correlator.connector.Unsubscribable`."""
    try:
        rest.ask(where, broker, "DELETE", topic, "subscription", name)
    except rest.NotThere as error:
        raise UsageError("E7512", destination, f"it has no subscription {quoted(name)}") from error
    except rest.InUse as error:
        raise _in_use(destination) from error


def delete_topic(where: str, broker: PulsarBroker, destination: str, topic: str) -> None:
    """Delete a topic with all its partitions; see `correlator.connector.Deletable`."""
    try:
        has_partitions = rest.ask(where, broker, "GET", topic, "partitions")["partitions"] > 0
        rest.ask(where, broker, "DELETE", topic, *(["partitions"] if has_partitions else []))
    except rest.NotThere:
        return
    except rest.InUse as error:
        raise _in_use(destination) from error


def _in_use(destination: str) -> UsageError:
    return UsageError("E7513", destination, "somebody consumes from it", "", "Close the consumer first")
