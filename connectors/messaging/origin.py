"""Marks messages to topics with the connection that sends them.

A consumer with `no_local` leaves out the messages that its own connection has sent.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from correlator.events import Message, PropertyValue

CONNECTION = "correlator_connection"
"""Property of messages that sessions send to topics: the id of their connection. Sessions remove it at receipt."""


class Read(NamedTuple):
    """A message without its mark, and the id of the connection that has sent it; `None` if there was no mark."""

    message: Message
    origin: PropertyValue


def stamped(message: Message, connection: str) -> Message:
    """Return a copy with the id of the connection.

    If the properties of the message are not a mapping, return the message itself, which the sink will refuse.
    """
    if not isinstance(message.properties, Mapping):
        return message
    return msgspec.structs.replace(message, properties={**message.properties, CONNECTION: connection})


def read(message: Message) -> Read:
    """Remove the mark of a message; a message without a mark is returned as it is."""
    if CONNECTION not in message.properties:
        return Read(message, None)
    properties = dict(message.properties)
    origin = properties.pop(CONNECTION)
    return Read(msgspec.structs.replace(message, properties=properties), origin)
