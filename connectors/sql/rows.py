"""The table of a sender as the database describes it: converts messages to rows, and rows to statements."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, Protocol
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Connection, Inspector
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import TypeEngine

from connectors.sql.database import check_table, connection_of
from connectors.sql.mysql import OF_BYTES, json_columns, unique_keys
from connectors.sql.statement import StatementRows
from connectors.table_rules import holds, significant
from correlator.errors import ConnectionLost, quoted
from correlator.events import Message

Row = Mapping[str, Any]
_SQLITE_DIGITS, _SQLITE_EXPONENT = 15, 307
"""Most digits, and largest power of ten, of a decimal number that SQLite holds: it stores a floating-point number."""
_IN_NO_FIELD = re.compile(r'["\\\x00-\x1f]')
"""Characters that the decoder does not accept in the name of a field."""
_BITS = ((mysql.TINYINT, 8), (sa.SmallInteger, 16), (mysql.MEDIUMINT, 24), (sa.BigInteger, 64), (sa.Integer, 32))
_PLAIN: Sequence[tuple[type[TypeEngine[Any]] | tuple[type[TypeEngine[Any]], ...], Any]] = (
    (sa.Boolean, bool),
    (sa.Float, float),
    (sa.Numeric, Decimal),
    (sa.Date, date),
    (OF_BYTES, bytes),
    (sa.Uuid, UUID),
    (sa.JSON, Any),
)


class Writing(NamedTuple):
    """The table of a sender, and how it writes there.

    Attributes:
        where: place of the sender, for messages.
        table: name of the table.
        schema: its schema, or `None` for the one that the database searches first.
        mode: `insert`, `upsert`, `delete` or `statement`.
        keys: the columns that identify a row; empty for those of the primary key.
        takes_extra_fields: whether a body may have fields without a column.
        statement: the statement for each message, in the mode `statement`.
    """

    where: str
    table: str
    schema: str | None
    mode: str
    keys: Sequence[str]
    takes_extra_fields: bool
    statement: str = ""


class Rows(Protocol):
    """Makes rows from messages and statements from rows, for one open connection."""

    def row(self, message: Message) -> Row:
        """Return the row of a message. Raises `ValueError` with the reason if the body does not fit."""
        ...

    def statement(self, names: tuple[str, ...]) -> sa.Executable:
        """Return the statement that writes rows with these keys."""
        ...


def rows_of(connection: Connection, writing: Writing) -> Rows:
    """Return the `Rows` of a sender. Raises as `TableRows` and `StatementRows`."""
    if writing.mode == "statement":
        extra = writing.takes_extra_fields
        return StatementRows(connection, writing.where, writing.statement, takes_extra_fields=extra)
    return TableRows(connection, writing)


class _Column(NamedTuple):
    name: str
    type: TypeEngine[Any]
    is_key: bool


class TableRows:
    """Makes rows from messages and statements from rows, for one open connection.

    A key of a row is `c` with the position of the column, so that no name of a column is a name of a parameter.

    Raises:
        ConnectionLost: E7010, E7041, E7042, E7640, E7641: the table is missing or does not fit the sender.
        sqlalchemy.exc.DBAPIError: the database cannot be read.
    """

    def __init__(self, connection: Connection, writing: Writing) -> None:
        self._database = connection.dialect.name
        self._is_sqlite = self._database == "sqlite"
        self._mode = writing.mode
        columns = _reflected(sa.inspect(connection), writing)
        self._decimals = {
            f"c{at}": column for at, column in enumerate(columns) if _value(column.type, self._is_sqlite) is Decimal
        }
        self._instants = [f"c{at}" for at, column in enumerate(columns) if isinstance(column.type, mysql.TIMESTAMP)]
        self._decode = msgspec.json.Decoder(self._body(columns, writing)).decode
        self._keys = [f"c{at}" for at, column in enumerate(columns) if column.is_key]
        made = [
            sa.Column(quoted_name(column.name, True), self._bound(column.type), key=f"c{at}")
            for at, column in enumerate(columns)
        ]
        schema = None if writing.schema is None else quoted_name(writing.schema, True)
        self._table = sa.Table(quoted_name(writing.table, True), sa.MetaData(), *made, schema=schema)
        self._statements: dict[tuple[str, ...], sa.Executable] = {}

    def row(self, message: Message) -> Row:
        """Return the row of a message. Raises `ValueError` with the reason if the body does not fit the columns."""
        try:
            body = self._decode(message.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"the body does not fit the table: {error}") from error
        row = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}
        if self._mode == "delete":
            row = {name: row[name] for name in self._keys}
        for name in self._decimals.keys() & row.keys():
            if row[name] is not None:
                self._check_decimal(self._decimals[name], row[name])
                row[name] = str(row[name]) if self._is_sqlite else row[name]
        for name in self._instants:
            if row.get(name) is not None:
                row[name] = _in_utc(row[name])
        return row

    def statement(self, names: tuple[str, ...]) -> sa.Executable:
        """Return the statement that writes rows with these keys."""
        if names not in self._statements:
            self._statements[names] = self._delete() if self._mode == "delete" else self._insert(names)
        return self._statements[names]

    def _insert(self, names: Sequence[str]) -> sa.Executable:
        if self._mode == "insert":
            return sa.insert(self._table).inline()
        others = [name for name in names if name not in self._keys]
        keys = [self._table.c[name] for name in self._keys]
        if self._database == "mysql":
            changed = mysql.insert(self._table).inline()
            values = {self._table.c[name]: changed.inserted[name] for name in others} or {keys[0]: keys[0]}
            return changed.on_duplicate_key_update(values)
        made = sqlite.insert(self._table) if self._is_sqlite else postgresql.insert(self._table)
        if not others:
            return made.inline().on_conflict_do_nothing(index_elements=keys)
        values = {self._table.c[name]: made.excluded[name] for name in others}
        return made.inline().on_conflict_do_update(index_elements=keys, set_=values)

    def _delete(self) -> sa.Executable:
        column = self._table.c
        return sa.delete(self._table).where(
            *(column[name] == sa.bindparam(name, type_=column[name].type) for name in self._keys)
        )

    def _body(self, columns: Sequence[_Column], writing: Writing) -> type[msgspec.Struct]:
        """Make the type of a body. Keys of upsert and delete must be present; any other field may be missing or null.

        With the mode `delete`, other fields may have any value.
        """
        needed: list[Any] = []
        optional: list[Any] = []
        for at, column in enumerate(columns):
            value = _annotated(column.type, self._is_sqlite)
            if column.is_key:
                needed.append((f"c{at}", value))
                continue
            if writing.mode == "delete":
                value = Any
            optional.append((f"c{at}", None | UnsetType if value is None else value | None | UnsetType, UNSET))
        names = {f"c{at}": column.name for at, column in enumerate(columns)}
        return msgspec.defstruct(
            "Body",
            [*needed, *optional],
            rename=names,
            forbid_unknown_fields=not writing.takes_extra_fields,
            gc=False,
        )

    def _bound(self, kind: TypeEngine[Any]) -> TypeEngine[Any]:
        """Return the type for passing values. SQLite itself turns the text of a number into a number."""
        if self._is_sqlite and _value(kind, self._is_sqlite) is Decimal:
            return sa.String()
        if isinstance(kind, sa.JSON):
            kind.none_as_null = True
        return kind

    def _check_decimal(self, column: _Column, value: Decimal) -> None:
        """Raise `ValueError` unless the column holds the number exactly."""
        precision, scale = getattr(column.type, "precision", None), getattr(column.type, "scale", None)
        fits = holds(precision, scale or 0, value)
        if fits and self._is_sqlite and (digits := significant(value)[0]):
            fits = digits <= _SQLITE_DIGITS and abs(value.adjusted()) <= _SQLITE_EXPONENT
        if not fits:
            raise ValueError(f"the body does not fit the table: `$.{column.name}` has too many digits")


def _reflected(inspector: Inspector, writing: Writing) -> Sequence[_Column]:
    """Check the table, and return the columns that a sender can write."""
    table, schema = writing.table, writing.schema
    name = check_table(inspector, writing.where, table, schema, no_view="A sender writes to tables")
    found = {
        one["name"]: one["type"]
        for one in inspector.get_columns(table, schema=schema)
        if "computed" not in one
        and not ("identity" in one and one["identity"]["always"])
        and not _IN_NO_FIELD.search(one["name"])
    }
    if inspector.dialect.name == "mysql":
        found = {one: kind for one, kind in found.items() if "`" not in one}  # SQLAlchemy would report another name
        found |= dict.fromkeys(json_columns(connection_of(inspector), table, schema) & found.keys(), sa.JSON())
    keys = _keys(inspector, name, found, writing) if writing.mode != "insert" else ()
    return [_Column(column, _base(kind), column in keys) for column, kind in found.items()]


def _keys(inspector: Inspector, name: str, columns: Collection[str], writing: Writing) -> Collection[str]:
    """Return the columns that identify a row. Raises `ConnectionLost` E7041 unless the database keeps them unique."""
    where, table, schema = writing.where, writing.table, writing.schema
    primary = inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    keys = writing.keys or primary
    if not keys:
        todo = "Name the columns that identify a row in key_columns"
        raise ConnectionLost("E7041", where, f"{name} has no primary key", "", todo)
    for key in keys:
        if key not in columns:
            raise ConnectionLost("E7041", where, f"{name} has no column {quoted(key)} that a sender can write")
    unique = _unique_keys(inspector, table, schema)
    if set(keys) not in [set(one) for one in unique]:
        allowed = "A primary key, a unique constraint or a unique index over exactly these columns"
        raise ConnectionLost("E7041", where, f"{name} may have several rows with equal {', '.join(keys)}", allowed)
    if inspector.dialect.name == "mysql" and writing.mode == "upsert":
        for other in unique:
            if set(other) != set(keys):
                shown = ", ".join(one or "an expression" for one in other)
                what = f"{name} has another unique key, {shown}: MySQL might change the row that has equal values there"
                raise ConnectionLost(
                    "E7641", where, what, "One unique key", "Use mode: statement, or a table without it"
                )
    return keys


def _unique_keys(inspector: Inspector, table: str, schema: str | None) -> Sequence[Sequence[str | None]]:
    """Return the columns of each key that the database keeps unique."""
    if inspector.dialect.name == "mysql":
        return unique_keys(connection_of(inspector), table, schema)
    unique: list[Sequence[str | None]] = [inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]]
    unique += [one["column_names"] for one in inspector.get_unique_constraints(table, schema=schema)]
    unique += [
        one["column_names"]
        for one in inspector.get_indexes(table, schema=schema)
        if one["unique"] and not any(option.endswith("_where") for option in one.get("dialect_options", {}))
    ]
    return unique


def _base(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the base type below domains of PostgreSQL."""
    while isinstance(kind, postgresql.DOMAIN):
        kind = kind.data_type
    return kind


def _annotated(kind: TypeEngine[Any], is_sqlite: bool) -> Any:
    """Return the type of a value in the body for msgspec; `None` for a column that accepts only null."""
    if isinstance(kind, sa.Integer):
        bits = 64 if is_sqlite else next(bits for one, bits in _BITS if isinstance(kind, one))
        whole = _natural(bits) if getattr(kind, "unsigned", False) else _whole(bits)
        is_flag = isinstance(kind, mysql.TINYINT) and kind.display_width == 1  # MySQL's BOOLEAN
        return whole | bool if is_flag else whole
    if isinstance(kind, sa.DateTime):
        return Annotated[datetime, Meta(tz=kind.timezone or isinstance(kind, mysql.TIMESTAMP))]
    if isinstance(kind, sa.Time):
        return Annotated[time, Meta(tz=kind.timezone)]
    if isinstance(kind, sa.String) and not isinstance(kind, sa.Enum | mysql.SET) and kind.length is not None:
        return Annotated[str, Meta(max_length=kind.length)]
    return _value(kind, is_sqlite)


def _value(kind: TypeEngine[Any], is_sqlite: bool) -> Any:
    if is_sqlite and isinstance(kind, sa.types.NullType):
        return _whole(64) | float | str  # a column without a type
    if isinstance(kind, sa.String):
        return str
    return next((value for one, value in _PLAIN if isinstance(kind, one)), None)


def _whole(bits: int) -> Any:
    return Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


def _natural(bits: int) -> Any:
    """Return the type of a whole number without a sign. The decoder has none for all 64 bits; the
    database checks these.
    """
    return Annotated[int, Meta(ge=0, le=2**bits - 1) if bits < 64 else Meta(ge=0)]


def _in_utc(value: datetime) -> datetime:
    """Return the time without an offset, as a session in UTC takes it. Raises `ValueError`."""
    try:
        return value.astimezone(UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise ValueError("the body does not fit the table: a time is out of range") from error
