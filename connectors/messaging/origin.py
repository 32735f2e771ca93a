"""Which connection has sent a message to a topic: for consumers that do not want what comes from their own one."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from correlator.events import Message, PropertyValue

CONNECTION = "correlator_connection"
"""Property of what a session sends to a topic, which sessions do not show: the id of its connection."""


class Read(NamedTuple):
    """A message as it was before `stamped`, and what that said; `origin` is `None` where nobody says."""

    message: Message
    origin: PropertyValue


def stamped(message: Message, connection: str) -> Message:
    """A copy that says where it comes from. Properties that are none are left for the connector to refuse."""
    if not isinstance(message.properties, Mapping):
        return message
    return msgspec.structs.replace(message, properties={**message.properties, CONNECTION: connection})


def read(message: Message) -> Read:
    """The other way round; the very message where nobody says."""
    if CONNECTION not in message.properties:
        return Read(message, None)
    properties = dict(message.properties)
    origin = properties.pop(CONNECTION)
    return Read(msgspec.structs.replace(message, properties=properties), origin)
