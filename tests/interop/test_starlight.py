"""A program with Starlight for JMS, Pulsar's own JMS client, and the connector understand each other: every kind of
message, both ways, on queues and topics.

The Java program sends the same messages to what is read here and to a queue that an engine bridges. It receives what
our senders write and what the engine has sent on; and each side takes what the other one has given back or not read.
"""

import contextlib
import json
import math
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from connectors.jms_bodies import (
    SERIALIZED,
    Byte,
    Char,
    Long,
    Short,
    Single,
    read_map,
    read_stream,
    write_map,
    write_stream,
)
from connectors.pulsar import PulsarConnection
from connectors.pulsar.source import PulsarSource
from correlator import Engine, Message, Monitor, Reliability, on
from correlator.events import LONGEST_LIFE_MS, Headers, Outgoing, expired
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, take, tokens
from tests.connectors.rabbit import codes, opened
from tests.interop.java_program import JavaProgram
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar

TEXT = "Grüße, 5 € 😀"
LARGE_TEXT = TEXT * 10_000
BINARY = b"\x00\x01\xff"
ONE_HOUR_MS = 3_600_000
CLIENT_ID, SUBSCRIPTION = "shop", "orders"

# --- what Java sends ---

OF_JAVA = {
    "late": ("text", TEXT),
    "full": ("text", TEXT),
    "other": ("bytes", b""),
    "text": ("text", TEXT),
    "large text": ("text", LARGE_TEXT),
    "empty text": ("text", ""),
    "no text": ("text", None),
    "bytes": (
        "bytes",
        struct.pack(">?bhHiqfdH", True, -7, -300, ord("€"), 123_456, -(2**63), 1.5, -0.125, 3) + "€".encode() + BINARY,
    ),
    "no bytes": ("bytes", b""),
    "map": (
        "map",
        {
            TEXT: 7,
            "boolean": True,
            "byte": -7,
            "bytes": BINARY,
            "char": "€",
            "double": -0.125,
            "float": 0.1,
            "int": 123_456,
            "long": -(2**63),
            "long text": LARGE_TEXT,
            "no text": None,
            "short": -300,
            "text": TEXT,
        },
    ),
    "no map": ("map", {}),
    "stream": ("stream", [True, -7, -300, "€", 123_456, -(2**63), 0.1, -0.125, f"{TEXT}\0", None, BINARY]),
    "no stream": ("stream", []),
    "object": ("object", SERIALIZED),
    "no object": ("object", b""),
    "header": ("header", b""),
}
"""Kind and content of each message, in order; a map by its names."""
PROPERTIES_OF_JAVA = {
    "yes": True,
    "no": False,
    "byte": -128,
    "short": 32_767,
    "int": -(2**31),
    "long": 2**63 - 1,
    "small long": 7,
    "float": 0.1,
    "largest float": 3.4028235e38,
    "no float": math.nan,
    "double": 32.5e9 + 0.125,
    "smallest double": 5e-324,
    "minus zero": -0.0,
    "infinite": -math.inf,
    "object": 5,
    "text": TEXT,
    "empty text": "",
}
TYPES_OF_JAVA = {
    "byte": "byte",
    "short": "short",
    "small long": "long",
    "float": "float",
    "largest float": "float",
    "no float": "float",
    "object": "short",
}
"""Those that the values do not tell."""

# --- what we send ---

Shown = list[Any] | None
"""A value in Java: its class and itself; fractions as Java writes them, arrays in hexadecimal figures."""

PROPERTIES: dict[str, tuple[Any, Shown]] = {
    "yes": (True, ["Boolean", True]),
    "no": (False, ["Boolean", False]),
    "byte": (-7, ["Byte", -7]),
    "short": (7, ["Short", 7]),
    "int": (2**31 - 1, ["Integer", 2**31 - 1]),
    "long": (2**31, ["Long", 2**31]),
    "small long": (7, ["Long", 7]),
    "longest": (-(2**63), ["Long", -(2**63)]),
    "float": (0.1, ["Float", "0.1"]),
    "double": (0.1, ["Double", "0.1"]),
    "smallest double": (5e-324, ["Double", "4.9E-324"]),
    "no number": (math.nan, ["Double", "NaN"]),
    "minus zero": (-0.0, ["Double", "-0.0"]),
    "infinite": (-math.inf, ["Double", "-Infinity"]),
    "text": (TEXT, ["String", TEXT]),
    "empty text": ("", ["String", ""]),
    "bytes": (BINARY, ["String", "AAH/"]),
    f"no name in Java: {TEXT}": (1, ["Integer", 1]),
}
VALUES: dict[str, tuple[Any, Shown]] = {
    "boolean": (True, ["Boolean", True]),
    "byte": (Byte(-7), ["Byte", -7]),
    "short": (Short(7), ["Short", 7]),
    "char": (Char("€"), ["Character", "€"]),
    "int": (7, ["Integer", 7]),
    "long": (2**40, ["Long", 2**40]),
    "small long": (Long(7), ["Long", 7]),
    "float": (Single(0.1), ["Float", "0.1"]),
    "double": (0.1, ["Double", "0.1"]),
    "text": (f"{TEXT}\0", ["String", f"{TEXT}\0"]),
    "nothing": (None, None),
    "bytes": (BINARY, ["byte[]", BINARY.hex()]),
    TEXT: (7, ["Integer", 7]),
}
"""Of maps and streams."""


class Written(NamedTuple):
    """A message of ours, and what it is in Java."""

    message: Message
    kind: str
    body: object


def of_kind(kind: str, body: bytes = b"", **properties: Any) -> Message:
    return Message(body, {"jms_message_type": kind, **properties})


TYPES = json.dumps({"byte": "byte", "short": "short", "small long": "long", "float": "float"})
FULL = Message(
    TEXT.encode(),
    {name: value for name, (value, _) in PROPERTIES.items()} | {"jms_types": TYPES},
    "customer €",
    headers=Headers(
        group_sequence=3,
        correlation_id="correlation €",
        reply_to="queue:answers",
        type="order",
        priority=7,
        time_to_live_ms=ONE_HOUR_MS,
    ),
)
OTHER = Message(
    b"",
    {"nothing": None, "jms_correlation_bytes": True},
    headers=Headers(
        correlation_id="base64:AAH/",
        reply_to="topic:persistent://public/other/answers",
        priority=0,
        time_to_live_ms=LONGEST_LIFE_MS,
    ),
)
PASSING = Message(b"1", headers=Headers(persistent=False))
TEXTS = {
    "late": Written(Message(b"", headers=Headers(time_to_live_ms=1)), "TextMessage", ""),
    "full": Written(FULL, "TextMessage", TEXT),
    "text": Written(Message(TEXT.encode()), "TextMessage", TEXT),
    "large text": Written(Message(LARGE_TEXT.encode()), "TextMessage", LARGE_TEXT),
    "empty text": Written(Message(b""), "TextMessage", ""),
}
OTHERS = {
    "other": Written(OTHER, "BytesMessage", ""),
    "bytes": Written(Message(bytes(range(256))), "BytesMessage", bytes(range(256)).hex()),
    "of rabbitmq": Written(
        Message(b"1", headers=Headers(correlation_id="base64:AAH/", priority=200)), "BytesMessage", "31"
    ),
    "no bytes": Written(Message(b"", {"jms_null": True}), "BytesMessage", ""),
    "no text": Written(of_kind("text", jms_null=True), "TextMessage", None),
    "map": Written(
        of_kind("map", write_map({name: value for name, (value, _) in VALUES.items()} | {"long text": LARGE_TEXT})),
        "MapMessage",
        {name: shown for name, (_, shown) in VALUES.items()} | {"long text": ["String", LARGE_TEXT]},
    ),
    "empty map": Written(of_kind("map", write_map({})), "MapMessage", {}),
    "stream": Written(
        of_kind("stream", write_stream(value for value, _ in VALUES.values())),
        "StreamMessage",
        [shown for _, shown in VALUES.values()],
    ),
    "empty stream": Written(of_kind("stream", write_stream([])), "StreamMessage", []),
    "object": Written(of_kind("object", SERIALIZED + b"t\0\4text"), "ObjectMessage", ["String", "text"]),
    "no object": Written(of_kind("object"), "ObjectMessage", None),
    "header": Written(of_kind("header"), "Message", None),
    "made persistent": Written(PASSING, "BytesMessage", "31"),
}
DELAY_MS = 500
BEST_EFFORTS = {
    "passing": Written(PASSING, "BytesMessage", "31"),
    "delayed": Written(Message(b"1", headers=Headers(delivery_delay_ms=DELAY_MS)), "BytesMessage", "31"),
}
WRITTEN = {**TEXTS, **OTHERS, **BEST_EFFORTS}

# --- the exchange ---

InJava = dict[str, Any]
"""A message as the Java program shows it."""


class Places(NamedTuple):
    """Destinations, and who uses them.

    Attributes:
        read: Java sends, we read.
        bridged: Java sends to the engine.
        sent_on: the engine sends to Java.
        written: we send, Java reads.
        told: Java sends, we read as long as we want, Java reads what is left.
        answered: we send, Java reads.
        given_back: both sides use it; we give a message back.
        returned: Java sends and gives a message back.
    """

    read: str
    bridged: str
    sent_on: str
    written: str
    told: str
    answered: str
    given_back: str
    returned: str


class Bridges(Monitor, persistent=True):
    """Sends on what comes."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(message, to="out", key=message.key)


class Seen(NamedTuple):
    """What came of the exchange.

    Attributes:
        java: what Java received, by destination and name.
        returned: what came to us again, by name.
    """

    java: dict[str, dict[str, InJava]]
    returned: dict[str, Message]


@pytest.fixture(scope="module")
def namespace(pulsar: PulsarServer) -> str:
    return pulsar.namespace()


@pytest.fixture(scope="module")
def connection(pulsar: PulsarServer, namespace: str) -> PulsarConnection:
    return pulsar.connection(namespace=namespace, client_id=CLIENT_ID)


@pytest.fixture(scope="module")
def java(pulsar: PulsarServer, namespace: str, tmp_path_factory) -> JavaProgram:
    environment = {
        "BROKER_URL": pulsar.url,
        "WEB_URL": f"http://127.0.0.1:{pulsar.web_port}",
        "NAMESPACE": namespace,
        "CLIENT_ID": CLIENT_ID,
    }
    return JavaProgram("starlight", tmp_path_factory.mktemp("classes"), environment)


@pytest.fixture(scope="module")
def places(pulsar: PulsarServer) -> Places:
    topics = ("told", "answered")
    return Places(*(f"{'topic' if name in topics else 'queue'}:{pulsar.name()}" for name in Places._fields))


@pytest.fixture(scope="module")
def sent(java: JavaProgram, places: Places) -> dict[str, dict[str, InJava]]:
    """What Java has sent, as it is in Java: by destination and by name."""
    subscriptions = [f"subscribe {topic} {SUBSCRIPTION}" for topic in (places.told, places.answered)]
    sending = [f"send {one}" for one in (places.read, places.bridged, places.told, places.returned)]
    return by_destination(java.run(*subscriptions, *sending))


@pytest.fixture(scope="module")
def read(connection: PulsarConnection, places: Places, sent) -> dict[str, Message]:
    """What our source makes of a queue of it."""
    return take_all(connection, places.read, len(OF_JAVA))


@pytest.fixture(scope="module")
def told(connection: PulsarConnection, places: Places, sent) -> dict[str, Message]:
    """What our source takes of the durable subscription of Java, before Java takes the rest."""
    return take_all(connection, places.told, 3)


@pytest.fixture(scope="module")
def seen(
    pulsar: PulsarServer,
    namespace: str,
    connection: PulsarConnection,
    java: JavaProgram,
    places: Places,
    sent,
    told,
    tmp_path_factory,
) -> Seen:
    """What Java receives, and what it gives back."""
    write(connection, places.written, TEXTS, text=True)
    write(connection, places.written, OTHERS)
    write(connection, places.written, BEST_EFFORTS, Reliability.BEST_EFFORT)
    write(connection, places.answered, {"full": TEXTS["full"]}, text=True)
    write(connection, places.given_back, {name: TEXTS[name] for name in ("text", "empty text")}, text=True)
    settings = bridge(places, tmp_path_factory.mktemp("bridge"))
    with (
        holding_one(connection, places.given_back) as (giver, given_back),
        holding_one(connection, places.returned) as (taker, returned),
        Engine(settings, connections={"pulsar": connection}),
    ):
        for queue in (places.given_back, places.returned):
            wait_until_two_are_held(pulsar, namespace, queue)
        giver.reject(given_back)
        lines = java.run(
            f"receive {places.given_back} 1",
            f"return {places.returned}",
            f"receive {places.written} {len(WRITTEN) - 1}",
            f"receive {places.sent_on} {len(OF_JAVA) - 1}",
            f"receive {places.answered} 1 {SUBSCRIPTION}",
            f"receive {places.told} {len(OF_JAVA) - len(told)} {SUBSCRIPTION}",
        )
        taker.acknowledge(returned)
        return Seen(by_destination(lines), rest(taker, len(OF_JAVA) - 1))


def by_destination(lines: list[dict[str, Any]]) -> dict[str, dict[str, InJava]]:
    """By name, too: which Java writes into a property and we into the id."""
    messages: dict[str, dict[str, InJava]] = {}
    for line in lines:
        all_properties = line["properties"]
        line["group"] = all_properties.get("JMSXGroupID")
        line["number"] = all_properties.get("JMSXGroupSeq")
        line["deliveries"] = all_properties.get("JMSXDeliveryCount")
        line["properties"] = {name: shown for name, shown in all_properties.items() if not name.startswith("JMS")}
        _, name = line["properties"].pop("name", (None, line["message_id"].rpartition(":")[2]))
        messages.setdefault(line["destination"], {})[name] = line
    return messages


def source(connection: PulsarConnection, destination: str, max_batch_size: int) -> PulsarSource:
    settings = ReceiverSettings(
        id="r",
        connection="pulsar",
        destination=destination,
        max_batch_size=max_batch_size,
        durable_topic_subscription_name=SUBSCRIPTION,
    )
    return connection.source(settings)


def take_all(connection: PulsarConnection, destination: str, wanted: int) -> dict[str, Message]:
    """So many messages, acknowledged: by name."""
    with opened(source(connection, destination, wanted)) as opened_source:
        chunks = take(opened_source, wanted)
        opened_source.acknowledge(tokens(chunks))
    return {str(one.properties.pop("name")): one for chunk in chunks for one in chunk.messages}


@contextlib.contextmanager
def holding_one(connection: PulsarConnection, queue: str) -> Iterator[tuple[PulsarSource, Any]]:
    """A source that has taken one message, and whose client takes one more: then the broker gives them nothing."""
    with opened(source(connection, queue, 1)) as holder:
        (chunk,) = take(holder, 1)
        yield holder, chunk.tokens


def wait_until_two_are_held(pulsar: PulsarServer, namespace: str, queue: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    topic = queue.removeprefix("queue:")
    while pulsar.subscriptions(topic, namespace)["jms-queue"]["unackedMessages"] < 2:
        assert time.monotonic() < deadline


def rest(holder: PulsarSource, wanted: int) -> dict[str, Message]:
    """What the broker gives to a source that takes one after the other."""
    messages = {}
    for _ in range(wanted):
        (chunk,) = take(holder, 1)
        holder.acknowledge(chunk.tokens)
        messages[str(chunk.messages[0].properties["name"])] = chunk.messages[0]
    return messages


def write(
    connection: PulsarConnection,
    destination: str,
    messages: dict[str, Written],
    reliability: Reliability = Reliability.AT_LEAST_ONCE,
    *,
    text: bool = False,
) -> None:
    """Send them in order, by one sender; the id of each says its name."""
    settings = SenderSettings(
        id="s", connection="pulsar", destination=destination, reliability=reliability, options={"text": text}
    )
    batch = [Outgoing(7, name, destination, one.message) for name, one in messages.items()]
    with opened(connection.sink(settings)) as sink:
        assert codes(sink.send(batch)) == [None] * len(batch)


def bridge(places: Places, directory) -> EngineSettings:
    """It knows the messages by the places where they lie, and adds nothing to them."""
    return EngineSettings(
        name="bridge",
        store=f"sqlite:///{directory}/bridge.db",
        receivers=(
            ReceiverSettings(
                id="in",
                connection="pulsar",
                destination=places.bridged,
                reliability=Reliability.EXACTLY_ONCE,
                unique_message_id="${header.message_id}",
            ),
        ),
        senders=(
            SenderSettings(
                id="out", connection="pulsar", destination=places.sent_on, reliability=Reliability.AT_LEAST_ONCE
            ),
        ),
        monitors=(MonitorSettings(type=f"{__name__}:Bridges"),),
    )


def content(message: Message) -> tuple[str, object]:
    """Its kind, and what is in it."""
    kind = str(message.properties.get("jms_message_type", "bytes"))
    if kind == "text":
        return kind, None if message.properties.get("jms_null") else message.body.decode()
    if kind == "object":
        return kind, message.body[: len(SERIALIZED)]
    if kind == "map":
        return kind, dict(sorted(read_map(message.body).items()))
    return kind, read_stream(message.body) if kind == "stream" else message.body


# --- from Java to us ---


def test_s3_8_everything_that_java_sends_is_read_in_order(read):
    assert {name: repr(content(message)) for name, message in read.items()} == {
        name: repr(expected) for name, expected in OF_JAVA.items()
    }
    assert list(read) == list(OF_JAVA)


def test_s3_1_the_properties_of_java_are_of_their_types(read):
    properties = dict(read["full"].properties)
    assert json.loads(properties.pop("jms_types")) == TYPES_OF_JAVA
    assert properties.pop("jms_message_type") == "text"
    assert {name: repr(value) for name, value in properties.items()} == {
        name: repr(value) for name, value in PROPERTIES_OF_JAVA.items()
    }


def test_s3_3_s3_4_s3_5_the_headers_of_java(sent, read, places):
    in_java, message = sent[places.read]["full"], read["full"]
    assert message.key == "customer €"
    assert message.headers == Headers(
        message_id=in_java["message_id"],
        correlation_id="correlation €",
        reply_to="queue:answers",
        type="order",
        priority=7,
        persistent=True,
        time_to_live_ms=in_java["expiration"] - in_java["timestamp"],
        expiration=in_java["expiration"],
        timestamp=in_java["timestamp"],
        group_sequence=3,
    )


def test_s3_3_s3_7_other_headers_of_java(sent, read, places):
    in_java, message = sent[places.read]["other"], read["other"]
    assert message == Message(
        b"",
        {"jms_correlation_bytes": True},
        headers=Headers(
            message_id=in_java["message_id"],
            correlation_id="base64:AAH/",
            reply_to="topic:answers",
            priority=0,
            persistent=False,
            timestamp=in_java["timestamp"],
        ),
    )


@pytest.mark.parametrize("name", [name for name in OF_JAVA if name not in ("late", "full", "other")])
def test_s3_3_a_message_of_java_that_says_nothing_of_itself_is_read_so(sent, read, places, name):
    in_java, message = sent[places.read][name], read[name]
    assert (message.properties.keys() - {"jms_message_type", "jms_null"}, message.key) == (set(), None)
    assert message.headers == Headers(
        message_id=in_java["message_id"], priority=4, persistent=True, timestamp=in_java["timestamp"]
    )


def test_s3_5_a_message_of_java_that_is_too_late_is_known(sent, read, places):
    message = read["late"]
    assert message.headers.expiration == sent[places.read]["late"]["expiration"]
    assert expired(message, time.time() * 1000)


# --- from us to Java ---


def test_java_loses_nothing_that_is_written_but_what_is_too_late(seen, places):
    assert list(seen.java[places.written]) == [name for name in WRITTEN if name != "late"]


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "late"])
def test_s3_8_a_message_is_of_its_kind_in_java(seen, places, name):
    in_java = seen.java[places.written][name]
    assert (in_java["kind"], in_java["body"]) == (WRITTEN[name].kind, WRITTEN[name].body)


@pytest.mark.parametrize("place", ["written", "answered"])
def test_s3_1_properties_are_of_their_types_in_java(seen, places, place):
    in_java = seen.java[getattr(places, place)]["full"]
    assert in_java["properties"] == {name: shown for name, (_, shown) in PROPERTIES.items()}


@pytest.mark.parametrize("place", ["written", "answered"])
def test_s3_3_s3_4_s3_5_headers_in_java(namespace, seen, places, place):
    in_java = seen.java[getattr(places, place)]["full"]
    assert (in_java["correlation_id"], in_java["type"], in_java["priority"]) == ("correlation €", "order", 7)
    assert (in_java["reply_to"], in_java["persistent"]) == (f"queue:persistent://{namespace}/answers", True)
    assert (in_java["group"], in_java["number"]) == (["String", "customer €"], ["Integer", 3])
    assert (in_java["deliveries"], in_java["redelivered"]) == (["String", "1"], False)
    assert in_java["message_id"] == "ID:7:full"
    assert in_java["expiration"] == in_java["timestamp"] + ONE_HOUR_MS
    assert in_java["timestamp"] == in_java["delivery_time"]
    assert time.time() * 1000 - 600_000 < in_java["timestamp"] <= time.time() * 1000


def test_s3_3_a_delayed_message_has_its_delivery_time_in_java(seen, places):
    in_java = seen.java[places.written]["delayed"]
    assert in_java["delivery_time"] == in_java["timestamp"] + DELAY_MS


def test_s3_3_other_headers_in_java(seen, places):
    in_java = seen.java[places.written]["other"]
    assert in_java["correlation_bytes"] == ["byte[]", BINARY.hex()]
    assert (in_java["reply_to"], in_java["priority"]) == ("topic:persistent://public/other/answers", 0)
    assert in_java["expiration"] == in_java["timestamp"] + LONGEST_LIFE_MS
    assert in_java["properties"] == {"correlator_nulls": ["String", '["nothing"]']}


def test_s3_3_what_only_other_brokers_have_in_java(seen, places):
    """A text that looks like bytes, and a priority that JMS does not have."""
    in_java = seen.java[places.written]["of rabbitmq"]
    assert (in_java["correlation_id"], in_java["priority"]) == ("base64:AAH/", 9)


@pytest.mark.parametrize("name", ["text", "bytes", "header"])
def test_s3_3_a_message_that_says_nothing_of_itself_can_be_read(seen, places, name):
    in_java = seen.java[places.written][name]
    assert [in_java[header] for header in ("correlation_id", "reply_to", "type")] == [None] * 3
    assert (in_java["priority"], in_java["persistent"], in_java["expiration"]) == (4, True, 0)
    assert (in_java["group"], in_java["properties"]) == (["String", ""], {})


def test_s3_7_only_a_best_effort_sender_writes_what_is_not_persistent(seen, places):
    in_java = seen.java[places.written]
    assert [in_java[name]["persistent"] for name in ("made persistent", "passing")] == [True, False]


# --- subscriptions ---


def test_s1_1_java_goes_on_where_we_stop_reading_a_durable_subscription(pulsar, namespace, seen, told, places):
    assert [*told, *seen.java[places.told]] == list(OF_JAVA)
    assert list(told) == list(OF_JAVA)[:3]
    assert list(pulsar.subscriptions(places.told.removeprefix("topic:"), namespace)) == [f"{CLIENT_ID}_{SUBSCRIPTION}"]


@pytest.mark.parametrize("place", ["read", "written", "given_back", "returned"])
def test_s1_7_java_and_we_share_the_subscription_of_a_queue(pulsar, namespace, read, seen, places, place):
    topic = getattr(places, place).removeprefix("queue:")
    assert {name: one["type"] for name, one in pulsar.subscriptions(topic, namespace).items()} == {
        "jms-queue": "Shared"
    }


def test_s2_7_what_we_give_back_is_redelivered_in_java(seen, places):
    ((name, in_java),) = seen.java[places.given_back].items()
    assert (name, in_java["body"]) == ("text", TEXT)
    assert (in_java["deliveries"], in_java["redelivered"]) == (["String", "2"], True)


def test_s2_7_what_java_gives_back_is_redelivered_here(seen, places):
    """The first two are held here meanwhile, and the third one goes to Java, which lets go of it at the second time."""
    given_back = list(OF_JAVA)[2]
    in_java = seen.java[places.returned][given_back]
    assert (in_java["deliveries"], in_java["redelivered"]) == (["String", "2"], True)
    assert {name: (one.headers.delivery_count, one.headers.redelivered) for name, one in seen.returned.items()} == {
        name: (2, True) if name == given_back else (1, False) for name in list(OF_JAVA)[1:]
    }


# --- from Java through an engine to Java ---

OF_A_SENDER = ("destination", "message_id", "timestamp", "delivery_time", "expiration", "number", "persistent")
"""Fields that are those of whoever sent it last."""


def test_an_engine_passes_messages_of_java_on_unchanged(namespace, sent, seen, places):
    before, after = sent[places.bridged], seen.java[places.sent_on]
    assert list(after) == [name for name in OF_JAVA if name != "late"]
    assert {name: own(one, namespace) for name, one in after.items()} == {
        name: own(one, namespace) for name, one in before.items() if name != "late"
    }
    assert (before["full"]["number"], after["full"]["number"]) == (["Integer", 3],) * 2
    assert all(one["persistent"] for one in after.values())  # a reliable sender makes it so
    assert after["full"]["expiration"] >= before["full"]["expiration"]
    assert {one["expiration"] for name, one in after.items() if name != "full"} == {0}


def own(message: InJava, namespace: str) -> InJava:
    """What is the message's own; before it was sent Java calls a destination by its short name, and no group none."""
    fields = {name: value for name, value in message.items() if name not in OF_A_SENDER}
    reply_to = message["reply_to"] and message["reply_to"].replace(f"persistent://{namespace}/", "")
    return fields | {"reply_to": reply_to, "group": message["group"] or ["String", ""], "deliveries": None}
