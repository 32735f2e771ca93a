"""Decodes Avro bodies, with all digits of decimals. A hostile schema in the registry can do no harm."""

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

MOST_GROWTH = 100
"""Most characters of JSON for each byte of a record: names are long, and a field may take one byte."""
_MOST_BESIDE = 1_000_000
"""Most further characters of JSON, for values that take no bytes."""
_MOST_DEPTH = 100
_MOST_DIGITS = 1000
"""Most digits of a decimal: no sender's type has more, and converting a very long number to text takes too long."""
_DECIMAL = "exact-decimal"
"""Logical type for decimals of this module's own reader: the package's reader rounds, and takes minutes
for long numbers.
"""
_PRIMITIVE = frozenset({"boolean", "bytes", "double", "float", "int", "long", "null", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})


class SchemaRefused(Exception):
    """A schema that this module does not apply; the text says why."""


def decoder(definition: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies to values that JSON can hold; it raises any exception if a body does not
    fit.

    Raises `SchemaRefused` for a schema that this module does not apply, and any other exception for a malformed one.
    """
    import fastavro  # noqa: PLC0415  # its import takes a tenth of a second

    fastavro.read.LOGICAL_READERS.update({f"{kind}-{_DECIMAL}": _decimal for kind in ("bytes", "fixed")})
    schema = fastavro.parse_schema(json.loads(definition, object_hook=_adapted))
    _check_bounds(schema)

    def decode(body: bytes) -> Any:
        data = io.BytesIO(body)
        value = fastavro.schemaless_reader(data, schema, None)
        if data.tell() != len(body):
            raise ValueError("there are bytes after the value")
        return value

    return decode


def _adapted(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema without defaults and the package's own mark, and with this module's type of decimals.

    Defaults are for readers with another schema, and wrong defaults in registries would cause errors. With its mark,
    the package would not check the schema.
    """
    part.pop("default", None)
    part.pop("__fastavro_parsed", None)
    if part.get("logicalType") == "decimal":
        part["logicalType"] = _DECIMAL
    return part


def _decimal(content: bytes, schema: Any, _reader: Any) -> str:
    """Decode a decimal. Called by the package with the bytes of the unscaled number."""
    if not content:
        raise ValueError("a number has at least one byte")
    unscaled = int.from_bytes(content, "big", signed=True)
    if abs(unscaled) >= 10 ** schema["precision"]:
        raise ValueError("it has more digits than the schema allows")
    return format(Decimal(f"{unscaled}e-{schema.get('scale', 0)}"), "f")


class _Bounds(NamedTuple):
    """Bounds of the values of a type.

    Attributes:
        beside: characters by which the JSON of a value may be longer than `MOST_GROWTH` times its bytes; below 0 if it
            is always shorter. Items of arrays and maps must be below 0, since there may be any number of them.
        depth: how deeply the type is nested.
    """

    beside: int
    depth: int = 1


def _check_bounds(schema: Any) -> None:
    """Raise `SchemaRefused` if a few bytes could take too much time or memory with this schema.

    The package's reader limits neither the depth nor the number of values that need no bytes.
    """
    bounds = _bounds(schema, {})
    _check_growth(bounds.beside, _MOST_BESIDE)
    if bounds.depth > _MOST_DEPTH:
        raise SchemaRefused("it is nested too deeply")


def _check_growth(beside: int, most: int) -> None:
    if beside > most:
        raise SchemaRefused("its JSON may be too long")


def _bounds(schema: Any, named: dict[str, _Bounds | None]) -> _Bounds:
    """Return the bounds of a type. `named`: the bounds of named types so far, `None` within the type itself."""
    if isinstance(schema, list):
        branches = [_bounds(branch, named) for branch in schema]
        return _around(max(branch.beside for branch in branches) - MOST_GROWTH, branches)
    if isinstance(schema, str):
        return _of_primitive(schema) if schema in _PRIMITIVE else _of_name(schema, named)
    if schema["type"] not in _NAMED:
        return _of_unnamed(schema, named)
    name = schema["name"]
    if name in named:
        raise SchemaRefused(f"{name} is defined twice")
    named[name] = None
    named[name] = bounds = _of_named(schema, named)
    return bounds


def _of_name(name: str, named: dict[str, _Bounds | None]) -> _Bounds:
    bounds = named[name]
    if bounds is None:
        raise SchemaRefused(f"{name} contains itself")
    return bounds


def _of_unnamed(schema: dict[str, Any], named: dict[str, _Bounds | None]) -> _Bounds:
    kind = schema["type"]
    if kind == "array":
        items = _bounds(schema["items"], named)
        _check_growth(items.beside + len(","), 0)
        return _around(len("[]") - MOST_GROWTH, [items])
    if kind == "map":
        values = _bounds(schema["values"], named)
        _check_growth(values.beside + len('"":,') - MOST_GROWTH, 0)
        return _around(len("{}") - MOST_GROWTH, [values])
    plain = _of_primitive(kind)
    return _Bounds(plain.beside + _scale(schema)) if kind == "bytes" else plain


def _of_primitive(kind: str) -> _Bounds:
    return _Bounds(len("null") if kind == "null" else _PLAIN - MOST_GROWTH)


_PLAIN = 32
"""Most characters for a value of one byte (a moment is the longest); each further byte adds at most six characters."""


def _of_named(schema: dict[str, Any], named: dict[str, _Bounds | None]) -> _Bounds:
    kind = schema["type"]
    if kind == "enum":
        return _Bounds(max(map(_length, schema["symbols"])) - MOST_GROWTH)
    if kind == "fixed":
        return _Bounds(_PLAIN + _scale(schema) - (MOST_GROWTH - 3) * schema["size"])
    fields = [_bounds(field["type"], named) for field in schema["fields"]]
    names = sum(_length(field["name"]) + len(":,") for field in schema["fields"])
    return _around(len("{}") + names + sum(field.beside for field in fields), fields)


def _around(beside: int, parts: list[_Bounds]) -> _Bounds:
    return _Bounds(beside, 1 + max((part.depth for part in parts), default=0))


def _length(name: str) -> int:
    return len(msgspec.json.encode(name))


def _scale(schema: dict[str, Any]) -> int:
    """Return the scale of a decimal; 0 for other types. Raises `SchemaRefused`."""
    if schema.get("logicalType") != _DECIMAL:
        return 0
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and 1 <= precision <= _MOST_DIGITS):
        raise SchemaRefused(f"its decimals do not have 1 to {_MOST_DIGITS} digits")
    if not (isinstance(scale, int) and 0 <= scale <= precision):
        raise SchemaRefused("the scale of its decimals is not between 0 and their number of digits")
    return scale
