"""Frames that are written and read without pika, compared with pika's codec, in pieces of any size."""

import pytest
from pika import frame, spec

from connectors.rabbitmq.frames import LARGEST_IN_ONE_PIECE, RabbitDelivery, publication, small_deliveries
from connectors.rabbitmq.wire import Fields, encode_fields

PROPERTIES = encode_fields(Fields(message_id="ID:1"))


def pika_frames(data):
    """The frames that pika's decoder finds in the bytes."""
    found = []
    while data:
        size, one = frame.decode_frame(data)
        assert one is not None
        found.append(one)
        data = data[size:]
    return found


def delivered(tag, body, *, properties=PROPERTIES, redelivered=False, body_frames=None):
    """The frames of a delivery, as a server writes them."""
    method = spec.Basic.Deliver("ctag", tag, redelivered, "exchange", "key")
    head = spec.BasicProperties(message_id="ID:1") if properties == PROPERTIES else spec.BasicProperties()
    pieces = [frame.Method(1, method).marshal(), frame.Header(1, len(body), head).marshal()]
    pieces += [frame.Body(1, part).marshal() for part in (body_frames or ([body] if body else []))]
    return b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000])
def test_a_publication_is_what_pika_would_write(size):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    method, head, *parts = pika_frames(publication(3, "x", "rücken", PROPERTIES, body, 4096, mandatory=True))
    assert (method.channel_number, method.method.exchange, method.method.routing_key) == (3, "x", "rücken")
    assert method.method.mandatory is True
    assert (head.channel_number, head.body_size, head.properties.message_id) == (3, size, "ID:1")
    assert b"".join(part.fragment for part in parts) == body
    assert all(len(part.fragment) <= 4096 - 8 for part in parts)


def test_deliveries_are_read_up_to_what_is_something_else():
    beat = frame.Heartbeat().marshal()
    data = delivered(1, b"a") + delivered(2, b"", redelivered=True) + beat + delivered(3, b"c")
    found, end, is_waiting = small_deliveries(data)
    assert found == [
        RabbitDelivery(1, redelivered=False, properties=PROPERTIES, body=b"a"),
        RabbitDelivery(2, redelivered=True, properties=PROPERTIES, body=b""),
    ]
    assert data[end:].startswith(beat)
    assert not is_waiting


def test_wherever_the_bytes_are_cut_nothing_is_lost():
    data = delivered(1, b"first") + delivered(2, b"") + delivered(3, bytes(300))
    for cut in range(len(data) + 1):
        found, end, is_waiting = small_deliveries(data[:cut])
        assert is_waiting or len(data[end:cut]) < 11
        more, stop, _ = small_deliveries(data[end:])
        assert end + stop == len(data)
        assert [one.tag for one in found + more] == [1, 2, 3]


@pytest.mark.parametrize(
    "data",
    [
        delivered(1, b"ab", body_frames=[b"a", b"b"]),
        delivered(1, bytes(LARGEST_IN_ONE_PIECE + 1)),
        delivered(1, b"a").replace(b"\2\0\1", b"\2\0\2", 1),
        frame.Method(1, spec.Basic.Deliver("t", 1, False, "", "")).marshal() + frame.Heartbeat().marshal() + bytes(20),
        frame.Method(1, spec.Basic.CancelOk("t")).marshal(),
    ],
    ids=["two body frames", "large", "of two channels", "interrupted", "another method"],
)
def test_what_is_not_a_small_delivery_is_left_alone(data):
    assert small_deliveries(data) == ([], 0, False)


def test_a_large_delivery_is_left_alone_as_soon_as_its_size_is_known():
    data = delivered(1, bytes(LARGEST_IN_ONE_PIECE + 1))
    known = len(data) - LARGEST_IN_ONE_PIECE - 2
    assert small_deliveries(data[:known]) == ([], 0, False)
