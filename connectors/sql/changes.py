"""Makes messages from changed rows: the body is a JSON object with the columns, and properties describe the change.

A row of a snapshot and a row of a change have the same body, since both are made from the texts of the values. This
module does no I/O.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from connectors.sql.pgoutput import Change, Kept, Relation, Values
from correlator.events import PropertyValue

OPERATION, SCHEMA, TABLE, OLD, UNCHANGED, LAYOUT = "operation", "schema", "table", "old", "unchanged", "layout"
"""The properties: kind of change; schema and table; the earlier row as a JSON object; a JSON list of the columns that
the body lacks because they did not change; and a digest of the columns, which differs after ALTER TABLE.
"""
NO_ROW = b"{}"
_NOT_FINITE = frozenset({b"NaN", b"Infinity", b"-Infinity"})
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class Content(NamedTuple):
    """The body and the properties of a message."""

    body: bytes
    properties: dict[str, PropertyValue]


class Layout:
    """Converts the rows of a table to JSON.

    Args:
        relation: the table.
    """

    def __init__(self, relation: Relation) -> None:
        self._columns = [
            (msgspec.json.encode(one.name) + b":", _WRITERS.get(one.type, _text), one) for one in relation.columns
        ]
        digest = hashlib.sha256(repr([(one.name, one.type, one.modifier) for one in relation.columns]).encode())
        self._of_table: dict[str, PropertyValue] = {
            SCHEMA: relation.schema,
            TABLE: relation.table,
            LAYOUT: digest.hexdigest()[:8],
        }

    def changed(self, change: Change) -> Content:
        """Return the message of a change. Raises `ValueError` if the change has another number of columns."""
        old, new, properties = change.old, change.new, self._properties(change.operation)
        if new is None:
            assert old is not None
            return Content(self._json(old, only_keys=not change.is_whole), properties)
        if old is not None:
            if change.is_whole:
                new = [before if now is Kept.UNCHANGED else now for before, now in zip(old, new, strict=True)]
            properties[OLD] = self._json(old, only_keys=not change.is_whole).decode()
        body = self._json(new)
        if Kept.UNCHANGED in new:
            left_out = [
                one.name for (_, _, one), value in zip(self._columns, new, strict=True) if value is Kept.UNCHANGED
            ]
            properties[UNCHANGED] = msgspec.json.encode(left_out).decode()
        return Content(body, properties)

    def read(self, line: bytes) -> Content:
        """Return the message of a row of a snapshot, from a line of COPY in its text format. Raises `ValueError`."""
        values = [None if one == b"\\N" else _unescaped(one) for one in line.removesuffix(b"\n").split(b"\t")]
        return Content(self._json(values if self._columns else []), self._properties("snapshot"))

    def truncated(self) -> Content:
        """Return the message which says that the table was emptied."""
        return Content(NO_ROW, self._properties("truncate"))

    def _properties(self, operation: str) -> dict[str, PropertyValue]:
        return {OPERATION: operation, **self._of_table}

    def _json(self, values: Values, *, only_keys: bool = False) -> bytes:
        written = [
            name + (b"null" if value is None else write(value))
            for (name, write, column), value in zip(self._columns, values, strict=True)
            if not isinstance(value, Kept) and (column.is_key or not only_keys)
        ]
        return b"{" + b",".join(written) + b"}"


def _text(value: bytes) -> bytes:
    return msgspec.json.encode(value.decode(errors="backslashreplace"))


def _as_it_is(value: bytes) -> bytes:
    return value


def _number(value: bytes) -> bytes:
    return b'"' + value + b'"' if value in _NOT_FINITE else value


def _flag(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _bytes(value: bytes) -> bytes:
    if not value.startswith(b"\\x"):
        raise ValueError("a value of type bytea is not in the hex format")
    return b'"' + b64encode(bytes.fromhex(value[2:].decode())) + b'"'


def _timestamp(value: bytes) -> bytes:
    return _text(value.replace(b" ", b"T", 1))


def _moment(value: bytes) -> bytes:
    """Return a time with the offset of UTC, which PostgreSQL writes as `+00`; `BC` may follow it, or it
    may be infinite.
    """
    return _text(value.replace(b" ", b"T", 1).replace(b"+00", b"+00:00", 1))


_WRITERS: dict[int, Callable[[bytes], bytes]] = {
    16: _flag,
    17: _bytes,
    20: _as_it_is,
    21: _as_it_is,
    23: _as_it_is,
    26: _as_it_is,
    114: _as_it_is,
    700: _number,
    701: _number,
    1114: _timestamp,
    1184: _moment,
    1700: _number,
    3802: _as_it_is,
}
"""Conversions by the numbers of PostgreSQL's types: boolean, bytea, int8, int2, int4, oid, json, float4, float8,
timestamp, timestamptz, numeric, jsonb. Values of all other types become texts.
"""


def _unescaped(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)
