"""What messages of sessions carry: their kinds, ids, groups and delays. Nothing that a message names is loaded."""

import dataclasses
import pickle
import time

import pytest

from connectors import kinds
from connectors.file import FileConnection
from correlator.errors import SendRejected, UsageError
from correlator.events import Headers, Message
from tests.connectors.test_messaging import BROKERS, World, receive, send, world_over


@dataclasses.dataclass
class Order:
    number: int
    items: list[str]


VALUES = [None, True, -7, 2**40, 1.5, "ü", b"\0\xff"]
ENTRIES = {str(at): value for at, value in enumerate(VALUES)}


@pytest.mark.parametrize("broker", BROKERS)
def test_a_message_of_each_kind_arrives_as_what_it_was(broker, request):
    world = world_over(broker, request)
    messages = [
        kinds.text_message("Grüße", {"n": 1}, group="g", group_sequence=3, headers=Headers(type="t")),
        kinds.bytes_message(b"\0\xff"),
        kinds.map_message(ENTRIES),
        kinds.stream_message(VALUES),
        kinds.data_message(Order(7, ["a"])),
    ]
    with world.factory().create_connection() as connection:
        session, queue = connection.create_session(), world.queue()
        send(session, queue, messages)
        text, raw, entries, stream, data = receive(session.create_consumer(queue), 5)
    assert [kinds.kind_of(one) for one in (text, raw, entries, stream, data)] == [
        "text",
        "bytes",
        "map",
        "stream",
        "text",
    ]
    assert (kinds.text_of(text), text.key, text.headers.type) == ("Grüße", "g", "t")
    assert text.properties["n"] == 1
    assert raw.body == b"\0\xff"
    assert kinds.map_of(entries) == ENTRIES
    assert kinds.stream_of(stream) == VALUES
    assert kinds.data_of(data, Order) == Order(7, ["a"])


@pytest.mark.parametrize("broker", BROKERS)
def test_s3_4_the_number_in_a_group_arrives(broker, request):
    world = world_over(broker, request)
    with world.factory().create_connection() as connection:
        session, queue = connection.create_session(), world.queue()
        send(session, queue, [kinds.text_message("x", group="g", group_sequence=3)])
        (message,) = receive(session.create_consumer(queue), 1)
    assert (message.key, message.headers.group_sequence) == ("g", 3)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (kinds.text_of, kinds.map_message({})),
        (kinds.text_of, Message(b"\xff")),
        (kinds.map_of, kinds.text_message("x")),
        (kinds.map_of, Message(pickle.dumps({}), {"jms_message_type": "map"})),
        (kinds.stream_of, kinds.text_message("x")),
        (kinds.stream_of, Message(b"\xff", {"jms_message_type": "stream"})),
        (lambda message: kinds.data_of(message, Order), kinds.text_message('{"number": "x", "items": []}')),
        (lambda message: kinds.data_of(message, Order), Message(pickle.dumps(1), {"jms_message_type": "object"})),
    ],
)
def test_what_is_not_of_its_kind_is_told(read, message):
    with pytest.raises(UsageError, match="^E7549 "):
        read(message)


@pytest.mark.parametrize(
    "make",
    [
        lambda: kinds.text_message("\ud800"),
        lambda: kinds.map_message({1: "a"}),
        lambda: kinds.map_message({"a": object()}),
        lambda: kinds.stream_message([2**70]),
        lambda: kinds.data_message(object()),
    ],
)
def test_what_a_kind_cannot_hold_is_refused(make):
    with pytest.raises(UsageError, match="^E7549 "):
        make()


def test_bytes_have_no_kind_though_the_properties_of_another_message_name_one():
    copied = kinds.bytes_message(b"\0", kinds.map_message({"a": 1}, {"n": 1}).properties)
    assert (kinds.kind_of(copied), copied.properties) == ("bytes", {"n": 1})


CARRYING = [broker for broker in BROKERS if broker != "memory"]
DELAYING = [broker for broker in CARRYING if "rabbitmq" not in str(broker)]
"""The connectors that declare `Features.delays`."""


@pytest.mark.parametrize("broker", CARRYING)
def test_q2_the_id_that_send_returns_is_the_one_that_the_consumer_sees(broker, request):
    world = world_over(broker, request)
    with world.factory().create_connection() as connection:
        session, queue = connection.create_session(), world.queue()
        producer = session.create_producer(queue)
        ids = [producer.send(Message(body)) for body in (b"1", b"2")]
        received = receive(session.create_consumer(queue), 2)
    assert [message.headers.message_id for message in received] == ids


@pytest.mark.parametrize("broker", DELAYING)
def test_s4_4_a_delayed_message_comes_later(broker, request):
    world = world_over(broker, request)
    with world.factory().create_connection() as connection:
        session, queue = connection.create_session(), world.queue()
        consumer, producer = session.create_consumer(queue), session.create_producer(queue)
        begin = time.monotonic()
        producer.send(Message(b"x"), delivery_delay_ms=1500)
        (message,) = receive(consumer, 1)
    assert time.monotonic() - begin >= 1.4
    assert message.headers.delivery_time >= message.headers.timestamp + 1500


def test_a_broker_in_memory_that_cannot_delay_refuses():
    refuses_to_delay(world_over("memory", None), "queue:q")


@pytest.mark.rabbitmq
def test_rabbitmq_cannot_delay_and_refuses(request):
    world = world_over("rabbit", request)
    refuses_to_delay(world, world.queue())


def test_a_file_cannot_delay_and_refuses(tmp_path):
    refuses_to_delay(World(FileConnection, {"path": str(tmp_path)}), "queue:a.jsonl")


def refuses_to_delay(world, queue):
    with world.factory().create_connection() as connection:
        producer = connection.create_session().create_producer(queue)
        with pytest.raises(SendRejected, match="delay"):
            producer.send(Message(b"{}"), delivery_delay_ms=1)
        producer.send(Message(b"{}"))
