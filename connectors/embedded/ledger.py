"""All SQL of the embedded broker, one function for each operation. Each runs inside a transaction of its caller.

In SQLite a transaction is alone in the database. In PostgreSQL the row of the destination is locked while messages are
stored, and the row of the subscription while messages are claimed or given back. Acknowledging needs no lock, since
only their consumer changes the rows of held messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from connectors.embedded.tables import (
    SCHEMA_VERSION,
    consumers,
    destinations,
    messages,
    metadata,
    schema,
    subscriptions,
)
from connectors.embedded.tables import senders as senders_table
from correlator.storage.dialects import Statement

MOST_LIVES = 100
"""Most sources of BEST_EFFORT senders that a destination remembers: such a sender has a new source in each life."""
_ONE_LIFE = "one life: "


def of_one_life(source: str) -> str:
    """The stored name of a source that no later life of its sender uses, so that the broker may forget it."""
    return f"{_ONE_LIFE}{source}"


class NewMessage(NamedTuple):
    """A message to be stored; by `source` and `sequence` the broker recognises a repeat."""

    source: str
    sequence: int
    content: bytes


class StoredMessage(NamedTuple):
    """A stored message."""

    number: int
    deliveries: int
    sent_at: int
    content: bytes


class QueuedMessage(NamedTuple):
    """A stored message and the consumer that holds it; 0 if it waits."""

    consumer: int
    size: int
    stored: StoredMessage


class Holder(NamedTuple):
    """A registered consumer of a subscription."""

    subscription: int
    consumer: int


class HeldRun(NamedTuple):
    """All messages between two numbers that a consumer holds."""

    first: int
    last: int
    total: int


class _There(NamedTuple):
    """A destination whose row is locked."""

    id: int
    last_number: int


def create(connection: Connection) -> int:
    """Make missing tables; returns the version of the schema."""
    metadata.create_all(connection)
    version = connection.execute(select(schema.c.version)).scalar()
    if version is None:
        connection.execute(insert(schema).values(version=SCHEMA_VERSION))
    return version or SCHEMA_VERSION


def _insert_once(connection: Connection, table: Any) -> Any:
    """An INSERT that leaves an existing row as it is."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def subscribe(connection: Connection, destination: str, name: str) -> int:
    """The id of a subscription; makes the subscription and its destination if they are new."""
    there = _locked_destination(connection, destination)
    return _subscription(connection, there.id, name)


def _locked_destination(connection: Connection, name: str) -> _There:
    there = _find_destination(connection, name)
    if there is not None:
        return there
    connection.execute(_insert_once(connection, destinations).values(name=name, last_number=0))
    made = _find_destination(connection, name)
    assert made is not None
    if name.startswith("queue:"):
        _subscription(connection, made.id, "")
    return made


def _find_destination(connection: Connection, name: str) -> _There | None:
    wanted = select(destinations.c.id, destinations.c.last_number).where(destinations.c.name == name).with_for_update()
    found = connection.execute(wanted).one_or_none()
    return None if found is None else _There(*found)


def _subscription(connection: Connection, destination: int, name: str) -> int:
    connection.execute(_insert_once(connection, subscriptions).values(destination=destination, name=name))
    wanted = select(subscriptions.c.id).where(subscriptions.c.destination == destination, subscriptions.c.name == name)
    return int(connection.execute(wanted).scalar_one())


def store(connection: Connection, destination: str, entries: Sequence[NewMessage], now_ms: int) -> None:
    """Store the messages that are no repeats, for each subscription of the destination."""
    there = _locked_destination(connection, destination)
    fresh = _first_time(connection, there.id, entries)
    if not fresh:
        return
    _append(connection, there, fresh, now_ms)
    connection.execute(
        update(destinations).where(destinations.c.id == there.id).values(last_number=there.last_number + len(fresh))
    )


def _first_time(connection: Connection, destination: int, entries: Sequence[NewMessage]) -> list[NewMessage]:
    """The messages whose sequence is above the last stored one of their source; stores the new last sequences."""
    before = _last_sequences(connection, destination, {entry.source for entry in entries if entry.source})
    last = dict(before)
    fresh = []
    for entry in entries:
        if not entry.source:
            fresh.append(entry)
        elif entry.sequence > last.get(entry.source, 0):
            last[entry.source] = entry.sequence
            fresh.append(entry)
    for source, sequence in last.items():
        if sequence != before.get(source):
            _remember(connection, destination, source, sequence)
    return fresh


def _last_sequences(connection: Connection, destination: int, sources: set[str]) -> dict[str, int]:
    if not sources:
        return {}
    rows = connection.execute(
        select(senders_table.c.source, senders_table.c.last_sequence).where(
            senders_table.c.destination == destination, senders_table.c.source.in_(sources)
        )
    )
    return {row.source: row.last_sequence for row in rows}


def _remember(connection: Connection, destination: int, source: str, sequence: int) -> None:
    there = (senders_table.c.destination == destination, senders_table.c.source == source)
    changed = connection.execute(update(senders_table).where(*there).values(last_sequence=sequence))
    if not changed.rowcount:
        connection.execute(insert(senders_table).values(destination=destination, source=source, last_sequence=sequence))
        if source.startswith(_ONE_LIFE):
            _forget_other_lives(connection, destination, source)


def _forget_other_lives(connection: Connection, destination: int, source: str) -> None:
    """Forget the other sources of BEST_EFFORT senders, once there are many. Nearly all of their lives have ended.

    A source whose life goes on is stored again with its next message.
    """
    lives = (senders_table.c.destination == destination, senders_table.c.source.startswith(_ONE_LIFE))
    count = connection.execute(select(func.count()).select_from(senders_table).where(*lives)).scalar_one()
    if count > MOST_LIVES:
        connection.execute(delete(senders_table).where(*lives, senders_table.c.source != source))


def _append(connection: Connection, there: _There, fresh: Sequence[NewMessage], now_ms: int) -> None:
    readers = connection.execute(
        select(subscriptions.c.id).where(subscriptions.c.destination == there.id).order_by(subscriptions.c.id)
    ).scalars()
    for subscription in readers.all():
        rows = [
            {
                "subscription": subscription,
                "number": number,
                "consumer": 0,
                "claim": 0,
                "deliveries": 0,
                "sent_at": now_ms,
                "size": len(entry.content),
                "content": entry.content,
            }
            for number, entry in enumerate(fresh, there.last_number + 1)
        ]
        _insert_message(connection.dialect.name).run(connection, rows)


@cache
def _insert_message(dialect: str) -> Statement:
    """The INSERT of messages, compiled once for each database: a batch spends most of its time here."""
    kinds: dict[str, type[Dialect]] = {"sqlite": SQLiteDialect_pysqlite, "postgresql": PGDialect_psycopg}
    return Statement(kinds[dialect](), insert(messages))


def register(connection: Connection, subscription: int) -> int:
    """Register a new consumer; returns its id, which is never used again."""
    made = insert(consumers).values(subscription=subscription, claimed_through=0).returning(consumers.c.id)
    return int(connection.execute(made).scalar_one())


def lock_subscription(connection: Connection, subscription: int) -> None:
    """Keep all other consumers from claiming or giving back until the transaction ends."""
    connection.execute(select(subscriptions.c.id).where(subscriptions.c.id == subscription).with_for_update())


def other_consumers(connection: Connection, subscription: int, consumer: int) -> Sequence[int]:
    """All other consumers that are registered on the subscription."""
    others = select(consumers.c.id).where(consumers.c.subscription == subscription, consumers.c.id != consumer)
    return [int(other) for other in connection.execute(others).scalars()]


def retire(connection: Connection, subscription: int, consumer: int) -> None:
    """Remove a consumer; the messages that it holds wait again, in their old order."""
    claimed_through = connection.execute(
        select(consumers.c.claimed_through).where(consumers.c.id == consumer)
    ).scalar_one_or_none()
    if claimed_through is None:
        return
    connection.execute(
        update(messages)
        .where(
            messages.c.subscription == subscription,
            messages.c.number <= claimed_through,
            messages.c.consumer == consumer,
        )
        .values(consumer=0)
    )
    connection.execute(delete(consumers).where(consumers.c.id == consumer))


class Bounds(NamedTuple):
    """The most that one claim may take."""

    messages: int
    bytes: int


def claim(connection: Connection, holder: Holder, bounds: Bounds) -> Sequence[StoredMessage]:
    """Give the oldest waiting messages within the bounds to the consumer, at least one; none if none waits.

    Called under the lock on the subscription.
    """
    waiting = connection.execute(_waiting(holder.subscription).limit(bounds.messages)).all()
    if not waiting:
        return ()
    within = sum(1 for total in accumulate(row.size for row in waiting) if total <= bounds.bytes)
    taken = waiting[: max(1, within)]
    rows = connection.execute(_take(holder, taken[0].number, taken[-1].number)).all()
    return _claimed(connection, holder, rows)


def claim_chosen(connection: Connection, holder: Holder, chosen: Sequence[int]) -> Sequence[StoredMessage]:
    """Give these waiting messages, at least one, to the consumer, as `claim` does."""
    all_chosen = _take(holder, chosen[0], chosen[-1])
    taken = [all_chosen.where(messages.c.number.in_(page)) for page in pages(chosen)]
    return _claimed(connection, holder, [row for one in taken for row in connection.execute(one)])


def _claimed(connection: Connection, holder: Holder, rows: Sequence[Any]) -> Sequence[StoredMessage]:
    claimed = sorted(StoredMessage(*row) for row in rows)
    connection.execute(
        update(consumers)
        .where(consumers.c.id == holder.consumer, consumers.c.claimed_through < claimed[-1].number)
        .values(claimed_through=claimed[-1].number)
    )
    return claimed


PAGE = 500
"""Most messages that one statement reads or names."""


def pages(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """The numbers in parts that fit into one statement each."""
    return (numbers[at : at + PAGE] for at in range(0, len(numbers), PAGE))


def rows_after(connection: Connection, subscription: int, number: int) -> Sequence[QueuedMessage]:
    """The first page of messages above a number, held ones included, in order."""
    return _lying(connection, subscription, messages.c.number > number)


def rows_among(connection: Connection, subscription: int, page: Sequence[int]) -> Sequence[QueuedMessage]:
    """The messages of a page that still exist, held ones included, in order."""
    return _lying(connection, subscription, messages.c.number.in_(page))


def _lying(connection: Connection, subscription: int, condition: Any) -> Sequence[QueuedMessage]:
    rows = connection.execute(
        select(
            messages.c.consumer,
            messages.c.size,
            messages.c.number,
            messages.c.deliveries,
            messages.c.sent_at,
            messages.c.content,
        )
        .where(messages.c.subscription == subscription, condition)
        .order_by(messages.c.number)
        .limit(PAGE)
    )
    return [QueuedMessage(consumer, size, StoredMessage(*stored)) for consumer, size, *stored in rows]


def _take(holder: Holder, first: int, last: int) -> Any:
    return (
        update(messages)
        .where(
            messages.c.subscription == holder.subscription,
            messages.c.number.between(first, last),
            messages.c.consumer == 0,
        )
        .values(consumer=holder.consumer, deliveries=messages.c.deliveries + 1)
        .returning(messages.c.number, messages.c.deliveries, messages.c.sent_at, messages.c.content)
    )


def _waiting(subscription: int) -> Any:
    return (
        select(messages.c.number, messages.c.size)
        .where(messages.c.subscription == subscription, messages.c.consumer == 0)
        .order_by(messages.c.number)
    )


def _held(holder: Holder, run: HeldRun) -> tuple[Any, ...]:
    return (
        messages.c.subscription == holder.subscription,
        messages.c.number.between(run.first, run.last),
        messages.c.consumer == holder.consumer,
    )


def settle(connection: Connection, holder: Holder, run: HeldRun) -> bool:
    """Delete acknowledged messages; false if the consumer did not hold all of them any more."""
    return bool(connection.execute(delete(messages).where(*_held(holder, run))).rowcount == run.total)


def give_back(connection: Connection, holder: Holder, run: HeldRun) -> None:
    """Let rejected messages wait again, in their old order."""
    connection.execute(update(messages).where(*_held(holder, run)).values(consumer=0))


def browse(connection: Connection, destination: str, limit: int) -> Sequence[StoredMessage]:
    """The oldest messages of a queue, held ones included. Changes nothing."""
    rows = connection.execute(
        select(messages.c.number, messages.c.deliveries, messages.c.sent_at, messages.c.content)
        .join(subscriptions, subscriptions.c.id == messages.c.subscription)
        .join(destinations, destinations.c.id == subscriptions.c.destination)
        .where(destinations.c.name == destination, subscriptions.c.name == "")
        .order_by(messages.c.number)
        .limit(limit)
    )
    return [StoredMessage(*row) for row in rows]


def queues(connection: Connection) -> Sequence[str]:
    """All queues, sorted."""
    wanted = select(destinations.c.name).where(destinations.c.name.startswith("queue:")).order_by(destinations.c.name)
    return connection.execute(wanted).scalars().all()


def subscriptions_of(connection: Connection, destination: str) -> Mapping[str, int]:
    """The ids of the subscriptions of a destination by name; locks them and the destination."""
    there = _find_destination(connection, destination)
    if there is None:
        return {}
    wanted = select(subscriptions.c.name, subscriptions.c.id).where(subscriptions.c.destination == there.id)
    return {row.name: row.id for row in connection.execute(wanted.order_by(subscriptions.c.id).with_for_update())}


def delete_subscription(connection: Connection, subscription: int) -> None:
    """Delete a subscription without consumers, and its messages."""
    connection.execute(delete(messages).where(messages.c.subscription == subscription))
    connection.execute(delete(subscriptions).where(subscriptions.c.id == subscription))


def delete_destination(connection: Connection, destination: str) -> None:
    """Delete a destination without subscriptions, and the sequences of its senders."""
    there = _find_destination(connection, destination)
    if there is not None:
        connection.execute(delete(senders_table).where(senders_table.c.destination == there.id))
        connection.execute(delete(destinations).where(destinations.c.id == there.id))
