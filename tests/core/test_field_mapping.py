"""Mappings field by field: every source of a receiver's, every target of a sender's (rule A9.19)."""

from enum import Enum
from typing import Any

import msgspec
import pytest

from correlator.core.fields import RECEIVE_ONLY_HEADERS, WRITABLE_HEADERS, FieldMapping, SendMapping
from correlator.core.mapping import ReceiveMapping
from correlator.errors import ConfigError, MappingError
from correlator.events import LONGEST_LIFE_MS, Headers, Message, event

HEADERS = Headers(
    message_id="M1",
    correlation_id="C1",
    reply_to="queue:answers",
    type="order",
    priority=7,
    persistent=True,
    time_to_live_ms=5000,
    expiration=1_700_000_005_000,
    timestamp=1_700_000_000_000,
    redelivered=True,
    delivery_count=3,
    group_sequence=2,
    delivery_delay_ms=250,
    delivery_time=1_700_000_000_250,
)
BODY = b'{"id": 5, "deep": {"x": 1}, "text": "T"}'
MESSAGE = Message(BODY, {"n": 3, "price": "2.5", "flag": "true", "raw": b"\x00"}, "K", None, HEADERS)


@event
class OneInt:
    value: int


@event
class OneFloat:
    value: float


@event
class OneText:
    value: str


@event
class OneBool:
    value: bool


@event
class OneBytes:
    value: bytes


@event
class OneMap:
    value: dict[str, Any]


@event
class Deep:
    x: int


@event
class OneDeep:
    value: Deep


@event
class Whole:
    id: int
    text: str = ""


@event
class OneWhole:
    value: Whole


@event
class Optional:
    value: str | None = "default"


def received(source: str, event_type: type[Any], message: Message = MESSAGE) -> Any:
    return FieldMapping({"value": source}, event_type, "queue:in", "receiver r").event(message).value


READ = [
    ("${header.message_id}", OneText, "M1"),
    ("${header.correlation_id}", OneText, "C1"),
    ("${header.reply_to}", OneText, "queue:answers"),
    ("${header.type}", OneText, "order"),
    ("${header.priority}", OneInt, 7),
    ("${header.persistent}", OneBool, True),
    ("${header.time_to_live_ms}", OneInt, 5000),
    ("${header.expiration}", OneInt, 1_700_000_005_000),
    ("${header.timestamp}", OneInt, 1_700_000_000_000),
    ("${header.redelivered}", OneBool, True),
    ("${header.delivery_count}", OneInt, 3),
    ("${header.group_sequence}", OneInt, 2),
    ("${header.delivery_delay_ms}", OneInt, 250),
    ("${header.delivery_time}", OneInt, 1_700_000_000_250),
    ("${header.destination}", OneText, "queue:in"),
    ("${headers}", OneMap, msgspec.structs.asdict(HEADERS)),
    ("${property.n}", OneInt, 3),
    ("${properties}", OneMap, MESSAGE.properties),
    ("${key}", OneText, "K"),
    ("${body}", OneBytes, BODY),
    ("${body}", OneText, BODY.decode()),
    ("${body}", OneMap, {"id": 5, "deep": {"x": 1}, "text": "T"}),
    ("${body}", OneWhole, Whole(id=5, text="T")),
    ("${body.id}", OneInt, 5),
    ("${body.deep}", OneDeep, Deep(x=1)),
    ("${body.text}", OneText, "T"),
]


@pytest.mark.parametrize(("source", "event_type", "expected"), READ)
def test_a9_19_every_source_of_a_receiver(source, event_type, expected):
    assert received(source, event_type) == expected


def test_a9_19_the_table_of_sources_names_every_header():
    named = {source for source, _, _ in READ}
    assert {f"${{header.{name}}}" for name in msgspec.structs.asdict(HEADERS)} < named


CONVERTED = [
    ("${property.price}", OneFloat, 2.5),
    ("${property.price}", OneText, "2.5"),
    ("${property.flag}", OneBool, True),
    ("${property.n}", OneFloat, 3.0),
    ("${property.n}", OneText, "3"),
    ("${property.raw}", OneBytes, b"\x00"),
    ("${property.raw}", OneText, "\x00"),
    ("${property.price}", OneBytes, b"2.5"),
    ("${header.redelivered}", OneText, "true"),
    ("${body.id}", OneText, "5"),
]


@pytest.mark.parametrize(("source", "event_type", "expected"), CONVERTED)
def test_a9_19_values_become_the_type_of_their_field(source, event_type, expected):
    value = received(source, event_type)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("source", ["${property.none}", "${header.type}", "${key}", "${body.none}", "${headers}"])
def test_a9_19_what_a_message_does_not_have_leaves_the_default(source):
    message = Message(b'{"id": 1}')
    if source == "${headers}":
        assert received(source, OneMap, message) == {"redelivered": False, "delivery_count": 1}
    else:
        assert received(source, Optional, message) == "default"


def mapped(source: str, event_type: type[Any], message: Message):
    fields = FieldMapping({"value": source}, event_type, "queue:in", "receiver orders")
    return ReceiveMapping("orders", event_type, "", "", deduplicated=False, max_message_bytes=1000, fields=fields).map(
        [message, MESSAGE], 0.0
    )


@pytest.mark.parametrize(
    ("source", "event_type", "message", "reason"),
    [
        ("${property.n}", OneInt, Message(b"", {"n": "abc"}), "E5102 receiver orders: field 'value': 'abc'"),
        ("${property.n}", OneInt, Message(b"", {"n": True}), "E5102 receiver orders: field 'value': 'True'"),
        ("${property.n}", OneText, Message(b"", {"n": b"\xff"}), "E5102 receiver orders: field 'value'"),
        ("${property.n}", OneInt, Message(b""), "E5102 receiver orders: Object missing required field value"),
        ("${body.id}", OneInt, Message(b"[1]"), "E5102 receiver orders: Object missing required field value"),
        ("${body.id}", OneInt, Message(b'{"id": "x"}'), "E5102 receiver orders: field 'value': 'x'"),
        ("${body.id}", OneInt, Message(b"{\n ]"), "E5101 receiver orders: body is not JSON: line 2 column 2"),
        ("${body}", OneText, Message(b"\xff"), "E5102 receiver orders: field 'value'"),
    ],
)
def test_a9_19_a_value_that_does_not_fit_is_a_dead_letter_that_names_the_field(source, event_type, message, reason):
    done = mapped(source, event_type, message)
    (letter,) = done.dead_letters
    assert letter.reason.startswith(reason)
    assert letter.message is message


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        ({"value": "plain"}, "E1061"),
        ({"value": "${property.}"}, "E1061"),
        ({"value": "x${key}"}, "E1061"),
        ({"value": "${event.value}"}, "E1061"),
        ({"value": "${header.colour}"}, "E1065"),
        ({"value": "${key}", "other": "${key}"}, "E1062"),
    ],
)
def test_a9_19_a_receivers_mapping_that_cannot_work_is_refused(mapping, code):
    with pytest.raises(ConfigError, match=code):
        FieldMapping(mapping, OneText, "queue:in", "receivers[0].mapping")


def test_a9_19_a_field_without_source_and_default_is_refused():
    with pytest.raises(ConfigError, match="E1063 receivers\\[0\\].mapping: field 'id'"):
        FieldMapping({"text": "${key}"}, Whole, "queue:in", "receivers[0].mapping")


# --- to messages ---


@event
class Sent:
    id: int
    number: int = 4
    text: str = "T"
    raw: bytes = b"\x00\xff"
    flag: bool = True
    price: float = 2.5
    none: str | None = None
    extra: dict[str, int] = {}


SENT = Sent(id=9, extra={"a": 1, "b": 2})
WRITE = [
    ({"header.correlation_id": "${event.text}"}, Message(b"", headers=Headers(correlation_id="T"))),
    ({"header.reply_to": "${event.text}"}, Message(b"", headers=Headers(reply_to="T"))),
    ({"header.type": "${event.text}"}, Message(b"", headers=Headers(type="T"))),
    ({"header.priority": "${event.number}"}, Message(b"", headers=Headers(priority=4))),
    ({"header.persistent": "${event.flag}"}, Message(b"", headers=Headers(persistent=True))),
    ({"header.time_to_live_ms": "${event.id}"}, Message(b"", headers=Headers(time_to_live_ms=9))),
    ({"header.delivery_delay_ms": "${event.id}"}, Message(b"", headers=Headers(delivery_delay_ms=9))),
    ({"header.group_sequence": "${event.id}"}, Message(b"", headers=Headers(group_sequence=9))),
    ({"header.type": "${event.none}"}, Message(b"", headers=Headers())),
    ({"property.p": "${event.price}"}, Message(b"", {"p": 2.5})),
    ({"property.p": "${event.none}"}, Message(b"")),
    ({"property.p.q": "${event.raw}"}, Message(b"", {"p.q": b"\x00\xff"})),
    ({"properties": "${event.extra}"}, Message(b"", {"a": 1, "b": 2})),
    ({"properties": "${event.extra}", "property.a": "${event.text}"}, Message(b"", {"a": "T", "b": 2})),
    ({"key": "${event.id}"}, Message(b"", key="9")),
    ({"key": "${event.none}"}, Message(b"")),
    ({"destination": "${event.text}"}, Message(b"", destination="T")),
]


@pytest.mark.parametrize(("mapping", "expected"), WRITE)
def test_a9_19_every_target_of_a_sender(mapping, expected):
    message = SendMapping(mapping, "sender s").message(SENT, None, None)
    assert msgspec.structs.replace(message, body=b"") == expected
    assert msgspec.json.decode(message.body, type=Sent) == SENT


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("${event.raw}", b"\x00\xff"),
        ("${event.text}", b"T"),
        ("${event.id}", b"9"),
        ("${event.extra}", b'{"a":1,"b":2}'),
        ("${event}", msgspec.json.encode(SENT)),
    ],
)
def test_a9_19_the_body_of_a_sent_message(source, body):
    assert SendMapping({"body": source}, "sender s").message(SENT, None, None).body == body


def test_a9_19_the_whole_event_may_be_a_property():
    message = SendMapping({"property.all": "${event}", "body": "${event.text}"}, "s").message(SENT, None, None)
    assert msgspec.json.decode(message.properties["all"], type=Sent) == SENT


def test_a9_19_the_table_of_targets_names_every_header_that_can_be_written():
    assert {f"header.{name}" for name in WRITABLE_HEADERS} <= {target for mapping, _ in WRITE for target in mapping}
    assert {*WRITABLE_HEADERS, *RECEIVE_ONLY_HEADERS} == set(Headers.__struct_fields__)


def test_a9_19_what_the_call_names_takes_the_place_of_what_is_mapped():
    mapping = SendMapping({"key": "${event.text}", "property.p": "${event.text}", "property.q": "${event.text}"}, "s")
    message = mapping.message(SENT, "given", {"p": 1})
    assert (message.key, message.properties) == ("given", {"p": 1, "q": "T"})


@pytest.mark.parametrize("value", [b"bytes", Message(b"message", key="own")])
def test_a9_19_messages_and_bytes_are_sent_as_they_are(value):
    assert SendMapping({"key": "${event.text}"}, "s").message(value, None, None) is value


@pytest.mark.parametrize("name", RECEIVE_ONLY_HEADERS)
def test_a9_19_a_receive_only_header_cannot_be_written(name):
    with pytest.raises(ConfigError, match=f"E1067 senders\\[0\\].mapping.header.{name}: is set by the broker"):
        SendMapping({f"header.{name}": "${event.id}"}, "senders[0].mapping")


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        ({"header.type": "text ${key}"}, "E1061"),
        ({"properties": "text"}, "E1061"),
        ({"properties": "${event.a}${event.b}"}, "E1061"),
        ({"header.type": "${body}"}, "E1061"),
        ({"header.colour": "${event}"}, "E1065"),
        ({"header": "${event}"}, "E1066"),
        ({"property.": "${event}"}, "E1066"),
        ({"bodies": "${event}"}, "E1066"),
    ],
)
def test_a9_19_a_senders_mapping_that_cannot_work_is_refused(mapping, code):
    with pytest.raises(ConfigError, match=code):
        SendMapping(mapping, "senders[0].mapping")


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ({"key": "${event.gone}"}, "E5202 s.key: Sent has no field 'gone'"),
        ({"header.priority": "${event.text}"}, "E5202 s.header.priority: 'T'"),
        ({"properties": "${event.text}"}, "E5202 s.properties: 'T' is not a mapping"),
        ({"properties": "${event}"}, "E5202 s.properties"),
        ({"header.priority": "${event.none}", "header.type": "${event.id}"}, "E5202 s.header.type: '9'"),
    ],
)
def test_a9_19_a_part_that_cannot_travel_is_refused_where_it_is_sent(mapping, reason):
    with pytest.raises(MappingError) as caught:
        SendMapping(mapping, "s").message(SENT, None, None)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("life", [-1, LONGEST_LIFE_MS + 1, 2**64 - 1, 2**64])
@pytest.mark.parametrize("name", ["time_to_live_ms", "delivery_delay_ms"])
def test_101_a_life_or_delay_out_of_range_cannot_be_sent(name, life):
    with pytest.raises(MappingError, match=f"E5202 s.header.{name}: {life} is not in 0..{LONGEST_LIFE_MS}"):
        SendMapping({f"header.{name}": "${event.id}"}, "s").message(Sent(id=life), None, None)


@pytest.mark.parametrize("priority", [255, -1, 10])
def test_102_a_priority_out_of_range_cannot_be_sent(priority):
    with pytest.raises(MappingError, match=f"E5202 s.header.priority: {priority} is not in 0..9"):
        SendMapping({"header.priority": "${event.id}"}, "s").message(Sent(id=priority), None, None)


@event
class Billed:
    """What constants and text are put around."""

    region: str | None = "north"
    number: int = 7
    urgent: bool = True
    raw: bytes = b"\xff"


def test_constants_and_text_go_into_every_part():
    mapping = SendMapping(
        {
            "header.type": "invoice",
            "header.priority": "4",
            "header.correlation_id": "${event.region}-${event.number}-${event.urgent}",
            "property.kind": "bill",
            "key": "region ${event.region}",
            "destination": "queue:bills.${event.region}",
            "body": "bill ${event.number}",
        },
        "sender out.mapping",
    )
    message = mapping.message(Billed(), None, None)
    assert message == Message(
        b"bill 7",
        {"kind": "bill"},
        "region north",
        "queue:bills.north",
        Headers(type="invoice", priority=4, correlation_id="north-7-true"),
    )
    without = mapping.message(Billed(region=None), None, None)
    assert (without.key, without.destination, without.headers.correlation_id) == (None, None, None)


@pytest.mark.parametrize("target", ["key", "destination"])
@pytest.mark.parametrize("source", ["${event.raw}", "raw ${event.raw}"])
def test_bytes_are_no_text(target, source):
    mapping = SendMapping({target: source}, "sender out.mapping")
    with pytest.raises(MappingError, match=f"E5202 sender out.mapping.{target}: bytes are no text"):
        mapping.message(Billed(), None, None)


class Colour(Enum):
    RED = "red"


@event
class Painted:
    colour: Colour = Colour.RED


def test_an_enum_is_its_value_as_in_json():
    mapping = {"key": "${event.colour}", "property.colour": "${event.colour}", "destination": "queue:${event.colour}"}
    message = SendMapping(mapping, "sender out.mapping").message(Painted(), None, None)
    assert (message.key, message.properties, message.destination) == ("red", {"colour": "red"}, "queue:red")


def test_one_value_is_the_text_that_it_is_among_others():
    assert SendMapping({"key": "${event.urgent}"}, "sender out.mapping").message(Billed(), None, None).key == "true"
    assert SendMapping({"key": "${event.number}"}, "sender out.mapping").message(Billed(), None, None).key == "7"
