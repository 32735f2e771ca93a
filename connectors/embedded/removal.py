"""Deletes subscriptions and destinations that nobody uses."""

from sqlalchemy import Connection

from connectors.embedded import administration, consumers, destinations, producers
from connectors.embedded.access import Access
from connectors.embedded.consumers import Lives
from connectors.embedded.destinations import Destination
from correlator.errors import UsageError, quoted


def delete_subscription(where: str, access: Access, topic: str, name: str, client_id: str = "") -> None:
    """Delete a subscription; see `correlator.connector.Unsubscribable`."""
    link = access.connect(where)
    try:
        with access.transaction(where, link) as connection:
            destinations.lock_registry(connection)
            there = destinations.find(connection, topic)
            found = [
                one.id
                for one in (there.subscriptions if there else ())
                if (one.client_id, one.name) == (client_id, name)
            ]
            if not found:
                raise UsageError("E7512", topic, f"it has no subscription {quoted(name)}")
            refuse_users(connection, topic, found[0], link)
            destinations.delete_subscription(connection, found[0])
    finally:
        access.leave()


def delete_destination(where: str, access: Access, name: str) -> None:
    """Delete a destination; see `correlator.connector.Deletable`."""
    link = access.connect(where)
    try:
        with access.transaction(where, link) as connection:
            destinations.lock_registry(connection)
            there = destinations.find(connection, name)
            if destinations.is_reserved(name):
                raise administration.reserved(name)
            if there is not None:
                producers.refuse_any(connection, there, link)
                delete_unused(connection, there, name, link)
    finally:
        access.leave()


def delete_unused(connection: Connection, there: Destination, name: str, lives: Lives) -> None:
    """Delete a destination, which may have producers: their later messages are refused.

    Called under the lock of the registry. Raises `UsageError` E7513 if somebody consumes from it, or a prepared
    transaction has acknowledged messages of it.
    """
    destinations.lock_against_sends(connection, name)
    for subscription in there.subscriptions:
        refuse_users(connection, name, subscription.id, lives)
        destinations.delete_subscription(connection, subscription.id)
    destinations.delete(connection, there.id)


def refuse_users(connection: Connection, name: str, subscription: int, lives: Lives) -> None:
    """Remove consumers whose process is gone. Raises `UsageError` E7513 if there are others."""
    if consumers.living(connection, subscription, lives):
        raise UsageError("E7513", name, "somebody consumes from it", "", "Close the consumer first")
    if destinations.has_prepared(connection, subscription):
        what = "a prepared transaction has acknowledged messages of it"
        raise UsageError("E7513", name, what, "", "End that transaction first")
