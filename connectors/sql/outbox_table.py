"""An outbox table: which columns it has, how it is made, and the statements that read and delete its rows.

All that a row holds is read as bytes, so that no content can fail in the driver and hold up the rows behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import TypeEngine

from connectors.sql.database import check_table, identifier, oid_of
from connectors.sql.reading import cut, size, within
from correlator.errors import ConnectionLost, quoted

ROLES = ("id", "body", "properties", "created", "unique_id")
"""What the columns of an outbox table are for; each is the name of its column, too, unless the user names another."""
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
_NEEDED = ("id", "body", "unique_id")
_LONGEST_ID = 1024
"""Most bytes of a unique id that are read: more than an engine takes, so that it sees that the id is too long."""
_UNIX_EPOCH = 2440587.5
"""As a Julian day."""
_DAY_MS = 86_400_000


class Outbox(NamedTuple):
    """The outbox table of a receiver.

    Attributes:
        where: place for messages.
        table: name of the table.
        schema: its schema, or `None` for the one in which the database looks first.
        columns: for each role the name of its column, where the user names one.
    """

    where: str
    table: str
    schema: str | None
    columns: Mapping[str, str]

    def column(self, role: str) -> str:
        """The name of the column for a role."""
        return self.columns.get(role, role)


class OutboxRow(NamedTuple):
    """A row as it is read.

    Attributes:
        id: the key.
        unique_id: never the same for two rows.
        properties: a JSON object, or `None`.
        created: milliseconds since the epoch, or `None`.
        body: its first bytes, all if `size` is the number of them.
        size: the number of bytes of the whole body.
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
        oid: number of the table in PostgreSQL; 0 in SQLite.

    Raises:
        ConnectionLost: E7007, E7010, E7041, E7042: the table is missing or cannot be an outbox.
        sqlalchemy.exc.DBAPIError: the database cannot be read.
    """

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        self._is_sqlite = connection.dialect.name == "sqlite"
        inspector = sa.inspect(connection)
        name = check_table(
            inspector, outbox.where, outbox.table, outbox.schema, no_view="A receiver deletes rows of tables"
        )
        primary = inspector.get_pk_constraint(outbox.table, schema=outbox.schema)["constrained_columns"]
        found = {one["name"]: one for one in inspector.get_columns(outbox.table, schema=outbox.schema)}
        roles = _roles(outbox, name, found, primary, is_sqlite=self._is_sqlite)
        columns = [sa.Column(quoted_name(outbox.column(role), True), kind, key=role) for role, kind in roles.items()]
        schema = None if outbox.schema is None else quoted_name(outbox.schema, True)
        self._table = sa.Table(quoted_name(outbox.table, True), sa.MetaData(), *columns, schema=schema)
        self._created = self._milliseconds(roles)
        self.oid = 0 if self._is_sqlite else _oid(connection, outbox, name)

    def read(self, connection: Connection, held: Sequence[int], most: int, bounds: tuple[int, int]) -> list[OutboxRow]:
        """The first rows, in order.

        Args:
            connection: in a transaction.
            held: the keys of the rows that are left out.
            most: the most rows to return, 1 or more.
            bounds: how many bytes of one row are read at most, and at how many bytes of all of them the result ends.
        """
        longest, enough = bounds
        columns = self._table.c
        body = self._bytes(columns.body)
        properties: sa.ColumnElement[Any] = sa.null()
        if "properties" in columns:
            properties = cut(self._bytes(columns.properties), longest)
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
            .where(columns.id.not_in(sa.select(self._list(held).c.value)))
            .order_by(columns.id)
            .limit(most)
        )
        return [
            OutboxRow(row.id, row.unique_id, row.properties, row.created, row.body or b"", row.size)
            for row in connection.execute(within(query, ("id",), enough))
        ]

    def delete(self, connection: Connection, rows: Sequence[tuple[int, bytes]]) -> None:
        """Delete the rows with these keys and unique ids. A row that has got the key meanwhile has another unique id.

        Args:
            connection: in a transaction.
            rows: key and unique id of each row; at least one.
        """
        delete, key = sa.delete(self._table), self._table.c.id
        if self._is_sqlite:
            one = delete.where(key == sa.bindparam("k", type_=sa.BigInteger), self._unique == sa.bindparam("u"))
            connection.execute(one, [{"k": number, "u": unique} for number, unique in rows])
            return
        read = sa.func.unnest(
            sa.bindparam("keys", [number for number, _ in rows], type_=ARRAY(sa.BigInteger)),
            sa.bindparam("ids", [unique for _, unique in rows], type_=ARRAY(sa.LargeBinary)),
        ).table_valued("key", "unique_id")
        listed = read.render_derived(name="listed")
        connection.execute(delete.where(key == listed.c.key, self._unique == listed.c.unique_id))

    def waiting(self, connection: Connection) -> tuple[int, int | None]:
        """How many rows there are, and for how many seconds the oldest has been there, if the table tells that."""
        now: sa.ColumnElement[Any] = sa.cast(sa.extract("epoch", sa.func.now()) * 1000, sa.BigInteger)
        if self._is_sqlite:
            now = sa.cast((sa.func.julianday("now") - _UNIX_EPOCH) * _DAY_MS, sa.BigInteger)
        age = sa.cast((now - sa.func.min(self._created)) / 1000, sa.BigInteger)
        rows, seconds = connection.execute(sa.select(sa.func.count(), age).select_from(self._table)).one()
        return rows, seconds

    def has_trigger(self, connection: Connection) -> bool:
        """Whether the table of PostgreSQL has the trigger that wakes the receiver."""
        query = (
            "SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = %(oid)s::oid"
            " AND p.proname = %(function)s AND t.tgenabled <> 'D'"
        )
        return bool(connection.exec_driver_sql(query, {"oid": self.oid, "function": FUNCTION}).scalar_one())

    @property
    def _unique(self) -> sa.ColumnElement[bytes]:
        return cut(self._bytes(self._table.c.unique_id), _LONGEST_ID)

    def _bytes(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The content of a column as bytes, a text in UTF-8."""
        if self._is_sqlite:
            return sa.cast(column, sa.LargeBinary)
        if isinstance(column.type, sa.LargeBinary):
            return column
        return sa.func.convert_to(sa.cast(column, sa.Text), sa.literal_column("'UTF8'"))

    def _milliseconds(self, roles: Mapping[str, TypeEngine[Any]]) -> sa.ColumnElement[Any]:
        if "created" not in roles:
            return sa.null()
        column = self._table.c.created
        if self._is_sqlite:
            days = sa.func.julianday(column) - _UNIX_EPOCH
            return sa.cast(sa.func.round(days * _DAY_MS), sa.BigInteger)
        epoch = sa.cast(sa.extract("epoch", column) * 1000, sa.BigInteger)
        return sa.case((sa.func.isfinite(column), epoch))

    def _list(self, numbers: Sequence[int]) -> sa.FromClause:
        if self._is_sqlite:
            return sa.func.json_each(f"[{','.join(map(str, numbers))}]").table_valued("value")
        array = sa.bindparam("numbers", list(numbers), type_=ARRAY(sa.BigInteger))
        return sa.func.unnest(array).table_valued("value").render_derived(name="listed")


def statements(outbox: Outbox, *, is_sqlite: bool) -> Sequence[str]:
    """The statements that make the table, and in PostgreSQL the trigger that wakes the receiver."""
    name = {role: identifier(outbox.column(role)) for role in ROLES}
    schema = "" if outbox.schema is None else f"{identifier(outbox.schema)}."
    table = f"{schema}{identifier(outbox.table)}"
    if is_sqlite:
        return (_SQLITE_TABLE.format(table=table, **name),)
    function = f"{schema}{FUNCTION}"
    return (
        _POSTGRES_TABLE.format(table=table, **name),
        _POSTGRES_FUNCTION.format(function=function),
        _POSTGRES_TRIGGER.format(table=table, function=function),
    )


def _roles(
    outbox: Outbox, name: str, found: Mapping[str, ReflectedColumn], primary: Sequence[str], *, is_sqlite: bool
) -> Mapping[str, TypeEngine[Any]]:
    """The types of the columns of the roles that the table has. Raises `ConnectionLost` E7041."""
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
    """The number of a table in PostgreSQL. Raises `ConnectionLost` E7007 if the user may not delete its rows."""
    oid = oid_of(connection, outbox.table, outbox.schema)
    query = "SELECT has_table_privilege(%(oid)s::oid, 'DELETE')"
    if not connection.exec_driver_sql(query, {"oid": oid}).scalar_one():
        todo = "Grant SELECT and DELETE on it"
        raise ConnectionLost("E7007", outbox.where, f"the user may not delete rows of {name}", "", todo)
    return oid
