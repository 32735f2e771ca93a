"""Reads the columns of a record that the receiver's templates mention as `${row.NAME}`, and no others."""

import csv
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from correlator.errors import ConnectionLost, quoted
from correlator.events import PropertyValue

csv.field_size_limit(sys.maxsize)  # this holds for the whole process; `RecordReader` limits the size of records

_MENTIONED = re.compile(r"\$\{row\.([^}]+)\}")

ReadColumns = Callable[[Sequence[bytes], Sequence[dict[str, PropertyValue]]], None]
"""Adds the properties `row.NAME` of each record to the properties of its message, without columns that the record does
not have.

If a record cannot be split into columns, each property contains the whole record as bytes. No id can be made from bytes
(E5403), so the message becomes a dead letter. All other values are text.
"""


def mentioned_columns(*templates: str) -> list[str]:
    """Return the mentioned names in the order of their first appearance."""
    return list(dict.fromkeys(name for template in templates for name in _MENTIONED.findall(template)))


def csv_columns(where: str, header: bytes, names: Sequence[str]) -> ReadColumns:
    """Return a reader of the columns of a CSV file with this header. Raises `ConnectionLost` E7015 if a
    name is missing.
    """
    try:
        columns = _csv_fields(header)
    except csv.Error as error:
        raise ConnectionLost("E7015", where, f"has a header that is not CSV: {error}") from error
    for name in names:
        if name not in columns:
            known = ", ".join(quoted(column) for column in columns)
            raise ConnectionLost("E7015", where, f"has no column {quoted(name)}", f"Columns: {known}")
    wanted = [(f"row.{name}", columns.index(name)) for name in names]

    def read(records: Sequence[bytes], properties: Sequence[dict[str, PropertyValue]]) -> None:
        if (fields := _plain_fields(records, len(columns))) is not None:
            for name, at in wanted:
                for its, value in zip(properties, fields[at :: len(columns)], strict=True):
                    its[name] = value
        else:
            for record, its in zip(records, properties, strict=True):
                its.update(_columns_of(record, wanted))

    return read


def _columns_of(record: bytes, wanted: Sequence[tuple[str, int]]) -> dict[str, PropertyValue]:
    try:
        fields = _csv_fields(record)
    except csv.Error:  # for example a carriage return outside of quotes
        return {name: record for name, _ in wanted}
    return {name: fields[at] for name, at in wanted if at < len(fields)}


def _plain_fields(records: Sequence[bytes], width: int) -> list[str] | None:
    """The fields of all records, if no record has a quote or a line end, and each has this number of fields."""
    if {record.count(b",") for record in records} != {width - 1}:
        return None
    text = b"\n".join(records).decode("utf-8", "backslashreplace")
    if '"' in text or text.count("\n") != len(records) - 1:
        return None
    return text.replace("\n", ",").split(",")


def _csv_fields(record: bytes) -> list[str]:
    text = record.decode("utf-8", "backslashreplace")
    if '"' not in text:
        return text.split(",")
    return next(csv.reader([text]), [])


def json_columns(names: Sequence[str]) -> ReadColumns:
    """Return a reader of the fields of JSON objects; any other record has no values."""
    fields = [f"c{at}" for at in range(len(names))]
    row = msgspec.defstruct(
        "Row", [(field, Any, None) for field in fields], rename=dict(zip(fields, names, strict=True)), gc=False
    )
    decoder = msgspec.json.Decoder(row)

    def read(records: Sequence[bytes], properties: Sequence[dict[str, PropertyValue]]) -> None:
        for record, its in zip(records, properties, strict=True):
            try:
                values = msgspec.structs.astuple(decoder.decode(record))
                texts = {f"row.{name}": _text(one) for name, one in zip(names, values, strict=True) if one is not None}
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            its.update(texts)

    return read


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
