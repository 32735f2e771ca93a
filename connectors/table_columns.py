"""The columns of a table: read from the options of a sender, and compared with the columns of an existing table."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from msgspec import Meta

from correlator.errors import ConfigError, ConnectionLost, quoted
from correlator.options import check_options, choice_option, text_option
from correlator.pipeline.ddl import Kind, columns_of

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NOT_NULL = re.compile(r"\bnot\s+null\b", re.IGNORECASE)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_LARGEST_FLOAT = 3.4028234663852886e38
PROPERTIES_COLUMN = "properties_column"
"""The option that names the column with the properties of a message."""
_OPTIONS = ("schema", "extra_fields", "key_column", "unique_id_column", PROPERTIES_COLUMN, "missing_up_to")


def _whole(bits: int) -> Any:
    return Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_TYPES: Mapping[str, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), bool),
    "tinyint": (pa.int8(), _whole(8)),
    "smallint": (pa.int16(), _whole(16)),
    "int": (pa.int32(), _whole(32)),
    "bigint": (pa.int64(), _whole(64)),
    "float": (pa.float32(), Annotated[float, Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]),
    "double": (pa.float64(), float),
    "date": (pa.date32(), date),
    "timestamp": (pa.timestamp("us", "UTC"), Annotated[datetime, Meta(tz=True)]),
    "timestamp_ntz": (pa.timestamp("us"), Annotated[datetime, Meta(tz=False)]),
    "time": (pa.time64("us"), Annotated[time, Meta(tz=False)]),
    "string": (pa.string(), str),
    "binary": (pa.binary(), bytes),
}
"""Each type of Spark's DDL, with its type in Arrow and the type of its values in a JSON body."""
_MICROSECONDS = "(6)"
"""Digits of the seconds of a TIME; Spark writes them, and no other type has them."""
_TIME = "time"
_TEXTS = {arrow: name.upper() for name, (arrow, _) in _TYPES.items()}


class Column(NamedTuple):
    """A column that a field of the body fills.

    Attributes:
        name: name of the column and of the field.
        arrow: its type in the table.
        value: its type in the body, as msgspec decodes it.
    """

    name: str
    arrow: pa.DataType
    value: Any


class Columns(NamedTuple):
    """The columns of a table, in order: first those of the body, then the others that are configured.

    Attributes:
        of_body: the columns that the fields of the body fill.
        key: name of the column of keys, or "".
        unique_id: name of the column of unique ids, or "".
        properties: name of the column of properties, or "".
        takes_extra_fields: whether a body may have fields without a column.
    """

    of_body: Sequence[Column]
    key: str
    unique_id: str
    properties: str
    takes_extra_fields: bool

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the table."""
        others = [(name, pa.string()) for name in (self.key, self.unique_id, self.properties) if name]
        return pa.schema([*((one.name, one.arrow) for one in self.of_body), *others])


def columns_from(where: str, options: Mapping[str, Any], *, has_times: bool) -> Columns:
    """Return the columns of a sender from its options. Raises `ConfigError`.

    Args:
        where: the place of the sender.
        options: its options.
        has_times: whether the format of the table has times of a day.
    """
    check_options(where, options, _OPTIONS)
    types = [name for name in _TYPES if has_times or name != _TIME]
    of_body = _of_body(f"{where}.schema", text_option(where, options, "schema"), types)
    key, unique_id, properties = (
        text_option(where, options, name) if name in options else ""
        for name in ("key_column", "unique_id_column", PROPERTIES_COLUMN)
    )
    extra_fields = choice_option(where, options, "extra_fields", ("refuse", "ignore"), "refuse")
    found = Columns(of_body, key, unique_id, properties, extra_fields == "ignore")
    _check_names(f"{where}.schema", found.arrow.names)
    return found


def check_columns(where: str, path: Path, wanted: pa.Schema, found: pa.Schema) -> None:
    """Raise `ConnectionLost` E7041 if the table at `path` has other columns than those of a sender."""
    differs = difference(wanted, found)
    if differs:
        todo = "Write to another table, or let schema name the columns of the table"
        raise ConnectionLost("E7041", where, f"{path} has other columns: {differs}", "", todo)


def difference(wanted: pa.Schema, found: pa.Schema) -> str:
    """Return how the columns of a sender differ from those of a table; "" if they do not differ."""
    for field in wanted:
        if field.name not in found.names:
            return f"the table has no column {quoted(field.name)}"
        other = found.field(field.name)
        if other.type != field.type:
            types = f"{type_text(other.type)} in the table and {type_text(field.type)} here"
            return f"column {quoted(field.name)} is {types}"
        if not other.nullable:
            return f"column {quoted(field.name)} is NOT NULL in the table"
    for name in found.names:
        if name not in wanted.names:
            return f"the table also has column {quoted(name)}"
    if wanted.names != found.names:
        return f"the columns of the table are in the order {', '.join(found.names)}"
    return ""


def type_text(arrow: pa.DataType) -> str:
    """Return a type as it is written in the option `schema`."""
    if pa.types.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _TEXTS.get(arrow, str(arrow))


def type_from(text: str) -> pa.DataType | None:
    """Return the type for a text of `type_text`; `None` if no column can have such a type."""
    found = _typed(text.lower())
    return None if found is None else found[0]


def _of_body(where: str, ddl: str, types: Sequence[str]) -> Sequence[Column]:
    if _NOT_NULL.search(ddl):
        todo = "Leave NOT NULL out: a missing field is null"
        raise ConfigError("E1022", where, "NOT NULL is not supported", "Every column may hold nulls", todo)
    try:
        found = columns_of(ddl)
    except ConfigError as error:
        raise ConfigError("E1022", where, error.what.removeprefix("schema: "), error.allowed, error.todo) from error
    if found is None:
        allowed = "NAME TYPE, NAME TYPE, ..., as in id BIGINT, amount DECIMAL(9,2)"
        raise ConfigError("E1022", where, f"{quoted(ddl)} cannot be understood", allowed)
    return [_column(where, name, kind, types) for name, kind in found]


def _column(where: str, name: str, kind: Kind, types: Sequence[str]) -> Column:
    found = _typed(kind.name.removesuffix(_MICROSECONDS), types)
    if found is None:
        allowed = f"Types: {', '.join(one.upper() for one in types)}, DECIMAL(p,s)"
        what = f"column {quoted(name)} has type {quoted(kind.name.upper())}, which cannot be written"
        raise ConfigError("E1022", where, what, allowed)
    return Column(name, *found)


def _typed(name: str, types: Collection[str] = _TYPES) -> tuple[pa.DataType, Any] | None:
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2])), Decimal
    return _TYPES[name] if name in types else None


def _check_names(where: str, names: Sequence[str]) -> None:
    seen = set()
    for name in names:
        if not _NAME.fullmatch(name):
            what = f"{quoted(name)} is not a name of a column"
            raise ConfigError("E1022", where, what, "Letters A to Z, digits and '_'; first a letter or '_'")
        if name.lower() in seen:
            allowed = "Names of columns that differ only in upper and lower case count as the same"
            raise ConfigError("E1022", where, f"column {quoted(name)} is named twice", allowed)
        seen.add(name.lower())
