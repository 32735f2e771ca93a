"""Looks at the table of a receiver or sender before an engine runs (`correlator doctor`)."""

from collections.abc import Iterator

from sqlalchemy import Connection

from connectors.sql.mysql import flushes_each_commit
from connectors.sql.options import is_polled, outbox_of, place_of, polled_of, writing_of
from connectors.sql.outbox_table import OutboxTable
from connectors.sql.polled_table import PolledTable
from connectors.sql.rows import rows_of
from correlator.errors import ConfigError, CorrelatorError, quoted
from correlator.settings import ReceiverSettings, SenderSettings

LONG_S = 300
"""A transaction is worth a warning when it has been open for so many seconds."""
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
    """Findings about the table of a receiver or sender. Raises `ConnectionLost` if it could not be used."""
    where = place_of(part)
    if isinstance(part, SenderSettings):
        rows_of(connection, writing_of(part))
        if connection.dialect.name == "mysql" and not flushes_each_commit(connection):
            what = "the server confirms transactions that are not on disk: a power cut may take rows back"
            yield ConfigError("W7645", where, what, "", "Set innodb_flush_log_at_trx_commit = 1")
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
            what = "no trigger of the outbox table wakes the receiver, which looks each 'poll_interval'"
            yield ConfigError("W7051", where, what, "", "Make it with 'correlator outbox create', or leave it so")
        effect = "the server keeps the deleted rows of the outbox table meanwhile, which slows the receiver down"
        yield from _long_transactions(connection, where, effect, also_readers=True)


def _long_transactions(
    connection: Connection, where: str, effect: str, *, also_readers: bool
) -> Iterator[CorrelatorError]:
    found = connection.exec_driver_sql(_OPEN, {"also_readers": also_readers, "long": LONG_S}).first()
    if found is not None:
        what = f"the transaction of {quoted(found.who or 'an unnamed session')} has been open for {found.seconds} s"
        yield ConfigError("W7052", where, f"{what}: {effect}", "", "End it")
