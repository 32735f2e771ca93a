"""Bodies with schemas of a registry: what is read, written, held back or marked. Also through a broker."""

import base64
import datetime as dt
import io
import json
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import fastavro
import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import avro
from connectors.avro_writer import encoder
from connectors.kafka.content import NULL, encode
from connectors.kafka.registry import Registry, Schemas
from connectors.kafka.schemas import BodyReader, body_writer
from correlator import Reliability
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import CUT_FROM, UNREADABLE, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import take
from tests.connectors.registry import SchemaRegistry, serving
from tests.kafka_server import KafkaServer
from tests.registry_server import RegistryServer
from tests.servers import free_port, running

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "customer", "type": "string"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
BILL = b'{"customer":"ada","price":"12.30","note":null}'
EVERYTHING = json.dumps(
    {
        "type": "record",
        "name": "All",
        "namespace": "a.b",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "int", "type": ["null", "int"]},
            {"name": "long", "type": "long"},
            {"name": "double", "type": "double"},
            {"name": "raw", "type": "bytes"},
            {"name": "text", "type": "string"},
            {"name": "date", "type": {"type": "int", "logicalType": "date"}},
            {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
            {
                "name": "rate",
                "type": {"type": "fixed", "name": "R", "size": 6, "logicalType": "decimal", "precision": 9},
            },
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "kinds", "type": {"type": "map", "values": "Kind"}},
            {
                "name": "items",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Item",
                        "fields": [{"name": "of", "type": ["null", "long", "string", "a.b.Kind"]}],
                    },
                },
            },
        ],
    }
)
KINDS = st.sampled_from(["A", "B"])
VALUES = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "int": st.none() | st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "raw": st.binary(),
        "text": st.text(st.characters(exclude_categories=["Cs"])),
        "date": st.dates(),
        "time": st.times(),
        "at": st.datetimes(timezones=st.just(dt.UTC)),
        "local": st.datetimes(),
        "uuid": st.uuids().map(str),
        "price": st.integers(-999_999, 999_999).map(lambda number: format(Decimal(number).scaleb(-3), "f")),
        "rate": st.integers(-999_999_999, 999_999_999).map(str),
        "kind": KINDS,
        "kinds": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), KINDS, max_size=3),
        "items": st.lists(st.fixed_dictionaries({"of": st.none() | st.integers(-5, 5) | st.text("xyz")}), max_size=3),
    }
)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving() as server:
        yield server


def schemas(url: str, user: str = "", password: str = "") -> Schemas:
    return Schemas("receivers.r", Registry(url=url, user=user, password=password))


def of_confluent(number: int, definition: str, value: object) -> bytes:
    """A body as the serializer of Confluent makes it."""
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(definition)), value)
    return struct.pack(">bI", 0, number) + data.getvalue()


def reason(message: Message) -> str:
    return str(message.properties[UNREADABLE])


# --- Avro from JSON ---


@given(VALUES)
@settings(max_examples=50, deadline=None)
def test_what_is_read_can_be_written(value: object) -> None:
    text = msgspec.json.encode(value)
    back = avro.decoder(EVERYTHING)(encoder(EVERYTHING)(msgspec.json.decode(text)))
    assert msgspec.json.decode(msgspec.json.encode(back)) == msgspec.json.decode(text)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"customer": 7}, r"field 'customer': '7' \(int\) is not a text"),
        ({"more": 1}, "no field 'more'"),
        ({"price": "1.234"}, "is not a decimal of 9 digits with 2 after the point"),
        ({"price": "99999999"}, "is not a decimal"),
        ({"price": "NaN"}, "is not a decimal"),
        ({"price": "much"}, "price"),
        ({"price": True}, r"\(bool\) is not a decimal"),
        ({"note": 5}, r"field 'note': '5' \(int\) is not a text"),
    ],
)
def test_what_does_not_fit_the_schema(changed: dict[str, object], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        encoder(ORDER)({"customer": "ada", "price": "1", **changed})
    with pytest.raises(ValueError, match="price"):
        encoder(ORDER)({"customer": "ada"})


@pytest.mark.parametrize(
    ("type_", "value", "fits"),
    [
        ("boolean", 1, False),
        ("int", True, False),
        ("long", 2**64, False),
        ("double", 1, True),
        ("bytes", "no base64!", False),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", False),
        ({"type": "fixed", "name": "F", "size": 3}, "AAAA", True),
        ({"type": "fixed", "name": "F", "size": 3}, "AAA=", False),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-31T12:00:00", False),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "2026-01-31T12:00:00Z", False),
        ({"type": "long", "logicalType": "time-micros"}, "12:00:00Z", False),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 17, True),
        ({"type": "int", "logicalType": "date"}, 17, False),
        ([], 1, False),
        (["int", "string"], "x", True),
    ],
)
def test_values_and_types(type_: object, value: object, fits: bool) -> None:
    encode = encoder(json.dumps(type_))
    if fits:
        encode(value)
    else:
        with pytest.raises((ValueError, TypeError)):
            encode(value)


def test_a_schema_may_contain_itself() -> None:
    fields = [{"name": "next", "type": ["null", "List"]}]
    encode = encoder(json.dumps({"type": "record", "name": "List", "namespace": "n", "fields": fields}))
    assert encode({"next": {"next": None}}) == b"\x02\x00"


# --- reading ---


def test_bodies_are_read_and_a_schema_is_asked_for_once(registry: SchemaRegistry) -> None:
    number = registry.register("orders-value", ORDER)
    other = registry.register("other", '{"type": "object"}', "JSON")
    reader = BodyReader(schemas(registry.url))
    body = of_confluent(number, ORDER, {"customer": "ada", "price": Decimal("12.30"), "note": None})
    for _ in range(3):
        assert reader.read(Message(body, {"p": 1}, "k")) == Message(BILL, {"p": 1}, "k")
    assert reader.read(Message(struct.pack(">bI", 0, other) + b'{"a": 1}')).body == b'{"a": 1}'
    assert registry.asked == [f"GET /schemas/ids/{number}", f"GET /schemas/ids/{other}"]


def test_what_cannot_be_read_stays_as_it_is_and_says_so(registry: SchemaRegistry) -> None:
    number = registry.register("s", ORDER)
    tree = '{"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}'
    reader = BodyReader(schemas(registry.url))
    head = struct.Struct(">bI").pack
    reference = [{"name": "x", "subject": "x", "version": 1}]
    for body, why in (
        (b'{"customer": "ada"}', "does not begin with the id of a schema"),
        (b"\0\0\0", "does not begin with the id of a schema"),
        (b"\0\xff\xff\xff\xff", "does not begin with the id of a schema"),
        (head(0, number) + b"\xff", f"schema {number} (AVRO): the body does not fit it"),
        (head(0, registry.register("t", tree)) + b"\0", "contains itself"),
        (head(0, registry.register("b", "{")) + b"\0", "it is malformed"),
        (head(0, registry.register("x", "<x/>", "XML")) + b"\0", "(XML): schemas of this kind are not read"),
        (head(0, registry.register("r", '"x.Y"', references=reference)) + b"\0", "schemas that use other schemas"),
        (head(0, registry.register("j", "{}", "JSON")) + b"{", "(JSON): the body does not fit it"),
    ):
        message = reader.read(Message(body, {}))
        assert message.body == body
        assert why in reason(message)
    assert reader.read(Message(b"", {NULL: True})).properties == {NULL: True}
    assert reader.read(Message(b"\0" * 9, {CUT_FROM: 99})).properties == {CUT_FROM: 99}


def test_an_unknown_schema_is_waited_for(registry: SchemaRegistry) -> None:
    reader = BodyReader(schemas(registry.url))
    body = of_confluent(100_000, ORDER, {"customer": "ada", "price": Decimal("12.30")})
    with pytest.raises(
        ConnectionLost, match=r"E7150 receivers\.r: the registry does not have schema 100000\. The engine "
    ):
        reader.read(Message(body, {}))
    registry.register("late", ORDER)
    assert reader.read(Message(body, {})).body == BILL


def test_nobody_stops_a_partition_with_schemas_that_there_are_not(registry: SchemaRegistry) -> None:
    now_s = 1000.0
    reader = BodyReader(schemas(registry.url), lambda: now_s)
    bodies = [of_confluent(number, ORDER, {"customer": "ada", "price": Decimal("12.30")}) for number in range(4)]
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="E7150"):
            reader.read(Message(bodies[0], {}))
        now_s += 29
    message = reader.read(Message(bodies[0], {}))
    assert message.body == bodies[0]
    assert reason(message) == "E7150: the registry does not have schema 0"
    asked = len(registry.asked)
    assert "schema 0" in reason(reader.read(Message(bodies[0], {})))
    assert len(registry.asked) == asked, "messages that come together need one question"
    now_s += 500
    assert "schema 1" in reason(reader.read(Message(bodies[1], {}))), "other ids do not stop it, either"
    registry.schemas[0] = {"schema": ORDER}
    assert reader.read(Message(bodies[0], {})).body == BILL
    now_s += 200
    with pytest.raises(ConnectionLost, match="E7150"):
        reader.read(Message(bodies[2], {}))
    assert "schema 1" in reason(reader.read(Message(bodies[1], {}))), "was waited for, or came without"


def test_messages_wait_for_a_registry_that_does_not_answer(registry: SchemaRegistry) -> None:
    now_s = 1000.0
    reader = BodyReader(schemas(registry.url), lambda: now_s)
    registry.user = "me:topsecret"  # it refuses
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="E7002"):
            reader.read(Message(struct.pack(">bI", 0, 7), {}))
        now_s += 1000
    registry.user = ""
    with pytest.raises(ConnectionLost, match="E7150"):
        reader.read(Message(struct.pack(">bI", 0, 7), {}))
    now_s += 59
    registry.schemas[7] = []  # type: ignore[assignment]
    with pytest.raises(ConnectionLost, match="E7152"):
        reader.read(Message(struct.pack(">bI", 0, 7), {}))
    del registry.schemas[7]
    now_s += 59
    with pytest.raises(ConnectionLost, match="E7150"):
        reader.read(Message(struct.pack(">bI", 0, 7), {}))


def test_a_registry_that_does_not_answer_as_it_should(registry: SchemaRegistry) -> None:
    with pytest.raises(ConnectionLost, match="E7151 .* cannot be asked"):
        schemas(f"http://127.0.0.1:{free_port()}").of_id(1)
    registry.schemas[7] = {"no": "schema"}
    with pytest.raises(ConnectionLost, match="E7152 .* answers about schema 7 without a schema"):
        schemas(registry.url).of_id(7)
    registry.schemas[8] = []  # type: ignore[assignment]
    with pytest.raises(ConnectionLost, match="E7152 .* with an unexpected content"):
        schemas(registry.url).of_id(8)
    registry.schemas[8] = {"schema": "x", "references": [{"name": "n"}]}
    with pytest.raises(ConnectionLost, match="E7152 .* with malformed references"):
        schemas(registry.url).of_id(8)
    registry.subjects["s"] = [9]
    registry.schemas[9] = {"schema": "x", "id": "nine"}
    with pytest.raises(ConnectionLost, match="E7152 .* without the id of a schema"):
        schemas(registry.url).latest("s")
    registry.user = "me:topsecret"
    with pytest.raises(ConnectionLost, match="E7002 .* answers 401") as raised:
        schemas(registry.url, "me", "wrong").latest("s")
    assert "wrong" not in repr(raised.value)
    registry.schemas[9] = {"schema": ORDER}
    assert schemas(registry.url, "me", "topsecret").of_id(9).definition == ORDER


def test_a_404_of_something_else_is_no_answer_of_a_registry(registry: SchemaRegistry) -> None:
    with pytest.raises(ConnectionLost, match="E7152 .* answers 404 about schema 1: .*Error response"):
        schemas(f"{registry.url}/elsewhere").of_id(1)


def test_a_redirect_gets_no_password(registry: SchemaRegistry) -> None:
    registry.user = "me:topsecret"
    with serving() as other:
        number = other.register("s", ORDER)
        registry.moved_to = other.url
        with pytest.raises(ConnectionLost, match=rf"E7152 .* answers 302 .* redirects to '{other.url}/schemas/ids/"):
            schemas(registry.url, "me", "topsecret").of_id(number)
        assert registry.asked == [f"GET /schemas/ids/{number}"]
        assert other.asked == []


# --- Protobuf ---


def file(name: str, *uses: str, **messages: Mapping[str, str]) -> FileDescriptorProto:
    """A file with messages, whose fields have types: the name of another one, or of a type of the language."""
    made = FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=uses)
    for its_name, fields in messages.items():
        message = made.message_type.add(name=its_name)
        for number, (field, type_) in enumerate(fields.items(), 1):
            one = message.field.add(name=field, number=number, label="LABEL_OPTIONAL")
            if "." in type_:
                one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{type_}"
            else:
                one.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_.upper()}")
    return made


def serialized(made: FileDescriptorProto) -> str:
    return base64.b64encode(made.SerializeToString()).decode()


def test_protobuf(registry: SchemaRegistry) -> None:
    timestamp = "google/protobuf/timestamp.proto"
    place = file("anything.proto", Place={"city": "string"})
    order = file(
        "orders.proto",
        "places/place.proto",
        timestamp,
        Other={"x": "int32"},
        Order={"number": "int64", "at": "google.protobuf.Timestamp", "place": "shop.Place", "raw": "bytes"},
    )
    nested = order.message_type[1].nested_type.add(name="Line")
    nested.field.add(name="count", number=1, type="TYPE_UINT32", label="LABEL_OPTIONAL")
    registry.serialized |= {"place": serialized(place), "order": serialized(order)}
    registry.register("place", "place", "PROTOBUF")
    used = [{"name": "places/place.proto", "subject": "place", "version": 1}]
    number = registry.register("order", "order", "PROTOBUF", references=used)
    reader = BodyReader(schemas(registry.url))
    head = struct.pack(">bI", 0, number)
    content = b"\x08\x07" + b"\x12\x02\x08\x01" + b"\x1a\x04\x0a\x02Rm" + b"\x22\x02\x00\xff"
    message = reader.read(Message(head + b"\x02\x02" + content, {}))
    wanted = {"number": 7, "at": "1970-01-01T00:00:01Z", "place": {"city": "Rm"}, "raw": "AP8="}
    assert json.loads(message.body) == wanted
    assert json.loads(reader.read(Message(head + b"\x04\x02\x00" + b"\x08\x05", {})).body) == {"count": 5}
    assert reader.read(Message(head + b"\x00" + b"\x08\x05", {})).body == b'{"x": 5}'
    endless = b"\x02" + b"\x80" * 10 + b"\x00"
    for wrong in (b"\x02\x09", b"\x01", b"\x02\x01", b"\x02", b"\x00\x08", b"\xff\xff\xff\xff\x07", endless):
        assert "(PROTOBUF): the body does not fit it" in reason(reader.read(Message(head + wrong, {})))
    asked = schemas(registry.url)
    write = body_writer(asked.latest("order"), asked)
    assert write(b'{"x": 5}') == head + b"\x00\x08\x05"
    with pytest.raises(ValueError, match='no field named "y"'):
        write(b'{"y": 5}')


def test_hostile_files_of_protobuf(registry: SchemaRegistry) -> None:
    registry.serialized |= {
        "self": serialized(file("x")),
        "no base64": "?",
        "missing": serialized(file("x", "y.proto")),
    }
    for text in registry.serialized:
        itself = [{"name": "self", "subject": "self", "version": 1}] if text == "self" else []
        number = registry.register(text, text, "PROTOBUF", references=itself)
        reader = BodyReader(schemas(registry.url))
        assert "(PROTOBUF)" in reason(reader.read(Message(struct.pack(">bI", 0, number) + b"\0", {})))
    assert len(registry.asked) < 20


# --- writing ---


def test_bodies_are_written_with_the_schema_of_a_subject(registry: SchemaRegistry) -> None:
    number = registry.register("a/b", ORDER)
    asked = schemas(registry.url)
    write = body_writer(asked.latest("a/b"), asked)
    assert write(BILL) == of_confluent(number, ORDER, {"customer": "ada", "price": Decimal("12.30")})
    assert registry.asked == ["GET /subjects/a%2Fb/versions/latest"]
    made = asked.register("new", "JSON", '{"type": "object"}')
    assert body_writer(made, asked)(b'{"a": 1}') == struct.pack(">bI", 0, made.id) + b'{"a": 1}'
    for write_ in (write, body_writer(made, asked)):
        with pytest.raises(ValueError, match="truncated"):
            write_(b"{")


def test_only_bodies_have_a_schema() -> None:
    def write(_body: bytes) -> bytes:
        return b"written"

    def value(message: Message) -> bytes | None:
        return encode(Outgoing(1, "s", "topic:t", message), "t", 0, write=write).value

    assert value(Message(b"{}")) == b"written"
    assert value(Message(b"", {NULL: True})) is None


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"schema_registry": "127.0.0.1:8081"}, "E1214", "connections.kafka.schema_registry"),
        ({"schema_registry": "http://me:secret@127.0.0.1:8081"}, "E1214", "schema_registry_user"),
        ({"schema_registry": "http://:99999"}, "E1214", "is not the address of a registry"),
        ({"schema_registry_user": "me"}, "E1022", "is of no use without 'schema_registry'"),
    ],
)
def test_options_of_a_connection(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaServer.connection_to("127.0.0.1:9", **options)
    assert raised.value.code == code
    assert text in str(raised.value)
    assert "secret@" not in str(raised.value)


def test_options_of_receivers_and_senders(tmp_path: Path) -> None:
    with_registry = KafkaServer.connection_to("127.0.0.1:9", schema_registry="http://127.0.0.1:9")
    without = KafkaServer.connection_to("127.0.0.1:9")
    file = tmp_path / "order.avsc"
    file.write_text(ORDER)
    with_registry.sink(sender("topic", subject="s", schema_file=str(file)))
    for options, code in (
        ({"schema_file": str(file)}, "E1022"),
        ({"subject": "s", "schema_file": str(tmp_path / "none.avsc")}, "E1022"),
        ({"subject": "s", "schema_file": str(tmp_path / "order.txt")}, "E1022"),
        ({"subject": 7}, "E1022"),
    ):
        with pytest.raises(ConfigError, match=code):
            with_registry.sink(sender("topic", **options))
    for make in (lambda: without.source(receiver("topic")), lambda: without.sink(sender("topic", subject="s"))):
        with pytest.raises(ConfigError, match="E1022 .* needs the option 'schema_registry' of the connection"):
            make()


def receiver(topic: str) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="k", destination=f"topic:{topic}", options={"use_schema": True})


def sender(topic: str, **options: object) -> SenderSettings:
    reliability = Reliability.EXACTLY_ONCE
    return SenderSettings(
        id="s", connection="k", destination=f"topic:{topic}", reliability=reliability, options=options
    )


@pytest.mark.kafka
def test_through_a_broker(kafka: KafkaServer, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    connection = kafka.connection(schema_registry=registry.url)
    sink = connection.sink(sender(topic, subject="orders"))
    with pytest.raises(ConnectionLost, match=r"E7150 senders\.s: the registry does not have the subject 'orders'"):
        sink.connect()
    (tmp_path / "order.avsc").write_text(ORDER)
    sink = connection.sink(sender(topic, subject="orders", schema_file=str(tmp_path / "order.avsc")))
    registry.incompatible.add(ORDER)
    with pytest.raises(ConnectionLost, match="E7152 .* answers 409 .* incompatible"):
        sink.connect()
    registry.incompatible.clear()
    sink.connect()
    bodies = (BILL, b'{"customer": 7}', BILL)
    results = sink.send([Outgoing(at, topic, f"topic:{topic}", Message(one)) for at, one in enumerate(bodies, 1)])
    assert [one and one.code for one in results] == [None, "E8110", None]
    sink.close()
    registry.register("xml", "<x/>", "XML")
    with pytest.raises(ConnectionLost, match="E7152 .* 'xml' cannot be used: schemas of this kind are not written"):
        connection.sink(sender(topic, subject="xml")).connect()
    kafka.publish(topic, {"value": b"no schema"})
    definition = registry.schemas.pop(registry.subjects["orders"][0])
    source = connection.source(receiver(topic))
    source.connect()
    with pytest.raises(ConnectionLost, match="E7150"):
        take(source, 3)
    registry.schemas[registry.subjects["orders"][0]] = definition
    source.connect()
    messages = [message for chunk in take(source, 3) for message in chunk.messages]
    source.close()
    assert [message.body for message in messages] == [BILL, BILL, b"no schema"]
    assert [UNREADABLE in message.properties for message in messages] == [False, False, True]


def test_a_real_registry() -> None:
    with running(RegistryServer()) as server:
        asked = schemas(server.url)
        for ask in (lambda: asked.latest("none"), lambda: asked.of_id(999_999)):
            with pytest.raises(ConnectionLost, match="E7150 .* the registry does not have"):
                ask()
        with pytest.raises(ConnectionLost, match="E7152 .* answers 422 about the subject 'bad'"):
            asked.register("bad", "AVRO", '{"type": "nonsense"}')
        number = asked.register("orders-value", "AVRO", ORDER).id
        assert asked.register("orders-value", "AVRO", ORDER).id == number
        latest = asked.latest("orders-value")
        assert (latest.id, latest.kind) == (number, "AVRO")
        body = body_writer(latest, asked)(BILL)
        assert body == of_confluent(number, ORDER, {"customer": "ada", "price": Decimal("12.30"), "note": None})
        assert BodyReader(schemas(server.url)).read(Message(body, {})) == Message(BILL, {})
        definition = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
        body = body_writer(asked.register("json", "JSON", definition), asked)(b"{}")
        assert BodyReader(schemas(server.url)).read(Message(body, {})).body == b"{}"
