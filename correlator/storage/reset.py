"""Empties the store of a stopped engine: only its name and its epoch stay."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, func, select
from sqlalchemy import inspect as inspect_schema

from correlator.storage import database as databases
from correlator.storage import tables
from correlator.storage.changing import changing, stopped
from correlator.storage.owned import no_store

MESSAGES = {
    tables.receive_log: func.sum(tables.receive_log.c.last - tables.receive_log.c.first + 1),
    tables.outbox: func.sum(tables.outbox.c.last - tables.outbox.c.first + 1),
    tables.dead_letter: func.count(),
}
"""For each table that holds messages, the expression that counts them."""
_EMPTIED = [table for table in tables.metadata.sorted_tables if table is not tables.engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The content of a table as numbers; `messages` is `None` for a table that never holds messages."""

    table: str
    rows: int
    messages: int | None


def contents(url: str) -> list[Contents]:
    """Count what `reset` would remove, by table; changes nothing.

    Raises:
        StoreError: E3010, the database holds no store; others as `database.reading`.
    """
    with databases.reading(url) as connection:
        if not inspect_schema(connection).has_table(tables.engine.name):
            raise no_store(databases.location(url))
        found = []
        there = set(inspect_schema(connection).get_table_names())  # an older schema may lack one
        for table in (table for table in _EMPTIED if table.name in there):
            counter = MESSAGES.get(table)
            rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
            messages = None if counter is None else connection.execute(select(counter).select_from(table)).scalar() or 0
            found.append(Contents(table=table.name, rows=rows, messages=None if messages is None else int(messages)))
        return found


def reset(url: str, witness: Path | None) -> None:
    """Remove all rows in one transaction.

    Args:
        url: the address of the store.
        witness: its witness, `None` if it has none.

    Raises:
        Fenced, StoreError: as `stopped`.
    """
    with stopped(url) as database:
        if witness is not None:
            # The witness comes first: with a witness of removed checkpoints, the next start would refuse the store.
            witness.unlink(missing_ok=True)
        with changing(database) as connection:
            for table in _EMPTIED:
                connection.execute(delete(table))
