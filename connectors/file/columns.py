"""Values of a record that the receiver's templates mention as `${row.NAME}`: only those are ever looked at."""

import csv
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from correlator.errors import ConnectionLost, quoted
from correlator.events import PropertyValue

csv.field_size_limit(sys.maxsize)  # one for the whole process; how long a record may be is the reader's to say

_MENTIONED = re.compile(r"\$\{row\.([^}]+)\}")

ReadColumns = Callable[[bytes], dict[str, PropertyValue]]
"""Gives the properties `row.NAME` of a record; a value that it does not have is left out.

Of a record that has no columns, however it is read, each is the whole record: bytes, of which no id can be made
(E5403).
"""


def mentioned_columns(*templates: str) -> list[str]:
    """The names in the order of their first appearance."""
    return list(dict.fromkeys(name for template in templates for name in _MENTIONED.findall(template)))


def csv_columns(where: str, header: bytes, names: Sequence[str]) -> ReadColumns:
    """For records of a CSV file with this header. Raises `ConnectionLost` when the header lacks a name."""
    try:
        columns = _csv_fields(header)
    except csv.Error as error:
        raise ConnectionLost("E7015", where, f"has a header that is no CSV: {error}") from error
    for name in names:
        if name not in columns:
            known = ", ".join(quoted(column) for column in columns)
            raise ConnectionLost("E7015", where, f"has no column {quoted(name)}", f"Columns: {known}")
    wanted = [(f"row.{name}", columns.index(name)) for name in names]

    def read(record: bytes) -> dict[str, PropertyValue]:
        try:
            fields = _csv_fields(record)
        except csv.Error:  # a carriage return outside of quotes
            return {name: record for name, _ in wanted}
        return {name: fields[at] for name, at in wanted if at < len(fields)}

    return read


def _csv_fields(record: bytes) -> list[str]:
    text = record.decode("utf-8", "replace")
    if '"' not in text:
        return text.split(",")
    return next(csv.reader([text]), [])


def json_columns(names: Sequence[str]) -> ReadColumns:
    """For records that are JSON objects; of one that is not, there are no values."""
    fields = [f"c{at}" for at in range(len(names))]
    row = msgspec.defstruct(
        "Row", [(field, Any, None) for field in fields], rename=dict(zip(fields, names, strict=True)), gc=False
    )
    decoder = msgspec.json.Decoder(row)

    def read(record: bytes) -> dict[str, PropertyValue]:
        try:
            values = msgspec.structs.astuple(decoder.decode(record))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}
        return {f"row.{name}": _text(value) for name, value in zip(names, values, strict=True) if value is not None}

    return read


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
