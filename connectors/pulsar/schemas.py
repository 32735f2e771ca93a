"""What Pulsar's registry says of the bodies of messages: with it they become texts, those of records JSON.

A Java client of JMS makes a map of a record, which only Java reads. JSON holds the same, nested, and monitors,
pipelines and whatever a message is sent on to read it at once.

A message is never lost for its schema, and never asked for again: what cannot be read stays as it is, and is named.
"""

import base64
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pulsar

from connectors.pulsar import avro, rest
from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.link import PulsarLink

MOST_KEPT = 1000
"""Schemas of one consumer; of more, the one that was needed longest ago is asked for again."""

_STRING, _JSON, _AVRO, _KEY_VALUE = "STRING", "JSON", "AVRO", "KEY_VALUE"
_NONE = frozenset({"NONE", "BYTES"})
"""Kinds that say nothing of a body."""
_LENGTH = struct.Struct(">i")
_NULL_LENGTH = -1

_Decode = Callable[[bytes], Any]
"""Bytes as something that JSON can hold. Raises anything where they do not fit."""
_Read = Callable[[bytes | None, pulsar.Message], bytes | None]
"""The text of a message with this body; `None` is a null value. Raises anything where it does not fit."""


class DecodedBody(msgspec.Struct, frozen=True, gc=False):
    """What a message holds.

    Attributes:
        body: `None` is a null value.
        is_text: whether its schema has made a text of it.
        unreadable: what could not be read, so that the body is that of Pulsar; "" for nothing.
    """

    body: bytes | None
    is_text: bool = False
    unreadable: str = ""


class _Schema(NamedTuple):
    """One version of a topic's schema; `problem` says why it cannot be applied, `read` is `None` for no need to.

    `kind` is "" where the registry does not tell it.
    """

    kind: str
    read: _Read | None = None
    problem: str = ""


class Schemas:
    """Those of the messages of one consumer. Owned by the thread of its source.

    A message names the version of its topic's schema that it was written with, and is read with that one. Each is asked
    for once.

    Args:
        where: the receiver, for messages.
        broker: how its REST interface is spoken to, which alone tells what pairs are made of.
        link: the client.
    """

    def __init__(self, where: str, broker: PulsarBroker, link: PulsarLink) -> None:
        self._where = where
        self._broker = broker
        self._link = link
        self._schema = lru_cache(MOST_KEPT)(self._asked)

    def shown(self, message: pulsar.Message, ledger: int) -> DecodedBody:
        """What a message of this ledger holds, by its schema. Raises `ConnectionLost`."""
        body = body_of(message)
        version = message._message.int_schema_version()  # noqa: SLF001  # the public one fails from 128 on
        if version < 0:
            return DecodedBody(body)
        schema = self._schema(message.topic_name(), version, ledger)
        name = f"schema {version} ({schema.kind})" if schema.kind else f"schema {version}"
        if schema.problem:
            return DecodedBody(body, unreadable=f"{name}: {schema.problem}")
        if schema.read is None:
            return DecodedBody(body)
        try:
            return DecodedBody(schema.read(body, message), is_text=True)
        except Exception:  # noqa: BLE001  # whatever the reader of Avro stumbles over
            return DecodedBody(body, unreadable=f"{name}: the body does not fit it")

    def _asked(self, topic: str, version: int, _ledger: int) -> _Schema:
        """What the registry has. Of a topic that was deleted and made again versions are others, and so are ledgers.

        Nothing is an answer like others: what it does not have now it has not later. Raises `ConnectionLost`.
        """
        told = self._link.schema(topic, version)
        if told is None:
            return _Schema("", problem="the registry does not have it")
        kind = _kind(told.schema_type())
        if kind in _NONE:
            return _Schema(kind)
        if kind != _KEY_VALUE:
            return _made(kind, lambda: _reader(kind, told.schema()))
        if not self._broker.web_service_url:
            return _Schema(kind, problem="web_service_url is not set")
        pair = rest.ask_schema(self._where, self._broker, topic, version)
        return _made(kind, lambda: _reader_of_pairs(pair))


def body_of(message: pulsar.Message) -> bytes | None:
    """As Pulsar carries it; `None` is a null value."""
    return None if message.has_null_value() else message.data()


def _kind(its_type: pulsar._pulsar.SchemaType) -> str:
    """As the registry calls it; the client has no names for what came later, as `BOOLEAN`."""
    return f"type {int(its_type)}" if its_type.name == "???" else str(its_type.name)


def _made(kind: str, make: Callable[[], _Read]) -> _Schema:
    try:
        return _Schema(kind, make())
    except avro.SchemaRefused as error:
        return _Schema(kind, problem=str(error))
    except Exception:  # noqa: BLE001  # a registry may hold anything
        return _Schema(kind, problem="it is malformed")


def _reader(kind: str, definition: str) -> _Read:
    decode = _decoder(kind, definition)

    def read(body: bytes | None, _message: pulsar.Message) -> bytes | None:
        if body is None:
            return None
        value = decode(body)
        return msgspec.json.encode(value) if kind == _AVRO else body

    return read


def _decoder(kind: str, definition: str) -> _Decode:
    if kind == _STRING:
        return bytes.decode
    if kind == _JSON:
        return _checked_json
    if kind == _AVRO:
        return avro.decoder(definition)
    raise avro.SchemaRefused("schemas of this kind are not read")


def _checked_json(body: bytes) -> msgspec.Raw:
    body.decode()
    return msgspec.json.decode(body, type=msgspec.Raw)


# --- pairs ---


def _reader_of_pairs(told: Any) -> _Read:
    """As the REST interface tells it."""
    properties, parts = told["properties"], json.loads(told["data"])
    key, value = (_decoder(properties[f"{part}.schema.type"], json.dumps(parts[part])) for part in ("key", "value"))
    split = {"INLINE": _inline, "SEPARATED": _separated}[properties["kv.encoding.type"]]

    def read(body: bytes | None, message: pulsar.Message) -> bytes | None:
        pair = split(body, message)
        if pair is None:
            return None
        its_key, its_value = pair
        return msgspec.json.encode({"key": _optional(key, its_key), "value": _optional(value, its_value)})

    return read


def _optional(decode: _Decode, content: bytes | None) -> Any:
    return None if content is None else decode(content)


_Pair = tuple[bytes | None, bytes | None]


def _inline(body: bytes | None, _message: pulsar.Message) -> _Pair | None:
    return None if body is None else taken_apart(body)


def _separated(body: bytes | None, message: pulsar.Message) -> _Pair:
    """The key is that of the message, which is empty where there is none."""
    key = message.partition_key()
    return base64.b64decode(key, validate=True) if key else None, body


def taken_apart(body: bytes) -> _Pair:
    """Key and value of a body that holds both, each behind its length. Raises `ValueError` for any other."""
    try:
        key, behind = _counted(body, 0)
        value, end = _counted(body, behind)
    except struct.error as error:
        raise ValueError("it ends before a length") from error
    if end != len(body):
        raise ValueError("it does not end where the value does")
    return key, value


def _counted(body: bytes, at: int) -> tuple[bytes | None, int]:
    """Bytes behind their length, and where they end."""
    (length,) = _LENGTH.unpack_from(body, at)
    begin = at + _LENGTH.size
    if length == _NULL_LENGTH:
        return None, begin
    if length < 0:
        raise ValueError(f"{length} is no length")
    return body[begin : begin + length], begin + length
