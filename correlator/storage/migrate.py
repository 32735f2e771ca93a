"""The schema of a store and its changes: Alembic revisions, which this module runs, each in one transaction.

If the process dies in the middle of a revision, the store stays unchanged (trap T30). Before revisions change a SQLite
store, it is copied to a file beside it. No revision can be undone.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, Text, select
from sqlalchemy import inspect as inspect_schema

from correlator.core.faults import point
from correlator.errors import StoreError, quoted
from correlator.storage import codec, revising, tables
from correlator.storage import database as databases
from correlator.storage.owned import Database, foreign, no_store

HEAD = "0004"
SCRIPTS = Path(__file__).with_name("migrations")
"""The directory of the revisions, beside this module: no other package with its name can take its place."""
VERSION_TABLE = "correlator_schema"
_versions = Table(VERSION_TABLE, MetaData(), Column("version_num", Text))


def upgrade(url: str) -> tuple[str, str]:
    """Bring a store to the schema of this version, for the command line; makes a store if there is none.

    Returns:
        The revision that the store had ("" for a new store), and the revision that it has now.

    Raises:
        Fenced: E3201, an engine is running on the store.
        StoreError: as `bring_up`.
    """
    database = databases.connect(url)
    try:
        return bring_up(database), HEAD
    finally:
        database.close()


def bring_up(database: Database, *, head: str = HEAD, scripts: Path | None = None) -> str:
    """Run the missing revisions; costs one query if none is missing.

    Args:
        database: owned and connected.
        head: the revision to reach.
        scripts: the Alembic directory; by default the one of this package.

    Returns:
        The previous revision, "" for a new store.

    Raises:
        StoreError: E3003, tables of another application; E3004, a newer schema; E3005, tables are missing. Nothing was
            changed.
        RecoveryRefused: E4201, the number of the schema is damaged. Nothing was changed.
    """
    current = revision(database)
    if current == head:
        return current
    if current > head:
        with database.transaction() as connection:
            raise _newer(connection, database.where, current, head)
    if current:
        database.back_up(f".backup-{current}")
    point("rec.migrate.begin")
    _run(database, head, scripts or SCRIPTS)
    return current


def revision(database: Database) -> str:
    """The revision of a store; "" for an empty one.

    Raises:
        StoreError: E3003, tables of another application have names of the store's tables; E3005, tables are missing.
        RecoveryRefused: E4201, the number of the schema is damaged.
    """
    with database.transaction() as connection:
        names = set(inspect_schema(connection).get_table_names())
        current = _version(connection, names)
    if not current and names & set(tables.metadata.tables):
        raise foreign(database.where)
    missing = sorted(set(tables.metadata.tables) - names)
    if current == HEAD and missing:
        raise StoreError(
            "E3005",
            database.where,
            f"the table '{missing[0]}' is missing",
            "Tables of a store are made and removed by the engine only",
            "Restore a backup of the store",
        )
    return current


def refuse_newer(connection: Connection, where: str) -> str:
    """Refuse anything but a store with the schema of this version or an older one; return its revision.

    Raises:
        StoreError: E3010, the database holds no store; E3003, tables of another application; E3004, a newer schema.
        RecoveryRefused: E4201, the number of the schema is damaged.
    """
    names = set(inspect_schema(connection).get_table_names())
    current = _version(connection, names)
    if not current:
        raise foreign(where) if names & set(tables.metadata.tables) else no_store(where)
    if current > HEAD:
        raise _newer(connection, where, current, HEAD)
    return current


def refuse_other(connection: Connection, where: str) -> None:
    """Refuse anything but a store with the schema of this version: a reader that changes nothing cannot read it.

    Raises:
        StoreError: E3003, E3004, E3010 as `refuse_newer`; E3012, an older schema.
        RecoveryRefused: E4201 as `refuse_newer`.
    """
    current = refuse_newer(connection, where)
    if current < HEAD:
        what = f"has schema {int(current)}, this is schema {int(HEAD)}"
        todo = "Stop its engine and upgrade the store: correlator db upgrade"
        raise StoreError("E3012", where, what, "A reader changes no schema", todo)


def _version(connection: Connection, names: set[str]) -> str:
    if VERSION_TABLE not in names:
        return ""
    current = str(connection.execute(select(_versions.c.version_num)).scalar() or "")
    if current and not revising.is_revision(current):
        raise codec.altered(VERSION_TABLE, f"{quoted(current)} is not the number of a schema")
    return current


def _run(database: Database, head: str, scripts: Path) -> None:
    """Let Alembic run the revisions on the connection of the database; `env.py` of the scripts calls `settings`."""
    with database.patiently(), database.translated():
        revising.run(scripts, head, database=database)


def settings(database: Database) -> dict[str, Any]:
    """Return the arguments of `context.configure` that make each revision one transaction in both dialects."""

    def stamped(*, ctx: Any, heads: set[str], **_: Any) -> None:
        point("rec.migrate.step")
        database.stamp(ctx.connection, int(max(heads)))

    return {
        "connection": database.connection,
        "version_table": VERSION_TABLE,
        "transactional_ddl": True,
        "transaction_per_migration": True,
        "on_version_apply": stamped,
    }


def _newer(connection: Connection, where: str, current: str, head: str) -> StoreError:
    product = connection.exec_driver_sql("SELECT product FROM engine").scalar() or "a newer version"
    return StoreError(
        "E3004",
        where,
        f"written by {product} (schema {int(current)}), this is schema {int(head)}",
        "A schema never goes back",
        "Upgrade this program first",
    )
