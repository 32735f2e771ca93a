"""Decodes messages of Pulsar's client."""

from typing import Any

import pulsar

from connectors.jms import MESSAGE_KIND, TEXT
from connectors.pulsar.content import PulsarMessage, decode
from connectors.pulsar.schemas import DecodedBody, Schemas, body_of
from connectors.pulsar.unsettled import PulsarPosition
from correlator.connector import mark
from correlator.events import Message


def position_of(name: Any) -> PulsarPosition:
    """Return the position of a message id of the client."""
    return PulsarPosition(name.ledger_id(), name.entry_id(), name.batch_index(), name.partition())


def decoded(message: pulsar.Message, at: PulsarPosition, namespace: str, schemas: Schemas | None = None) -> Message:
    """Decode a message for a connection of this namespace; `at` is its position. Raises `ConnectionLost` with schemas.

    A message that cannot be read is marked, and does not stop the others: it has no properties and no key if these are
    not texts, and its original body if the schema does not fit.
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
    """Return properties and key, and the names of the unreadable parts.

    Clients in other languages may write bytes that are not text; Python's client cannot return these.
    """
    try:
        return message.properties(), message.partition_key(), ""
    except UnicodeDecodeError:
        return {}, "", "properties and key"
