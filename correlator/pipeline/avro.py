"""The format `avro` of a `decode` step: a schema as columns, and bodies as their values. Knows neither Spark nor Arrow.

The library `fastavro` reads the schema, and the bodies that `avro_bodies` has found to be of the schema. It gets the
schema without logical types, so that a date or a time stays a whole number, as Arrow keeps it.
"""

import io
import json
import struct as packed
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple
from uuid import UUID

from correlator.errors import ConfigError, quoted
from correlator.pipeline.avro_bodies import checker_of, contains_itself
from correlator.pipeline.binary import (
    LEAST_LONG,
    MOST_LONG,
    Convert,
    Fields,
    Malformed,
    inner,
    missing_package,
    no_column,
    struct,
)

_SINGLE_OBJECT = b"\xc3\x01"
"""The first bytes of the single-object encoding; the fingerprint of a schema follows."""
_HEADER_BYTES = len(_SINGLE_OBJECT) + 8
_MOST_DIGITS = 38
_PRIMITIVES = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_DURATION = ("months", "days", "milliseconds")
_PROMOTED = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
_EXACT = Context(prec=_MOST_DIGITS)


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Bodies that are one binary Avro record each, without the container of an Avro file.

    Attributes:
        schema: the schema of the columns, as JSON.
        writer_schema: the schema with which the bodies were written, as JSON; `None` if it is the same.
        setting: the setting that holds the schema, for messages.
    """

    schema: str
    writer_schema: str | None = None
    setting: str = "schema"

    def columns(self) -> Mapping[str, str]:
        """The columns with their types in Spark's DDL."""
        schema, writer = self._schema, self._writer
        if not isinstance(schema.whole, dict) or schema.whole["type"] != "record":
            raise ConfigError("E1529", self.setting, "is no record", "The type of the schema of a body must be record")
        fields = _Columns(schema.named, self.setting).fields(schema.whole, "", ())
        checker_of(writer.whole, writer.named, writer.setting)
        if self.writer_schema is not None:
            why = _Resolution(writer.named, schema.named).why_not(writer.whole, schema.whole, "")
            if why:
                raise ConfigError("E1529", writer.setting, f"bodies of it cannot be read with {self.setting!r}: {why}")
        return {name: value.ddl for name, value in fields.items()}

    def decoder(self) -> Callable[[bytes], Mapping[str, Any]]:
        """Make the function that turns a body into the values of the columns."""
        from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415  only pipelines with this format need it
        from fastavro.read import SchemaResolutionError  # noqa: PLC0415

        schema, writer = self._schema, self._writer
        check = checker_of(writer.whole, writer.named, writer.setting)
        convert = _of_record(_Columns(schema.named, self.setting).fields(schema.whole, "", ()))
        written = parse_schema(_without_logical_types(writer.json))
        wanted = None
        if self.writer_schema is not None:
            wanted = _with_defaults(schema)
        header = _SINGLE_OBJECT + _fingerprint(writer.json)

        def decode(body: bytes) -> Mapping[str, Any]:
            content = body[_HEADER_BYTES:] if body.startswith(header) else body
            try:
                check(content)
            except Malformed as error:
                if content is body and body.startswith(_SINGLE_OBJECT) and len(body) >= _HEADER_BYTES:
                    raise _of_other_schema(body, header) from error
                raise
            try:
                values: Any = schemaless_reader(io.BytesIO(content), written, wanted)
            except SchemaResolutionError as error:
                raise Malformed(f"cannot be read with the schema of the columns: {error}") from error
            made: Mapping[str, Any] = values if convert is None else convert(values)
            return made

        return decode

    @property
    def _schema(self) -> "_Schema":
        return _parsed(self.schema, self.setting)

    @property
    def _writer(self) -> "_Schema":
        return self._schema if self.writer_schema is None else _parsed(self.writer_schema, "writer_schema")


class _Schema(NamedTuple):
    """A schema.

    Attributes:
        json: the schema as it stands in the file.
        whole: the schema in the form that the library has parsed.
        named: its named types.
        setting: the setting that holds it.
    """

    json: Any
    whole: Any
    named: Mapping[str, Any]
    setting: str


def _parsed(text: str, setting: str) -> _Schema:
    """Parse a schema; raises `ConfigError` E1529 if the text is no schema, E1537 if the library is missing."""
    try:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema  # noqa: PLC0415  as above
    except ModuleNotFoundError as error:
        raise missing_package("format", "fastavro") from error
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("E1529", setting, f"is not JSON: {error}") from error
    named: dict[str, Any] = {}
    try:
        whole = parse_schema(read, named)
    except UnknownType as error:
        raise ConfigError("E1529", setting, f"{quoted(error.name)} is not a type") from error
    except KeyError as error:
        raise ConfigError("E1529", setting, f"a type has no {quoted(error.args[0])}") from error
    except SchemaParseException as error:
        raise ConfigError("E1529", setting, str(error)) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError("E1529", setting, f"is no Avro schema: {error}") from error
    _check_types(named, setting)
    return _Schema(read, whole, named, setting)


def _check_types(named: Mapping[str, Any], setting: str) -> None:
    """Refuse mistakes that the library accepts."""
    for name, schema in named.items():
        size = schema.get("size", 0)
        if type(size) is not int or size < 0:
            raise ConfigError(
                "E1529", setting, f"a type {quoted(name)} of the size {size!r}", "A size is a whole number"
            )
        other = next((one["name"] for one in schema.get("fields", ()) if not isinstance(one["name"], str)), None)
        if other is not None:
            raise ConfigError("E1529", setting, f"is no Avro schema: the field {other!r} of {quoted(name)} has no name")


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: value for name, value in schema.items() if name != "logicalType"}
    plain |= {name: _without_logical_types(plain[name]) for name in ("items", "values") if name in plain}
    if "fields" in plain:
        plain["fields"] = [{**one, "type": _without_logical_types(one["type"])} for one in plain["fields"]]
    return plain


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:  # noqa: PLR0911  a case for each kind of type
    """The default of a field in the form in which the library would read it from a body; in JSON, bytes are text."""
    if isinstance(schema, list):
        kinds = [one for one in schema if one != "null"]
        return None if value is None or not kinds else _default(kinds[0], value, named)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "float" | "double":
            return float(value)
        case "array":
            return [_default(schema["items"], one, named) for one in value]
        case "map":
            return {name: _default(schema["values"], one, named) for name, one in value.items()}
        case "record":
            fields = {
                one["name"]: (one["type"], value.get(one["name"], one.get("default"))) for one in schema["fields"]
            }
            return {name: _default(inner_type, one, named) for name, (inner_type, one) in fields.items()}
        case _ if kind in named and isinstance(schema, str):
            return _default(named[kind], value, named)
        case _:
            return value


def _with_defaults(schema: _Schema) -> Any:
    """The schema of a reader for the library, which uses the defaults of fields unchanged."""
    from fastavro import parse_schema  # noqa: PLC0415  as in `AvroFormat.decoder`

    named: dict[str, Any] = {}
    whole = parse_schema(_without_logical_types(schema.json), named)
    for record in named.values():
        for field in record.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)
    return whole


def _fingerprint(schema: Any) -> bytes:
    from fastavro.schema import fingerprint, to_parsing_canonical_form  # noqa: PLC0415  as in `AvroFormat.decoder`

    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _of_other_schema(body: bytes, header: bytes) -> Malformed:
    found, own = body[len(_SINGLE_OBJECT) : _HEADER_BYTES].hex(), header[len(_SINGLE_OBJECT) :].hex()
    return Malformed(f"names the schema of fingerprint {found}, the fingerprint of the step's schema is {own}")


class _Value(NamedTuple):
    """The type of a value in Spark's DDL, and how to convert what the library reads; `None` if it stays as it is."""

    ddl: str
    convert: Convert | None = None


class _Columns:
    """Finds the types of columns."""

    def __init__(self, named: Mapping[str, Any], setting: str) -> None:
        self._named = named
        self._setting = setting
        self._fields = Fields()

    def fields(self, schema: Any, path: str, around: tuple[str, ...]) -> dict[str, _Value]:
        """The fields of a record; `around` are the names of the records around it."""
        name = schema["name"]
        if name in around:
            raise contains_itself(self._setting, path, name)
        self._fields.check(self._setting, path, [one["name"] for one in schema["fields"]])
        if not schema["fields"]:
            raise no_column(self._setting, path, f"is of the record {quoted(name)} without fields")
        return {
            one["name"]: self._value(one["type"], inner(path, one["name"]), (*around, name)) for one in schema["fields"]
        }

    def _value(self, schema: Any, path: str, around: tuple[str, ...]) -> _Value:  # noqa: PLR0911  as above
        if isinstance(schema, list):
            return self._union(schema, path, around)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(schema, dict) and (logical := _LOGICAL.get((kind, schema.get("logicalType", "")))):
            return logical(schema, path, self._setting)
        if kind in _PRIMITIVES:
            return _Value(_PRIMITIVES[kind])
        match kind:
            case "record" | "error":
                fields = self.fields(schema, path, around)
                return _Value(struct({name: value.ddl for name, value in fields.items()}), _of_record(fields))
            case "enum":
                return _Value("STRING")
            case "fixed":
                return _Value("BINARY")
            case "array":
                element = self._value(schema["items"], path, around)
                return _Value(f"ARRAY<{element.ddl}>", _of_array(element.convert))
            case "map":
                element = self._value(schema["values"], path, around)
                return _Value(f"MAP<STRING, {element.ddl}>", _of_map(element.convert))
            case _:
                return self._value(self._named[kind], path, around)

    def _union(self, branches: list[Any], path: str, around: tuple[str, ...]) -> _Value:
        others = [one for one in branches if one not in ("null", {"type": "null"})]
        if len(others) != 1:
            kinds = ", ".join(str(one if isinstance(one, str) else one.get("name", one["type"])) for one in others)
            raise no_column(
                self._setting, path, f"is a union of {kinds or 'null alone'}", "Use a union of null and one type"
            )
        value = self._value(others[0], path, around)
        return _Value(value.ddl, _if_any(value.convert))


def _of_record(fields: Mapping[str, _Value]) -> Convert | None:
    converts = [(name, value.convert) for name, value in fields.items() if value.convert is not None]
    if not converts:
        return None

    def convert(values: Any) -> Any:
        made = dict(values)
        name = ""
        try:
            for name, one in converts:
                made[name] = one(made[name])
        except Malformed as error:
            error.add(name)
            raise
        return made

    return convert


def _of_array(element: Convert | None) -> Convert | None:
    return None if element is None else lambda values: [element(one) for one in values]


def _of_map(element: Convert | None) -> Convert:
    """Arrow takes a map as a list of its entries."""
    if element is None:
        return lambda values: list(values.items())
    return lambda values: [(name, element(one)) for name, one in values.items()]


def _if_any(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _decimal(schema: Any, path: str, setting: str) -> _Value:
    digits, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 1 <= digits <= _MOST_DIGITS:
        what = f"is a decimal of {digits} digits" if digits else "is a decimal without 'precision'"
        raise no_column(setting, path, what, f"A column has 1 to {_MOST_DIGITS} digits")
    if scale > digits:
        raise no_column(setting, path, f"is a decimal of {digits} digits with {scale} of them after the point")
    most = 10**digits

    def convert(value: bytes) -> Decimal:
        number = int.from_bytes(value, "big", signed=True)
        if abs(number) >= most:
            raise Malformed(f"has more than {digits} digits")
        return Decimal(number).scaleb(-scale, _EXACT)

    return _Value(f"DECIMAL({digits},{scale})", convert)


def _uuid(schema: Any, path: str, setting: str) -> _Value:
    if schema["size"] != 16:
        raise no_column(setting, path, f"is a uuid of {schema['size']} bytes", "A uuid has 16 bytes")
    return _Value("STRING", lambda value: str(UUID(bytes=value)))


def _duration(schema: Any, path: str, setting: str) -> _Value:
    if schema["size"] != 12:
        raise no_column(setting, path, f"is a duration of {schema['size']} bytes", "A duration has 12 bytes")
    ddl = struct(dict.fromkeys(_DURATION, "BIGINT"))
    return _Value(ddl, lambda value: dict(zip(_DURATION, packed.unpack("<3I", value), strict=True)))


def _milliseconds(value: int) -> int:
    """Microseconds."""
    made = value * 1000
    if not LEAST_LONG <= made <= MOST_LONG:
        raise Malformed(f"has {value} milliseconds, which no timestamp can be")
    return made


def _plain(ddl: str, convert: Convert | None = None) -> Callable[[Any, str, str], _Value]:
    return lambda schema, path, setting: _Value(ddl, convert)  # noqa: ARG005  as the other logical types


_LOGICAL: dict[tuple[str, str], Callable[[Any, str, str], _Value]] = {
    ("int", "date"): _plain("DATE"),
    ("long", "timestamp-millis"): _plain("TIMESTAMP", _milliseconds),
    ("long", "timestamp-micros"): _plain("TIMESTAMP"),
    ("long", "local-timestamp-millis"): _plain("TIMESTAMP_NTZ", _milliseconds),
    ("long", "local-timestamp-micros"): _plain("TIMESTAMP_NTZ"),
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("fixed", "uuid"): _uuid,
    ("fixed", "duration"): _duration,
}
"""Logical types by their base type. Any other logical type counts as its base type, as Avro demands. So do times of a
day, because Spark cannot do everything with its own type for them."""


class _Resolution:
    """Whether bodies of one schema can be read with another one, by the rules of Avro."""

    def __init__(self, writer: Mapping[str, Any], reader: Mapping[str, Any]) -> None:
        self._writer = writer
        self._reader = reader

    def why_not(self, writer: Any, reader: Any, path: str) -> str:
        """Why no body can be read; empty if some can. A branch of a union that cannot be read makes dead letters."""
        if isinstance(writer, list):
            reasons = [self.why_not(one, reader, path) for one in writer]
            return "" if "" in reasons else "; ".join(reasons[:1])
        if isinstance(reader, list):
            reasons = [self.why_not(writer, one, path) for one in reader]
            return "" if "" in reasons else "; ".join(reasons[-1:])
        writer, reader = self._whole(writer, self._writer), self._whole(reader, self._reader)
        return self._of_types(writer, reader, path)

    def _whole(self, schema: Any, named: Mapping[str, Any]) -> Any:
        if isinstance(schema, str):
            return named.get(schema, {"type": schema})
        return schema

    def _of_types(self, writer: Any, reader: Any, path: str) -> str:  # noqa: PLR0911  a case for each kind of type
        kinds = writer["type"], reader["type"]
        place = f"field {quoted(path)}" if path else "the record"
        if kinds[0] != kinds[1]:
            return "" if kinds in _PROMOTED else f"{place} is {kinds[0]} there, {kinds[1]} here"
        logical = [_logical(one) for one in (writer, reader)]
        if logical[0] != logical[1] and all(logical):
            return f"{place} is {logical[0]} there, {logical[1]} here"
        match kinds[0]:
            case "array":
                return self.why_not(writer["items"], reader["items"], path)
            case "map":
                return self.why_not(writer["values"], reader["values"], path)
            case "fixed" if writer["size"] != reader["size"]:
                return f"{place} has {writer['size']} bytes there, {reader['size']} here"
            case "record" | "enum" | "fixed" if not _same_name(writer, reader):
                return f"{place} is named {writer['name']} there, {reader['name']} here"
            case "record":
                return self._of_records(writer, reader, path)
        return ""

    def _of_records(self, writer: Any, reader: Any, path: str) -> str:
        written = {one["name"]: one for one in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            place = inner(path, field["name"])
            if found is None and "default" not in field:
                return f"field {quoted(place)} is missing and has no default"
            if found is not None and (why := self.why_not(found["type"], field["type"], place)):
                return why
        return ""


def _logical(schema: Any) -> str:
    name = schema.get("logicalType", "")
    return f"decimal({schema.get('precision')},{schema.get('scale', 0)})" if name == "decimal" else str(name)


def _same_name(writer: Any, reader: Any) -> bool:
    aliases = reader.get("aliases", ())
    names = writer["name"], writer["name"].rpartition(".")[2]
    return names[1] == reader["name"].rpartition(".")[2] or any(name in aliases for name in names)
