"""Deletes subscriptions and topics that nobody uses."""

from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker
from correlator.errors import UsageError, quoted


def delete_subscription(where: str, broker: PulsarBroker, destination: str, topic: str, name: str) -> None:
    """See `connector.Unsubscribable`; `name` is the one that the broker knows."""
    try:
        rest.ask(where, broker, "DELETE", topic, "subscription", name)
    except rest.NotThere as error:
        raise UsageError("E7512", destination, f"it has no subscription {quoted(name)}") from error
    except rest.InUse as error:
        raise _in_use(destination) from error


def delete_topic(where: str, broker: PulsarBroker, destination: str, topic: str) -> None:
    """See `connector.Deletable`. A topic with partitions goes with all of them."""
    try:
        has_partitions = rest.ask(where, broker, "GET", topic, "partitions")["partitions"] > 0
        rest.ask(where, broker, "DELETE", topic, *(["partitions"] if has_partitions else []))
    except rest.NotThere:
        return
    except rest.InUse as error:
        raise _in_use(destination) from error


def _in_use(destination: str) -> UsageError:
    return UsageError("E7513", destination, "somebody consumes from it", "", "Close the consumer first")
