"""Statements about outbox tables that differ between databases: how a table is made, and parts of queries."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import ARRAY

from connectors.sql.mysql import OF_BYTES, in_utf8

FUNCTION = "correlator_outbox_notify"
"""The function of the trigger in PostgreSQL. It notifies the channel `correlator_outbox_OID`."""
_SQLITE_TABLE = """\
CREATE TABLE IF NOT EXISTS {table} (
    {id} INTEGER PRIMARY KEY AUTOINCREMENT,
    {body} TEXT NOT NULL,
    {properties} TEXT,
    {created} TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    {unique_id} TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
)"""
_POSTGRES_TABLE = """\
CREATE TABLE IF NOT EXISTS {table} (
    {id} BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    {body} TEXT NOT NULL,
    {properties} JSON,
    {created} TIMESTAMPTZ NOT NULL DEFAULT now(),
    {unique_id} UUID NOT NULL DEFAULT gen_random_uuid()
)"""
_POSTGRES_FUNCTION = """\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('correlator_outbox_' || TG_RELID, '');
    RETURN NULL;
END
$$"""
_POSTGRES_TRIGGER = """\
CREATE OR REPLACE TRIGGER correlator_outbox AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}()"""
_MYSQL_TABLE = """\
CREATE TABLE IF NOT EXISTS {table} (
    {id} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    {body} LONGTEXT NOT NULL,
    {properties} JSON,
    {created} TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    {unique_id} VARCHAR(255) NOT NULL DEFAULT (uuid())
) ENGINE = InnoDB CHARACTER SET utf8mb4"""
_DOUBLE, _BACK = '"', "`"
"""Quotation marks of names."""
_UNIX_EPOCH = 2440587.5
"""The beginning of Unix time as a Julian day."""
_DAY_MS = 86_400_000

Key = tuple[int, bytes]
"""The key and the unique id of a row."""


class OutboxDialect(Protocol):
    """Parts of statements about outbox tables. Times are milliseconds since the epoch."""

    def statements(self, table: str, schema: str | None, columns: Mapping[str, str]) -> Sequence[str]:
        """Return the statements that make a table and its trigger, if it has one. `columns` gives the
        names by their roles.
        """
        ...

    def content(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return the content of a column as bytes; a text is in UTF-8."""
        ...

    def time_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return the time in a column."""
        ...

    def now(self) -> sa.ColumnElement[Any]:
        """Return an expression of the present time, in milliseconds since the epoch."""
        ...

    def is_none_of(self, key: sa.ColumnElement[int], held: Sequence[int]) -> sa.ColumnElement[bool]:
        """Return whether a key is none of these."""
        ...

    def delete(
        self,
        connection: Connection,
        table: sa.Table,
        key: sa.ColumnElement[int],
        unique: sa.ColumnElement[bytes],
        rows: Sequence[Key],
    ) -> None:
        """Delete these rows of the table, where `key` and `unique` are the expressions of their columns."""
        ...


class SqliteOutbox:
    """See `OutboxDialect`."""

    def statements(self, table: str, schema: str | None, columns: Mapping[str, str]) -> Sequence[str]:
        """See `OutboxDialect`."""
        return (_SQLITE_TABLE.format_map(_quoted(table, schema, columns, _DOUBLE)),)

    def content(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        return sa.cast(column, sa.LargeBinary)

    def time_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        days = sa.func.julianday(column) - _UNIX_EPOCH
        return sa.cast(sa.func.round(days * _DAY_MS), sa.BigInteger)

    def now(self) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        return sa.cast((sa.func.julianday("now") - _UNIX_EPOCH) * _DAY_MS, sa.BigInteger)

    def is_none_of(self, key: sa.ColumnElement[int], held: Sequence[int]) -> sa.ColumnElement[bool]:
        """See `OutboxDialect`."""
        listed = sa.func.json_each(f"[{','.join(map(str, held))}]").table_valued("value")
        return key.not_in(sa.select(listed.c.value))

    def delete(
        self,
        connection: Connection,
        table: sa.Table,
        key: sa.ColumnElement[int],
        unique: sa.ColumnElement[bytes],
        rows: Sequence[Key],
    ) -> None:
        """See `OutboxDialect`."""
        one = sa.delete(table).where(key == sa.bindparam("k", type_=sa.BigInteger), unique == sa.bindparam("u"))
        connection.execute(one, [{"k": number, "u": text} for number, text in rows])


class PostgresOutbox:
    """See `OutboxDialect`."""

    def statements(self, table: str, schema: str | None, columns: Mapping[str, str]) -> Sequence[str]:
        """See `OutboxDialect`."""
        names = _quoted(table, schema, columns, _DOUBLE)
        function = FUNCTION if schema is None else f"{_quote(schema, _DOUBLE)}.{FUNCTION}"
        return [
            _POSTGRES_TABLE.format_map(names),
            _POSTGRES_FUNCTION.format(function=function),
            _POSTGRES_TRIGGER.format(table=names["table"], function=function),
        ]

    def content(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        if isinstance(column.type, sa.LargeBinary):
            return column
        return sa.func.convert_to(sa.cast(column, sa.Text), sa.literal_column("'UTF8'"))

    def time_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        epoch = sa.cast(sa.extract("epoch", column) * 1000, sa.BigInteger)
        return sa.case((sa.func.isfinite(column), epoch))

    def now(self) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        return sa.cast(sa.extract("epoch", sa.func.now()) * 1000, sa.BigInteger)

    def is_none_of(self, key: sa.ColumnElement[int], held: Sequence[int]) -> sa.ColumnElement[bool]:
        """See `OutboxDialect`."""
        array = sa.bindparam("numbers", list(held), type_=ARRAY(sa.BigInteger))
        listed = sa.func.unnest(array).table_valued("value").render_derived(name="listed")
        return key.not_in(sa.select(listed.c.value))

    def delete(
        self,
        connection: Connection,
        table: sa.Table,
        key: sa.ColumnElement[int],
        unique: sa.ColumnElement[bytes],
        rows: Sequence[Key],
    ) -> None:
        """See `OutboxDialect`."""
        read = sa.func.unnest(
            sa.bindparam("keys", [number for number, _ in rows], type_=ARRAY(sa.BigInteger)),
            sa.bindparam("ids", [text for _, text in rows], type_=ARRAY(sa.LargeBinary)),
        ).table_valued("key", "unique_id")
        listed = read.render_derived(name="listed")
        connection.execute(sa.delete(table).where(key == listed.c.key, unique == listed.c.unique_id))


class MysqlOutbox:
    """See `OutboxDialect`. The time zone of the session is UTC."""

    def statements(self, table: str, schema: str | None, columns: Mapping[str, str]) -> Sequence[str]:
        """See `OutboxDialect`. MySQL has no means to wake a receiver."""
        return (_MYSQL_TABLE.format_map(_quoted(table, schema, columns, _BACK)),)

    def content(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        if isinstance(column.type, OF_BYTES):
            return column
        return sa.cast(in_utf8(column), sa.LargeBinary)

    def time_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        epoch: sa.ColumnElement[Any] = sa.literal_column("'1970-01-01'")
        return sa.func.timestampdiff(sa.literal_column("MICROSECOND"), epoch, column).op("DIV")(1000)

    def now(self) -> sa.ColumnElement[Any]:
        """See `OutboxDialect`."""
        return self.time_of(sa.func.utc_timestamp(sa.literal_column("6")))

    def is_none_of(self, key: sa.ColumnElement[int], held: Sequence[int]) -> sa.ColumnElement[bool]:
        """See `OutboxDialect`."""
        return key.not_in(held)

    def delete(
        self,
        connection: Connection,
        table: sa.Table,
        key: sa.ColumnElement[int],
        unique: sa.ColumnElement[bytes],
        rows: Sequence[Key],
    ) -> None:
        """See `OutboxDialect`. The statement finds the rows by their keys, because MySQL locks each row
        that it reads.
        """
        keys = key.in_([number for number, _ in rows])
        connection.execute(sa.delete(table).where(keys, sa.tuple_(key, unique).in_(rows)))


_OF_DATABASES: Mapping[str, OutboxDialect] = {
    "sqlite": SqliteOutbox(),
    "postgresql": PostgresOutbox(),
    "mysql": MysqlOutbox(),
}


def outbox_dialect(database: str) -> OutboxDialect:
    """Return the dialect of a database: `sqlite`, `postgresql` or `mysql`."""
    return _OF_DATABASES[database]


def _quoted(table: str, schema: str | None, columns: Mapping[str, str], mark: str) -> Mapping[str, str]:
    """Return the names for statements, the table with its schema as `table`."""
    whole = _quote(table, mark) if schema is None else f"{_quote(schema, mark)}.{_quote(table, mark)}"
    return {"table": whole, **{role: _quote(name, mark) for role, name in columns.items()}}


def _quote(name: str, mark: str) -> str:
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"
