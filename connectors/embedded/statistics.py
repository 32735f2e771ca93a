"""Shows destinations, consumers, subscriptions and transactions to an administrator. Changes nothing.

The number of messages in a queue is the sum of its tally. Only held and delayed messages are counted one by one, by an
index. So the cost does not grow with the messages that wait in a queue. The messages that wait for the subscriptions of
a topic are counted by an index.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from connectors.embedded import property_texts
from connectors.embedded.properties import NAMES
from connectors.embedded.sql import HELD, PREPARED, Sql, now_ms
from correlator.connector import ConsumerState, DestinationState, SubscriptionState, TransactionState

Alive = Callable[[Connection, str], bool]
"""Returns whether the consumer with this name lives."""
LIVING = ("active", "backup")
"""The roles of living consumers that take messages, or wait to take over."""
_DESTINATIONS = Sql("SELECT * FROM broker_destination ORDER BY name")
_TALLY = Sql("SELECT destination, sum(messages), sum(bytes) FROM broker_tally GROUP BY destination")
_SUBSCRIPTIONS = Sql(
    "SELECT s.id, s.destination, n.name AS place, s.name, s.client_id, s.durable, s.shared, s.selector,"
    " (SELECT c.sent_at FROM broker_content c WHERE c.number ="
    " (SELECT min(d.number) FROM broker_delivery d WHERE d.subscription = s.id)) AS oldest_at"
    " FROM broker_subscription s JOIN broker_destination n ON n.id = s.destination ORDER BY n.name, s.name, s.client_id"
)
_PLACES = Sql(
    "SELECT s.id, n.name AS place, s.name, s.client_id FROM broker_subscription s"
    " JOIN broker_destination n ON n.id = s.destination"
)
_TAKEN = Sql(
    # By consumer first: so that SQLite reads the index of held deliveries, not the table.
    "SELECT consumer, subscription, state, count(*) FROM broker_delivery WHERE consumer > 0"
    " GROUP BY consumer, subscription, state"
)
_DELAYED = Sql(
    "SELECT subscription, count(*) FROM broker_delivery WHERE state = 2 AND due > {now} GROUP BY subscription"
)
_WAITING = Sql(
    "SELECT count(*) + (SELECT count(*) FROM broker_delivery"
    " WHERE subscription = :subscription AND state = 2 AND due <= {now})"
    " FROM broker_delivery WHERE subscription = :subscription AND state = 0"
)
_PRODUCERS = Sql("SELECT destination, count(*) FROM broker_producer GROUP BY destination")
_CONSUMERS = Sql("SELECT id, subscription, pid, host, cancelled FROM broker_consumer ORDER BY subscription, id")
_HOLDING = Sql(
    "SELECT d.consumer, count(*), min(c.sent_at) FROM broker_delivery d {content_of_d}"
    " WHERE d.consumer > 0 AND d.state = 1 GROUP BY d.consumer"
)
_TRANSACTIONS = Sql(
    "SELECT t.id, t.name, t.state, t.at, (SELECT count(*) FROM broker_tx_send s WHERE s.tx = t.id)"
    " FROM broker_tx t ORDER BY CASE t.state WHEN 'PREPARED' THEN 0 ELSE 1 END, t.at, t.id"
)
_ACKNOWLEDGED = Sql("SELECT consumer, count(*) FROM broker_delivery WHERE consumer > 0 AND state = 3 GROUP BY consumer")


class Counts(NamedTuple):
    """The numbers of messages of one subscription."""

    ready: int
    held: int
    delayed: int
    in_tx: int


class Read(NamedTuple):
    """A subscription with its row and its counts."""

    row: Any
    counts: Counts
    oldest_ms: int | None


def destinations(connection: Connection, alive: Alive) -> Sequence[DestinationState]:
    """Return all destinations, sorted by name."""
    tally = {row[0]: (int(row[1]), int(row[2])) for row in _TALLY.rows(connection)}
    readers: dict[int, list[Read]] = {}
    for one in _subscriptions(connection, tally):
        readers.setdefault(one.row.destination, []).append(one)
    living = Counter(one.destination for one in consumers(connection, alive) if one.role in LIVING)
    producers = {row[0]: int(row[1]) for row in _PRODUCERS.rows(connection)}
    found = []
    for row in _DESTINATIONS.named(connection):
        own = readers.get(row.id, [])
        messages, size = tally.get(row.id, (0, 0))
        stored = {name: getattr(row, name) for name in NAMES}
        found.append(
            DestinationState(
                destination=row.name,
                **_sum([one.counts for one in own])._asdict(),
                messages=messages,
                bytes=size,
                oldest_ms=max((one.oldest_ms for one in own if one.oldest_ms is not None), default=None),
                consumers=living[row.name],
                producers=producers.get(row.id, 0),
                dropped=row.dropped,
                paused=row.paused,
                created=not row.auto_created,
                properties=property_texts.shown(row.name, stored),
            )
        )
    return found


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(column) for column in zip(Counts(0, 0, 0, 0), *counts, strict=True)))


def subscriptions(connection: Connection, alive: Alive) -> Sequence[SubscriptionState]:
    """Return all subscriptions of topics, sorted."""
    living = Counter(
        (one.destination, one.subscription, one.client_id) for one in consumers(connection, alive) if one.role in LIVING
    )
    return [
        SubscriptionState(
            topic=row.place,
            subscription=row.name,
            client_id=row.client_id,
            durable=bool(row.durable),
            shared=bool(row.shared),
            selector=row.selector,
            **counts._asdict(),
            oldest_ms=oldest_ms,
            consumers=living[row.place, row.name, row.client_id],
        )
        for row, counts, oldest_ms in _subscriptions(connection, {})
        if row.place.startswith("topic:")
    ]


def _subscriptions(connection: Connection, tally: Mapping[int, tuple[int, int]]) -> Iterator[Read]:
    """Yield the subscriptions with their counts. The counts of queues are right only if the tally is given."""
    now = now_ms(connection)
    taken: Counter[tuple[int, int]] = Counter()
    for _, subscription, state, count in _TAKEN.rows(connection):
        taken[subscription, state] += int(count)
    delayed = {row[0]: int(row[1]) for row in _DELAYED.rows(connection)}
    for row in _SUBSCRIPTIONS.named(connection):
        held, in_tx = taken[row.id, HELD], taken[row.id, PREPARED]
        later = delayed.get(row.id, 0)
        if row.place.startswith("queue:"):
            ready = tally.get(row.destination, (0, 0))[0] - held - in_tx - later
        else:
            ready = int(_WAITING.one(connection, subscription=row.id))
        age = None if row.oldest_at is None else max(0, now - row.oldest_at)
        yield Read(row, Counts(ready, held, later, in_tx), age)


def consumers(connection: Connection, alive: Alive) -> Sequence[ConsumerState]:
    """Return all consumers, in the order of destinations and registration."""
    now = now_ms(connection)
    holding = {row[0]: (int(row[1]), row[2]) for row in _HOLDING.rows(connection)}
    places = {row.id: row for row in _PLACES.named(connection)}
    most_active = {row.name: row.max_num_active_consumers for row in _DESTINATIONS.named(connection)}
    found = []
    active: dict[int, int] = {}
    for row in _CONSUMERS.named(connection):
        place = places[row.subscription]
        held, oldest_at = holding.get(row.id, (0, None))
        role = _role(row, active, most_active[place.place]) if alive(connection, str(row.id)) else "dead"
        found.append(
            ConsumerState(
                destination=place.place,
                subscription=place.name,
                client_id=place.client_id,
                consumer=row.id,
                role=role,
                pid=row.pid,
                host=row.host,
                held=held,
                oldest_ms=None if oldest_at is None else max(0, now - oldest_at),
            )
        )
    return sorted(found, key=lambda one: (one.destination, one.subscription, one.client_id, one.consumer))


def _role(row: Any, active: dict[int, int], most: int | None) -> str:
    """Return the role of a living consumer; `active` counts the living consumers that registered before it."""
    if row.cancelled:
        return "closing"
    elders = active.get(row.subscription, 0)
    active[row.subscription] = elders + 1
    return "active" if most is None or most < 0 or elders < most else "backup"


def transactions(connection: Connection) -> Sequence[TransactionState]:
    """Return the prepared transactions, then the transactions that ended within a day."""
    now = now_ms(connection)
    acknowledged = {row[0]: int(row[1]) for row in _ACKNOWLEDGED.rows(connection)}
    return [
        TransactionState(name, state, max(0, now - at), acknowledged.get(tx, 0), int(sends))
        for tx, name, state, at, sends in _TRANSACTIONS.rows(connection)
    ]
