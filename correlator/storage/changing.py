"""Changes the store of a stopped engine, for commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, update

from correlator.storage import database as databases
from correlator.storage import migrate, tables
from correlator.storage.owned import Database


@contextmanager
def stopped(url: str) -> Iterator[Database]:
    """Own a store within the block, with the schema of this version; makes a store where there is none.

    Raises:
        Fenced: E3201, an engine is running on the store.
        StoreError: as `database.connect` and `migrate.bring_up`.
    """
    database = databases.connect(url)
    try:
        migrate.bring_up(database)
        yield database
    finally:
        database.close()


@contextmanager
def changing(database: Database) -> Iterator[Connection]:
    """Change a store within the block, in one transaction.

    It raises the epoch: an engine that has lost the store without noticing it cannot write any more.
    """
    with database.patiently(), database.transaction() as connection:
        connection.execute(update(tables.engine).values(epoch=tables.engine.c.epoch + 1))
        yield connection
