"""Reads a store from outside, even while an engine runs on it: rows as plain values, through a read-only connection.

It locks, migrates and repairs nothing. Each function reads in one short transaction, since a long one would keep SQLite
from shrinking the WAL (trap T5). Each raises `StoreError` as `database.reading`, and E4201 for an altered row.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, func, select
from sqlalchemy import inspect as inspect_schema

from correlator.core.commit import ContextCut, Endpoint, IdSegment, SenderCut
from correlator.core.dedup import DuplicateDetector, surely_acknowledged
from correlator.core.delivery import Received
from correlator.errors import UsageError
from correlator.events import DeadLetter
from correlator.settings import DuplicateDetectionSettings
from correlator.storage import codec, loading, migrate, tables
from correlator.storage.database import location, parse, reading
from correlator.storage.owned import no_store
from correlator.storage.witness import Witness, witness_of

T = TypeVar("T")
_LARGEST_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Name and product of the engine that has last opened the store, with its epoch and its commit number."""

    name: str
    product: str
    epoch: int
    commit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """The last checkpoint; `waiting` is the number of events that wait in each context."""

    number: int
    engine_time: float
    digest: bytes
    waiting: dict[str, int]
    senders: list[SenderCut]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment of the receive log or outbox: messages `first` to `last` of a receiver or sender; `size` in bytes."""

    owner: str
    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDomain:
    """How many unique ids the store holds for a duplicate detection domain."""

    domain: str
    segments: int
    ids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedId:
    """One unique id with its source and its engine time of receipt."""

    id: str
    source: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A dead letter with its number, which commands use to name it."""

    number: int
    letter: DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Chooses the dead letters that fit all attributes.

    Attributes:
        numbers: chooses letters with these numbers; empty for all numbers.
        kind: chooses letters of this kind; "" for every kind.
        origin: chooses letters of this receiver, monitor, context, pipeline or sender; "" for all.
    """

    numbers: Sequence[int] = ()
    kind: str = ""
    origin: str = ""

    @property
    def storable_numbers(self) -> list[int]:
        """The given numbers that fit into a column. A database refuses a query with larger ones."""
        return [number for number in self.numbers if abs(number) <= _LARGEST_NUMBER]

    def conditions(self) -> list[ColumnElement[bool]]:
        """The conditions for the WHERE of a statement."""
        letter = tables.dead_letter.c
        given = {letter.kind: self.kind, letter.origin: self.origin}
        among = [letter.number.in_(self.storable_numbers)] if self.numbers else []
        return [*among, *(column == value for column, value in given.items() if value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """The number of dead letters of a kind and an origin."""

    kind: str
    origin: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKey:
    """A key of state that has a value; `size` is the size of the encoded value in bytes."""

    owner: str
    key: bytes
    size: int


ALL = Selection()
"""Every dead letter."""


def exists(url: str) -> bool:
    """Whether an engine has ever opened this store. Does not make a store."""
    if parse(url).get_backend_name() == "sqlite" and not Path(location(url)).exists():
        return False
    with reading(url) as connection:
        return inspect_schema(connection).has_table(tables.engine.name)


def owner(url: str) -> str | None:
    """The name of the engine to which a store belongs, `None` if there is no store. Does not make a store."""
    if not exists(url):
        return None
    with reading(url) as connection:
        return connection.execute(select(tables.engine.c.name)).scalar()


def refuse_no_store(url: str) -> None:
    """Raise `StoreError` E3010 if the database holds no store, without making one."""
    if not exists(url):
        raise no_store(location(url))


def refuse_older(url: str, name: str, witness_directory: str | None = None) -> None:
    """Check the witness of a store in the same way as a start.

    Raises:
        RecoveryRefused: E4311, the store is older than its witness; E4312, the witness cannot be read.
    """
    number = max((one.number for one in checkpoints(url)), default=0) if exists(url) else 0
    Witness(witness_of(witness_directory, name, url), name).refuse_older(location(url), number)


def instance(url: str) -> StoreIdentity | None:
    """The engine that last opened the store; `None` if none has."""
    with reading(url) as connection:
        row = _first(connection, url, select(tables.engine))
    if row is None:
        return None
    if [type(one) for one in (row.name, row.product, row.epoch, row.commit_number)] != [str, str, int, int]:
        raise codec.altered("engine")  # its row has no digest, since each transaction changes it
    return StoreIdentity(name=row.name, product=row.product, epoch=row.epoch, commit=row.commit_number)


def registry(url: str) -> list[Endpoint]:
    """The receivers and senders of the registry, ordered by id."""
    with reading(url) as connection:
        rows = _all(connection, url, select(tables.endpoint).order_by(tables.endpoint.c.id))
    return [loading.endpoint_of(row) for row in rows]


def checkpoints(url: str) -> list[StoredCheckpoint]:
    """The checkpoint from which the next start begins; empty before the first checkpoint."""
    with reading(url) as connection:
        rows = _all(connection, url, select(tables.checkpoint))
    return [_checkpoint(loading.cut_of(row)) for row in rows]


def contexts(url: str) -> list[ContextCut]:
    """The contexts at the last checkpoint; messages that wait in them are references to the receive log."""
    with reading(url) as connection:
        rows = _all(connection, url, select(tables.checkpoint))
    return [context for row in rows for context in loading.cut_of(row).contexts]


def received(url: str) -> Received:
    """Return the numbers of the messages that were received, that the receive log holds, and that wait in contexts."""
    cuts = contexts(url)
    with reading(url) as connection:
        return loading.received(connection, cuts)


def receive_log(url: str) -> list[StoredSegment]:
    """The segments of the receive log."""
    return [_segment(row, loading.received_of(row).receiver) for row in _rows(url, tables.receive_log)]


def outbox(url: str) -> list[StoredSegment]:
    """The segments of the outbox: sends without a recorded confirm of the broker."""
    return [_segment(row, loading.outbound_of(row).sender) for row in _rows(url, tables.outbox)]


def domains(url: str) -> list[StoredDomain]:
    """The duplicate detection domains, by name."""
    segments, counts = Counter[str](), Counter[str]()
    for segment in _id_segments(url):
        segments[segment.domain] += 1
        counts[segment.domain] += sum(len(run.ids) for run in segment.runs)
    return [StoredDomain(domain=one, segments=segments[one], ids=counts[one]) for one in sorted(segments)]


def accepted_ids(url: str, domain: str) -> list[AcceptedId]:
    """The ids of one domain in the order of acceptance."""
    return [
        AcceptedId(id=unique_id, source=source, time=run.time)
        for segment in _id_segments(url)  # all of them: damage may have changed the domain of a row
        if segment.domain == domain
        for run in segment.runs
        for unique_id, source in zip(run.ids, run.sources, strict=True)
    ]


def detectors(url: str, windows: DuplicateDetectionSettings) -> dict[str, DuplicateDetector]:
    """The duplicate detectors by domain, in the state in which a start with these windows would restore them.

    Reads in pages, so it needs no more memory than an engine.
    """
    restored: dict[str, DuplicateDetector] = {}
    with reading(url) as connection:
        _all(connection, url, select(tables.engine))
        progress, known = tables.receive_progress.c, tables.endpoint.c
        rows = connection.execute(select(progress.receiver, progress.confirmed_batch))
        confirmed = {row.receiver: row.confirmed_batch for row in rows}
        domains = {row.id: row.domain for row in connection.execute(select(known.id, known.domain))}
        for segment in loading.id_segments(connection):
            sure = surely_acknowledged(segment, confirmed, domains)
            if segment.domain not in restored:
                size, time = windows.per_source_window_size, windows.expiry_time
                restored[segment.domain] = DuplicateDetector(segment.domain, size, time)
            restored[segment.domain].restore([segment], sure)
    return restored


def dead_letters(url: str, selection: Selection = ALL) -> list[DeadLetterRow]:
    """Dead letters in the order of their numbers; a selected number that the store does not hold is left out."""
    table = tables.dead_letter
    query = select(table).where(*selection.conditions()).order_by(table.c.number)
    with reading(url) as connection:
        rows = _all(connection, url, query)
    return [DeadLetterRow(number=row.number, letter=loading.letter_of(row)) for row in rows]


def newest_dead_letters(url: str, selection: Selection, below: int, most: int) -> list[DeadLetterRow]:
    """Dead letters with smaller numbers than `below`, the newest first, at most `most`."""
    number = tables.dead_letter.c.number
    conditions = (*selection.conditions(), number < below)
    query = select(tables.dead_letter).where(*conditions).order_by(number.desc()).limit(most)
    with reading(url) as connection:
        rows = _all(connection, url, query)
    return [DeadLetterRow(number=row.number, letter=loading.letter_of(row)) for row in rows]


def counted_dead_letters(url: str, selection: Selection = ALL) -> list[DeadLetterCount]:
    """The number of dead letters by kind and origin.

    Raises:
        UsageError: E2021, the store does not hold a selected number.
    """
    letter = tables.dead_letter.c
    groups = select(letter.kind, letter.origin, func.count()).where(*selection.conditions())
    with reading(url) as connection:
        rows = _all(connection, url, groups.group_by(letter.kind, letter.origin).order_by(letter.kind, letter.origin))
        refuse_missing(connection, selection)
    return [DeadLetterCount(kind=kind, origin=origin, count=count) for kind, origin, count in rows]


def refuse_missing(connection: Connection, selection: Selection) -> None:
    """Raise `UsageError` E2021 unless the store holds every number of a selection."""
    number = tables.dead_letter.c.number
    there = set(connection.execute(select(number).where(number.in_(selection.storable_numbers))).scalars())
    missing = [str(one) for one in selection.numbers if one not in there]
    if missing:
        raise UsageError("E2021", f"dead letter {', '.join(missing)}", "does not exist", "", "See: deadletter list")


def state_keys(url: str, owner: str = "") -> list[StateKey]:
    """The keys that have a value, of one owner or of all, in order."""
    sizes: dict[tuple[str, bytes], int] = {}
    for key, value in _living(url).items():
        if not owner or key[0] == owner:
            sizes[key] = len(value)
    return [StateKey(owner=key[0], key=key[1], size=size) for key, size in sorted(sizes.items())]


def state_value(url: str, owner: str, key: bytes) -> bytes | None:
    """The encoded value of a key; `None` if the key has no value."""
    return _living(url).get((owner, key))


def state(url: str) -> dict[str, dict[bytes, bytes]]:
    """The encoded values of all state, by owner and key."""
    found: dict[str, dict[bytes, bytes]] = {}
    for (owner, key), value in _living(url).items():
        found.setdefault(owner, {})[key] = value
    return found


def _living(url: str) -> dict[tuple[str, bytes], bytes]:
    """Read the state log; return the value of each key after its last entry."""
    living: dict[tuple[str, bytes], bytes] = {}
    with reading(url) as connection:
        _all(connection, url, select(tables.engine))
        for segment in loading.state_segments(connection):
            for entry in segment.entries:
                if entry.value is None:
                    living.pop((entry.owner, entry.key), None)
                else:
                    living[entry.owner, entry.key] = entry.value
    return living


def _segment(row: Row[Any], owner: str) -> StoredSegment:
    return StoredSegment(owner=owner, first=row.first, last=row.last, size=len(row.content))


def _rows(url: str, table: Table) -> Iterator[Row[Any]]:
    """The rows of a table in the order of their keys, a few in memory at a time."""
    with reading(url) as connection:
        migrate.refuse_newer(connection, location(url))
        query = select(table).order_by(*table.primary_key)
        yield from connection.execution_options(yield_per=loading.PAGE).execute(query)


def _id_segments(url: str) -> Iterator[IdSegment]:
    """Id segments of all domains, in the order of domains and numbers, a few in memory at a time."""
    return map(loading.ids_of, _rows(url, tables.accepted_ids))


def _checkpoint(cut: codec.CheckpointContent) -> StoredCheckpoint:
    waiting = {context.context: sum(run.count for run in context.queue) for context in cut.contexts}
    return StoredCheckpoint(
        number=cut.number, engine_time=cut.engine_time, digest=cut.digest, waiting=waiting, senders=cut.senders
    )


def _all(connection: Connection, url: str, query: Select[Any]) -> Sequence[Any]:
    """Rows of a query.

    Raises:
        StoreError: E3003, E3004, E3010 as `migrate.refuse_newer`.
    """
    migrate.refuse_newer(connection, location(url))
    return connection.execute(query).all()


def _first(connection: Connection, url: str, query: Select[Any]) -> Any:
    rows = _all(connection, url, query)
    return rows[0] if rows else None
