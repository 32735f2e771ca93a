"""What a message keeps between brokers of two types, and which messages are refused since they would change."""

import math
import struct
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.jms_bodies import Char, Single, read_map, read_stream, write_map, write_stream
from connectors.pulsar import content as pulsar
from connectors.pulsar.unsettled import PulsarPosition
from connectors.rabbitmq import content as rabbitmq
from connectors.rabbitmq.wire import Fields, decode_fields, encode_fields
from connectors.rabbitmq_stream import content as stream
from correlator.events import Headers, Message, Outgoing

NAMESPACE = "public/default"
NOW = 1_700_000_000_000


def in_rabbitmq(message, *, text=False):
    return decode_fields(rabbitmq.encode(Outgoing(1, "life", "queue:q", message), "ID:1", NOW, text=text, durable=True))


def from_rabbitmq(fields, body=b"body"):
    return rabbitmq.decode(encode_fields(fields), body, redelivered=False)


def in_stream(message):
    return stream.encode(Outgoing(1, "life", "queue:q", message), "ID:1", NOW)


def from_stream(encoded):
    return stream.decode(encoded, stream.EntryOffset("s", 1, NOW), wants_id=False, wants_source=False)


def in_pulsar(message, *, text=False):
    outgoing = Outgoing(1, "life", "queue:q", message)
    return pulsar.encode(outgoing, "ID:1", "c", NOW, text=text, durable=True, namespace=NAMESPACE)


def from_pulsar(properties=None, content=b"body"):
    return pulsar.decode(
        pulsar.PulsarMessage(content, properties or {}, None, NOW, NOW, 0, PulsarPosition(1, 2, -1, -1)), NAMESPACE
    )


# --- correlation ids ---


def test_a_correlation_id_that_looks_like_bytes_is_a_text():
    sent = in_pulsar(from_rabbitmq(Fields(correlation_id="base64:AAH/"))).properties
    assert sent["JMSCorrelationID"] == "YmFzZTY0OkFBSC8="
    assert from_pulsar(sent).headers.correlation_id == "base64:AAH/"


def test_one_of_bytes_stays_one_over_every_broker():
    message = from_pulsar({"JMSCorrelationID": "AAH/"})
    assert message.headers.correlation_id == "base64:AAH/"
    assert message.properties == {"jms_correlation_bytes": True}
    for passed in (message, from_rabbitmq(in_rabbitmq(message)), from_stream(in_stream(message))):
        assert in_pulsar(passed).properties["JMSCorrelationID"] == "AAH/"
        assert "jms_correlation_bytes" not in in_pulsar(passed).properties


@pytest.mark.parametrize("correlation_id", [None, "text", "base64:", "base64:x", "base64:QUJD"])
def test_what_is_said_to_be_bytes_and_is_none_is_a_text(correlation_id):
    headers = Headers(correlation_id=correlation_id)
    sent = in_pulsar(Message(b"", {"jms_correlation_bytes": True}, headers=headers)).properties
    assert from_pulsar(sent).headers.correlation_id == correlation_id


# --- kinds ---


def test_a_text_of_java_stays_one():
    message = from_rabbitmq(Fields(headers={"JMSType": "TextMessage"}))
    assert message.properties == {"jms_message_type": "text"}
    assert in_rabbitmq(message).headers == {"JMSType": "TextMessage", "JMSTimestamp": NOW}
    assert in_pulsar(message).properties["JMSPulsarMessageType"] == "text"
    back = from_pulsar(in_pulsar(message).properties)
    assert in_rabbitmq(back).headers["JMSType"] == "TextMessage"


@pytest.mark.parametrize(
    ("kind", "of_java"), [("text", "TextMessage"), ("bytes", "BytesMessage"), ("map", "BytesMessage")]
)
@pytest.mark.parametrize("text", [True, False])
def test_what_a_message_says_of_its_kind_counts_more_than_its_sender(kind, of_java, text):
    sent = in_rabbitmq(Message(b"", {"jms_message_type": kind}), text=text)
    assert sent.headers["JMSType"] == of_java
    assert from_rabbitmq(sent).properties["jms_message_type"] == kind


@pytest.mark.parametrize("body", [b"junk", b"\x01", b"\x02\x00\x05a", b"\x0c"])
def test_a_body_that_no_client_in_java_gets_past_is_refused(body):
    with pytest.raises(ValueError, match="stream"):
        in_pulsar(Message(body, {"jms_message_type": "stream"}))
    with pytest.raises(ValueError, match="map"):
        in_pulsar(Message(b"\xac\xed\0\5" + body, {"jms_message_type": "map"}))
    assert in_pulsar(Message(write_stream([1, "a"]), {"jms_message_type": "stream"})).content


# --- numbers ---


def single(value):
    return struct.unpack(">f", struct.pack(">f", value))[0]


FLOATS = [0.1, -0.1, 1.1, 3.4028235e38, 16777216.0, 0.0, -0.0, math.inf, -math.inf, 1e10]


def floats_of_32_bits(value):
    bits = struct.pack(">f", value)
    table = b"\1pf" + bits
    yield rabbitmq.decode(struct.pack(">HI", 1 << 13, len(table)) + table, b"", redelivered=False).properties["p"]
    section = b"\x00\x53\x74\xc1\x09\x02\xa1\x01p\x72" + bits + b"\x00\x53\x75\xa0\x00"
    yield from_stream(section).properties["p"]
    yield read_stream(b"\x06" + bits)[0]
    yield read_map(write_map({"p": Single(value)}))["p"]


@pytest.mark.parametrize("value", FLOATS)
def test_a_float_of_java_is_the_number_that_java_shows(value):
    assert [repr(one) for one in floats_of_32_bits(value)] == [repr(value)] * 4


@given(st.floats(width=32, allow_nan=False))
def test_it_is_the_same_float_again(value):
    for one in floats_of_32_bits(value):
        assert struct.pack(">f", one) == struct.pack(">f", value)
        assert float(f"{value:.9g}") == value or len(repr(one)) <= len(repr(value))


def test_no_number_stays_none():
    assert all(map(math.isnan, floats_of_32_bits(math.nan)))


# --- answers ---

EMPTY = ["", "queue:", "topic:"]


@pytest.mark.parametrize(("reply_to", "send"), list(product(EMPTY, [in_rabbitmq, in_stream, in_pulsar])))
def test_answers_to_nowhere_are_refused(reply_to, send):
    with pytest.raises(ValueError, match="reply_to"):
        send(Message(b"", headers=Headers(reply_to=reply_to)))


def test_an_address_without_a_name_is_none():
    for address in ("", "topic:"):
        assert from_rabbitmq(Fields(reply_to=address)).headers.reply_to is None
    for name in ("", "persistent://public/default/"):
        assert from_pulsar({"JMSReplyTo": name}).headers.reply_to is None


# --- priorities ---


@pytest.mark.parametrize(
    ("priority", "of_amqp", "of_jms"), [(0, 0, "0"), (9, 9, "9"), (200, 200, "9"), (2**31, 255, "9")]
)
def test_a_priority_above_the_highest_is_the_highest(priority, of_amqp, of_jms):
    message = Message(b"", headers=Headers(priority=priority))
    assert in_rabbitmq(message).priority == of_amqp
    assert from_stream(in_stream(message)).headers.priority == of_amqp
    assert in_pulsar(message).properties["JMSPriority"] == of_jms


@pytest.mark.parametrize("send", [in_rabbitmq, in_stream, in_pulsar])
def test_one_below_the_lowest_is_refused(send):
    with pytest.raises(ValueError, match="-1"):
        send(Message(b"", headers=Headers(priority=-1)))


# --- texts that are none ---


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "\udc00\ud800", "\ud800" * 9 + "é😀"])
def test_halves_of_surrogate_pairs_which_java_allows_pass(text):
    assert read_stream(write_stream([text])) == [text]
    assert read_map(write_map({text: text})) == {text: text}
    assert write_stream(["\ud800"]) == b"\x02\x00\x03\xed\xa0\x80"


def test_also_as_a_character():
    assert read_stream(write_stream([Char("\ud800")])) == ["\ud800"]
    assert read_map(write_map({"c": Char("\udfff")})) == {"c": "\udfff"}
