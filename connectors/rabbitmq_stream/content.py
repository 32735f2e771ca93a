"""Converts messages to the AMQP 1.0 sections that a stream holds, and back (docs/rabbitmq-streams.md)."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from connectors.rabbitmq_server import address_of, destination_of
from connectors.rabbitmq_stream.chunk import Packed
from connectors.rabbitmq_stream.wire import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Milliseconds,
    Octet,
    Section,
    Symbol,
    Unsigned,
    decode_sections,
    encode_data_section,
    encode_list_section,
    encode_map_section,
)
from correlator.connector import SIMPLE, readable
from correlator.events import SOURCE_ID, UNIQUE_ID, Headers, Message, Outgoing, PropertyValue

OFFSET = "x-stream-offset"
"""Property with the offset of a received message. Sinks do not send it."""
"""Properties that the default templates of unique ids use; the source sets them if a message does not have them."""
CONTENT_TYPE, CONTENT_ENCODING = "amqp_content_type", "amqp_content_encoding"
_NO_HEADERS = Headers()
_HIGHEST_PRIORITY = 255
_NOT_SENT = frozenset({OFFSET, CONTENT_TYPE, CONTENT_ENCODING})
_BODIES = (DATA, SEQUENCE, VALUE)


class EntryOffset(NamedTuple):
    """The offset of an entry in a stream.

    Attributes:
        timestamp: time at which its chunk was written, in milliseconds since the epoch.
    """

    stream: str
    offset: int
    timestamp: int

    @property
    def unique_id(self) -> str:
        """Return an id of the entry: the same each time it is read, but different after the stream was
        deleted and made again.
        """
        return f"{self.offset}-{self.timestamp}:{self.stream}"


def encode(outgoing: Outgoing, message_id: str, now_ms: int) -> bytes:
    """Encode a message.

    Args:
        outgoing: the message.
        message_id: the message id for AMQP.
        now_ms: the time of sending, in milliseconds since the epoch.

    Raises `ValueError`, `TypeError` or `AttributeError` if AMQP 1.0 cannot carry the message.
    """
    message = outgoing.message
    if not isinstance(message.body, bytes):
        raise TypeError(f"the body is a {type(message.body).__name__} and must be bytes")
    headers = message.headers or _NO_HEADERS
    if headers.delivery_delay_ms:
        raise ValueError(
            f"streams cannot delay a message, which 'delivery_delay_ms: {headers.delivery_delay_ms}' asks for"
        )
    sections = [] if headers is _NO_HEADERS else [_encoded_header(headers)]
    sections.append(encode_list_section(PROPERTIES, _standard_properties(message, headers, message_id, now_ms)))
    if message.properties:
        own = {name: value for name, value in message.properties.items() if name not in _NOT_SENT}
        sections.append(encode_map_section(APPLICATION_PROPERTIES, own))
    sections.append(encode_data_section(message.body))
    return b"".join(sections)


def _encoded_header(headers: Headers) -> bytes:
    return encode_list_section(
        HEADER,
        (
            headers.persistent,
            None if headers.priority is None else Octet(min(headers.priority, _HIGHEST_PRIORITY)),
            Unsigned(headers.time_to_live_ms) if headers.time_to_live_ms else None,  # 0 means that it never expires
        ),
    )


def _standard_properties(message: Message, headers: Headers, message_id: str, now_ms: int) -> Sequence[Any]:
    """Return the standard properties in the order of the protocol."""
    expiry = Milliseconds(now_ms + headers.time_to_live_ms) if headers.time_to_live_ms else None
    return (
        message_id,
        None,  # user id
        None,  # to
        headers.type,
        address_of(headers.reply_to),
        headers.correlation_id,
        _symbol(message.properties, CONTENT_TYPE),
        _symbol(message.properties, CONTENT_ENCODING),
        expiry,
        Milliseconds(now_ms),
        message.key,
        None if headers.group_sequence is None else Unsigned(headers.group_sequence),
    )


def _symbol(properties: Mapping[str, PropertyValue], name: str) -> Symbol | None:
    value = properties.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"the property '{name}' must be a text")  # noqa: TRY004
    return Symbol(value)


def decode(encoded: bytes, at: EntryOffset, *, wants_id: bool, wants_source: bool) -> Message:
    """Return the message of an entry. If the entry is not a message of AMQP 1.0, all of it becomes the body, marked.

    Args:
        encoded: the content of the entry.
        at: the position of the entry.
        wants_id: whether a message without the property `uniqueMessageId` gets one made from its offset.
        wants_source: whether a message without the property `messageSourceId` gets the name of the stream.
    """
    message = readable(
        lambda: _decoded(_sections(encoded), at),
        lambda: Message(bytes(encoded), {}, None, None, Headers(message_id=at.unique_id, timestamp=at.timestamp)),
        "entry of the stream",
    )
    properties = message.properties
    if wants_id:
        properties.setdefault(UNIQUE_ID, at.unique_id)
    if wants_source:
        properties.setdefault(SOURCE_ID, at.stream)
    properties[OFFSET] = at.offset
    return message


def _sections(encoded: bytes) -> list[Section]:
    if isinstance(encoded, Packed):
        raise ValueError(encoded.why)  # noqa: TRY004  # its content is wrong, not its type
    return decode_sections(encoded)


def _decoded(sections: Sequence[Section], at: EntryOffset) -> Message:
    header: Sequence[Any] = ()
    standard: Sequence[Any] = ()
    properties: dict[str, PropertyValue] = {}
    for code, value in sections:
        if code == PROPERTIES:
            standard = value
        elif code == HEADER:
            header = value
        elif code == APPLICATION_PROPERTIES:
            properties = {name: one if type(one) in SIMPLE else _plain(one) for name, one in value.items()}
    described = _Header(*_padded(header, 3)), _Standard(*_padded(standard, 12))
    return _message(_body(sections), properties, *described, at)


class _Header(NamedTuple):
    durable: Any
    priority: Any
    ttl: Any


class _Standard(NamedTuple):
    message_id: Any
    user_id: Any
    to: Any
    subject: Any
    reply_to: Any
    correlation_id: Any
    content_type: Any
    content_encoding: Any
    expiry: Any
    creation_time: Any
    group_id: Any
    group_sequence: Any


def _padded(values: Sequence[Any], width: int) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise TypeError("a section that should be a list is not one")
    return (*values[:width], *(None,) * (width - len(values)))


def _message(
    body: bytes, properties: dict[str, PropertyValue], header: _Header, standard: _Standard, at: EntryOffset
) -> Message:
    if standard.content_type is not None:
        properties[CONTENT_TYPE] = _identifier(standard.content_type)
    if standard.content_encoding is not None:
        properties[CONTENT_ENCODING] = _identifier(standard.content_encoding)
    headers = Headers(
        message_id=at.unique_id if standard.message_id is None else _identifier(standard.message_id),
        correlation_id=_identifier(standard.correlation_id),
        reply_to=destination_of(_identifier(standard.reply_to)),
        type=_identifier(standard.subject),
        priority=_number(header.priority),
        persistent=header.durable if isinstance(header.durable, bool) else None,
        time_to_live_ms=_number(header.ttl),
        expiration=_number(standard.expiry),
        timestamp=at.timestamp if standard.creation_time is None else _number(standard.creation_time),
        group_sequence=_number(standard.group_sequence),
    )
    return Message(body, properties, _identifier(standard.group_id), None, headers)


def _body(sections: Sequence[tuple[int, Any]]) -> bytes:
    """Return the bytes of the data sections; a text or bytes of a value section unchanged, any other value as JSON."""
    parts = [value for code, value in sections if code in _BODIES]
    if not parts:
        raise ValueError("there is no body")
    kinds = {code for code, _ in sections if code in _BODIES}
    if kinds == {DATA}:
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
    value = parts if kinds == {SEQUENCE} else parts[0]
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _plain(value: Any) -> PropertyValue:
    """Convert the value of a property that a `Message` cannot have: UUIDs become text, lists and maps become JSON."""
    return str(value) if isinstance(value, uuid.UUID) else msgspec.json.encode(value).decode()


def _identifier(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
