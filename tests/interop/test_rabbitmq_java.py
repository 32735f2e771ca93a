"""A program with RabbitMQ's own JMS client and the connector understand each other: text and bytes, both ways.

The Java program sends the same messages to a queue that is read here and to one that an engine bridges. It receives
what our senders write and what the engine has sent on.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.events import Headers, Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import take, tokens
from tests.connectors.rabbit import codes, opened, receiver
from tests.interop.java_program import JavaProgram
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq

TEXT = "Grüße, 5 € 😀"
ALL_BYTES = bytes(range(256))
ONE_HOUR_MS = 3_600_000

BODIES_OF_JAVA = {
    "text": TEXT.encode(),
    "bytes": ALL_BYTES,
    "plain text": TEXT.encode(),
    "large text": TEXT.encode() * 10_000,
    "empty text": b"",
    "no text": b"",
    "plain bytes": ALL_BYTES,
    "no bytes": b"",
    "no body": b"",
}
PROPERTIES_OF_JAVA = {
    "aBoolean": True,
    "aByte": -7,
    "aShort": -300,
    "anInt": 123_456,
    "aLong": 2**53 + 1,
    "aFloat": 0.1,
    "aDouble": 32.5e9 + 0.125,
    "aString": TEXT,
    "anEmptyString": "",
}

FULL = Headers(
    correlation_id="correlation €",
    reply_to="queue:answers",
    type="order",
    priority=7,
    time_to_live_ms=ONE_HOUR_MS,
)
PROPERTIES = {
    "text": TEXT,
    "empty": "",
    "small": -7,
    "large": 2**53 + 1,
    "yes": True,
    "no": False,
    "fraction": 1.5,
    "bytes": b"\x00\xff",
    "nothing": None,
    "two words": "a name that no Java program could give",
}
PROPERTIES_IN_JAVA = {
    "text": TEXT,
    "empty": "",
    "small": "-7",
    "large": "9007199254740993",
    "yes": "true",
    "no": "false",
    "fraction": "1.5",
    "two words": "a name that no Java program could give",
    "correlator_nulls": "[nothing]",
}
WRITTEN = {
    "full text": ({"text": True}, Message(TEXT.encode(), PROPERTIES, "customer", None, FULL)),
    "full bytes": ({}, Message(ALL_BYTES, PROPERTIES, "customer", None, FULL)),
    "plain text": ({"text": True}, Message(TEXT.encode())),
    "large text": ({"text": True}, Message(TEXT.encode() * 10_000)),
    "empty text": ({"text": True}, Message(b"")),
    "plain bytes": ({}, Message(TEXT.encode())),
    "empty bytes": ({}, Message(b"")),
    "text by its kind": ({}, Message(TEXT.encode(), {"jms_message_type": "text"})),
    "bytes by their kind": ({"text": True}, Message(ALL_BYTES, {"jms_message_type": "bytes"})),
    "text by content type": ({}, Message(TEXT.encode(), {"amqp_content_type": "text/csv"})),
    "bytes whose type misleads": ({}, Message(ALL_BYTES, headers=Headers(type="TextMessage"))),
    "only nothing": ({}, Message(b"1", {"nothing": None})),
    "highest priority": ({}, Message(b"1", headers=Headers(priority=255))),
    "longest life": ({}, Message(b"1", headers=Headers(time_to_live_ms=2**32 - 1))),
    "reliable": ({}, Message(b"1", headers=Headers(persistent=False))),
    "not reliable": ({}, Message(b"1", headers=Headers(persistent=False))),
}
"""For each message the options of its sender."""

JavaMessages = dict[str, dict[str, Any]]


class Queues(NamedTuple):
    """Who uses them: Java and our source; Java and the engine; the engine and Java; our sinks and Java."""

    read: str
    bridged: str
    sent_on: str
    written: str


class Bridges(Monitor, persistent=True):
    """Sends on what comes, texts as text: of its own ones Java does not say that they are."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(message, to="texts" if "text" in str(message.properties["name"]) else "others", key=message.key)


class JavaClient:
    """RabbitMQ's own; the destinations are declared for AMQP, and must be there."""

    def __init__(self, server: RabbitServer, classes: Path) -> None:
        environment = {"PORT": str(server.port), "USER_NAME": server.user, "PASSWORD": server.password}
        self._program = JavaProgram("rabbitmq", classes, environment)

    def send(self, *queues: str) -> list[dict[str, Any]]:
        """Send the program's messages to each queue; returns them as Java has them then."""
        return self._program.run("send", *queues)

    def receive(self, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
        """Receive so many messages from each queue; returns them as Java has them."""
        words = [word for name, number in numbers.items() for word in (name, str(number))]
        return self._program.run("receive", *words)


@pytest.fixture(scope="module")
def java(rabbit: RabbitServer, tmp_path_factory) -> JavaClient:
    return JavaClient(rabbit, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def queues(rabbit: RabbitServer) -> Queues:
    made = Queues(*(rabbit.queue() for _ in Queues._fields))
    with rabbit.channel() as channel:
        for queue in made:
            channel.queue_declare(queue, durable=True)
    return made


@pytest.fixture(scope="module")
def sent(java: JavaClient, queues: Queues) -> dict[str, JavaMessages]:
    """The messages that Java has sent, as they are in Java: by queue and by name."""
    messages = java.send(queues.read, queues.bridged)
    return {queue: by_name(messages, queue) for queue in (queues.read, queues.bridged)}


@pytest.fixture(scope="module")
def read(rabbit: RabbitServer, queues: Queues, sent: dict[str, JavaMessages]) -> dict[str, Message]:
    """What our source makes of them."""
    with opened(rabbit.connection().source(receiver(queues.read))) as source:
        chunks = take(source, len(sent[queues.read]))
        source.acknowledge(tokens(chunks))
    return {str(one.properties.pop("name")): one for chunk in chunks for one in chunk.messages}


@pytest.fixture(scope="module")
def received(rabbit, java, queues, sent, tmp_path_factory) -> dict[str, JavaMessages]:
    """What Java receives of our senders, by id, and of the engine, by name."""
    write(rabbit, queues.written)
    settings = bridge(queues, tmp_path_factory.mktemp("bridge"))
    with Engine(settings, connections={"rabbit": rabbit.connection()}):
        messages = java.receive({queues.written: len(WRITTEN), queues.sent_on: len(sent[queues.bridged])})
    written = {one["message_id"]: one for one in messages if one["queue"] == queues.written}
    return {queues.written: written, queues.sent_on: by_name(messages, queues.sent_on)}


def by_name(messages: list[dict[str, Any]], queue: str) -> JavaMessages:
    return {one["properties"].pop("name"): one for one in messages if one["queue"] == queue}


def write(rabbit: RabbitServer, queue: str) -> None:
    """Send what is to be written; the id of each message says its name."""
    for name, (options, message) in WRITTEN.items():
        mode = Reliability.BEST_EFFORT if name == "not reliable" else Reliability.EXACTLY_ONCE
        settings = SenderSettings(
            id="s", connection="rabbit", destination=f"queue:{queue}", reliability=mode, options=options
        )
        with opened(rabbit.connection().sink(settings)) as sink:
            assert codes(sink.send([Outgoing(7, name, f"queue:{queue}", message)])) == [None]


def bridge(queues: Queues, directory) -> EngineSettings:
    """EXACTLY_ONCE on both sides, which knows the messages by the ids that Java gave them."""
    mode = Reliability.EXACTLY_ONCE
    return EngineSettings(
        name="bridge",
        store=f"sqlite:///{directory}/bridge.db",
        receivers=(
            ReceiverSettings(
                id="in",
                connection="rabbit",
                destination=f"queue:{queues.bridged}",
                reliability=mode,
                unique_message_id="${header.message_id}",
            ),
        ),
        senders=tuple(
            SenderSettings(
                id=name,
                connection="rabbit",
                destination=f"queue:{queues.sent_on}",
                reliability=mode,
                options={"text": name == "texts"},
            )
            for name in ("texts", "others")
        ),
        monitors=(MonitorSettings(type=f"{__name__}:Bridges"),),
    )


@pytest.fixture
def in_java(received: dict[str, JavaMessages], queues: Queues):
    """Returns what Java sees of the message that was written under a name."""
    return lambda name: received[queues.written][f"ID:7:{name}"]


# --- from Java to us ---


def test_everything_that_java_sends_is_read_in_order(read):
    assert {name: message.body for name, message in read.items()} == BODIES_OF_JAVA
    assert list(read) == list(BODIES_OF_JAVA)


@pytest.mark.parametrize("name", ["text", "bytes"])
def test_all_that_a_message_of_java_says_of_itself_is_read(sent, read, queues, name):
    in_java, message = sent[queues.read][name], read[name]
    assert message.properties == PROPERTIES_OF_JAVA
    assert {name: type(value) for name, value in message.properties.items()} == {
        name: type(value) for name, value in PROPERTIES_OF_JAVA.items()
    }
    assert message.key == "customer €"
    assert message.headers == Headers(
        message_id=in_java["message_id"],
        correlation_id="correlation €",
        reply_to="queue:answers",
        type="order",
        priority=7,
        persistent=True,
        time_to_live_ms=ONE_HOUR_MS,
        timestamp=in_java["timestamp"],
        group_sequence=3,
    )
    assert in_java["expiration"] - in_java["timestamp"] == ONE_HOUR_MS


@pytest.mark.parametrize("name", [name for name in BODIES_OF_JAVA if name not in ("text", "bytes")])
def test_a_message_of_java_that_says_nothing_of_itself_is_read_so(sent, read, queues, name):
    in_java, message = sent[queues.read][name], read[name]
    assert (message.properties, message.key) == ({}, None)
    assert message.headers == Headers(
        message_id=in_java["message_id"], priority=4, persistent=False, timestamp=in_java["timestamp"]
    )


# --- from us to Java ---


def test_java_loses_nothing_that_is_written(received, queues):
    assert list(received[queues.written]) == [f"ID:7:{name}" for name in WRITTEN]


@pytest.mark.parametrize(
    "name", ["full text", "plain text", "large text", "empty text", "text by content type", "text by its kind"]
)
def test_text_is_a_text_message_of_the_same_text(in_java, name):
    _, message = WRITTEN[name]
    assert (in_java(name)["kind"], in_java(name)["body"]) == ("TextMessage", message.body.decode())


@pytest.mark.parametrize(
    "name", ["full bytes", "plain bytes", "empty bytes", "bytes whose type misleads", "bytes by their kind"]
)
def test_anything_else_is_a_bytes_message_of_the_same_bytes(in_java, name):
    _, message = WRITTEN[name]
    assert (in_java(name)["kind"], bytes.fromhex(in_java(name)["body"])) == ("BytesMessage", message.body)


@pytest.mark.parametrize("name", ["full text", "full bytes"])
def test_what_java_sees_of_a_full_message(in_java, name):
    seen = in_java(name)
    assert (seen["correlation_id"], seen["priority"], seen["persistent"]) == ("correlation €", 7, True)
    assert seen["timestamp"] + ONE_HOUR_MS <= seen["expiration"] <= time.time() * 1000 + ONE_HOUR_MS
    assert seen["redelivered"] is False
    as_text = seen["properties"]["bytes"]
    assert as_text.startswith("[B@")  # what Java calls an array: the bytes cannot be had
    assert seen["properties"] == {**PROPERTIES_IN_JAVA, "bytes": as_text, "JMSXDeliveryCount": 1}


@pytest.mark.parametrize("name", ["plain text", "plain bytes"])
def test_a_message_that_says_nothing_of_itself_can_be_read(in_java, name):
    seen = in_java(name)
    assert (seen["correlation_id"], seen["priority"], seen["persistent"]) == (None, 4, True)
    assert (seen["expiration"], seen["redelivered"]) == (0, False)
    assert seen["properties"] == {"JMSXDeliveryCount": 1}


def test_the_time_of_sending_is_that_of_the_sender(in_java):
    now = time.time() * 1000
    assert all(now - 600_000 < in_java(name)["timestamp"] <= now for name in WRITTEN)


def test_what_is_at_the_limit_can_be_read(in_java):
    assert in_java("highest priority")["priority"] == 255
    assert in_java("longest life")["expiration"] - in_java("longest life")["timestamp"] >= 2**32 - 1
    assert in_java("only nothing")["properties"] == {"JMSXDeliveryCount": 1, "correlator_nulls": "[nothing]"}


def test_what_a_reliable_sender_writes_is_persistent(in_java):
    assert [in_java(name)["persistent"] for name in ("reliable", "not reliable")] == [True, False]


@pytest.mark.parametrize("name", ["full text", "full bytes"])
def test_what_the_client_shows_to_no_program(in_java, name):
    """It has no place for the reply-to of others nor for the type of a text, and drops the header with the key."""
    seen = in_java(name)
    assert (seen["reply_to"], seen["type"]) == (None, "order" if name == "full bytes" else "TextMessage")
    assert "JMSXGroupID" not in seen["properties"]


# --- from Java through an engine to Java ---


def test_an_engine_bridges_every_message_of_java_to_java(sent, received, queues):
    assert received[queues.sent_on].keys() == sent[queues.bridged].keys() == BODIES_OF_JAVA.keys()
    for name, before in sent[queues.bridged].items():
        after = received[queues.sent_on][name]
        kind = before["kind"] if name != "no body" else "BytesMessage"  # what was neither is for the bridge to choose
        assert (after["kind"], after["body"]) == (kind, before["body"] or ""), name
        assert (after["correlation_id"], after["priority"]) == (before["correlation_id"], before["priority"]), name
        assert after["message_id"] == f"ID:{after['properties']['uniqueMessageId']}", name
        assert after["persistent"], name


@pytest.mark.parametrize("name", ["text", "bytes"])
def test_properties_of_java_come_back_as_text(sent, received, queues, name):
    after = received[queues.sent_on][name]
    assert after["properties"] == {
        "aBoolean": "true",
        "aByte": "-7",
        "aShort": "-300",
        "anInt": "123456",
        "aLong": "9007199254740993",
        "aFloat": "0.1",
        "aDouble": "3.2500000000125E10",
        "aString": TEXT,
        "anEmptyString": "",
        **{of_engine: after["properties"][of_engine] for of_engine in ("uniqueMessageId", "messageSourceId")},
        "JMSXDeliveryCount": 1,
    }
    assert after["expiration"] >= sent[queues.bridged][name]["expiration"]
