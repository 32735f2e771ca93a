"""Checks a whole store without changing it: the structure of its file, and every row against its digest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, select
from sqlalchemy import exc as sql_errors
from sqlalchemy import inspect as inspect_schema

from correlator.errors import RecoveryRefused
from correlator.storage import loading, tables
from correlator.storage.database import location, reading, structural_damage
from correlator.storage.failures import damaged, is_damage
from correlator.storage.owned import no_store

_VALUES: dict[Table, Callable[[Row[Any]], object]] = {
    tables.checkpoint: loading.cut_of,
    tables.receive_log: loading.received_of,
    tables.receive_progress: loading.progress_of,
    tables.accepted_ids: loading.ids_of,
    tables.state_log: loading.state_of,
    tables.outbox: loading.outbound_of,
    tables.dead_letter: loading.letter_of,
    tables.endpoint: loading.endpoint_of,
    tables.suspect: loading.suspect_of,
}
"""For each table with digests, the function that reads a row of the table, and so checks it."""
PAGE = 32
"""How many rows are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTable:
    """The result for one table: the number of rows that are unchanged, and a text for each damaged row."""

    table: str
    intact: int
    damages: list[str]


def check(url: str) -> tuple[list[str], list[CheckedTable]]:
    """Check a store at one moment; an engine may be running on it.

    The check leaves out tables that have no digests in an older schema.

    Returns:
        A text for each damage of the structure of its file, and a result for each table.

    Raises:
        StoreError: E3010, the database holds no store; E3001, E3002, nothing at all can be read; others as
            `database.reading`.
    """
    with reading(url) as connection:
        structure = structural_damage(connection)
        there = inspect_schema(connection)
        if not there.has_table(tables.engine.name):
            if structure:
                raise damaged(location(url), structure[0])
            raise no_store(location(url))
        names = set(there.get_table_names())
        found = [
            _checked(connection, table, value)
            for table, value in _VALUES.items()
            if table.name in names and _has_digest(there.get_columns(table.name))
        ]
        connection.rollback()  # a COMMIT fails on a damaged file
    return structure, found


def _has_digest(columns: list[Any]) -> bool:
    return any(column["name"].endswith("crc") for column in columns)


def _checked(connection: Connection, table: Table, value: Callable[[Row[Any]], object]) -> CheckedTable:
    intact, damages = 0, []
    try:
        for row in _rows(connection, table):
            try:
                value(row)
            except RecoveryRefused as error:
                damages.append(f"{error.where}: {error.what}")
            else:
                intact += 1
    except sql_errors.DBAPIError as error:
        if not is_damage(error):
            raise
        damages.append(f"{table.name}: the rest cannot be read: {error.orig}")
    return CheckedTable(table=table.name, intact=intact, damages=damages)


def _rows(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    query = select(table).order_by(*table.primary_key)
    return iter(connection.execution_options(yield_per=PAGE).execute(query))
