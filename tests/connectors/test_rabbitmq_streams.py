"""Streams of a real server: reading by offset, numbers by which the server recognises repeats, and messages."""

import asyncio
import threading
import time
from contextlib import closing
from datetime import UTC, datetime

import pika
import pytest
from rstream import AMQPMessage, CompressionType, Producer, Properties, RawMessage

from connectors.rabbitmq_stream import link
from connectors.rabbitmq_stream.feed import MOST_CREDITS
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import codes, opened, outgoing
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq


def receiver(stream, name="r", **options):
    settings = {key: options.pop(key) for key in ("max_batch_size", "max_batch_bytes") if key in options}
    settings = {"max_batch_size": 10_000, **settings}
    return ReceiverSettings(id=name, connection="rabbit", destination=f"queue:{stream}", options=options, **settings)


def sender(stream, **options):
    destination = None if stream is None else f"queue:{stream}"
    return SenderSettings(id="s", connection="rabbit", destination=destination, options=options)


def available(connection, stream):
    """A sink of a stream that can be written to: a server that has just started may have no leader for it yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        sink = connection.sink(sender(stream))
        try:
            sink.connect()
        except ConnectionLost:
            sink.close()
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.05)
        else:
            return sink


def send(rabbit, stream, *contents, source="life", first=1):
    with closing(available(rabbit.stream_connection(), stream)) as sink:
        batch = [
            Outgoing(number, source, f"queue:{stream}", Message(content))
            for number, content in enumerate(contents, first)
        ]
        assert not any(sink.send(batch))


def read(rabbit, stream, wanted, name="r", acknowledge=True, **options):
    """Read exactly `wanted` messages."""
    with opened(rabbit.stream_connection().source(receiver(stream, name, **options))) as source:
        chunks = take(source, wanted)
        if acknowledge:
            source.acknowledge(tokens(chunks))
        assert not source.receive(10, 0.2).messages
    return [message for chunk in chunks for message in chunk.messages]


def contents(messages):
    return [message.body for message in messages]


# --- reading by offset ---


def test_every_receiver_reads_everything_and_goes_on_where_it_was(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1", b"2", b"3")
    assert contents(read(rabbit, stream, 3, "one")) == [b"1", b"2", b"3"]
    send(rabbit, stream, b"4", first=4)
    assert contents(read(rabbit, stream, 1, "one")) == [b"4"]
    assert contents(read(rabbit, stream, 4, "two")) == [b"1", b"2", b"3", b"4"]


def test_reading_begins_where_the_option_says(rabbit: RabbitServer):
    stream = rabbit.queue()
    for number in range(4):
        send(rabbit, stream, b"%d a" % number, b"%d b" % number, first=1 + 2 * number)
    everything = read(rabbit, stream, 8)
    offsets = [message.properties["x-stream-offset"] for message in everything]
    assert offsets == sorted(set(offsets))
    assert contents(read(rabbit, stream, 8, "first", offset="first")) == contents(everything)
    assert contents(read(rabbit, stream, 2, "last", offset="last")) == [b"3 a", b"3 b"]
    assert contents(read(rabbit, stream, 3, "number", offset=offsets[5])) == [b"2 b", b"3 a", b"3 b"]
    assert contents(read(rabbit, stream, 0, "next", offset="next")) == []
    moment = datetime.fromtimestamp(everything[4].headers.timestamp / 1000, UTC)
    later = contents(read(rabbit, stream, 4, "time", offset=moment.isoformat()))
    assert later == [b"2 a", b"2 b", b"3 a", b"3 b"]
    future = datetime.fromtimestamp(time.time() + 1000, UTC).isoformat()
    assert contents(read(rabbit, stream, 0, "future", offset=future)) == []


@pytest.mark.parametrize("before", [[], [b"before"]], ids=["empty", "filled"])
@pytest.mark.parametrize("offset", ["next", "last"])
def test_the_first_connect_settles_where_reading_begins(rabbit: RabbitServer, before, offset):
    """Messages that come while the receiver is away, before its first acknowledgement, are not skipped."""
    stream = rabbit.queue()
    with opened(rabbit.stream_connection().sink(sender(stream))):
        pass
    if before:
        send(rabbit, stream, *before)
    with opened(rabbit.stream_connection().source(receiver(stream, offset=offset))):
        pass
    send(rabbit, stream, b"away", first=2)
    wanted = [*(before if offset == "last" else []), b"away"]
    assert contents(read(rabbit, stream, len(wanted), offset=offset)) == wanted


def test_a_stored_offset_counts_more_than_the_option(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1", b"2")
    with opened(rabbit.stream_connection().source(receiver(stream))) as source:
        source.acknowledge(tokens(take(source, 1, 1)))
    assert contents(read(rabbit, stream, 1, offset="next")) == [b"2"]


def test_partitions_are_read_side_by_side(rabbit: RabbitServer):
    """The partitions of a super stream are streams; the receiver of each has a position of its own."""
    name = f"super-{rabbit.queue().split()[1]}"
    rabbit.streams("add_super_stream", name, "--partitions", "2")
    send(rabbit, f"{name}-0", b"a", b"b")
    send(rabbit, f"{name}-1", b"c")
    connection = rabbit.stream_connection(declare=False)
    with (
        opened(connection.source(receiver(f"{name}-0", "zero"))) as zero,
        opened(connection.source(receiver(f"{name}-1", "one"))) as one,
    ):
        first, second = take(zero, 2), take(one, 1)
        assert (bodies(first), bodies(second)) == ([b"a", b"b"], [b"c"])
        zero.acknowledge(tokens(first))
    assert contents(read(rabbit, f"{name}-1", 1, "one")) == [b"c"]


def test_acknowledged_in_another_order_only_the_beginning_counts(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1", b"2", b"3", b"4")
    with opened(rabbit.stream_connection().source(receiver(stream))) as source:
        one, two, three = (source.receive(1, PATIENCE_S) for _ in range(3))
        source.acknowledge(three.tokens)
        source.acknowledge(one.tokens)
        source.connect()
        assert bodies(take(source, 3)) == [b"2", b"3", b"4"]
        source.acknowledge([*two.tokens, *three.tokens])  # of the connection before: nothing
    assert contents(read(rabbit, stream, 3)) == [b"2", b"3", b"4"]


def test_what_is_given_back_comes_before_anything_new(rabbit: RabbitServer):
    """This holds although stored offsets, which take numbers of the stream, lie between the messages."""
    stream = rabbit.queue()
    for number in range(6):
        send(rabbit, stream, b"%d" % number, first=number + 1)
        read(rabbit, stream, 1, "other")
    with opened(rabbit.stream_connection().source(receiver(stream, max_batch_size=4))) as source:
        chunks = [source.receive(1, PATIENCE_S) for _ in range(4)]
        assert not source.receive(1, 0.1).messages  # as many are held as may be
        source.reject([*chunks[2].tokens, *chunks[0].tokens])
        again = [source.receive(5, PATIENCE_S) for _ in range(2)]
        assert [contents(chunk.messages) for chunk in again] == [[b"0"], [b"2"]]
        source.acknowledge([*chunks[1].tokens, *chunks[3].tokens, *tokens(again)])
        assert bodies(take(source, 2)) == [b"4", b"5"]


def test_given_back_and_gone_meanwhile(rabbit: RabbitServer):
    """Messages that retention has deleted are skipped."""
    stream = rabbit.queue()
    arguments = {"max-length-bytes": 40_000, "stream-max-segment-size-bytes": 20_000}
    with (
        opened(rabbit.stream_connection().source(receiver(stream, arguments=arguments, max_batch_size=5))) as source,
        opened(rabbit.stream_connection().sink(sender(stream, declare=False))) as sink,
    ):
        body = bytes(5000)
        batch = [Outgoing(n, "life", f"queue:{stream}", Message(body, {"n": n})) for n in range(1, 61)]
        assert codes(sink.send(batch[:1])) == [None]
        first = take(source, 1)
        for one in batch[1:]:
            assert codes(sink.send([one])) == [None]
        source.reject(tokens(first))
        chunk = source.receive(1, PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not chunk.messages and time.monotonic() < deadline:
            chunk = source.receive(1, 1.0)
        assert chunk.messages[0].properties["n"] > 1


def test_a_slow_receiver_bounds_what_waits(rabbit: RabbitServer):
    stream = rabbit.queue()
    count, size, most_bytes = 30_000, 1000, 1_000_000
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        batch = [Outgoing(n, "life", f"queue:{stream}", Message(bytes(size))) for n in range(1, count + 1)]
        for first in range(0, count, 1000):
            assert not any(sink.send(batch[first : first + 1000]))
    settings = receiver(stream, max_batch_size=2000, max_batch_bytes=most_bytes)
    most = 0
    with opened(rabbit.stream_connection().source(settings)) as source:
        received = 0
        while received < count:
            chunk = source.receive(100, PATIENCE_S)
            assert chunk.messages
            source.acknowledge(chunk.tokens)
            received += len(chunk.messages)
            most = max(most, source.waiting_bytes)
    largest_chunk = 1000 * (size + 200)  # the sink had no more under way
    assert most <= most_bytes + MOST_CREDITS * largest_chunk
    assert most < count * size / 2


# --- sending ---


def test_repeats_under_a_name_are_stored_once_and_without_a_name_twice(rabbit: RabbitServer):
    stream, nameless = rabbit.queue(), rabbit.queue()
    for _ in range(2):
        send(rabbit, stream, b"1", b"2")
        send(rabbit, nameless, b"1", b"2", source="")
    assert contents(read(rabbit, stream, 2)) == [b"1", b"2"]
    assert contents(read(rabbit, nameless, 4)) == [b"1", b"2", b"1", b"2"]


def test_many_sources_on_one_connection(rabbit: RabbitServer):
    """There are more sources than a connection has publishers; closed ones are made again and know their numbers."""
    stream = rabbit.queue()
    sources = [f"source {number}" for number in range(450)]
    batch = [Outgoing(1, source, f"queue:{stream}", Message(source.encode())) for source in sources]
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        assert not any(sink.send(batch))
        assert not any(sink.send(list(reversed(batch))))
    assert sorted(contents(read(rabbit, stream, 450))) == sorted(source.encode() for source in sources)


def test_what_is_refused_is_refused_alone_and_at_every_try(rabbit: RabbitServer):
    stream, missing = rabbit.queue(), rabbit.queue()
    own = f"queue:{stream}"
    batch = [
        Outgoing(1, "life", own, Message(b"1")),
        Outgoing(2, "life", own, Message(bytes(2**20))),
        Outgoing(3, "life", f"queue:{missing}", Message(b"x")),
        Outgoing(4, "life", "topic:t", Message(b"x")),
        Outgoing(5, "life" * 64, own, Message(b"x")),
        Outgoing(6, "life", own, Message(b"x", {"huge": 2**64})),
        Outgoing(7, "life", own, Message("x")),
        Outgoing(8, "life", own, Message(b"8")),
    ]
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        refused = [None, "E8106", "E8101", "E8104", "E8105", "E8110", "E8110", None]
        assert codes(sink.send(batch)) == refused
        assert [codes(sink.send([one]))[0] for one in batch] == refused
    assert contents(read(rabbit, stream, 2)) == [b"1", b"8"]


def test_the_largest_message(rabbit: RabbitServer):
    stream = rabbit.queue()
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        (refused,) = sink.send(outgoing(stream, bytes(2**20)))
        largest = 2**20 - (int(str(refused).split(" bytes")[0].split()[-1]) - int(str(refused).rstrip(".").split()[-1]))
        assert codes(sink.send(outgoing(stream, bytes(largest), bytes(largest + 1), b"more"))) == [None, "E8106", None]
    assert [len(message.body) for message in read(rabbit, stream, 2)] == [largest, 4]


def test_frames_are_as_small_as_was_agreed(rabbit: RabbitServer, monkeypatch):
    stream = rabbit.queue()
    monkeypatch.setattr(link, "_LARGEST_FRAME", 20_000)  # the smaller of both sides counts
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        batch = outgoing(stream, *(bytes(1000 + number) for number in range(100)), bytes(20_000))
        assert codes(sink.send(batch)) == [None] * 100 + ["E8106"]
    assert [len(message.body) for message in read(rabbit, stream, 100)] == [1000 + number for number in range(100)]


# --- messages ---


def test_messages_have_an_identity_of_their_place(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1", b"2")
    first, again = read(rabbit, stream, 2, "one"), read(rabbit, stream, 2, "two")
    identities = [(message.properties["uniqueMessageId"], message.properties["messageSourceId"]) for message in first]
    assert identities == [
        (message.properties["uniqueMessageId"], message.properties["messageSourceId"]) for message in again
    ]
    assert len(set(identities)) == 2
    assert {type(value) for message in first for value in message.properties.values()} == {str, int}  # can be stored
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        own = Message(b"3", {"uniqueMessageId": "mine", "messageSourceId": "me"})
        assert codes(sink.send([Outgoing(3, "life", f"queue:{stream}", own)])) == [None]
    (third,) = read(rabbit, stream, 1, "one")
    assert (third.properties["uniqueMessageId"], third.properties["messageSourceId"]) == ("mine", "me")
    assert third.headers.message_id == "ID:3:life"


def test_times(rabbit: RabbitServer):
    stream = rabbit.queue()
    before = time.time_ns() // 1_000_000
    with opened(rabbit.stream_connection().sink(sender(stream))) as sink:
        message = Message(b"x", headers=Headers(time_to_live_ms=60_000, persistent=True))
        assert codes(sink.send(outgoing(stream, message))) == [None]
    (received,) = read(rabbit, stream, 1)
    after = time.time_ns() // 1_000_000
    assert before <= received.headers.timestamp <= after
    assert received.headers.expiration == received.headers.timestamp + 60_000
    assert received.headers.time_to_live_ms == 60_000
    assert received.headers.persistent is True


def test_messages_of_other_clients(rabbit: RabbitServer):
    stream = rabbit.queue()
    with opened(rabbit.stream_connection().sink(sender(stream))):
        pass

    async def publish():
        async with Producer("127.0.0.1", rabbit.stream_port, username=rabbit.user, password=rabbit.password) as one:
            await one.send_wait(stream, RawMessage(b"not AMQP"))
            properties = Properties(message_id="m", subject="order", group_id="g", correlation_id="c")
            message = AMQPMessage(None, None, None, properties, {"text": "a", "number": 7}, b"AMQP")
            await one.send_wait(stream, message)
            packed = [RawMessage(b"packed 1"), RawMessage(b"packed 2")]
            await one.send_sub_entry(stream, packed, CompressionType.Gzip)

    asyncio.run(publish())
    with rabbit.channel() as channel:
        channel.confirm_delivery()
        headers = {"uniqueMessageId": "u"}
        channel.basic_publish("", stream, b"0-9-1", pika.BasicProperties(headers=headers, correlation_id="d"))
    raw, amqp, one, two, old = read(rabbit, stream, 5)
    assert contents([raw, one, two]) == [b"not AMQP", b"packed 1", b"packed 2"]
    assert raw.headers.message_id == raw.properties["uniqueMessageId"]
    assert (amqp.body, amqp.key, amqp.headers.type) == (b"AMQP", "g", "order")
    assert (amqp.headers.message_id, amqp.headers.correlation_id) == ("m", "c")
    assert (amqp.properties["text"], amqp.properties["number"]) == ("a", 7)
    assert (old.body, old.properties["uniqueMessageId"], old.headers.correlation_id) == (b"0-9-1", "u", "d")


def test_browsing_takes_nothing(rabbit: RabbitServer):
    stream = rabbit.queue()
    connection = rabbit.stream_connection()
    with pytest.raises(UsageError, match="E2027"):
        connection.browse(f"queue:{stream}", 10)
    with pytest.raises(UsageError, match="E2110"):
        connection.browse("topic:t", 10)
    with opened(connection.sink(sender(stream))):
        assert not connection.browse(f"queue:{stream}", 10)
    send(rabbit, stream, *(b"%d" % number for number in range(3000)))
    assert contents(connection.browse(f"queue:{stream}", 2)) == [b"0", b"1"]
    assert contents(connection.browse(f"queue:{stream}", 5000)) == [b"%d" % number for number in range(3000)]
