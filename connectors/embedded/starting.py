"""The start of the broker, which a process does if it opens the broker while no other process has it open.

Everything that ends with the broker ends here: consumers, clients with their temporary destinations, subscriptions that
are not durable, and messages that are not persistent. Prepared transactions stay.
"""

from sqlalchemy import Connection

from connectors.embedded import clients, consumers, destinations
from connectors.embedded.consumers import Lives
from connectors.embedded.sql import Sql

_COUNT = Sql("UPDATE broker_store SET starts = starts + 1")
_TALLY = Sql(
    "INSERT INTO broker_tally (destination, messages, bytes)"
    " SELECT destination, -count(*), -sum(length(content)) FROM broker_content WHERE persistent = 0"
    " GROUP BY destination{counted}"
)
_DELIVERIES = Sql(
    "DELETE FROM broker_delivery WHERE number IN (SELECT number FROM broker_content WHERE persistent = 0)"
)
_CONTENT = Sql("DELETE FROM broker_content WHERE persistent = 0")


def start(connection: Connection, lives: Lives) -> None:
    """Start the broker, in one transaction."""
    destinations.lock_registry(connection)
    _COUNT.run(connection)
    reap(connection, lives)
    for statement in (_TALLY, _DELIVERIES, _CONTENT):
        statement.run(connection)


def finds_dead(connection: Connection, lives: Lives) -> bool:
    """Return whether `reap` would find something."""
    return consumers.finds_dead(connection, lives) or clients.finds_dead(connection, lives)


def reap(connection: Connection, lives: Lives) -> None:
    """Remove the consumers and clients of dead processes. Called under the lock of the registry."""
    consumers.reap(connection, lives)
    clients.reap(connection, lives)
