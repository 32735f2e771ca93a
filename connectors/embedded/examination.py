"""Looks for what makes a broker slow or large without stopping it (`correlator doctor`). Changes nothing."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from connectors.embedded import schema
from connectors.embedded.link import is_sqlite, sqlite_path
from correlator.errors import ConfigError, CorrelatorError, StoreError, quoted
from correlator.storage.database import location, reading
from correlator.storage.sqlite import LARGEST_IDLE_WAL, NO_DATABASE

LONG_S = 60
"""A transaction is worth a warning when it has been open for so many seconds."""
_OLDEST = """
    SELECT pid, name, state, seconds FROM (
        SELECT pid, application_name AS name, state, extract(epoch FROM now() - xact_start)::bigint AS seconds
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
            AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
        UNION ALL
        SELECT NULL, gid, NULL, extract(epoch FROM now() - prepared)::bigint FROM pg_prepared_xacts
        WHERE database = current_database()
    ) AS every WHERE seconds >= %(long)s ORDER BY seconds DESC LIMIT 1
"""


def look(where: str, store: str) -> Sequence[CorrelatorError]:
    """Findings about the database of a broker; none if there is no broker yet.

    Raises errors that `link.translated` turns into `ConnectionLost`, and `ConnectionLost` E7006 if a newer version
    wrote the broker.
    """
    try:
        with reading(store) as connection:
            found = schema.revision(connection)
            schema.refuse_unknown(location(store), found)
            if not found:
                return []
            return list(_look_at_log(where, store) if is_sqlite(store) else _look_at_transactions(where, connection))
    except StoreError as error:
        if error.code == NO_DATABASE:
            return []
        raise


def _look_at_transactions(where: str, connection: Connection) -> Iterator[CorrelatorError]:
    oldest = connection.exec_driver_sql(_OLDEST, {"long": LONG_S}).first()
    if oldest is None:
        return
    if oldest.pid is None:
        who, todo = f"the prepared transaction {quoted(oldest.name)} of the server", "Commit it or roll it back"
    else:
        who = f"session {oldest.pid} ({quoted(oldest.name or 'without a name')}, {oldest.state})"
        todo = f"End its transaction, or SELECT pg_terminate_backend({oldest.pid})"
    what = f"{who} has had a transaction open for {oldest.seconds} s"
    effect = "the server keeps the rows of all messages that were deleted meanwhile, and receiving becomes slower"
    yield ConfigError("W7571", where, f"{what}: {effect}", "", todo)


def _look_at_log(where: str, store: str) -> Iterator[CorrelatorError]:
    log = sqlite_path(store).with_name(f"{sqlite_path(store).name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > LARGEST_IDLE_WAL:
        what = (
            f"the write-ahead log {log.name} has {size // 2**20} MiB: a program reads the file in one long transaction"
        )
        yield ConfigError("W7572", where, what, "Or one has done so until a moment ago", "End that transaction")
