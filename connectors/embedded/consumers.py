"""Consumers: their registration, and the one place where dead consumers are removed."""

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from connectors.embedded import destinations, settling
from connectors.embedded.sql import Sql

_REGISTER = Sql(
    "INSERT INTO broker_consumer (subscription, client, pid, host, boot, cancelled)"
    " VALUES (:subscription, :client, :pid, :host, :boot, 0) RETURNING id"
)
_OF_SUBSCRIPTION = Sql(
    "SELECT id, pid, host, boot, cancelled FROM broker_consumer WHERE subscription = :subscription ORDER BY id"
)
_ALL = Sql("SELECT subscription, id, pid, host, boot, cancelled FROM broker_consumer ORDER BY id")
_EARLIER = Sql(
    "SELECT count(*) FROM broker_consumer WHERE subscription = :subscription AND id < :consumer AND cancelled = 0"
)
_CANCEL = Sql("UPDATE broker_consumer SET cancelled = 1 WHERE id = :consumer")
_REMOVE = Sql("DELETE FROM broker_consumer WHERE id = :consumer")
_SUSPECT_ALL = Sql(
    "UPDATE broker_delivery SET state = 0, consumer = 0, deliveries = deliveries + 1 - suspect, suspect = 1"
    " WHERE subscription = :subscription AND state = 1 AND consumer = :consumer AND consumer > 0"
)
_SUSPECT_THROUGH = Sql(
    "UPDATE broker_subscription SET suspect_through = (SELECT last_number FROM broker_store) WHERE id = :subscription",
    "UPDATE broker_subscription SET suspect_through = (SELECT last_value FROM broker_number) WHERE id = :subscription",
)
_ENDS = Sql(
    "SELECT 1 FROM broker_subscription s WHERE s.id = :subscription AND s.durable = 0"
    " AND NOT EXISTS (SELECT 1 FROM broker_consumer c WHERE c.subscription = s.id)"
)
_ENDED = Sql(
    "SELECT s.id FROM broker_subscription s WHERE s.durable = 0"
    " AND NOT EXISTS (SELECT 1 FROM broker_consumer c WHERE c.subscription = s.id)"
)


class Lives(Protocol):
    """Knows which consumers and clients live; see `link.DatabaseLink`."""

    boot: str

    def live(self, name: str, *, together: bool = False) -> None:
        """Take the lock that shows that a consumer or client lives."""
        ...

    def is_dead(self, name: str) -> bool:
        """Return whether the process or session of a consumer or client is gone."""
        ...

    def is_any_dead(self, names: Sequence[str]) -> bool:
        """Return whether `is_dead` is true for one of these."""
        ...


class Consumer(NamedTuple):
    """A registered consumer, and its process.

    Attributes:
        cancelled: 1 if it takes no more messages, and is registered only for the messages that it still holds.
    """

    id: int
    pid: int
    host: str
    boot: str
    cancelled: int

    def __str__(self) -> str:
        return f"pid {self.pid} on host {self.host}" if self.pid else "another process"


def register(connection: Connection, subscription: int, client: int, boot: str) -> int:
    """Register a consumer; return its id. Ids ascend, and no id is used again."""
    here = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot}
    return int(_REGISTER.one(connection, subscription=subscription, client=client, **here))


def of_subscription(connection: Connection, subscription: int) -> Sequence[Consumer]:
    """Return the consumers of a subscription, in the order of their registration."""
    return [Consumer(*row) for row in _OF_SUBSCRIPTION.rows(connection, subscription=subscription)]


def living(connection: Connection, subscription: int, lives: Lives) -> Sequence[Consumer]:
    """Return the living consumers of a subscription, after removing the dead ones.

    Cancelled consumers are included: they still hold messages, but another consumer may take their place.
    """
    found = []
    for consumer in of_subscription(connection, subscription):
        if lives.is_dead(str(consumer.id)):
            strike_off(connection, subscription, consumer, lives.boot)
        else:
            found.append(consumer)
    return found


def is_active(connection: Connection, subscription: int, consumer: int, most: int) -> bool:
    """Return whether a consumer is among the first `most` consumers; if so, this stays true until its end.

    A dead consumer counts until it is removed, which makes its messages ready again. So a backup gets these messages
    before all others.
    """
    return bool(_EARLIER.one(connection, subscription=subscription, consumer=consumer) < most)


def cancel(connection: Connection, consumer: int) -> None:
    """Let another consumer take the place of this one, which keeps the messages that it holds."""
    _CANCEL.run(connection, consumer=consumer)


def strike_off(connection: Connection, subscription: int, consumer: Consumer, boot: str) -> None:
    """Remove a dead consumer: the messages that it held are ready again, in their place, as suspects.

    If the host or the server has restarted since the registration, claims may be lost: then every ready message may
    have been delivered before.
    """
    _SUSPECT_ALL.run(connection, subscription=subscription, consumer=consumer.id)
    _REMOVE.run(connection, consumer=consumer.id)
    if consumer.boot not in {"", boot}:  # "" was written by a version that waited for the disk at each claim
        _SUSPECT_THROUGH.run(connection, subscription=subscription)


def close(connection: Connection, subscription: int, consumer: int) -> None:
    """Remove a consumer that closes: the messages that it held are ready again, in their place.

    A subscription that is not durable ends with its last consumer.

    Called under the lock of the registry.
    """
    settling.reject_all(connection, subscription, consumer)
    _REMOVE.run(connection, consumer=consumer)
    if _ENDS.rows(connection, subscription=subscription):
        destinations.delete_subscription(connection, subscription)


def finds_dead(connection: Connection, lives: Lives) -> bool:
    """Return whether `reap` would find something."""
    return lives.is_any_dead([str(row[1]) for row in _ALL.rows(connection)]) or bool(_ENDED.rows(connection))


def reap(connection: Connection, lives: Lives) -> None:
    """Remove all dead consumers, and delete the subscriptions that end with them.

    Called under the lock of the registry.
    """
    for subscription, *consumer in _ALL.rows(connection):
        if lives.is_dead(str(consumer[0])):
            strike_off(connection, subscription, Consumer(*consumer), lives.boot)
    for (subscription,) in _ENDED.rows(connection):
        destinations.delete_subscription(connection, subscription)
