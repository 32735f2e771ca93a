"""Decodes bodies by the schemas in Pulsar's registry: they become text, and records become JSON.

The Java client of JMS turns records into maps, which only Java can read. JSON has the same content, and monitors,
pipelines and other brokers can read it.

No message is lost or redelivered because of its schema: a body that cannot be read stays as it is, and is marked.
"""

import base64
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pulsar

from connectors import avro
from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.link import PulsarLink

MOST_KEPT = 1000
"""Largest number of cached schemas of one consumer. The least recently used one is evicted."""

_STRING, _JSON, _AVRO, _KEY_VALUE = "STRING", "JSON", "AVRO", "KEY_VALUE"
_NONE = frozenset({"NONE", "BYTES"})
"""Kinds of schemas that do not describe the body."""
_LENGTH = struct.Struct(">i")
_NULL_LENGTH = -1

_Decode = Callable[[bytes], Any]
"""Decodes bytes to a value that JSON can hold. Raises any exception if they do not fit."""
_Read = Callable[[bytes | None, pulsar.Message], bytes | None]
"""Makes the text of a message with this body; `None` means a null value. Raises any exception if the
body does not fit.
"""


class DecodedBody(msgspec.Struct, frozen=True, gc=False):
    """The decoded body of a message.

    Attributes:
        body: the decoded body; `None` means a null value.
        is_text: whether the body is a text that was made with the schema.
        unreadable: why the body could not be decoded and is the original one; "" if it was decoded.
    """

    body: bytes | None
    is_text: bool = False
    unreadable: str = ""


class _Schema(NamedTuple):
    """One version of a topic's schema.

    `problem` tells why it cannot be applied. `read` is `None` if there is nothing to decode. `kind` is "" if unknown.
    """

    kind: str
    read: _Read | None = None
    problem: str = ""


class Schemas:
    """The schemas of the messages of one consumer. The thread of its source owns them.

    A message names the version of its topic's schema with which it was written. The registry is asked for each version
    once.

    Args:
        where: the receiver, for messages.
        broker: the options of the connection; only its REST interface knows the schemas of key-value pairs.
        link: the client.
    """

    def __init__(self, where: str, broker: PulsarBroker, link: PulsarLink) -> None:
        self._where = where
        self._broker = broker
        self._link = link
        self._schema = lru_cache(MOST_KEPT)(self._asked)

    def shown(self, message: pulsar.Message, ledger: int) -> DecodedBody:
        """Decode the body of a message of this ledger with its schema. Raises `ConnectionLost`."""
        body = body_of(message)
        version = message._message.int_schema_version()  # noqa: SLF001  # the public method fails from 128 on
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
        except Exception:  # noqa: BLE001  # the Avro reader may raise anything for a wrong body
            return DecodedBody(body, unreadable=f"{name}: the body does not fit it")

    def _asked(self, topic: str, version: int, _ledger: int) -> _Schema:
        """Return the schema from the registry. Raises `ConnectionLost`.

        `_ledger` is part of the cache key: if a topic was deleted and made again, it has other ledgers and versions. A
        missing version is cached, too, since the registry never adds it later.
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
    """Return the original body of a message; `None` means a null value."""
    return None if message.has_null_value() else message.data()


def _kind(its_type: pulsar._pulsar.SchemaType) -> str:
    """Return the registry's name of a kind of schema; the client has no names for newer kinds, such as `BOOLEAN`."""
    return f"type {int(its_type)}" if its_type.name == "???" else str(its_type.name)


def _made(kind: str, make: Callable[[], _Read]) -> _Schema:
    try:
        return _Schema(kind, make())
    except avro.SchemaRefused as error:
        return _Schema(kind, problem=str(error))
    except Exception:  # noqa: BLE001  # a registry may contain anything
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
    """Return a reader for key-value pairs with this schema from the REST interface."""
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
    """Return the key of the message, which is empty if there is none, and its body as the value."""
    key = message.partition_key()
    return base64.b64decode(key, validate=True) if key else None, body


def taken_apart(body: bytes) -> _Pair:
    """Return key and value of a body that contains both, each after its length. Raises `ValueError` for
    any other body.
    """
    try:
        key, behind = _counted(body, 0)
        value, end = _counted(body, behind)
    except struct.error as error:
        raise ValueError("it ends before a length") from error
    if end != len(body):
        raise ValueError("it does not end where the value does")
    return key, value


def _counted(body: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes that follow their length, and the offset after them."""
    (length,) = _LENGTH.unpack_from(body, at)
    begin = at + _LENGTH.size
    if length == _NULL_LENGTH:
        return None, begin
    if length < 0:
        raise ValueError(f"{length} is not a length")
    return body[begin : begin + length], begin + length
