"""A table that a receiver polls, as the database describes it, and the queries that read its rows in order.

A row is read as one JSON object, which the database makes, so that no value can fail in the driver and hold up the rows
behind it. A place is a list of values that the database has compared, never Python: a number or a text for each of the
columns that order the rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import NULLTYPE

from connectors.sql.database import check_table, oid_of, raw_sqlite
from connectors.sql.reading import cut, size, within
from correlator.errors import ConnectionLost, quoted

TRANSACTION = "xid8"
"""The type of a column of PostgreSQL with the number of the transaction that has written a row."""
Place = tuple[int | float | str, ...]
"""Where a row is in the order: the values of the ordering columns. Empty before all rows."""
_ROW = "correlator_row"
_COLUMNS = """
    SELECT attname, atttypid::regtype::text, attnotnull FROM pg_attribute
    WHERE attrelid = %(oid)s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Polled(NamedTuple):
    """What a receiver polls.

    Attributes:
        where: place for messages.
        table: name of the table.
        schema: its schema, or `None` for the one in which the database looks first.
        order: the column whose values grow.
        keys: the columns that order rows with equal values; empty for those of the primary key.
        lag_s: how many seconds a row waits behind rows that may still come before it; `None` if nothing is configured.
        starts_next: whether a receiver without a position begins behind the rows that are there.
    """

    where: str
    table: str
    schema: str | None
    order: str
    keys: Sequence[str]
    lag_s: float | None
    starts_next: bool


class PolledRow(NamedTuple):
    """A row as it is read.

    Attributes:
        place: its values in the ordering columns.
        body: the first bytes of its JSON object, all if `size` is the number of them.
        size: the number of bytes of the whole object.
    """

    place: Place
    body: bytes
    size: int


class _Column(NamedTuple):
    name: str
    type: str
    may_be_null: bool


class PolledTable:
    """The table of an open database.

    Attributes:
        identity: of the database and the table; another one after the table was made anew, as far as the database
            tells.
        by_transaction: whether the order is that of transactions.
        order: the names of the columns that order the rows.

    Raises:
        ConnectionLost: E7010, E7041: the table is missing or cannot be polled in this way.
        sqlalchemy.exc.DBAPIError: the database cannot be read.
    """

    def __init__(self, connection: Connection, polled: Polled) -> None:
        self._is_sqlite = connection.dialect.name == "sqlite"
        inspector = sa.inspect(connection)
        name = check_table(inspector, polled.where, polled.table, polled.schema)
        primary = inspector.get_pk_constraint(polled.table, schema=polled.schema)["constrained_columns"]
        oid = 0 if self._is_sqlite else oid_of(connection, polled.table, polled.schema)
        columns = self._columns(connection, polled, oid)
        self.identity = self._identity(connection, polled.table, oid)
        keys = polled.keys or primary
        self.order = order = list(dict.fromkeys([polled.order, *keys]))
        views = inspector.get_view_names(polled.schema)
        for one in order:
            column = columns.get(one)
            if column is None:
                raise ConnectionLost("E7041", polled.where, f"{name} has no column {quoted(one)}")
            if column.may_be_null and one not in primary and polled.table not in views:
                what = f"{name} may have null in column {quoted(one)}: such a row has no place in the order"
                todo = "Poll a view of the table that has a value in its place"
                raise ConnectionLost("E7041", polled.where, what, "", todo)
        if not keys:
            todo = "Name columns that tell rows with an equal value apart in key_columns"
            raise ConnectionLost("E7041", polled.where, f"{name} has no primary key", "", todo)
        self.by_transaction = columns[polled.order].type == TRANSACTION
        if not self._is_sqlite and not self.by_transaction and polled.lag_s is None:
            what = f"column {quoted(polled.order)} does not show which rows are still to come before others"
            allowed = f"PostgreSQL needs 'lag', or a column of the type {TRANSACTION}"
            raise ConnectionLost("E7041", polled.where, what, allowed)
        made: list[sa.Column[Any]] = [sa.Column(quoted_name(one, True), key=f"c{at}") for at, one in enumerate(columns)]
        schema = None if polled.schema is None else quoted_name(polled.schema, True)
        self._table = sa.Table(quoted_name(polled.table, True), sa.MetaData(), *made, schema=schema).alias(_ROW)
        keyed = {one: self._table.c[f"c{at}"] for at, one in enumerate(columns)}
        self._order = [keyed[one] for one in order]
        self._content = self._json(keyed, columns)
        if self._is_sqlite:
            raw_sqlite(connection).create_function("correlator_json", 2, _json_of, deterministic=True)

    def read(
        self, connection: Connection, after: Place, until: Place | None, most: int, bounds: tuple[int, int]
    ) -> list[PolledRow]:
        """The rows behind a place, in order.

        Args:
            connection: in a transaction.
            after: the place.
            until: the last place, or `None` for no limit.
            most: the most rows to return, 1 or more.
            bounds: how many bytes of one row are read at most, and at how many bytes of all of them the result ends.
        """
        longest, enough = bounds
        natives = [f"n{at}" for at in range(len(self._order))]
        places = [f"p{at}" for at in range(len(self._order))]
        query = sa.select(
            *[column.label(name) for name, column in zip(natives, self._order, strict=True)],
            *[column.label(name) for name, column in zip(places, self._place, strict=True)],
            self._content.label("content"),
        ).where(*self._conditions(after))
        if until is not None:
            query = query.where(sa.tuple_(*self._order) <= _values(until))
        rows = query.order_by(*self._order).limit(most).subquery("rows")
        first = cut(rows.c.content, longest)
        bounded = sa.select(
            *[rows.c[name] for name in (*natives, *places)],
            first.label("body"),
            size(rows.c.content).label("size"),
            size(first).label("taken"),
        )
        return [
            PolledRow(tuple(getattr(row, name) for name in places), row.body, row.size)
            for row in connection.execute(within(bounded, natives, enough))
        ]

    def last(self, connection: Connection) -> Place:
        """The place of the last row that is there."""
        query = sa.select(*self._place).where(*self._not_null).order_by(*[one.desc() for one in self._order]).limit(1)
        found = connection.execute(query).first()
        return () if found is None else tuple(found)

    def present(self, connection: Connection) -> Place:
        """A place behind all rows that are there, and before all rows that are still to come."""
        if not self.by_transaction:
            return self.last(connection)
        return (connection.exec_driver_sql("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").scalar_one(),)

    @property
    def _place(self) -> Sequence[sa.ColumnElement[Any]]:
        """The ordering columns in the form of a place."""
        return self._order if self._is_sqlite else [sa.cast(one, sa.Text) for one in self._order]

    @property
    def _not_null(self) -> Sequence[sa.ColumnElement[bool]]:
        return [one.is_not(None) for one in self._order]

    def _conditions(self, after: Place) -> Sequence[sa.ColumnElement[bool]]:
        conditions = list(self._not_null)
        if self.by_transaction:  # no transaction that is still open has a lower number
            conditions.append(self._order[0] < sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot()))
        if len(after) == len(self._order):
            conditions.append(sa.tuple_(*self._order) > _values(after))
        elif after:
            conditions.append(self._order[0] >= sa.bindparam("begin", after[0], type_=NULLTYPE))
        return conditions

    def _json(
        self, keyed: Mapping[str, sa.ColumnElement[Any]], columns: Mapping[str, _Column]
    ) -> sa.ColumnElement[Any]:
        if not self._is_sqlite:
            row: sa.ColumnElement[Any] = sa.func.to_jsonb(sa.literal_column(_ROW))
            for name, column in keyed.items():
                if columns[name].type == "bytea":
                    base64 = sa.func.translate(sa.func.encode(column, "base64"), "\n", "")
                    row = row.op("||")(sa.func.jsonb_build_object(name, base64))
            return sa.func.convert_to(sa.cast(row, sa.Text), sa.literal_column("'UTF8'"))
        text: sa.ColumnElement[Any] = sa.literal("", sa.Text)
        for name, column in keyed.items():
            kind = sa.func.typeof(column)
            value = sa.case((kind == "text", sa.cast(column, sa.LargeBinary)), else_=column)
            begin = ("," if name != next(iter(keyed)) else "{") + msgspec.json.encode(name).decode() + ":"
            text = text + sa.literal(begin, sa.Text) + sa.func.correlator_json(value, kind, type_=sa.Text)
        return sa.cast(text + sa.literal("}", sa.Text), sa.LargeBinary)

    def _columns(self, connection: Connection, polled: Polled, oid: int) -> dict[str, _Column]:
        if self._is_sqlite:
            found = sa.inspect(connection).get_columns(polled.table, schema=polled.schema)
            return {one["name"]: _Column(one["name"], str(one["type"]), one["nullable"]) for one in found}
        rows = connection.exec_driver_sql(_COLUMNS, {"oid": oid})
        return {name: _Column(name, kind, not is_never_null) for name, kind, is_never_null in rows}

    def _identity(self, connection: Connection, table: str, oid: int) -> str:
        if self._is_sqlite:
            (_, _, file) = next(iter(connection.exec_driver_sql("PRAGMA database_list")))
            parts = f"{Path(file).stat().st_ino} {table}"
        else:
            system = connection.exec_driver_sql("SELECT system_identifier FROM pg_control_system()").scalar_one()
            parts = f"{system} {oid}"
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _values(place: Place) -> sa.Tuple:
    """A place as parameters without types, which the database takes from the columns."""
    return sa.tuple_(*[sa.bindparam(None, value, type_=NULLTYPE, unique=True) for value in place])


def _json_of(value: Any, kind: str) -> str:
    """The value of SQLite as JSON: bytes in Base64; a text comes as bytes, since it need not be UTF-8."""
    if kind == "text":
        value = value.decode(errors="backslashreplace")
    return msgspec.json.encode(value).decode()
