"""Converts values of Protobuf to JSON and back, in Protobuf's own mapping.

A value begins with the path to its type in the file of the schema: a count of numbers, then the index of the type in
the file, of a type within it, and so on. A single zero stands for the first type.
"""

import base64
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_FIRST = b"\0"
_MOST_INDEXES = 100
_MOST_BITS = 64
_MAIN = "correlator/main.proto"
_OWN = re.compile(r"google/protobuf/[a-z_]+\.proto")
"""Names of the files of Protobuf itself, which no registry has."""


class File(NamedTuple):
    """A file of a schema: the name by which others import it, and a `FileDescriptorProto` in Base64."""

    name: str
    content: str


class Codec(NamedTuple):
    """Makes JSON from values, and values of the first type from JSON. Raises any exception for input
    that does not fit.
    """

    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def codec(main: str, used: Sequence[File]) -> Codec:
    """Make the codec of a schema. Raises any exception for malformed files.

    Args:
        main: the content of the file of the schema.
        used: the files that it imports, each after those that it imports itself.
    """
    from google.protobuf import descriptor_pool, json_format, message_factory  # noqa: PLC0415  # rarely needed

    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()
    for name, content in [*used, File(_MAIN, main)]:
        _add(pool, known, name, base64.b64decode(content))
    types = list(pool.FindFileByName(_MAIN).message_types_by_name.values())

    def read(value: bytes) -> bytes:
        (index, *within), begin = _place(value)
        its_type = types[index]
        for index in within:
            its_type = its_type.nested_types[index]
        message = message_factory.GetMessageClass(its_type)()
        message.ParseFromString(value[begin:])
        text: str = json_format.MessageToJson(
            message,
            indent=None,
            ensure_ascii=False,
            preserving_proto_field_name=True,
            unquote_int64_if_possible=True,
            descriptor_pool=pool,
        )
        return text.encode()

    def write(body: bytes) -> bytes:
        message = message_factory.GetMessageClass(types[0])()
        json_format.Parse(body, message, descriptor_pool=pool)
        return _FIRST + bytes(message.SerializeToString())

    return Codec(read, write)


def _add(pool: Any, known: set[str], name: str, content: bytes) -> None:
    """Add a file to a pool, after the files of Protobuf itself that it imports."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415

    known.add(name)
    proto = descriptor_pb2.FileDescriptorProto.FromString(content)
    proto.name = name
    for imported in proto.dependency:
        if imported not in known and _OWN.fullmatch(imported):
            module = importlib.import_module(imported.removesuffix(".proto").replace("/", ".") + "_pb2")
            _add(pool, known, imported, module.DESCRIPTOR.serialized_pb)
    pool.Add(proto)


def _place(value: bytes) -> tuple[list[int], int]:
    """Return the path to the type, and where the message begins. Raises `ValueError` or `IndexError`."""
    count, at = _number(value, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise ValueError(f"{count} is not a number of indexes")
    indexes = []
    for _ in range(count):
        index, at = _number(value, at)
        if index < 0:
            raise ValueError(f"{index} is not an index")
        indexes.append(index)
    return indexes or [0], at


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Read a whole number with a sign, 7 bits in each byte; return it with its end. Raises `ValueError`
    or `IndexError`.
    """
    number = shift = 0
    while shift < _MOST_BITS:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("a number does not end")
