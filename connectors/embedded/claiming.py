"""Gives ready messages to a consumer, in the order of priority and number.

A claim need not wait for the disk: if a power failure undoes it, the message is ready again. A message becomes a
suspect if its consumer died while it held the message. A session claims a suspect alone, and counts the delivery in the
same commit, which waits for the disk. So the count of a message that kills its consumers rises each time, and the
counts of its neighbours do not. Receivers of engines claim suspects like all other messages: an engine itself finds out
which message ends its process.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded.content import Stored
from connectors.embedded.properties import UNLIMITED
from connectors.embedded.sql import Sql
from correlator.connector import FlowTerms

_HEAD = Sql(
    "SELECT number, size, suspect FROM ("
    "SELECT * FROM (SELECT number, rank, size, suspect FROM broker_delivery"
    " WHERE subscription = :subscription AND state = 0 AND {unpaused} ORDER BY rank, number LIMIT :limit) AS ready"
    " UNION ALL SELECT * FROM (SELECT number, rank, size, suspect FROM broker_delivery"
    " WHERE subscription = :subscription AND state = 2 AND due <= {now} AND {unpaused}"
    " ORDER BY due LIMIT :limit) AS due"
    ") AS found ORDER BY rank, number LIMIT :limit"
)
_TAKE_ANY = Sql(
    "UPDATE broker_delivery SET state = 1, consumer = :consumer, suspect = 0"
    " WHERE subscription = :subscription AND number IN :numbers AND (state = 0 OR state = 2 AND due <= {now})"
    " AND {unpaused}"
)
_TAKE = Sql(
    "UPDATE broker_delivery SET state = 1, consumer = :consumer, deliveries = deliveries + :suspect"
    " WHERE subscription = :subscription AND number IN :numbers"
    " AND (state = 0 OR state = 2 AND due <= {now}) AND suspect = :suspect AND {unpaused}"
)
_TAKEN = Sql(
    "SELECT d.number, c.message_id, c.sent_at, d.due, c.content, d.deliveries, d.suspect, d.rank, d.expires, {now}"
    " FROM broker_delivery d JOIN broker_content c ON c.number = d.number"
    " WHERE d.subscription = :subscription AND d.number IN :numbers AND d.state = 1 AND d.consumer = :consumer"
    " ORDER BY d.rank, d.number"
)
_CLAIM_POSTGRES = Sql(
    "SELECT 1",
    "WITH ready AS MATERIALIZED (SELECT ctid AS place, number, rank, size, suspect FROM broker_delivery"
    " WHERE subscription = :subscription AND state = 0 AND {unpaused}"
    " ORDER BY rank, number LIMIT :limit FOR UPDATE SKIP LOCKED),"
    " due AS MATERIALIZED (SELECT ctid AS place, number, rank, size, suspect FROM broker_delivery"
    " WHERE subscription = :subscription AND state = 2 AND due <= {now} AND {unpaused}"
    " ORDER BY due LIMIT :limit FOR UPDATE SKIP LOCKED),"
    " found AS (SELECT place, row_number() OVER so_far AS nth, sum(size) OVER so_far AS total,"
    " sum(suspect) OVER so_far AS suspects FROM (SELECT * FROM ready UNION ALL SELECT * FROM due) AS both_kinds"
    " WINDOW so_far AS (ORDER BY rank, number)),"
    " chosen AS (SELECT place FROM found WHERE nth <= :limit AND (:any = 1 OR suspects = :suspect)"
    " AND (nth = 1 OR :suspect = 0 AND total <= :bytes)), {take_chosen}",
)
_TAKE_POSTGRES = Sql(
    "SELECT 1",
    "WITH chosen AS MATERIALIZED (SELECT ctid AS place FROM broker_delivery"
    " WHERE subscription = :subscription AND number IN :numbers{bounded} AND (:any = 1 OR suspect = :suspect)"
    " AND (state = 0 OR state = 2 AND due <= {now}) AND {unpaused} ORDER BY number FOR UPDATE SKIP LOCKED),"
    " {take_chosen}",
)
_NEXT_DUE = Sql(
    "SELECT due, {now} FROM broker_delivery WHERE subscription = :subscription AND state = 2"
    " AND due > {now} - :elapsed ORDER BY due LIMIT 1"
)
_GLANCE_POSTGRES = Sql(
    "SELECT 1",
    "SELECT EXISTS (SELECT 1 FROM broker_delivery WHERE subscription = :subscription AND state = 0)"
    " OR EXISTS (SELECT 1 FROM (SELECT id AS name FROM broker_consumer"
    " WHERE subscription = :subscription AND id <> :consumer) AS others"
    " WHERE NOT EXISTS (SELECT 1 FROM ({locked_keys}) AS locks WHERE key = {key_of_name})),"
    " (SELECT min(due) FROM broker_delivery WHERE subscription = :subscription AND state = 2) - {now}",
)
EXPIRED = "EXPIRED"
"""The reason of the end of a message whose time to live is over."""


class Holder(NamedTuple):
    """A registered consumer.

    Attributes:
        destination, subscription, consumer: the ids of the rows.
        is_queue: whether the destination is a queue, in which each message has only one subscription.
        suspect_through: ready messages up to this number may have been delivered before.
        suspects_alone: whether suspects are claimed one by one, with their deliveries counted at the claim.
        max_active: largest number of consumers of the queue that get messages; -1 for no limit.
        lets_wait: whether senders may wait for room. If this is out of date, senders notice room a second later.
        flow: how far the consumer may fetch ahead.
    """

    destination: int
    subscription: int
    consumer: int
    is_queue: bool
    suspect_through: int = 0
    suspects_alone: bool = False
    lets_wait: bool = False
    max_active: int = UNLIMITED
    flow: FlowTerms = FlowTerms()


class Bounds(NamedTuple):
    """The most that one claim may take; it takes at least one message."""

    messages: int
    bytes: int


class Claimed(NamedTuple):
    """A claimed message.

    Attributes:
        stored: the message.
        suspect: whether the claim has already counted the delivery.
        rank: 9 less its priority.
        ends: the reason (see `dead`) for which it must not be delivered; "" if it may.
        at: time of the claim, by the clock of the database.
    """

    stored: Stored
    suspect: bool
    rank: int
    ends: str
    at: int


class Ready(NamedTuple):
    """A message that a claim may take next."""

    number: int
    size: int
    suspect: int


def look(connection: Connection, holder: Holder, limit: int) -> Sequence[Ready]:
    """Return the first messages that nobody holds, in the order in which they are claimed."""
    place = {"destination": holder.destination, "subscription": holder.subscription}
    return [Ready._make(row) for row in _HEAD.rows(connection, **place, limit=limit)]


def due_in_s(connection: Connection, subscription: int, elapsed_ms: int) -> float:
    """Return the seconds until the next delayed message is due; infinity if there is none.

    A message that was due before the last `elapsed_ms` milliseconds was seen by the previous look, which did not take
    it.
    """
    rows = _NEXT_DUE.rows(connection, subscription=subscription, elapsed=elapsed_ms)
    return max(0.0, (rows[0][0] - rows[0][1]) / 1000) if rows else math.inf


def glance(connection: Connection, holder: Holder) -> float:
    """Return for how many seconds, on PostgreSQL, there is certainly nothing to claim unless a message comes.

    One statement looks for ready messages, for the next delayed one, and for dead consumers of the subscription, which
    may hold messages. Infinity means that there are none of these.
    """
    ((is_something_there, due_in_ms),) = _GLANCE_POSTGRES.rows(
        connection, subscription=holder.subscription, consumer=holder.consumer
    )
    if is_something_there:
        return 0.0
    return math.inf if due_in_ms is None else max(0.0, due_in_ms / 1000)


def within(ready: Sequence[Ready], bounds: Bounds, *, suspects_alone: bool) -> Sequence[Ready]:
    """Return the part of these messages that one claim takes within the bounds."""
    taken: list[Ready] = []
    total = 0
    for one in ready[: bounds.messages]:
        total += one.size
        if taken and ((suspects_alone and one.suspect) or total > bounds.bytes):
            break
        taken.append(one)
        if suspects_alone and one.suspect:
            break
    return taken


def claim_alone(connection: Connection, holder: Holder, bounds: Bounds, *, suspects: bool) -> Sequence[Claimed]:
    """Give the first ready messages within the bounds to the consumer, on PostgreSQL, outside a transaction.

    No look is needed before.

    If suspects are claimed alone, it gives the messages before the first suspect; with `suspects`, it gives the first
    message if that one is a suspect.
    """
    limits = {"limit": bounds.messages, "bytes": bounds.bytes}
    return _claimed(holder, _CLAIM_POSTGRES.alone(connection, **_values(holder, suspects=suspects), **limits))


def claim_chosen(
    connection: Connection, holder: Holder, numbers: Sequence[int], *, suspects: bool
) -> Sequence[Claimed]:
    """Give the messages with these numbers to the consumer, if they are still ready and `claim` would take them."""
    place = {"destination": holder.destination, "subscription": holder.subscription}
    values = {**place, "consumer": holder.consumer, "numbers": list(numbers)}
    if connection.dialect.name != "sqlite":
        chosen = {**_values(holder, suspects=suspects), "numbers": values["numbers"]}
        return _claimed(holder, _TAKE_POSTGRES.rows(connection, **chosen))
    if holder.suspects_alone:
        _TAKE.run(connection, **values, suspect=int(suspects))
    else:
        _TAKE_ANY.run(connection, **values)
    return _claimed(holder, _TAKEN.rows(connection, **values))


def _values(holder: Holder, *, suspects: bool) -> dict[str, int]:
    anything = {"any": int(not holder.suspects_alone), "suspect": int(suspects and holder.suspects_alone)}
    place = {"destination": holder.destination, "subscription": holder.subscription}
    return {**place, "consumer": holder.consumer, **anything}


def _claimed(
    holder: Holder, rows: Sequence[tuple[int, str, int, int, bytes, int, int, int, int, int]]
) -> list[Claimed]:
    claimed = []
    for number, message_id, sent_at, due, content, deliveries, suspect, rank, expires, now in rows:
        before = deliveries > suspect or bool(suspect) or number <= holder.suspect_through
        count = deliveries if suspect else deliveries + 1
        stored = Stored(number, message_id, sent_at, due, content, count, before)
        claimed.append(Claimed(stored, bool(suspect), rank, EXPIRED if 0 < expires <= now else "", now))
    return claimed
