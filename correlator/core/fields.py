"""Mappings between the parts of a message and the fields of an event (rule A9.19).

The mapping of a receiver names for each field of its event the source of the value: `${header.NAME}`, `${headers}`,
`${property.NAME}`, `${properties}`, `${key}`, `${body}` or `${body.NAME}` (a member of a JSON body).

The mapping of a sender names for each part of a message (`header.NAME`, `property.NAME`, `properties`, `key`,
`destination`, `body`) the source of its value: `${event.NAME}` for a field of the event, `${event}` for the event as
JSON, text, or text that contains some of these.

The mapping of a bridge names for each part of the message that it sends (also `body.NAME`, a member of a JSON body) the
source of its value: a source as in the mapping of a receiver, text, or text that contains some of these.
"""

import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from correlator.errors import ConfigError, MappingError, quoted
from correlator.events import LONGEST_LIFE_MS, Headers, Message

RECEIVE_ONLY_HEADERS = ("message_id", "expiration", "timestamp", "redelivered", "delivery_count", "delivery_time")
"""Headers that brokers set: a receiver may read them, a sender may not write them."""
WRITABLE_HEADERS: dict[str, Any] = {
    "correlation_id": str,
    "reply_to": str,
    "type": str,
    "priority": int,
    "persistent": bool,
    "time_to_live_ms": int,
    "group_sequence": int,
    "delivery_delay_ms": int,
}
"""Headers that a sender may write, with their types."""

_HIGHEST_PRIORITY = 9
_SPANS = ("time_to_live_ms", "delivery_delay_ms")
_SOURCE = re.compile(r"\$\{(?:(property|header|body)\.([^}]+)|(properties|headers|body|key))\}")
_OF_EVENT = re.compile(r"\$\{event(?:\.(\w+))?\}")
_SOURCES = "Sources: ${header.NAME}, ${headers}, ${property.NAME}, ${properties}, ${key}, ${body}, ${body.NAME}"
_READABLE = (*RECEIVE_ONLY_HEADERS, *WRITABLE_HEADERS, "destination")
_encode_json = msgspec.json.Encoder().encode

Find = Callable[[Message, Any], Any]
"""Finds a value in a message and in the content of its JSON body."""


class _Field(NamedTuple):
    """A field of the event; `None` for the whole event."""

    name: str | None


class _Received(NamedTuple):
    """A received message, and the content of its body if a mapping reads this."""

    message: Message
    content: Any


Pieces = Sequence[Any]
"""The pieces of a source in order: its texts, and the pieces that stand for values."""


class FieldMapping:
    """Makes events from messages. Any thread may use it.

    Args:
        mapping: the source of the value of each field of the event.
        event_type: the class of the events.
        destination: destination of the receiver, the value of `${header.destination}`.
        where: names the mapping in errors.

    Raises:
        ConfigError: E1061, a source has no known form; E1062, the event has no such field; E1063, a required field has
            no source; E1065, an unknown header.
    """

    def __init__(self, mapping: Mapping[str, str], event_type: type[Any], destination: str, where: str) -> None:
        fields = {field.name: field for field in msgspec.structs.fields(event_type)}
        check_sources(mapping, where)
        for name in mapping:
            if name not in fields:
                known = f"Fields: {', '.join(fields)}"
                raise ConfigError("E1062", f"{where}.{name}", f"{event_type.__name__} has no such field", known)
        for name, field in fields.items():
            if name not in mapping and field.required:
                raise ConfigError("E1063", where, f"field '{name}' has neither a source nor a default value")
        self._event_type = event_type
        self._where = where
        self._finds = [(name, _find(source, destination)) for name, source in mapping.items()]
        self._text = {name for name in mapping if _admits(fields[name].type, str)}
        self._bytes = {name for name in mapping if _admits(fields[name].type, bytes)} - self._text
        whole = [name for name, source in mapping.items() if source == "${body}"]
        self._parsed = {name for name in whole if name not in self._text and name not in self._bytes}
        self._opens_body = any(source.startswith("${body.") for source in mapping.values())

    def event(self, message: Message) -> Any:
        """Make the event of a message. If the message does not have the part for a field, the field keeps its default.

        Raises:
            MappingError: E5101, the body must be JSON and is not; E5102, a value does not fit its field, or the event
                class raised an error.
        """
        try:
            return self._made(message)
        except MappingError:
            raise
        except Exception as error:
            raise MappingError("E5102", self._where, f"making the event raised {told(error)}") from error

    def value(self, message: Message, name: str) -> Any:
        """The value of one field of the event, `None` for a field without a value. Raises as `event`."""
        found = next((find for field, find in self._finds if field == name), None)
        if found is None:
            return None
        value = found(message, _json(message.body, self._where) if self._opens_body else None)
        if value is None:
            return None
        kinds = {field.name: field.type for field in msgspec.structs.fields(self._event_type)}
        try:
            return msgspec.convert(self._fitting(name, value), kinds[name], strict=False)
        except msgspec.ValidationError as error:
            raise self._does_not_fit({name: value}, error) from error

    def _made(self, message: Message) -> Any:
        content = _json(message.body, self._where) if self._opens_body else None
        values: dict[str, Any] = {}
        for name, find in self._finds:
            value = find(message, content)
            if value is not None:
                values[name] = self._fitting(name, value)
        try:
            return msgspec.convert(values, self._event_type, strict=False)
        except msgspec.ValidationError as error:
            raise self._does_not_fit(values, error) from error

    def _fitting(self, name: str, value: Any) -> Any:
        """The value as the conversion expects it: text for a text field, decoded JSON for a field that is a record."""
        if name in self._parsed:
            return _json(value, self._where)
        if name in self._text and not isinstance(value, str):
            return self._as_text(name, value)
        if name in self._bytes and isinstance(value, str):
            return value.encode()
        return value

    def _as_text(self, name: str, value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return str(value)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise MappingError("E5102", self._where, f"field '{name}': {quoted(value)} is not UTF-8") from error
        return value

    def _does_not_fit(self, values: Mapping[str, Any], error: msgspec.ValidationError) -> MappingError:
        what, _, path = str(error).partition(" - at `$.")
        name = re.split(r"[.\[`]", path)[0]
        shown = f"field '{name}': {quoted(values[name])}: " if name in values else ""
        return MappingError("E5102", self._where, f"{shown}{what.replace('`', '')}")


class _Parts:
    """Makes the parts of a message from the pieces of their sources; a subclass defines what a piece is.

    Args:
        parts: the pieces of the source of each part of the message.
        where: names the mapping in errors.
    """

    def __init__(self, parts: Mapping[str, Pieces], where: str) -> None:
        self._where = where
        self._headers = [(name[7:], pieces) for name, pieces in parts.items() if name.startswith("header.")]
        self._properties = [(name[9:], pieces) for name, pieces in parts.items() if name.startswith("property.")]
        self._rest = {name: pieces for name, pieces in parts.items() if "." not in name}

    def _value(self, origin: Any, target: str, piece: Any) -> Any:
        """The value of a piece that is no text; `None` if `origin` has no such value."""
        raise NotImplementedError

    def _part(self, origin: Any, target: str, pieces: Pieces) -> Any:
        """The value of one piece, or text with values in it; `None` if one of the values is `None`."""
        values = [one if isinstance(one, str) else self._value(origin, target, one) for one in pieces]
        if len(pieces) == 1:
            return values[0]
        if any(value is None for value in values):
            return None
        return "".join(self._as_text(target, value) for value in values)

    def _as_text(self, target: str, value: Any) -> str:
        if isinstance(value, bytes):
            raise self._cannot(target, "bytes are no text")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _text(self, origin: Any, target: str) -> str | None:
        """The value of a part that is text; `None` if the mapping does not have it."""
        value = self._part(origin, target, self._rest[target]) if target in self._rest else None
        return value if value is None else self._as_text(target, value)

    def _all_properties(self, origin: Any) -> dict[str, Any]:
        value = self._part(origin, "properties", self._rest["properties"])
        if not isinstance(value, dict | None):
            raise self._cannot("properties", f"{quoted(value)} is not a mapping")
        return dict(value or {})

    def _header(self, origin: Any, name: str, pieces: Pieces) -> Any:
        value = self._part(origin, f"header.{name}", pieces)
        if value is None:
            return None
        try:
            fitting = msgspec.convert(value, WRITABLE_HEADERS[name], strict=False)
        except msgspec.ValidationError as error:
            raise self._cannot(f"header.{name}", f"{quoted(value)}: {error}") from error
        if name == "priority" and not 0 <= fitting <= _HIGHEST_PRIORITY:
            raise self._cannot("header.priority", f"{fitting} is not in 0..{_HIGHEST_PRIORITY}")
        if name in _SPANS and not 0 <= fitting <= LONGEST_LIFE_MS:
            raise self._cannot(f"header.{name}", f"{fitting} is not in 0..{LONGEST_LIFE_MS}")
        return fitting

    def _as_body(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else as_json(value, self._where)

    def _cannot(self, target: str, what: str) -> MappingError:
        return MappingError("E5202", f"{self._where}.{target}", what)


class SendMapping(_Parts):
    """Makes messages from events. The threads of contexts use it.

    Args:
        mapping: the source of the value of each part of the message.
        where: names the mapping in errors.

    Raises `ConfigError` as `check_targets`.
    """

    def __init__(self, mapping: Mapping[str, str], where: str) -> None:
        check_targets(mapping, where)
        super().__init__({target: _pieces(source, _OF_EVENT, _field) for target, source in mapping.items()}, where)

    def message(self, event: Any, key: str | None, properties: Mapping[str, Any] | None) -> Any:
        """Make the message of an event; a `Message` or bytes stay as they are.

        The key and the properties from the call of `send` replace the mapped ones.

        Raises:
            MappingError: E5201, the event has no JSON form for the body; E5202, a value does not fit its part of the
                message, or the event has no such field.
        """
        if isinstance(event, Message | bytes):
            return event
        mapped = self._all_properties(event) if "properties" in self._rest else {}
        for name, pieces in self._properties:
            value = self._part(event, f"property.{name}", pieces)
            if value is not None:
                mapped[name] = value
        headers = {name: self._header(event, name, pieces) for name, pieces in self._headers}
        key = self._text(event, "key") if key is None else key
        body = self._as_body(self._part(event, "body", self._rest["body"]) if "body" in self._rest else event)
        return Message(
            body,
            {**mapped, **(properties or {})},
            key,
            self._text(event, "destination"),
            Headers(**headers) if headers else None,
        )

    def _value(self, origin: Any, target: str, piece: _Field) -> Any:
        if piece.name is None:
            return as_json(origin, self._where).decode()
        try:
            value = getattr(origin, piece.name)
        except AttributeError as error:
            raise self._cannot(target, f"{type(origin).__name__} has no field '{piece.name}'") from error
        return value.value if isinstance(value, Enum) else value  # as in JSON


class ForwardMapping(_Parts):
    """Makes the messages that a bridge sends from the messages that it received. Any thread may use it.

    Args:
        mapping: the source of the value of each part of the message.
        where: names the mapping in errors.

    Raises `ConfigError` as `check_forwarding`.
    """

    def __init__(self, mapping: Mapping[str, str], where: str) -> None:
        check_forwarding(mapping, where)
        parts = {target: _pieces(source, _SOURCE, _find_in_message) for target, source in mapping.items()}
        super().__init__(parts, where)
        members = {target[5:]: source for target, source in mapping.items() if target.startswith("body.")}
        self._members = [
            (name, [_find_content] if source == "${body}" else parts[f"body.{name}"])
            for name, source in members.items()
        ]
        self._reads_destination = any("${header.destination}" in source for source in mapping.values())
        self._opens_body = "${body}" in members.values() or any("${body." in source for source in mapping.values())

    def message(self, received: Message, destination: str) -> Message:
        """Make the message to send.

        A part without a source stays as it is. The one exception is the destination: without a source it is the
        destination of the sender. If the received message does not have the source of a part, the new message lacks
        this part.

        Args:
            received: the received message.
            destination: destination of its receiver, for `${header.destination}`.

        Raises:
            MappingError: E5101, the body must be JSON and is not; E5202, a value does not fit its part of the message.
        """
        if self._reads_destination and received.destination is None:
            received = msgspec.structs.replace(received, destination=destination)
        origin = _Received(received, _json(received.body, self._where) if self._opens_body else None)
        rest = self._rest
        properties = self._all_properties(origin) if "properties" in rest else dict(received.properties)
        for name, pieces in self._properties:
            value = self._part(origin, f"property.{name}", pieces)
            if value is None:
                properties.pop(name, None)
            else:
                properties[name] = value
        headers = received.headers
        if self._headers:
            mapped = {name: self._header(origin, name, pieces) for name, pieces in self._headers}
            headers = msgspec.structs.replace(headers or Headers(), **mapped)
        key = self._text(origin, "key") if "key" in rest else received.key
        return Message(self._body(origin), properties, key, self._text(origin, "destination"), headers)

    def _body(self, origin: _Received) -> bytes:
        if self._members:
            found = {name: self._part(origin, f"body.{name}", pieces) for name, pieces in self._members}
            return as_json({name: value for name, value in found.items() if value is not None}, self._where)
        if "body" in self._rest:
            return self._as_body(self._part(origin, "body", self._rest["body"]))
        return origin.message.body

    def _value(self, origin: _Received, target: str, piece: Find) -> Any:  # noqa: ARG002
        return piece(origin.message, origin.content)

    def _as_text(self, target: str, value: Any) -> str:
        if isinstance(value, dict | list):
            return as_json(value, self._where).decode()
        if not isinstance(value, bytes):
            return super()._as_text(target, value)
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self._cannot(target, f"{quoted(value)} is not UTF-8") from error


def as_json(value: Any, where: str) -> bytes:
    """Return the event as JSON. Raises `MappingError` E5201 for an event without a JSON form."""
    try:
        return _encode_json(value)
    except (TypeError, OverflowError) as error:
        raise MappingError("E5201", where, f"{type(value).__name__} cannot become a message: {error}") from error


def told(error: Exception) -> str:
    """Return the type and the text of an error that application code has raised, for an error message."""
    return "".join(traceback.format_exception_only(error)).strip()


def _json(body: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MappingError("E5101", where, str(error)) from error


def check_sources(mapping: Mapping[str, str], where: str) -> None:
    """Check the sources of the mapping of a receiver. Raises `ConfigError` E1061 for an unknown form, E1065 for an
    unknown header.
    """
    for name, source in mapping.items():
        found = _SOURCE.fullmatch(source)
        if found is None:
            raise ConfigError("E1061", f"{where}.{name}", f"{quoted(source)} is not understood", _SOURCES)
        if found[1] == "header" and found[2] not in _READABLE:
            raise _no_header(f"{where}.{name}", found[2], _READABLE)


def check_targets(mapping: Mapping[str, str], where: str) -> None:
    """Check the parts and sources of the mapping of a sender.

    Raises:
        ConfigError: E1061, a source has no known form; E1065, an unknown header; E1066, an unknown part; E1067, a
            header that only brokers write.
    """
    for target, source in mapping.items():
        if "${" in _OF_EVENT.sub("", source) or (target == "properties" and _OF_EVENT.fullmatch(source) is None):
            allowed = (
                "Sources: ${event.NAME}, ${event}, text, and text with these in it; one ${event.NAME} for properties"
            )
            raise ConfigError("E1061", f"{where}.{target}", f"{quoted(source)} is not understood", allowed)
        _check_target(target, where, "header.NAME, property.NAME, properties, key, destination, body")


def check_forwarding(mapping: Mapping[str, str], where: str) -> None:
    """Check the parts and sources of the mapping of a bridge.

    Raises:
        ConfigError: as `check_targets`; E1066 also for a `body` beside a `body.NAME`.
    """
    for target, source in mapping.items():
        place = f"{where}.{target}"
        found = _SOURCE.fullmatch(source)
        if "${" in _SOURCE.sub("", source) or (target == "properties" and found is None):
            allowed = f"{_SOURCES}, text, and text with these in it; one of these alone for properties"
            raise ConfigError("E1061", place, f"{quoted(source)} is not understood", allowed)
        for one in _SOURCE.finditer(source):
            if one[1] == "header" and one[2] not in _READABLE:
                raise _no_header(place, one[2], _READABLE)
        if not (target.startswith("body.") and target != "body."):
            _check_target(target, where, "header.NAME, property.NAME, properties, key, destination, body, body.NAME")
    if "body" in mapping and any(target.startswith("body.") for target in mapping):
        raise ConfigError("E1066", f"{where}.body", "stands beside members of the body", "Either body or body.NAME")


def _check_target(target: str, where: str, known: str) -> None:
    kind, dot, name = target.partition(".")
    if kind == "header" and name in RECEIVE_ONLY_HEADERS:
        writable = f"Headers that can be set: {', '.join(WRITABLE_HEADERS)}"
        raise ConfigError("E1067", f"{where}.{target}", "is set by the broker", writable)
    if kind == "header" and dot and name not in WRITABLE_HEADERS:
        raise _no_header(f"{where}.{target}", name, WRITABLE_HEADERS)
    alone = target in ("key", "destination", "body", "properties")
    if not alone and not (kind in ("header", "property") and name):
        raise ConfigError("E1066", f"{where}.{target}", "a message has no such part", f"Parts: {known}")


def _find(source: str, destination: str) -> Find:
    found = _SOURCE.fullmatch(source)
    assert found is not None, "checked before"
    return _find_in_message(found, destination)


def _find_in_message(found: re.Match[str], destination: str | None = None) -> Find:
    kind, name = found[1] or found[3], found[2]
    if name is None:
        return _WHOLE[kind]
    if kind == "property":
        return lambda message, _: message.properties.get(name)
    if kind == "header":
        return _find_header(name, destination)
    return lambda _, content: content.get(name) if isinstance(content, dict) else None


def _find_content(message: Message, content: Any) -> Any:  # noqa: ARG001
    return content


def _field(found: re.Match[str]) -> _Field:
    return _Field(found[1])


def _find_header(name: str, destination: str | None) -> Find:
    if name == "destination":
        return lambda message, _: message.destination or destination
    return lambda message, _: None if message.headers is None else getattr(message.headers, name)


def _headers(message: Message) -> dict[str, Any]:
    """The headers that are present."""
    found = msgspec.structs.asdict(message.headers or Headers())
    return {name: value for name, value in found.items() if value is not None}


_WHOLE: dict[str, Find] = {
    "properties": lambda message, _: message.properties,
    "headers": lambda message, _: _headers(message),
    "key": lambda message, _: message.key,
    "body": lambda message, _: message.body,
}


def _admits(annotation: Any, kind: type) -> bool:
    union = get_origin(annotation) in (Union, UnionType)
    return annotation is kind or (union and kind in get_args(annotation))


def _pieces(source: str, pattern: re.Pattern[str], piece: Callable[[re.Match[str]], Any]) -> Pieces:
    """Divide a source into its texts and the matches of `pattern`, in order; `piece` makes a piece of each match."""
    pieces: list[Any] = []
    at = 0
    for found in pattern.finditer(source):
        pieces += [source[at : found.start()], piece(found)]
        at = found.end()
    return [one for one in (*pieces, source[at:]) if one != ""] or [""]


def _no_header(where: str, name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError("E1065", where, f"no header {quoted(name)}", f"Headers: {', '.join(known)}")
