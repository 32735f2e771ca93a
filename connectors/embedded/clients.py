"""Clients: connections of programs, with their client ids and temporary destinations."""

import os
import socket
import uuid
from collections.abc import Sequence

from sqlalchemy import Connection

from connectors.embedded import consumers, destinations
from connectors.embedded.consumers import Lives
from connectors.embedded.destinations import Destination
from connectors.embedded.sql import Sql
from correlator.errors import ConnectionLost, UsageError, quoted

_HOLDER = Sql("SELECT id, pid, host FROM broker_client WHERE client_id = :client_id")
_REGISTER = Sql("INSERT INTO broker_client (client_id, pid, host) VALUES (:client_id, :pid, :host) RETURNING id")
_ALL = Sql("SELECT id FROM broker_client ORDER BY id")
_THERE = Sql("SELECT 1 FROM broker_client WHERE id = :client")
_REMOVE_PRODUCERS = Sql("DELETE FROM broker_producer WHERE client = :client")
_REMOVE = Sql("DELETE FROM broker_client WHERE id = :client")
_TEMPORARY = Sql("SELECT id, name FROM broker_destination WHERE client = :client ORDER BY id")


def name_of(client: int) -> str:
    """Return the name of the lock that shows that a client lives."""
    return f"client-{client}"


def register(connection: Connection, client_id: str | None, lives: Lives) -> int:
    """Register a client; return its id. Called under the lock of the registry.

    Raises `UsageError` E7515 if another living client has the client id.
    """
    if client_id is not None:
        for client, pid, host in _HOLDER.rows(connection, client_id=client_id):
            if not lives.is_dead(name_of(client)):
                raise UsageError(
                    "E7515",
                    quoted(client_id),
                    f"pid {pid} on host {host} is connected with this client id",
                    "A client id is used by one connection at a time",
                    "Close the other connection, or use another client id",
                )
            remove(connection, client)
    return int(_REGISTER.one(connection, client_id=client_id, pid=os.getpid(), host=socket.gethostname()))


def is_there(connection: Connection, client: int) -> bool:
    """Return whether a client is registered."""
    return bool(_THERE.rows(connection, client=client))


def join(connection: Connection, client: int, where: str, lives: Lives) -> None:
    """Keep a client alive as long as this link is open. Raises `ConnectionLost` E7003 if it is not registered."""
    destinations.lock_registry(connection)  # a process that removes dead clients holds it
    lives.live(name_of(client), together=True)
    if not is_there(connection, client):
        raise ConnectionLost("E7003", where, "the server has ended the session in which its client id was registered")


def has_ended(connection: Connection, name: str, lives: Lives) -> bool:
    """Return whether this is a temporary destination that is gone or an orphan."""
    if not destinations.is_temporary(name):
        return False
    there = destinations.find(connection, name)
    return there is None or is_orphan(there, lives)


def is_orphan(there: Destination, lives: Lives) -> bool:
    """Return whether the client of a temporary destination has ended, even if nobody has noticed yet."""
    return destinations.is_temporary(there.name) and (there.client is None or lives.is_dead(name_of(there.client)))


def make_temporary(connection: Connection, client: int, kind: str) -> str:
    """Make a temporary destination of a client; return its name. Called under the lock of the registry."""
    name = f"{kind}:{destinations.TEMPORARY}{uuid.uuid4().hex}"
    destinations.make(connection, name, {"use_dmq": 0}, client=client)
    return name


def remove(connection: Connection, client: int) -> Sequence[str]:
    """Remove a client with its producers, its temporary destinations, and the consumers of these destinations.

    Called under the lock of the registry. Returns the names of the destinations.
    """
    names = []
    for destination, name in _TEMPORARY.rows(connection, client=client):
        destinations.lock_against_sends(connection, name)
        for subscription in destinations.subscriptions(connection, destination):
            for consumer in consumers.of_subscription(connection, subscription.id):
                consumers.close(connection, subscription.id, consumer.id)
            destinations.delete_subscription(connection, subscription.id)
        destinations.delete(connection, destination)
        names.append(name)
    _REMOVE_PRODUCERS.run(connection, client=client)
    _REMOVE.run(connection, client=client)
    return names


def finds_dead(connection: Connection, lives: Lives) -> bool:
    """Return whether `reap` would find something."""
    return lives.is_any_dead([name_of(client) for (client,) in _ALL.rows(connection)])


def reap(connection: Connection, lives: Lives) -> None:
    """Remove the clients whose process is gone. Called under the lock of the registry."""
    for (client,) in _ALL.rows(connection):
        if lives.is_dead(name_of(client)):
            remove(connection, client)
