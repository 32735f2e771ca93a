"""Encodes events: as the messages that a sender sends, and as the values that a checkpoint records."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from correlator.core.fields import as_json
from correlator.core.instances import type_name
from correlator.core.state import Codec, encode, is_immutable
from correlator.errors import MappingError, quoted
from correlator.events import LONGEST_LIFE_MS, Headers, Message, PropertyValue

_encode = msgspec.msgpack.Encoder().encode
_headers = msgspec.msgpack.Decoder(Headers)
_NO_PROPERTIES: dict[str, PropertyValue] = {}
_PROPERTY_TYPES = (type(None), bool, int, float, str, bytes)
_TEXT = (str, type(None))


def decode_event(resolve: Callable[[str], type[Any]], recorded: tuple[str, bytes]) -> Any:
    """Decode an event that `encode_event` has encoded; `resolve` returns the class behind its type name."""
    name, data = recorded
    return msgspec.msgpack.decode(data, type=resolve(name))


def to_message(event: Any, key: str | None, properties: Mapping[str, Any] | None) -> Message:
    """Return the message that carries an event: bytes and messages stay as they are, any other event becomes JSON.

    The key and the properties replace those of a `Message`.

    Raises `MappingError` E5201 for an event that cannot become a message, E5202 for properties or a key that a broker
    or the store cannot take.
    """
    kind = type(event)
    if kind is Message:
        return checked(event if key is None and not properties else _changed(event, key, properties))
    kept = dict(properties) if properties else _NO_PROPERTIES
    message = Message(event if kind is bytes else as_json(event, "send"), kept, key)
    return checked(message) if kept or key is not None else message


def _changed(message: Message, key: str | None, properties: Mapping[str, Any] | None) -> Message:
    return msgspec.structs.replace(
        message,
        key=message.key if key is None else key,
        properties={**message.properties, **(properties or {})},
    )


def checked(message: Message) -> Message:
    """Return the message with only those parts that are sent.

    Raises `MappingError` E5201 for a body that is not bytes, E5202 for another part that the store or a broker cannot
    take.
    """
    if type(message.body) is not bytes:
        kind = type(message.body).__name__
        raise MappingError("E5201", "send", f"a message with a body of {kind}", "Bytes", "Encode the body")
    properties, headers = message.properties, message.headers
    allowed = isinstance(message.key, _TEXT) and isinstance(message.destination, _TEXT)
    carried = (properties, message.key, message.destination)
    try:
        _encode(carried)
        if headers is not None:
            _headers.decode(_encode(headers))
            for span in (headers.time_to_live_ms, headers.delivery_delay_ms):
                if span is not None and not 0 <= span <= LONGEST_LIFE_MS:
                    allowed = False
    except (TypeError, ValueError, OverflowError):  # such as an integer of more than 64 bits, or half a surrogate pair
        allowed = False
    for name, value in properties.items():
        if type(name) is not str or not isinstance(value, _PROPERTY_TYPES):
            allowed = False
    if not allowed:
        raise MappingError(
            "E5202",
            "send",
            f"properties, key, destination or headers cannot travel: {quoted((*carried, headers))}",
            "Allowed: text for names, key and destination; None, bool, int of 64 bits, float, str, bytes for values; "
            f"0..{LONGEST_LIFE_MS} for time_to_live_ms and delivery_delay_ms",
        )
    if not properties and message.receiver is None:
        return message
    return Message(message.body, dict(properties), message.key, message.destination, headers)


def encode_event(event: Any) -> tuple[str, bytes]:
    """Return type name and content of an event for a checkpoint. Raises `StateError` E4102 if it cannot be stored."""
    return type_name(type(event)), encode(event, f"event {type(event).__name__}")


def recorded(event: Any) -> bytes:
    """Encode an event for a checkpoint. Raises `StateError` E4102 or E4103 if it cannot be stored or read back."""
    data: bytes = _codec(type(event)).encode(event)  # type: ignore[arg-type]
    return data


def apart(event: Any, data: bytes) -> Any:
    """Return the event itself if it can never change, otherwise a copy, decoded from `data` (see `recorded`)."""
    return event if _never_changes(type(event)) else _codec(type(event)).decode(data)  # type: ignore[arg-type]


@lru_cache(maxsize=1000)
def _never_changes(event_type: Any) -> bool:
    return is_immutable(event_type)


@lru_cache(maxsize=1000)
def _codec(event_type: Any) -> Codec[Any]:
    return Codec(event_type, f"event {event_type.__name__}")


def from_inside(event: Any) -> Message:
    """Make a message for an event from inside the engine: as JSON, or as MessagePack if JSON cannot hold the event."""
    if event is None:
        return Message(b"")
    named: dict[str, PropertyValue] = {"event": type_name(type(event))}
    try:
        return to_message(event, None, named)
    except MappingError:
        return Message(encode_event(event)[1], named)
