"""Bodies with a schema of the topic's registry, with `use_schema`, over a real broker (rule S3.9).

What could be wrong: another version is applied than that which a message was written with, among them one from 128 on
and one of a topic that was made again; a body that does not fit is lost, comes again and again, or ends the process;
the registry has no such schema, or does not answer; what has no schema is changed; pairs are taken apart wrongly; each
message costs a question; a few bytes take all time and memory; a decimal is not the one that was sent.
"""

import json
import sys
import threading
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pulsar as client
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

from connectors.avro import MOST_GROWTH, SchemaRefused, decoder
from connectors.pulsar import schemas
from connectors.pulsar.link import PulsarLink
from connectors.pulsar.schemas import taken_apart
from correlator import Engine, Message, Monitor, on
from correlator.errors import ConfigError
from correlator.events import UNREADABLE
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import Seen, lost, opened
from tests.interop.java_program import JavaProgram
from tests.pulsar_server import NAMESPACE, PulsarServer

pytestmark = pytest.mark.pulsar


class Order(Record):
    id = Integer(required=True)
    item = String()


ONE = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
TWO = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": ["null", "string"]}, *ONE["fields"]]}
"""The same bytes would be something else with the other one."""


def avro(definition) -> Schema:
    return AvroSchema(None, schema_definition=definition)


class Said(BytesSchema):
    """A schema of bytes that the producer announces as another kind of schema."""

    def __init__(self, kind, definition) -> None:
        super().__init__()
        self._schema_info = client._pulsar.SchemaInfo(getattr(client._pulsar.SchemaType, kind), kind, definition)


def receiver(destination, use_schema=True, max_batch_size=1000, **options):
    options = {**options, "use_schema": use_schema}
    return ReceiverSettings(
        id="r", connection="pulsar", destination=destination, max_batch_size=max_batch_size, options=options
    )


def topic_of(name, namespace=NAMESPACE):
    return f"persistent://{namespace}/{name}"


def produce(server, topic, *batches):
    """Send batches, each a schema and its values; each batch becomes one entry in Pulsar."""
    one = client.Client(server.url, logger=client.FileLogger(client.LoggerLevel.Error, "/dev/null"))
    try:
        for schema, *values in batches:
            producer = one.create_producer(topic, schema=schema, batching_enabled=True)
            for value in values:
                producer.send_async(value, lambda *_: None)
            producer.flush()
    finally:
        one.close()


@pytest.fixture
def namespace(pulsar: PulsarServer) -> str:
    """A namespace that accepts any schema after any other."""
    namespace = pulsar.namespace()
    pulsar.request("PUT", f"namespaces/{namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    return namespace


def all_of(source, wanted):
    """Take exactly `wanted` messages, none lost and none twice."""
    chunks = take(source, wanted)
    source.acknowledge(tokens(chunks))
    assert not source.receive(10, 0.2).messages
    return [message for chunk in chunks for message in chunk.messages]


def read(connection, topic, wanted, **options):
    with opened(connection.source(receiver(f"queue:{topic}", **options))) as source:
        return all_of(source, wanted)


def shown(messages):
    """The decoded JSON body and the properties of each message."""
    return [(json.loads(message.body), message.properties) for message in messages]


TEXT = {"jms_message_type": "text"}


# --- what is what ---


@pytest.mark.parametrize(
    ("schema", "value", "body"),
    [
        (StringSchema(), "Grüße", "Grüße".encode()),
        (StringSchema(), "", b""),
        (avro(ONE), {"id": 7}, b'{"id":7}'),
        (JsonSchema(Order), Order(id=7, item="ü"), json.dumps({"id": 7, "item": "ü"}, indent=True).encode()),
    ],
)
def test_s3_9_a_body_is_a_text_by_its_schema(pulsar: PulsarServer, schema, value, body):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (schema, value))
    (message,) = read(pulsar.connection(), topic, 1)
    assert (message.body, message.properties) == (body, TEXT)


def test_without_the_option_and_without_a_schema_a_body_is_what_was_sent(pulsar: PulsarServer):
    """A topic with a schema may also hold messages without."""
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (avro(ONE), {"id": 7}), (BytesSchema(), b"\x0e"))
    for use_schema, first in ((False, b"\x0e"), (True, b'{"id":7}')):
        with opened(pulsar.connection().source(receiver(f"topic:{topic}", use_schema))) as source:
            chunks = take(source, 2)
            assert bodies(chunks) == [first, b"\x0e"]
            properties = [message.properties for chunk in chunks for message in chunk.messages]
            assert properties == ([TEXT, {}] if use_schema else [{}, {}])


RECORD = {
    "type": "record",
    "name": "All",
    "namespace": "shop.Orders$",
    "fields": [
        {"name": "whole", "type": "long"},
        {"name": "fraction", "type": "double"},
        {"name": "none", "type": "float"},
        {"name": "yes", "type": "boolean"},
        {"name": "bytes", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "Three", "size": 3}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}},
        {"name": "date", "type": {"type": "int", "logicalType": "date"}},
        {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "mark", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "others", "type": {"type": "map", "values": ["null", "string", "int"]}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "string"}]},
            },
        },
        {"name": "first", "type": ["null", "Item"]},
    ],
}
MARK = uuid.UUID(int=7)
VALUES = {
    "whole": 2**63 - 1,
    "fraction": 0.1,
    "none": float("nan"),
    "yes": True,
    "bytes": b"\x00\xff",
    "fixed": b"abc",
    "colour": "GREEN",
    "date": date(2026, 1, 2),
    "moment": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
    "price": Decimal("12.50"),
    "mark": MARK,
    "others": {"a": None, "b": "ü", "c": 1},
    "items": [{"n": "pen"}, {"n": "ink"}],
    "first": {"n": "pen"},
}
IN_JSON = {
    **VALUES,
    "none": None,
    "bytes": "AP8=",
    "fixed": "YWJj",
    "date": "2026-01-02",
    "moment": "2026-01-02T03:04:05.006000Z",
    "price": "12.50",
    "mark": str(MARK),
}


def test_all_that_a_record_may_hold_is_in_its_json(pulsar: PulsarServer):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (avro(RECORD), VALUES))
    assert shown(read(pulsar.connection(), topic, 1)) == [(IN_JSON, TEXT)]


def test_moments_in_nanoseconds_stay_numbers():
    assert decoded({"type": "long", "logicalType": "timestamp-nanos"}, b"\2") == 1


def test_a_null_value_stays_one(pulsar: PulsarServer):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (Said("AVRO", json.dumps(ONE)), b"\x0e", None))
    messages = read(pulsar.connection(), topic, 2)
    assert [message.body for message in messages] == [b'{"id":7}', b""]
    assert messages[1].properties == {**TEXT, "jms_null": True}


def test_a_default_that_does_not_fit_is_in_nobodys_way(pulsar: PulsarServer):
    """The broker accepts such a schema, and a reader with the schema of the writer needs no defaults."""
    topic = pulsar.name()
    fields = [{"name": "id", "type": "int", "default": None}]
    produce(pulsar, topic_of(topic), (Said("AVRO", json.dumps({**ONE, "fields": fields})), b"\x0e"))
    assert shown(read(pulsar.connection(), topic, 1)) == [({"id": 7}, TEXT)]


# --- decimals ---


def decimal(precision, scale, **its_type):
    return {"type": "bytes", **its_type, "logicalType": "decimal", "precision": precision, "scale": scale}


def decoded(definition, body):
    """The body as decoded JSON."""
    return json.loads(msgspec.json.encode(decoder(json.dumps(definition))(body)))


def number(unscaled, size=None):
    """The number as a sender writes it; with a size, as a value of a fixed type."""
    content = unscaled.to_bytes(size or unscaled.bit_length() // 8 + 1, "big", signed=True)
    return content if size else bytes([2 * len(content)]) + content


@pytest.mark.parametrize(
    ("precision", "scale", "unscaled", "text"),
    [
        (6, 2, 1250, "12.50"),
        (6, 2, -999999, "-9999.99"),
        (6, 2, 0, "0.00"),
        (10, 0, 10, "10"),
        (10, 7, 1, "0.0000001"),
        (38, 9, 10**38 - 1, "9" * 29 + "." + "9" * 9),
        (60, 60, -(10**59), "-0.1" + "0" * 59),
    ],
)
def test_a_decimal_has_all_its_digits_and_no_exponent(precision, scale, unscaled, text):
    assert decoded(decimal(precision, scale), number(unscaled)) == text
    size = len(number(unscaled)) + 3
    fixed = decimal(precision, scale, type="fixed", name="Fixed", size=size)
    assert decoded(fixed, number(unscaled, size)) == text


def test_decimals_are_read_wherever_they_are():
    fixed = decimal(4, 2, type="fixed", name="Price", size=2)
    fields = {
        "first": fixed,
        "named": "Price",
        "optional": ["null", "shop.Price"],
        "list": {"type": "array", "items": decimal(4, 1)},
        "map": {"type": "map", "values": "Price"},
        "inner": {"type": "record", "name": "Inner", "fields": [{"name": "price", "type": "shop.Price"}]},
    }
    record = {
        "type": "record",
        "name": "R",
        "namespace": "shop",
        "fields": [{"name": name, "type": its_type} for name, its_type in fields.items()],
    }
    one, two = number(1250, 2), number(-7, 2)
    body = one + two + b"\2" + one + b"\4" + number(5) + number(-15) + b"\0" + b"\2\2a" + two + b"\0" + one
    assert decoded(record, body) == {
        "first": "12.50",
        "named": "-0.07",
        "optional": "12.50",
        "list": ["0.5", "-1.5"],
        "map": {"a": "-0.07"},
        "inner": {"price": "12.50"},
    }


@pytest.mark.parametrize("unscaled", [10**6, -(10**6), 123456789])
def test_a_decimal_of_more_digits_than_its_schema_allows_does_not_fit(pulsar: PulsarServer, unscaled):
    """The decoder does not round it."""
    topic = pulsar.name()
    fields = [{"name": "price", "type": decimal(6, 2)}]
    produce(pulsar, topic_of(topic), (Said("AVRO", json.dumps({**ONE, "fields": fields})), number(unscaled)))
    problem = "schema 0 (AVRO): the body does not fit it"
    assert bodies_and_problems(read(pulsar.connection(), topic, 1)) == [(number(unscaled), problem)]


def test_a_decimal_without_a_byte_is_not_zero():
    with pytest.raises(ValueError, match="at least one byte"):
        decoded(decimal(6, 2), b"\0")


def test_a_decimal_of_a_million_bytes_takes_no_time():
    """Converting it to digits would take minutes."""
    definition, size = decimal(10, 2), 1_600_000
    begin = time.monotonic()
    with pytest.raises(ValueError, match="digits"):
        decoded(definition, long_of(size) + b"\x7f" * size)
    assert time.monotonic() - begin < PATIENCE_S


def long_of(value):
    """A number that is not negative, as Avro writes a `long`."""
    value, content = value * 2, bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


DIGITS = "its decimals do not have 1 to 1000 digits"
SCALE = "the scale of its decimals is not between 0 and their number of digits"


@pytest.mark.parametrize(
    ("its_type", "problem"),
    [
        (decimal(1001, 0), DIGITS),
        (decimal(0, 0), DIGITS),
        (decimal("2", 0), DIGITS),
        ({"type": "bytes", "logicalType": "decimal"}, DIGITS),
        (decimal(1001, 0, type="fixed", name="F", size=500), DIGITS),
        (decimal(2, 3), SCALE),
        (decimal(2, -1), SCALE),
        (decimal(2, None), SCALE),
    ],
)
def test_decimals_are_bounded(its_type, problem):
    with pytest.raises(SchemaRefused, match=f"^{problem}$"):
        decoder(json.dumps({"type": "array", "items": its_type}))


# --- versions ---


def test_each_message_is_read_with_the_version_that_it_was_written_with(pulsar: PulsarServer, namespace, monkeypatch):
    """An entry holds several messages of one version, and versions take turns; the client asks once for each."""
    asked = []
    ask = PulsarLink.schema
    monkeypatch.setattr(
        PulsarLink, "schema", lambda link, topic, version: asked.append(version) or ask(link, topic, version)
    )
    topic = pulsar.name()
    older, newer = {"id": 1}, {"item": "pen", "id": 2}
    batches = [(avro(ONE), older, older, older), (avro(TWO), newer, newer)]
    produce(pulsar, topic_of(topic, namespace), *batches, *batches)
    messages = read(pulsar.connection(namespace=namespace), topic, 10)
    assert shown(messages) == [(value, TEXT) for value in ([older] * 3 + [newer] * 2) * 2]
    assert asked == [0, 1]


def test_no_more_schemas_are_kept_than_is_bounded(pulsar: PulsarServer, namespace, monkeypatch):
    monkeypatch.setattr(schemas, "MOST_KEPT", 1)
    topic = pulsar.name()
    batches = [(avro(ONE), {"id": 1}), (avro(TWO), {"item": None, "id": 2})]
    produce(pulsar, topic_of(topic, namespace), *batches, *batches)
    source = pulsar.connection(namespace=namespace).source(receiver(f"queue:{topic}"))
    with opened(source):
        assert [body["id"] for body, _ in shown(all_of(source, 4))] == [1, 2, 1, 2]
        assert source._schemas._schema.cache_info().currsize == 1


def test_versions_of_more_than_seven_bits(pulsar: PulsarServer, namespace):
    topic = pulsar.name()
    for number in range(200):
        fields = [{"name": f"n{number}", "type": "int"}]
        content = {"type": "AVRO", "schema": json.dumps({**ONE, "fields": fields}), "properties": {}}
        pulsar.request("POST", f"schemas/{namespace}/{topic}/schema", content)
    produce(pulsar, topic_of(topic, namespace), (avro(ONE), {"id": 7}))
    assert pulsar.request("GET", f"schemas/{namespace}/{topic}/schema")["version"] == 200
    assert shown(read(pulsar.connection(namespace=namespace), topic, 1)) == [({"id": 7}, TEXT)]


def test_a_topic_that_is_made_again_has_other_schemas(pulsar: PulsarServer, namespace):
    """Its first version is 0 again. The client of a waiting source goes on by itself."""
    topic = pulsar.name()
    produce(pulsar, topic_of(topic, namespace), (avro(ONE), {"id": 1}))
    with opened(pulsar.connection(namespace=namespace).source(receiver(f"queue:{topic}"))) as source:
        assert shown(all_of(source, 1)) == [({"id": 1}, TEXT)]
        pulsar.request("DELETE", f"{pulsar.path(topic, namespace)}?force=true")
        produce(pulsar, topic_of(topic, namespace), (avro(TWO), {"item": "pen", "id": 2}))
        assert pulsar.request("GET", f"schemas/{namespace}/{topic}/schema")["version"] == 0
        wait_until_sent(pulsar, topic, namespace, 1)
        assert shown(all_of(source, 1)) == [({"item": "pen", "id": 2}, TEXT)]


def wait_until_sent(server, topic, namespace, count):
    """Wait until the broker has sent `count` messages to the only consumer of the queue."""
    deadline = time.monotonic() + PATIENCE_S
    while server.subscriptions(topic, namespace).get("jms-queue", {}).get("msgOutCounter") != count:
        assert time.monotonic() < deadline


def test_several_topics_have_their_own_schemas(pulsar: PulsarServer, namespace):
    one, two = pulsar.name(), pulsar.name()
    pulsar.request("PUT", f"{pulsar.path(two, namespace)}/partitions", 2)
    produce(pulsar, topic_of(one, namespace), (avro(ONE), {"id": 1}))
    produce(pulsar, topic_of(two, namespace), (avro(TWO), {"item": "pen", "id": 2}, {"item": None, "id": 3}))
    for destination in (f"multi:{one},{two}", f"regex:({one}|{two})"):
        connection = pulsar.connection(namespace=namespace)
        with opened(connection.source(receiver(f"topic:{destination}", initial_position="earliest"))) as source:
            found = [body for body, _ in shown(all_of(source, 3))]
        assert sorted(found, key=lambda body: body["id"]) == [
            {"id": 1},
            {"item": "pen", "id": 2},
            {"item": None, "id": 3},
        ]
        pulsar.request("DELETE", f"{pulsar.path(one, namespace)}/subscription/r")
        pulsar.request("DELETE", f"{pulsar.path(two, namespace)}/subscription/r")


# --- what cannot be read ---

DEEP = {"type": "record", "name": "Deep", "fields": [{"name": "next", "type": ["null", "Deep"]}]}
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": {"type": "array", "items": "null"}}]}


@pytest.mark.parametrize(
    ("kind", "definition", "body", "unreadable"),
    [
        ("STRING", "", b"\xff", "schema 0 (STRING): the body does not fit it"),
        ("JSON", json.dumps(ONE), b'{"id": 7', "schema 0 (JSON): the body does not fit it"),
        ("JSON", json.dumps(ONE), b'{"id": "\xff"}', "schema 0 (JSON): the body does not fit it"),
        ("AVRO", json.dumps(TWO), b"\x02\x0aab", "schema 0 (AVRO): the body does not fit it"),
        ("AVRO", json.dumps(TWO), b"\x08", "schema 0 (AVRO): the body does not fit it"),
        ("AVRO", json.dumps(ONE), b"\x0e\x0e", "schema 0 (AVRO): the body does not fit it"),
        ("AVRO", json.dumps(DEEP), b"\x02" * 1_000_000 + b"\0", "schema 0 (AVRO): Deep contains itself"),
        ("AVRO", json.dumps(NOTHING), b"\xfe" + b"\xff" * 8 + b"\1\0", "schema 0 (AVRO): its JSON may be too long"),
    ],
)
def test_what_cannot_be_read_comes_as_it_is_and_once(pulsar: PulsarServer, kind, definition, body, unreadable):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (Said(kind, definition), body))
    (message,) = read(pulsar.connection(), topic, 1)
    assert (message.body, message.properties) == (body, {UNREADABLE: unreadable})


def test_what_cannot_be_read_is_not_in_the_way_of_others(pulsar: PulsarServer):
    """The others come from the same entry, in the order of sending."""
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (Said("AVRO", json.dumps(ONE)), b"\x02", b"", b"\x04"))
    messages = read(pulsar.connection(), topic, 3)
    assert bodies_and_problems(messages) == [
        (b'{"id":1}', None),
        (b"", "schema 0 (AVRO): the body does not fit it"),
        (b'{"id":2}', None),
    ]


def bodies_and_problems(messages):
    return [(message.body, message.properties.get(UNREADABLE)) for message in messages]


def test_a_schema_that_the_registry_no_longer_has(pulsar: PulsarServer):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (avro(ONE), {"id": 1}))
    pulsar.request("DELETE", f"schemas/{NAMESPACE}/{topic}/schema?force=true")
    problem = "schema 0: the registry does not have it"
    assert bodies_and_problems(read(pulsar.connection(), topic, 1)) == [(b"\x02", problem)]


def test_a_schema_that_the_registry_does_not_have_is_asked_for_once(pulsar: PulsarServer, monkeypatch):
    asked = []
    ask = PulsarLink.schema
    monkeypatch.setattr(
        PulsarLink, "schema", lambda link, topic, version: asked.append(version) or ask(link, topic, version)
    )
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (avro(ONE), *({"id": number} for number in range(50))))
    pulsar.request("DELETE", f"schemas/{NAMESPACE}/{topic}/schema?force=true")
    messages = read(pulsar.connection(), topic, 50)
    assert {message.properties[UNREADABLE] for message in messages} == {"schema 0: the registry does not have it"}
    assert asked == [0]


def test_a_broker_that_does_not_tell_a_schema_loses_nothing(pulsar: PulsarServer, namespace):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic, namespace), (avro(ONE), {"id": 1}), (avro(TWO), {"item": None, "id": 2}, {"id": 3}))
    with opened(pulsar.connection(namespace=namespace, timeout_s=1).source(receiver(f"queue:{topic}"))) as source:
        (first,) = take(source, 1)
        wait_until_sent(pulsar, topic, namespace, 3)
        with pulsar.frozen():
            error = lost(lambda: source.receive(1, PATIENCE_S))
        assert error.code == "E7023"
        assert json.loads(first.messages[0].body) == {"id": 1}
    found = read(pulsar.connection(namespace=namespace), topic, 3)
    assert sorted(body["id"] for body, _ in shown(found)) == [1, 2, 3]


def record(name, **fields):
    return {"type": "record", "name": name, "fields": [{"name": at, "type": one} for at, one in fields.items()]}


def listed(items):
    return {"type": "array", "items": items}


def doubling(times):
    """A schema in which each record has two fields of the type of the previous record; the first record is empty."""
    steps = {f"f{n}": record(f"R{n}", a=f"R{n - 1}", b=f"R{n - 1}") for n in range(1, times + 1)}
    return record("All", f0=record("R0"), **steps)


def chain(length):
    """A schema in which each record holds the previous one by name, so that its text is not deep."""
    steps = {f"f{n}": record(f"R{n}", a=["int", f"R{n - 1}"]) for n in range(1, length)}
    return record("All", f0=record("R0", a="int"), **steps)


TOO_LONG = "its JSON may be too long"


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (doubling(20), TOO_LONG),
        (doubling(2000), TOO_LONG),
        (listed(record("R")), TOO_LONG),
        (listed(record("R", **{"n" * 1000: "boolean"})), TOO_LONG),
        (listed(["int", record("R", **{"n" * 1000: "boolean"})]), TOO_LONG),
        (listed({"type": "enum", "name": "E", "symbols": ["A", "B" * 1000]}), TOO_LONG),
        (listed(decimal(1000, 1000)), TOO_LONG),
        ({"type": "map", "values": record("R", **{"n" * 1000: "null"})}, TOO_LONG),
        (listed({"type": "fixed", "name": "F", "size": 0}), TOO_LONG),
        (record("R", a=record("null", x="int"), b=listed("null")), TOO_LONG),
        (chain(1000), "it is nested too deeply"),
        ([record("D", a="int"), record("E", d="D"), record("D", e="E")], "D is defined twice"),
        (record("Deep", a={"type": "map", "values": "Deep"}), "Deep contains itself"),
    ],
)
def test_a_schema_with_which_few_bytes_take_much_is_refused(definition, problem):
    with pytest.raises(SchemaRefused, match=f"^{problem}$"):
        decoder(json.dumps(definition))


def test_a_schema_cannot_say_that_it_was_looked_at():
    """The schema has the marks of the library that reads it, which then trusts the names that they give."""
    mark = {"__fastavro_parsed": True, "__named_schemas": {"Deep": DEEP}}
    assert decoded({**record("All", a=record("Deep", n="int"), b="Deep"), **mark}, b"\2\4") == {
        "a": {"n": 1},
        "b": {"n": 2},
    }


def test_no_json_is_longer_than_is_bounded():
    """For every type, the JSON is as long as its bytes allow."""
    long = "n" * 60
    for items, item in (
        (record("R", **{long: "boolean"}), b"\1"),
        (record("R", **{long: ["null", "int"]}), b"\0"),
        ({"type": "enum", "name": "E", "symbols": [long]}, b"\0"),
        ({"type": "map", "values": "null"}, b"\2\2\1\0"),
        (decimal(60, 60), b"\2\xff"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\2"),
        ({"type": "int", "logicalType": "date"}, b"\0"),
        ("double", b"\x9a\x99\x99\x99\x99\x99\xb9\xbf"),
        ("string", b"\6\1\1\1"),
    ):
        body = long_of(1000) + item * 1000 + b"\0"
        decode = decoder(json.dumps(listed(items)))
        text = msgspec.json.encode(decode(body))
        assert len(text) <= MOST_GROWTH * len(body), items
        assert len(json.loads(text)) == 1000


def test_records_of_nothing_are_fields_of_others():
    assert decoded(record("R", a=record("Empty"), b="null", c="int"), b"\2") == {"a": {}, "b": None, "c": 1}


# --- pairs, and what else Java sends ---

JOERG = {"name": "Jörg"}
OF_JAVA = {
    "colour": "GREEN",
    "customer": JOERG,
    "discount": None,
    "id": 2**63 - 1,
    "items": [{"name": "pen", "number": 2, "price": "1.50"}, {"name": "ink", "number": 1, "price": "7"}],
    "notes": {"to": "the door"},
    "seal": "AAH/",
}
PAIRS = [{"key": JOERG, "value": OF_JAVA}, {"key": JOERG, "value": None}, {"key": None, "value": OF_JAVA}]


@pytest.fixture(scope="module")
def java(pulsar: PulsarServer, tmp_path_factory) -> JavaProgram:
    return JavaProgram("schemas", tmp_path_factory.mktemp("classes"), {"BROKER_URL": pulsar.url})


@pytest.fixture(scope="module")
def of_java(pulsar: PulsarServer, java: JavaProgram):
    """The topics, one for each kind of message that the Java program sends."""
    topics = {
        name: pulsar.name()
        for name in ("avro", "inline", "separated", "named", "broken", "number", "yes", "partitioned", "elsewhere")
    }
    pulsar.request("PUT", f"{pulsar.path(topics['partitioned'])}/partitions", 2)
    kinds = {"partitioned": "inline", "elsewhere": "inline"}
    java.run(*(f"{kinds.get(name, name)} {topic_of(topic)}" for name, topic in topics.items()))
    return topics


def with_rest(server, **options):
    return server.connection(web_service_url=f"http://127.0.0.1:{server.web_port}", **options)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("avro", [OF_JAVA]),
        ("inline", PAIRS),
        ("separated", PAIRS),
        ("named", [{"key": "a", "value": {"name": "b"}}]),
    ],
)
def test_records_and_pairs_of_java(pulsar: PulsarServer, of_java, kind, values):
    assert shown(read(with_rest(pulsar), of_java[kind], len(values))) == [(value, TEXT) for value in values]


def test_pairs_of_partitions(pulsar: PulsarServer, of_java):
    found = [body for body, _ in shown(read(with_rest(pulsar), of_java["partitioned"], 3))]
    assert sorted(found, key=repr) == sorted(PAIRS, key=repr)


def test_a_separate_key_stays_the_key_of_the_message(pulsar: PulsarServer, of_java):
    """The message keeps the key, so that it keeps its order when it is sent on."""
    with opened(with_rest(pulsar).source(receiver(f"topic:{of_java['separated']}"))) as source:
        keys = [message.key for message in all_of(source, 3)]
    assert keys == ["AgpKw7ZyZw==", "AgpKw7ZyZw==", None]


@pytest.mark.parametrize(
    ("kind", "body", "unreadable"),
    [
        ("broken", b"\0\0\0\3\2\2a\0\0\0\1\1", "schema 0 (KEY_VALUE): the body does not fit it"),
        ("number", b"\0\0\0\7", "schema 0 (INT32): schemas of this kind are not read"),
        ("yes", b"\1", "schema 0 (type 5): schemas of this kind are not read"),
    ],
)
def test_what_cannot_be_read_of_java(pulsar: PulsarServer, of_java, kind, body, unreadable):
    (message,) = read(with_rest(pulsar), of_java[kind], 1)
    assert (message.body, message.properties) == (body, {UNREADABLE: unreadable})


def test_pairs_without_the_rest_interface_come_as_they_are(pulsar: PulsarServer, of_java):
    with opened(pulsar.connection().source(receiver(f"topic:{of_java['named']}"))) as source:
        (message,) = all_of(source, 1)
    assert message.properties == {UNREADABLE: "schema 0 (KEY_VALUE): web_service_url is not set"}
    assert taken_apart(message.body) == (b"a", b'{"name":"b"}')


def test_a_rest_interface_that_does_not_answer_loses_nothing(pulsar: PulsarServer, of_java):
    destination = f"topic:{of_java['inline']}"
    with opened(pulsar.connection(web_service_url="http://127.0.0.1:1").source(receiver(destination))) as source:
        assert lost(lambda: source.receive(1, PATIENCE_S)).code == "E7001"
    with opened(with_rest(pulsar).source(receiver(destination))) as source:
        assert shown(all_of(source, 3)) == [(pair, TEXT) for pair in PAIRS]


@pytest.fixture
def something_else(tmp_path):
    """The address of a server that answers every request with 404."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_another_address_than_that_of_the_rest_interface_loses_nothing(pulsar: PulsarServer, of_java, something_else):
    """The broker has confirmed that the schema exists."""
    topic = of_java["elsewhere"]
    with opened(pulsar.connection(web_service_url=something_else).source(receiver(f"topic:{topic}"))) as source:
        error = lost(lambda: source.receive(1, PATIENCE_S))
    assert (error.code, error.todo) == ("E7025", "Look at web_service_url")
    assert error.what == f"{something_else} answered 404 about schema 0 of {topic_of(topic)}, which there is"
    with opened(with_rest(pulsar).source(receiver(f"topic:{topic}"))) as source:
        assert shown(all_of(source, 3)) == [(pair, TEXT) for pair in PAIRS]


@pytest.mark.parametrize(
    ("body", "pair"),
    [
        ("00000001 61 00000002 6263", (b"a", b"bc")),
        ("00000000 00000000", (b"", b"")),
        ("ffffffff 00000001 61", (None, b"a")),
        ("00000001 61 ffffffff", (b"a", None)),
        ("", None),
        ("00", None),
        ("00000001", None),
        ("00000001 61", None),
        ("00000001 61 0000", None),
        ("00000001 61 00000002 62", None),
        ("00000001 61 00000001 62 63", None),
        ("fffffffe 00000001 61", None),
        ("fffffff7 0000000a 61", None),
        ("7fffffff 61", None),
    ],
)
def test_a_pair_is_taken_apart_by_its_lengths(body, pair):
    content = bytes.fromhex(body)
    if pair is not None:
        assert taken_apart(content) == pair
        return
    with pytest.raises(ValueError):
        taken_apart(content)


def test_the_option_is_true_or_false(pulsar: PulsarServer):
    with pytest.raises(ConfigError) as raised:
        pulsar.connection().source(receiver("queue:q", use_schema="yes"))
    assert str(raised.value) == "E1022 receivers.r.use_schema: 'yes' is not true or false."


def test_the_reader_of_records_is_needed_before_anything_is_received(pulsar: PulsarServer, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    pulsar.connection().source(receiver("queue:q", use_schema=False))
    with pytest.raises(ConfigError) as raised:
        pulsar.connection().source(receiver("queue:q"))
    assert str(raised.value).startswith("E1213 receivers.r.use_schema: needs the package 'fastavro'. Install: pip ")


# --- an engine ---

SEEN = Seen()


class Reads(Monitor):
    """A monitor that reads JSON and knows nothing of Avro."""

    @on(Message)
    def order(self, order: Message) -> None:
        SEEN.add(json.loads(order.body)["id"])


def test_an_engine_reads_orders(pulsar: PulsarServer, tmp_path):
    topic = pulsar.name()
    produce(pulsar, topic_of(topic), (AvroSchema(Order), *(Order(id=number, item="pen") for number in range(100))))
    settings = EngineSettings(
        name="reads",
        store=f"sqlite:///{tmp_path}/reads.db",
        receivers=(receiver(f"queue:{topic}"),),
        monitors=(MonitorSettings(type=f"{__name__}:Reads"),),
    )
    with Engine(settings, connections={"pulsar": pulsar.connection()}):
        SEEN.wait_for(100)
    assert SEEN.counts == dict.fromkeys(range(100), 1)
