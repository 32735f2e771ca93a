"""Bodies that a schema of a registry describes: a zero byte, the id of the schema in four bytes, then the value.

Messages have the value as JSON, which monitors, pipelines and other brokers can read. No message is lost because of its
schema: a body that cannot be read stays as it is, and is marked. While the registry does not answer, or does not have a
schema, the message waits.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from connectors import avro
from connectors.avro_writer import encoder
from connectors.kafka.protobuf import codec
from connectors.kafka.registry import Schema, Schemas
from correlator.connector import mark
from correlator.events import CUT_FROM, Message

_HEAD = struct.Struct(">bI")
_MOST_KEPT = 1000
_AVRO, _JSON, _PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_Convert = Callable[[bytes], bytes]


class _Reader(NamedTuple):
    """How bodies with a schema are read; `problem` says why they cannot be."""

    kind: str
    decode: _Convert | None = None
    problem: str = ""


class BodyReader:
    """Reads the bodies of one receiver. One thread uses it.

    Args:
        schemas: of the registry.
    """

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._reader = lru_cache(_MOST_KEPT)(self._made)

    def read(self, message: Message) -> Message:
        """The message with its value as JSON. Raises `ConnectionLost` if the registry does not have its schema now."""
        body = message.body
        if not body or CUT_FROM in message.properties:
            return message
        if len(body) < _HEAD.size or body[0]:
            mark(message, "the body does not begin with the id of a schema")
            return message
        number = _HEAD.unpack_from(body)[1]
        reader = self._reader(number)
        if reader.decode is None:
            mark(message, f"schema {number} ({reader.kind}): {reader.problem}")
            return message
        try:
            value = reader.decode(body[_HEAD.size :])
        except Exception:  # noqa: BLE001  # whatever the reader of Avro stumbles over
            mark(message, f"schema {number} ({reader.kind}): the body does not fit it")
            return message
        return msgspec.structs.replace(message, body=value)

    def _made(self, number: int) -> _Reader:
        schema = self._schemas.of_id(number)
        files = self._schemas.files(schema) if schema.kind == _PROTOBUF else None
        try:
            return _Reader(schema.kind, _decoder(schema) if files is None else codec(*files).read)
        except avro.SchemaRefused as error:
            return _Reader(schema.kind, problem=str(error))
        except Exception:  # noqa: BLE001  # a registry may hold anything
            return _Reader(schema.kind, problem="it is malformed")


def _decoder(schema: Schema) -> _Convert:
    if schema.kind == _JSON:
        return _checked_json
    if schema.kind != _AVRO:
        raise avro.SchemaRefused("schemas of this kind are not read")
    if schema.uses:
        raise avro.SchemaRefused("schemas that use other schemas are not read")
    decode = avro.decoder(schema.definition)
    return lambda body: msgspec.json.encode(decode(body))


def _checked_json(body: bytes) -> bytes:
    msgspec.json.decode(body)
    return body


def body_writer(schema: Schema, schemas: Schemas) -> Callable[[bytes], bytes]:
    """A function that makes bodies with this schema of a registry from JSON. Raises `ConnectionLost`.

    It raises `ValueError` or `TypeError` if the JSON does not fit. Raises `ValueError` if the schema cannot be used.
    """
    head = _HEAD.pack(0, schema.id)
    files = schemas.files(schema) if schema.kind == _PROTOBUF else None
    encode = _usable(lambda: _encoder(schema) if files is None else codec(*files).write)

    def write(body: bytes) -> bytes:
        try:
            return head + encode(body)
        except (ValueError, TypeError):
            raise
        except Exception as error:  # whatever a library stumbles over
            raise ValueError(str(error)) from error

    return write


def _usable(make: Callable[[], _Convert]) -> _Convert:
    try:
        return make()
    except avro.SchemaRefused as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # a registry may hold anything
        raise ValueError(f"it is malformed: {error}") from error


def _encoder(schema: Schema) -> _Convert:
    if schema.kind == _JSON:
        return _checked_json
    if schema.kind != _AVRO:
        raise avro.SchemaRefused("schemas of this kind are not written")
    if schema.uses:
        raise avro.SchemaRefused("schemas that use other schemas are not written")
    encode = encoder(schema.definition)
    return lambda body: encode(msgspec.json.decode(body))
