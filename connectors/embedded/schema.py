"""The tables of the embedded broker and their changes: Alembic revisions, each in one transaction.

Tables (all names begin with `broker_`):

- `content`: each message once, as `content.encode` makes it. `refs_left` counts its rows in `delivery`; the row is
  deleted with the last of them.
- `delivery`: a message for one subscription. `rank` is 9 less the priority. `state`: 0 ready, 1 held by `consumer`,
  2 delayed until `due`, 3 acknowledged by the prepared transaction `consumer`. `deliveries` counts how often a program
  was given the message; while it is held, that time does not count yet, except for a `suspect`, whose consumer died
  once. `expires` 0 means never. Times are milliseconds since the epoch.
- `tally`: the sums over the rows of a destination are the number of its messages and bytes, and in `changes` how often
  these have changed. SQLite has one row for each destination.
- `destination`, `subscription` (a queue has exactly one, named ""), `consumer`, `client`: who uses what. The column
  `client` of a destination is the owner of a temporary destination.
- `producer`: the producers of sessions.
- `sender`: the last sequence of each source, to recognise repeats.
- `tx`, `tx_send`: prepared transactions and what they will send; for a day also their outcome.
- `store`: one row, with the last number on SQLite (PostgreSQL has a sequence), and how often the broker has started.
- `boot`: PostgreSQL only, a token that exists until the server recovers from a crash.
- `schema`: the number of the schema, for programs from before the revisions. They refuse a higher number.

On PostgreSQL there are functions, too, which do in one round trip what needs no decision of this program: `broker_send`
stores one message in a queue that is far from its limits, `broker_leave` ends messages of a queue, `broker_count` adds
to the tally, and `broker_fold` folds the rows that the tally has of a destination. On SQLite, `broker_send` is a view:
an INSERT into it stores one message in a queue with room.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from connectors.embedded.sql import Sql
from correlator.errors import ConnectionLost, quoted
from correlator.storage import revising

HEAD = "0007"
SCRIPTS = Path(__file__).with_name("migrations")
VERSION_TABLE = "broker_version"
FIRST = "0001"
_HAS_TABLE = Sql(
    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name",
    "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = :name",
)
_VERSION = Sql("SELECT version_num FROM broker_version")


def revision(connection: Connection) -> str:
    """Return the revision of the broker in this database; "" if there is none. Called in a transaction."""
    if _HAS_TABLE.one(connection, name=VERSION_TABLE):
        found = _VERSION.one(connection)
        if found:
            return str(found)
    return FIRST if _HAS_TABLE.one(connection, name="broker_schema") else ""


def refuse_unknown(where: str, found: str) -> None:
    """Raise `ConnectionLost` E7006 if a newer version wrote the broker, E7003 if the revision is damaged."""
    if found and not revising.is_revision(found):
        what = f"the broker's database is damaged: {quoted(found)} is not the number of a schema"
        raise ConnectionLost("E7003", where, what, "", "Restore a backup of the broker")
    if found > HEAD:
        what = f"written by a newer version (schema {int(found)}, this is {int(HEAD)})"
        raise ConnectionLost("E7006", where, what, "", "Upgrade first")


def upgrade(connection: Connection, found: str) -> None:
    """Run the revisions after `found`, each in a transaction of its own.

    Called outside a transaction, while no other process can change the schema.
    """
    if found == FIRST:  # it may come from a version without revisions
        from alembic.runtime.migration import MigrationContext  # noqa: PLC0415  # as in `revising.run`
        from alembic.script import ScriptDirectory  # noqa: PLC0415  # as in `revising.run`

        with connection.begin():
            MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).stamp(
                ScriptDirectory(str(SCRIPTS)), FIRST
            )
    revising.run(SCRIPTS, HEAD, connection=connection)


def settings(connection: Connection) -> dict[str, Any]:
    """Return the arguments of `context.configure` that make each revision one transaction."""
    return {
        "connection": connection,
        "version_table": VERSION_TABLE,
        "transactional_ddl": True,
        "transaction_per_migration": True,
    }
