"""Publications and deliveries as frames of AMQP 0-9-1: the two things that are done for every single message.

pika makes an object of each of the three or more frames of a message and writes each by a system call of its own; here
a publication is one piece of bytes, and a delivery is cut out of what was received. Pure.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_BASIC_PUBLISH = b"\0\x3c\0\x28\0\0"
"""Class, method, and a field that is no longer used."""
_BASIC_DELIVER = b"\0\x3c\0\x3c"
_FRAME = struct.Struct(">BHI")
_HEAD = struct.Struct(">HHQ")
_BASIC = 60
FRAME_OVERHEAD = _FRAME.size + len(_END)
_TAG = struct.Struct(">Q?")
LARGEST_IN_ONE_PIECE = 64 * 1024
"""Bytes of a body up to which a delivery is waited for as a whole: what is received is put together again and again."""


class RabbitDelivery(NamedTuple):
    """A message as it came, with its properties still encoded."""

    tag: int
    redelivered: bool
    properties: bytes
    body: bytes


def largest_properties(frame_max: int) -> int:
    """Bytes that the encoded properties of a message may have: they travel in one frame."""
    return frame_max - FRAME_OVERHEAD - _HEAD.size


def publication(
    channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, frame_max: int, *, mandatory: bool
) -> bytes:
    """All frames of a message, none of them larger than `frame_max`."""
    head = _HEAD.pack(_BASIC, 0, len(body)) + properties
    pieces = [_publish(channel, exchange, routing_key, mandatory=mandatory), _frame(_HEADER, channel, head)]
    most = frame_max - FRAME_OVERHEAD
    pieces += [_frame(_BODY, channel, body[start : start + most]) for start in range(0, len(body), most)]
    return b"".join(pieces)


@lru_cache(maxsize=256)
def _publish(channel: int, exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
    names = b"".join(bytes((len(name),)) + name for name in (exchange.encode(), routing_key.encode()))
    return _frame(_METHOD, channel, _BASIC_PUBLISH + names + bytes((mandatory,)))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b%b" % (_FRAME.pack(kind, channel, len(payload)), payload, _END)


def small_deliveries(buffer: bytes) -> tuple[list[RabbitDelivery], int, bool]:
    """The deliveries at the beginning of what was received, each of at most three frames.

    Returns them, where they end, and whether more bytes must come for the next one. What is larger, or anything else,
    ends them.
    """
    found: list[RabbitDelivery] = []
    offset = 0
    while _is_delivery(buffer, offset):
        try:
            delivery, end = _small_delivery(buffer, offset)
        except struct.error:
            return found, offset, True
        if delivery is None:
            return found, offset, end > len(buffer)
        found.append(delivery)
        offset = end
    return found, offset, False


def _small_delivery(buffer: bytes, offset: int) -> tuple[RabbitDelivery | None, int]:
    """The delivery that begins here and where it ends; `None` when it has another form, or ends behind the buffer.

    Raises `struct.error` when too little of it is there to tell.
    """
    _, _, size = _FRAME.unpack_from(buffer, offset)
    head = offset + size + FRAME_OVERHEAD
    kind, channel, size = _FRAME.unpack_from(buffer, head)
    if kind != _HEADER:
        return None, 0
    _, _, body_size = _HEAD.unpack_from(buffer, head + _FRAME.size)
    end = head + size + FRAME_OVERHEAD
    properties = slice(head + _FRAME.size + _HEAD.size, end - len(_END))
    body = slice(0, 0)
    if body_size:
        frame = _FRAME.unpack_from(buffer, end)
        if frame != (_BODY, channel, body_size) or body_size > LARGEST_IN_ONE_PIECE:
            return None, 0
        body = slice(end + _FRAME.size, end + _FRAME.size + body_size)
        end = body.stop + len(_END)
    if end > len(buffer):
        return None, end
    consumer_tag = offset + _FRAME.size + len(_BASIC_DELIVER)
    tag, redelivered = _TAG.unpack_from(buffer, consumer_tag + 1 + buffer[consumer_tag])
    return RabbitDelivery(tag, redelivered, buffer[properties], buffer[body]), end


def _is_delivery(buffer: bytes, offset: int) -> bool:
    begin = offset + _FRAME.size
    return buffer[offset : offset + 1] == b"\1" and buffer[begin : begin + len(_BASIC_DELIVER)] == _BASIC_DELIVER
