"""Converts third-party objects, which have body and properties, to messages."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from connectors import kinds
from correlator.errors import UsageError, printable, quoted
from correlator.events import Headers, Message, PropertyValue

_PROPERTY_TYPES = (type(None), bool, int, float, str, bytes)
_HEADERS = {"correlation_id": str, "type": str, "priority": int, "persistent": bool, "time_to_live_ms": int}
"""The headers that a sender may set, except `reply_to`, which may not name a destination of this broker."""
_PARTS = (("headers", Headers), ("destination", str))
"""The parts of a `Message` that a producer reads. Connectors refuse other parts of a wrong type."""
_log = logging.getLogger("connectors.messaging")
_UNCONVERTIBLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class ForeignMessage(Protocol):
    """The interface of an object that `Producer.send` takes: a `Message`, or a message of another library.

    If the object also has `key` and `headers`, they mean the same as in a `Message`; `headers.reply_to` is ignored.
    Parts that cannot be read or converted are ignored, too; the log has a warning for a body.
    """

    @property
    def body(self) -> Any:
        """The body. Bytes stay as they are, and `None` is an empty body.

        A text, a mapping and a list make a message of the kind text, map or stream (`connectors.kinds`). Other values,
        and mappings and lists that these kinds cannot hold, become JSON of the kind text.
        """
        ...

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties by name; values are `None`, bool, int, float, str or bytes."""
        ...


def converted(message: ForeignMessage, where: str) -> Message:
    """Return the object itself, not a copy, if it is a `Message`; otherwise a new message with its content.

    A body, property or header that cannot be read or converted is ignored. A warning in the log tells of a body;
    `where` names the sender of the message there.

    Raises:
        UsageError: E7504 for an object without body or properties, and for a `Message` whose headers or destination
            have a wrong type.
    """
    if isinstance(message, Message):
        for name, kind in _PARTS:
            value = getattr(message, name)
            if value is not None and not isinstance(value, kind):
                what = f"the {name} of the message: {quoted(value)} is not of the type {kind.__name__}"
                raise UsageError("E7504", "send", what, f"{kind.__name__} or None")
        return message
    for name in ("body", "properties"):
        if _read(message, name) is msgspec.UNSET:
            what = f"a {type(message).__name__} has no '{name}'"
            raise UsageError("E7504", "send", what, "An object with body and properties")
    key = _plain(_read(message, "key"))
    content = _content(message, where)
    return Message(
        content.body,
        {**_properties(_read(message, "properties")), **content.properties},
        key if isinstance(key, str) else None,
        None,
        _headers(_read(message, "headers")),
    )


def _read(owner: object, name: str) -> Any:
    """Return the value of an attribute; `UNSET` if there is none, `None` if reading it fails."""
    try:
        return getattr(owner, name, msgspec.UNSET)
    except Exception:  # noqa: BLE001  # third-party code, such as an object that cannot be unpacked
        return None


def _content(message: ForeignMessage, where: str) -> Message:
    """Return the body and its kind. If there is none, or it is left out, the body is empty and its kind is bytes."""
    left_out = "%s: the body of a %s cannot be %s, so the message is sent without it: %s"
    try:
        value = message.body
    except Exception as error:  # noqa: BLE001  # third-party code, such as an object that cannot be unpacked
        _log.warning(left_out, where, type(message).__name__, "read", printable(repr(error)))
        return Message(b"")
    if value is None:
        return Message(b"")
    if isinstance(value, bytes | bytearray | memoryview):
        return Message(bytes(value))
    reason = ""
    for make in _kinds_for(value):
        try:
            return make(value)
        except UsageError as error:
            reason = error.what
    _log.warning(left_out, where, type(message).__name__, "converted", printable(reason))
    return Message(b"")


def _kinds_for(value: Any) -> tuple[Callable[[Any], Message], ...]:
    if isinstance(value, str):
        return (kinds.text_message,)
    if isinstance(value, Mapping):
        return kinds.map_message, kinds.data_message
    if isinstance(value, list | tuple):
        return kinds.stream_message, kinds.data_message
    return (kinds.data_message,)


def _properties(given: Any) -> dict[str, PropertyValue]:
    if not isinstance(given, Mapping):
        return {}
    plain = [(_plain(name), _plain(value)) for name, value in given.items()]
    return {name: value for name, value in plain if isinstance(name, str) and isinstance(value, _PROPERTY_TYPES)}


def _headers(given: Any) -> Headers | None:
    plain = {name: _plain(_read(given, name)) for name in _HEADERS}
    found: dict[str, Any] = {name: value for name, value in plain.items() if type(value) is _HEADERS[name]}
    return Headers(**found) if found else None


def _plain(value: Any) -> Any:
    """Return the value as a built-in type, as every broker returns it; `UNSET` if no broker can carry it."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except _UNCONVERTIBLE:
        return msgspec.UNSET
