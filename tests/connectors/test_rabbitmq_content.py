"""Messages in the format of AMQP 0-9-1, without a server: types, limits, and messages of the JMS client."""

import enum
import struct

import pytest

from connectors.rabbitmq.content import PROPERTIES, decode, encode
from connectors.rabbitmq.wire import Fields, decode_fields, encode_fields
from correlator.events import UNREADABLE, Headers, Message, Outgoing


def out(message=None, **of_message):
    return Outgoing(7, "life", "queue:a", message or Message(b"body", **of_message))


def encoded(outgoing, *, text=False, durable=False):
    return encode(outgoing, "ID:7:life", 1_700_000_000_123, text=text, durable=durable)


def there_and_back(**of_message):
    return decode(encoded(out(**of_message)), b"body", redelivered=False)


def fields(**of_message):
    return decode_fields(encoded(out(**of_message)))


# --- what comes back ---


def test_everything_that_a_sender_sets_comes_back():
    properties = {"none": None, "no": False, "int": 5, "long": 2**40, "float": 1.5, "text": "ü", "bytes": b"\0\xff"}
    headers = Headers(
        correlation_id="c", reply_to="queue:q", type="order", priority=9, persistent=False, time_to_live_ms=90
    )
    message = there_and_back(properties=properties, key="k", headers=headers)
    assert message.properties == properties
    assert [type(value) for value in message.properties.values()].count(bool) == 1
    assert message.key == "k"
    assert message.destination is None
    assert message.headers == Headers(
        message_id="ID:7:life",
        correlation_id="c",
        reply_to="queue:q",
        type="order",
        priority=9,
        persistent=False,
        time_to_live_ms=90,
        timestamp=1_700_000_000_123,
    )


def test_a_topic_to_reply_to_stays_one():
    assert there_and_back(headers=Headers(reply_to="topic:t")).headers.reply_to == "topic:t"


def test_a_time_to_live_of_0_is_for_ever():
    assert fields(headers=Headers(time_to_live_ms=0)).expiration is None


def test_the_content_type_and_its_companions_are_properties():
    properties = {"amqp_content_type": "application/json", "amqp_content_encoding": "gzip", "amqp_app_id": "shop"}
    sent = fields(properties=properties)
    assert (sent.content_type, sent.content_encoding, sent.app_id) == ("application/json", "gzip", "shop")
    assert set(sent.headers) == {"JMSType", "JMSTimestamp"}
    assert there_and_back(properties=properties).properties == properties


def test_headers_of_the_broker_can_be_read_and_are_not_sent_on():
    death = [{"queue": "q", "count": 1}]
    received = decode(
        encode_fields(Fields(headers={"x-death": ["a"], "x-first-death-queue": "q", "x-delivery-count": 2})),
        b"",
        redelivered=True,
    )
    assert received.properties == {"x-death": '["a"]', "x-first-death-queue": "q"}
    assert received.headers.delivery_count == 3
    properties = {"x-death": str(death), "x-first-death-queue": "q", "x-delivery-count": 2, "x-death-of-mine": ""}
    assert set(fields(properties=properties).headers) == {"x-death-of-mine", "JMSType", "JMSTimestamp"}


@pytest.mark.parametrize(("redelivered", "count"), [(False, 1), (True, 2)])
def test_deliveries_are_counted_as_far_as_the_flag_tells(redelivered, count):
    headers = decode(encode_fields(Fields()), b"", redelivered=redelivered).headers
    assert (headers.redelivered, headers.delivery_count) == (redelivered, count)


# --- for the JMS client ---


def test_a_message_without_a_priority_would_end_the_jms_client():
    assert fields().priority == 4


def test_a_header_without_a_value_would_end_the_jms_client():
    table = fields(properties={"a": None, "b": None, "c": 1}).headers
    assert table["correlator_nulls"] == ["a", "b"]
    assert None not in table.values()


@pytest.mark.parametrize(
    ("content_type", "text", "kind"),
    [
        (None, False, "BytesMessage"),
        (None, True, "TextMessage"),
        ("text/xml", False, "TextMessage"),
        ("application/json", False, "BytesMessage"),
    ],
)
def test_the_jms_client_tells_text_from_bytes_by_a_header(content_type, text, kind):
    sent = decode_fields(encoded(out(properties={"amqp_content_type": content_type}), text=text))
    assert sent.headers["JMSType"] == kind


def test_what_is_not_there_for_the_jms_client_is_not_taken_for_a_type():
    assert there_and_back().headers.type is None


def java_header(name, kind, value):
    return bytes((len(name),)) + name.encode() + kind + value


def test_a_message_of_the_jms_client():
    """The bytes are those that version 2.13.0 of the JMS client writes to an AMQP destination."""
    text = lambda value: struct.pack(">I", len(value.encode())) + value.encode()  # noqa: E731
    table = b"".join(
        [
            java_header("JMSMessageID", b"S", text("ID:1")),
            java_header("JMSTimestamp", b"l", struct.pack(">q", 1795251700022)),
            java_header("JMSPriority", b"I", struct.pack(">i", 7)),
            java_header("JMSDeliveryMode", b"S", text("PERSISTENT")),
            java_header("JMSCorrelationID", b"S", text("corr-1")),
            java_header("JMSType", b"S", text("my-type")),
            java_header("JMSXGroupID", b"S", text("g1")),
            java_header("JMSXGroupSeq", b"I", struct.pack(">i", 3)),
            java_header("pBool", b"t", b"\1"),
            java_header("pByte", b"b", struct.pack(">b", -7)),
            java_header("pDouble", b"d", struct.pack(">d", 32500000000.125)),
            java_header("pFloat", b"f", struct.pack(">f", 1.5)),
            java_header("pLong", b"l", struct.pack(">q", 9007199254740993)),
            java_header("pShort", b"s", struct.pack(">h", -300)),
            java_header("pString", b"S", text("grün €")),
            java_header("empty", b"S", text("")),
        ]
    )
    short = lambda value: bytes((len(value),)) + value.encode()  # noqa: E731
    properties = (
        struct.pack(">H", 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1 << 10 | 1 << 9 | 1 << 8)
        + short("application/octet-stream")
        + struct.pack(">I", len(table))
        + table
        + b"\2\7"
        + short("corr-1")
        + short("J.REPLY")
        + short("3600000")
    )
    message = decode(properties, "hello Welt €".encode(), redelivered=False)
    assert message.key == "g1"
    assert message.properties == {
        "pBool": True,
        "pByte": -7,
        "pDouble": 32500000000.125,
        "pFloat": 1.5,
        "pLong": 9007199254740993,
        "pShort": -300,
        "pString": "grün €",
        "empty": "",
    }
    assert message.headers == Headers(
        group_sequence=3,
        message_id="ID:1",
        correlation_id="corr-1",
        reply_to="queue:J.REPLY",
        type="my-type",
        priority=7,
        persistent=True,
        time_to_live_ms=3_600_000,
        timestamp=1795251700022,
    )


# --- kinds of other clients ---


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (b"D", struct.pack(">Bi", 2, 1234), "12.34"),
        (b"T", struct.pack(">Q", 5), 5000),
        (b"V", b"", None),
        (b"u", struct.pack(">H", 65535), 65535),
        (b"i", struct.pack(">I", 2**32 - 1), 2**32 - 1),
        (b"L", struct.pack(">q", -1), -1),
        (b"B", b"\xff", 255),
        (b"U", struct.pack(">h", -2), -2),
        (b"S", struct.pack(">I", 1) + b"\xff", b"\xff"),
        (b"A", struct.pack(">I", 4) + b"t\1t\0", "[true,false]"),
        (b"F", struct.pack(">I", 4) + b"\1nt\1", '{"n":true}'),
    ],
)
def test_every_kind_of_header_becomes_a_property(kind, value, expected):
    table = java_header("h", kind, value)
    properties = struct.pack(">HI", 1 << 13, len(table)) + table
    received = decode(properties, b"", redelivered=False).properties["h"]
    assert received == expected
    assert type(received) is type(expected)


@pytest.mark.parametrize(
    "properties",
    [
        struct.pack(">HI", 1 << 13, 99),
        struct.pack(">HI", 1 << 13, 4) + b"\1h?x",
        struct.pack(">HI", 1 << 13, 40_000) + b"\1hA\0\0\x9c\x39" + b"A\0\0\0\xff" * 8000,
    ],
)
def test_properties_that_cannot_be_read_lose_nothing(properties):
    message = decode(properties, b"body", redelivered=True)
    assert message.body == b"body"
    assert message.headers.redelivered
    assert message.properties.pop(UNREADABLE).startswith("properties: ")
    assert message.properties == {PROPERTIES: properties}


# --- what RabbitMQ could not carry ---


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(b"", {"n": float("nan")}), "nan"),
        (Message(b"", {"n": float("-inf")}), "-inf"),
        (Message(b"", {"n": 2**63}), "64 bits"),
        (Message(b"", {"n" * 256: 1}), "256 bytes"),
        (Message(b"", {"n": "\ud800"}), "surrogates"),
        (Message(b"", {"CC": "other"}), "copy"),
        (Message(b"", {"BCC": "other"}), "copy"),
        (Message(b"", {"amqp_content_type": 1}), "amqp_content_type"),
        (Message(b"", headers=Headers(correlation_id="é" * 128)), "256 bytes"),
        (Message(b"", headers=Headers(reply_to="queue:" + "x" * 256)), "256 bytes"),
        (Message(b"", headers=Headers(type="x" * 256)), "256 bytes"),
        (Message(b"", headers=Headers(priority=-1)), "255"),
        (Message(b"", headers=Headers(time_to_live_ms=-1)), "between"),
        (Message(b"", headers=Headers(time_to_live_ms=2**32)), "between"),
        (Message(b"", {"n": {}}), "dict"),
    ],
)
def test_what_cannot_be_carried_is_told_before_it_is_sent(message, reason):
    with pytest.raises(ValueError, match=reason):
        encoded(out(message))


@pytest.mark.parametrize(
    ("persistent", "durable", "mode"), [(None, False, 2), (True, False, 2), (False, False, 1), (False, True, 2)]
)
def test_a2_3_the_delivery_mode(persistent, durable, mode):
    sent = encoded(out(headers=Headers(persistent=persistent)), durable=durable)
    assert decode_fields(sent).delivery_mode == mode


def test_all_properties_of_the_protocol_come_back():
    every = Fields("a", "b", {"h": 1}, 1, 2, "c", "d", "e", "f", 2**40, "g", "h", "i", "j")
    assert decode_fields(encode_fields(every)) == every
    for place in range(len(every)):
        one = Fields()._replace(**{Fields._fields[place]: every[place]})
        assert decode_fields(encode_fields(one)) == one


def test_a_value_of_an_enumeration_is_its_number():
    class Colour(enum.IntEnum):
        RED = 3

    assert fields(properties={"colour": Colour.RED, "large": 2**31}).headers["colour"] == 3
