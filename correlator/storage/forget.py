"""Removes a dynamic receiver or sender, with its messages, ids and state, from the store of a stopped engine."""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from correlator.core.commit import Endpoint, StateEntry, StateSegment
from correlator.core.unhandled import OWNER as UNHANDLED
from correlator.core.unmapped import OWNER as UNMAPPED
from correlator.errors import UsageError, quoted
from correlator.storage import codec, loading, tables
from correlator.storage import database as databases
from correlator.storage.changing import changing, stopped
from correlator.storage.inspect import refuse_no_store
from correlator.storage.reset import MESSAGES, Contents
from correlator.storage.writes import without


def holds(url: str, part_id: str) -> list[Contents]:
    """Count what `forget` would remove, by table; changes nothing.

    Raises:
        UsageError: E8301, E8302 as `forget`.
        StoreError: E3010, the database holds no store; others as `database.reading`.
    """
    refuse_no_store(url)
    with databases.reading(url) as connection:
        part = _dynamic(connection, part_id)
        return [_counted(connection, table, condition) for table, condition in _rows(connection, part)]


def forget(url: str, part_id: str) -> None:
    """Remove a dynamic part in one transaction.

    Raises:
        UsageError: E8302, there is no such part; E8301, the part is static.
        Fenced, StoreError: as `stopped`; E3010, the database holds no store.
    """
    refuse_no_store(url)
    with stopped(url) as database, changing(database) as connection:
        part = _dynamic(connection, part_id)
        for table, condition in _rows(connection, part):
            connection.execute(delete(table).where(condition))
        _forget_in_the_checkpoint(connection, part_id)
        if part.kind == "receiver":
            _forget_in_the_state(connection, part_id)


def _dynamic(connection: Connection, part_id: str) -> Endpoint:
    endpoints = [loading.endpoint_of(row) for row in connection.execute(select(tables.endpoint))]
    found = next((one for one in endpoints if one.id == part_id), None)
    if found is None:
        known = ", ".join(sorted(one.id for one in endpoints if one.origin == "dynamic"))
        raise UsageError("E8302", quoted(part_id), "no such receiver or sender", f"Added by code: {known or 'none'}")
    if found.origin == "static":
        what = "stands in the configuration; only what code added can be removed"
        raise UsageError("E8301", f"{found.kind} {quoted(part_id)}", what)
    return found


def _rows(connection: Connection, part: Endpoint) -> Iterable[tuple[Table, ColumnElement[bool]]]:
    """Return the tables with rows of a part, each with the condition for these rows.

    The ids of a duplicate detection domain are deleted with the last receiver of the domain.
    """
    yield tables.endpoint, tables.endpoint.c.id == part.id
    if part.kind == "sender":
        yield tables.outbox, tables.outbox.c.sender == part.id
        return
    for table in (tables.receive_log, tables.receive_progress, tables.suspect):
        yield table, table.c.receiver == part.id
    sharing = select(func.count()).where(tables.endpoint.c.domain == part.domain, tables.endpoint.c.id != part.id)
    if part.domain and not connection.execute(sharing).scalar_one():
        yield tables.accepted_ids, tables.accepted_ids.c.domain == part.domain


def _counted(connection: Connection, table: Table, condition: ColumnElement[bool]) -> Contents:
    rows = connection.execute(select(func.count()).select_from(table).where(condition)).scalar_one()
    counter = MESSAGES.get(table)
    messages = None if counter is None else int(connection.execute(select(counter).where(condition)).scalar() or 0)
    return Contents(table=table.name, rows=rows, messages=messages)


def _forget_in_the_checkpoint(connection: Connection, part_id: str) -> None:
    """Remove the waiting messages of a part from the queues in the checkpoint, and remove its numbers."""
    row = connection.execute(select(tables.checkpoint)).first()
    if row is not None:
        kept = without(loading.cut_of(row), [part_id])
        connection.execute(update(tables.checkpoint).values(codec.content_of(kept)))


def _forget_in_the_state(connection: Connection, receiver: str) -> None:
    """Delete the state about unhandled and unmapped messages of a receiver, by entries at the end of the state log."""
    last = connection.execute(select(func.max(tables.state_log.c.number))).scalar() or 0
    segment = StateSegment(last + 1, [StateEntry(one, receiver.encode(), None) for one in (UNHANDLED, UNMAPPED)])
    row = {"number": segment.number, "count": len(segment.entries), **codec.content_of(segment)}
    connection.execute(insert(tables.state_log).values(row))
