"""The dead message queue: every message that ends undelivered goes through `bury`, in the transaction that removes it.

Messages of temporary destinations do not become dead, nor do messages that are purged, or deleted with their
destination or subscription.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from connectors.embedded import destinations, evicting, storing
from connectors.embedded.content import encode, read_message
from connectors.embedded.destinations import DEAD_MESSAGES, Destination
from connectors.embedded.sql import Sql, now_ms
from connectors.embedded.storing import Arrival, NewMessage
from correlator import tracing
from correlator.events import Message, PropertyValue
from correlator.tracing import DeliveryEvent

OLDEST, LOW_PRIORITY, UNDELIVERABLE, ERROR = "OLDEST", "LOW_PRIORITY", "UNDELIVERABLE", "ERROR"
"""Reasons for which a message is dead, besides EXPIRED: it made room for newer messages, or for messages of higher
priority; it was delivered as often as its destination allows; it could not be read.
"""
PREFIX = "correlator_dmq_"
PRESERVE = "correlator_preserve_undelivered"
LOG = "correlator_log_dead_messages"
TRUNCATE = "correlator_truncate_msg_body"
"""Properties, true or false, by which a sender chooses how a message that ends undelivered is treated."""
_CONTENT = Sql("SELECT number, message_id, persistent, content FROM broker_content WHERE number IN :numbers")
_log = logging.getLogger("connectors.embedded")


class Death(NamedTuple):
    """The end of a message in one subscription.

    Attributes:
        number: number of the message.
        rank: 9 less its priority.
        deliveries: number of times that a program got it.
        subscription: name of the subscription; "" for a queue.
    """

    number: int
    rank: int
    deliveries: int
    subscription: str = ""


class Ending(NamedTuple):
    """Why messages are dead.

    Attributes:
        reason: one of the reasons above.
        comment: a sentence for people.
        exception: the error that made them dead; "" if there was none.
    """

    reason: str
    comment: str
    exception: str = ""


class Circumstances(NamedTuple):
    """The common circumstances of dead messages.

    Attributes:
        destination: name of their destination.
        use_dmq: whether they go to the dead message queue if their senders have not decided that.
        ending: why they are dead.
    """

    destination: str
    use_dmq: int
    ending: Ending


def bury(
    connection: Connection,
    why: Circumstances,
    deaths: Sequence[Death],
    newcomers: Mapping[int, NewMessage] = {},
) -> None:
    """Store dead messages in the dead message queue. The caller removes them in the same transaction, after this.

    Args:
        connection: a connection in a transaction.
        why: where and why the messages ended.
        deaths: the messages and their subscriptions.
        newcomers: dead messages that were never stored, by their numbers.
    """
    if not deaths or why.destination == DEAD_MESSAGES or destinations.is_temporary(why.destination):
        return
    stored = [death.number for death in deaths if death.number not in newcomers]
    contents = {row[0]: (row[1], row[2], bytes(row[3])) for row in _CONTENT.rows(connection, numbers=stored)}
    contents |= {number: (new.message_id, new.persistent, new.content) for number, new in newcomers.items()}
    at = now_ms(connection)
    entries = []
    for death in deaths:
        message_id, persistent, content = contents[death.number]
        buried = _buried(why, death, message_id, content, at)
        if buried is not None:
            entries.append(NewMessage("", 0, message_id, buried, death.rank, persistent=persistent))
    if not entries:
        return
    drawn = storing.draw(connection, DEAD_MESSAGES, len(entries))
    there = destinations.ensure(connection, DEAD_MESSAGES)
    new = [Arrival(at, number, entry) for at, (number, entry) in enumerate(zip(drawn.numbers, entries, strict=True))]
    storing.append(connection, there, there.subscriptions, new, drawn.sent_at)
    _trim(connection, there)


def _buried(why: Circumstances, death: Death, message_id: str, content: bytes, at: int) -> bytes | None:
    """Return the content of a dead message; `None` if its sender or its destination wants it dropped."""
    try:
        message = read_message(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        message = Message(content, {})
    if _says(message, LOG, default=False):
        _log.info(
            "message %s of %s is dead: %s, %s", message_id, why.destination, why.ending.reason, why.ending.comment
        )
    if tracing.traces(message):
        tracing.log(DeliveryEvent.DEAD, message_id, why.destination, reason=why.ending.reason)
    if not _says(message, PRESERVE, default=bool(why.use_dmq)):
        return None
    truncated = _says(message, TRUNCATE, default=False)
    said: dict[str, PropertyValue] = {
        "undelivered_reason": why.ending.reason,
        "undelivered_timestamp_ms": at,
        "undelivered_comment": why.ending.comment,
        "undelivered_exception": why.ending.exception,
        "delivery_count": death.deliveries,
        "body_truncated": truncated,
        "destination": why.destination,
        "subscription": death.subscription,
    }
    properties = message.properties | {f"{PREFIX}{name}": value for name, value in said.items()}
    headers = message.headers
    if headers is not None:
        headers = msgspec.structs.replace(headers, time_to_live_ms=None, delivery_delay_ms=None)
    try:
        return encode(Message(b"" if truncated else message.body, properties, message.key, None, headers))
    except ValueError:  # it is too large with the new properties
        return encode(Message(b"", properties | {f"{PREFIX}body_truncated": True}, message.key, None, headers))


def _says(message: Message, name: str, *, default: bool) -> bool:
    said = message.properties.get(name)
    return said if isinstance(said, bool) else default


def _trim(connection: Connection, there: Destination) -> None:
    """Delete the oldest dead messages above the limits of the dead message queue.

    Dead messages come from many transactions, which do not wait for each other. So the queue may contain more while
    several of them end messages at the same time.
    """
    if not there.has_limits:
        return
    there = destinations.ensure(connection, DEAD_MESSAGES)
    messages = (there.messages or 0) - there.max_num_msgs if there.messages is not None else 0
    size = (there.bytes or 0) - there.max_total_msg_bytes if there.bytes is not None else 0
    victims = []
    for victim in evicting.candidates(connection, there.subscriptions):
        if messages <= 0 and size <= 0:
            break
        victims.append(victim)
        messages, size = messages - 1, size - victim.size
    evicting.remove(connection, there, victims)
