"""Deleting subscriptions (rule S1.4), and temporary destinations, which end with their connection (rule S1.9)."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import MetaData, func, select

from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.storage.database import reading
from correlator.testing.contract import PATIENCE_S
from tests.connectors.test_messaging import CLIENT, Connector, Memory, bodies, numbered, receive, rest, send
from tests.connectors.worker import body_of


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/broker.db"
    return request.getfixturevalue("postgres")()


@pytest.fixture
def connection(store):
    with ConnectionFactory(EmbeddedConnection, {"store": store}).create_connection() as connection:
        yield connection


@pytest.fixture
def session(connection):
    return connection.create_session()


def shown(session, queue):
    return bodies(session.create_browser(queue).enumerate())


# --- rule S1.4 ---


def test_a_subscription_is_deleted_with_what_it_keeps_and_others_stay(session):
    for topic, name in [("topic:news", "reader"), ("topic:news", "other"), ("topic:rest", "reader")]:
        session.create_consumer(topic, subscription=name).close()
    for topic in ("topic:news", "topic:rest"):
        send(session, topic, numbered(2))
    session.unsubscribe("topic:news", "reader")
    send(session, "topic:news", numbered(1, first=3))
    again = session.create_consumer("topic:news", subscription="reader")
    assert again.receive(0) is None
    send(session, "topic:news", numbered(1, first=4))
    assert bodies(receive(again, 1)) == ["4"]
    assert bodies(receive(session.create_consumer("topic:news", subscription="other"), 4)) == ["1", "2", "3", "4"]
    assert bodies(receive(session.create_consumer("topic:rest", subscription="reader"), 2)) == ["1", "2"]


def test_s1_5_another_selector_needs_a_new_subscription(session):
    session.create_consumer("topic:news", "n = 1", subscription="reader").close()
    send(session, "topic:news", numbered(1))
    with pytest.raises(UsageError, match="^E7517 topic:news: .*unsubscribe first"):
        session.create_consumer("topic:news", "n = 2", subscription="reader")
    session.create_consumer("topic:news", "n = 1", subscription="reader").close()
    session.unsubscribe("topic:news", "reader")
    consumer = session.create_consumer("topic:news", "n = 2", subscription="reader")
    send(session, "topic:news", numbered(2))
    assert bodies(receive(consumer, 1)) == ["2"]


def test_a_subscription_that_is_in_use_or_not_there_is_not_deleted(connection, session):
    other = connection.create_session(CLIENT)
    consumer = other.create_consumer("topic:news", subscription="reader")
    send(session, "topic:news", numbered(1))
    receive(consumer, 1)
    with pytest.raises(UsageError, match="^E7513 topic:news: somebody consumes from it. Close the consumer first.$"):
        session.unsubscribe("topic:news", "reader")
    other.close()
    assert bodies(receive(session.create_consumer("topic:news", subscription="reader"), 1)) == ["1"]
    for topic, name in [("topic:news", "other"), ("topic:unheard", "reader")]:
        with pytest.raises(UsageError, match=f"^E7512 {topic}: it has no subscription '{name}'.$"):
            session.unsubscribe(topic, name)


def test_the_topic_must_be_named(session):
    expected = (
        r"^E7510 unsubscribe reader: a topic and a subscription must be named: many topics may have a subscription"
    )
    with pytest.raises(UsageError, match=expected):
        session.unsubscribe("reader")
    with pytest.raises(ConfigError, match="^E1215"):
        session.unsubscribe("reader", "topic:news")
    with pytest.raises(ConfigError, match="^E1222"):
        session.unsubscribe("queue:q", "reader")
    session.close()
    with pytest.raises(UsageError, match="^E7501"):
        session.unsubscribe("topic:news", "reader")


def test_a_connector_that_cannot_delete_is_no_way():
    session = Memory().session()
    with pytest.raises(UsageError, match="^E7511 unsubscribe topic:t: its connector cannot delete subscriptions"):
        session.unsubscribe("topic:t", "reader")
    for create in (session.create_temporary_queue, session.create_temporary_topic):
        with pytest.raises(UsageError, match="^E7511 temporary .*: its connector cannot delete destinations"):
            create()


# --- rule S1.9 ---


def test_s1_9_a_temporary_queue_ends_with_its_connection(store):
    with ConnectionFactory(EmbeddedConnection, {"store": store}).create_connection() as connection:
        asks, answers, looks = (connection.create_session() for _ in range(3))
        queue = asks.create_temporary_queue()
        assert queue != asks.create_temporary_queue()
        replies = asks.create_consumer(queue)
        question = Message(b"question", {}, None, None, Headers(reply_to=queue))
        send(asks, "queue:questions", [question])
        (asked,) = receive(answers.create_consumer("queue:questions"), 1)
        answers.create_producer(asked.headers.reply_to).send(Message(b"answer"))
        assert bodies(receive(replies, 1)) == ["answer"]
        replies.close()
        asks.close()
        send(answers, queue, numbered(2))
        assert shown(looks, queue) == ["1", "2"]
    assert broker_of(store).queues() == ["queue:mq.sys.dmq", "queue:questions"]


def test_s1_9_a_temporary_destination_is_deleted_when_the_program_says_so(connection, session):
    topic = session.create_temporary_topic()
    consumer = session.create_consumer(topic, subscription="s")
    send(connection.create_session(), topic, numbered(1))
    receive(consumer, 1)
    with pytest.raises(UsageError, match="^E7513"):
        session.delete_temporary(topic)
    consumer.close()
    session.delete_temporary(topic)
    with pytest.raises(UsageError, match="^E7512"):
        session.unsubscribe(topic, "s")
    with pytest.raises(UsageError, match=f"^E7512 {topic}: this connection has no such temporary destination"):
        session.delete_temporary(topic)


def test_s1_9_only_the_connection_that_made_a_temporary_queue_consumes_from_it(store, connection):
    other = connection.create_session(CLIENT)
    with ConnectionFactory(EmbeddedConnection, {"store": store}).create_connection() as first:
        session = first.create_session()
        queue = session.create_temporary_queue()
        with pytest.raises(UsageError, match=f"^E7521 {queue}: another connection has made"):
            other.create_consumer(queue)
        send(other, queue, numbered(1))
        assert bodies(receive(session.create_consumer(queue), 1)) == ["1"]
    with pytest.raises(SendRejected, match="E8101"):
        send(other, queue, numbered(1))


def test_s1_9_a_broker_that_cannot_be_reached_is_only_told_and_the_others_are_tried(caplog):
    connector = Unreliable()
    connection = ConnectionFactory(connector).create_connection()
    session = connection.create_session()
    temporaries = [session.create_temporary_queue() for _ in range(2)]
    session.close()
    assert connector.closes == 1
    connection.close()
    assert connector.asked == temporaries
    assert [message.split(":")[2].split()[0] for message in caplog.messages] == ["E7001"] * 2
    assert connector.closes == 2


class Unreliable(Connector):
    """A connector that cannot reach its broker to delete destinations."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def delete(self, destination):
        self.asked.append(destination)
        raise ConnectionLost("E7001", "here", "the line is cut")


def rows(store):
    """The number of rows in all tables of messages and destinations."""
    with reading(store) as connection:
        metadata = MetaData()
        metadata.reflect(connection)
        tables = [
            table
            for name, table in metadata.tables.items()
            if name not in ("broker_schema", "broker_version", "broker_store", "broker_boot")
        ]
        counts = [select(func.count()).select_from(table) for table in tables]
        return sum(connection.execute(count).scalar_one() for count in counts)


def broker_of(store):
    return EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": store}))


def test_what_is_deleted_can_be_used_again(store, session):
    """The broker remembers nothing of a deleted queue, not even the numbers that a sender has used."""
    broker = broker_of(store)
    sink = broker.sink(SenderSettings(id="s", connection="c", destination="queue:q"))
    sink.connect()
    first = Outgoing(1, "life", "queue:q", Message(b"1"))
    for _ in range(2):
        sink.send([first, Outgoing(2, "life", "queue:q", Message(b"2"))])
        broker.delete("queue:q")
        broker.delete("queue:q")  # is not there
        assert rows(store) == 2  # the dead message queue, and its subscription
    sink.send([first])
    sink.close()
    assert rest(session, "queue:q") == [("1", False)]


@pytest.mark.kill9
def test_a_consumer_that_was_killed_keeps_nothing_from_being_deleted(store, connection, session):
    send(session, "queue:q", [Message(body_of(number)) for number in range(1, 6)])
    broker = broker_of(store)
    worker = Path(__file__).with_name("worker.py")
    arguments = [sys.executable, worker, "receive", "embedded", f"store={store}", "queue:q", "1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("got")
        with pytest.raises(UsageError, match="^E7513"):
            broker.delete("queue:q")
        process.kill()
        process.wait(PATIENCE_S)
    broker.delete("queue:q")
    assert shown(session, "queue:q") == []
