"""How a message lies in its row: one encoded value, decoded only for the consumer that gets it."""

import msgspec

from correlator.connector import readable
from correlator.events import LONGEST_LIFE_MS, Headers, Message

MAX_CONTENT_BYTES = 256 * 1024 * 1024
"""Less than both databases can hold in a row, so that a message that is too large is refused and blocks no other."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as bytes, without what only the broker sets.

    Raises `ValueError` when it cannot be stored, or could not be read again: a part is of another type than it should.
    """
    if message.headers is not None or message.destination is not None:
        message = msgspec.structs.replace(message, destination=None, headers=_of_sender(message.headers))
    try:
        content = _encoder.encode(message)
        _decoder.decode(content)
    except (TypeError, OverflowError, ValueError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
    if len(content) > MAX_CONTENT_BYTES:
        raise ValueError(f"{len(content)} bytes are more than {MAX_CONTENT_BYTES}")
    return content


def _of_sender(headers: Headers | None) -> Headers | None:
    if headers is None:
        return None
    return msgspec.structs.replace(
        headers, message_id=None, expiration=None, timestamp=None, redelivered=False, delivery_count=1
    )


def decode(content: bytes, *, destination: str, number: int, sent_at: int, deliveries: int) -> Message:
    """The message as its consumer sees it, with the headers that the broker sets.

    Content that is none of ours is the body of the message as it lies there, marked: a receiver of events makes a dead
    letter of it (E5101), and what was stored behind it is delivered.
    """
    message = readable(lambda: _read(content), lambda: Message(content, {}), "content")
    sent = message.headers or Headers()
    lives = sent.time_to_live_ms
    headers = Headers(
        message_id=f"{destination}:{number}",
        correlation_id=sent.correlation_id,
        reply_to=sent.reply_to,
        type=sent.type,
        priority=sent.priority,
        persistent=sent.persistent,
        time_to_live_ms=lives,
        expiration=sent_at + lives if lives else None,
        timestamp=sent_at,
        redelivered=deliveries > 1,
        delivery_count=deliveries,
    )
    return Message(message.body, message.properties, message.key, None, headers)


def _read(content: bytes) -> Message:
    """A life beyond the longest is the longest, so that the message can be sent on."""
    message = _decoder.decode(content)
    headers = message.headers
    if headers is None or headers.time_to_live_ms is None or headers.time_to_live_ms <= LONGEST_LIFE_MS:
        return message
    return msgspec.structs.replace(message, headers=msgspec.structs.replace(headers, time_to_live_ms=LONGEST_LIFE_MS))
