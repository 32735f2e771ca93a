"""Sessions over a real RabbitMQ server: the tests that hold over every broker, and tests for RabbitMQ alone."""

import pytest

from connectors.messaging import AcknowledgeMode
from connectors.rabbitmq import RabbitConnection, browsing
from connectors.rabbitmq.link import RabbitLink
from connectors.rabbitmq_stream import StreamConnection
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message
from correlator.settings import ReceiverSettings
from tests.connectors.test_messaging import OverEveryBroker, World, bodies, numbered, receive, rest, send
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq
DAY_MS = "86400000"


class TestOverRabbitMQ(OverEveryBroker):
    @pytest.fixture
    def world(self, rabbit: RabbitServer):
        return World(RabbitConnection, rabbit.options, queues=rabbit.queue)


@pytest.fixture
def world(rabbit: RabbitServer):
    return World(RabbitConnection, rabbit.options, queues=rabbit.queue)


@pytest.fixture
def quorum(rabbit: RabbitServer):
    """A world whose queues are quorum queues."""
    return World(RabbitConnection, {**rabbit.options, "queue_type": "quorum"}, queues=rabbit.queue)


def topic_in(world):
    return world.queue().replace("queue:", "topic:")


def arguments_of(rabbit, queue):
    """The arguments of a queue, as the server shows them; `None` if it is not there."""
    lines = rabbit.control("list_queues", "name", "arguments", "--no-table-headers").splitlines()
    return dict(line.split("\t") for line in lines).get(queue)


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
def test_r7_the_order_of_a_quorum_queue_stays(quorum, monkeypatch, count, held):
    """This holds even if the browser needs several consumers."""
    monkeypatch.setattr(browsing, "MOST_HELD", held)
    queue = quorum.queue()
    with quorum.factory().create_connection() as connection:
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
    assert queue.removeprefix("queue:") not in rabbit.queues()


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
def test_q8_every_kind_of_subscription_exists_where_queues_are_quorum_queues(quorum, create):
    topic = topic_in(quorum)
    arguments = () if create == "create_consumer" else ("news",)
    with quorum.factory().create_connection() as connection:
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
    topic = topic_in(world)
    session = connection.create_session()
    consumer = getattr(session, create)(topic, *(() if create == "create_consumer" else ("news",)))
    rabbit.close_connections()
    report_loss(consumer)
    assert consumer.receive(0) is None
    send(session, topic, numbered(1))
    assert bodies(receive(consumer, 1)) == ["1"]


def report_loss(consumer):
    """Receive until the consumer has made its queue again."""
    codes = []
    while "W7020" not in codes:
        with pytest.raises(ConnectionLost) as raised:
            consumer.receive(30)
        codes.append(raised.value.code)


def test_q8_a_queue_that_is_made_again_and_that_nobody_consumes_from_ends_after_a_day(rabbit, world, connection):
    topic = topic_in(world)
    consumer = connection.create_session().create_shared_consumer(topic, "news")
    rabbit.close_connections()
    report_loss(consumer)
    consumer.close()
    assert DAY_MS in arguments_of(rabbit, f"{topic.removeprefix('topic:')}:news:nondurable")


def test_s1_9_what_is_left_of_temporary_destinations_ends_after_a_day(rabbit, connection):
    session = connection.create_session()
    queue, topic = session.create_temporary_queue(), session.create_temporary_topic()
    session.create_shared_durable_consumer(topic, "news").close()
    for name in (queue.removeprefix("queue:"), f"{topic.removeprefix('topic:')}:news"):
        assert DAY_MS in arguments_of(rabbit, name)


def test_q8_a_refused_consumer_of_a_quorum_queue_is_sent_no_message(quorum):
    """Otherwise each attempt would count as a delivery, and the delivery limit would end the message."""
    topic = topic_in(quorum)
    with quorum.factory().create_connection() as connection:
        session, other = connection.create_session(), connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_durable_consumer(topic, "news")  # it is sent one message ahead
        send(session, topic, numbered(3))
        for _ in range(5):
            with pytest.raises(UsageError, match="^E7516"):
                other.create_durable_consumer(topic, "news")
        messages = receive(consumer, 3)
    assert bodies(messages) == ["1", "2", "3"]
    assert not any(message.headers.redelivered for message in messages)


def test_q8_the_consumers_of_a_quorum_queue_follow_each_other(quorum):
    topic = topic_in(quorum)
    with quorum.factory().create_connection() as connection:
        session = connection.create_session()
        for _ in range(10):
            session.create_durable_consumer(topic, "news").close()


def test_s1_5_two_selectors_are_refused_although_only_one_consumer_shares_the_subscription(quorum):
    topic = topic_in(quorum)
    with quorum.factory().create_connection() as connection:
        session = connection.create_session()
        session.create_durable_consumer(topic, "news", "n = 1")
        with pytest.raises(UsageError, match=f"^E7517 .*{topic}"):
            session.create_shared_durable_consumer(topic, "news", "n = 2")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_s1_4_the_queue_of_a_subscription_is_deleted_unless_it_has_a_consumer(rabbit, kind):
    world = World(RabbitConnection, {**rabbit.options, "queue_type": kind}, queues=rabbit.queue)
    topic = topic_in(world)
    with world.factory().create_connection() as connection:
        session = connection.create_session()
        consumer = session.create_shared_durable_consumer(topic, "news")
        with pytest.raises(UsageError, match=f"^E7513 {topic}"):
            session.unsubscribe(topic, "news")
        consumer.close()
        session.unsubscribe(topic, "news")
        with pytest.raises(UsageError, match=f"^E7512 {topic}"):
            session.unsubscribe(topic, "news")


def test_s1_4_a_queue_that_gets_a_consumer_during_its_deletion_stays(rabbit: RabbitServer, monkeypatch):
    queue, ask = rabbit.queue(), RabbitLink.ask

    def answer_late(link, request):
        answer = ask(link, request)
        if not channel.consumer_tags:
            channel.basic_consume(queue, lambda *_: None)
        return answer

    with rabbit.channel() as channel:
        channel.queue_declare(queue, durable=True)
        monkeypatch.setattr(RabbitLink, "ask", answer_late)
        with pytest.raises(UsageError, match=f"^E7513 queue:{queue}: somebody consumes from it"):
            rabbit.connection().delete(f"queue:{queue}")
    assert arguments_of(rabbit, queue) is not None


def test_s1_4_the_name_of_a_subscription_has_no_colon(rabbit: RabbitServer, world, connection):
    """With one, its queue could be that of another subscription, or an ordinary queue."""
    session, name = connection.create_session(), world.queue().removeprefix("queue:")
    session.create_shared_durable_consumer(f"topic:{name}:b", "c").close()
    with pytest.raises(ConfigError, match="^E1022 unsubscribe topic:.*'b:c'.*without ':'"):
        session.unsubscribe(f"topic:{name}", "b:c")
    for create in (
        session.create_shared_consumer,
        session.create_durable_consumer,
        session.create_shared_durable_consumer,
    ):
        with pytest.raises(ConfigError, match="^E1022 .*'b:c'"):
            create(f"topic:{name}", "b:c")
    assert arguments_of(rabbit, f"{name}:b:c") is not None
    receiver = ReceiverSettings(
        id="r", connection="rabbit", destination=f"topic:{name}", durable_topic_subscription_name="b:c"
    )
    rabbit.connection().source(receiver)  # engines keep their subscriptions
