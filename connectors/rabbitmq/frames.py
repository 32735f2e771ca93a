"""Encodes publications and decodes deliveries as frames of AMQP 0-9-1: the work that every single message needs.

pika makes an object of each of the three or more frames of a message, and writes each frame with a system call of its
own. Here a publication is one piece of bytes, and a delivery is a slice of the received bytes. This module does no I/O.

A subclass of pika's `BasicProperties` that returns encoded bytes would be less code, but it leaves all that to pika: to
publish a message of 100 bytes in a window of 1,000 takes 14.5 µs of processor time with it, and 2.1 µs here.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_BASIC_PUBLISH = b"\0\x3c\0\x28\0\0"
"""Class, method, and a reserved field."""
_BASIC_DELIVER = b"\0\x3c\0\x3c"
_FRAME = struct.Struct(">BHI")
_HEAD = struct.Struct(">HHQ")
_BASIC = 60
FRAME_OVERHEAD = _FRAME.size + len(_END)
_TAG = struct.Struct(">Q?")
LARGEST_IN_ONE_PIECE = 64 * 1024
"""Size in bytes of the largest body that is decoded here. pika reads larger ones frame by frame: here each read from
the socket would copy the body again until it is complete.
"""


class RabbitDelivery(NamedTuple):
    """A delivered message; its properties are still encoded."""

    tag: int
    redelivered: bool
    properties: bytes
    body: bytes


def largest_properties(frame_max: int) -> int:
    """Return the most bytes that the encoded properties of a message may have, since they must fit into one frame."""
    return frame_max - FRAME_OVERHEAD - _HEAD.size


def publication(
    channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, frame_max: int, *, mandatory: bool
) -> bytes:
    """Return all frames of a message, none of them larger than `frame_max`."""
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
    """Decode the deliveries at the beginning of the buffer, each of at most three frames.

    Stops at a larger delivery and at any other frame. Returns the deliveries, the offset after them, and whether the
    next delivery is not complete yet.
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
    """Return the delivery at the offset and the offset after it; `None` if it has another form or is not complete yet.

    Raises `struct.error` if the buffer is too short to decide.
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
