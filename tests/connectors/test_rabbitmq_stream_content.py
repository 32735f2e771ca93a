"""Messages in the format of streams: our messages can be read by us and by others, and no message does harm."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rstream import AMQPMessage, Header, Properties, amqp_decoder

from connectors.progress import ReadProgress
from connectors.rabbitmq_stream.content import EntryOffset, decode, encode
from connectors.rabbitmq_stream.feed import MOST_CREDITS, EntryRun, Feed
from correlator.events import Headers, Message, Outgoing

PLACE = EntryOffset("s", 7, 1000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.just("long ä" * 50)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=20)
)
NAMES = TEXTS.filter(lambda name: not name.startswith("amqp_") and name != "x-stream-offset")


def read(encoded, *, wants=False):
    return decode(encoded, PLACE, wants_id=wants, wants_source=wants)


def written(message):
    return encode(Outgoing(3, "life", "queue:s", message), "ID:3:life", 500)


@given(
    body=st.binary(max_size=20) | st.just(bytes(300)),
    properties=st.dictionaries(NAMES, VALUES, max_size=5),
    key=st.none() | TEXTS,
    headers=st.builds(
        Headers,
        correlation_id=st.none() | TEXTS,
        type=st.none() | TEXTS,
        reply_to=st.none() | TEXTS.filter(bool).map(lambda text: f"queue:{text}"),
        priority=st.none() | st.integers(0, 255),
        persistent=st.none() | st.booleans(),
        time_to_live_ms=st.none() | st.integers(1, 2**32 - 1),
    ),
)
def test_everything_that_is_sent_arrives(body, properties, key, headers):
    received = read(written(Message(body, properties, key, None, headers)))
    offset = received.properties.pop("x-stream-offset")
    assert (received.body, received.key, offset) == (body, key, 7)
    assert received.properties == properties
    assert all(type(received.properties[name]) is type(value) for name, value in properties.items())
    arrived = received.headers
    assert (arrived.message_id, arrived.timestamp) == ("ID:3:life", 500)
    assert (arrived.correlation_id, arrived.type, arrived.priority) == (
        headers.correlation_id,
        headers.type,
        headers.priority,
    )
    assert (arrived.reply_to, arrived.persistent) == (headers.reply_to, headers.persistent)
    assert arrived.time_to_live_ms == headers.time_to_live_ms
    assert arrived.expiration == (None if headers.time_to_live_ms is None else 500 + headers.time_to_live_ms)


def test_another_codec_reads_what_is_written():
    content = Message(b"body", {"n": 7, "text": "a", "amqp_content_type": "text/plain"}, "key")
    message = amqp_decoder(written(content))
    assert message.body == b"body"
    assert message.application_properties == {b"n": 7, b"text": b"a"}
    assert (message.properties.message_id, message.properties.group_id) == (b"ID:3:life", b"key")
    assert message.properties.content_type == b"text/plain"


def test_what_another_codec_writes_is_read():
    properties = Properties(uuid.UUID(int=5), b"u", "to", "subject", "answers", 17, "text/plain", None, 20, 10, "g", 1)
    own = {"t": "a", "b": b"b", "n": None, "f": 1.5, "y": True, "l": -(2**40), "id": uuid.UUID(int=6)}
    message = AMQPMessage(
        Header(durable=True, priority=3, ttl=9), None, {"x": 1}, properties, own, b"body", None, None, {"z": 1}
    )
    received = read(bytes(message))
    assert (received.body, received.key) == (b"body", "g")
    wanted = {**own, "id": str(uuid.UUID(int=6)), "amqp_content_type": "text/plain", "x-stream-offset": 7}
    assert received.properties == wanted
    assert received.headers == Headers(
        message_id=str(uuid.UUID(int=5)),
        correlation_id="17",
        reply_to="queue:answers",
        type="subject",
        priority=3,
        persistent=True,
        time_to_live_ms=9,
        expiration=20,
        timestamp=10,
        group_sequence=1,
    )


@pytest.mark.parametrize(
    ("encoded", "body"),
    [
        (b"\x00\x53\x77\xa1\x04text", b"text"),
        (b"\x00\x53\x77\xa0\x02\x00\xff", b"\x00\xff"),
        (b"\x00\x53\x77\xc1\x06\x02\xa1\x01a\x54\x07", b'{"a":7}'),
        (b"\x00\x53\x76\xc0\x04\x02\x54\x01\x40", b"[[1,null]]"),
        (b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xa0\x01b", b"ab"),
        (b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01a", b"a"),
        (b"\x00\x53\x77\xe0\x05\x03\x50\x01\x02\x03", b"[1,2,3]"),
        (b"", b""),
        (b"plain text", b"plain text"),
        (b"\x00\x53\x75\xa0\x09cut", b"\x00\x53\x75\xa0\x09cut"),
        (b"\x00\x53\x73\x45", b"\x00\x53\x73\x45"),  # without a body
        (b"\x00\x53\x77\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",)
        * 2,  # an array that claims four thousand million nulls
        (b"\x00\x53\x77" + b"\x00\x40" * 5000,) * 2,  # deeper than can be read
    ],
)
def test_bodies_of_others(encoded, body):
    assert read(encoded).body == body


@given(st.binary(max_size=200))
def test_anything_can_be_read(content):
    assert isinstance(read(content).body, bytes)
    assert isinstance(read(b"\x00\x53\x74" + content).body, bytes)
    read(b"\x00\x53\x77" + content)


def test_properties_that_only_others_can_write():
    array = b"\x00\x53\x74\xc1\x0b\x02\xa1\x01a\xe0\x05\x03\x50\x01\x02\x03" + b"\x00\x53\x75\xa0\x00"
    assert json.loads(read(array).properties["a"]) == [1, 2, 3]


def test_identities_where_there_are_none():
    received = read(b"x", wants=True)
    assert received.properties["uniqueMessageId"] == received.headers.message_id == "7-1000:s"
    assert received.properties["messageSourceId"] == "s"
    assert "uniqueMessageId" not in read(b"x").properties


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x", {"n": 2**63}),
        Message(b"x", {"n": [1]}),
        Message(b"x", {7: "n"}),
        Message(b"x", {"half": "\ud800"}),
        Message(b"x", {"amqp_content_type": 7}),
        Message(b"x", {"amqp_content_type": "ü"}),
        Message(b"x", headers=Headers(priority=-1)),
        Message(b"x", headers=Headers(time_to_live_ms=2**32)),
        Message("text"),
        Message(b"x", headers=Headers(reply_to=7)),
    ],
)
def test_what_cannot_be_carried(message):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        written(message)


# --- what is held, and how much may come ---


def test_positions_move_over_what_is_acknowledged_in_any_order():
    progress = ReadProgress(10)
    one, two, three = progress.take([11, 12]), progress.take([14, 17, 20]), progress.take([21])
    assert not progress.acknowledge([*two[1:], *three])
    assert (progress.position, progress.held, progress.done) == (10, 3, [(14, 21)])
    progress.reject(one)
    assert progress.next() == (10, 12)
    again = progress.take([11])
    assert progress.next() == (11, 12)
    rest = progress.take([12])
    assert progress.next() == (21, None)
    assert progress.acknowledge(again)
    assert progress.position == 11
    assert progress.acknowledge([*rest, *one])
    assert (progress.position, progress.done) == (12, [(14, 21)])
    assert progress.acknowledge(two)
    assert (progress.position, progress.held, progress.done) == (21, 0, [])


def test_credits_are_given_for_what_fits():
    feed = Feed(1, 0, most=100, most_bytes=1000)
    assert feed.room() == 1
    assert feed.room() == 0
    feed.put([EntryRun(0, 0, [b"x"] * 20)])
    assert feed.room() == 4  # 80 more entries, 20 in a chunk
    feed.put([EntryRun(20, 0, [b"x" * 100] * 9)])
    assert feed.room() == 0
    feed.put([EntryRun(29, 0, [b"x" * 500])])
    feed.put([EntryRun(30, 0, [b"x"])])
    assert feed.room() == 0
    assert [run.end for run in feed.take(0, None, 29, 0.0).runs] == [20, 29]
    assert feed.room() == MOST_CREDITS - 1  # one is still out
    assert [run.first for run in feed.take(30, None, 29, 0.0).runs] == [30]


def test_chunks_are_cut_where_bytes_or_places_demand_it():
    feed = Feed(1, 0, most=100, most_bytes=100)
    feed.put([EntryRun(5, 0, [b"x" * 60, b"x" * 40, b"x", b"x" * 200, b"x"])])
    taken = [feed.take(0, None, 100, 0.0).runs[0] for _ in range(4)]
    assert [(run.first, run.end) for run in taken] == [(5, 7), (7, 8), (8, 9), (9, 10)]
    feed.put([EntryRun(20, 0, [b"a", b"b", b"c"])])
    runs, reached = feed.take(12, 22, 100, 0.0)
    assert ([run.entries for run in runs], reached) == ([[b"a", b"b"]], True)
    assert feed.take(12, 22, 100, 0.0) == ([], True)
