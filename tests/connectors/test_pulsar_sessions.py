"""Sessions over a real Pulsar broker: the tests that hold over every broker, and tests for Pulsar alone."""

import json
import time

import pulsar as client
import pytest

from connectors.messaging import AcknowledgeMode
from connectors.pulsar import PulsarConnection
from connectors.pulsar.link import PulsarLink
from correlator.cli import main
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S
from tests.connectors import test_messaging
from tests.connectors.rabbit import opened
from tests.connectors.test_messaging import OverEveryBroker, World, bodies, numbered, receive, rest, send
from tests.connectors.test_pulsar_selectors import drained, packing
from tests.pulsar_server import PulsarServer
from tests.servers import free_port

pytestmark = pytest.mark.pulsar
INDIVIDUAL = AcknowledgeMode.CLIENT_INDIVIDUAL


def world_of(pulsar: PulsarServer, **options):
    web = {"web_service_url": web_of(pulsar)}
    return World(PulsarConnection, {**pulsar.options, **web, **options}, queues=pulsar.name)


def web_of(pulsar: PulsarServer) -> str:
    return f"http://127.0.0.1:{pulsar.web_port}"


class TestOverPulsar(OverEveryBroker):
    @pytest.fixture
    def world(self, pulsar: PulsarServer):
        return world_of(pulsar)

    @pytest.fixture(autouse=True)
    def _what_a_closed_consumer_held_is_not_marked(self, monkeypatch):
        """Tests compare the redelivery marks that `rest` returns; here `rest` returns every message as marked."""

        def marked(session, destination):
            return [(body, True) for body, _ in rest(session, destination)]

        monkeypatch.setattr(test_messaging, "rest", marked)


@pytest.fixture
def connection(pulsar: PulsarServer):
    with world_of(pulsar).factory().create_connection() as connection:
        yield connection


def test_what_a_closed_consumer_held_comes_again_and_does_not_say_so(pulsar: PulsarServer, connection):
    """The broker counts messages that a consumer gives back, but not those that it takes back itself."""
    queue = f"queue:{pulsar.name()}"
    session = connection.create_session()
    send(session, queue, numbered(2))
    with connection.create_session(AcknowledgeMode.CLIENT) as other:
        receive(other.create_consumer(queue), 2)
    assert rest(session, queue) == [("1", False), ("2", False)]


def test_a_queue_is_selected_from_and_the_rest_stays(pulsar: PulsarServer, connection):
    queue = f"queue:{pulsar.name()}"
    session = connection.create_session()
    send(session, queue, numbered(6))
    consumer = session.create_consumer(queue, "n > 4 OR n = 1")
    assert bodies(receive(consumer, 3)) == ["1", "5", "6"]
    consumer.close()
    assert sorted(body for body, _ in rest(session, queue)) == ["2", "3", "4"]


# --- subscriptions ---


def test_q8_a_subscription_that_is_not_durable_outlives_a_lost_connection(pulsar: PulsarServer, connection):
    topics = [f"topic:{pulsar.name()}" for _ in range(2)]
    sessions = [connection.create_session(AcknowledgeMode.CLIENT) for _ in topics]
    consumers = [sessions[0].create_consumer(topics[0]), sessions[1].create_shared_consumer(topics[1], "news")]
    for topic, session, consumer in zip(topics, sessions, consumers, strict=True):
        send(session, topic, numbered(1))
        receive(consumer, 1)
    pulsar.restart()
    for topic, session, consumer in zip(topics, sessions, consumers, strict=True):
        with pytest.raises(ConnectionLost):  # the message that it holds has come again
            consumer.receive(PATIENCE_S)
        assert bodies(receive(consumer, 1)) == ["1"]
        session.close()
        assert pulsar.subscriptions(topic.removeprefix("topic:")) == {}


def held_and_lost(pulsar, session, topic, consumer):
    """The consumer holds a message, and then loses its connection to the topic."""
    send(session, topic, numbered(1))
    receive(consumer, 1)
    pulsar.request("PUT", f"{pulsar.path(topic.removeprefix('topic:'))}/unload")


@pytest.mark.parametrize("notices", [True, False])
@pytest.mark.parametrize("create", ["create_consumer", "create_shared_consumer"])
def test_q8_a_subscription_that_is_not_durable_ends_although_its_consumer_was_lost(
    pulsar: PulsarServer, connection, create, notices
):
    topic = f"topic:{pulsar.name()}"
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = getattr(session, create)(topic, *(() if create == "create_consumer" else ("news",)))
    held_and_lost(pulsar, session, topic, consumer)
    if notices:
        with pytest.raises(ConnectionLost):
            consumer.receive(PATIENCE_S)
    session.close()
    assert pulsar.subscriptions(topic.removeprefix("topic:")) == {}


def test_q8_a_subscription_that_is_not_durable_outlives_a_failed_reconnect(pulsar: PulsarServer, monkeypatch):
    def lose(*_):
        raise ConnectionLost("E7001", "here", "the line is cut")

    topic = f"topic:{pulsar.name()}"
    with world_of(pulsar, priority_mapping="linear").factory().create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_consumer(topic)
        held_and_lost(pulsar, session, topic, consumer)
        with pytest.raises(ConnectionLost):
            consumer.receive(PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(PulsarLink, "partitions", lose)  # after it has subscribed
            with pytest.raises(ConnectionLost, match="the line is cut"):
                consumer.receive(0)
        assert bodies(receive(consumer, 1)) == ["1"]
    assert pulsar.subscriptions(topic.removeprefix("topic:")) == {}


def refuse(*_):
    raise client.exceptions.NotConnected


def test_q8_a_subscription_that_is_not_durable_ends_although_its_last_acknowledgement_fails(
    pulsar: PulsarServer, connection, monkeypatch
):
    topic = f"topic:{pulsar.name()}"
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_shared_consumer(topic, "news")
    send(session, topic, numbered(1))
    receive(consumer, 1)
    consumer.close()
    assert list(pulsar.subscriptions(topic.removeprefix("topic:"))) == ["news:nondurable"]
    monkeypatch.setattr(client.Consumer, "acknowledge", refuse)
    with pytest.raises(ConnectionLost):
        session.acknowledge()
    assert pulsar.subscriptions(topic.removeprefix("topic:")) == {}


def test_q8_closing_a_lost_consumer_waits_some_seconds_for_a_broker_that_does_not_answer(
    pulsar: PulsarServer, monkeypatch
):
    topic = f"topic:{pulsar.name()}"
    with world_of(pulsar, timeout_s=120).factory().create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_consumer(topic)
        send(session, topic, numbered(1))
        receive(consumer, 1)
        monkeypatch.setattr(client.Consumer, "acknowledge", refuse)
        with pytest.raises(ConnectionLost):
            session.acknowledge()
        with pulsar.frozen():
            began = time.monotonic()
            session.close()
            assert time.monotonic() - began < 60
    assert len(pulsar.subscriptions(topic.removeprefix("topic:"))) == 1


def test_q8_a_subscription_for_one_consumer_takes_no_type_for_several(connection):
    session = connection.create_session()
    for type_ in ("shared", "key_shared", "failover"):
        with pytest.raises(ConfigError, match="^E1022 .*subscription_type: is for shared subscriptions"):
            session.create_durable_consumer("topic:t", "news", options={"subscription_type": type_})


def test_a_selector_of_a_shared_subscription_leaves_out_what_does_not_match(pulsar: PulsarServer, connection):
    topic = f"topic:{pulsar.name()}"
    session = connection.create_session()
    consumer = session.create_shared_durable_consumer(topic, "news", "n > 4")
    send(session, topic, numbered(5))
    assert bodies(receive(consumer, 1)) == ["5"]
    drained(pulsar, topic.removeprefix("topic:"), "news", 0)


# --- browsing ---


def test_a_browser_shows_what_consumers_hold_and_not_what_they_have_acknowledged(pulsar: PulsarServer, connection):
    topic = pulsar.name()
    queue = f"queue:{topic}"
    session = connection.create_session(INDIVIDUAL)
    send(session, queue, numbered(9))
    held = receive(session.create_consumer(queue), 9)
    for at in (0, 1, 3, 4, 7):
        session.acknowledge(held[at])
    drained(pulsar, topic, "jms-queue", 4)
    looking = connection.create_session().create_browser(queue)
    for _ in range(2):
        assert bodies(looking.enumerate()) == ["3", "6", "7", "9"]
    with world_of(pulsar).factory(queue_browser_read_max=1).create_connection() as limited:
        assert bodies(limited.create_session().create_browser(queue).enumerate()) == ["3"]
    assert pulsar.subscriptions(topic)["jms-queue"]["unackedMessages"] == 4
    assert list(pulsar.subscriptions(topic)) == ["jms-queue"]  # what it looked with is gone


def test_a_browser_shows_each_message_of_an_entry(pulsar: PulsarServer, connection):
    topic = pulsar.name()
    queue = f"queue:{topic}"
    session = connection.create_session(INDIVIDUAL)
    with packing(pulsar, topic) as send_packed:
        receiving = session.create_consumer(queue)
        send_packed(3)
        send_packed(2)
        for message in receive(receiving, 3):
            session.acknowledge(message)
        drained(pulsar, topic, "jms-queue", 1)
    assert bodies(session.create_browser(queue).enumerate()) == ["0", "1"]


def test_a_browser_shows_all_partitions_in_the_order_of_sending(pulsar: PulsarServer, connection):
    topic = pulsar.name()
    pulsar.request("PUT", f"{pulsar.path(topic)}/partitions", 3)
    queue = f"queue:{topic}"
    session = connection.create_session()
    send(session, queue, [Message(str(number).encode(), {}, f"key {number}") for number in range(20)])
    messages = list(session.create_browser(queue).enumerate())
    times = [message.headers.timestamp for message in messages]
    assert times == sorted(times)
    shown = bodies(messages)
    assert sorted(shown, key=int) == [str(number) for number in range(20)]
    with world_of(pulsar).factory(queue_browser_read_max=5).create_connection() as limited:
        assert bodies(limited.create_session().create_browser(queue).enumerate()) == shown[:5]


def test_a_queue_that_nobody_made_is_not_made_by_looking(pulsar: PulsarServer, connection):
    topic = pulsar.name()
    looking = connection.create_session().create_browser(f"queue:{topic}")
    with pytest.raises(UsageError, match="^E2027"):
        looking.enumerate()
    assert f"persistent://public/default/{topic}" not in pulsar.request("GET", "persistent/public/default")


def test_a_queue_that_nobody_has_received_from_is_shown_as_a_whole(pulsar: PulsarServer, connection):
    topic = pulsar.name()
    with opened(pulsar.connection().sink(SenderSettings(id="s", connection="pulsar"))) as sink:
        assert not any(sink.send([Outgoing(1, "", f"topic:{topic}", Message(b"1"))]))
    assert bodies(connection.create_session().create_browser(f"queue:{topic}").enumerate()) == ["1"]


def test_browse_looks_at_the_subscription_that_the_file_names(pulsar: PulsarServer, tmp_path, capsys):
    topic, mine = pulsar.name(), {"queue_subscription": "mine"}
    part = {"id": "r", "connection": "broker", "reliability": "AT_LEAST_ONCE", "destination": "orders", "options": mine}
    connections = {"broker": {"type": "pulsar", **pulsar.options, "web_service_url": web_of(pulsar)}}
    file = tmp_path / "engine.yaml"
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "name": "n",
                "store": f"sqlite:///{tmp_path}/x.db",
                "connections": connections,
                "destinations": {"orders": f"queue:{topic}"},
                "receivers": [part],
            }
        )
    )
    settings = SenderSettings(id="s", connection="broker", options=mine)
    with opened(pulsar.connection().sink(settings)) as sink:
        assert not any(sink.send([Outgoing(at, "", f"queue:{topic}", Message(b"%d" % at)) for at in (1, 2)]))
    receiver = ReceiverSettings(id="r", connection="broker", destination=f"queue:{topic}", options=mine)
    with opened(pulsar.connection().source(receiver)) as source:
        source.acknowledge(source.receive(1, PATIENCE_S).tokens)
        drained(pulsar, topic, "mine", 1)
    assert main.execute(["browse", str(file), "broker", "orders", "--json"]) == 0
    assert [one["body"] for one in json.loads(capsys.readouterr().out)] == ["2"]


@pytest.mark.parametrize("destination", ["topic:t", "queue:regex:a.*", "queue:multi:a,b"])
def test_only_queues_can_be_browsed(pulsar: PulsarServer, destination):
    with pytest.raises(UsageError, match="^E2110"):
        pulsar.connection(web_service_url="http://127.0.0.1:1").browse(destination, 1)


def test_browsing_needs_the_address_of_the_rest_interface(pulsar: PulsarServer):
    with pytest.raises(UsageError, match="^E2014 connections.pulsar: .*Set web_service_url"):
        pulsar.connection().browse("queue:q", 1)


def test_browsing_where_no_rest_interface_answers(pulsar: PulsarServer):
    nowhere = pulsar.connection(web_service_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionLost, match="^E7001 .*Look at web_service_url"):
        nowhere.browse("queue:q", 1)
    binary = pulsar.connection(web_service_url=f"http://127.0.0.1:{pulsar.port}")
    with pytest.raises(ConnectionLost, match="^E7001 .*Look at web_service_url"):
        binary.browse("queue:q", 1)
