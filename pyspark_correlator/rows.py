"""The columns of the format `correlator`: how values of a store become rows, and rows become messages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql.types import StructType

from correlator.errors import ConfigError, UsageError
from correlator.events import Headers, Message
from correlator.pipeline.headers import STANDARD_HEADERS, check_header, property_text
from correlator.storage import scanning, tables
from correlator.storage.inspect import DeadLetterRow
from correlator.storage.scanning import NumberedMessage
from correlator.storage.states import ShownState
from pyspark_correlator.options import WHERE

Columns = tuple[tuple[str, str], ...]
"""Names and types of columns, the types as Spark writes them."""

_HEADERS = (
    "struct<message_id:string,correlation_id:string,reply_to:string,type:string,priority:int,persistent:boolean,"
    "time_to_live_ms:bigint,expiration:bigint,timestamp:bigint,redelivered:boolean,delivery_count:int,"
    "group_sequence:int,delivery_delay_ms:bigint,delivery_time:bigint>"
)
_PROPERTIES = "map<string,string>"
_MESSAGE: Columns = (
    ("body", "binary"),
    ("key", "string"),
    ("destination", "string"),
    ("properties", _PROPERTIES),
    ("headers", _HEADERS),
)
_SENT = ("body", "key", "destination", "properties", "headers")
"""The columns of rows that are written."""

Scan = Callable[..., Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a table is read.

    Attributes:
        columns: its columns.
        owner: the column that says to whom a row belongs.
        table: the table of the store; `None` for state, whose segments hold no whole values.
        scan: reads its values in a part.
        row: makes a row of a value.
    """

    columns: Columns
    owner: str
    table: Any
    scan: Scan
    row: Callable[[Any], tuple[Any, ...]]

    @property
    def ddl(self) -> str:
        """The columns as text that Spark reads."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns)


def _of_message(message: Message) -> tuple[Any, ...]:
    texts = {name: None if value is None else property_text(value) for name, value in message.properties.items()}
    headers = None if message.headers is None else msgspec.structs.astuple(message.headers)
    return message.body, message.key, message.destination, texts, headers


def _of_numbered(one: NumberedMessage) -> tuple[Any, ...]:
    return one.owner, one.number, *_of_message(one.message)


def _of_letter(one: DeadLetterRow) -> tuple[Any, ...]:
    letter = one.letter
    first = (one.number, letter.kind, letter.origin, letter.reason, letter.unique_id, letter.time)
    return (*first, letter.receiver or None, letter.number or None, *_of_message(letter.message))


def _of_state(one: ShownState) -> tuple[Any, ...]:
    value = None if one.problem else msgspec.json.encode(one.value).decode()
    return one.owner, one.key, one.size, value, one.problem or None


SHAPES: Mapping[str, Shape] = {
    "state": Shape(
        (("owner", "string"), ("key", "string"), ("bytes", "bigint"), ("value", "string"), ("problem", "string")),
        "owner",
        None,
        scanning.state,
        _of_state,
    ),
    "receive_log": Shape(
        (("receiver", "string"), ("number", "bigint"), *_MESSAGE),
        "receiver",
        tables.receive_log,
        scanning.receive_log,
        _of_numbered,
    ),
    "outbox": Shape(
        (("sender", "string"), ("number", "bigint"), *_MESSAGE), "sender", tables.outbox, scanning.outbox, _of_numbered
    ),
    "dead_letters": Shape(
        (
            ("number", "bigint"),
            ("kind", "string"),
            ("origin", "string"),
            ("reason", "string"),
            ("unique_id", "string"),
            ("engine_time", "double"),
            ("receiver", "string"),
            ("receiver_number", "bigint"),
            *_MESSAGE,
        ),
        "origin",
        tables.dead_letter,
        scanning.dead_letters,
        _of_letter,
    ),
}


def refuse_other_columns(table: str, schema: StructType) -> None:
    """Refuse a schema that the program has given and that is not the one of the table. Raises `UsageError` E2202."""
    columns = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
    if columns != SHAPES[table].columns:
        what = f"the program asks for the columns {schema.simpleString()}"
        todo = "Leave out .schema(…), and select columns of the result"
        raise UsageError("E2202", f"{WHERE}.table", what, f"{table} has {SHAPES[table].ddl}", todo)


def check_written(schema: StructType, to: str) -> None:
    """Refuse rows that cannot be messages. Raises `UsageError` E2202."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in _SENT:
            allowed = f"A message has the columns {', '.join(_SENT)}"
            raise _unfit(f"a row has the column '{field.name}'", allowed, "Put other columns into the body: to_json(…)")
        _check_column(field.name, field.dataType, kind)
    names = schema.fieldNames()
    if "body" not in names:
        raise _unfit("the rows have no column 'body'", "", "Make one, such as to_json(struct(*)) AS body")
    if "destination" not in names and not to:
        raise _unfit("the rows have no column 'destination'", "", "Make one, or name a destination by the option 'to'")


def _check_column(name: str, kind: Any, said: str) -> None:
    if name == "body" and said not in ("string", "binary"):
        raise _unfit(f"body is {said}", "STRING or BINARY")
    if name in ("key", "destination") and said != "string":
        raise _unfit(f"{name} is {said}", "STRING")
    if name == "properties" and said != _PROPERTIES:
        raise _unfit(f"properties is {said}", "MAP<STRING, STRING>")
    if name == "headers":
        _check_headers(kind, said)


def _check_headers(kind: Any, said: str) -> None:
    if not isinstance(kind, StructType):
        raise _unfit(f"headers is {said}", f"A struct with some of {', '.join(STANDARD_HEADERS)}")
    for field in kind.fields:
        if field.name not in STANDARD_HEADERS:
            raise _unfit(f"headers has the field '{field.name}'", f"Senders set {', '.join(STANDARD_HEADERS)}")
        try:
            check_header(field.name, field.dataType.simpleString(), WHERE)
        except ConfigError as error:
            raise _unfit(error.what, error.allowed, error.todo) from None


def _unfit(what: str, allowed: str, todo: str = "") -> UsageError:
    return UsageError("E2202", WHERE, what, allowed, todo)


def message_of(row: Mapping[str, Any], to: str) -> Message:
    """The message of a written row; its destination may be missing. Raises `UsageError` E2202."""
    body = row["body"]
    destination = row.get("destination") or to
    if not destination:
        raise _unfit("a row has the destination NULL", "", "Name a destination by the option 'to'")
    named = {name: value for name, value in (row.get("headers") or {}).items() if value is not None}
    texts = {name: value for name, value in row.get("properties") or () if value is not None}
    return Message(
        body.encode() if isinstance(body, str) else body or b"",
        texts,
        row.get("key"),
        destination,
        Headers(**named) if named else None,
    )
