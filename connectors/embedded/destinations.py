"""Destinations and their subscriptions: how they are found, made and deleted.

With PostgreSQL, a transaction that makes or deletes a destination or subscription, or registers a client, consumer or
producer, first takes the lock of the registry. A sender takes a shared lock on its destination, so that nobody deletes
the destination meanwhile.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from connectors.embedded.properties import AUTO_CREATED, FLOW_CONTROL, NAMES, UNLIMITED
from connectors.embedded.sql import Sql

_REGISTRY = Sql(
    "SELECT 1",
    "SELECT pg_advisory_xact_lock(hashtextextended(concat('correlator broker ', current_schema(), ' registry'), 1))",
)
_ROW = (
    "SELECT n.id, n.name, n.client, n.max_num_msgs, n.max_total_msg_bytes, n.max_per_msg_bytes, n.limit_behavior,"
    " n.use_dmq, n.max_num_deliveries, n.max_num_producers, n.max_num_active_consumers,"
    " n.max_num_backup_consumers, n.consumer_flow_limit, n.consumer_flow_threshold_percent,"
    " CASE WHEN n.max_num_msgs > 0 THEN"
    " (SELECT sum(t.messages) FROM broker_tally t WHERE t.destination = n.id) END,"
    " CASE WHEN n.max_total_msg_bytes > 0 THEN"
    " (SELECT sum(t.bytes) FROM broker_tally t WHERE t.destination = n.id) END,"
    " n.paused FROM broker_destination n WHERE n.name = :name"
)
_WITH_SUBSCRIPTIONS = (
    "SELECT n.*, s.id, s.client_id, s.name, s.durable, s.shared, s.selector, s.suspect_through"
    " FROM ({row}) AS n LEFT JOIN broker_subscription s ON s.destination = n.id ORDER BY s.id"
)
_DESTINATION = Sql(
    _WITH_SUBSCRIPTIONS.replace("{row}", _ROW),
    # OFFSET 0 keeps PostgreSQL from adding up the rows of the tally again for each subscription.
    _WITH_SUBSCRIPTIONS.replace("{row}", f"{_ROW} OFFSET 0"),
)
_MAKE_DESTINATION = Sql(
    "INSERT INTO broker_destination (name, client, auto_created) VALUES (:name, :client, :auto_created) RETURNING id"
)
_SET = Sql(
    "UPDATE broker_destination SET {values} WHERE id = :destination".replace(
        "{values}", ", ".join(f"{name} = coalesce(:{name}, {name})" for name in NAMES)
    )
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
    "{counted}"
)
_DELETE_UNREFERENCED = Sql(
    "DELETE FROM broker_content WHERE refs_left <= 0"
    " AND number IN (SELECT number FROM broker_delivery WHERE subscription = :subscription)"
)
_DELETE_DELIVERIES = Sql("DELETE FROM broker_delivery WHERE subscription = :subscription")
_DELETE_SUBSCRIPTION = Sql("DELETE FROM broker_subscription WHERE id = :subscription")
_DELETE_SENDERS = Sql("DELETE FROM broker_sender WHERE destination = :destination")
_DELETE_PRODUCERS = Sql("DELETE FROM broker_producer WHERE destination = :destination")
_DELETE_TALLY = Sql("DELETE FROM broker_tally WHERE destination = :destination")
_DELETE_DESTINATION = Sql("DELETE FROM broker_destination WHERE id = :destination")
_PREPARED = Sql("SELECT 1 FROM broker_delivery WHERE subscription = :subscription AND state = 3 LIMIT 1")
RESERVED = "mq."
"""Beginning of the names that belong to the broker, after the kind."""
TEMPORARY = "mq.tmp."
"""Beginning of the names of temporary destinations, after the kind."""
DEAD_MESSAGES = "queue:mq.sys.dmq"
"""The dead message queue, which always exists."""
HOW_TO_CREATE = "Create it: correlator broker create"
"""Advice for a user if a destination does not exist and its use does not make it."""


class Subscription(NamedTuple):
    """A subscription, as its row describes it."""

    id: int
    client_id: str
    name: str
    durable: int
    shared: int
    selector: str | None
    suspect_through: int


class Destination(NamedTuple):
    """A destination with the properties that senders and consumers need (see `properties`).

    Attributes:
        client: id of the client that owns a temporary destination; `None` for others.
        messages, bytes: how much it holds, as this transaction sees it; `None` if there is no limit.
        paused: what an administrator has paused: `PRODUCERS`, `CONSUMERS`, `ALL`, or `None`.
        subscriptions: its subscriptions as this transaction saw them, oldest first; a queue has one.
    """

    id: int
    name: str
    client: int | None
    max_num_msgs: int
    max_total_msg_bytes: int
    max_per_msg_bytes: int
    limit_behavior: str
    use_dmq: int
    max_num_deliveries: int
    max_num_producers: int
    max_num_active_consumers: int
    max_num_backup_consumers: int
    consumer_flow_limit: int
    consumer_flow_threshold_percent: int
    messages: int | None
    bytes: int | None
    paused: str | None
    subscriptions: tuple[Subscription, ...]

    @property
    def is_queue(self) -> bool:
        """Return whether it is a queue, in which each message has only one subscription."""
        return self.name.startswith("queue:")

    @property
    def has_limits(self) -> bool:
        """Return whether it has limits, so that messages may be refused or have to wait."""
        return not self.max_num_msgs == self.max_total_msg_bytes == self.max_per_msg_bytes == UNLIMITED

    @property
    def lets_wait(self) -> bool:
        """Return whether senders wait for room when it is full."""
        return self.limit_behavior == FLOW_CONTROL

    @property
    def stops_producers(self) -> bool:
        """Return whether an administrator has paused its producers."""
        return self.paused in {"PRODUCERS", "ALL"}


_COLUMNS = len(Destination._fields) - 1


def lock_registry(connection: Connection) -> None:
    """Keep others from making, deleting and registering until the transaction ends."""
    _REGISTRY.rows(connection)


def find(connection: Connection, name: str) -> Destination | None:
    """Return the destination of this name; `None` if there is none."""
    rows = _DESTINATION.rows(connection, name=name)
    if not rows:
        return None
    found = tuple([Subscription(*row[_COLUMNS:]) for row in rows if row[_COLUMNS] is not None])
    return Destination._make((*rows[0][:_COLUMNS], found))


def is_temporary(name: str) -> bool:
    """Return whether only `make_temporary` makes a destination of this name."""
    return name.partition(":")[2].startswith(TEMPORARY)


@lru_cache(maxsize=256)
def is_reserved(name: str) -> bool:
    """Return whether only the broker makes this destination, deletes it, and sends to it."""
    return name.partition(":")[2].startswith(RESERVED) and not is_temporary(name)


@lru_cache(maxsize=256)
def is_lasting_queue(name: str) -> bool:
    """Return whether it is a queue that belongs to no client."""
    return name.startswith("queue:") and not is_temporary(name)


def ensure(connection: Connection, name: str) -> Destination:
    """Return the destination of this name; make it if it is new."""
    there = find(connection, name)
    if there is not None:
        return there
    lock_registry(connection)
    return find(connection, name) or make(connection, name)


def make(
    connection: Connection,
    name: str,
    properties: Mapping[str, Any] = AUTO_CREATED,
    *,
    client: int | None = None,
    auto_created: bool = True,
) -> Destination:
    """Make a destination, and the subscription of a queue. Called under the lock of the registry.

    Args:
        connection: a connection in a transaction.
        name: the destination.
        properties: properties as `properties.checked` returns them; others have their defaults.
        client: the id of the client that owns a temporary destination.
        auto_created: whether the broker deletes it after nobody has used it for some time.
    """
    made = int(_MAKE_DESTINATION.one(connection, name=name, client=client, auto_created=int(auto_created)))
    set_properties(connection, made, properties)
    if name.startswith("queue:"):
        make_subscription(connection, made, Subscription(0, "", "", 1, 1, None, 0))
    there = find(connection, name)
    assert there is not None
    return there


def set_properties(connection: Connection, destination: int, properties: Mapping[str, Any]) -> None:
    """Change these properties, given as `properties.checked` returns them."""
    if properties:
        _SET.run(connection, destination=destination, **{**dict.fromkeys(NAMES), **properties})


def subscriptions(connection: Connection, destination: int) -> Sequence[Subscription]:
    """Return the subscriptions of a destination, oldest first."""
    return [Subscription(*row) for row in _SUBSCRIPTIONS.rows(connection, destination=destination)]


def elsewhere(connection: Connection, wanted: Subscription, destination: int) -> tuple[int, str] | None:
    """Return the durable subscription of this name that a client has to another topic: its id, and the topic."""
    rows = _SAME_NAME.rows(connection, client_id=wanted.client_id, name=wanted.name, destination=destination)
    return (int(rows[0][0]), rows[0][1]) if rows else None


def make_subscription(connection: Connection, destination: int, wanted: Subscription) -> Subscription:
    """Make a subscription. Called under the lock of the registry."""
    values = wanted._asdict() | {"destination": destination}
    made = _MAKE_SUBSCRIPTION.one(connection, **{name: values[name] for name in values if name != "id"})
    return wanted._replace(id=int(made))


def queues(connection: Connection) -> Sequence[str]:
    """Return all queues of the broker, each as `queue:NAME`, sorted; the caller has begun a transaction."""
    return [row[0] for row in _QUEUES.rows(connection)]


def has_prepared(connection: Connection, subscription: int) -> bool:
    """Return whether a prepared transaction has acknowledged messages of a subscription."""
    return bool(_PREPARED.rows(connection, subscription=subscription))


def delete_subscription(connection: Connection, subscription: int) -> None:
    """Delete a subscription without consumers, and its messages. Called under the lock of the registry.

    Waits for transactions that send to its topic: they have read that it exists.
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
    """Delete a destination without subscriptions, with its producers, its tally and the sequences of its senders.

    Called under the lock of the registry.
    """
    for statement in (_DELETE_SENDERS, _DELETE_PRODUCERS, _DELETE_TALLY, _DELETE_DESTINATION):
        statement.run(connection, destination=destination)
