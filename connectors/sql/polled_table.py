"""A table that a receiver polls, as the database describes it, and the queries that read its rows in order.

A row is read as one JSON object, which the database makes, so that no value can fail in the driver and block the rows
after it. A place is a list of values, a number or a text for each column that orders the rows. Only the database
compares places, never Python.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import NULLTYPE

from connectors.sql.database import check_table
from connectors.sql.polled_dialects import ROW, Place, polled_dialect
from connectors.sql.reading import cut, size, within
from correlator.errors import ConnectionLost, quoted

TRANSACTION = "xid8"
"""Type of a PostgreSQL column that contains the number of the transaction that has written the row."""


class Polled(NamedTuple):
    """The table that a receiver polls, and how.

    Attributes:
        where: place of the receiver, for messages.
        table: name of the table.
        schema: its schema, or `None` for the one that the database searches first.
        order: the column whose values grow.
        keys: the columns that order rows with equal values; empty for those of the primary key.
        lag_s: seconds for which a row waits for rows that may still come before it; `None` if it is not configured.
        starts_next: whether a receiver without a position begins after the existing rows.
    """

    where: str
    table: str
    schema: str | None
    order: str
    keys: Sequence[str]
    lag_s: float | None
    starts_next: bool


class PolledRow(NamedTuple):
    """A row as it was read.

    Attributes:
        place: its values in the ordering columns.
        body: the first bytes of its JSON object; the whole object if it has `size` bytes.
        size: number of bytes of the whole object.
    """

    place: Place
    body: bytes
    size: int


class PolledTable:
    """The table of an open database.

    Attributes:
        identity: identity of database and table, which differs after the table was made anew, as far as the database
            tells.
        by_transaction: whether the number of the transaction orders the rows.
        order: the names of the columns that order the rows.

    Raises:
        ConnectionLost: E7010, E7041: the table is missing or cannot be polled in this way.
        sqlalchemy.exc.DBAPIError: the database cannot be read.
    """

    def __init__(self, connection: Connection, polled: Polled) -> None:
        database = connection.dialect.name
        self._dialect = polled_dialect(database)
        inspector = sa.inspect(connection)
        name = check_table(inspector, polled.where, polled.table, polled.schema)
        primary = inspector.get_pk_constraint(polled.table, schema=polled.schema)["constrained_columns"]
        columns = self._dialect.columns(connection, polled.table, polled.schema)
        identity = self._dialect.identity(connection, polled.table, polled.schema)
        self.identity = hashlib.sha256(identity.encode()).hexdigest()[:16]
        keys = polled.keys or primary
        self.order = order = list(dict.fromkeys([polled.order, *keys]))
        views = inspector.get_view_names(polled.schema)
        for one in order:
            column = columns.get(one)
            if column is None:
                raise ConnectionLost("E7041", polled.where, f"{name} has no column {quoted(one)}")
            if not column.orders:
                what = f"column {quoted(one)} of {name} has the type {column.type}, which cannot order rows"
                raise ConnectionLost("E7041", polled.where, what, "Numbers without rounding, texts, times, bytes")
            if column.may_be_null and one not in primary and polled.table not in views:
                what = f"{name} may have null in column {quoted(one)}: such a row has no place in the order"
                todo = "Poll a view of the table that has a value in its place"
                raise ConnectionLost("E7041", polled.where, what, "", todo)
        if not keys:
            todo = "Name columns in key_columns that distinguish rows with an equal value"
            raise ConnectionLost("E7041", polled.where, f"{name} has no primary key", "", todo)
        self.by_transaction = columns[polled.order].type == TRANSACTION
        if database != "sqlite" and not self.by_transaction and polled.lag_s is None:
            what = f"column {quoted(polled.order)} does not show which rows are still to come before others"
            allowed = f"PostgreSQL needs 'lag', or a column of the type {TRANSACTION}"
            allowed = allowed if database == "postgresql" else "MySQL needs 'lag'"
            raise ConnectionLost("E7041", polled.where, what, allowed)
        made: list[sa.Column[Any]] = [
            sa.Column(quoted_name(name, True), one.kind, key=f"c{at}") for at, (name, one) in enumerate(columns.items())
        ]
        schema = None if polled.schema is None else quoted_name(polled.schema, True)
        self._table = sa.Table(quoted_name(polled.table, True), sa.MetaData(), *made, schema=schema).alias(ROW)
        keyed = {one: self._table.c[f"c{at}"] for at, one in enumerate(columns)}
        self._order = [keyed[one] for one in order]
        self._place = self._dialect.place(self._order)
        self._content = self._dialect.content(keyed, columns)

    def read(
        self, connection: Connection, after: Place, until: Place | None, most: int, bounds: tuple[int, int]
    ) -> list[PolledRow]:
        """Return the rows after a place, in order.

        Args:
            connection: a connection in a transaction.
            after: the place.
            until: the last place, or `None` for no limit.
            most: the most rows to return, 1 or more.
            bounds: the most bytes to read of one row, and the number of bytes in all after which the result ends.
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
            query = query.where(self._dialect.is_up_to(self._order, until))
        rows = query.order_by(*self._order).limit(most).subquery("rows")
        first = cut(rows.c.content, longest)
        bounded = sa.select(
            *[rows.c[name] for name in (*natives, *places)],
            first.label("body"),
            size(rows.c.content).label("size"),
            size(first).label("taken"),
        )
        found = within(bounded, natives, enough)
        found = found.with_only_columns(*[found.selected_columns[name] for name in (*places, "body", "size")])
        return [PolledRow(tuple(place), body, length) for *place, body, length in connection.execute(found)]

    def last(self, connection: Connection) -> Place:
        """Return the place of the last row that exists."""
        query = sa.select(*self._place).where(*self._not_null).order_by(*[one.desc() for one in self._order]).limit(1)
        found = connection.execute(query).first()
        return () if found is None else tuple(found)

    def present(self, connection: Connection) -> Place:
        """Return a place after all existing rows, and before all rows that are still to come."""
        if not self.by_transaction:
            return self.last(connection)
        oldest = int(connection.exec_driver_sql("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").scalar_one())
        # Rows of the oldest open transaction are still to come: without further columns, the place is before them.
        return (str(oldest if len(self._order) > 1 else oldest - 1),)

    @property
    def _not_null(self) -> Sequence[sa.ColumnElement[bool]]:
        return [one.is_not(None) for one in self._order]

    def _conditions(self, after: Place) -> Sequence[sa.ColumnElement[bool]]:
        conditions = list(self._not_null)
        if self.by_transaction:  # no open transaction has a lower number
            conditions.append(self._order[0] < sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot()))
        if len(after) == len(self._order):
            conditions.append(self._dialect.is_behind(self._order, after))
        elif after:
            conditions.append(self._order[0] >= sa.bindparam("begin", after[0], type_=NULLTYPE))
        return conditions
