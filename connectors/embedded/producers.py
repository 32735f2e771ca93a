"""Producers of sessions: their registration, the limit of their number, and whether a destination has any.

A producer lives as long as its client. So it needs no lock of its own: it is removed when it is closed, or with its
client.
"""

from sqlalchemy import Connection

from connectors.embedded import clients, destinations
from connectors.embedded.consumers import Lives
from connectors.embedded.destinations import Destination
from connectors.embedded.sql import Sql
from correlator.errors import UsageError

_COUNT = Sql("SELECT count(*) FROM broker_producer WHERE destination = :destination")
_CLIENTS = Sql(
    "SELECT c.id, c.pid, c.host FROM broker_producer p JOIN broker_client c ON c.id = p.client"
    " WHERE p.destination = :destination ORDER BY p.id"
)
_REGISTER = Sql("INSERT INTO broker_producer (destination, client) VALUES (:destination, :client) RETURNING id")
_REMOVE = Sql("DELETE FROM broker_producer WHERE id = :producer")


def register(connection: Connection, name: str, client: int, lives: Lives, *, makes: bool) -> int:
    """Register a producer; make the destination if it is new and `makes` is true. Return the id of the producer.

    Return 0 for a destination that takes no messages, or does not exist; each send then reports this.

    Raises `UsageError` E7526 if the destination has as many producers as it may.
    """
    destinations.lock_registry(connection)
    there = destinations.find(connection, name)
    if destinations.is_reserved(name) or (there is None and (destinations.is_temporary(name) or not makes)):
        return 0
    there = there or destinations.make(connection, name)
    if 0 < there.max_num_producers <= _count(connection, there.id):
        clients.reap(connection, lives)
        if _count(connection, there.id) >= there.max_num_producers:
            what = f"it has {there.max_num_producers} producers already"
            raise UsageError("E7526", name, what, "max_num_producers limits them", "Close one, or raise the limit")
    return int(_REGISTER.one(connection, destination=there.id, client=client))


def remove(connection: Connection, producer: int) -> None:
    """Remove a producer that closes."""
    _REMOVE.run(connection, producer=producer)


def refuse_any(connection: Connection, there: Destination, lives: Lives) -> None:
    """Raise `UsageError` E7513 if the destination has producers whose process lives.

    Called under the lock of the registry.
    """
    for client, pid, host in _CLIENTS.rows(connection, destination=there.id):
        if not lives.is_dead(clients.name_of(client)):
            what = f"pid {pid} on host {host} has a producer of it"
            raise UsageError("E7513", there.name, what, "", "Close the producer first")


def _count(connection: Connection, destination: int) -> int:
    return int(_COUNT.one(connection, destination=destination))
