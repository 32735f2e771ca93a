"""Messages that a hostile program could write: each is read, marked if it is unreadable, and can be stored."""

import struct

import msgspec
import pytest

from connectors.embedded import content as embedded
from connectors.pulsar import content as pulsar
from connectors.pulsar.unsettled import PulsarPosition
from connectors.rabbitmq import content as rabbitmq
from connectors.rabbitmq.wire import Fields, encode_fields
from connectors.rabbitmq_stream import content as stream
from correlator.events import UNREADABLE, Headers, Message, Outgoing

PLACE = stream.EntryOffset("s", 7, 1000)
BODY = b"\x00\x53\x75\xa0\x04body"


def stored(message):
    """The message as a later start reads it from the store."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)


def from_rabbitmq(headers=None, **fields):
    message = rabbitmq.decode(encode_fields(Fields(headers=headers, **fields)), b"body", redelivered=False)
    assert stored(message) == message
    return message


def from_encoded(table):
    """The message that the connector decodes from encoded headers."""
    properties = struct.pack(">HI", 1 << 13, len(table)) + table
    message = rabbitmq.decode(properties, b"body", redelivered=False)
    assert stored(message) == message
    return message


def from_stream(encoded):
    message = stream.decode(encoded, PLACE, wants_id=True, wants_source=True)
    assert stored(message) == message
    assert message.properties["uniqueMessageId"] == PLACE.unique_id
    return message


def from_pulsar(**properties):
    received = pulsar.PulsarMessage(b"body", properties, None, 0, 0, 0, PulsarPosition(1, 2, -1, -1))
    message = pulsar.decode(received, "public/default")
    assert stored(message) == message
    return message


# --- names of properties that have no value ---


@pytest.mark.parametrize("nulls", [5, True, "color", 1.5, b"color", [["color"]], ["color", 5]])
def test_a_list_of_nulls_that_is_none_invents_and_erases_nothing(nulls):
    message = from_rabbitmq({"color": "red", "correlator_nulls": nulls})
    assert message.body == b"body"
    assert message.properties.pop(UNREADABLE).startswith("correlator_nulls: ")
    assert message.properties == {"color": "red"}


def test_a_list_of_nulls_erases_no_property():
    message = from_rabbitmq({"color": "red", "correlator_nulls": ["color", "size"]})
    assert message.properties == {"color": "red", "size": None}


@pytest.mark.parametrize("nulls", ["5", '"color"', "{}", "[1]", '["\\ud800"]', "[", "[" * 10_000])
def test_a_list_of_nulls_in_pulsar_that_is_none(nulls):
    message = from_pulsar(color="red", correlator_nulls=nulls)
    assert message.properties.pop(UNREADABLE).startswith("correlator_nulls: ")
    assert message.properties == {"color": "red"}


def test_the_name_of_that_list_is_reserved():
    message = Message(b"", {"correlator_nulls": "mine"})
    with pytest.raises(ValueError, match="correlator_nulls"):
        rabbitmq.encode(Outgoing(1, "life", "queue:q", message), "ID:1", 0, text=False, durable=True)
    with pytest.raises(ValueError, match="correlator_nulls"):
        pulsar.encode(
            Outgoing(1, "life", "queue:q", message),
            "ID:1",
            "c",
            0,
            text=False,
            durable=True,
            namespace="public/default",
        )


# --- headers that the store could not read again ---


@pytest.mark.parametrize(
    "table",
    [
        b"\x0cJMSTimestampt\x01",
        b"\x10x-delivery-countt\x01",
        b"\x01hT" + b"\xff" * 8,
        b"\x01hA\0\0\0\x09T" + b"\xff" * 8,
        b"\x01hF\0\0\0\x0b\x01hT" + b"\xff" * 8,
    ],
)
def test_headers_of_rabbitmq(table):
    assert from_encoded(table).body == b"body"


def test_other_properties_of_rabbitmq():
    assert from_rabbitmq(expiration="9" * 200).body == b"body"
    assert from_rabbitmq(expiration="²").headers.time_to_live_ms is None
    assert from_rabbitmq(timestamp=2**64 - 1).body == b"body"


@pytest.mark.parametrize(
    "section",
    [
        b"\x00\x53\x74\xa1\x03abc",
        b"\x00\x53\x74\x54\x05",
        b"\x00\x53\x74\x45",
        b"\x00\x53\x74\x40",
        b"\x00\x53\x73\xc1\x01\x00",
        b"\x00\x53\x70\xc0\x03\x02\x41\x41",
        b"\x00\x53\x73\xc0\x0c\x0a" + b"\x40" * 9 + b"\x41",
        b"\x00\x53\x75\x45",
        b"\x00\x53\x75\xa1\x01a",
        b"\x00\x53\x77" + b"\xc0\xff\x01" * 2000,
        b"\x00\x53\x74\xc1\x0c\x02\xa1\x01a\x83" + b"\xff" * 8,
        b"\x00\x53",
        b"\x00\x80\x00",
        b"\x00",
    ],
)
def test_sections_of_a_stream(section):
    message = from_stream(section + BODY)
    assert message.body == b"body" or (message.body == section + BODY and message.properties[UNREADABLE])
    assert from_stream(BODY + section).headers is not None


def test_what_is_no_message_of_amqp_is_marked():
    assert UNREADABLE in from_stream(b"plain text").properties
    assert UNREADABLE not in from_stream(BODY).properties


@pytest.mark.parametrize(
    "message",
    [
        [b"body", {"list": [1, {"a": b"b"}]}],
        [b"body", {"ext": msgspec.msgpack.Ext(5, b"x")}],
        [b"body", {"moment": msgspec.msgpack.Ext(-1, bytes(4))}],
        [b"body", {}, None, None, [None, None, None, None, None, None, 2**64 - 1]],
        [b"body", {}, None, None, [None, None, None, None, None, None, -(2**63)]],
    ],
)
def test_content_of_the_embedded_broker(message):
    encoded = msgspec.msgpack.encode(message)
    read = embedded.decode(embedded.Stored(1, "ID:1", 2**53, 0, encoded, 1, redelivered=False))
    assert stored(read) == read
    assert read.body == b"body" or (read.body == encoded and read.properties[UNREADABLE])


def test_a_mark_says_what_could_not_be_read():
    message = rabbitmq.decode(b"\x20\x00\x00\x00\x00\x63", b"body", redelivered=True)
    assert message.body == b"body"
    assert message.headers == Headers(redelivered=True)
    assert set(message.properties) == {UNREADABLE, rabbitmq.PROPERTIES}
