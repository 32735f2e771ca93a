"""Lets a stopped engine go on with an older copy of its store, although it has sent messages since this copy was made.

Brokers and receivers recognise repeats by the source id of the sender and the number of the message. In an older copy
the numbers go back: the engine would give numbers that earlier messages have to other messages, which would be dropped
as repeats (trap T33). So each sender gets a new source id, and numbers its messages from 1 again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from correlator.core.commit import Endpoint, OutboundSegment, SenderCut
from correlator.storage import codec, loading, tables
from correlator.storage import database as databases
from correlator.storage.changing import changing, stopped
from correlator.storage.inspect import refuse_no_store
from correlator.storage.writes import segment_row


class Adopted(NamedTuple):
    """A reliable sender of a store, and the number of its messages that the store holds."""

    sender: str
    unconfirmed: int


def senders(url: str) -> list[Adopted]:
    """Return the senders that `adopt` would change; changes nothing.

    Raises:
        StoreError: E3010, the database holds no store; others as `database.reading`.
    """
    refuse_no_store(url)
    with databases.reading(url) as connection:
        return [Adopted(one.id, _unconfirmed(connection, one)) for one in _reliable(connection)]


def adopt(url: str, witness: Path | None, identity: str) -> None:
    """Give each reliable sender a new source id in one transaction, and remove the witness.

    If the process dies in between, a start still refuses the store, and the command can be repeated.

    Args:
        url: the address of the store.
        witness: its witness, `None` if it has none.
        identity: the unique part of the new source ids.

    Raises:
        Fenced, StoreError: as `stopped`; E3010, the database holds no store.
        RecoveryRefused: E4201, E4202: a row is damaged. Nothing was changed.
    """
    refuse_no_store(url)
    with stopped(url) as database:
        with changing(database) as connection:
            endpoints = [
                msgspec.structs.replace(one, source=f"{identity}:S{number:02d}")
                for number, one in enumerate(_reliable(connection), 1)
            ]
            for one in endpoints:
                row = update(tables.endpoint).where(tables.endpoint.c.id == one.id)
                connection.execute(row.values(codec.content_of(one)))
            _renumber(connection, {one.id: one.source for one in endpoints})
        if witness is not None:
            witness.unlink(missing_ok=True)


def _reliable(connection: Connection) -> Sequence[Endpoint]:
    rows = connection.execute(select(tables.endpoint).order_by(tables.endpoint.c.id))
    return [one for one in map(loading.endpoint_of, rows) if one.source]


def _unconfirmed(connection: Connection, sender: Endpoint) -> int:
    row = tables.outbox.c
    messages = select(func.sum(row.last - row.first + 1)).where(row.sender == sender.id)
    return int(connection.execute(messages).scalar() or 0)


def _renumber(connection: Connection, sources: dict[str, str]) -> None:
    """Number the unsettled messages of each sender from 1."""
    row = connection.execute(select(tables.checkpoint)).first()
    if row is None:
        return
    cut = loading.cut_of(row)
    changed = [_renumbered(connection, one, sources[one.sender]) for one in cut.senders]
    content = codec.content_of(msgspec.structs.replace(cut, senders=changed))
    connection.execute(update(tables.checkpoint).values(content))


def _renumbered(connection: Connection, sender: SenderCut, source: str) -> SenderCut:
    settled = sender.confirmed_through
    mine = tables.outbox.c.sender == sender.sender
    rows = connection.execute(select(tables.outbox).where(mine).order_by(tables.outbox.c.first))
    segments = [_moved(segment, settled) for segment in map(loading.outbound_of, rows)]
    connection.execute(delete(tables.outbox).where(mine))
    for segment in segments:
        if segment.messages:
            connection.execute(insert(tables.outbox).values(segment_row("sender", sender.sender, segment)))
    return SenderCut(sender.sender, source, sender.next_sequence - settled, 0)


def _moved(segment: OutboundSegment, settled: int) -> OutboundSegment:
    """Return a segment without its settled messages, with numbers that are smaller by `settled`."""
    messages = segment.messages[max(0, settled + 1 - segment.first) :]
    return msgspec.structs.replace(segment, first=max(segment.first - settled, 1), messages=messages)
