"""Encodes a message as its stored content, and decodes it for the consumer that gets it."""

from typing import NamedTuple

import msgspec

from correlator.connector import SIMPLE, readable
from correlator.errors import quoted
from correlator.events import LONGEST_LIFE_MS, Headers, Message

MAX_CONTENT_BYTES = 256 * 1024 * 1024
"""The largest content.

Both databases can store more, so it is the sink that refuses a message that is too large.
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Stored(NamedTuple):
    """A stored message, with what the broker knows about one delivery.

    Attributes:
        number: its place in the broker.
        message_id, sent_at: headers of the message; `sent_at` in milliseconds since the epoch.
        due: earliest time at which consumers may get it; 0 if it has no delay.
        content: the encoded message, from `encode`.
        deliveries: number of its deliveries, including this one.
        redelivered: whether a program may have seen it before.
    """

    number: int
    message_id: str
    sent_at: int
    due: int
    content: bytes
    deliveries: int
    redelivered: bool


def encode(message: Message) -> bytes:
    """Encode a message without the headers that the broker sets.

    Raises `ValueError` if the message cannot be stored or read again, because a part has a wrong type for example.
    """
    if message.headers is not None or message.destination is not None:
        message = msgspec.structs.replace(message, destination=None, headers=_of_sender(message.headers))
    try:
        content = _encoder.encode(message)
        read = _decoder.decode(content)
    except (TypeError, OverflowError, ValueError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
    for name, value in read.properties.items():
        if type(value) not in SIMPLE:
            raise ValueError(f"property {quoted(name)} is neither a text nor a number nor bytes")
    if len(content) > MAX_CONTENT_BYTES:
        raise ValueError(f"{len(content)} bytes are more than {MAX_CONTENT_BYTES}")
    return content


def _of_sender(headers: Headers | None) -> Headers | None:
    if headers is None:
        return None
    return msgspec.structs.replace(
        headers,
        message_id=None,
        expiration=None,
        timestamp=None,
        redelivered=False,
        delivery_count=1,
        delivery_time=None,
    )


def decode(stored: Stored) -> Message:
    """Decode a message, and add the headers that the broker sets.

    Content that cannot be decoded becomes the body of a marked message: a receiver of events makes a dead letter of it
    (E5101), and continues with the messages after it.
    """
    message = readable(lambda: read_message(stored.content), lambda: Message(stored.content, {}), "content")
    sent = message.headers or Headers()
    lives = sent.time_to_live_ms
    headers = Headers(
        message_id=stored.message_id,
        correlation_id=sent.correlation_id,
        reply_to=sent.reply_to,
        type=sent.type,
        priority=sent.priority,
        persistent=sent.persistent,
        time_to_live_ms=lives,
        expiration=stored.sent_at + lives if lives else None,
        timestamp=stored.sent_at,
        redelivered=stored.redelivered,
        delivery_count=stored.deliveries,
        group_sequence=sent.group_sequence,
        delivery_time=stored.due or None,
    )
    return Message(message.body, message.properties, message.key, None, headers)


def is_as_stored(message: Message, stored: Stored) -> bool:
    """Return whether `decode` could not decode the content."""
    return message.body is stored.content


def read_message(content: bytes) -> Message:
    """Decode the content. A time to live that is too long is shortened, so that the message can be sent on."""
    message = _decoder.decode(content)
    headers = message.headers
    if headers is None or headers.time_to_live_ms is None or headers.time_to_live_ms <= LONGEST_LIFE_MS:
        return message
    return msgspec.structs.replace(message, headers=msgspec.structs.replace(headers, time_to_live_ms=LONGEST_LIFE_MS))
