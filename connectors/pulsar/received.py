"""What the client gives, as a message and as the place where it lies."""

import pulsar

from connectors.pulsar.content import Received, decode
from connectors.pulsar.unsettled import Position
from correlator.events import Message

UNREADABLE = "correlator_unreadable"
"""Property of a message whose properties or key are no text: it comes without them, and is not in the way of others."""


def position_of(message: pulsar.Message) -> Position:
    """Where it lies."""
    name = message.message_id()
    return Position(name.ledger_id(), name.entry_id(), name.batch_index(), name.partition())


def decoded(message: pulsar.Message, at: Position, namespace: str) -> Message:
    """What it says, to a connection of this namespace; `at` is its position."""
    properties, key = _texts(message)
    name = f"{at.ledger}:{at.entry}:{at.partition}"
    return decode(
        Received(
            None if message.has_null_value() else message.data(),
            properties,
            key,
            message.event_timestamp(),
            message.publish_timestamp(),
            message.redelivery_count(),
            name if at.batch_index < 0 else f"{name}:{at.batch_index}",
        ),
        namespace,
    )


def _texts(message: pulsar.Message) -> tuple[dict[str, str], str]:
    """Properties and key. Clients in other languages may write bytes that are no text, which Python's cannot show."""
    try:
        return message.properties(), message.partition_key()
    except UnicodeDecodeError:
        return {UNREADABLE: "true", f"{UNREADABLE}_jsmtype": "boolean"}, ""
