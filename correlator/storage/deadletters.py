"""Replays or discards dead letters of a stopped engine, in one transaction under the lock of the store."""

from collections.abc import Callable, Iterator

import msgspec
from sqlalchemy import Connection, delete, select

from correlator.core.deadletters import DeadLetterReplay
from correlator.core.differences import joined
from correlator.core.faults import point
from correlator.events import DeadLetter
from correlator.storage import loading, tables
from correlator.storage.changing import changing, stopped
from correlator.storage.codec import CheckpointContent
from correlator.storage.inspect import Selection, counted_dead_letters, refuse_missing
from correlator.storage.statements import Statements
from correlator.storage.writes import checkpoint_row, segment_row

PAGE = 50
"""The largest number of letters in memory at a time, and of messages in a segment: each may be large."""

Act = Callable[[Connection, Statements, Selection], None]


def replay(url: str, selection: Selection) -> int:
    """Let the next start handle or send the messages of dead letters again. Returns the number of letters.

    Raises:
        UsageError: E2021, the store does not hold a selected number; E2023, a letter cannot go back. Nothing changed.
        Fenced, StoreError: as `stopped`; E3010, there is no store.
    """
    return _remove(url, selection, _bring_back)


def discard(url: str, selection: Selection) -> int:
    """Delete dead letters. Returns the number of letters. Raises as `replay`."""
    return _remove(url, selection, lambda _connection, _statements, _selection: None)


def _remove(url: str, selection: Selection, act: Act) -> int:
    """Call `act` with the selected letters and delete them, in one transaction. Returns the number of letters."""
    counted_dead_letters(url, selection)  # before `stopped`, which would make a store where there is none
    with stopped(url) as database:
        with changing(database) as connection:
            refuse_missing(connection, selection)
            act(connection, Statements(database.dialect), selection)
            removed = connection.execute(delete(tables.dead_letter).where(*selection.conditions())).rowcount
            point("dl.tx.commit.before")
        point("dl.tx.commit.after")
        return removed


def _bring_back(connection: Connection, statements: Statements, selection: Selection) -> None:
    row = connection.execute(select(tables.checkpoint)).first()
    cut = None if row is None else loading.cut_of(row)
    endpoints = [loading.endpoint_of(one) for one in connection.execute(select(tables.endpoint))]
    again = DeadLetterReplay(endpoints, _last_numbers(connection, cut), cut.senders if cut else ())
    for letters in _pages(connection, selection):
        segments = again.take(letters)
        for received in segments.received:
            statements.receive.run(connection, [segment_row("receiver", received.receiver, received)])
        for outbound in segments.outbound:
            statements.send.run(connection, [segment_row("sender", outbound.sender, outbound)])
    if again.refusals:
        raise joined(again.refusals)
    if cut is not None and again.senders != cut.senders:
        statements.checkpoint.run(connection, [checkpoint_row(msgspec.structs.replace(cut, senders=again.senders))])


def _last_numbers(connection: Connection, cut: CheckpointContent | None) -> dict[str, int]:
    """Return the number of the last message of each receiver."""
    contexts = cut.contexts if cut else []
    received = loading.received(connection, contexts)
    entered = {receiver for context in contexts for receiver in context.entered}
    return {name: received.last_number(name) for name in {*received.logged, *received.consumed, *entered}}


def _pages(connection: Connection, selection: Selection) -> Iterator[list[tuple[int, DeadLetter]]]:
    """Yield the selected letters with their numbers, in order, in pages."""
    table = tables.dead_letter
    query = select(table).where(*selection.conditions()).order_by(table.c.number).limit(PAGE)
    after = 0
    while page := connection.execute(query.where(table.c.number > after)).all():
        yield [(row.number, loading.letter_of(row)) for row in page]
        after = page[-1].number
