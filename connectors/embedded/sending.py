"""Stores messages: every message comes into a destination through `store`."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from connectors.embedded import destinations, tally
from connectors.embedded.content import Stored, decode
from connectors.embedded.destinations import Destination, Subscription
from connectors.embedded.sql import DELAYED, READY, Sql
from correlator.selector import Selector

MOST_LIVES = 100
"""Most sources of BEST_EFFORT senders that a destination remembers: such a sender has a new source in each life."""
_ONE_LIFE = "one life: "
_DRAW = Sql(
    "UPDATE broker_store SET last_number = last_number + :total RETURNING last_number, {now}",
    # The transaction has an id before it draws numbers: whoever sees a number knows which transactions may still come
    # with lower ones (`scan`). It shares a lock on the destination, so that nobody deletes it meanwhile.
    "WITH begun AS MATERIALIZED (SELECT pg_current_xact_id(),"
    " set_config('synchronous_commit',"
    " CASE WHEN :lazy THEN 'off' ELSE current_setting('synchronous_commit') END, true),"
    " pg_advisory_xact_lock_shared("
    "hashtextextended(concat('correlator broker ', current_schema(), ' ', CAST(:name AS text)), 2)))"
    " SELECT nextval('broker_number'), {now} FROM begun CROSS JOIN generate_series(1, :total)",
)
_ADD_CONTENT = Sql(
    "INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)"
    " VALUES (:number, :destination, :message_id, :sent_at, :persistent, :refs_left, :content)",
    "INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)"
    " SELECT number, :destination, message_id, :sent_at, persistent, refs_left, content FROM unnest("
    "CAST(:number AS bigint[]), CAST(:message_id AS text[]), CAST(:persistent AS bigint[]),"
    " CAST(:refs_left AS bigint[]), CAST(:content AS bytea[]))"
    " AS added (number, message_id, persistent, refs_left, content)",
)
_ADD_DELIVERY = Sql(
    "INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " VALUES (:subscription, :number, :rank, :state, 0, 0, 0, :due, :expires, :size)",
    "INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " SELECT subscription, number, rank, state, 0, 0, 0, due, expires, size FROM unnest("
    "CAST(:subscription AS bigint[]), CAST(:number AS bigint[]), CAST(:rank AS bigint[]), CAST(:state AS bigint[]),"
    " CAST(:due AS bigint[]), CAST(:expires AS bigint[]), CAST(:size AS bigint[]))"
    " AS added (subscription, number, rank, state, due, expires, size)",
)
_DELIVER_ALL = Sql(
    "INSERT INTO broker_delivery"
    " (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)"
    " SELECT :subscription, number, :rank, 0, 0, 0, 0, 0, 0, length(content) FROM broker_content"
    " WHERE number BETWEEN :first AND :last"
)
"""For SQLite, whose transactions are alone: all messages between two numbers are those of the transaction."""
_LAST_SEQUENCE = Sql(
    "SELECT last_sequence FROM broker_sender WHERE destination = :destination AND source = :source{lock}"
)
_FIRST_SEQUENCE = Sql(
    "INSERT INTO broker_sender (destination, source, last_sequence) VALUES (:destination, :source, 0)"
    " ON CONFLICT DO NOTHING"
)
_REMEMBER = Sql(
    "UPDATE broker_sender SET last_sequence = :sequence WHERE destination = :destination AND source = :source"
)
_COUNT_LIVES = Sql("SELECT count(*) FROM broker_sender WHERE destination = :destination AND source LIKE 'one life: %'")
_FORGET_LIVES = Sql(
    "DELETE FROM broker_sender WHERE destination = :destination AND source LIKE 'one life: %' AND source <> :source"
)


def of_one_life(source: str) -> str:
    """The stored name of a source that no later life of its sender uses, so that the broker may forget it."""
    return f"{_ONE_LIFE}{source}"


class NewMessage(NamedTuple):
    """A message to be stored.

    Attributes:
        source, sequence: by these the broker recognises a repeat; "" for a message that is none.
        message_id: its header.
        content: the encoded message.
        rank: 9 less its priority.
        lives_ms: time to live, 0 for without limit.
        delay_ms: how long consumers do not get it.
        persistent: 0 if it ends with the broker, else 1.
    """

    source: str
    sequence: int
    message_id: str
    content: bytes
    rank: int = 5
    lives_ms: int = 0
    delay_ms: int = 0
    persistent: int = 1


class NoSuchDestination(Exception):
    """A message goes to a temporary destination that is gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


def make_missing(connection: Connection, names: Collection[str]) -> None:
    """Make the destinations that are missing, before messages are stored in several.

    Storing shares a lock on its destination, and making one waits for the registry: the other order could wait for
    somebody who deletes a destination.
    """
    if len(names) > 1:
        for name in sorted(names):
            if not destinations.is_temporary(name):
                destinations.ensure(connection, name)


def store(connection: Connection, name: str, entries: Sequence[NewMessage], *, lazy: bool = False) -> None:
    """Store the messages that are no repeats, for each subscription of the destination that wants them.

    A message that no subscription wants is not stored.

    Args:
        connection: in a transaction.
        name: the destination.
        entries: one message or more.
        lazy: whether the commit of the transaction need not wait for the disk.

    Raises:
        NoSuchDestination: a temporary destination is gone.
    """
    drawn = _DRAW.rows(connection, name=name, total=len(entries), lazy=lazy)
    sent_at = int(drawn[0][1])
    # SQLite answers with the last number, PostgreSQL with all of them.
    numbers = [int(row[0]) for row in drawn]
    if len(numbers) < len(entries):
        numbers = list(range(numbers[0] - len(entries) + 1, numbers[0] + 1))
    there = destinations.find(connection, name)
    if there is None:
        if destinations.is_temporary(name):
            raise NoSuchDestination(name)
        there = destinations.ensure(connection, name)
    fresh = _first_time(connection, there.id, entries)
    readers = destinations.subscriptions(connection, there.id)
    if fresh and readers:
        _append(connection, there, readers, list(zip(numbers, fresh, strict=False)), sent_at)


def _append(
    connection: Connection,
    there: Destination,
    readers: Sequence[Subscription],
    fresh: Sequence[tuple[int, NewMessage]],
    sent_at: int,
) -> None:
    contents, deliveries = [], []
    total = 0
    alike = connection.dialect.name == "sqlite" and _are_alike(readers, fresh)
    for number, entry in fresh:
        due = sent_at + entry.delay_ms if entry.delay_ms else 0
        wanting = [reader for reader in readers if _wants(reader, number, entry, sent_at, due)]
        if not wanting:
            continue
        size = len(entry.content)
        total += size
        contents.append(
            {
                "number": number,
                "destination": there.id,
                "message_id": entry.message_id,
                "sent_at": sent_at,
                "persistent": entry.persistent,
                "refs_left": len(wanting),
                "content": entry.content,
            }
        )
        if not alike:
            delivery = {"number": number, "rank": entry.rank, "state": DELAYED if due else READY, "due": due}
            delivery |= {"expires": sent_at + entry.lives_ms if entry.lives_ms else 0, "size": size}
            deliveries += [{"subscription": reader.id, **delivery} for reader in wanting]
    if not contents:
        return
    _add(connection, _ADD_CONTENT, contents, ("destination", "sent_at"))
    if alike:
        span = {"rank": fresh[0][1].rank, "first": fresh[0][0], "last": fresh[-1][0]}
        for reader in readers:
            _DELIVER_ALL.run(connection, subscription=reader.id, **span)
    else:
        _add(connection, _ADD_DELIVERY, deliveries, ())
    tally.add(connection, there.id, len(contents), total)


def _are_alike(readers: Sequence[Subscription], fresh: Sequence[tuple[int, NewMessage]]) -> bool:
    """Whether each subscription gets all of the messages at once, in the same rank, and for as long as it wants."""
    rank = fresh[0][1].rank
    return all(reader.selector is None for reader in readers) and not any(
        entry.rank != rank or entry.delay_ms or entry.lives_ms for _, entry in fresh
    )


def _add(connection: Connection, insert: Sql, rows: Sequence[dict[str, Any]], same: Sequence[str]) -> None:
    """Insert rows: one by one into SQLite; as columns, in one round trip, into PostgreSQL."""
    if connection.dialect.name == "sqlite":
        insert.run_all(connection, rows)
    else:
        columns = {name: rows[0][name] if name in same else [row[name] for row in rows] for name in rows[0]}
        insert.run(connection, **columns)


@lru_cache(maxsize=256)
def _selector(text: str) -> Selector | None:
    return Selector.optional(text, "selector")


def _wants(reader: Subscription, number: int, entry: NewMessage, sent_at: int, due: int) -> bool:
    """Whether the selector of a subscription matches; an error or an unknown result is no match."""
    if reader.selector is None:
        return True
    selector = _selector(reader.selector)
    assert selector is not None
    stored = Stored(number, entry.message_id, sent_at, due, entry.content, 1, redelivered=False)
    return selector.matches(decode(stored))


def _first_time(connection: Connection, destination: int, entries: Sequence[NewMessage]) -> list[NewMessage]:
    """The messages whose sequence is above the last stored one of their source; stores the new last sequences."""
    # In the order of their names, so that two transactions never wait for each other's sources.
    sources = sorted({entry.source for entry in entries if entry.source})
    before = {source: _last_sequence(connection, destination, source) for source in sources}
    last = dict(before)
    fresh = []
    for entry in entries:
        if not entry.source:
            fresh.append(entry)
        elif entry.sequence > last[entry.source]:
            last[entry.source] = entry.sequence
            fresh.append(entry)
    for source in sources:
        if last[source] != before[source]:
            _REMEMBER.run(connection, destination=destination, source=source, sequence=last[source])
    return fresh


def _last_sequence(connection: Connection, destination: int, source: str) -> int:
    """The last sequence of a source, whose row is locked then."""
    found = _LAST_SEQUENCE.one(connection, destination=destination, source=source)
    if found is not None:
        return int(found)
    _FIRST_SEQUENCE.run(connection, destination=destination, source=source)
    if source.startswith(_ONE_LIFE):
        _forget_other_lives(connection, destination, source)
    return int(_LAST_SEQUENCE.one(connection, destination=destination, source=source))


def _forget_other_lives(connection: Connection, destination: int, source: str) -> None:
    """Forget the other sources of BEST_EFFORT senders, once there are many. Nearly all of their lives have ended.

    A source whose life goes on is stored again with its next message.
    """
    if _COUNT_LIVES.one(connection, destination=destination) > MOST_LIVES:
        _FORGET_LIVES.run(connection, destination=destination, source=source)
