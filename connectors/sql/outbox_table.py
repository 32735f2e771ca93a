"""An outbox table: its columns, how it is made, and the statements that read and delete its rows.

All columns of a row are read as bytes, so that no content can fail in the driver and block the rows after it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import TypeEngine

from connectors.sql.database import check_table, is_denied, oid_of
from connectors.sql.outbox_dialects import FUNCTION, Key, outbox_dialect
from connectors.sql.reading import cut, size, within
from correlator.errors import ConnectionLost, quoted

ROLES = ("id", "body", "properties", "created", "unique_id")
"""The roles of the columns of an outbox table. Each is also the default name of its column."""
_NEEDED = ("id", "body", "unique_id")
_LONGEST_ID = 1024
"""Most bytes of a unique id that are read: more than an engine accepts, so that it recognises an id
that is too long.
"""


class Outbox(NamedTuple):
    """The outbox table of a receiver.

    Attributes:
        where: place of the receiver, for messages.
        table: name of the table.
        schema: its schema, or `None` for the one that the database searches first.
        columns: for each role the name of its column, if the user has named one.
    """

    where: str
    table: str
    schema: str | None
    columns: Mapping[str, str]

    def column(self, role: str) -> str:
        """Return the name of the column for a role."""
        return self.columns.get(role, role)


class OutboxRow(NamedTuple):
    """A row as it was read.

    Attributes:
        id: the key.
        unique_id: differs between any two rows.
        properties: a JSON object, or `None`.
        created: milliseconds since the epoch, or `None`.
        body: its first bytes; the whole body if it has `size` bytes.
        size: number of bytes of the whole body.
    """

    id: int
    unique_id: bytes
    properties: bytes | None
    created: int | None
    body: bytes
    size: int


class OutboxTable:
    """The outbox table of an open database.

    Attributes:
        oid: number of the table in PostgreSQL; 0 in other databases.

    Raises:
        ConnectionLost: E7007, E7010, E7041, E7042, E7640: the table is missing or cannot be an outbox.
        sqlalchemy.exc.DBAPIError: the database cannot be read.
    """

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        database = connection.dialect.name
        self._dialect = outbox_dialect(database)
        inspector = sa.inspect(connection)
        name = check_table(
            inspector, outbox.where, outbox.table, outbox.schema, no_view="A receiver deletes rows of tables"
        )
        primary = inspector.get_pk_constraint(outbox.table, schema=outbox.schema)["constrained_columns"]
        found = {one["name"]: one for one in inspector.get_columns(outbox.table, schema=outbox.schema)}
        roles = _roles(outbox, name, found, primary, is_sqlite=database == "sqlite")
        columns = [sa.Column(quoted_name(outbox.column(role), True), kind, key=role) for role, kind in roles.items()]
        schema = None if outbox.schema is None else quoted_name(outbox.schema, True)
        self._table = sa.Table(quoted_name(outbox.table, True), sa.MetaData(), *columns, schema=schema)
        self._created = self._dialect.time_of(self._table.c.created) if "created" in roles else sa.null()
        self.oid = _oid(connection, outbox, name) if database == "postgresql" else 0
        if database == "mysql":
            self._check_rights(connection, outbox, name)

    def read(self, connection: Connection, held: Sequence[int], most: int, bounds: tuple[int, int]) -> list[OutboxRow]:
        """Return the first rows, in order.

        Args:
            connection: a connection in a transaction.
            held: the keys of the rows to skip.
            most: the most rows to return, 1 or more.
            bounds: the most bytes to read of one row, and the number of bytes in all after which the result ends.
        """
        longest, enough = bounds
        columns = self._table.c
        body = self._dialect.content(columns.body)
        properties: sa.ColumnElement[Any] = sa.null()
        if "properties" in columns:
            properties = cut(self._dialect.content(columns.properties), longest)
        first = cut(body, longest)
        query = (
            sa.select(
                columns.id.label("id"),
                self._unique.label("unique_id"),
                properties.label("properties"),
                self._created.label("created"),
                first.label("body"),
                size(body).label("size"),
                (size(first) + size(properties)).label("taken"),
            )
            .where(self._dialect.is_none_of(columns.id, held))
            .order_by(columns.id)
            .limit(most)
        )
        return [
            OutboxRow(row.id, row.unique_id, row.properties, row.created, row.body or b"", row.size)
            for row in connection.execute(within(query, ("id",), enough))
        ]

    def delete(self, connection: Connection, rows: Sequence[Key]) -> None:
        """Delete the rows with these keys and unique ids. A row that has reused a key has another unique id, and stays.

        Args:
            connection: a connection in a transaction.
            rows: key and unique id of each row; at least one.
        """
        self._dialect.delete(connection, self._table, self._table.c.id, self._unique, rows)

    def waiting(self, connection: Connection) -> tuple[int, int | None]:
        """Return the number of rows, and for how many seconds the oldest has waited; `None` if the
        table has no times.
        """
        age = sa.cast((self._dialect.now() - sa.func.min(self._created)) / 1000, sa.BigInteger)
        rows, seconds = connection.execute(sa.select(sa.func.count(), age).select_from(self._table)).one()
        return rows, seconds

    def has_trigger(self, connection: Connection) -> bool:
        """Return whether the table of PostgreSQL has the trigger that wakes the receiver."""
        query = (
            "SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = %(oid)s::oid"
            " AND p.proname = %(function)s AND t.tgenabled <> 'D'"
        )
        return bool(connection.exec_driver_sql(query, {"oid": self.oid, "function": FUNCTION}).scalar_one())

    @property
    def _unique(self) -> sa.ColumnElement[bytes]:
        return cut(self._dialect.content(self._table.c.unique_id), _LONGEST_ID)

    def _check_rights(self, connection: Connection, outbox: Outbox, name: str) -> None:
        """Delete no row in MySQL, to check the rights. Raises `ConnectionLost` E7007 if the user may
        not delete rows.
        """
        try:
            connection.execute(sa.delete(self._table).where(sa.false()))
        except DBAPIError as error:
            if not is_denied(error):
                raise
            raise _no_right(outbox, name) from error


def statements(outbox: Outbox, database: str) -> Sequence[str]:
    """Return the statements that make the table, and in PostgreSQL the trigger that wakes the receiver.

    Args:
        outbox: the table.
        database: `sqlite`, `postgresql` or `mysql`.
    """
    columns = {role: outbox.column(role) for role in ROLES}
    return outbox_dialect(database).statements(outbox.table, outbox.schema, columns)


def _roles(
    outbox: Outbox, name: str, found: Mapping[str, ReflectedColumn], primary: Sequence[str], *, is_sqlite: bool
) -> Mapping[str, TypeEngine[Any]]:
    """Return the types of the columns for the roles that the table has. Raises `ConnectionLost` E7041."""
    roles: dict[str, TypeEngine[Any]] = {}
    for role in ROLES:
        column = outbox.column(role)
        if column in found:
            roles[role] = found[column]["type"]
        elif role in _NEEDED or role in outbox.columns:
            todo = "Make the table with 'correlator outbox create', or name its columns in the option 'columns'"
            raise ConnectionLost("E7041", outbox.where, f"{name} has no column {quoted(column)}", "", todo)
    for role in ("id", "unique_id"):
        column = outbox.column(role)
        if found[column]["nullable"] and column not in primary:
            allowed = "The columns for id and unique_id are NOT NULL"
            raise ConnectionLost("E7041", outbox.where, f"{name} may have null in column {quoted(column)}", allowed)
    if not isinstance(roles["id"], sa.Integer):
        what = f"column {quoted(outbox.column('id'))} of {name} has the type {roles['id']}"
        raise ConnectionLost("E7041", outbox.where, what, "The column for id holds whole numbers")
    if "created" in roles and not is_sqlite and not isinstance(roles["created"], sa.DateTime | sa.Date):
        if "created" in outbox.columns:
            what = f"column {quoted(outbox.column('created'))} of {name} has the type {roles['created']}"
            raise ConnectionLost("E7041", outbox.where, what, "The column for created holds times or dates")
        del roles["created"]
    return roles


def _oid(connection: Connection, outbox: Outbox, name: str) -> int:
    """Return the number of a table in PostgreSQL. Raises `ConnectionLost` E7007 if the user may not delete its rows."""
    oid = oid_of(connection, outbox.table, outbox.schema)
    query = "SELECT has_table_privilege(%(oid)s::oid, 'DELETE')"
    if not connection.exec_driver_sql(query, {"oid": oid}).scalar_one():
        raise _no_right(outbox, name)
    return oid


def _no_right(outbox: Outbox, name: str) -> ConnectionLost:
    todo = "Grant SELECT and DELETE on it"
    return ConnectionLost("E7007", outbox.where, f"the user may not delete rows of {name}", "", todo)
