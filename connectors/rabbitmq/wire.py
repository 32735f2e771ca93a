"""Encodes and decodes the properties of a message in AMQP 0-9-1, with its table of typed headers.

The product has its own code for this because pika cannot send floats and truncates received ones to whole numbers. This
module handles only bytes, and depends neither on the broker nor on pika.
"""

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from connectors.singles import shortest

SHORTEST_UNUSABLE = 256
"""Size in bytes from which on a short string (a name, an id, a key of a table) cannot be encoded."""


class Fields(NamedTuple):
    """The basic properties, in the order of the protocol; an absent one is `None`."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def encode_fields(fields: Fields) -> bytes:
    """Encode the properties that are present. Raises `ValueError` if the protocol cannot carry one."""
    flags = 0
    pieces = [b""]
    for (flag, write, _), value in zip(_FORMS, fields, strict=True):
        if value is not None:
            flags |= flag
            pieces.append(write(value))
    pieces[0] = flags.to_bytes(2, "big")
    return b"".join(pieces)


def decode_fields(encoded: bytes) -> Fields:
    """Decode the properties from any client; time stamps in headers become milliseconds.

    Raises `ValueError`, `IndexError` or `struct.error` for bytes that are not encoded properties.
    """
    flags = int.from_bytes(encoded[:2], "big")
    offset = 2
    values: list[Any] = []
    for flag, _, read in _FORMS:
        value = None
        if flags & flag:
            value, offset = read(encoded, offset)
        values.append(value)
    return Fields._make(values)


def _octet(value: int) -> bytes:
    if not 0 <= value <= 255:
        raise ValueError(f"{value} is not between 0 and 255")
    return bytes((value,))


def _seconds(value: int) -> bytes:
    return struct.pack(">Q", value)


def _short_string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) >= SHORTEST_UNUSABLE:
        raise ValueError(f"{len(encoded)} bytes are more than 255: '{text[:20]}…'")
    return bytes((len(encoded),)) + encoded


def _table(table: Mapping[str, Any]) -> bytes:
    content = b"".join([_short_string(name) + _value(value) for name, value in table.items()])
    return len(content).to_bytes(4, "big") + content


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _long_string(b"S", value.encode())
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        return _whole_number(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that the broker can store")
        return struct.pack(">cd", b"d", value)
    if isinstance(value, bytes):
        return _long_string(b"x", value)
    if isinstance(value, list | tuple):
        return _long_string(b"A", b"".join([_value(one) for one in value]))
    raise ValueError(f"a {type(value).__name__} cannot be a header")


def _whole_number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:  # `in range` would compare an enumeration's value with each number
        return struct.pack(">ci", b"I", value)
    if -(2**63) <= value < 2**63:
        return struct.pack(">cq", b"l", value)
    raise ValueError(f"{value} needs more than 64 bits")


def _long_string(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


_FIXED = {
    ord("t"): struct.Struct("?"),
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("U"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
}


_SINGLE = ord("f")
_LONG = (ord("S"), ord("x"), ord("A"))


def _read_octet(encoded: bytes, offset: int) -> tuple[int, int]:
    return encoded[offset], offset + 1


def _read_seconds(encoded: bytes, offset: int) -> tuple[int, int]:
    return struct.unpack_from(">Q", encoded, offset)[0], offset + 8


def _read_short_string(encoded: bytes, offset: int) -> tuple[str, int]:
    end = offset + 1 + encoded[offset]
    text = encoded[offset + 1 : end]
    try:
        return text.decode(), end
    except UnicodeDecodeError:
        return text.decode(errors="backslashreplace"), end


def _read_table(encoded: bytes, offset: int) -> tuple[dict[str, Any], int]:
    end = offset + 4 + int.from_bytes(encoded[offset : offset + 4], "big")
    offset += 4
    table: dict[str, Any] = {}
    while offset < end:
        name, offset = _read_short_string(encoded, offset)
        table[name], offset = _read_value(encoded, offset)
    return table, end


def _read_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    kind = encoded[offset]
    offset += 1
    if kind in _LONG:
        end = offset + 4 + int.from_bytes(encoded[offset : offset + 4], "big")
        return _read_long(kind, encoded, offset + 4, end), end
    fixed = _FIXED.get(kind)
    if fixed is not None:
        (value,) = fixed.unpack_from(encoded, offset)
        return shortest(value) if kind == _SINGLE else value, offset + fixed.size
    if kind == ord("F"):
        return _read_table(encoded, offset)
    if kind == ord("T"):
        seconds, offset = _read_seconds(encoded, offset)
        return seconds * 1000, offset
    if kind == ord("D"):
        (value,) = struct.unpack_from(">i", encoded, offset + 1)
        return Decimal(value).scaleb(-encoded[offset]), offset + 5
    if kind == ord("V"):
        return None, offset
    raise ValueError(f"a header has the unknown kind {kind:#x}")


def _read_long(kind: int, encoded: bytes, offset: int, end: int) -> Any:
    """Decode a text if the bytes are UTF-8, otherwise bytes; or the values of an array."""
    if kind != ord("A"):
        content = encoded[offset:end]
        if kind == ord("x"):
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content
    values = []
    while offset < end:
        value, offset = _read_value(encoded, offset)
        values.append(value)
    return values


_FORM_OF_KIND: Mapping[str, tuple[Callable[[Any], bytes], Callable[[bytes, int], tuple[Any, int]]]] = {
    "s": (_short_string, _read_short_string),
    "t": (_table, _read_table),
    "b": (_octet, _read_octet),
    "T": (_seconds, _read_seconds),
}
_FORMS = [(1 << (15 - place), *_FORM_OF_KIND[kind]) for place, kind in enumerate("sstbbssssTssss")]
"""The flag of each property, and its functions for encoding and decoding."""
