"""The sink of the connector `sql`: one transaction holds the rows of a batch and the number of its last message.

Only this number says what the database has stored. A sink reads it once for each connection. Each transaction first
replaces the number that the sink knows with the number of the last message of the batch. If another process has written
with the same source meanwhile, the number differs, and the transaction is rolled back. If the answer to a COMMIT is
lost, the sink connects again and reads the number.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import isqrt
from operator import attrgetter

import msgspec
import sqlalchemy as sa
from sqlalchemy import URL, Connection
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import StatementError
from sqlalchemy.schema import CreateTable

from connectors.sql.database import close_quietly, open_database, reason_of, refuses_a_row, translated
from connectors.sql.mysql import check_engine
from connectors.sql.rows import Row, Writing, rows_of
from connectors.table_rules import check_gap, misfit
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing
from correlator.processes import Maker
from correlator.settings import SenderSettings

_metadata = sa.MetaData()
_SOURCE = sa.Text().with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
_REASON = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql")
SENDER = sa.Table(
    "correlator_sender",
    _metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    mysql_engine="InnoDB",
)
"""The number of the last message of each source that the database accounts for."""
REFUSED = sa.Table(
    "correlator_refused",
    _metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True),
    sa.Column("reason", _REASON, nullable=False),
    mysql_engine="InnoDB",
)
"""The refused messages among them: if such a message is sent again, it is refused again."""
_MAKING = 0x636F7274
"""Key of the PostgreSQL lock that protects the creation of the tables."""
_source_of = attrgetter("source")


class SqlSink:
    """Writes to the table of its sender.

    Args:
        sender: the settings of the sender; its destination is the table.
        url: address of the database.
        writing: the table and how to write there.
        missing_up_to: number up to which the database may lack messages of the sender.
    """

    def __init__(self, sender: SenderSettings, url: URL, writing: Writing, missing_up_to: int) -> None:
        self._where = writing.where
        self._destination = sender.destination
        self._sends_again = sender.reliability != "BEST_EFFORT"
        self._missing_up_to = missing_up_to
        self._url = url
        self._writing = writing
        self._process = Maker()
        self._connection: Connection | None = None
        self._last: dict[str, int] = {}
        self._began: set[str] = set()
        """The sources of which this sink has received messages."""

    def connect(self) -> None:
        """Connect, check the table, and make the tables of the sink. Raises `UsageError` E2050 in a forked child."""
        if self._connection is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with translated(self._where, self.close):
            connection = self._connection = open_database(self._where, self._url)
            with connection.begin():
                self._rows = rows_of(connection, self._writing)
                _make_tables(connection, self._where)

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Write the rows of a batch; they are on disk when this returns. Raises `ConnectionLost`."""
        self._process.check(self._where)
        connection = self._connection
        if connection is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        with translated(self._where, self.close):
            parts = groupby(batch, _source_of)
            return [one for source, part in parts for one in self._add(connection, source, list(part))]

    def close(self) -> None:
        """Close the connection. Does nothing in a forked child."""
        if self._process.is_another_process or self._connection is None:
            return
        connection, self._connection = self._connection, None
        self._last.clear()
        close_quietly(connection)

    def _add(self, connection: Connection, source: str, part: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Write the rows of messages of one source. Messages of a session have no source, so repeats
        are not recognised.
        """
        if not source:
            part = [msgspec.structs.replace(out, sequence=at) for at, out in enumerate(part, 1)]
        else:
            if source not in self._last:
                self._last[source] = _read_last(connection, source)
            if source not in self._began:
                _forget_refused(connection, source, part[0].sequence)
                self._began.add(source)
        last = self._last.get(source, 0)
        if self._sends_again:
            cause, holder = "it was restored or emptied", "the database"
            check_gap(self._where, part[0], last, self._missing_up_to, kind="database", holder=holder, cause=cause)
        new = [out for out in part if out.sequence > last]
        refusals = self._store(connection, source, last, new) if new else {}
        if len(new) < len(part):
            refusals |= {
                number: SendRejected("E8110", self._place(number), reason)
                for number, reason in _read_refused(connection, source, part[0].sequence, last)
            }
        return [refusals.get(out.sequence) for out in part]

    def _store(
        self, connection: Connection, source: str, last: int, new: Sequence[Outgoing]
    ) -> dict[int, SendRejected]:
        """Write rows and number in one transaction; return the refusals by number."""
        refusals: dict[int, SendRejected] = {}
        rows: list[tuple[int, Row]] = []
        for out in new:
            refusal = misfit(self._where, out, self._destination)
            if refusal is None:
                try:
                    rows.append((out.sequence, self._rows.row(out.message)))
                except ValueError as error:
                    refusal = SendRejected("E8110", self._place(out.sequence), str(error))
            if refusal is not None:
                refusals[out.sequence] = refusal
        with self._transaction(connection):
            if source:
                self._advance(connection, source, last, new[-1].sequence)
            for number, reason in self._write(connection, rows):
                refusals[number] = SendRejected("E8110", self._place(number), reason)
            if source and refusals:
                noted = [{"source": source, "sequence": one, "reason": refusals[one].what} for one in sorted(refusals)]
                connection.execute(sa.insert(REFUSED), noted)
        if source:
            self._last[source] = new[-1].sequence
        return refusals

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        with connection.begin():
            if connection.dialect.name == "postgresql":  # some constraints would fail only at COMMIT
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
            yield

    def _advance(self, connection: Connection, source: str, last: int, to: int) -> None:
        """Replace the number, and lock its row. Raises `ConnectionLost` E7046 if it differs from the
        number that was read.
        """
        of_source = (SENDER.c.source == source) & (SENDER.c.sequence == last)
        if connection.execute(sa.update(SENDER).where(of_source).values(sequence=to)).rowcount != 1:
            what = f"another process has written with source {quoted(source)}"
            raise ConnectionLost("E7046", self._where, what, "One engine at a time uses a source")

    def _write(self, connection: Connection, rows: Sequence[tuple[int, Row]]) -> Iterator[tuple[int, str]]:
        """Write rows in order; yield number and reason of each row that the database refuses.

        Writes all rows at once. If that fails, writes each half, and so on. After many tries, writes the rest one by
        one: among so many refused rows, the search by halves needs more statements.
        """
        parts = [rows] if rows else []
        tries_left = max(2 * isqrt(len(rows)), len(rows) // 4)
        while parts:
            part = parts.pop()
            if len(part) > 1 and tries_left <= 0:
                parts += [[row] for row in reversed(part)]
                continue
            tries_left -= 1
            reason = self._refusal_of(connection, [row for _, row in part])
            if reason and len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            elif reason:
                yield part[0][0], reason

    def _refusal_of(self, connection: Connection, rows: Sequence[Row]) -> str:
        """Write all of the rows or none; return "", or why a row is refused."""
        savepoint = connection.begin_nested()
        try:
            for names, run in groupby(rows, tuple):
                # Rows that consist of defaults are written one by one: SQLite would store NULL for several.
                for values in [list(run)] if names else [[row] for row in run]:
                    connection.execute(self._rows.statement(names), values)
        except (StatementError, RecursionError) as error:  # JSON of the body may be nested too deeply to be written
            if not refuses_a_row(error):
                raise  # this ends the transaction; after a deadlock MySQL has none any more, and no savepoint
            savepoint.rollback()
            return f"the database refuses the row: {reason_of(error)}"
        savepoint.commit()
        return ""

    def _place(self, number: int) -> str:
        return f"{self._where} message {number}"


def _make_tables(connection: Connection, where: str) -> None:
    """Make the tables of the sink that are missing. Raises `ConnectionLost` E7640 if one cannot be used."""
    missing = [table for table in (SENDER, REFUSED) if not sa.inspect(connection).has_table(table.name)]
    if missing and connection.dialect.name == "postgresql":  # two sessions that create one table at once may fail
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
    for table in missing:
        connection.execute(CreateTable(table, if_not_exists=True))
    if connection.dialect.name == "mysql":
        for table in (SENDER, REFUSED):
            check_engine(connection, where, f"table '{table.name}'", table.name, None)


def _read_last(connection: Connection, source: str) -> int:
    """Return the number of the last message of a source that the database accounts for; add a row if there is none."""
    with connection.begin():
        found = connection.execute(sa.select(SENDER.c.sequence).where(SENDER.c.source == source)).scalar()
        if found is None:
            connection.execute(sa.insert(SENDER).inline().values(source=source, sequence=0))
    return found or 0


def _forget_refused(connection: Connection, source: str, first: int) -> None:
    """Forget refused messages before the first one that the engine sends in this life: it does not send them again.

    A later batch does not show this: the store of the engine records confirms only at the next checkpoint, so the next
    life may send older messages again.
    """
    with connection.begin():
        connection.execute(sa.delete(REFUSED).where(REFUSED.c.source == source, REFUSED.c.sequence < first))


def _read_refused(connection: Connection, source: str, first: int, last: int) -> Sequence[tuple[int, str]]:
    """Return number and reason of each message of a source that was refused before."""
    between = REFUSED.c.sequence.between(first, last)
    query = sa.select(REFUSED.c.sequence, REFUSED.c.reason).where(REFUSED.c.source == source, between)
    with connection.begin():
        return [(number, reason) for number, reason in connection.execute(query)]
