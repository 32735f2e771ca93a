"""The slot, the publication and the tables that a receiver needs to capture changes, as the server has them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from connectors.sql.database import identifier
from connectors.sql.pgoutput import Column, Relation, lsn_of, lsn_text
from correlator.errors import ConnectionLost, quoted

_SERVER = """
    SELECT system_identifier::text AS system, current_database() AS database,
        current_setting('wal_level') AS wal_level,
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text AS lsn
    FROM pg_control_system()
"""
_SLOT = """
    SELECT plugin, database, active_pid, confirmed_flush_lsn::text AS flushed, wal_status, two_phase,
        (SELECT application_name FROM pg_stat_activity WHERE pid = active_pid) AS reader
    FROM pg_replication_slots WHERE slot_name = %(slot)s
"""
_TABLES = """
    SELECT n.nspname AS schema, c.relname AS name, c.oid::bigint AS oid, c.relkind = 'p' AS is_partitioned,
        p.rowfilter AS filter, p.attnames::text[] AS columns, c.relreplident AS identity,
        c.relreplident = 'd' AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
            OR c.relreplident = 'i' AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
            OR c.relreplident = 'f' AS has_identity
    FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = %(publication)s ORDER BY n.nspname, c.relname
"""
_COLUMNS = """
    SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute
    WHERE attrelid = %(oid)s::bigint::oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
        AND attname = ANY (%(columns)s::text[]) ORDER BY attnum
"""
_PLUGIN = "pgoutput"
LOST = "lost"


class Captured(NamedTuple):
    """The slot and the publication from which a receiver captures changes.

    Attributes:
        where: place of the receiver, for messages.
        publication: name of the publication; it names the tables.
        slot: name of the replication slot.
        takes_snapshot: whether a receiver without a position begins with the existing rows.
    """

    where: str
    publication: str
    slot: str
    takes_snapshot: bool


class Slot(NamedTuple):
    """A replication slot.

    Attributes:
        flushed: the place in the log before which its reader needs nothing.
        reader: the session that reads it at present; empty for none.
        wal_status: whether the server still has the log after `flushed`; `LOST` if not.
    """

    flushed: int
    reader: str
    wal_status: str


class Server(NamedTuple):
    """The state of a server.

    Attributes:
        system: number of the server; only its replicas and restored copies have the same.
        database: name of the database.
        lsn: the end of its log.
        slot: the slot; `None` if it does not exist.
    """

    system: str
    database: str
    lsn: int
    slot: Slot | None


class Table(NamedTuple):
    """A table of a publication.

    Attributes:
        relation: its names and the columns that are published.
        query: the rows that are published, as the statement of a COPY.
        has_identity: whether changes and deletions of its rows can be published.
    """

    relation: Relation
    query: str
    has_identity: bool


def server_of(connection: Connection, captured: Captured) -> Server:
    """Read the state of the server.

    Raises `ConnectionLost`: E7010, the publication does not exist; E7600, the log of the server does not contain
    changes of rows; E7608, the slot is of another kind.
    """
    found = connection.exec_driver_sql(_SERVER).one()
    if found.wal_level != "logical":
        what = f"the server has wal_level = {found.wal_level}, so that its log does not hold the changes of rows"
        raise ConnectionLost("E7600", captured.where, what, "", "Set wal_level = logical and restart the server")
    query = "SELECT count(*) FROM pg_publication WHERE pubname = %(publication)s"
    if not connection.exec_driver_sql(query, {"publication": captured.publication}).scalar_one():
        what = f"the database has no publication {quoted(captured.publication)}"
        todo = "Create it, as in CREATE PUBLICATION name FOR TABLE orders"
        raise ConnectionLost("E7010", captured.where, what, "", todo)
    row = connection.exec_driver_sql(_SLOT, {"slot": captured.slot}).first()
    slot = None if row is None else _slot(row, found.database, captured)
    return Server(found.system, found.database, lsn_of(found.lsn), slot)


def check_slot(captured: Captured, server: Server, flushed: int, *, begin_anew: str) -> None:
    """Check that a slot still has all changes after a place, and that nobody reads it.

    Args:
        captured: the slot and the publication.
        server: the state of the server.
        flushed: place in the log before which everything is acknowledged.
        begin_anew: the advice for the error if the slot does not have these changes.

    Raises `ConnectionLost` E7601 to E7607.
    """
    where, slot, here = captured.where, server.slot, lsn_text(flushed)
    name = f"replication slot {quoted(captured.slot)}"
    if flushed > server.lsn:
        what = (
            f"the log of the server ends at {lsn_text(server.lsn)}, before {here}, which the receiver has acknowledged"
        )
        raise ConnectionLost("E7605", where, f"{what}: the server was restored", "", begin_anew)
    if slot is None:
        what = f"{name} is gone: the receiver has the changes up to {here}, the log ends at {lsn_text(server.lsn)}"
        raise ConnectionLost("E7601", where, what, "", begin_anew)
    if slot.wal_status == LOST:
        what = f"{name} has lost its log: the receiver has the changes up to {here}, the log ends at"
        raise ConnectionLost("E7602", where, f"{what} {lsn_text(server.lsn)}", "", begin_anew)
    if slot.flushed > flushed:
        what = f"{name} stands at {lsn_text(slot.flushed)}, and the receiver has the changes only up to {here}"
        raise ConnectionLost(
            "E7604", where, f"{what}: another reader has moved it, or the position is an old copy", "", begin_anew
        )
    check_unread(captured, slot)


def check_unread(captured: Captured, slot: Slot) -> None:
    """Raise `ConnectionLost` E7607 while a session reads the slot."""
    if slot.reader:
        what = f"another session reads replication slot {quoted(captured.slot)} ({slot.reader})"
        raise ConnectionLost("E7607", captured.where, what, "Only one receiver at a time may read it")


def tables_of(connection: Connection, captured: Captured) -> Sequence[Table]:
    """Return the tables of the publication."""
    rows = connection.exec_driver_sql(_TABLES, {"publication": captured.publication}).all()
    return [_table(connection, row) for row in rows]


def _slot(row: Any, database: str, captured: Captured) -> Slot:
    """Return the slot. Raises `ConnectionLost` E7608 if it is not one that a receiver makes."""
    if row.plugin != _PLUGIN or row.database != database or row.two_phase:
        kind = f"plugin {row.plugin}, database {row.database}" + (", two-phase" if row.two_phase else "")
        what = f"replication slot {quoted(captured.slot)} is of another kind ({kind})"
        raise ConnectionLost("E7608", captured.where, what, "", "Name another slot; the receiver makes it")
    reader = "" if row.active_pid is None else f"{row.reader or 'unnamed'}, process {row.active_pid}"
    return Slot(0 if row.flushed is None else lsn_of(row.flushed), reader, row.wal_status or LOST)


def _table(connection: Connection, row: Any) -> Table:
    found = connection.exec_driver_sql(_COLUMNS, {"oid": row.oid, "columns": row.columns}).all()
    columns = [Column(name, kind, modifier) for name, kind, modifier in found]
    listed = ", ".join(identifier(one.name) for one in columns)
    only = "" if row.is_partitioned else "ONLY "
    where = "" if row.filter is None else f" WHERE {row.filter}"
    name = f"{identifier(row.schema)}.{identifier(row.name)}"
    query = f"SELECT {listed} FROM {only}{name}{where}"  # noqa: S608  # all parts come from the catalog
    return Table(Relation(row.oid, row.schema, row.name, columns), query, row.has_identity)
