"""Messages that are not ours: read by their interface, and made into ours (rule R13)."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from correlator.errors import UsageError
from correlator.events import Headers, Message, PropertyValue

_PROPERTY_TYPES = (type(None), bool, int, float, str, bytes)
_HEADERS = {"correlation_id": str, "type": str, "priority": int, "persistent": bool, "time_to_live_ms": int}
"""Those that a sender may set, but for `reply_to`: what it names need not be a destination here."""
_UNCONVERTIBLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class ForeignMessage(Protocol):
    """What any object must have that is to be sent.

    If it also has `key` and `headers`, these are read as those of a `Message`; `headers.reply_to` is not.
    """

    @property
    def body(self) -> Any:
        """Bytes stay as they are, text becomes UTF-8, `None` nothing, and any other value JSON."""
        ...

    @property
    def properties(self) -> Mapping[str, Any]:
        """By name."""
        ...


def converted(message: ForeignMessage) -> Message:
    """The message itself if it is one of ours, not copied; else a new one of its content.

    What cannot be read or converted, the body or a single property or header, is ignored. Raises `UsageError` E7504
    for an object that has no body or no properties.
    """
    if isinstance(message, Message):
        return message
    for name in ("body", "properties"):
        if _read(message, name) is msgspec.UNSET:
            what = f"a {type(message).__name__} has no '{name}'"
            raise UsageError("E7504", "send", what, "An object with body and properties")
    key = _plain(_read(message, "key"))
    return Message(
        _body(_read(message, "body")),
        _properties(_read(message, "properties")),
        key if isinstance(key, str) else None,
        None,
        _headers(_read(message, "headers")),
    )


def _read(owner: object, name: str) -> Any:
    """The value of an attribute; `UNSET` where there is none, and `None` where the owner fails to give it."""
    try:
        return getattr(owner, name, msgspec.UNSET)
    except Exception:  # noqa: BLE001  # code of others, such as an object that cannot be unpacked
        return None


def _body(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except _UNCONVERTIBLE:
        return b""


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
    """The value as every broker would give it back, of a built-in type; `UNSET` for what none can carry."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except _UNCONVERTIBLE:
        return msgspec.UNSET
