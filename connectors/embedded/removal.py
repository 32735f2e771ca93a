"""Deletes subscriptions and destinations without consumers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from connectors.embedded import ledger
from connectors.embedded.link import DatabaseLink, open_link, translated
from correlator.errors import UsageError, quoted


def delete_subscription(where: str, store: str, topic: str, name: str) -> None:
    """Delete a subscription; see `correlator.connector.Unsubscribable`."""
    with _transaction(where, store) as (link, connection):
        subscription = ledger.subscriptions_of(connection, topic).get(name)
        if subscription is None:
            raise UsageError("E7512", topic, f"it has no subscription {quoted(name)}")
        _strike_off(link, connection, topic, [subscription])
        ledger.delete_subscription(connection, subscription)


def delete_destination(where: str, store: str, destination: str) -> None:
    """Delete a destination; see `correlator.connector.Deletable`."""
    with _transaction(where, store) as (link, connection):
        subscriptions = ledger.subscriptions_of(connection, destination).values()
        _strike_off(link, connection, destination, list(subscriptions))
        for subscription in subscriptions:
            ledger.delete_subscription(connection, subscription)
        ledger.delete_destination(connection, destination)


@contextmanager
def _transaction(where: str, store: str) -> Iterator[tuple[DatabaseLink, Connection]]:
    with translated(where):
        link = open_link(store)
        try:
            with link.transaction() as connection:
                yield link, connection
        finally:
            link.close()


def _strike_off(link: DatabaseLink, connection: Connection, destination: str, subscriptions: Sequence[int]) -> None:
    """Remove consumers whose process is gone. Raises `UsageError` E7513 if there are other consumers."""
    for subscription in subscriptions:
        for consumer in ledger.other_consumers(connection, subscription, 0):
            if not link.is_dead(consumer):
                raise UsageError("E7513", destination, "somebody consumes from it", "", "Close the consumer first")
            ledger.retire(connection, subscription, consumer)
