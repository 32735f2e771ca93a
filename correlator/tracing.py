"""Tracing of single messages: each process that carries out a step of a traced message logs this step.

A process logs the steps of a message if the message has the property `correlator_trace` with the value true, and if the
level of the logger `correlator.trace` is INFO or lower. At a higher level a step costs only the check of this level.
Each record of the log has the named arguments `event`, `message_id` and `destination`.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from correlator.events import Message

TRACE = "correlator_trace"
"""Property of a message that is traced."""
_log = logging.getLogger("correlator.trace")


class DeliveryEvent(StrEnum):
    """What happens to a message. The first ten are the steps of a delivery in their order, for a message of a queue."""

    SENT = "sent"
    """The session hands it to the connector."""
    PLACED = "placed"
    """The broker has put it into its destination, in a transaction that may still fail."""
    STORED = "stored"
    """The transaction is committed; on disk, if the message is persistent."""
    CONFIRMED = "confirmed"
    """The session knows that the broker has it."""
    ROUTED = "routed"
    """The broker has given it to one consumer."""
    DISPATCHED = "dispatched"
    """It is in the buffer of that consumer."""
    DELIVERED = "delivered"
    """The program gets it."""
    ACKNOWLEDGED = "acknowledged"
    """The session tells the broker that it is done."""
    REMOVED = "removed"
    """The broker has removed it from the queue or subscription."""
    SETTLED = "settled"
    """The session knows that the broker has the acknowledgement."""
    FAILED = "failed"
    """The session could not send it, or does not know whether the broker has it."""
    RETURNED = "returned"
    """The consumer does not have it any more, and the broker redelivers it."""
    DEAD = "dead"
    """The broker has made it a dead message, in a transaction that may still fail."""


def is_on() -> bool:
    """Whether this process logs traces."""
    return _log.isEnabledFor(logging.INFO)


def traces(message: Message) -> bool:
    """Whether this process logs the steps of this message."""
    return _log.isEnabledFor(logging.INFO) and is_marked(message)


def is_marked(message: Message) -> bool:
    """Whether the message has the property `TRACE` with the value true."""
    properties = message.properties
    return isinstance(properties, Mapping) and properties.get(TRACE) is True


def marked(message: Message) -> Message:
    """A copy with the property `TRACE`. A message whose properties are no mapping stays as it is: no sink takes it."""
    if not isinstance(message.properties, Mapping):
        return message
    return msgspec.structs.replace(message, properties={**message.properties, TRACE: True})


def id_of(message: Message) -> str:
    """The message id of a received message; "" if its broker carries none."""
    return (message.headers.message_id if message.headers is not None else None) or ""


def log(event: DeliveryEvent, message_id: str, destination: str, **details: object) -> None:
    """Log what happens to a traced message. `details` are further arguments of the record.

    An id with control characters appears in quotes, with escapes: any program may have chosen it.
    """
    shown = message_id if message_id.isprintable() else repr(message_id)
    arguments = {"event": event.value, "message_id": shown, "destination": destination, **details}
    _log.info(" ".join(f"{name}=%({name})s" for name in arguments), arguments)
