"""Puts messages into the tables: takes their numbers, stores content and deliveries, and counts them."""

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import tally
from connectors.embedded.content import Stored, decode
from connectors.embedded.database import raw_sqlite
from connectors.embedded.destinations import Destination, Subscription
from connectors.embedded.sql import Function, Sql
from correlator.selector import Selector

PORTION_BYTES = 64 * 1024 * 1024
"""Most bytes of content that one statement of PostgreSQL stores; it stores at least one message.

The server takes less than 1 GB in one statement, and copies each content there.
"""
_DRAW = Sql(
    "UPDATE broker_store SET last_number = last_number + :total RETURNING last_number, {now}, 0",
    # The transaction has an id before it takes numbers: so a scan that sees a number knows which transactions may still
    # store lower numbers. It shares a lock on the destination, so that nobody deletes it meanwhile, or has the lock
    # alone, so that nobody else sends there meanwhile.
    "WITH begun AS MATERIALIZED (SELECT pg_current_xact_id(),"
    " set_config('synchronous_commit',"
    " CASE WHEN :lazy THEN 'off' ELSE current_setting('synchronous_commit') END, true),"
    " CASE WHEN :alone THEN pg_advisory_xact_lock(key) ELSE pg_advisory_xact_lock_shared(key) END FROM (SELECT"
    " hashtextextended(concat('correlator broker ', current_schema(), ' ', CAST(:name AS text)), 2) AS key) AS keys)"
    " SELECT nextval('broker_number'), {now}, CAST(current_setting('max_connections') AS bigint)"
    " FROM begun CROSS JOIN generate_series(1, :total)",
)
_ADD_CONTENT = Sql(
    "INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)"
    " VALUES (:number, :destination, :message_id, :sent_at, :persistent, :refs_left, :content)",
    "SELECT 1",
)
_ADD_DELIVERY = Sql(
    "INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " VALUES (:subscription, :number, :rank, CASE WHEN :due > 0 THEN 2 ELSE 0 END, 0, 0, 0, :due, :expires,"
    " length(:content))",
    "SELECT 1",
)
_DELIVER_ALL = Sql(
    # SQLite has one transaction at a time: all messages between two of its numbers are its own.
    "INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " SELECT :subscription, number, :rank, 0, 0, 0, 0, 0, 0, length(content) FROM broker_content"
    " WHERE number BETWEEN :first AND :last",
    "SELECT 1",
)
_ADD_POSTGRES = Sql(
    "SELECT 1",
    "WITH added AS MATERIALIZED (SELECT number, message_id, sent_at, persistent, refs_left, rank, due, expires, size,"
    " substring(CAST(:contents AS bytea) FROM CAST(start AS integer) FOR CAST(size AS integer)) AS content"
    " FROM unnest(CAST(:number AS bigint[]), CAST(:message_id AS text[]),"
    " CAST(:sent_at AS bigint[]), CAST(:persistent AS bigint[]), CAST(:refs_left AS bigint[]),"
    " CAST(:rank AS bigint[]), CAST(:due AS bigint[]), CAST(:expires AS bigint[]), CAST(:start AS bigint[]),"
    " CAST(:size AS bigint[]))"
    " AS row (number, message_id, sent_at, persistent, refs_left, rank, due, expires, start, size)),"
    " content AS ("
    "INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)"
    " SELECT number, :destination, message_id, sent_at, persistent, refs_left, content FROM added),"
    " delivery AS (INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " SELECT w.subscription, a.number, a.rank, CASE WHEN a.due > 0 THEN 2 ELSE 0 END, 0, 0, 0, a.due, a.expires,"
    " a.size FROM unnest(CAST(:subscription AS bigint[]), CAST(:wanted AS bigint[]))"
    " AS w (subscription, number) JOIN added a ON a.number = w.number)"
    " SELECT broker_count(:destination, count(*), CAST(sum(size) AS bigint), :folded) FROM added",
)
_SEND_SQLITE = Sql(
    "INSERT INTO broker_send (queue, message_id, began, persistent, content, rank, delay, lives)"
    " VALUES (:name, :message_id, {now} - :age, :persistent, :content, :rank, :delay_ms, :lives_ms)",
    "SELECT 1",
)
_SEND_POSTGRES = Function("broker_send")


class NewMessage(NamedTuple):
    """A message to be stored.

    Attributes:
        source, sequence: the values by which the broker recognises a repeat; the source "" is for a message without
        repeats.
        message_id: the header of this name.
        content: the encoded message.
        rank: 9 less its priority.
        lives_ms: time to live, 0 for no limit.
        delay_ms: time for which consumers do not get it.
        since_s: when these times have begun, by the monotonic clock; 0 for the time of storing.
        persistent: 0 if it ends with the broker, else 1.
        sent_at: when it was sent, if it is moved; 0 for now.
        traced: whether this process logs its steps.
        insists: whether a message that is not persistent is refused, not dropped, if there is no room.
    """

    source: str
    sequence: int
    message_id: str
    content: bytes
    rank: int = 5
    lives_ms: int = 0
    delay_ms: int = 0
    since_s: float = 0.0
    persistent: int = 1
    sent_at: int = 0
    traced: bool = False
    insists: bool = False


class Arrival(NamedTuple):
    """A new message.

    Attributes:
        at: its position in the batch to store.
        number: the number that was taken for it.
    """

    at: int
    number: int
    entry: NewMessage


class Undone(Exception):
    """A transaction is rolled back on purpose. The link stays open."""


class Drawn(NamedTuple):
    """Numbers for new messages.

    Attributes:
        numbers: the numbers in ascending order.
        sent_at: the time of the database.
        rivals: largest number of other transactions that may send at the same time; 0 with SQLite.
    """

    numbers: Sequence[int]
    sent_at: int
    rivals: int


def draw(connection: Connection, name: str, total: int, *, lazy: bool = False, alone: bool = False) -> Drawn:
    """Take numbers for messages to a destination. Nobody deletes the destination before the transaction ends.

    Args:
        connection: a connection in a transaction.
        name: the destination.
        total: how many numbers, 1 or more.
        lazy: whether the commit of the transaction need not wait for the disk.
        alone: whether no other transaction may send there until this one ends.
    """
    drawn = _DRAW.rows(connection, name=name, total=total, lazy=lazy, alone=alone)
    # SQLite answers with the last number, PostgreSQL with all of them.
    numbers = [int(row[0]) for row in drawn]
    if len(numbers) < total:
        numbers = list(range(numbers[0] - total + 1, numbers[0] + 1))
    return Drawn(numbers, int(drawn[0][1]), int(drawn[0][2]))


def send(connection: Connection, name: str, entry: NewMessage, *, lazy: bool) -> bool:
    """Store one message in a queue with one statement: on PostgreSQL outside a transaction, on SQLite within one.

    Returns false, and changes nothing, if one statement is not enough: the queue is missing, paused, full, or on
    PostgreSQL not far from its limits. The message has no source.
    """
    age_ms = int((time.monotonic() - entry.since_s) * 1000) if entry.since_s else 0
    if connection.dialect.name != "sqlite":
        times = age_ms, entry.lives_ms, entry.delay_ms
        return _SEND_POSTGRES.call(
            connection, name, entry.message_id, entry.content, entry.rank, entry.persistent, *times, lazy, tally.FOLDED
        )
    raw = raw_sqlite(connection)
    before = raw.total_changes
    _SEND_SQLITE.run(
        connection,
        name=name,
        message_id=entry.message_id,
        content=entry.content,
        rank=entry.rank,
        persistent=entry.persistent,
        age=age_ms,
        lives_ms=entry.lives_ms,
        delay_ms=entry.delay_ms,
    )
    return raw.total_changes > before


class _Row(NamedTuple):
    """The stored data of a message. `due` and `expires` are 0 for never; `readers` are the ids of its subscriptions."""

    number: int
    message_id: str
    sent_at: int
    persistent: int
    content: bytes
    rank: int
    due: int
    expires: int
    readers: tuple[int, ...]


def append(
    connection: Connection,
    there: Destination,
    readers: Sequence[Subscription],
    fresh: Sequence[Arrival],
    sent_at: int,
) -> list[str]:
    """Store new messages with their numbers for each of these subscriptions that wants them.

    A message that no subscription wants is not stored. Returns the message ids of the stored messages that are traced.
    """
    rows = _rows(readers, fresh, sent_at)
    if rows and connection.dialect.name == "sqlite":
        _add_sqlite(connection, there.id, rows)
    elif rows:
        for portion in _portions(rows):
            _add_postgres(connection, there.id, portion)
    stored = {row.number for row in rows}
    return [entry.message_id for _, number, entry in fresh if entry.traced and number in stored]


def _rows(readers: Sequence[Subscription], fresh: Sequence[Arrival], sent_at: int) -> list[_Row]:
    """Return the rows of the messages that at least one subscription wants."""
    rows = []
    everybody = tuple([reader.id for reader in readers])
    choosy = any(reader.selector is not None for reader in readers)
    now_s = time.monotonic()
    for _, number, entry in fresh:
        began = sent_at - int((now_s - entry.since_s) * 1000) if entry.since_s else sent_at
        due = began + entry.delay_ms if entry.delay_ms else 0
        wanting = everybody
        if choosy:
            wanting = tuple([reader.id for reader in readers if wants(reader, number, entry, began, due)])
        if wanting:
            expires = began + entry.lives_ms if entry.lives_ms else 0
            at, kept = entry.sent_at or began, entry.persistent
            rows.append(_Row(number, entry.message_id, at, kept, entry.content, entry.rank, due, expires, wanting))
    return rows


def _add_sqlite(connection: Connection, destination: int, rows: Sequence[_Row]) -> None:
    """Insert the rows, with one statement for all deliveries of a subscription if the messages are alike."""
    _ADD_CONTENT.run_all(
        connection,
        [{**row._asdict(), "destination": destination, "refs_left": len(row.readers)} for row in rows],
    )
    first, last = rows[0], rows[-1]
    if {(row.rank, row.due, row.expires, row.readers) for row in rows} == {(first.rank, 0, 0, first.readers)}:
        for reader in first.readers:
            span = {"rank": first.rank, "first": first.number, "last": last.number}
            _DELIVER_ALL.run(connection, subscription=reader, **span)
    else:
        deliveries = [{**row._asdict(), "subscription": reader} for row in rows for reader in row.readers]
        _ADD_DELIVERY.run_all(connection, deliveries)
    tally.add(connection, destination, len(rows), sum([len(row.content) for row in rows]))


def _portions(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Split the rows into portions of at most `PORTION_BYTES`, or of one row."""
    first = size = 0
    for at, row in enumerate(rows):
        size += len(row.content)
        if size > PORTION_BYTES and at > first:
            yield rows[first:at]
            first, size = at, len(row.content)
    yield rows[first:]


def _add_postgres(connection: Connection, destination: int, rows: Sequence[_Row]) -> None:
    """Insert the rows, in one round trip.

    The driver takes 10 µs for each message if it gets lists, and less than 1 µs if it gets texts. All contents are one
    value, which the server divides.
    """
    sizes = [len(row.content) for row in rows]
    ends = list(accumulate(sizes))
    _ADD_POSTGRES.run(
        connection,
        destination=destination,
        number=_numbers([row.number for row in rows]),
        message_id=_texts([row.message_id for row in rows]),
        sent_at=_numbers([row.sent_at for row in rows]),
        persistent=_numbers([row.persistent for row in rows]),
        refs_left=_numbers([len(row.readers) for row in rows]),
        rank=_numbers([row.rank for row in rows]),
        due=_numbers([row.due for row in rows]),
        expires=_numbers([row.expires for row in rows]),
        start=_numbers([end - size + 1 for end, size in zip(ends, sizes, strict=True)]),
        size=_numbers(sizes),
        contents=b"".join([row.content for row in rows]),
        subscription=_numbers([reader for row in rows for reader in row.readers]),
        wanted=_numbers([row.number for row in rows for _ in row.readers]),
        folded=tally.FOLDED,
    )


def _numbers(values: Sequence[int]) -> str:
    """Return the text of an array of PostgreSQL."""
    return f"{{{','.join(map(str, values))}}}"


def _texts(values: Sequence[str]) -> str:
    """Return the text of an array of PostgreSQL."""
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(quoted) + '"}'


@lru_cache(maxsize=256)
def _selector(text: str) -> Selector | None:
    return Selector.optional(text, "selector")


def wants(reader: Subscription, number: int, entry: NewMessage, sent_at: int = 0, due: int = 0) -> bool:
    """Return whether the selector of a subscription matches; an error or an unknown result is no match."""
    if reader.selector is None:
        return True
    selector = _selector(reader.selector)
    assert selector is not None
    stored = Stored(number, entry.message_id, sent_at, due, entry.content, 1, redelivered=False)
    return selector.matches(decode(stored))
