"""Destinations and their subscriptions: how they are found, made and deleted.

With PostgreSQL, whoever makes or deletes one of them, or registers a user of one, first takes the lock of the registry.
A sender shares a lock on its destination, so that nobody deletes it meanwhile.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded.sql import Sql

_REGISTRY = Sql(
    "SELECT 1",
    "SELECT pg_advisory_xact_lock(hashtextextended(concat('correlator broker ', current_schema(), ' registry'), 1))",
)
_DESTINATION = Sql("SELECT id, client FROM broker_destination WHERE name = :name")
_MAKE_DESTINATION = Sql(
    "INSERT INTO broker_destination (name, client, auto_created) VALUES (:name, :client, 1) RETURNING id"
)
_LOCK_DESTINATION = Sql(
    "SELECT 1",
    "SELECT pg_advisory_xact_lock(hashtextextended(concat("
    "'correlator broker ', current_schema(), ' ', CAST(:name AS text)), 2))",
)
_SUBSCRIPTIONS = Sql(
    "SELECT id, client_id, name, durable, shared, selector, suspect_through FROM broker_subscription"
    " WHERE destination = :destination ORDER BY id"
)
_SAME_NAME = Sql(
    "SELECT s.id, d.name FROM broker_subscription s JOIN broker_destination d ON d.id = s.destination"
    " WHERE s.client_id = :client_id AND s.name = :name AND s.durable = 1 AND s.destination <> :destination"
)
_MAKE_SUBSCRIPTION = Sql(
    "INSERT INTO broker_subscription (destination, client_id, name, durable, shared, selector, suspect_through)"
    " VALUES (:destination, :client_id, :name, :durable, :shared, :selector, 0) RETURNING id"
)
_QUEUES = Sql("SELECT name FROM broker_destination WHERE name LIKE 'queue:%' ORDER BY name")
_TOPIC_OF = Sql(
    "SELECT d.name FROM broker_subscription s JOIN broker_destination d ON d.id = s.destination"
    " WHERE s.id = :subscription"
)
_LOCK_CONTENT_OF = Sql(
    "SELECT 1",
    "SELECT count(*) FROM (SELECT 1 FROM broker_content WHERE number IN"
    " (SELECT number FROM broker_delivery WHERE subscription = :subscription) ORDER BY number FOR UPDATE) AS locked",
)
_SUBSCRIPTION_LETS_GO = Sql(
    "UPDATE broker_content SET refs_left = refs_left - 1"
    " WHERE number IN (SELECT number FROM broker_delivery WHERE subscription = :subscription)"
)
_TALLY_UNREFERENCED = Sql(
    "INSERT INTO broker_tally (destination, messages, bytes)"
    " SELECT destination, -count(*), -sum(length(content)) FROM broker_content WHERE refs_left <= 0"
    " AND number IN (SELECT number FROM broker_delivery WHERE subscription = :subscription) GROUP BY destination"
)
_DELETE_UNREFERENCED = Sql(
    "DELETE FROM broker_content WHERE refs_left <= 0"
    " AND number IN (SELECT number FROM broker_delivery WHERE subscription = :subscription)"
)
_DELETE_DELIVERIES = Sql("DELETE FROM broker_delivery WHERE subscription = :subscription")
_DELETE_SUBSCRIPTION = Sql("DELETE FROM broker_subscription WHERE id = :subscription")
_DELETE_SENDERS = Sql("DELETE FROM broker_sender WHERE destination = :destination")
_DELETE_TALLY = Sql("DELETE FROM broker_tally WHERE destination = :destination")
_DELETE_DESTINATION = Sql("DELETE FROM broker_destination WHERE id = :destination")
_PREPARED = Sql("SELECT 1 FROM broker_delivery WHERE subscription = :subscription AND state = 3 LIMIT 1")
TEMPORARY = "mq.tmp."
"""How the names of temporary destinations begin, after their kind."""


class Destination(NamedTuple):
    """A destination; `client` is the owner of a temporary one."""

    id: int
    client: int | None


class Subscription(NamedTuple):
    """A subscription, as its row says."""

    id: int
    client_id: str
    name: str
    durable: int
    shared: int
    selector: str | None
    suspect_through: int


def lock_registry(connection: Connection) -> None:
    """Keep others from making, deleting and registering until the transaction ends."""
    _REGISTRY.rows(connection)


def find(connection: Connection, name: str) -> Destination | None:
    """The destination of this name."""
    rows = _DESTINATION.rows(connection, name=name)
    return Destination(*rows[0]) if rows else None


def is_temporary(name: str) -> bool:
    """Whether a destination is one that only `make_temporary` makes."""
    return name.partition(":")[2].startswith(TEMPORARY)


def ensure(connection: Connection, name: str) -> Destination:
    """The destination of this name; makes it if it is new."""
    there = find(connection, name)
    if there is not None:
        return there
    lock_registry(connection)
    return find(connection, name) or make(connection, name, None)


def make(connection: Connection, name: str, client: int | None) -> Destination:
    """Make a destination, and the subscription of a queue. Called under the lock of the registry."""
    made = Destination(int(_MAKE_DESTINATION.one(connection, name=name, client=client)), client)
    if name.startswith("queue:"):
        make_subscription(connection, made.id, Subscription(0, "", "", 1, 1, None, 0))
    return made


def subscriptions(connection: Connection, destination: int) -> Sequence[Subscription]:
    """The subscriptions of a destination, oldest first."""
    return [Subscription(*row) for row in _SUBSCRIPTIONS.rows(connection, destination=destination)]


def elsewhere(connection: Connection, wanted: Subscription, destination: int) -> tuple[int, str] | None:
    """The durable subscription of this name that a client has to another topic: its id, and the topic."""
    rows = _SAME_NAME.rows(connection, client_id=wanted.client_id, name=wanted.name, destination=destination)
    return (int(rows[0][0]), rows[0][1]) if rows else None


def make_subscription(connection: Connection, destination: int, wanted: Subscription) -> Subscription:
    """Make a subscription. Called under the lock of the registry."""
    values = wanted._asdict() | {"destination": destination}
    made = _MAKE_SUBSCRIPTION.one(connection, **{name: values[name] for name in values if name != "id"})
    return wanted._replace(id=int(made))


def queues(connection: Connection) -> Sequence[str]:
    """All queues, sorted."""
    return [row[0] for row in _QUEUES.rows(connection)]


def has_prepared(connection: Connection, subscription: int) -> bool:
    """Whether a prepared transaction has acknowledged messages of a subscription."""
    return bool(_PREPARED.rows(connection, subscription=subscription))


def delete_subscription(connection: Connection, subscription: int) -> None:
    """Delete a subscription without consumers, and its messages. Called under the lock of the registry.

    Waits for transactions that send to its topic: they have read that it is there.
    """
    for (name,) in _TOPIC_OF.rows(connection, subscription=subscription):
        lock_against_sends(connection, name)
    _LOCK_CONTENT_OF.rows(connection, subscription=subscription)
    for statement in (
        _SUBSCRIPTION_LETS_GO,
        _TALLY_UNREFERENCED,
        _DELETE_UNREFERENCED,
        _DELETE_DELIVERIES,
        _DELETE_SUBSCRIPTION,
    ):
        statement.run(connection, subscription=subscription)


def lock_against_sends(connection: Connection, name: str) -> None:
    """Wait until no transaction sends to a destination, and keep others from it."""
    _LOCK_DESTINATION.rows(connection, name=name)


def delete(connection: Connection, destination: int) -> None:
    """Delete a destination without subscriptions, and what it remembers. Called under the lock of the registry."""
    for statement in (_DELETE_SENDERS, _DELETE_TALLY, _DELETE_DESTINATION):
        statement.run(connection, destination=destination)
