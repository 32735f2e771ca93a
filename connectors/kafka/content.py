"""Converts messages to records of Kafka, and back (docs/kafka.md).

A property becomes a header of the record with the same name. Headers of Kafka contain bytes, which most programs read
as texts; so the header `correlator-types` names the types of values that are not texts. The standard headers of a
message have names that begin with `correlator-`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import cast

import confluent_kafka as kafka
import msgspec

from correlator.connector import readable_all
from correlator.events import (
    CUT_FROM,
    LONGEST_LIFE_MS,
    SOURCE_ID,
    UNIQUE_ID,
    Headers,
    Message,
    Outgoing,
    PropertyValue,
)

"""Properties that the default templates of unique ids use; the source sets them if a message does not have them."""
NULL = "kafka_null"
"""Property that is true if a record has no value, as a deletion in a compacted topic has; an empty
value is not the same.
"""
KEY = "kafka_key"
"""Property with the key as bytes if it is not text; `Message.key` then has escapes in place of these bytes."""
PARTITION, OFFSET = "kafka_partition", "kafka_offset"
"""Properties with the position of a received record."""
_NOT_SENT = frozenset({NULL, KEY, PARTITION, OFFSET})
_MESSAGE_ID, _CORRELATION_ID = "correlator-message-id", "correlator-correlation-id"
_REPLY_TO, _TYPE, _PRIORITY = "correlator-reply-to", "correlator-type", "correlator-priority"
_EXPIRATION, _SEQUENCE, _TYPES = "correlator-expiration", "correlator-group-sequence", "correlator-types"
_RESERVED = frozenset({_MESSAGE_ID, _CORRELATION_ID, _REPLY_TO, _TYPE, _PRIORITY, _EXPIRATION, _SEQUENCE, _TYPES})
_LEFT_OUT = _NOT_SENT | _RESERVED
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_NO_HEADERS = Headers()
_AT_ONCE = 100
"""Number of records that are decoded together."""
_BATCH_BYTES, _RECORD_BYTES, _HEADER_BYTES = 61, 36, 10
"""Most bytes that the format adds to the bytes of a batch, of a record, and of a header."""
_MOST_NAMES = 1000
_NO_TIME = kafka.TIMESTAMP_NOT_AVAILABLE
_types = msgspec.json.Decoder(dict[str, str])


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message in the form that a producer sends.

    Attributes:
        at: position of the message in its batch.
        topic: name of the topic.
        key: `None` for a record without a key.
        value: `None` for a record without a value.
        headers: a value may be `None`.
        size: the most bytes of a batch that contains only this record, as the limit of a topic counts them.
    """

    at: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, str | bytes | None]
    size: int


def encode(
    outgoing: Outgoing, topic: str, now_ms: int, at: int = 0, write: Callable[[bytes], bytes] | None = None
) -> Record:
    """Encode a message.

    Args:
        outgoing: the message.
        topic: name of its topic.
        now_ms: the time of sending, in milliseconds since the epoch.
        at: position of the message in its batch.
        write: makes the value from the body, and may raise the same errors; `None` if the value is the body.

    Raises `ValueError`, `TypeError` or `AttributeError` if a record cannot hold the message.
    """
    message = outgoing.message
    if not isinstance(message.body, bytes):
        raise TypeError(f"the body is a {type(message.body).__name__} and must be bytes")
    headers = message.headers or _NO_HEADERS
    if headers.delivery_delay_ms:
        raise ValueError(
            f"Kafka cannot delay a message, which 'delivery_delay_ms: {headers.delivery_delay_ms}' asks for"
        )
    encoded: dict[str, str | bytes | None] = {}
    size = _add_properties(encoded, message.properties) if message.properties else 0
    if headers is not _NO_HEADERS or outgoing.message_id:
        size += _add_standard(encoded, headers, outgoing.message_id, now_ms)
    value: bytes | None = message.body
    if not message.body and message.properties.get(NULL) is True:
        value = None
    elif write is not None:
        value = write(message.body)
    key = None if message.key is None else _key(message.key, message.properties.get(KEY))
    size += _BATCH_BYTES + _RECORD_BYTES + len(key or b"") + len(value or b"")
    return Record(at, topic, key, value, encoded, size)


def _key(key: str, raw: PropertyValue) -> bytes:
    """Return the key of a record: the bytes of the property `KEY`, if they belong to the key of the message."""
    return raw if isinstance(raw, bytes) and _text(raw) == key else key.encode()


def _text(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


@lru_cache(_MOST_NAMES)  # most messages have the same few names
def _name_bytes(name: str) -> int:
    """Return how many bytes a header with this name needs beside its content. Raises `ValueError` if no header can have
    the name.
    """
    if "\0" in name:
        raise ValueError("the name of a property holds a zero byte")
    return len(name.encode()) + _HEADER_BYTES


def _add_properties(encoded: dict[str, str | bytes | None], properties: Mapping[str, PropertyValue]) -> int:
    """Add the headers of properties; return their size."""
    types: dict[str, str] = {}
    size = 0
    for name, value in properties.items():
        if name in _LEFT_OUT:
            continue
        size += _name_bytes(name)
        if type(value) is str:
            encoded[name] = content = value.encode()
        elif value is None:
            encoded[name] = None
            continue
        else:
            types[name], content = _written(value)
            encoded[name] = content
        size += len(content)
    if types:
        encoded[_TYPES] = content = msgspec.json.encode(types)
        size += _name_bytes(_TYPES) + len(content)
    return size


def _written(value: bool | float | str | bytes) -> tuple[str, bytes]:
    """Return the name of the type, and the content of the header."""
    if isinstance(value, bytes):
        return "bytes", bytes(value)
    if isinstance(value, bool):
        return "bool", b"true" if value else b"false"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} needs more than 64 bits")
        return "int", int.__repr__(value).encode()
    if isinstance(value, float):
        return "float", float.__repr__(value).encode()
    raise ValueError(f"a {type(value).__name__} cannot be a property")


def _add_standard(encoded: dict[str, str | bytes | None], headers: Headers, message_id: str, now_ms: int) -> int:
    """Add the standard headers that a message has; return their size."""
    standard: dict[str, bytes] = {}
    if message_id:
        standard[_MESSAGE_ID] = message_id.encode()
    if headers.correlation_id is not None:
        standard[_CORRELATION_ID] = headers.correlation_id.encode()
    if headers.reply_to is not None:
        standard[_REPLY_TO] = headers.reply_to.encode()
    if headers.type is not None:
        standard[_TYPE] = headers.type.encode()
    if headers.priority is not None:
        standard[_PRIORITY] = f"{headers.priority:d}".encode()
    if headers.time_to_live_ms:  # 0 means no limit
        if not 0 < headers.time_to_live_ms <= LONGEST_LIFE_MS:
            raise ValueError(f"a time to live of {headers.time_to_live_ms} ms is not between 0 and {LONGEST_LIFE_MS}")
        standard[_EXPIRATION] = f"{now_ms + headers.time_to_live_ms:d}".encode()
    if headers.group_sequence is not None:
        standard[_SEQUENCE] = f"{headers.group_sequence:d}".encode()
    if not standard:
        return 0
    encoded |= standard
    return sum(_name_bytes(name) + len(content) for name, content in standard.items())


class Decoder:
    """Makes messages of the records of a topic.

    Args:
        topic_id: id of the topic, which differs between topics that had the same name one after the other.
        most_bytes: size beyond which a value is cut off.
        wants_id: whether a message without the property `uniqueMessageId` gets one made of its position.
        wants_source: whether a message without the property `messageSourceId` gets the name of its partition.
    """

    def __init__(self, topic_id: str, most_bytes: int, *, wants_id: bool, wants_source: bool) -> None:
        self._topic_id = topic_id
        self._most_bytes = most_bytes
        self._wants_id = wants_id
        self._wants_source = wants_source

    def messages(self, partition: int, records: list[kafka.Message]) -> list[Message]:
        """Make messages from records of a partition. If the headers of a record cannot be read, its message has none,
        and is marked.

        Empties the list meanwhile: a record keeps its headers once they were asked for, and thousands of these would
        keep the garbage collector busy.
        """
        messages: list[Message] = []
        source = f"{self._topic_id}:{partition}"
        while records:
            some = records[:_AT_ONCE]
            del records[:_AT_ONCE]
            messages += self._plain(some, partition, source) or readable_all(some, self._read, self._as_sent, "record")
        most_bytes = self._most_bytes
        return [one if len(one.body) <= most_bytes else self._cut(one) for one in messages]

    def _plain(self, records: Sequence[kafka.Message], partition: int, source: str) -> list[Message] | None:
        """Make messages of records that hold nothing but texts in their keys and headers, and no header of this
        connector; return `None` if one of them holds anything else.

        Does the same as `_read`. It takes a third of the time: it calls no function for each record or header, and the
        store can hold all such messages, so `readable_all` need not try it.
        """
        wants_id, wants_source = self._wants_id, self._wants_source
        messages: list[Message] = []
        try:
            for record in records:
                offset, key, body, sent = record.offset(), record.key(), record.value(), record.headers()
                unique_id = f"{source}:{offset}"
                properties: dict[str, PropertyValue] = {}
                if sent is not None:
                    for name, content in sent:  # type: ignore[str-unpack]  # a list
                        properties[name] = content.decode()  # type: ignore[union-attr]  # an `AttributeError` if null
                    if not _RESERVED.isdisjoint(properties):
                        return None
                if body is None:
                    body = b""
                    properties[NULL] = True
                if wants_id and UNIQUE_ID not in properties:
                    properties[UNIQUE_ID] = unique_id
                if wants_source and SOURCE_ID not in properties:
                    properties[SOURCE_ID] = source
                properties[PARTITION], properties[OFFSET] = partition, offset
                kind, time_ms = record.timestamp()
                headers = Headers(message_id=unique_id, timestamp=None if kind == _NO_TIME else time_ms)
                messages.append(Message(body, properties, None if key is None else key.decode(), None, headers))
        except (AttributeError, UnicodeDecodeError):
            return None
        return messages

    def _read(self, record: kafka.Message) -> Message:
        partition, offset = record.partition(), record.offset()
        unique_id = f"{self._topic_id}:{partition}:{offset}"
        message = _decoded(record, unique_id, _time_of(record))
        self._add_position(message.properties, partition, offset, unique_id)
        return message

    def _as_sent(self, record: kafka.Message) -> Message:
        partition, offset = record.partition(), record.offset()
        unique_id = f"{self._topic_id}:{partition}:{offset}"
        properties: dict[str, PropertyValue] = {}
        self._add_position(properties, partition, offset, unique_id)
        headers = Headers(message_id=unique_id, timestamp=_time_of(record))
        return Message(record.value() or b"", properties, None, None, headers)

    def _add_position(
        self, properties: dict[str, PropertyValue], partition: int | None, offset: int | None, unique_id: str
    ) -> None:
        if self._wants_id and UNIQUE_ID not in properties:
            properties[UNIQUE_ID] = unique_id
        if self._wants_source and SOURCE_ID not in properties:
            properties[SOURCE_ID] = f"{self._topic_id}:{partition}"
        properties[PARTITION], properties[OFFSET] = partition, offset

    def _cut(self, message: Message) -> Message:
        message.properties[CUT_FROM] = len(message.body)
        return msgspec.structs.replace(message, body=message.body[: self._most_bytes + 1])


def _time_of(record: kafka.Message) -> int | None:
    kind, time_ms = record.timestamp()
    return None if kind == _NO_TIME else time_ms


def headers_of(record: kafka.Message) -> Sequence[tuple[str, bytes | None]]:
    """Return the headers of a received record, in order."""
    return cast("Sequence[tuple[str, bytes | None]]", record.headers() or ())


def _decoded(record: kafka.Message, unique_id: str, sent_ms: int | None) -> Message:
    sent = dict(headers_of(record))  # of headers with the same name, the last one counts
    types = _types.decode(sent[_TYPES] or b"{}") if _TYPES in sent else {}
    properties = {name: _read(content, types.get(name)) for name, content in sent.items() if name not in _RESERVED}
    headers = _headers(sent, unique_id, sent_ms)
    key, value = record.key(), record.value()
    if value is None:
        properties[NULL] = True
    if key is not None and not _is_text(key):
        properties[KEY] = key
    return Message(value or b"", properties, None if key is None else _text(key), None, headers)


def _plain(content: bytes | None) -> PropertyValue:
    """Return the value of a header without a type: a text, or bytes if the content is not UTF-8."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _read(content: bytes | None, kind: str | None) -> PropertyValue:
    """Return the value of a header with a type; if the content does not fit the type, treat the header
    as one without.
    """
    if kind == "bytes":
        return content
    text = _plain(content)
    value = _READERS[kind](text) if isinstance(text, str) and kind in _READERS else None
    return text if value is None else value


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number(text: str | None) -> int | None:
    if text is None or not _WHOLE_NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _floating_point(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_READERS: Mapping[str | None, Callable[[str], bool | int | float | None]] = {
    "bool": _boolean,
    "int": _number,
    "float": _floating_point,
}


def _headers(sent: Mapping[str, bytes | None], unique_id: str, sent_ms: int | None) -> Headers:
    def text(name: str) -> str | None:
        content = sent.get(name)
        return None if content is None else _text(content)

    expiration = _number(text(_EXPIRATION))
    life = None if expiration is None else min(max(expiration - (sent_ms or 0), 1), LONGEST_LIFE_MS)
    return Headers(
        message_id=text(_MESSAGE_ID) or unique_id,
        correlation_id=text(_CORRELATION_ID),
        reply_to=text(_REPLY_TO),
        type=text(_TYPE),
        priority=_number(text(_PRIORITY)),
        time_to_live_ms=life,
        expiration=expiration,
        timestamp=sent_ms,
        group_sequence=_number(text(_SEQUENCE)),
    )
