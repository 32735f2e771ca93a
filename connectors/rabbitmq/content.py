"""Converts messages to the properties and headers of RabbitMQ, and back (docs/rabbitmq.md).

RabbitMQ's own JMS client must be able to read the result: a header without a value, or a message without a priority,
would make that client fail and lose the message.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from connectors.jms import MESSAGE_KIND, TEXT
from connectors.nulls import NULLS, add_nulls, check_names
from connectors.rabbitmq.wire import Fields, decode_fields, encode_fields
from connectors.rabbitmq_server import address_of, destination_of
from correlator.connector import SIMPLE, readable
from correlator.events import Headers, Message, Outgoing, PropertyValue

KEY = "JMSXGroupID"
SEQUENCE = "JMSXGroupSeq"
TIMESTAMP = "JMSTimestamp"
TYPE = "JMSType"
MESSAGE_ID = "JMSMessageID"
CORRELATION_ID = "JMSCorrelationID"
BODY_KINDS = ("TextMessage", "BytesMessage")
"""Values of the header `JMSType`: for the JMS client they mean that the body is text, or bytes."""
PROPERTIES = "amqp_properties"
"""Property with all encoded properties of a message, if they cannot be decoded."""
_OF_JMS = ("JMSDeliveryMode", "JMSPriority", "JMSExpiration")
"""Headers in which the JMS client repeats AMQP properties."""
_AS_PROPERTIES = {
    "amqp_content_type": "content_type",
    "amqp_content_encoding": "content_encoding",
    "amqp_app_id": "app_id",
}
COUNT = "x-delivery-count"
_OF_OTHERS = frozenset(
    {"x-death", COUNT, "x-acquired-count", "x-stream-offset", MESSAGE_ID, CORRELATION_ID, *_OF_JMS, *_AS_PROPERTIES}
)
"""Properties that do not become headers: RabbitMQ or the JMS client sets them, or they are AMQP properties."""
_BEGINNINGS_OF_OTHERS = ("x-first-death-", "x-last-death-")
_ROUTING = ("CC", "BCC")
"""Headers that make RabbitMQ copy a message to other queues."""
_OCTETS = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_PRIORITY = 4
_HIGHEST_PRIORITY = 255
_LONGEST_LIFE_MS = 2**32 - 1
_NO_HEADERS = Headers()


def encode(outgoing: Outgoing, message_id: str, now_ms: int, *, text: bool, durable: bool) -> bytes:
    """Return the encoded properties of a message to be sent.

    Args:
        outgoing: the message.
        message_id: the message id for AMQP and JMS.
        now_ms: the time of sending, in milliseconds since the epoch.
        text: whether the body is text, for readers that distinguish text and bytes.
        durable: whether the message is persistent even if its headers say otherwise.

    Raises `ValueError` if RabbitMQ cannot carry the message, or would refuse it together with all later messages;
    `TypeError` or `AttributeError` if a part of the message has a wrong type.
    """
    message = outgoing.message
    if not isinstance(message.body, bytes):
        raise TypeError(f"the body is a {type(message.body).__name__} and must be bytes")
    headers = message.headers or _NO_HEADERS
    properties = message.properties
    content_type = _text(properties, "amqp_content_type") or (_TEXT if text else _OCTETS)
    table = _table(properties)
    kind = properties.get(MESSAGE_KIND)
    table[TYPE] = _kind(headers, text=text or content_type.startswith("text/") if kind is None else kind == TEXT)
    table[TIMESTAMP] = now_ms
    if message.key is not None:
        table[KEY] = message.key
    if headers.group_sequence is not None:
        table[SEQUENCE] = headers.group_sequence
    if headers.delivery_delay_ms:
        raise ValueError(
            f"RabbitMQ cannot delay a message, which 'delivery_delay_ms: {headers.delivery_delay_ms}' asks for"
        )
    return encode_fields(
        Fields(
            content_type=content_type,
            content_encoding=_text(properties, "amqp_content_encoding"),
            headers=table,
            delivery_mode=1 if headers.persistent is False and not durable else 2,
            priority=_PRIORITY if headers.priority is None else min(headers.priority, _HIGHEST_PRIORITY),
            correlation_id=headers.correlation_id,
            reply_to=address_of(headers.reply_to),
            expiration=_expiration(headers.time_to_live_ms),
            message_id=message_id,
            type=headers.type,
            app_id=_text(properties, "amqp_app_id"),
        )
    )


def _kind(headers: Headers, *, text: bool) -> str:
    """Return the kind of the body for the JMS client, which shows the type of a message only if its
    body is not text.
    """
    if text:
        return BODY_KINDS[0]
    return BODY_KINDS[1] if headers.type is None or headers.type in BODY_KINDS else headers.type


def _text(properties: Mapping[str, PropertyValue], name: str) -> str | None:
    value = properties.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"the property '{name}' must be a text")


def _table(properties: Mapping[str, PropertyValue]) -> dict[str, Any]:
    check_names(properties)
    table: dict[str, Any] = {}
    nulls = []
    for name, value in properties.items():
        if name in _ROUTING:
            raise ValueError(f"a property '{name}' would make RabbitMQ copy the message to other queues")
        if name in _OF_OTHERS or name.startswith(_BEGINNINGS_OF_OTHERS):
            continue
        if value is None:
            nulls.append(name)
        elif name != MESSAGE_KIND or value != TEXT:  # the header for the JMS client contains it
            table[name] = value
    if nulls:
        table[NULLS] = nulls
    return table


def _expiration(time_to_live_ms: int | None) -> str | None:
    if not time_to_live_ms:  # 0 means that it never expires; for RabbitMQ it would mean at once
        return None
    if not 0 <= time_to_live_ms <= _LONGEST_LIFE_MS:
        raise ValueError(f"a time to live of {time_to_live_ms} ms is not between 0 and {_LONGEST_LIFE_MS}")
    return str(time_to_live_ms)


def decode(encoded: bytes, body: bytes, *, redelivered: bool) -> Message:
    """Return the message of a delivery. If its properties cannot be decoded, one property contains their bytes.

    The header `expiration` stays unset: the broker itself removes expired messages, by its own clock.
    """
    return readable(
        lambda: _message(decode_fields(encoded), body, redelivered=redelivered),
        lambda: Message(body, {PROPERTIES: encoded}, None, None, Headers(redelivered=redelivered)),
        "properties",
    )


def _message(fields: Fields, body: bytes, *, redelivered: bool) -> Message:
    table = fields.headers or {}
    deliveries = table.pop(COUNT, None)
    message_id, correlation_id = _take_text(table, MESSAGE_ID), _take_text(table, CORRELATION_ID)
    kind = _take_text(table, TYPE)
    sent_at = table.pop(TIMESTAMP, None)
    key = _take_text(table, KEY)
    headers = Headers(
        message_id=fields.message_id or message_id,
        correlation_id=fields.correlation_id or correlation_id,
        reply_to=destination_of(fields.reply_to),
        type=fields.type or (None if kind in BODY_KINDS else kind),
        priority=fields.priority,
        persistent=None if fields.delivery_mode is None else fields.delivery_mode == 2,
        time_to_live_ms=_number(fields.expiration),
        timestamp=_timestamp(sent_at, fields.timestamp),
        redelivered=redelivered,
        delivery_count=deliveries + 1 if type(deliveries) is int else 1 + redelivered,
        group_sequence=table.pop(SEQUENCE) if type(table.get(SEQUENCE)) is int else None,
    )
    nulls = table.pop(NULLS, None)
    message = Message(body, _properties(fields, table), key, None, headers)
    if kind == BODY_KINDS[0]:
        message.properties.setdefault(MESSAGE_KIND, TEXT)
    if nulls is not None:
        add_nulls(message, nulls)
    return message


def _take_text(table: dict[str, Any], name: str) -> str | None:
    """Remove a header from the table if it is a text.

    Any other value comes from another client: it stays a property.
    """
    return table.pop(name) if isinstance(table.get(name), str) else None


def _properties(fields: Fields, table: dict[str, Any]) -> dict[str, PropertyValue]:
    for name in _OF_JMS:
        table.pop(name, None)
    properties = {name: value if type(value) in SIMPLE else _plain(value) for name, value in table.items()}
    if fields.content_type != _OCTETS or fields.content_encoding or fields.app_id:
        given = {name: getattr(fields, field) for name, field in _AS_PROPERTIES.items()}
        properties.update((name, value) for name, value in given.items() if value not in (None, _OCTETS))
    return properties


def _plain(value: Any) -> PropertyValue:
    """Convert the value of a header that no property can have: arrays and tables become JSON, decimals become text."""
    return str(value) if isinstance(value, Decimal) else msgspec.json.encode(value).decode()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _timestamp(milliseconds: Any, seconds: int | None) -> int | None:
    if type(milliseconds) is int:
        return milliseconds
    return None if seconds is None else seconds * 1000
