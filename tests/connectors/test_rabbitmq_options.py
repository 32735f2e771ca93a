"""Wrong options of RabbitMQ: the error, and its text; and the queues and exchanges of destinations."""

from dataclasses import replace

import pytest

from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.connection import MOST_QUEUES
from connectors.rabbitmq.destinations import Route, destination_of_receiver, destination_of_sender, route_to
from correlator import Engine
from correlator.cli import main
from correlator.errors import ConfigError, RecoveryRefused
from correlator.options import Destination
from correlator.reliability import Reliability
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings


def connection(**options):
    return RabbitConnection("c", ConnectionSettings(type="rabbitmq", options=options))


def receiver(destination="queue:q", **options):
    return ReceiverSettings(id="r", connection="c", destination=destination, options=options)


def sender(destination="queue:q", **options):
    return SenderSettings(id="s", connection="c", destination=destination, options=options)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"hots": "x"}, "E1020", "Did you mean 'host'?"),
        ({"host": ""}, "E1022", "connections.c.host"),
        ({"host": "amqp://me:geheim99@host"}, "E1022", "Without scheme and user"),
        ({"host": "a..b"}, "E1022", "is not the name or address of a machine"),
        ({"host": "x" * 64}, "E1022", "is not the name or address of a machine"),
        ({"port": 0}, "E1022", "1 to 65535"),
        ({"port": 65536}, "E1022", "1 to 65535"),
        ({"port": "56x"}, "E1022", "'56x'"),
        ({"port": True}, "E1022", "connections.c.port"),
        ({"password": 7}, "E1022", "quote it"),
        ({"user": ["x"]}, "E1022", "connections.c.user"),
        ({"password_file": "token", "password": "p"}, "E1022", "Set one of them"),
        ({"password_file": 5}, "E1022", "connections.c.password_file"),
        ({"consumer_timeout_s": 0}, "E1022", "connections.c.consumer_timeout_s"),
        ({"tls": "yes"}, "E1022", "true or false"),
        ({"ca_file": "ca.pem"}, "E1022", "Set tls: true"),
        ({"heartbeat_s": 0}, "E1022", "1 to 3600"),
        ({"timeout_s": 3601}, "E1022", "1 to 3600"),
        ({"queue_type": "stream"}, "E1022", "classic or quorum"),
        ({"declare": "no"}, "E1022", "true or false"),
    ],
)
def test_options_of_connections(options, code, text):
    with pytest.raises(ConfigError) as raised:
        connection(**options)
    assert raised.value.code == code
    assert text in str(raised.value)


def test_a_password_is_shown_nowhere():
    with pytest.raises(ConfigError) as raised:
        connection(password={"topsecret": 1})
    assert "topsecret" not in str(raised.value)
    assert "topsecret" not in repr(RabbitBroker(password="topsecret"))


def test_texts_of_placeholders_are_numbers_where_numbers_are_wanted():
    assert connection(port="5673")._broker.port == 5673


def test_tls_has_a_port_of_its_own():
    assert (connection()._broker.port, connection(tls=True)._broker.port) == (5672, 5671)


@pytest.mark.parametrize(
    ("host", "tls"),
    [
        ("localhost", False),
        ("127.0.0.5", False),
        ("::1", False),
        ("broker.example.com", True),
        ("10.0.0.1", True),
        ("0.0.0.0", True),
        ("localhost.example.com", True),
    ],
)
def test_a_server_on_another_machine_gets_tls_unless_the_options_say_otherwise(host, tls):
    made = connection(host=host)._broker
    assert (made.tls, made.port) == (tls, 5671 if tls else 5672)
    assert not connection(host=host, tls=False)._broker.tls


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("queue:" + "ü" * 128, {}, "E1215"),
        ("topic:" + "x" * 255, {}, "E1215"),
        ("queue:q", {"declair": True}, "E1020"),
        ("queue:q", {"mandatory": True}, "E1020"),
        ("queue:q", {"queue": "other"}, "E1022"),
        ("queue:q", {"queue_type": "stream"}, "E1022"),
        ("queue:q", {"queue_type": "quorum", "durable": False}, "E1022"),
        ("queue:q", {"arguments": ["x-max-length"]}, "E1022"),
        ("queue:q", {"arguments": {"x-max-length": 1.5}}, "E1022"),
        ("queue:q", {"exchange": ""}, "E1022"),
        ("queue:q", {"exchange": "x" * 256}, "E1215"),
        ("queue:q", {"exchange": "x", "exchange_type": "dirct"}, "E1022"),
        ("queue:q", {"exchange": "a\0b"}, "E1215"),
        ("queue:q", {"routing_key": "k"}, "E1022"),
        ("queue:q", {"exchange_type": "topic"}, "E1022"),
    ],
)
def test_options_of_receivers(destination, options, code):
    with pytest.raises(ConfigError) as raised:
        connection().source(receiver(destination, **options))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("queue:q", {"queue": "x"}, "E1020"),
        ("queue:q", {"text": 1}, "E1022"),
        ("queue:q", {"mandatory": 1}, "E1022"),
        (None, {"exchange": "x"}, "E1022"),
        ("queue:q", {"exchange": "x", "queue_type": "quorum"}, "E1022"),
        ("topic:t", {"arguments": {"x-max-length": 1}}, "E1022"),
    ],
)
def test_options_of_senders(destination, options, code):
    with pytest.raises(ConfigError) as raised:
        connection().sink(sender(destination, **options))
    assert raised.value.code == code


BROKER = RabbitBroker(queue_type="quorum", topic_exchange="news")


def test_a_queue():
    place = destination_of_receiver(receiver("queue:a", arguments={"x-max-length": 1}), BROKER)
    assert (place.queue, place.exchange, place.declare, place.durable) == ("a", "", True, True)
    assert place.arguments == {"x-queue-type": "quorum", "x-max-length": 1}
    assert destination_of_sender(sender("queue:a"), RabbitBroker()).arguments == {}


def test_a_topic_has_a_queue_for_each_receiver():
    place = destination_of_receiver(receiver("topic:a.*"), BROKER)
    assert (place.queue, place.exchange, place.exchange_type, place.routing_key) == ("a.*:r", "news", "topic", "a.*")
    assert destination_of_receiver(receiver("topic:a", queue="mine"), BROKER).queue == "mine"
    published = destination_of_sender(sender("topic:a"), BROKER)
    assert (published.queue, published.exchange, published.routing_key) == ("", "news", "a")


def test_a_queue_behind_an_exchange():
    options = {"exchange": "x", "routing_key": "k", "exchange_type": "fanout"}
    place = destination_of_receiver(receiver("queue:a", **options), RabbitBroker())
    assert (place.queue, place.exchange, place.exchange_type, place.routing_key) == ("a", "x", "fanout", "k")
    place = destination_of_sender(sender("queue:a", **options), RabbitBroker())
    assert (place.queue, place.exchange, place.routing_key) == ("", "x", "k")


@pytest.mark.parametrize(
    ("destination", "route"),
    [
        (Destination("queue", "a"), Route("", "a", mandatory=True)),
        (Destination("topic", "a"), Route("news", "a", mandatory=False)),
        (Destination("queue", "x" * 256), None),
    ],
)
def test_destinations_of_single_messages(destination, route):
    assert route_to(destination, BROKER) == route


def test_receivers_that_share_a_queue_by_their_options_must_take_the_same():
    """What one acknowledges and drops would be lost to the other, although their subscriptions have other names."""
    europe = ReceiverSettings(
        id="europe", connection="c", destination="topic:t", selector="region = 'EU'", options={"queue": "q"}
    )
    rest = ReceiverSettings(id="rest", connection="c", destination="topic:t", options={"queue": "q"})
    settings = EngineSettings(
        name="two", connections={"c": ConnectionSettings(type="rabbitmq")}, receivers=(europe, rest)
    )
    shown = "E1224 receiver 'rest': shares the subscription 'q' .*takes other messages"
    with pytest.raises(ConfigError, match=shown), Engine(settings):
        pass


@pytest.mark.parametrize("option", [False, True])
def test_receivers_of_two_topics_do_not_share_a_queue_because_of_colons(option):
    """Each would get messages of the other one's topic, and its own ones would be shared with the other one."""
    one = ReceiverSettings(id="b:c", connection="c", destination="topic:a")
    other = ReceiverSettings(id="c", connection="c", destination="topic:a:b", options={"queue": "q"} if option else {})
    alike = ReceiverSettings(id="d", connection="c", destination="topic:a", durable_topic_subscription_name="b:c")
    rabbit = connection()
    for accepted in (one, alike, one):
        rabbit.source(accepted)
    if option:
        rabbit.source(other)
        return
    with pytest.raises(ConfigError, match=r"E1224 receivers\.c\.destination: its queue 'a:b:c' .* of 'topic:a'\."):
        rabbit.source(other)


def test_receivers_of_two_topics_do_not_share_a_queue_because_of_the_option():
    """Both would consume the one queue, which is bound to both topics: each would take messages of the other one."""
    one = ReceiverSettings(id="one", connection="c", destination="topic:a", options={"queue": "q"})
    other = ReceiverSettings(id="other", connection="c", destination="topic:b", options={"queue": "q"})
    named = ReceiverSettings(id="q", connection="c", destination="topic:b", options={"queue": "a:one"})
    rabbit = connection()
    for accepted in (one, replace(other, destination="topic:a"), replace(one, options={})):
        rabbit.source(accepted)
    with pytest.raises(ConfigError, match=r"E1224 receivers\.other\.destination: its queue 'q' .* of 'topic:a'\."):
        rabbit.source(other)
    with pytest.raises(ConfigError, match=r"E1224 receivers\.q\.destination: its queue 'a:one' .* of 'topic:a'\."):
        rabbit.source(named)


@pytest.mark.parametrize("queue_first", [False, True])
def test_a_receiver_of_a_queue_does_not_take_messages_of_a_topic(queue_first):
    """The queue is bound to the topic: each would take messages of the other one."""
    of_queue = ReceiverSettings(id="one", connection="c", destination="queue:q")
    of_topic = ReceiverSettings(id="two", connection="c", destination="topic:t", options={"queue": "q"})
    first, second = (of_queue, of_topic) if queue_first else (of_topic, of_queue)
    rabbit = connection()
    for accepted in (
        first,
        replace(first, id="again"),
        replace(second, destination=f"{second.destination}2", options={}),
    ):
        rabbit.source(accepted)
    told = rf"E1224 receivers\.{second.id}\.destination: its queue 'q' .* receiver of '{first.destination}'\."
    with pytest.raises(ConfigError, match=told):
        rabbit.source(second)


def test_the_oldest_queues_are_forgotten():
    """A program may use queues without number, for example the temporary ones of its sessions."""
    rabbit = connection()
    for number in range(MOST_QUEUES + 1):
        rabbit.source(receiver(f"queue:{number}"))
    rabbit.source(receiver("topic:t", queue="0"))
    with pytest.raises(ConfigError, match="E1224"):
        rabbit.source(receiver("topic:t", queue=str(MOST_QUEUES)))


def test_lint_shows_that_receivers_of_two_topics_share_a_queue(tmp_path, capsys):
    file = tmp_path / "engine.yaml"
    file.write_text(
        "version: 1\nname: two\nconnections:\n  c: {type: rabbitmq}\nreceivers:\n"
        '  - {id: "b:c", connection: c, destination: "topic:a"}\n'
        '  - {id: c, connection: c, destination: "topic:a:b"}\n'
    )
    assert main.execute(["lint", str(file)]) == 2
    assert f"{file}:7:" in (shown := capsys.readouterr().out)
    assert shown.startswith("E1224 ")
    assert "receivers[1].destination: its queue 'a:b:c' is also the queue of a receiver of 'topic:a'" in shown


def engine_with(tmp_path, options, **changes):
    away = ConnectionSettings(type="rabbitmq", options={"port": 1})
    changed = replace(
        ReceiverSettings(
            id="r", connection="c", destination="topic:t", reliability=Reliability.AT_LEAST_ONCE, options=options
        ),
        **changes,
    )
    return Engine(
        EngineSettings(name="e", store=f"sqlite:///{tmp_path}/e.db", connections={"c": away}, receivers=(changed,))
    )


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"queue": "q"}, "t:r to q"),
        ({"queue": "q"}, {}, "q to t:r"),
        ({"queue": "q"}, {"queue": "p"}, "q to p"),
    ],
)
def test_a1_11_a_receiver_does_not_silently_read_another_queue(tmp_path, before, after, says):
    """What waits in the old queue would be left there, and ids of the old one would hide messages of the new one."""
    with engine_with(tmp_path, before):
        pass
    told = f"^E4302 receiver 'r': subscription changed from {says}. With an explicit domain .*dup_detection_domain_id: 'c:r'"
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=told):
            engine_with(tmp_path, after).start()
    with engine_with(tmp_path, after, dup_detection_domain_id="c:r"):
        pass
    with engine_with(tmp_path, after, dup_detection_domain_id="c:r", max_batch_size=5):
        pass


def test_a1_11_a_receiver_that_code_added_is_recorded_with_its_queue(tmp_path):
    added = ReceiverSettings(id="more", connection="c", destination="topic:t", options={"queue": "q"})
    with engine_with(tmp_path, {}) as engine:
        engine.add_receiver(added)
        recorded = {one.id: one.subscription for one in engine.registry.values()}
    assert recorded == {"r": "t:r", "more": "q"}
    with engine_with(tmp_path, {}) as engine:
        assert engine.add_receiver(added) is engine.receivers["more"]
