"""Checks the table of a receiver or sender before an engine runs (`correlator doctor`)."""

from collections.abc import Iterator

from sqlalchemy import Connection

from connectors.sql.mysql import flushes_each_commit
from connectors.sql.options import captured_of, is_captured, is_polled, outbox_of, place_of, polled_of, writing_of
from connectors.sql.outbox_table import OutboxTable
from connectors.sql.polled_table import PolledTable
from connectors.sql.replication_slot import LOST, Captured, server_of, tables_of
from connectors.sql.rows import rows_of
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.settings import ReceiverSettings, SenderSettings

LONG_S = 300
"""Number of seconds after which an open transaction is worth a warning."""
_OPEN = """
    SELECT who, seconds FROM (
        SELECT application_name AS who, extract(epoch FROM now() - xact_start)::bigint AS seconds
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR %(also_readers)s AND backend_xmin IS NOT NULL)
        UNION ALL
        SELECT gid, extract(epoch FROM now() - prepared)::bigint FROM pg_prepared_xacts
    ) AS every WHERE seconds >= %(long)s ORDER BY seconds DESC LIMIT 1
"""


def look(connection: Connection, part: ReceiverSettings | SenderSettings) -> Iterator[CorrelatorError]:
    """Yield findings about the table of a receiver or sender. Raises `ConnectionLost` if it cannot be used."""
    where = place_of(part)
    if isinstance(part, SenderSettings):
        rows_of(connection, writing_of(part))
        if connection.dialect.name == "mysql" and not flushes_each_commit(connection):
            what = "the server confirms transactions that are not on disk: a power cut may take rows back"
            yield ConfigError("W7645", where, what, "", "Set innodb_flush_log_at_trx_commit = 1")
        return
    if is_captured(part):
        yield from _look_at_slot(connection, captured_of(part))
        return
    if is_polled(part):
        if PolledTable(connection, polled_of(part)).by_transaction:
            effect = "a polled table gives no row that was written after it began"
            yield from _long_transactions(connection, where, effect, also_readers=False)
        return
    table = OutboxTable(connection, outbox_of(part))
    rows, seconds = table.waiting(connection)
    if rows:
        age = "" if seconds is None else f", the oldest for {seconds} s"
        yield ConfigError("I7053", where, f"{rows} rows wait in the outbox table{age}")
    if table.oid:
        if not table.has_trigger(connection):
            what = "no trigger of the outbox table wakes the receiver, which looks for rows every 'poll_interval'"
            yield ConfigError("W7051", where, what, "", "Make it with 'correlator outbox create', or accept the delay")
        effect = "the server keeps the deleted rows of the outbox table meanwhile, which slows the receiver down"
        yield from _long_transactions(connection, where, effect, also_readers=True)


def _look_at_slot(connection: Connection, captured: Captured) -> Iterator[CorrelatorError]:
    """Yield findings about a replication slot and the tables of its publication. Raises `ConnectionLost`."""
    where, server = captured.where, server_of(connection, captured)
    tables = tables_of(connection, captured)
    if not tables:
        what = f"publication {quoted(captured.publication)} has no table: the receiver gets nothing"
        yield ConfigError("W7624", where, what, "", "ALTER PUBLICATION name ADD TABLE orders")
    for table in tables:
        if not table.has_identity:
            name = f"{table.relation.schema}.{table.relation.table}"
            what = f"UPDATE and DELETE of table {quoted(name)} fail in your programs: it has no replica identity"
            todo = f"Give it a primary key, or ALTER TABLE {name} REPLICA IDENTITY FULL"
            yield ConfigError("W7620", where, what, "Unless the publication publishes only insert and truncate", todo)
    query = "SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
    if connection.exec_driver_sql(query).scalar_one() == "-1":
        what = (
            "max_slot_wal_keep_size is -1: the server keeps its log for a slot that nobody reads until its disk is full"
        )
        todo = "Set a limit; a receiver that falls further behind has to begin anew (E7602)"
        yield ConfigError("W7621", where, what, "", todo)
    effect = "the server keeps its log since then for the slot, and cannot make a slot meanwhile"
    yield from _long_transactions(connection, where, effect, also_readers=False)
    if server.slot is None:
        return
    if server.slot.wal_status == LOST:
        what = f"replication slot {quoted(captured.slot)} has lost its log: the server kept no more of it"
        yield ConnectionLost(
            "E7602", where, what, "", "Drop the slot, and remove the position of the receiver to begin anew"
        )
        return
    size = server.lsn - server.slot.flushed
    yield ConfigError("I7622", where, f"the receiver has {size / 2**20:.1f} MiB of the server's log to read")
    if server.slot.wal_status == "unreserved":
        what = "the server removes the log of the slot at its next checkpoint: it is longer than max_slot_wal_keep_size"
        yield ConfigError("W7623", where, what, "", "Let the receiver read on, or raise the limit now")


def _long_transactions(
    connection: Connection, where: str, effect: str, *, also_readers: bool
) -> Iterator[CorrelatorError]:
    found = connection.exec_driver_sql(_OPEN, {"also_readers": also_readers, "long": LONG_S}).first()
    if found is not None:
        what = f"the transaction of {quoted(found.who or 'an unnamed session')} has been open for {found.seconds} s"
        yield ConfigError("W7052", where, f"{what}: {effect}", "", "End it")
