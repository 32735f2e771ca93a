"""What the client gives, as a message and as the place where it lies."""

from typing import Any

import pulsar

from connectors.jms import MESSAGE_KIND, TEXT
from connectors.pulsar.content import PulsarMessage, decode
from connectors.pulsar.schemas import DecodedBody, Schemas, body_of
from connectors.pulsar.unsettled import PulsarPosition
from correlator.connector import mark
from correlator.events import Message


def position_of(name: Any) -> PulsarPosition:
    """Where the message lies that has this name to the client."""
    return PulsarPosition(name.ledger_id(), name.entry_id(), name.batch_index(), name.partition())


def decoded(message: pulsar.Message, at: PulsarPosition, namespace: str, schemas: Schemas | None = None) -> Message:
    """What it says, to a connection of this namespace; `at` is its position. Raises `ConnectionLost` with schemas.

    What cannot be read is not in the way of other messages: properties and key that are no text are missing then, a
    body that its schema does not show is as it was sent, and the message is marked.
    """
    properties, key, unreadable = _texts(message)
    shown = DecodedBody(body_of(message)) if schemas is None else schemas.shown(message, at.ledger)
    made = decode(
        PulsarMessage(
            shown.body,
            properties,
            key,
            message.event_timestamp(),
            message.publish_timestamp(),
            message.redelivery_count(),
            at,
        ),
        namespace,
    )
    if shown.is_text:
        made.properties[MESSAGE_KIND] = TEXT
    for what in filter(None, (unreadable, shown.unreadable)):
        mark(made, what)
    return made


def _texts(message: pulsar.Message) -> tuple[dict[str, str], str, str]:
    """Properties and key, and what cannot be read of them.

    Clients in other languages may write bytes that are no text, which Python's cannot show.
    """
    try:
        return message.properties(), message.partition_key(), ""
    except UnicodeDecodeError:
        return {}, "", "properties and key"
