"""Reads a store at a start. The CRC of every row is checked before the engine uses any row."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Column, Connection, Row, Select, func, select, tuple_

from correlator.core.commit import (
    ContextCut,
    Endpoint,
    IdSegment,
    OutboundSegment,
    ReceiveSegment,
    Recovered,
    StateSegment,
    Suspect,
)
from correlator.core.deadletters import Letter
from correlator.core.delivery import Received
from correlator.core.pieces import pieces
from correlator.events import DeadLetter
from correlator.storage import codec, tables
from correlator.storage.owned import Database

T = TypeVar("T")
PAGE = 32
"""The number of segments that are read at a time; together they have a few megabytes."""
_NO_CHECKPOINT = codec.CheckpointContent(0, 0.0, b"", [], [])


class PagedRows(Generic[T]):
    """Values of the rows of a table. Each iteration reads them again, in pages. Not for use after the first commit."""

    def __init__(self, database: Database, pages: Callable[[Connection, Any], Sequence[Row[Any]]], value: Any) -> None:
        self._database = database
        self._pages = pages
        self._value: Callable[[Row[Any]], T] = value

    def __iter__(self) -> Iterator[T]:
        after: Row[Any] | None = None
        while True:
            with self._database.looking() as connection:
                rows = self._pages(connection, after)
            yield from map(self._value, rows)
            if len(rows) < PAGE:
                return
            after = rows[-1]


def load(database: Database, connection: Connection, epoch: int, commit: int) -> Recovered:
    """Read the whole store in one transaction.

    Ids and state may be large: `load` only checks them, and each later iteration over them reads them again.

    Args:
        database: has the connection for later iterations.
        connection: a connection in a transaction that keeps other engines from committing.
        epoch: the epoch that the start will take.
        commit: the number of the last committed transaction.

    Raises:
        RecoveryRefused: E4201, E4202, a row was changed or cannot be read.
    """
    cut = _cut(connection)
    confirmed, consumed = _progress(connection)
    for pages, where in ((_id_pages, _where_ids), (_state_pages, _where_state)):
        _check_all(connection, pages, where)
    return Recovered(
        epoch=epoch,
        commit=commit,
        checkpoint=cut.number,
        engine_time=cut.engine_time,
        digest=cut.digest,
        contexts=cut.contexts,
        senders=cut.senders,
        state=PagedRows[StateSegment](database, _state_pages, state_of),
        ids=PagedRows[IdSegment](database, _id_pages, ids_of),
        confirmed_batches=confirmed,
        consumed=consumed,
        receive_log=[received_of(row) for row in connection.execute(_ordered(tables.receive_log))],
        outbound=[outbound_of(row) for row in connection.execute(_ordered(tables.outbox))],
        endpoints=[endpoint_of(row) for row in connection.execute(_ordered(tables.endpoint))],
        suspects=[
            msgspec.structs.replace(suspect, deaths=suspect.deaths + 1)
            for suspect in map(suspect_of, connection.execute(_ordered(tables.suspect)))
        ],
    )


def state_by_number(connection: Connection, numbers: Sequence[int]) -> list[StateSegment]:
    """State segments by number, in order."""
    table = tables.state_log
    segments = []
    for start in range(0, len(numbers), PAGE):
        query = _ordered(table).where(table.c.number.in_(numbers[start : start + PAGE]))
        segments += [state_of(row) for row in connection.execute(query)]
    return sorted(segments, key=lambda segment: segment.number)


def id_segments(connection: Connection) -> Iterator[IdSegment]:
    """Id segments of all domains in the order of their numbers, read in pages."""
    after: Row[Any] | None = None
    while True:
        rows = _id_pages(connection, after)
        yield from map(ids_of, rows)
        if len(rows) < PAGE:
            return
        after = rows[-1]


def state_segments(connection: Connection) -> Iterator[StateSegment]:
    """State segments in the order of their numbers, read in pages."""
    after: Row[Any] | None = None
    while True:
        rows = _state_pages(connection, after)
        yield from map(state_of, rows)
        if len(rows) < PAGE:
            return
        after = rows[-1]


def received(connection: Connection, contexts: Sequence[ContextCut]) -> Received:
    """Return the numbers of the received messages that the store holds, without reading the messages.

    Args:
        connection: a connection in a transaction.
        contexts: the contexts in the last checkpoint.
    """
    log = tables.receive_log.c
    rows = connection.execute(select(log.receiver, func.max(log.last)).group_by(log.receiver))
    logged = {receiver: int(last) for receiver, last in rows}
    progress = tables.receive_progress.c
    consumed = connection.execute(select(progress.receiver, progress.consumed))  # an older schema has no digests of it
    return Received(contexts, {receiver: number for receiver, number in consumed if number}, logged)


def last_letter(connection: Connection) -> int:
    """The largest number of a dead letter in the store; 0 without one."""
    return connection.execute(select(func.max(tables.dead_letter.c.number))).scalar() or 0


def cut_of(row: Row[Any]) -> codec.CheckpointContent:
    """Decode a row of `checkpoint`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = f"checkpoint {row.number}"
    cut = codec.read(codec.CheckpointContent, where, row.content, row.crc)
    return _same(where, cut, {"number": cut.number}, row)


def received_of(row: Row[Any]) -> ReceiveSegment:
    """Decode a row of `receive_log`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = f"receive log of '{row.receiver}' from {row.first}"
    segment = codec.read(ReceiveSegment, where, row.content, row.crc)
    return _same(where, segment, {"receiver": segment.receiver, **_span(segment)}, row)


def outbound_of(row: Row[Any]) -> OutboundSegment:
    """Decode a row of `outbox`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = f"outbox of '{row.sender}' from {row.first}"
    segment = codec.read(OutboundSegment, where, row.content, row.crc)
    return _same(where, segment, {"sender": segment.sender, **_span(segment)}, row)


def ids_of(row: Row[Any]) -> IdSegment:
    """Decode a row of `accepted_ids`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = _where_ids(row)
    segment = codec.read(IdSegment, where, row.content, row.crc)
    columns = {"domain": segment.domain, "number": segment.number, "receiver": segment.receiver}
    return _same(where, segment, columns, row)


def state_of(row: Row[Any]) -> StateSegment:
    """Decode a row of `state_log`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = _where_state(row)
    segment = codec.read(StateSegment, where, row.content, row.crc)
    return _same(where, segment, {"number": segment.number}, row)


def endpoint_of(row: Row[Any]) -> Endpoint:
    """Decode a row of `endpoint`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = f"registry of '{row.id}'"
    endpoint = codec.read(Endpoint, where, row.content, row.crc)
    return _same(where, endpoint, {"id": endpoint.id, "kind": endpoint.kind, "domain": endpoint.domain}, row)


def letters_above(connection: Connection, above: int, most: int) -> list[Letter]:
    """Read the next dead letters with larger numbers, by number: at most `most`, and about `MOST_BYTES` together, but
    at least one. Raises `RecoveryRefused` as `letter_of`.
    """
    number, content = tables.dead_letter.c.number, tables.dead_letter.c.content
    beyond = select(number, func.length(content)).where(number > above).order_by(number).limit(most)
    sizes = dict(map(tuple, connection.execute(beyond)))
    if not sizes:
        return []
    last = pieces([*sizes], [*sizes.values()], most)[0][-1]
    query = select(tables.dead_letter).where(number > above, number <= last).order_by(number)
    return [(row.number, letter_of(row)) for row in connection.execute(query)]


def letter_of(row: Row[Any]) -> DeadLetter:
    """Decode a row of `dead_letter`. Raises `RecoveryRefused` E4201 or E4202 for an altered row."""
    where = f"dead letter {row.number}"
    letter = codec.read(DeadLetter, where, row.content, row.crc)
    return _same(where, letter, {"kind": letter.kind, "origin": letter.origin}, row)


def suspect_of(row: Row[Any]) -> Suspect:
    """Return the value of a row of `suspect`. Raises `RecoveryRefused` E4201 for an altered row."""
    suspect = Suspect(row.context, row.receiver, row.first, row.last, row.deaths)
    if codec.content_of(suspect)["crc"] != row.crc:
        raise codec.altered(f"note about '{row.context}', '{row.receiver}' from {row.first}")
    return suspect


def progress_of(row: Row[Any]) -> Row[Any]:
    """Return a row of `receive_progress`. Raises `RecoveryRefused` E4201 for an altered row."""
    if codec.progress_row(row.receiver, confirmed_batch=row.confirmed_batch, consumed=row.consumed) != row._asdict():
        raise codec.altered(f"progress of receiver '{row.receiver}'")
    return row


def _same(where: str, value: T, columns: Mapping[str, Any], row: Row[Any]) -> T:
    """Return the value, after a check that other columns of the row agree with it. Raises `RecoveryRefused` E4201."""
    if any(getattr(row, name) != expected for name, expected in columns.items()):
        raise codec.altered(where)
    return value


def _span(segment: ReceiveSegment | OutboundSegment) -> dict[str, int]:
    return {"first": segment.first, "last": segment.first + len(segment.messages) - 1}


def _cut(connection: Connection) -> codec.CheckpointContent:
    row = connection.execute(select(tables.checkpoint)).first()
    return _NO_CHECKPOINT if row is None else cut_of(row)


def _progress(connection: Connection) -> tuple[dict[str, int], dict[str, int]]:
    rows = [progress_of(row) for row in connection.execute(_ordered(tables.receive_progress))]
    confirmed = {row.receiver: row.confirmed_batch for row in rows if row.confirmed_batch}
    return confirmed, {row.receiver: row.consumed for row in rows if row.consumed}


def _check_all(
    connection: Connection,
    pages: Callable[[Connection, Any], Sequence[Row[Any]]],
    where: Callable[[Row[Any]], str],
) -> None:
    rows: Sequence[Row[Any]] = ()
    while True:
        rows = pages(connection, rows[-1] if rows else None)
        for row in rows:
            codec.check(where(row), row.content, row.crc)
        if len(rows) < PAGE:
            return


def _id_pages(connection: Connection, after: Row[Any] | None) -> Sequence[Row[Any]]:
    ids = tables.accepted_ids
    query = _ordered(ids).limit(PAGE)
    if after is not None:
        query = query.where(tuple_(ids.c.domain, ids.c.number) > tuple_(after.domain, after.number))
    return connection.execute(query).all()


def _state_pages(connection: Connection, after: Row[Any] | None) -> Sequence[Row[Any]]:
    log = tables.state_log
    query = _ordered(log).limit(PAGE)
    if after is not None:
        query = query.where(log.c.number > after.number)
    return connection.execute(query).all()


def _where_ids(row: Row[Any]) -> str:
    return f"ids of '{row.domain}' number {row.number}"


def _where_state(row: Row[Any]) -> str:
    return f"state {row.number}"


def _ordered(table: Any) -> Select[Any]:
    key: Iterable[Column[Any]] = table.primary_key
    return select(table).order_by(*key)
