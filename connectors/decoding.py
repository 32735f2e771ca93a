"""Messages of others, who may write anything: each is read, or comes as it was sent, with a mark.

Every connector decodes through `readable`. So no message can end the thread that reads it, and none gets into a store
that no later start could read.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from correlator.errors import quoted, storable
from correlator.events import LONGEST_LIFE_MS, UNREADABLE, Headers, Message, PropertyValue

NULLS = "correlator_nulls"
"""What a message on its way calls the list of the properties that have no value, where the broker has no place for it.

No application's property may have this name.
"""
_LONGEST_REASON = 300
SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
"""Types that the value of a property may have as it is; their subclasses are something else."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[dict[str, Any], str | None, Headers | None]).decode


def readable(read: Callable[[], Message], as_sent: Callable[[], Message], what: str) -> Message:
    """What `read` makes, if any store and any part of an engine can hold it; otherwise what `as_sent` makes, marked.

    Args:
        read: decodes the message. May raise anything.
        as_sent: makes a message of the bytes alone, with headers and properties that do not come from its sender.
        what: what cannot be read where `read` fails.
    """
    try:
        message = read()
        _check(message)
    except Exception as error:  # noqa: BLE001  # whatever a decoder stumbles over, the messages behind it must come
        message = as_sent()
        mark(message, f"{what}: {type(error).__name__}: {error}")
    return message


def check_names(properties: Mapping[str, PropertyValue]) -> None:
    """Raises `ValueError` for properties of an application that has taken a name that is not free."""
    if NULLS in properties:
        raise ValueError(f"the name '{NULLS}' is not free")


def _check(message: Message) -> None:
    _decode(_encode((message.properties, message.key, message.headers)))
    if type(message.body) is not bytes:
        raise TypeError(f"the body is a {type(message.body).__name__}")
    if not SIMPLE.issuperset(map(type, message.properties.values())):
        raise TypeError("a property is neither a text nor a number nor bytes")
    lives = None if message.headers is None else message.headers.time_to_live_ms
    if lives is not None and not 0 <= lives <= LONGEST_LIFE_MS:
        raise ValueError(f"a time to live of {lives} ms is not between 0 and {LONGEST_LIFE_MS}")


def mark(message: Message, reason: str) -> None:
    """Say in the message what could not be read of it, after what was said before."""
    said = message.properties.get(UNREADABLE)
    reason = storable(reason)[:_LONGEST_REASON]
    message.properties[UNREADABLE] = f"{said}; {reason}" if isinstance(said, str) else reason


def add_nulls(message: Message, listed: Any) -> None:
    """Add the properties that have no value, in the place of none that has one; a list that is none is marked."""
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        for name in listed:
            message.properties.setdefault(name, None)
    else:
        mark(message, f"{NULLS}: {quoted(listed)} is no list of names")
