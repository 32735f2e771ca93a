"""Encodes JSON values as Avro, as the reverse of `avro`."""

import base64
import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from correlator.errors import quoted

_Convert = Callable[[Any], Any]
"""Converts a value of JSON to one that Avro takes; raises `ValueError` or `TypeError` if it does not have the type."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIDNIGHT = datetime(1970, 1, 1)  # noqa: DTZ001  # times of a clock, without a zone
_TICKS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}


def encoder(definition: str) -> Callable[[Any], bytes]:
    """Return a function that encodes JSON values; it raises `ValueError` or `TypeError` if one does not fit the schema.

    A field that a value lacks gets its default. A union takes the first type that fits. Raises any exception for a
    malformed schema.
    """
    import fastavro  # noqa: PLC0415  # its import takes a tenth of a second

    convert = _Converters().of(json.loads(definition), "")
    schema = fastavro.parse_schema(json.loads(definition, object_hook=_without_logical_types))

    def encode(value: Any) -> bytes:
        data = io.BytesIO()
        try:
            fastavro.schemaless_writer(data, schema, convert(value), strict_allow_default=True)
        except (ValueError, TypeError):
            raise
        except Exception as error:
            raise ValueError(str(error)) from error
        return data.getvalue()

    return encode


def _without_logical_types(part: dict[str, Any]) -> dict[str, Any]:
    part.pop("logicalType", None)
    part.pop("__fastavro_parsed", None)  # with its mark, the package would not check the schema
    return part


class _Converters:
    """Makes the converters of a schema, and keeps those of its named types."""

    def __init__(self) -> None:
        self._named: dict[str, _Convert] = {}

    def of(self, schema: Any, space: str) -> _Convert:
        """Return the converter of a type; names without a dot belong to the namespace `space`."""
        if isinstance(schema, list):
            return _union([self.of(branch, space) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._by_name(_full(schema, space))
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_named(schema, kind, space)
        if kind in ("array", "map"):
            return self._of_many(schema, kind, space)
        if (kind, schema.get("logicalType")) == ("bytes", "decimal"):
            return _decimal(schema, None)
        return _LOGICAL.get((kind, schema.get("logicalType"))) or self.of(kind, space)

    def _of_many(self, schema: Mapping[str, Any], kind: str, space: str) -> _Convert:
        if kind == "array":
            item = self.of(schema["items"], space)
            return lambda value: [item(one) for one in _checked(value, list, "an array")]
        item = self.of(schema["values"], space)
        return lambda value: {name: item(one) for name, one in _checked(value, dict, "an object").items()}

    def _by_name(self, name: str) -> _Convert:
        def convert(value: Any) -> Any:
            return self._named[name](value)  # looked up at the call: a type may contain itself

        return convert

    def _of_named(self, schema: Mapping[str, Any], kind: str, space: str) -> _Convert:
        name = _full(schema["name"], schema.get("namespace", space))
        self._named[name] = made = self._made(schema, kind, name.rpartition(".")[0])
        return made

    def _made(self, schema: Mapping[str, Any], kind: str, space: str) -> _Convert:
        if kind == "enum":
            return _text
        if kind == "fixed":
            is_decimal = schema.get("logicalType") == "decimal"
            return _decimal(schema, schema["size"]) if is_decimal else _bytes
        fields = {field["name"]: self.of(field["type"], space) for field in schema["fields"]}

        def record(value: Any) -> dict[str, Any]:
            content = _checked(value, dict, "an object")
            for name in content:
                if name not in fields:
                    raise ValueError(f"the schema has no field {quoted(name)}")
            return {name: _field(name, convert, content[name]) for name, convert in fields.items() if name in content}

        return record


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _field(name: str, convert: _Convert, value: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"field {quoted(name)}: {error}") from error


def _union(branches: list[_Convert]) -> _Convert:
    def convert(value: Any) -> Any:
        failure: Exception = ValueError("the union has no types")
        for branch in branches:
            try:
                return branch(value)
            except (ValueError, TypeError) as error:
                failure = error
        raise failure

    return convert


def _checked(value: Any, kind: type[Any] | tuple[type[Any], ...], name: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{quoted(value)} ({type(value).__name__}) is not {name}")
    return value


def _text(value: Any) -> str:
    text: str = _checked(value, str, "a text")
    return text


def _whole(value: Any) -> int:
    number: int = _checked(value, int, "a whole number")
    return number


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _date(value: Any) -> int:
    return (date.fromisoformat(_text(value)) - _EPOCH.date()).days


def _time(tick: timedelta) -> _Convert:
    def convert(value: Any) -> int:
        moment = time.fromisoformat(_text(value))
        if moment.tzinfo is not None:
            raise ValueError(f"{quoted(value)} is a time with a zone")
        return (datetime.combine(_MIDNIGHT, moment) - _MIDNIGHT) // tick

    return convert


def _moment(tick: timedelta, begin: datetime) -> _Convert:
    def convert(value: Any) -> int:
        moment = datetime.fromisoformat(_text(value))
        if (moment.tzinfo is None) != (begin.tzinfo is None):
            raise ValueError(f"{quoted(value)} is a moment {'without' if moment.tzinfo is None else 'with'} a zone")
        return (moment - begin) // tick

    return convert


def _decimal(schema: Mapping[str, Any], size: int | None) -> _Convert:
    precision, scale = schema["precision"], schema.get("scale", 0)

    def convert(value: Any) -> bytes:
        text = str(_checked(value, (str, int), "a decimal"))
        try:
            sign, digits, exponent = Decimal(text).as_tuple()
        except InvalidOperation as error:
            raise ValueError(f"{quoted(text)} is not a decimal") from error
        if not isinstance(exponent, int) or exponent < -scale or len(digits) + exponent + scale > precision:
            raise ValueError(f"{quoted(text)} is not a decimal of {precision} digits with {scale} after the point")
        unscaled: int = int("".join(map(str, digits))) * 10 ** (exponent + scale) * (-1 if sign else 1)
        return unscaled.to_bytes(size or unscaled.bit_length() // 8 + 1, "big", signed=True)

    return convert


_PRIMITIVES: Mapping[str, _Convert] = {
    "null": lambda value: _checked(value, type(None), "null"),
    "boolean": lambda value: _checked(value, bool, "true or false"),
    "int": _whole,
    "long": _whole,
    "float": lambda value: float(_checked(value, (int, float), "a number")),
    "double": lambda value: float(_checked(value, (int, float), "a number")),
    "bytes": _bytes,
    "string": _text,
}
_LOGICAL: Mapping[tuple[str, Any], _Convert] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(_TICKS["millis"]),
    ("long", "time-micros"): _time(_TICKS["micros"]),
    **{("long", f"timestamp-{name}"): _moment(tick, _EPOCH) for name, tick in _TICKS.items()},
    **{("long", f"local-timestamp-{name}"): _moment(tick, _MIDNIGHT) for name, tick in _TICKS.items()},
}
