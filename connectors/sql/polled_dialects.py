"""Statements about polled tables that differ between databases: columns, places in the order, rows as JSON."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import mysql
from sqlalchemy.types import NULLTYPE, TypeEngine

from connectors.sql.database import oid_of, raw_sqlite
from connectors.sql.mysql import OF_BYTES, in_utf8, json_columns

Place = tuple[int | float | str, ...]
"""The place of a row in the order: the values of the ordering columns. An empty place is before all rows."""
ROW = "correlator_row"
"""The name of the table in queries."""
_POSTGRES_COLUMNS = """
    SELECT attname, atttypid::regtype::text, attnotnull FROM pg_attribute
    WHERE attrelid = %(oid)s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_IN_ORDER = (sa.Integer, sa.Numeric, sa.Date, sa.DateTime, sa.Time, sa.String, sa.Uuid, *OF_BYTES)
_NOT_IN_ORDER = (sa.Enum, mysql.SET)
"""`_IN_ORDER`: types of columns of MySQL whose values are read in the order in which the server compares them;
`_NOT_IN_ORDER`: their subtypes for which this is not so."""
_BYTES, _TEXT, _INFINITE = "X'", "CAST(X'", ("9e999", "-9e999")
_LITERALS = (_BYTES, _TEXT, *_INFINITE)
"""Beginnings of texts in a place that are literals of SQLite; a value that begins so becomes a literal, too."""


class Column(NamedTuple):
    """A column of a polled table.

    Attributes:
        name: its name.
        type: the name of its type.
        may_be_null: whether it may be null.
        kind: its type in MySQL.
    """

    name: str
    type: str
    may_be_null: bool
    kind: TypeEngine[Any] = NULLTYPE

    @property
    def orders(self) -> bool:
        """Return whether its values can order rows."""
        return self.kind is NULLTYPE or (isinstance(self.kind, _IN_ORDER) and not isinstance(self.kind, _NOT_IN_ORDER))


class PolledDialect(Protocol):
    """Parts of statements about polled tables. The columns in `order` order the rows."""

    def columns(self, connection: Connection, table: str, schema: str | None) -> Mapping[str, Column]:
        """Return the columns of a table, by name."""
        ...

    def identity(self, connection: Connection, table: str, schema: str | None) -> str:
        """Return an identity that differs between tables, and after a table was made anew, as far as
        the database tells.
        """
        ...

    def place(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        """Return the columns in the form of a place."""
        ...

    def is_behind(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """Return whether a row comes after a place."""
        ...

    def is_up_to(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """Return whether a row does not come after a place."""
        ...

    def content(
        self, keyed: Mapping[str, sa.ColumnElement[Any]], columns: Mapping[str, Column]
    ) -> sa.ColumnElement[Any]:
        """Return the row as a JSON object in UTF-8. `keyed` has the expressions of the columns, by name."""
        ...


class _Tuples:
    """Compares places as tuples."""

    def is_behind(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """See `PolledDialect`."""
        return sa.tuple_(*order) > sa.tuple_(*map(self._value_of, place))

    def is_up_to(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """See `PolledDialect`."""
        return sa.tuple_(*order) <= sa.tuple_(*map(self._value_of, place))

    def _value_of(self, part: float | str) -> sa.ColumnElement[Any]:
        """Return an expression of the value that this part of a place stands for."""
        return _parameter(part)


class SqlitePolled(_Tuples):
    """See `PolledDialect`."""

    def columns(self, connection: Connection, table: str, schema: str | None) -> Mapping[str, Column]:
        """See `PolledDialect`. Also define the SQL functions with which `content` and `place` write a value."""
        raw = raw_sqlite(connection)
        raw.create_function("correlator_json", 2, _json_of, deterministic=True)
        raw.create_function("correlator_place", 2, _part_of, deterministic=True)
        found = sa.inspect(connection).get_columns(table, schema=schema)
        return {one["name"]: Column(one["name"], str(one["type"]), one["nullable"]) for one in found}

    def identity(self, connection: Connection, table: str, schema: str | None) -> str:
        """See `PolledDialect`. Returns the identity of the file."""
        del schema
        (_, _, file) = next(iter(connection.exec_driver_sql("PRAGMA database_list")))
        return f"{Path(file).stat().st_ino} {table}"

    def place(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        """See `PolledDialect`."""
        return [sa.func.correlator_place(*_with_type(column)) for column in order]

    def content(
        self, keyed: Mapping[str, sa.ColumnElement[Any]], columns: Mapping[str, Column]
    ) -> sa.ColumnElement[Any]:
        """See `PolledDialect`."""
        del columns
        text: sa.ColumnElement[Any] = sa.literal("", sa.Text)
        for name, column in keyed.items():
            begin = ("," if name != next(iter(keyed)) else "{") + msgspec.json.encode(name).decode() + ":"
            text = text + sa.literal(begin, sa.Text) + sa.func.correlator_json(*_with_type(column), type_=sa.Text)
        return sa.cast(text + sa.literal("}", sa.Text), sa.LargeBinary)

    def _value_of(self, part: float | str) -> sa.ColumnElement[Any]:
        """See `_Tuples`. Reads the literals of `_part_of`."""
        if not isinstance(part, str) or not part.startswith(_LITERALS):
            return _parameter(part)
        if part in _INFINITE:
            return _parameter(float(part))
        value = _parameter(bytes.fromhex(part.split("'")[1]))
        if part.startswith(_BYTES):
            return value
        return sa.cast(value, sa.Text) + sa.literal("", sa.Text)  # adding "" does not change how values are compared


class PostgresPolled(_Tuples):
    """See `PolledDialect`."""

    def columns(self, connection: Connection, table: str, schema: str | None) -> Mapping[str, Column]:
        """See `PolledDialect`."""
        found = connection.exec_driver_sql(_POSTGRES_COLUMNS, {"oid": oid_of(connection, table, schema)})
        return {name: Column(name, kind, not is_never_null) for name, kind, is_never_null in found}

    def identity(self, connection: Connection, table: str, schema: str | None) -> str:
        """See `PolledDialect`."""
        system = connection.exec_driver_sql("SELECT system_identifier FROM pg_control_system()").scalar_one()
        return f"{system} {oid_of(connection, table, schema)}"

    def place(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        """See `PolledDialect`."""
        return [sa.cast(one, sa.Text) for one in order]

    def content(
        self, keyed: Mapping[str, sa.ColumnElement[Any]], columns: Mapping[str, Column]
    ) -> sa.ColumnElement[Any]:
        """See `PolledDialect`."""
        row: sa.ColumnElement[Any] = sa.func.to_jsonb(sa.literal_column(ROW))
        for name, column in keyed.items():
            if columns[name].type == "bytea":
                base64 = sa.func.translate(sa.func.encode(column, "base64"), "\n", "")
                row = row.op("||")(sa.func.jsonb_build_object(name, base64))
        return sa.func.convert_to(sa.cast(row, sa.Text), sa.literal_column("'UTF8'"))


class MysqlPolled:
    """See `PolledDialect`. The time zone of the session is UTC. MySQL uses no index to compare tuples."""

    def columns(self, connection: Connection, table: str, schema: str | None) -> Mapping[str, Column]:
        """See `PolledDialect`."""
        found = {one["name"]: one for one in sa.inspect(connection).get_columns(table, schema=schema)}
        kinds = {name: one["type"] for name, one in found.items()}
        kinds |= dict.fromkeys(json_columns(connection, table, schema) & kinds.keys(), sa.JSON())
        return {name: Column(name, str(one["type"]), one["nullable"], kinds[name]) for name, one in found.items()}

    def identity(self, connection: Connection, table: str, schema: str | None) -> str:
        """See `PolledDialect`. Returns only names: the server tells nothing else that survives a change
        of the table.
        """
        return f"{schema or connection.dialect.default_schema_name}.{table}"

    def place(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        """See `PolledDialect`."""
        return [_place_of(one) for one in order]

    def is_behind(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """See `PolledDialect`."""
        *before, last = list(zip(order, map(_value_of, order, place), strict=True))
        condition = last[0] > last[1]
        for column, value in reversed(before):
            condition = sa.or_(column > value, sa.and_(column == value, condition))
        return sa.and_(order[0] >= _value_of(order[0], place[0]), condition)

    def is_up_to(self, order: Sequence[sa.ColumnElement[Any]], place: Place) -> sa.ColumnElement[bool]:
        """See `PolledDialect`."""
        *before, last = list(zip(order, map(_value_of, order, place), strict=True))
        condition = last[0] <= last[1]
        for column, value in reversed(before):
            condition = sa.or_(column < value, sa.and_(column == value, condition))
        return condition

    def content(
        self, keyed: Mapping[str, sa.ColumnElement[Any]], columns: Mapping[str, Column]
    ) -> sa.ColumnElement[Any]:
        """See `PolledDialect`."""
        del columns
        parts = [part for name, column in keyed.items() for part in (sa.literal(name), _json_value(column))]
        return sa.cast(in_utf8(sa.func.json_object(*parts)), sa.LargeBinary)


_OF_DATABASES: Mapping[str, PolledDialect] = {
    "sqlite": SqlitePolled(),
    "postgresql": PostgresPolled(),
    "mysql": MysqlPolled(),
}


def polled_dialect(database: str) -> PolledDialect:
    """Return the dialect of a database: `sqlite`, `postgresql` or `mysql`."""
    return _OF_DATABASES[database]


def _parameter(value: Any) -> sa.BindParameter[Any]:
    """Return a parameter without a type; the database takes the type from the column."""
    return sa.bindparam(None, value, type_=NULLTYPE, unique=True)


def _with_type(column: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Return the value of a column of SQLite for a function, and its type; a text as bytes, since it
    need not be UTF-8.
    """
    kind = sa.func.typeof(column)
    return sa.case((kind == "text", sa.cast(column, sa.LargeBinary)), else_=column), kind


def _part_of(value: Any, kind: str) -> float | str:
    """Return a value of SQLite as part of a place; as a literal of SQL if JSON cannot represent it exactly."""
    if kind == "blob":
        return f"{_BYTES}{value.hex()}'"
    if kind == "real" and math.isinf(value):
        return _INFINITE[value < 0]
    if kind != "text":
        return value  # type: ignore[no-any-return]  # a number
    with contextlib.suppress(UnicodeDecodeError):
        text: str = value.decode()
        if not text.startswith(_LITERALS):
            return text
    return f"{_TEXT}{value.hex()}' AS TEXT)"


def _json_of(value: Any, kind: str) -> str:
    """Return a value of SQLite as JSON: bytes in Base64; a text is passed as bytes, since it need not be UTF-8."""
    if kind == "text":
        value = value.decode(errors="backslashreplace")
    return msgspec.json.encode(value).decode()


def _place_of(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the value of a column of MySQL as a number or a text."""
    if isinstance(column.type, sa.Integer):
        return column
    if isinstance(column.type, OF_BYTES):
        return sa.func.hex(column)
    return in_utf8(column) if isinstance(column.type, sa.String) else sa.cast(column, sa.CHAR)


def _value_of(column: sa.ColumnElement[Any], part: float | str) -> sa.BindParameter[Any]:
    """Return a parameter whose value in MySQL is exactly the value that this part of a place stands for."""
    if isinstance(column.type, sa.Numeric):
        return _parameter(Decimal(part))
    return _parameter(bytes.fromhex(str(part)) if isinstance(column.type, OF_BYTES) else part)


def _json_value(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the value of a column of MySQL for a JSON object."""
    kind = column.type
    if isinstance(kind, sa.JSON):
        return sa.func.json_extract(column, "$")
    if isinstance(kind, OF_BYTES):
        return sa.func.replace(sa.func.to_base64(column), "\n", "")
    if isinstance(kind, sa.DateTime):
        zone = "+00:00" if isinstance(kind, mysql.TIMESTAMP) else ""
        return sa.func.concat(sa.func.replace(sa.cast(column, sa.CHAR), " ", "T"), zone)
    if isinstance(kind, mysql.BIT | mysql.YEAR):
        return sa.cast(column, mysql.INTEGER(unsigned=True))
    return column if isinstance(kind, sa.Integer | sa.Numeric | sa.Float | sa.String) else sa.cast(column, sa.CHAR)
