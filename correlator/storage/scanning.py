"""Reads the rows of a store in parts, for programs that process all messages, dead letters or state.

Each function reads within the transaction of its connection, page by page, so memory holds a page of segments. Only
`state` needs memory for all values of its part. An altered row raises E4201 or E4202, as everywhere.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Row, Table, func, select, tuple_

from correlator.core.commit import OutboundSegment, ReceiveSegment
from correlator.core.steps import RECORDS
from correlator.events import Message
from correlator.storage import loading, migrate, tables
from correlator.storage.inspect import DeadLetterRow
from correlator.storage.states import ShownState, facts_of, shown_key

PAGE = 4
"""How many rows are in memory at a time: a segment may have 16 MiB."""
_LARGEST = 2**63 - 1
Key = tuple[Any, ...]


class StoreVersion(NamedTuple):
    """A moment of a store. Every transaction that changes rows raises one of the two numbers."""

    epoch: int
    commit: int


class Part(NamedTuple):
    """A part of a table: the rows whose keys are not below `start`, and below `stop`; `None` for no bound."""

    start: Key | None = None
    stop: Key | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which rows are wanted.

    Attributes:
        owner: id of a receiver or sender, owner of state, or origin of dead letters; `None` for all.
        least: lowest number of a message or dead letter.
        most: highest number.
    """

    owner: str | None = None
    least: int = 0
    most: int = _LARGEST


class NumberedMessage(NamedTuple):
    """A message in the receive log or an outbox, with the id of its receiver or sender, and its number there."""

    owner: str
    number: int
    message: Message


def moment(connection: Connection, where: str) -> StoreVersion:
    """The present moment of a store.

    Raises:
        StoreError: E3003, E3004, E3010, E3012 as `migrate.refuse_other`.
    """
    migrate.refuse_other(connection, where)
    row = connection.execute(select(tables.engine)).first()
    return StoreVersion(0, 0) if row is None else StoreVersion(row.epoch, row.commit_number)


def receive_log(connection: Connection, part: Part, chosen: Chosen) -> Iterator[NumberedMessage]:
    """The messages of the receive log, by receiver and number."""
    for row in _pages(connection, tables.receive_log, part, _segments(tables.receive_log, chosen)):
        segment = loading.received_of(row)
        yield from _numbered(segment.receiver, segment, chosen)


def outbox(connection: Connection, part: Part, chosen: Chosen) -> Iterator[NumberedMessage]:
    """The sends without a recorded confirm, by sender and number. Each message names its destination if it is known."""
    for row in _pages(connection, tables.outbox, part, _segments(tables.outbox, chosen)):
        segment = loading.outbound_of(row)
        for one in _numbered(segment.sender, segment, chosen):
            to = one.message.destination or segment.destination or None
            yield one._replace(message=msgspec.structs.replace(one.message, destination=to))


def dead_letters(connection: Connection, part: Part, chosen: Chosen) -> Iterator[DeadLetterRow]:
    """The dead letters, by number."""
    letter = tables.dead_letter.c
    wanted = [letter.number >= chosen.least, letter.number <= chosen.most]
    if chosen.owner is not None:
        wanted.append(letter.origin == chosen.owner)
    for row in _pages(connection, tables.dead_letter, part, wanted):
        yield DeadLetterRow(number=row.number, letter=loading.letter_of(row))


def last_dead_letter(connection: Connection) -> int:
    """The last number that a dead letter has got, even if the letter does not exist any more."""
    return connection.execute(select(tables.engine.c.dead_letters)).scalar() or 0


def first_dead_letter(connection: Connection) -> int | None:
    """The lowest number of an existing dead letter."""
    return connection.execute(select(func.min(tables.dead_letter.c.number))).scalar()


def state(connection: Connection, chosen: Chosen, share: int = 0, shares: int = 1) -> Iterator[ShownState]:
    """The values of state, by owner and key, of the keys whose hash belongs to a share."""
    values: dict[str, dict[bytes, bytes]] = {}
    for segment in loading.state_segments(connection):
        for entry in segment.entries:
            if entry.owner != RECORDS and not _is_wanted(entry.owner, entry.key, chosen, share, shares):
                continue
            if entry.value is None:
                values.get(entry.owner, {}).pop(entry.key, None)
            else:
                values.setdefault(entry.owner, {})[entry.key] = entry.value
    facts = facts_of(values)
    for owner in sorted(values):
        for key in sorted(values[owner]):
            if _is_wanted(owner, key, chosen, share, shares):  # the fingerprints are always read
                yield shown_key(owner, key, values[owner][key], facts)


def _is_wanted(owner: str, key: bytes, chosen: Chosen, share: int, shares: int) -> bool:
    return chosen.owner in (None, owner) and zlib.crc32(key) % shares == share


def divide(connection: Connection, table: Table, parts: int) -> list[Part]:
    """Divide a table of segments or dead letters into 1 to `parts` parts of about the same size in bytes."""
    keys = _key_of(table)
    rows = connection.execute(select(*keys, func.length(table.c.content)).order_by(*keys)).all()
    total, seen = sum(row[-1] for row in rows), 0
    begins: list[Key] = []
    for row in rows:
        if seen * parts >= total * len(begins):
            begins.append(tuple(row[:-1]))
        seen += row[-1]
    if not begins:
        return [Part()]
    return [Part(begin, end) for begin, end in zip(begins, [*begins[1:], None], strict=True)]


def _segments(table: Table, chosen: Chosen) -> list[Any]:
    """The conditions for segments that hold a chosen message."""
    wanted: list[Any] = [table.c.last >= chosen.least, table.c.first <= chosen.most]
    if chosen.owner is not None:
        wanted.append(_key_of(table)[0] == chosen.owner)
    return wanted


def _numbered(owner: str, segment: ReceiveSegment | OutboundSegment, chosen: Chosen) -> Iterator[NumberedMessage]:
    for number, message in enumerate(segment.messages, segment.first):
        if chosen.least <= number <= chosen.most:
            yield NumberedMessage(owner, number, message)


def _pages(connection: Connection, table: Table, part: Part, wanted: Sequence[Any]) -> Iterator[Row[Any]]:
    """The rows of a part that fit all conditions, in the order of their keys."""
    keys = _key_of(table)
    query = select(table).where(*wanted).order_by(*keys).limit(PAGE)
    if part.stop is not None:
        query = query.where(tuple_(*keys) < tuple_(*part.stop))
    begins = () if part.start is None else (tuple_(*keys) >= tuple_(*part.start),)
    while True:
        rows = connection.execute(query.where(*begins)).all()
        yield from rows
        if len(rows) < PAGE:
            return
        begins = (tuple_(*keys) > tuple_(*[getattr(rows[-1], key.name) for key in keys]),)


def _key_of(table: Table) -> list[Column[Any]]:
    return list(table.primary_key)
