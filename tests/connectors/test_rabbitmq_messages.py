"""Messages between our connector and other programs; exchanges, topics, browsing; the commands."""

import json
import os
import time

import pika
import pytest

from correlator import Engine
from correlator.cli import main
from correlator.events import Headers, Message, Outgoing, expired
from correlator.settings import (
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.contract import bodies, take, tokens
from tests.connectors.rabbit import codes, opened, outgoing, receiver, sender
from tests.rabbit_server import RabbitServer
from tests.runtime.flows import SCRIPT

pytestmark = pytest.mark.rabbitmq


def topic_receiver(name, destination, **options):
    return ReceiverSettings(id=name, connection="rabbit", destination=destination, options=options)


@pytest.mark.parametrize("hours", [-1, 1, 24 * 365])
def test_181_the_clock_of_others_decides_nothing(rabbit: RabbitServer, hours):
    """A message with a time to live whose timestamp is an hour off is received: only the server decides on expiry."""
    queue = rabbit.queue()
    sent_at = int(time.time()) + hours * 3600
    properties = pika.BasicProperties(timestamp=sent_at, expiration="60000")
    with opened(rabbit.connection().source(receiver(queue))) as source:
        with rabbit.channel() as channel:
            channel.basic_publish("", queue, b"1", properties)
        (chunk,) = take(source, 1)
    (message,) = chunk.messages
    assert (message.headers.timestamp, message.headers.time_to_live_ms) == (sent_at * 1000, 60_000)
    assert not expired(message, (sent_at + 7200) * 1000)


def test_what_another_client_sees(rabbit: RabbitServer):
    queue = rabbit.queue()
    headers = Headers(correlation_id="c", reply_to="queue:answers", type="order", priority=3, time_to_live_ms=60_000)
    message = Message("Grüße".encode(), {"n": 5, "text": "ü", "gone": None}, "customer", None, headers)
    settings = SenderSettings(
        id="s",
        connection="rabbit",
        destination=f"queue:{queue}",
        reliability="EXACTLY_ONCE",
        options={"text": True},
    )
    with opened(rabbit.connection().sink(settings)) as sink:
        assert codes(sink.send([Outgoing(7, "life", f"queue:{queue}", message)])) == [None]
    with rabbit.channel() as channel:
        _, properties, body = channel.basic_get(queue)
    assert body == "Grüße".encode()
    assert (properties.correlation_id, properties.reply_to, properties.type) == ("c", "answers", "order")
    assert (properties.priority, properties.expiration, properties.delivery_mode) == (3, "60000", 2)
    assert (properties.message_id, properties.content_type) == ("ID:7:life", "text/plain; charset=utf-8")
    timestamp = properties.headers.pop("JMSTimestamp")
    assert timestamp > 1_700_000_000_000
    assert properties.headers == {
        "n": 5,
        "text": "ü",
        "JMSXGroupID": "customer",
        "JMSType": "TextMessage",
        "correlator_nulls": ["gone"],
    }


@pytest.mark.parametrize("persistent", [True, False])
def test_a5_8_a_best_effort_sender_may_ask_the_broker_to_keep_its_messages(rabbit: RabbitServer, persistent: bool):
    queue = rabbit.queue()
    settings = EngineSettings(
        name="asks",
        connections={"rabbit": ConnectionSettings(type="rabbitmq", options=rabbit.options)},
        senders=(SenderSettings(id="out", connection="rabbit", destination=f"queue:{queue}", persistent=persistent),),
        monitors=(MonitorSettings(type="tests.runtime.flows:Hears"),),
    )
    SCRIPT.__init__()
    SCRIPT.hook = lambda monitor, _: monitor.send(b"x", to="out")
    with Engine(settings):
        pass
    SCRIPT.__init__()
    with rabbit.channel() as channel:
        _, properties, body = channel.basic_get(queue)
    assert (body, properties.delivery_mode) == (b"x", 2 if persistent else 1)


def test_what_we_see_of_another_client(rabbit: RabbitServer):
    queue = rabbit.queue()
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers={"n": 2**40, "list": [1, "a"], "none": None, "JMSXGroupID": "g", "bytes": b"\xff"},
        delivery_mode=1,
        priority=9,
        correlation_id="c",
        reply_to="amq.rabbitmq.reply-to.xyz",
        expiration="5000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        app_id="shop",
    )
    with opened(rabbit.connection().source(receiver(queue))) as source, rabbit.channel() as channel:
        channel.basic_publish("", queue, b"body", properties)
        (chunk,) = take(source, 1)
    assert chunk.messages[0] == Message(
        b"body",
        {
            "n": 2**40,
            "list": '[1,"a"]',
            "none": None,
            "bytes": b"\xff",
            "amqp_content_type": "application/json",
            "amqp_content_encoding": "gzip",
            "amqp_app_id": "shop",
        },
        "g",
        None,
        Headers(
            message_id="m",
            correlation_id="c",
            reply_to="queue:amq.rabbitmq.reply-to.xyz",
            type="t",
            priority=9,
            persistent=False,
            time_to_live_ms=5000,
            timestamp=1_700_000_000_000,
        ),
    )


def test_a_message_of_many_frames_among_small_ones(rabbit: RabbitServer):
    queue = rabbit.queue()
    contents = [b"", b"1", os.urandom(70_000), b"2", os.urandom(3_000_000), b"3", bytes(65_536), b""]
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        assert not any(sink.send(outgoing(queue, *contents)))
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert bodies(take(source, len(contents))) == contents


def test_a_message_that_went_to_the_dead_letter_exchange_tells_so_and_can_be_sent_on(rabbit: RabbitServer):
    queue, dead = rabbit.queue(), rabbit.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 1}
    connection = rabbit.connection()
    with (
        opened(connection.source(receiver(dead))) as source,
        opened(connection.sink(sender(queue, arguments=arguments))) as sink,
        opened(connection.sink(sender(None))) as onward,
    ):
        assert codes(sink.send(outgoing(queue, b"late"))) == [None]
        chunks = take(source, 1)
        message = chunks[0].messages[0]
        assert json.loads(message.properties["x-death"])[0]["reason"] == "expired"
        assert message.properties["x-first-death-queue"] == queue
        assert codes(onward.send(outgoing(dead, message))) == [None]
        assert take(source, 1)[0].messages[0].properties == {}


def test_quorum_queues_count_deliveries(rabbit: RabbitServer):
    queue = rabbit.queue()
    connection = rabbit.connection(queue_type="quorum")
    with opened(connection.sink(sender(queue))) as sink:
        sink.send(outgoing(queue, b"1"))
    with opened(connection.source(receiver(queue))) as source:
        for count in (1, 2, 3):
            chunks = take(source, 1)
            assert chunks[0].messages[0].headers.delivery_count == count
            source.reject(tokens(chunks))


def test_a_queue_behind_an_exchange(rabbit: RabbitServer):
    queue, exchange = rabbit.queue(), rabbit.queue()
    options = {"exchange": exchange, "routing_key": "red"}
    with (
        opened(rabbit.connection().source(receiver(queue, **options))) as source,
        opened(rabbit.connection().sink(sender(queue, **options))) as red,
        opened(rabbit.connection().sink(sender(queue, exchange=exchange, routing_key="blue"))) as blue,
    ):
        assert codes(red.send(outgoing(queue, b"red"))) == [None]
        results = blue.send(outgoing(queue, b"blue"))
        assert codes(results) == ["E8101"]
        assert f"no queue is bound to exchange '{exchange}' for 'blue'" in str(results[0])
        assert bodies(take(source, 1)) == [b"red"]


def test_topics_know_words(rabbit: RabbitServer):
    connection = rabbit.connection()
    prefix = rabbit.queue().replace(" ", "-")
    with (
        opened(connection.source(topic_receiver("one", f"topic:{prefix}.*"))) as one,
        opened(connection.source(topic_receiver("all", f"topic:{prefix}.#"))) as every,
        opened(connection.sink(sender(None))) as sink,
    ):
        batch = [
            Outgoing(number, "life", f"topic:{prefix}{name}", Message(name.encode()))
            for number, name in enumerate((".a", ".a.b", "x"), 1)
        ]
        assert codes(sink.send(batch)) == [None] * 3
        assert bodies(take(one, 1)) == [b".a"]
        assert bodies(take(every, 2)) == [b".a", b".a.b"]


def test_r1_r7_browsing_shows_a_queue_and_leaves_it_in_order(rabbit: RabbitServer):
    queue = rabbit.queue()
    contents = [b"%d" % number for number in range(10)]
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        sink.send(outgoing(queue, *contents))
    browsed = rabbit.connection().browse(f"queue:{queue}", 4)
    assert [message.body for message in browsed] == contents[:4]
    assert [message.body for message in rabbit.connection().browse(f"queue:{queue}", 100)] == contents
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert bodies(take(source, 10)) == contents


@pytest.fixture
def place(rabbit: RabbitServer, tmp_path, monkeypatch):
    """A directory with a configuration file; the password comes from the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RABBITMQ_PASSWORD", rabbit.password)
    connection = f"{{type: rabbitmq, port: {rabbit.port}, user: {rabbit.user}, password: '${{RABBITMQ_PASSWORD}}'}}"
    (tmp_path / "shop.yaml").write_text(f"name: shop\nconnections: {{shop: {connection}}}\n")
    return tmp_path


def test_publish_and_browse(rabbit: RabbitServer, place, capsys):
    destination = f"queue:{rabbit.queue()}"
    (place / "lines.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert main.execute(["publish", "shop.yaml", "shop", destination, "lines.jsonl"]) == 0
    assert capsys.readouterr().out == "2 published\n"
    assert main.execute(["browse", "shop.yaml", "shop", destination, "--json"]) == 0
    assert [row["body"] for row in json.loads(capsys.readouterr().out)] == ['{"n": 1}', '{"n": 2}']
    assert main.execute(["browse", "shop.yaml", "shop", "queue:nowhere"]) == 2
    assert capsys.readouterr().err.startswith("E2027")


def test_what_cannot_be_reached_is_told_without_the_password(rabbit: RabbitServer, place, capsys, monkeypatch):
    monkeypatch.setenv("RABBITMQ_PASSWORD", "quite-another")
    assert main.execute(["browse", "shop.yaml", "shop", "queue:q"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("E7002")
    assert "quite-another" not in err
