"""Converts messages to the format of Starlight for JMS, Pulsar's own JMS client in Java, and back.

Properties of Pulsar are texts. JMS headers are properties with reserved names. A second property, whose name ends with
`_jsmtype`, contains the type of a property. A message that is received and sent on must be the same for the Java
client; so three properties contain facts for which a `Message` has no field: `jms_message_type`, `jms_null` and
`jms_types`. This module handles only bytes and texts, and depends neither on the broker nor on the client.
"""

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from connectors.jms import HIGHEST_PRIORITY, MESSAGE_KIND, TEXT
from connectors.jms_bodies import SERIALIZED, read_map, read_stream
from connectors.nulls import NULLS, add_nulls, check_names
from connectors.pulsar.unsettled import PulsarPosition
from correlator.connector import readable
from correlator.events import LONGEST_LIFE_MS, Headers, Message, Outgoing, PropertyValue

NULL = "jms_null"
"""Property that is true if a message has no body; for Java this differs from an empty body."""
NARROW_TYPES = "jms_types"
"""Property with the Java types of numbers if the numbers do not show them: JSON such as `{"name":"short"}`."""
CORRELATION_BYTES = "jms_correlation_bytes"
"""Property that is true if the correlation id is bytes and not text; the id is then `base64:` followed by the bytes."""
TYPE_SUFFIX = "_jsmtype"
_MISSPELT_SUFFIX = "_jmstype"
"""Another program's spelling (rule Z3): it is read if the property itself exists, and never written."""
_TYPE_SUFFIXES = (TYPE_SUFFIX, _MISSPELT_SUFFIX)
BINARY = "base64:"
"""Beginning of a correlation id that is bytes and not text."""

_TYPE = "JMSType"
_CORRELATION_ID = "JMSCorrelationID"
_KIND = "JMSPulsarMessageType"
MESSAGE_ID = "JMSMessageId"
_REPLY_TO = "JMSReplyTo"
_REPLY_TO_TYPE = "JMSReplyToType"
_DELIVERY_MODE = "JMSDeliveryMode"
PRIORITY = "JMSPriority"
_DELIVERY_TIME = "JMSDeliveryTime"
_EXPIRATION = "JMSExpiration"
_CONNECTION_ID = "JMSConnectionID"
_KEY = "JMSXGroupID"
_SEQUENCE = "JMSXGroupSeq"
_HIDDEN = frozenset(
    {
        _TYPE,
        _CORRELATION_ID,
        _KIND,
        MESSAGE_ID,
        _REPLY_TO,
        _REPLY_TO_TYPE,
        _DELIVERY_MODE,
        PRIORITY,
        _DELIVERY_TIME,
        _EXPIRATION,
        _CONNECTION_ID,
        _KEY,
        "JMSXDeliveryCount",
        NULLS,
        MESSAGE_KIND,
        NULL,
        NARROW_TYPES,
        CORRELATION_BYTES,
    }
)
"""Names of Pulsar's properties that are not properties of the application."""
_IGNORED = frozenset(
    {"JMSXUserID", "JMSXAppID", "JMSXProducerTXID", "JMSXConsumerTXID", "JMSXRcvTimestamp", "JMSXState"}
)
"""Names that JMS reserves for providers, and that Starlight for JMS ignores."""
_NOT_SENT = _HIDDEN | _IGNORED

_BYTES, _HEADER, _STREAM, _MAP = "bytes", "header", "stream", "map"
_EMPTY_IS_NULL = frozenset({_MAP, "object", _HEADER})
"""Kinds whose empty messages Java writes without a body; Java could not read an empty body."""
_KINDS = _EMPTY_IS_NULL | {TEXT, _BYTES, _STREAM}
_OF_JAVA = _EMPTY_IS_NULL - {_HEADER}
"""Kinds whose bodies Java serializes."""

_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
_SINGLE = "float"
_NARROW = ("byte", "short", "long", _SINGLE)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_FLOATING_POINT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_32_BITS = struct.Struct(">f")

_DOMAIN = "persistent://"
DEFAULT_PRIORITY = 4
_NON_PERSISTENT = "1"
_NO_HEADERS = Headers()


class Encoded(NamedTuple):
    """A message in the form that Pulsar's client sends.

    Attributes:
        content: the body; `None` means a null value.
        properties: the properties for Pulsar.
        key: messages with the same key keep their order; for Pulsar an empty key means no key.
        event_timestamp: milliseconds since the epoch; Java shows it as `JMSTimestamp`.
    """

    content: bytes | None
    properties: dict[str, str]
    key: str | None
    event_timestamp: int


class PulsarMessage(msgspec.Struct, frozen=True, gc=False):
    """A message in the form in which Pulsar's client returns it.

    Attributes:
        content: the body; `None` means a null value.
        properties: the properties of Pulsar.
        key: `None` or empty if there is no key.
        event_timestamp: milliseconds since the epoch; 0 if there is none.
        publish_timestamp: time at which the producer sent the message, in milliseconds since the epoch.
        redeliveries: the broker's count of earlier deliveries.
        at: the position of the message, from which an id is made if the message has none.
    """

    content: bytes | None
    properties: Mapping[str, str]
    key: str | None
    event_timestamp: int
    publish_timestamp: int
    redeliveries: int
    at: PulsarPosition


def encode(
    outgoing: Outgoing,
    message_id: str,
    connection_id: str,
    now_ms: int,
    *,
    delay_ms: int = 0,
    text: bool,
    durable: bool,
    namespace: str,
) -> Encoded:
    """Encode a message.

    Properties that only a provider may set (`JMSPriority`, `JMSXAppID` and the like) are not sent: they describe the
    earlier journey of the message, and its headers describe this one. The property `JMSXGroupID` becomes the key of a
    message without one. A property whose name ends in `_jsmtype` is refused.

    Args:
        outgoing: the message.
        message_id: the message id for JMS.
        connection_id: the id by which a JMS client recognises messages of its own connection.
        now_ms: the time of sending, in milliseconds since the epoch.
        delay_ms: milliseconds for which the broker does not deliver the message.
        text: whether the body is text, unless the message names the kind of its body.
        durable: whether the message is persistent even if its headers say otherwise.
        namespace: the namespace of a `reply_to` that names none.

    Raises `ValueError` if Pulsar cannot carry the message, `TypeError` or `AttributeError` if a part of it has a wrong
    type.
    """
    message = outgoing.message
    if not isinstance(message.body, bytes):
        raise TypeError(f"the body is a {type(message.body).__name__} and must be bytes")
    kind = _text(message.properties, MESSAGE_KIND)
    if kind is None:
        kind = TEXT if text else _BYTES
    key = _text(message.properties, _KEY) if message.key is None else message.key
    properties = _encoded_properties(message.properties)
    properties.update(_encoded_headers(message, now_ms, namespace, durable=durable))
    properties[MESSAGE_ID] = message_id
    properties[_CONNECTION_ID] = connection_id
    properties[_DELIVERY_TIME] = str(now_ms + delay_ms)
    properties[_KIND] = kind
    if key is not None:
        properties[_KEY] = key
    "".join((*properties, *properties.values())).encode()  # half a surrogate pair would fail only at the send
    return Encoded(_content(message, kind), properties, key, now_ms)


def _text(properties: Mapping[str, PropertyValue], name: str) -> str | None:
    value = properties.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"the property '{name}' must be a text")


def _content(message: Message, kind: str) -> bytes | None:
    """Return the body. An existing body takes precedence over a property that denies it.

    A JMS client in Java stops at a message that it cannot read, such as bytes or a stream without a body, or a map or
    an object that Java has not serialized. Such a message occurs if application code gives a message another body but
    keeps its properties.
    """
    if kind not in _KINDS:
        raise ValueError(f"the property '{MESSAGE_KIND}' is '{kind}' and must be one of {', '.join(sorted(_KINDS))}")
    null = message.properties.get(NULL)
    if null is not None and not isinstance(null, bool):
        raise ValueError(f"the property '{NULL}' must be true or false")
    _check_body(kind, message.body)
    return message.body or (None if kind in _EMPTY_IS_NULL or (null and kind == TEXT) else b"")


def _check_body(kind: str, body: bytes) -> None:
    problem = "" if kind not in _OF_JAVA or not body or body.startswith(SERIALIZED) else "it is not serialized by Java"
    try:
        if kind == _STREAM:
            read_stream(body)
        elif kind == _MAP:
            read_map(body)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ValueError(f"the property '{MESSAGE_KIND}' is '{kind}', and the body does not fit: {problem}")


def _encoded_properties(properties: Mapping[str, PropertyValue]) -> dict[str, str]:
    check_names(properties)
    narrow = _narrow_types(_text(properties, NARROW_TYPES))
    encoded: dict[str, str] = {}
    nulls = []
    for name, value in properties.items():
        if _is_type(name, properties):
            raise ValueError(f"a property '{name}' would be the type of another one")
        if name in _NOT_SENT:
            continue
        if value is None:
            nulls.append(name)
        elif isinstance(value, str):
            encoded[name] = value
        else:
            encoded[name] = _written(value)
            encoded[name + TYPE_SUFFIX] = narrow[name] if _is_narrow(value, narrow.get(name)) else _type_of(value)
    if nulls:
        encoded[NULLS] = msgspec.json.encode(nulls).decode()
    return encoded


def _narrow_types(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        types = msgspec.json.decode(text, type=dict[str, str])
    except ValueError as error:
        raise ValueError(f"the property '{NARROW_TYPES}' is not a JSON object of names and types: {error}") from error
    for name, of_java in types.items():
        if of_java not in _NARROW:
            raise ValueError(f"the type of '{name}' in '{NARROW_TYPES}' is not one of {', '.join(_NARROW)}")
    return types


def _written(value: bool | float | bytes) -> str:
    """Return the number as text that Java can read. Number types of other libraries have other texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else _JAVA_NAMES[float.__repr__(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise ValueError(f"a {type(value).__name__} cannot be a property")


_JAVA_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _type_of(value: bool | float | bytes) -> str:
    """Return the Java type that gives the same value when it is read."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "double"
    if isinstance(value, bytes):
        return "bytes"
    if _fits(value, 32):
        return "int"
    if _fits(value, 64):
        return "long"
    raise ValueError(f"{value} needs more than 64 bits")


def _fits(value: int, bits: int) -> bool:
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _is_narrow(value: bool | float | bytes, of_java: str | None) -> bool:
    """Return whether the value still fits the narrow type with which it was received."""
    if of_java is None or isinstance(value, bool | bytes):
        return False
    if isinstance(value, float):
        return of_java == _SINGLE and _is_single(value)
    return of_java != _SINGLE and _fits(value, _BITS[of_java])


def _is_single(value: float) -> bool:
    """Return whether this number of 64 bits can come from a number of 32 bits that Java has written."""
    try:
        (single,) = _32_BITS.unpack(_32_BITS.pack(value))
    except OverflowError:
        return False
    return math.isnan(value) or any(float(f"{single:.{digits}g}") == value for digits in range(1, 10))


def _encoded_headers(message: Message, now_ms: int, namespace: str, *, durable: bool) -> dict[str, str]:
    headers = message.headers or _NO_HEADERS
    encoded: dict[str, str] = {}
    if headers.type is not None:
        encoded[_TYPE] = headers.type
    if headers.correlation_id is not None:
        is_binary = message.properties.get(CORRELATION_BYTES) is True
        content = _correlation_bytes(headers.correlation_id) if is_binary else headers.correlation_id.encode()
        encoded[_CORRELATION_ID] = base64.b64encode(content).decode()
    if headers.reply_to is not None:
        encoded.update(_encoded_reply_to(headers.reply_to, namespace))
    if headers.priority is not None and headers.priority != DEFAULT_PRIORITY:
        encoded[PRIORITY] = _checked(min(headers.priority, HIGHEST_PRIORITY), HIGHEST_PRIORITY, "a priority")
    if headers.persistent is False and not durable:
        encoded[_DELIVERY_MODE] = _NON_PERSISTENT
    if headers.time_to_live_ms:  # 0 means no limit
        _checked(headers.time_to_live_ms, LONGEST_LIFE_MS, "a time to live in ms")
        encoded[_EXPIRATION] = f"{now_ms + headers.time_to_live_ms:d}"
        encoded[_EXPIRATION + TYPE_SUFFIX] = "long"
    if headers.group_sequence is not None:
        encoded[_SEQUENCE] = f"{headers.group_sequence:d}"
        encoded[_SEQUENCE + TYPE_SUFFIX] = _type_of(headers.group_sequence)
    return encoded


def _checked(number: int, most: int, what: str) -> str:
    if not 0 <= number <= most:
        raise ValueError(f"{what} of {number} is not between 0 and {most}")
    return f"{number:d}"


def _correlation_bytes(correlation_id: str) -> bytes:
    if correlation_id.startswith(BINARY):
        content = _from_base64(correlation_id.removeprefix(BINARY))
        if content is not None and not _is_text(content):
            return content
    return correlation_id.encode()


def _encoded_reply_to(reply_to: str, namespace: str) -> dict[str, str]:
    """Return the `reply_to` for Java. Without a kind it is a queue; a name with a namespace only gets its domain."""
    is_topic = reply_to.startswith("topic:")
    name = reply_to.removeprefix("topic:" if is_topic else "queue:")
    if not name:
        raise ValueError(f"the reply_to '{reply_to}' has no name")
    if "/" not in name:
        name = f"{_DOMAIN}{namespace}/{name}"
    elif "://" not in name:
        name = _DOMAIN + name
    return {_REPLY_TO: name, _REPLY_TO_TYPE: "topic"} if is_topic else {_REPLY_TO: name}


def decode(received: PulsarMessage, namespace: str) -> Message:
    """Decode a message. A `reply_to` in this namespace is named by its last part.

    Never raises: values that do not fit their stated type stay texts, and headers that cannot be read count as missing.
    """
    return readable(
        lambda: _decoded(received, namespace),
        lambda: Message(received.content or b"", {}, None, None, Headers(message_id=f"ID:{received.at}")),
        "properties",
    )


def _decoded(received: PulsarMessage, namespace: str) -> Message:
    sent = received.properties
    kind = sent.get(_KIND, _BYTES)
    properties = _decoded_properties(sent)
    if kind != _BYTES:
        properties[MESSAGE_KIND] = kind if kind in _KINDS else _HEADER  # as Java treats an unknown kind
    if received.content is None:
        properties[NULL] = True
    sequence = properties.pop(_SEQUENCE) if type(properties.get(_SEQUENCE)) is int else None
    correlation_id = _from_base64(sent.get(_CORRELATION_ID, ""))
    if correlation_id is not None and not _is_text(correlation_id):
        properties[CORRELATION_BYTES] = True
    # Pulsar does not distinguish an empty key from a missing one
    key = received.key or ("" if sent.get(_KEY) == "" else None)
    message = Message(received.content or b"", properties, key, None, _decoded_headers(received, namespace, sequence))
    if NULLS in sent:
        add_nulls(message, _nulls(sent[NULLS]))
    return message


def _decoded_properties(sent: Mapping[str, str]) -> dict[str, PropertyValue]:
    properties: dict[str, PropertyValue] = {}
    narrow = {}
    for name, text in sent.items():
        if name in _HIDDEN or _is_type(name, sent):
            continue
        of_java = sent.get(name + TYPE_SUFFIX) or sent.get(name + _MISSPELT_SUFFIX, "")
        value = _read(text, of_java) if of_java else text
        properties[name] = value
        if not isinstance(value, str) and of_java not in (_type_of(value), "integer"):
            narrow[name] = of_java
    if narrow:
        properties[NARROW_TYPES] = msgspec.json.encode(narrow).decode()
    return properties


def _is_type(name: str, properties: Mapping[str, PropertyValue]) -> bool:
    """Return whether a property names the type of another one. A misspelt name counts only beside that
    one, with a type.
    """
    if not name.endswith(_TYPE_SUFFIXES):
        return False
    base = name.removesuffix(_MISSPELT_SUFFIX)
    return base == name or (properties.get(base) is not None and properties[name] in _WORDS)


def _read(text: str, of_java: str) -> bool | int | float | str | bytes:
    reader = _READERS.get(of_java)
    value = None if reader is None else reader(text)
    return text if value is None else value


def _read_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _read_whole_number(text: str, bits: int) -> int | None:
    if not _WHOLE_NUMBER.fullmatch(text):
        return None
    value = int(text)
    return value if _fits(value, bits) else None


def _read_floating_point(text: str) -> float | None:
    return float(text) if _FLOATING_POINT.fullmatch(text) else None


def _from_base64(text: str) -> bytes | None:
    """Decode a text only if encoding gives the same text again: any other one is an ordinary text."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return content if base64.b64encode(content).decode() == text else None


_READERS: dict[str, Callable[[str], bool | int | float | bytes | None]] = {
    "boolean": _read_boolean,
    "integer": partial(_read_whole_number, bits=32),
    **{word: partial(_read_whole_number, bits=bits) for word, bits in _BITS.items()},
    _SINGLE: _read_floating_point,
    "double": _read_floating_point,
    "bytes": _from_base64,
}


_WORDS = frozenset({"string", *_READERS})


def _nulls(text: str) -> list[str] | str:
    """Return the names of properties without a value; return anything that is not a list of names unchanged."""
    try:
        names = msgspec.json.decode(text, type=list[str])
    except (ValueError, RecursionError):
        return text
    return [name for name in names if name not in _HIDDEN and not name.endswith(TYPE_SUFFIX)]


def _decoded_headers(received: PulsarMessage, namespace: str, sequence: PropertyValue) -> Headers:
    sent = received.properties
    due = _decoded_number(sent.get(_DELIVERY_TIME), 64) or 0
    timestamp = received.event_timestamp or received.publish_timestamp or None
    expiration = _decoded_number(sent.get(_EXPIRATION), 64) or 0
    priority = _decoded_number(sent.get(PRIORITY), 32)
    return Headers(
        message_id=sent.get(MESSAGE_ID) or f"ID:{received.at}",
        correlation_id=_decoded_correlation_id(sent.get(_CORRELATION_ID)),
        reply_to=_decoded_reply_to(sent.get(_REPLY_TO), sent.get(_REPLY_TO_TYPE), namespace),
        type=sent.get(_TYPE),
        priority=DEFAULT_PRIORITY if priority is None or priority < 0 else priority,
        persistent=sent.get(_DELIVERY_MODE) != _NON_PERSISTENT,
        time_to_live_ms=_life(expiration, timestamp or 0) if expiration > 0 else None,
        expiration=expiration if expiration > 0 else None,
        timestamp=timestamp,
        redelivered=received.redeliveries > 0,
        delivery_count=received.redeliveries + 1,
        group_sequence=sequence if type(sequence) is int else None,
        delivery_time=due if due > received.publish_timestamp else None,
    )


def _decoded_number(sent: str | None, bits: int) -> int | None:
    return None if sent is None else _read_whole_number(sent, bits)


def _life(expiration: int, timestamp: int) -> int:
    """Return the time to live, at least 1 ms: 0 would mean no limit when the message is sent on."""
    return min(max(expiration - timestamp, 1), LONGEST_LIFE_MS)


def _decoded_correlation_id(sent: str | None) -> str | None:
    content = None if sent is None else _from_base64(sent)
    if content is None:
        return sent
    return content.decode() if _is_text(content) else f"{BINARY}{sent}"


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded_reply_to(topic: str | None, kind: str | None, namespace: str) -> str | None:
    if topic is None:
        return None
    name = topic.removeprefix(f"{_DOMAIN}{namespace}/")
    if not name:
        return None
    return f"{'topic' if kind == 'topic' else 'queue'}:{topic if '/' in name else name}"
