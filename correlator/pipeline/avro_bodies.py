"""Checks that a body is exactly one value of an Avro schema, before a library reads it. Pure.

The library `fastavro` trusts the claims of a body: it reads a text of a negative length to the end of the body, takes
the last symbol for the number -1, and makes as many elements as a body says. So this module first walks through the
body without making any value, and refuses everything that the schema does not allow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from correlator.errors import ConfigError, quoted
from correlator.pipeline.binary import MOST_ELEMENTS, Malformed, inner, no_column

_MORE = 0x80
"""The bit of a byte which says that the number continues."""
_MOST_NUMBER_BYTES = 10
_ENDS = "ends too early"
_INT = range(-(2**31), 2**31)


@dataclass(slots=True)
class _Body:
    """A body while the check walks through it.

    Attributes:
        data: its bytes.
        left: how many elements of arrays and maps it may still have.
    """

    data: bytes
    left: int = MOST_ELEMENTS


_Walk = Callable[[_Body, int], int]
"""Walks over a value; returns the position after it."""


class _Value(NamedTuple):
    """How to walk over the values of a schema.

    Attributes:
        walk: walks over one value.
        least: the smallest number of bytes of a value.
    """

    walk: _Walk
    least: int


def checker_of(schema: Any, named: Mapping[str, Any], setting: str) -> Callable[[bytes], None]:
    """A function that raises `Malformed` for a body that is not exactly one value of the schema.

    Args:
        schema: the schema in the form that `fastavro` has parsed.
        named: the named types of the schema.
        setting: the setting that holds the schema, for messages.

    Raises:
        ConfigError: E1513, a type contains itself, or the elements of an array take no bytes: a short body could claim
            any number of them.
    """
    value = _Schema(named, setting).value(schema, "", ())

    def check(body: bytes) -> None:
        end = value.walk(_Body(body), 0)
        if end != len(body):
            raise Malformed(f"has {len(body) - end} bytes after the record")

    return check


def contains_itself(setting: str, path: str, name: str) -> ConfigError:
    """The error of a recursive type."""
    return no_column(setting, path, f"is of the recursive type {quoted(name)}")


class _Schema:
    """Makes the walks of the types of a schema."""

    def __init__(self, named: Mapping[str, Any], setting: str) -> None:
        self._named = named
        self._setting = setting
        self._records: dict[str, _Value] = {}

    def value(self, schema: Any, path: str, around: tuple[str, ...]) -> _Value:  # noqa: PLR0911  a case for each kind
        """How to walk over values of a schema; `around` are the names of the records around it."""
        if isinstance(schema, list):
            return _union([self.value(one, path, around) for one in schema])
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        match kind:
            case "record" | "error":
                return self._record(schema, path, around)
            case "enum":
                return _Value(_enum(len(schema["symbols"])), 1)
            case "fixed":
                return _Value(_bytes(schema["size"]), schema["size"])
            case "array":
                return _Value(_blocks(self._element(schema["items"], path, around)), 1)
            case "map":
                return _Value(_blocks(_entry(self.value(schema["values"], path, around))), 1)
            case _:
                return self.value(self._named[kind], path, around)

    def _record(self, schema: Any, path: str, around: tuple[str, ...]) -> _Value:
        name = schema["name"]
        if name in around:
            raise contains_itself(self._setting, path, name)
        if name in self._records:
            return self._records[name]
        fields = [
            (one["name"], self.value(one["type"], inner(path, one["name"]), (*around, name)))
            for one in schema["fields"]
        ]
        walk, least = _record([(one, value.walk) for one, value in fields]), sum(value.least for _, value in fields)
        value = self._records[name] = _Value(walk, least)
        return value

    def _element(self, schema: Any, path: str, around: tuple[str, ...]) -> _Value:
        value = self.value(schema, path, around)
        if not value.least:
            what = "is an array of elements that take no bytes, so a short body could have any number of them"
            raise ConfigError("E1513", self._setting, f"field {quoted(path)} {what}")
        return value


def _number(body: _Body, at: int) -> tuple[int, int]:
    """The whole number at a position, and the position after it."""
    data = body.data
    if at >= len(data):
        raise Malformed(_ENDS)
    byte = data[at]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift, end = byte & 0x7F, 7, at + 1
    while byte >= _MORE:
        if end >= len(data):
            raise Malformed(_ENDS)
        if end - at == _MOST_NUMBER_BYTES:
            raise Malformed(f"has a number of more than {_MOST_NUMBER_BYTES} bytes")
        byte = data[end]
        value |= (byte & 0x7F) << shift
        shift += 7
        end += 1
    if value >= 2**64:
        raise Malformed("has a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), end


def _long(body: _Body, at: int) -> int:
    return _number(body, at)[1]


def _int(body: _Body, at: int) -> int:
    value, at = _number(body, at)
    if value not in _INT:
        raise Malformed(f"has the number {value}, which is no int")
    return at


def _boolean(body: _Body, at: int) -> int:
    data = body.data
    if at >= len(data):
        raise Malformed(_ENDS)
    if data[at] > 1:
        raise Malformed(f"has the byte {data[at]}, which is no boolean")
    return at + 1


def _null(body: _Body, at: int) -> int:
    del body
    return at


def _bytes(size: int) -> _Walk:
    def walk(body: _Body, at: int) -> int:
        if at + size > len(body.data):
            raise Malformed(_ENDS)
        return at + size

    return walk


def _span(body: _Body, at: int) -> tuple[int, int]:
    """Begin and end of the bytes that follow their length."""
    length, at = _number(body, at)
    if not 0 <= length <= len(body.data) - at:
        raise Malformed(f"has the length {length}, where the body has {len(body.data) - at} more bytes")
    return at, at + length


def _sized(body: _Body, at: int) -> int:
    return _span(body, at)[1]


def _text(body: _Body, at: int) -> int:
    begin, end = _span(body, at)
    try:
        body.data[begin:end].decode()
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None
    return end


def _enum(symbols: int) -> _Walk:
    def walk(body: _Body, at: int) -> int:
        number, at = _number(body, at)
        if not 0 <= number < symbols:
            raise Malformed(f"has the symbol {number} of {symbols}")
        return at

    return walk


def _union(branches: Sequence[_Value]) -> _Value:
    walks = [one.walk for one in branches]

    def walk(body: _Body, at: int) -> int:
        number, at = _number(body, at)
        if not 0 <= number < len(walks):
            raise Malformed(f"has the branch {number} of a union of {len(walks)}")
        return walks[number](body, at)

    return _Value(walk, 1 + min((one.least for one in branches), default=0))


def _record(fields: Sequence[tuple[str, _Walk]]) -> _Walk:
    def walk(body: _Body, at: int) -> int:
        name = ""
        try:
            for name, one in fields:  # noqa: B007  the handler names the field
                at = one(body, at)
        except Malformed as error:
            error.add(name)
            raise
        return at

    return walk


def _entry(value: _Value) -> _Value:
    def walk(body: _Body, at: int) -> int:
        return value.walk(body, _text(body, at))

    return _Value(walk, 1 + value.least)


def _blocks(element: _Value) -> _Walk:
    """An array or a map: blocks of elements, then an empty one. A negative count means that a size follows."""

    def walk(body: _Body, at: int) -> int:
        while True:
            count, at = _number(body, at)
            if not count:
                return at
            size = None
            if count < 0:
                size, at = _number(body, at)
            end = _whole_block(body, at, abs(count), size, element.least)
            for _ in range(abs(count)):
                at = element.walk(body, at)
            if end not in (None, at):
                raise Malformed(f"has a block of {size} bytes whose elements have others")

    return walk


def _whole_block(body: _Body, at: int, count: int, size: int | None, least: int) -> int | None:
    """Refuse a block that cannot be in the body; returns its end if the block says it."""
    more = len(body.data) - at
    if count * least > more or (size is not None and not 0 <= size <= more):
        told = f"{count} elements" if size is None else f"{count} elements in {size} bytes"
        raise Malformed(f"has a block of {told}, where the body has {more} more bytes")
    body.left -= count
    if body.left < 0:
        raise Malformed(f"comes after more than {MOST_ELEMENTS} elements")
    return None if size is None else at + size


_PRIMITIVES = {
    "null": _Value(_null, 0),
    "boolean": _Value(_boolean, 1),
    "int": _Value(_int, 1),
    "long": _Value(_long, 1),
    "float": _Value(_bytes(4), 4),
    "double": _Value(_bytes(8), 8),
    "bytes": _Value(_sized, 1),
    "string": _Value(_text, 1),
}
