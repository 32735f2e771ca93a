"""The format `protobuf` of a `decode` step: a message type as columns, and bodies as their values. Knows neither Spark
nor Arrow.

The types come from a descriptor set, which `protoc --include_imports --descriptor_set_out=FILE` writes. From it the
library `protobuf` makes the classes of the messages, and it reads the bodies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, quoted
from correlator.pipeline.binary import (
    MOST_ELEMENTS,
    Fields,
    Malformed,
    inner,
    missing_package,
    no_column,
    struct,
)

_TYPES = {
    "double": "DOUBLE",
    "float": "FLOAT",
    "int64": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "int32": "INT",
    "fixed64": "DECIMAL(20,0)",
    "fixed32": "BIGINT",
    "bool": "BOOLEAN",
    "string": "STRING",
    "bytes": "BINARY",
    "uint32": "BIGINT",
    "enum": "STRING",
    "sfixed32": "INT",
    "sfixed64": "BIGINT",
    "sint32": "INT",
    "sint64": "BIGINT",
}
"""The type of a column for each type of a field; the keys are the names in protobuf files."""
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The seconds since 1970 that a Timestamp may have: the years 1 to 9999."""
_MOST_SECONDS = 315_576_000_000
"""The largest number of seconds of a Duration: 10,000 years."""
_BILLION = 1_000_000_000
_MADE_BY = "protoc --include_imports --descriptor_set_out=FILE makes one"
_MOST_SHOWN = 20
_MOST_MISSING = 5


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Bodies that are one protobuf message each.

    Attributes:
        descriptors: a serialized `FileDescriptorSet`.
        message: the full name of the type of the messages.
    """

    descriptors: bytes
    message: str

    def columns(self) -> Mapping[str, str]:
        """The columns with their types in Spark's DDL."""
        return {name: field.ddl for name, field in self._fields(self._class.DESCRIPTOR).items()}

    def decoder(self) -> Callable[[bytes], Mapping[str, Any]]:
        """Make the function that turns a body into the values of the columns."""
        from google.protobuf.message import DecodeError  # noqa: PLC0415  only pipelines with this format need it

        cls = self._class
        fields = self._fields(cls.DESCRIPTOR)

        def decode(body: bytes) -> Mapping[str, Any]:
            message = cls()
            try:
                message.ParseFromString(body)
            except DecodeError as error:
                raise Malformed(f"is no message: {str(error).rpartition(': ')[2]}") from error
            if not message.IsInitialized():
                missing = message.FindInitializationErrors()
                raise Malformed(f"has no required field {', '.join(missing[:_MOST_MISSING])}")
            return _values(message, fields, _Count())

        return decode

    @property
    def _class(self) -> Any:
        try:
            from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415  as above
            from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
            from google.protobuf.message import DecodeError  # noqa: PLC0415
            from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise missing_package("format", "protobuf") from error
        files = FileDescriptorSet()
        try:
            files.ParseFromString(self.descriptors)
        except DecodeError as error:
            raise ConfigError("E1529", "descriptor", "is no descriptor set", _MADE_BY) from error
        pool = DescriptorPool()
        _add(pool, files.file)
        names = [name for file in files.file for name in _names(file.package, file.message_type)]
        if self.message not in names:
            what = f"the descriptor has no message {quoted(self.message)}"
            raise ConfigError("E1529", "message", what, _known(names), did_you_mean(self.message, names))
        return GetMessageClass(pool.FindMessageTypeByName(self.message))

    def _fields(self, descriptor: Any) -> "dict[str, _Field]":
        return _Columns().fields(descriptor, "", ())


def _add(pool: Any, files: Sequence[Any]) -> None:
    """Add the files of a descriptor set, each after the files that it imports; raises `ConfigError` E1529."""
    known = {file.name for file in files}
    for file in files:
        missing = next((name for name in file.dependency if name not in known), None)
        if missing is not None:
            what = f"{file.name} imports {quoted(missing)}, which is not in it"
            raise ConfigError("E1529", "descriptor", what, "", _MADE_BY)
    waiting, added = list(files), set[str]()
    while waiting:
        ready = [file for file in waiting if added.issuperset(file.dependency)]
        if not ready:
            raise ConfigError("E1529", "descriptor", f"{waiting[0].name} imports itself", _MADE_BY)
        for file in ready:
            try:
                pool.Add(file)
            except TypeError as error:
                raise ConfigError("E1529", "descriptor", f"{file.name}: {error}", _MADE_BY) from error
        added.update(file.name for file in ready)
        waiting = [file for file in waiting if file.name not in added]


def _names(package: str, messages: Sequence[Any]) -> list[str]:
    """The full names of messages and of the messages within them."""
    found = []
    for message in messages:
        name = f"{package}.{message.name}" if package else message.name
        found += [name, *_names(name, message.nested_type)]
    return found


def _known(names: Sequence[str]) -> str:
    own = [name for name in names if not name.startswith("google.protobuf.")] or list(names)
    more = f" and {len(own) - _MOST_SHOWN} more" if len(own) > _MOST_SHOWN else ""
    return f"Messages: {', '.join(own[:_MOST_SHOWN])}{more}" if own else "It has no messages"


class _Count:
    """Counts the elements of repeated fields and maps of one body."""

    def __init__(self) -> None:
        self._left = MOST_ELEMENTS

    def add(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise Malformed(f"comes after more than {MOST_ELEMENTS} elements")


_Read = Callable[[Any, _Count], Any]
"""Turns a value of the library into the value of a column."""


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        ddl: its type in Spark's DDL.
        read: makes its value; for a field with presence, called only if the field is set.
        has_presence: whether a message shows that the field is not set; the column is NULL in this case.
    """

    ddl: str
    read: _Read
    has_presence: bool


def _values(message: Any, fields: Mapping[str, _Field], count: _Count) -> dict[str, Any]:
    """The values of the fields of a message."""
    made, name = {}, ""
    try:
        for name, field in fields.items():
            there = not field.has_presence or message.HasField(name)
            made[name] = field.read(getattr(message, name), count) if there else None
    except Malformed as error:
        error.add(name)
        raise
    return made


class _Columns:
    """Finds the fields of messages."""

    def __init__(self) -> None:
        self._fields = Fields()

    def fields(self, descriptor: Any, path: str, around: tuple[str, ...]) -> dict[str, _Field]:
        """The fields of a message type; `around` are the names of the types around it."""
        name = descriptor.full_name
        if name in around:
            raise no_column("message", path, f"is of the recursive type {quoted(name)}")
        if not descriptor.fields:
            raise no_column("message", path, f"is of the message {quoted(name)} without fields")
        self._fields.check("message", path, [one.name for one in descriptor.fields])
        return {one.name: self._field(one, inner(path, one.name), (*around, name)) for one in descriptor.fields}

    def _field(self, field: Any, path: str, around: tuple[str, ...]) -> _Field:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._map(field, path, around)
        ddl, read = self._single(field, path, around)
        if field.is_repeated:
            return _Field(f"ARRAY<{ddl}>", _elements(read), has_presence=False)
        return _Field(ddl, read, field.has_presence)

    def _map(self, field: Any, path: str, around: tuple[str, ...]) -> _Field:
        names = field.message_type.fields_by_name
        key_ddl, key = self._single(names["key"], path, around)
        ddl, value = self._single(names["value"], path, around)

        def read(entries: Any, count: _Count) -> Any:
            count.add(len(entries))
            # The library has no order among the entries.
            keys = sorted((key(name, count), name) for name in entries)
            return [(made, value(entries[name], count)) for made, name in keys]

        return _Field(f"MAP<{key_ddl}, {ddl}>", read, has_presence=False)

    def _single(self, field: Any, path: str, around: tuple[str, ...]) -> tuple[str, _Read]:
        """The type of one value of a field, and how to make it."""
        if field.message_type is not None:
            return self._message(field.message_type, path, around)
        kind = _kind(field)
        if kind == "enum":
            symbols: dict[int, str] = {}
            for one in field.enum_type.values:
                symbols.setdefault(one.number, one.name)
            return _TYPES[kind], lambda value, count: symbols.get(value, str(value))  # noqa: ARG005  as all readers
        return _TYPES[kind], _READS.get(kind, _same)

    def _message(self, descriptor: Any, path: str, around: tuple[str, ...]) -> tuple[str, _Read]:
        name = descriptor.full_name
        if name == _TIMESTAMP:
            return "TIMESTAMP", _timestamp
        if name == _DURATION:
            return "BIGINT", _duration
        if name in _WRAPPERS:
            ddl, read = self._single(descriptor.fields_by_name["value"], path, around)
            return ddl, lambda message, count: read(message.value, count)
        fields = self.fields(descriptor, path, around)
        ddl = struct({name: field.ddl for name, field in fields.items()})
        return ddl, lambda message, count: _values(message, fields, count)


def _kind(field: Any) -> str:
    """The name of the type of a field in a protobuf file."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto  # noqa: PLC0415  as in `ProtobufFormat`

    name: str = FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _same(value: Any, count: _Count) -> Any:
    del count
    return value


def _number(value: int, count: _Count) -> Decimal:
    del count
    return Decimal(value)


def _text(value: str | bytes, count: _Count) -> str:
    """Return a text. The library checks only texts of proto3, and returns a text of proto2 that is not UTF-8 as
    bytes.
    """
    del count
    if isinstance(value, bytes):
        raise Malformed("is not UTF-8")
    return value


_READS: dict[str, _Read] = {"uint64": _number, "fixed64": _number, "string": _text}
"""How to make the values of the types for which the values of the library are not suitable."""


def _elements(read: _Read) -> _Read:
    def elements(values: Any, count: _Count) -> Any:
        count.add(len(values))
        return [read(one, count) for one in values]

    return elements


def _timestamp(message: Any, count: _Count) -> int:
    """Microseconds since 1970."""
    del count
    if not (_FIRST_SECOND <= message.seconds <= _LAST_SECOND and 0 <= message.nanos < _BILLION):
        raise Malformed(f"has {message.seconds} seconds and {message.nanos} nanoseconds, which no Timestamp may have")
    return int(message.seconds * 1_000_000 + message.nanos // 1000)


def _duration(message: Any, count: _Count) -> int:
    """Microseconds."""
    del count
    seconds, nanos = int(message.seconds), int(message.nanos)
    if abs(seconds) > _MOST_SECONDS or abs(nanos) >= _BILLION or seconds * nanos < 0:
        raise Malformed(f"has {seconds} seconds and {nanos} nanoseconds, which no Duration may have")
    return seconds * 1_000_000 + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
