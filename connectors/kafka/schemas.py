"""Bodies that a schema of a registry describes: a zero byte, the id of the schema in four bytes, then the value.

Messages have the value as JSON, which monitors, pipelines and other brokers can read. No message is lost because of its
schema: a body that cannot be read stays as it is, and is marked. While the registry does not answer, the message waits.
If the registry answers that it does not have a schema, the message waits for a while, and is marked afterwards: anybody
who may write to a topic can send the id of a schema that does not exist.
"""

import math
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from connectors import avro
from connectors.avro_writer import encoder
from connectors.kafka.protobuf import codec
from connectors.kafka.registry import MISSING, Schema, Schemas
from correlator.connector import mark
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Message

_HEAD = struct.Struct(">bI")
_MOST_ID = 2**31 - 1
"""Largest id of a schema. Registries treat a larger one as a wrong request."""
_WAIT_S = 60.0
"""Seconds for which a message waits for a schema that the registry does not have."""
_BETWEEN_S = 600.0
"""Seconds after such a wait in which no message waits: otherwise messages with ever new ids could stop a partition."""
_ASK_AGAIN_S = 1.0
_MOST_KEPT = 1000
_AVRO, _JSON, _PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_Convert = Callable[[bytes], bytes]


class _Reader(NamedTuple):
    """A function that reads bodies with a schema; `problem` tells why they cannot be read."""

    kind: str
    decode: _Convert | None = None
    problem: str = ""


class _Missing(NamedTuple):
    """A schema that the registry does not have: since when, when it was asked last, whether messages wait for it."""

    since_s: float
    asked_s: float
    waits: bool
    why: str


class BodyReader:
    """Reads the bodies of one receiver, also after a reconnect. One thread uses it.

    Args:
        schemas: the schemas of the registry.
        clock: returns the time in seconds of a clock that does not go back.
    """

    def __init__(self, schemas: Schemas, clock: Callable[[], float] = time.monotonic) -> None:
        self._schemas = schemas
        self._clock = clock
        self._reader = lru_cache(_MOST_KEPT)(self._made)
        self._missing: dict[int, _Missing] = {}
        self._in_vain_s = -math.inf

    def read(self, message: Message) -> Message:
        """Return the message with its value as JSON; return the message itself, marked, if its body cannot be read.

        Raises `ConnectionLost`: E7151 or another code while the registry does not answer correctly; E7150 if it does
        not have the schema now. After a minute of E7150 the message is marked. For the next ten minutes, messages with
        other missing schemas are marked at once.
        """
        body = message.body
        if not body or CUT_FROM in message.properties:
            return message
        number = _HEAD.unpack_from(body)[1] if len(body) >= _HEAD.size and not body[0] else None
        if number is None or number > _MOST_ID:
            mark(message, "the body does not begin with the id of a schema")
            return message
        reader = self._found(number)
        if isinstance(reader, _Missing):
            mark(message, reader.why)
            return message
        if reader.decode is None:
            mark(message, f"schema {number} ({reader.kind}): {reader.problem}")
            return message
        try:
            value = reader.decode(body[_HEAD.size :])
        except Exception:  # noqa: BLE001  # the Avro reader may raise anything for a wrong body
            mark(message, f"schema {number} ({reader.kind}): the body does not fit it")
            return message
        return msgspec.structs.replace(message, body=value)

    def _found(self, number: int) -> _Reader | _Missing:
        """Return how to read bodies with a schema, or a missing schema for which messages no longer
        wait; raises as `read`.
        """
        before = self._missing.get(number)
        if before is not None and not before.waits and self._clock() < before.asked_s + _ASK_AGAIN_S:
            return before
        try:
            reader = self._reader(number)
        except ConnectionLost as error:
            missing = self._missing_now(number, before, error)
            if missing is None or missing.waits:
                raise
            return missing
        if before is not None:
            del self._missing[number]
        return reader

    def _missing_now(self, number: int, before: _Missing | None, error: ConnectionLost) -> _Missing | None:
        """Note that the registry does not have a schema; return `None` if the error means something else."""
        self._missing.pop(number, None)
        if error.code != MISSING:
            return None
        now_s = self._clock()
        since_s = now_s if before is None else before.since_s
        waits = now_s < since_s + _WAIT_S and now_s >= self._in_vain_s + _BETWEEN_S
        if before is not None and before.waits and not waits:
            self._in_vain_s = now_s
        if len(self._missing) >= _MOST_KEPT:
            del self._missing[next(iter(self._missing))]
        self._missing[number] = missing = _Missing(since_s, now_s, waits, f"{error.code}: {error.what}")
        return missing

    def _made(self, number: int) -> _Reader:
        schema = self._schemas.of_id(number)
        files = self._schemas.files(schema) if schema.kind == _PROTOBUF else None
        try:
            return _Reader(schema.kind, _decoder(schema) if files is None else codec(*files).read)
        except avro.SchemaRefused as error:
            return _Reader(schema.kind, problem=str(error))
        except Exception:  # noqa: BLE001  # a registry may contain anything
            return _Reader(schema.kind, problem="it is malformed")


def _decoder(schema: Schema) -> _Convert:
    if _is_json(schema, "read"):
        return _checked_json
    decode = avro.decoder(schema.definition)
    return lambda body: msgspec.json.encode(decode(body))


def _is_json(schema: Schema, done: str) -> bool:
    """Return whether it is a JSON schema; otherwise it is an Avro schema. Raises `SchemaRefused` if it
    cannot be used.
    """
    if schema.kind == _JSON:
        return True
    if schema.kind != _AVRO:
        raise avro.SchemaRefused(f"schemas of this kind are not {done}")
    if schema.uses:
        raise avro.SchemaRefused(f"schemas that use other schemas are not {done}")
    return False


def _checked_json(body: bytes) -> bytes:
    msgspec.json.decode(body)
    return body


def body_writer(schema: Schema, schemas: Schemas) -> Callable[[bytes], bytes]:
    """Return a function that makes bodies with this schema of a registry from JSON. Raises `ConnectionLost`.

    The function raises `ValueError` or `TypeError` if the JSON does not fit. Raises `ValueError` if the schema cannot
    be used.
    """
    head = _HEAD.pack(0, schema.id)
    files = schemas.files(schema) if schema.kind == _PROTOBUF else None
    encode = _usable(lambda: _encoder(schema) if files is None else codec(*files).write)

    def write(body: bytes) -> bytes:
        try:
            return head + encode(body)
        except (ValueError, TypeError):
            raise
        except Exception as error:  # a library may raise anything
            raise ValueError(str(error)) from error

    return write


def _usable(make: Callable[[], _Convert]) -> _Convert:
    try:
        return make()
    except avro.SchemaRefused as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # a registry may contain anything
        raise ValueError(f"it is malformed: {error}") from error


def _encoder(schema: Schema) -> _Convert:
    if _is_json(schema, "written"):
        return _checked_json
    encode = encoder(schema.definition)
    return lambda body: encode(msgspec.json.decode(body))
