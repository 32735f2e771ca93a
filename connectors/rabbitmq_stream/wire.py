"""Encodes and decodes messages of AMQP 1.0: sections of typed values.

The product has its own code for this because the codec of rstream reads text as bytes. This module handles only bytes,
and depends neither on the broker nor on rstream.
"""

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.singles import shortest

HEADER, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x73, 0x74
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
_INT8 = range(-128, 128)
_INT64 = range(-(2**63), 2**63)
_DESCRIBED, _SMALL_DESCRIPTOR, _DESCRIPTOR = 0x00, 0x53, 0x80

_SINGLE = struct.Struct(">f")
_TOO_LONG = "a value is longer than what holds it"

Section = tuple[int, Any]


class Symbol(str):
    """A text that is encoded as a symbol."""

    __slots__ = ()


class Milliseconds(int):
    """A number that is encoded as a time: milliseconds since the epoch."""

    __slots__ = ()


class Unsigned(int):
    """A number that is encoded as an unsigned number of 32 bits."""

    __slots__ = ()


class Octet(int):
    """A number that is encoded as an unsigned number of 8 bits."""

    __slots__ = ()


def encode_list_section(code: int, values: Sequence[Any]) -> bytes:
    """Encode a section that is a list, without `None` values at its end. Raises `ValueError`."""
    count = len(values)
    while count and values[count - 1] is None:
        count -= 1
    return bytes((_DESCRIBED, _SMALL_DESCRIPTOR, code)) + _compound(0xC0, [_value(one) for one in values[:count]])


def encode_map_section(code: int, values: Mapping[str, Any]) -> bytes:
    """Encode a section that is a map. Raises `ValueError`."""
    pieces = []
    for name, value in values.items():
        pieces.append(_text(0xA1, name))
        pieces.append(_value(value))
    return bytes((_DESCRIBED, _SMALL_DESCRIPTOR, code)) + _compound(0xC1, pieces)


def encode_data_section(content: bytes) -> bytes:
    """Encode the section of a binary body."""
    return bytes((_DESCRIBED, _SMALL_DESCRIPTOR, DATA)) + _sized(0xA0, content)


def _compound(small: int, pieces: Sequence[bytes]) -> bytes:
    """Encode a list or map; `small`: its code if size and count fit into 8 bits. The code for 32 bits is 16 higher."""
    content = b"".join(pieces)
    if len(content) < 255 and len(pieces) < 256:
        return bytes((small, len(content) + 1, len(pieces))) + content
    return struct.pack(">BII", small + 0x10, len(content) + 4, len(pieces)) + content


def _sized(small: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes((small, len(content))) + content
    return struct.pack(">BI", small + 0x10, len(content)) + content


def _text(small: int, text: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"the name of a property must be a text, not a {type(text).__name__}")  # noqa: TRY004
    return _sized(small, text.encode())


def _value(value: Any) -> bytes:
    write = _WRITERS.get(type(value))
    if write is None:
        raise ValueError(f"a {type(value).__name__} cannot be a property")
    return write(value)


def _whole_number(value: int) -> bytes:
    if value in _INT8:
        return struct.pack(">Bb", 0x55, value)
    if value in _INT64:
        return struct.pack(">Bq", 0x81, value)
    raise ValueError(f"{value} needs more than 64 bits")


def _unsigned(value: int) -> bytes:
    if 0 <= value < 2**32:  # `in range` would compare each number, since the type is a subclass of `int`
        return struct.pack(">BI", 0x70, value)
    raise ValueError(f"{value} is not between 0 and {2**32 - 1}")


def _octet(value: int) -> bytes:
    if 0 <= value <= 255:
        return bytes((0x50, value))
    raise ValueError(f"{value} is not between 0 and 255")


_WRITERS: Mapping[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _whole_number,
    float: lambda value: struct.pack(">Bd", 0x82, value),
    str: lambda value: _sized(0xA1, value.encode()),
    bytes: lambda value: _sized(0xA0, value),
    Symbol: lambda value: _sized(0xA3, value.encode("ascii")),
    Milliseconds: lambda value: struct.pack(">Bq", 0x83, value),
    Unsigned: _unsigned,
    Octet: _octet,
}


def decode_sections(encoded: bytes) -> list[Section]:
    """Return the codes and values of the sections of a message, in order; times become milliseconds, symbols become
    texts.

    Raises `ValueError`, `IndexError`, `struct.error` or `RecursionError` for bytes that are not a message of AMQP 1.0.
    """
    sections: list[Section] = []
    at, end = 0, len(encoded)
    while at < end:
        if encoded[at] != _DESCRIBED:
            raise ValueError("a section begins with its descriptor")
        if encoded[at + 1] == _SMALL_DESCRIPTOR:
            code, at = encoded[at + 2], at + 3
        elif encoded[at + 1] == _DESCRIPTOR:
            code, at = int.from_bytes(encoded[at + 2 : at + 10], "big"), at + 10
        else:
            raise ValueError("the descriptor of a section is a number")
        value, at = _read(encoded, at)
        if at > end:
            raise ValueError("the message is shorter than it says")
        sections.append((code, value))
    return sections


def _read(encoded: bytes, at: int) -> tuple[Any, int]:
    return _READERS[encoded[at]](encoded, at + 1)


def _fixed(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    read = struct.Struct(form)
    unpack_from, width = read.unpack_from, read.size
    return lambda encoded, at: (unpack_from(encoded, at)[0], at + width)


def _constant(value: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    return lambda _, at: (value, at)


def _short(encoded: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + encoded[at]
    return _slice(encoded, at + 1, end), end


def _long(encoded: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + int.from_bytes(encoded[at : at + 4], "big")
    return _slice(encoded, at + 4, end), end


def _slice(encoded: bytes, begin: int, end: int) -> bytes:
    if end > len(encoded):
        raise ValueError(_TOO_LONG)
    return encoded[begin:end]


def _short_text(encoded: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + encoded[at]
    if end > len(encoded):
        raise ValueError(_TOO_LONG)
    return encoded[at + 1 : end].decode(errors="backslashreplace"), end


def _long_text(encoded: bytes, at: int) -> tuple[str, int]:
    content, end = _long(encoded, at)
    return content.decode(errors="backslashreplace"), end


def _uuid(encoded: bytes, at: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=encoded[at : at + 16]), at + 16


def _opaque(width: int) -> Callable[[bytes, int], tuple[bytes, int]]:
    return lambda encoded, at: (_slice(encoded, at, at + width), at + width)


def _described(encoded: bytes, at: int) -> tuple[Any, int]:
    """Return the value without its descriptor, which only the sending application understands."""
    _, at = _read(encoded, at)
    return _read(encoded, at)


def _counts(encoded: bytes, at: int, width: int) -> tuple[int, int, int]:
    """Return the number of values, the offset of the first one, and the offset after the last one."""
    begin = at + width
    end = begin + int.from_bytes(encoded[at:begin], "big")
    if end > len(encoded):
        raise ValueError(_TOO_LONG)
    return int.from_bytes(encoded[begin : begin + width], "big"), begin + width, end


def _list(width: int) -> Callable[[bytes, int], tuple[list[Any], int]]:
    def read(encoded: bytes, at: int) -> tuple[list[Any], int]:
        count, at, end = _counts(encoded, at, width)
        values = []
        for _ in range(count):
            value, at = _READERS[encoded[at]](encoded, at + 1)
            if at > end:  # a whole that claims to be shorter than its parts would let a part be read twice
                raise ValueError(_TOO_LONG)
            values.append(value)
        return values, end

    return read


def _map(width: int) -> Callable[[bytes, int], tuple[dict[Any, Any], int]]:
    def read(encoded: bytes, at: int) -> tuple[dict[Any, Any], int]:
        count, at, end = _counts(encoded, at, width)
        values: dict[Any, Any] = {}
        for _ in range(count // 2):
            name, at = _READERS[encoded[at]](encoded, at + 1)
            value, at = _READERS[encoded[at]](encoded, at + 1)
            if at > end:
                raise ValueError(_TOO_LONG)
            values[name if isinstance(name, str) else str(name)] = value
        return values, end

    return read


def _array(width: int) -> Callable[[bytes, int], tuple[list[Any], int]]:
    def read(encoded: bytes, at: int) -> tuple[list[Any], int]:
        count, at, end = _counts(encoded, at, width)
        if count > end - at:  # elements without bytes of their own could claim any number
            raise ValueError("an array has fewer bytes than elements")
        constructor, at = _READERS[encoded[at]], at + 1
        values = []
        for _ in range(count):
            value, at = constructor(encoded, at)
            if at > end:
                raise ValueError(_TOO_LONG)
            values.append(value)
        return values, end

    return read


_READERS: Mapping[int, Callable[[bytes, int], tuple[Any, int]]] = {
    _DESCRIBED: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda _, at: ([], at),
    0x50: _fixed(">B"),
    0x51: _fixed(">b"),
    0x52: _fixed(">B"),
    0x53: _fixed(">B"),
    0x54: _fixed(">b"),
    0x55: _fixed(">b"),
    0x56: _fixed("?"),
    0x60: _fixed(">H"),
    0x61: _fixed(">h"),
    0x70: _fixed(">I"),
    0x71: _fixed(">i"),
    0x72: lambda encoded, at: (shortest(_SINGLE.unpack_from(encoded, at)[0]), at + 4),
    0x73: lambda encoded, at: (encoded[at : at + 4].decode("utf-32-be"), at + 4),
    0x74: _opaque(4),
    0x80: _fixed(">Q"),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q"),
    0x84: _opaque(8),
    0x94: _opaque(16),
    0x98: _uuid,
    0xA0: _short,
    0xA1: _short_text,
    0xA3: _short_text,
    0xB0: _long,
    0xB1: _long_text,
    0xB3: _long_text,
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}
