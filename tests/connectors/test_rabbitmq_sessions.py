"""Sessions over a real RabbitMQ server: the tests that hold over every broker, and tests for RabbitMQ alone."""

import pytest

from connectors.messaging import AcknowledgeMode
from connectors.rabbitmq import RabbitConnection, browsing
from connectors.rabbitmq_stream import StreamConnection
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message
from tests.connectors.test_messaging import OverEveryBroker, World, bodies, numbered, receive, rest, send
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq


class TestOverRabbitMQ(OverEveryBroker):
    @pytest.fixture
    def world(self, rabbit: RabbitServer):
        return World(RabbitConnection, rabbit.options, queues=rabbit.queue)


@pytest.fixture
def world(rabbit: RabbitServer):
    return World(RabbitConnection, rabbit.options, queues=rabbit.queue)


@pytest.fixture
def connection(world):
    with world.factory().create_connection() as connection:
        yield connection


def test_a_queue_cannot_be_selected_from_and_can_be_browsed_with_a_selector(world, connection):
    session, queue = connection.create_session(), world.queue()
    with pytest.raises(ConfigError, match="^E1220"):
        session.create_consumer(queue, "n = 1")
    send(session, queue, numbered(2))
    assert bodies(session.create_browser(queue, "n = 2").enumerate()) == ["2"]


@pytest.mark.parametrize(("count", "held"), [(300, 1000), (250, 100), (200, 100)])
def test_r7_the_order_of_a_quorum_queue_stays(rabbit: RabbitServer, monkeypatch, count, held):
    """This holds even if the browser needs several consumers."""
    monkeypatch.setattr(browsing, "MOST_HELD", held)
    world = World(RabbitConnection, {**rabbit.options, "queue_type": "quorum"}, queues=rabbit.queue)
    queue = world.queue()
    with world.factory().create_connection() as connection:
        session = connection.create_session()
        send(session, queue, numbered(count))
        for _ in range(2):
            assert bodies(session.create_browser(queue).enumerate()) == bodies(numbered(count))
        assert bodies(receive(session.create_consumer(queue), count)) == bodies(numbered(count))


def test_a_stream_is_read_and_browsed(rabbit: RabbitServer):
    world = World(StreamConnection, {**rabbit.options, "port": rabbit.stream_port}, queues=rabbit.queue)
    stream = world.queue()
    with world.factory().create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.CLIENT_CUMULATIVE)
        send(session, stream, numbered(5))
        messages = receive(session.create_consumer(stream, subscription="reader"), 5)
        session.acknowledge(messages[2])
        session.close()
        session = connection.create_session()
        assert bodies(session.create_browser(stream).enumerate()) == bodies(numbered(5))
        assert bodies(receive(session.create_consumer(stream, subscription="reader"), 2)) == ["4", "5"]


def test_a_queue_that_nobody_made_is_not_made_by_looking(rabbit: RabbitServer, world, connection):
    queue = world.queue()
    looking = connection.create_session().create_browser(queue)
    with pytest.raises(UsageError, match="^E2027"):
        looking.enumerate()
    assert queue.removeprefix("queue:") not in rabbit.control("list_queues", "name").splitlines()


def test_r14_a_message_that_reaches_no_queue_is_raised(world, connection):
    producer = connection.create_session().create_producer(world.queue())
    with pytest.raises(SendRejected, match="^E8101"):
        producer.send(Message(b"x", destination="queue:nobody made it"))
    producer.send(Message(b"y"))


def test_r14_a_message_that_the_server_does_not_accept_is_refused_alone(world, connection):
    queue, session = world.queue(), connection.create_session()
    options = {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    producer = session.create_producer(queue, options=options)
    producer.send(Message(b"1"))
    with pytest.raises(SendRejected, match="^E8102"):
        producer.send(Message(b"2"))
    consumer = session.create_consumer(queue, options=options)
    assert bodies(receive(consumer, 1)) == ["1"]
    producer.send(Message(b"3"))
    assert bodies(receive(consumer, 1)) == ["3"]


def test_messages_are_persistent_unless_they_say_otherwise(world, connection):
    queue = world.queue()
    session = connection.create_session()
    fleeting = Message(b"2", {}, None, None, Headers(persistent=False))
    send(session, queue, [Message(b"1"), fleeting])
    messages = receive(session.create_consumer(queue), 2)
    assert [message.headers.persistent for message in messages] == [True, False]


def test_sessions_survive_a_server_that_closes_their_connections(rabbit: RabbitServer, world, connection):
    queue = world.queue()
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(queue)
    send(session, queue, numbered(2))
    receive(consumer, 2)
    rabbit.close_connections()
    with pytest.raises(ConnectionLost, match="^E70"):
        consumer.receive(30)
    messages = receive(consumer, 2)
    assert [(message.body, message.headers.redelivered) for message in messages] == [(b"1", True), (b"2", True)]
    session.acknowledge(messages[1])
    consumer.close()
    assert rest(session, queue) == []


@pytest.mark.parametrize("create", ["create_durable_consumer", "create_shared_consumer", "create_consumer"])
def test_q8_every_kind_of_subscription_exists_where_queues_are_quorum_queues(rabbit: RabbitServer, create):
    world = World(RabbitConnection, {**rabbit.options, "queue_type": "quorum"}, queues=rabbit.queue)
    topic = world.queue().replace("queue:", "topic:")
    arguments = () if create == "create_consumer" else ("news",)
    with world.factory().create_connection() as connection:
        session = connection.create_session()
        consumer = getattr(session, create)(topic, *arguments)
        if create == "create_durable_consumer":
            with pytest.raises(UsageError, match="^E7516"):
                session.create_durable_consumer(topic, "news")
        send(session, topic, numbered(1))
        assert bodies(receive(consumer, 1)) == ["1"]


@pytest.mark.parametrize("create", ["create_consumer", "create_shared_consumer"])
def test_q8_a_lost_connection_ends_a_subscription_that_is_not_durable_and_that_is_told(
    rabbit: RabbitServer, world, connection, create
):
    topic = world.queue().replace("queue:", "topic:")
    session = connection.create_session()
    consumer = getattr(session, create)(topic, *(() if create == "create_consumer" else ("news",)))
    rabbit.close_connections()
    codes = []
    while "W7020" not in codes:
        with pytest.raises(ConnectionLost) as raised:
            consumer.receive(30)
        codes.append(raised.value.code)
    assert consumer.receive(0) is None
    send(session, topic, numbered(1))
    assert bodies(receive(consumer, 1)) == ["1"]
