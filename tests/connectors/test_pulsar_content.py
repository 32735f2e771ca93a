"""Messages in Pulsar's format, without a server: what the Java client writes and reads, and what does not fit."""

import base64
import json
import math
import struct
from enum import IntEnum, StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.jms_bodies import write_map, write_stream
from connectors.pulsar.content import PulsarMessage, decode, encode
from connectors.pulsar.unsettled import PulsarPosition
from correlator.events import LONGEST_LIFE_MS, UNREADABLE, Headers, Message, Outgoing

NOW = 1_700_000_000_123
PLACE = PulsarPosition(12, 3, -1, -1)
NAMESPACE = "public/default"
GOLDEN = {
    one["tag"]: one
    for one in json.loads((Path(__file__).parent / "starlight_messages.json").read_text("utf-8"))["messages"]
}
SYSTEM_NAMES = (
    "JMSType",
    "JMSCorrelationID",
    "JMSPulsarMessageType",
    "JMSMessageId",
    "JMSReplyTo",
    "JMSReplyToType",
    "JMSDeliveryMode",
    "JMSPriority",
    "JMSDeliveryTime",
    "JMSExpiration",
    "JMSConnectionID",
    "JMSXGroupID",
    "JMSXDeliveryCount",
)
OUR_NAMES = ("correlator_nulls", "jms_message_type", "jms_null", "jms_types", "jms_correlation_bytes")
IGNORED_NAMES = (
    "JMSXUserID",
    "JMSXAppID",
    "JMSXProducerTXID",
    "JMSXConsumerTXID",
    "JMSXRcvTimestamp",
    "JMSXState",
)
ALWAYS = {"JMSMessageId", "JMSConnectionID", "JMSDeliveryTime", "JMSPulsarMessageType"}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXTS.filter(
    lambda name: name not in {*SYSTEM_NAMES, *OUR_NAMES, *IGNORED_NAMES} and not name.endswith("_jsmtype")
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**31) - 1, -(2**31), 2**31 - 1, 2**31])
    | st.floats()
    | TEXTS
    | st.binary(max_size=20)
)
HOSTILE = st.text(max_size=12) | st.sampled_from(
    ["9" * 5000, "1e999", "nan", "inf", "1_000", "٣", "[" * 9999, '["JMSType","a"]', '{"a":1}', "AAH/", "-1"]
)


def out(message=None, **of_message):
    return Outgoing(7, "life", "queue:a", message or Message(b"body", **of_message))


def encoded(outgoing, *, text=False, durable=False, now_ms=NOW, namespace=NAMESPACE):
    return encode(outgoing, "ID:7:life", "connection", now_ms, text=text, durable=durable, namespace=namespace)


def arrived(sent, *, redeliveries=0):
    """A sent message as the client of a consumer returns it. Pulsar does not distinguish an empty key from no key."""
    content, properties, key, event_timestamp = sent
    return PulsarMessage(content, properties, key or "", event_timestamp, NOW + 5, redeliveries, PLACE)


def received(properties=None, *, content=b"body", key=None, event_timestamp=NOW, redeliveries=0):
    return decode(
        PulsarMessage(content, properties or {}, key, event_timestamp, NOW + 5, redeliveries, PLACE), NAMESPACE
    )


def there_and_back(message=None, **of_message):
    return decode(arrived(encoded(out(message, **of_message))), NAMESPACE)


def sent_properties(**of_message):
    """The properties of the sent message, without the properties that every message has."""
    properties = encoded(out(**of_message)).properties
    return {name: value for name, value in properties.items() if name not in ALWAYS}


def same(one, other):
    """Whether two values are equal and of one type; -0.0 differs from 0.0, and NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and one == other


def all_the_same(some, others):
    return some.keys() == others.keys() and all(same(some[name], others[name]) for name in some)


# --- what comes back ---


@given(
    body=st.binary(max_size=20),
    properties=st.dictionaries(NAMES, VALUES, max_size=5),
    key=st.none() | TEXTS,
    headers=st.builds(
        Headers,
        correlation_id=st.none()
        | TEXTS
        | st.binary(max_size=9).map(lambda b: f"base64:{base64.b64encode(b).decode()}"),
        type=st.none() | TEXTS,
        reply_to=st.none()
        | st.from_regex(r"(queue|topic):[a-z# .]{0,9}", fullmatch=True).filter(
            lambda reply_to: reply_to not in ("queue:", "topic:")
        ),
        priority=st.none() | st.integers(0, 9),
        persistent=st.none() | st.booleans(),
        time_to_live_ms=st.none() | st.integers(1, LONGEST_LIFE_MS),
    ),
)
def test_s3_1_s3_3_s3_7_everything_that_is_sent_arrives(body, properties, key, headers):
    """Values keep their type. Floats are compared by their `repr`, which includes NaN, the infinities and -0.0."""
    message = there_and_back(Message(body, properties, key, None, headers))
    assert (message.body, message.key, message.destination) == (body, key, None)
    assert all_the_same(message.properties, properties)
    assert message.headers == Headers(
        message_id="ID:7:life",
        correlation_id=headers.correlation_id,
        reply_to=headers.reply_to,
        type=headers.type,
        priority=4 if headers.priority is None else headers.priority,
        persistent=headers.persistent is not False,
        time_to_live_ms=headers.time_to_live_ms,
        expiration=None if headers.time_to_live_ms is None else NOW + headers.time_to_live_ms,
        timestamp=NOW,
    )


def test_s3_1_types_are_told_by_a_second_property():
    sent = sent_properties(
        properties={
            "b": True,
            "no": False,
            "i": 2**31 - 1,
            "l": 2**31,
            "d": -0.0,
            "nan": math.nan,
            "inf": math.inf,
            "minus": -math.inf,
            "s": "ü",
            "y": b"\0\xff",
            "none": None,
        }
    )
    assert sent == {
        "b": "true",
        "b_jsmtype": "boolean",
        "no": "false",
        "no_jsmtype": "boolean",
        "i": "2147483647",
        "i_jsmtype": "int",
        "l": "2147483648",
        "l_jsmtype": "long",
        "d": "-0.0",
        "d_jsmtype": "double",
        "nan": "NaN",
        "nan_jsmtype": "double",
        "inf": "Infinity",
        "inf_jsmtype": "double",
        "minus": "-Infinity",
        "minus_jsmtype": "double",
        "s": "ü",
        "y": "AP8=",
        "y_jsmtype": "bytes",
        "correlator_nulls": '["none"]',
    }


def test_numbers_and_texts_of_other_kinds_are_written_plainly():
    class Colour(IntEnum):
        RED = 3

    class Word(StrEnum):
        ONE = "one"

    class Odd(float):
        def __repr__(self):
            return "odd"

    sent = sent_properties(properties={"i": Colour.RED, "s": Word.ONE, "f": Odd(1.5)})
    assert sent == {"i": "3", "i_jsmtype": "int", "s": "one", "f": "1.5", "f_jsmtype": "double"}


@pytest.mark.parametrize(
    ("text", "of_java", "expected"),
    [
        ("TRUE", "boolean", True),
        ("false", "boolean", False),
        ("yes", "boolean", "yes"),
        ("-7", "byte", -7),
        ("128", "byte", "128"),
        ("+007", "short", 7),
        ("32768", "short", "32768"),
        ("-2147483648", "int", -(2**31)),
        ("2147483648", "int", "2147483648"),
        ("9223372036854775807", "long", 2**63 - 1),
        ("9223372036854775808", "long", "9223372036854775808"),
        ("1_0", "int", "1_0"),
        (" 1", "int", " 1"),
        ("٣", "int", "٣"),
        ("1\n", "int", "1\n"),
        ("1.5", "int", "1.5"),
        ("1.0E-10", "double", 1e-10),
        (".5", "double", 0.5),
        ("5.", "double", 5.0),
        ("NaN", "double", math.nan),
        ("-Infinity", "float", -math.inf),
        ("nan", "double", "nan"),
        ("inf", "double", "inf"),
        ("1_0.0", "double", "1_0.0"),
        ("", "double", ""),
        ("AP8=", "bytes", b"\0\xff"),
        ("AP8", "bytes", "AP8"),
        ("QR==", "bytes", "QR=="),
        ("ü", "bytes", "ü"),
        ("1234", "integer", 1234),
        ("2147483648", "integer", "2147483648"),
        ("1234", "string", "1234"),
        ("1234", "", "1234"),
    ],
)
def test_s3_1_a_value_that_is_not_of_its_type_stays_a_text(text, of_java, expected):
    """Bad input 87; `integer` is a word that the Java client does not write (rule Z3)."""
    value = received({"p": text, "p_jsmtype": of_java}).properties["p"]
    assert same(value, expected)


@pytest.mark.parametrize("of_java", ["int", "integer"])
def test_z3_the_other_spelling_of_types_is_read_and_not_written(of_java):
    message = received({"p": "5", "p_jmstype": of_java})
    assert message.properties == {"p": 5}
    assert encoded(out(message)).properties["p_jsmtype"] == "int"
    assert received({"p": "5", "p_jsmtype": "int", "p_jmstype": "double"}).properties == {"p": 5}


def test_z3_a_property_that_only_looks_like_it_is_one():
    properties = {"p_jmstype": "int", "q": "5", "q_jmstype": "of no type", "r": None, "r_jmstype": "int"}
    assert there_and_back(Message(b"", properties)).properties == properties
    with pytest.raises(ValueError, match="'q_jmstype' would be the type of another one"):
        encoded(out(Message(b"", {"q": "5", "q_jmstype": "int"})))


# --- types that Python does not have ---


@pytest.mark.parametrize(
    ("text", "of_java"),
    [
        ("-7", "byte"),
        ("1234", "short"),
        ("5", "long"),
        ("1.1", "float"),
        ("3.4028235E38", "float"),
        ("1.4E-45", "float"),
        ("16777216", "float"),
        ("NaN", "float"),
        ("-Infinity", "float"),
        ("-0.0", "float"),
    ],
)
def test_s3_1_a_message_that_is_passed_on_keeps_its_types(text, of_java):
    message = received({"p": text, "p_jsmtype": of_java})
    assert json.loads(message.properties["jms_types"]) == {"p": of_java}
    sent = encoded(out(message)).properties
    assert sent["p_jsmtype"] == of_java
    assert "jms_types" not in sent
    assert all_the_same(there_and_back(message).properties, message.properties)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_s3_1_floats_of_java_keep_their_type_however_many_digits_it_writes(single, digits):
    text = f"{single:.{digits}e}"
    message = received({"p": text, "p_jsmtype": "float"})
    sent = encoded(out(message)).properties
    assert float(sent["p"]) == float(text)
    shortest = next(n for n in range(1, 10) if float32(f"{single:.{n}g}") == single)
    of_shortest = received({"p": f"{single:.{shortest}g}", "p_jsmtype": "float"})
    assert encoded(out(of_shortest)).properties["p_jsmtype"] == "float"


def float32(text):
    try:
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    except OverflowError:
        return math.inf


@pytest.mark.parametrize(
    "properties", [{"p": "5", "p_jsmtype": "int"}, {"p": "1.5", "p_jsmtype": "double"}, {"p": "s"}]
)
def test_types_are_told_only_where_the_values_do_not_tell_them(properties):
    assert "jms_types" not in received(properties).properties


@pytest.mark.parametrize(
    ("value", "of_java", "expected"),
    [
        (128, "byte", "int"),
        (2**40, "short", "long"),
        (True, "byte", "boolean"),
        (1.5, "short", "double"),
        (3, "float", "int"),
        (0.1234567890123, "float", "double"),
        (1e39, "float", "double"),
        (b"a", "byte", "bytes"),
    ],
)
def test_a_value_that_has_changed_is_of_its_own_type(value, of_java, expected):
    sent = sent_properties(properties={"p": value, "jms_types": json.dumps({"p": of_java, "gone": "byte"})})
    assert sent["p_jsmtype"] == expected
    assert received(sent).properties["p"] == value


# --- names that are not the application's ---


def test_s3_2_the_names_of_the_system_are_hidden():
    names = (*SYSTEM_NAMES, *OUR_NAMES)
    sent = {**dict.fromkeys(names, "1"), "x_jsmtype": "int", "a": "1", "a_jsmtype": "int", "_jsmtype": "", "JMSX": "y"}
    properties = received(sent).properties
    assert properties.pop(UNREADABLE) == "correlator_nulls: '1' is not a list of names"
    assert properties == {"a": 1, "JMSX": "y", "jms_message_type": "header"}


def test_s3_2_names_without_a_value_are_hidden_alike():
    sent = {"correlator_nulls": '["JMSType", "x_jsmtype", "jms_null", "a", "b"]', "a": "here"}
    assert received(sent, content=b"").properties == {"a": "here", "b": None}


@pytest.mark.parametrize("name", SYSTEM_NAMES)
def test_s3_2_the_names_of_the_system_are_not_sent(name):
    plain = encoded(out(properties={"a": 1}, key="k")).properties
    assert encoded(out(properties={"a": 1, name: "7"}, key="k")).properties == plain


@pytest.mark.parametrize("name", ["x_jsmtype", "_jsmtype", "JMSExpiration_jsmtype"])
def test_s3_2_a_property_that_would_be_the_type_of_another_one_is_refused(name):
    with pytest.raises(ValueError, match="type of another"):
        encoded(out(properties={name: "int"}))


@pytest.mark.parametrize("name", IGNORED_NAMES)
@pytest.mark.parametrize("value", ["a", 1, None])
def test_s3_6_what_jms_ignores_is_not_sent_and_no_error(name, value):
    assert sent_properties(properties={name: value}) == {}


# --- headers ---


def test_s3_3_a_message_byte_by_byte():
    headers = Headers(
        correlation_id="corr-1",
        reply_to="topic:answers",
        type="my.Type",
        priority=7,
        persistent=False,
        time_to_live_ms=60_000,
        message_id="of another",
        expiration=1,
        timestamp=2,
    )
    sent = encoded(out(properties={"n": 5, "JMSXGroupSeq": 42}, key="grp1", headers=headers), text=True)
    assert sent == (
        b"body",
        {
            "JMSMessageId": "ID:7:life",
            "JMSConnectionID": "connection",
            "JMSPulsarMessageType": "text",
            "JMSDeliveryTime": "1700000000123",
            "JMSCorrelationID": "Y29yci0x",
            "JMSReplyTo": "persistent://public/default/answers",
            "JMSReplyToType": "topic",
            "JMSType": "my.Type",
            "JMSPriority": "7",
            "JMSDeliveryMode": "1",
            "JMSExpiration": "1700000060123",
            "JMSExpiration_jsmtype": "long",
            "JMSXGroupID": "grp1",
            "JMSXGroupSeq": "42",
            "JMSXGroupSeq_jsmtype": "int",
            "n": "5",
            "n_jsmtype": "int",
        },
        "grp1",
        NOW,
    )


def test_s3_3_what_is_as_usual_is_not_written():
    usual = Headers(priority=4, persistent=True, time_to_live_ms=0)
    assert set(encoded(out(headers=usual)).properties) == ALWAYS
    assert set(encoded(out()).properties) == ALWAYS


@pytest.mark.parametrize(("batch_index", "expected"), [(-1, "ID:12:3:0"), (0, "ID:12:3:0:0"), (7, "ID:12:3:0:7")])
def test_a_message_without_an_id_has_that_of_its_place(batch_index, expected):
    message = decode(PulsarMessage(b"", {}, "", NOW, NOW, 0, PulsarPosition(12, 3, batch_index, 0)), NAMESPACE)
    assert message.headers.message_id == expected


def test_s3_3_what_is_not_written_is_as_usual():
    assert received().headers == Headers(
        message_id="ID:12:3:-1", priority=4, persistent=True, timestamp=NOW, delivery_count=1
    )


@pytest.mark.parametrize(
    ("reply_to", "topic", "back"),
    [
        ("queue:q", "persistent://public/default/q", "queue:q"),
        ("topic:t", "persistent://public/default/t", "topic:t"),
        ("queue:persistent://t/n/x", "persistent://t/n/x", "queue:persistent://t/n/x"),
        ("topic:non-persistent://t/n/x", "non-persistent://t/n/x", "topic:non-persistent://t/n/x"),
        ("queue:t/n/x", "persistent://t/n/x", "queue:persistent://t/n/x"),
        ("queue:persistent://public/default/x", "persistent://public/default/x", "queue:x"),
        ("q", "persistent://public/default/q", "queue:q"),
        ("queue:topic:x", "persistent://public/default/topic:x", "queue:topic:x"),
    ],
)
def test_s3_3_the_destination_of_answers(reply_to, topic, back):
    sent = sent_properties(headers=Headers(reply_to=reply_to))
    assert sent["JMSReplyTo"] == topic
    assert sent.get("JMSReplyToType") == ("topic" if reply_to.startswith("topic:") else None)
    assert received(sent).headers.reply_to == back


def test_s3_3_the_destination_of_answers_is_in_the_namespace_of_the_connection():
    sent = encoded(out(headers=Headers(reply_to="queue:q")), namespace="shop/eu")
    assert sent.properties["JMSReplyTo"] == "persistent://shop/eu/q"
    assert decode(arrived(sent), "shop/eu").headers.reply_to == "queue:q"
    assert decode(arrived(sent), NAMESPACE).headers.reply_to == "queue:persistent://shop/eu/q"


def test_s3_3_a_destination_of_answers_in_a_cluster_keeps_its_full_name():
    name = "persistent://public/default/cluster/x"
    assert received({"JMSReplyTo": name}).headers.reply_to == f"queue:{name}"
    assert sent_properties(headers=Headers(reply_to=f"queue:{name}"))["JMSReplyTo"] == name


@pytest.mark.parametrize(
    ("sent", "correlation_id"),
    [
        ("Y29yci0x", "corr-1"),
        ("w6k=", "é"),
        ("", ""),
        ("corr-1", "corr-1"),
        ("w6k", "w6k"),
        ("é", "é"),
        ("AAH/", "base64:AAH/"),
    ],
)
def test_s3_3_a_correlation_id_is_read_as_java_writes_it_or_literally(sent, correlation_id):
    """Java writes Base64; bad input 104 is an id that is not Base64."""
    assert received({"JMSCorrelationID": sent}).headers.correlation_id == correlation_id


def test_s3_3_a_correlation_id_that_is_no_text_goes_back_as_the_same_bytes():
    properties = {"jms_correlation_bytes": True}
    sent = sent_properties(properties=properties, headers=Headers(correlation_id="base64:AAH/"))
    assert sent["JMSCorrelationID"] == "AAH/"
    assert received(sent).properties == properties


@pytest.mark.parametrize("text", ["base64:", "base64:QUJD", "base64:x", "base64:ü"])
def test_s3_3_a_correlation_id_that_only_begins_like_bytes_is_a_text(text):
    sent = sent_properties(headers=Headers(correlation_id=text))["JMSCorrelationID"]
    assert base64.b64decode(sent) == text.encode()
    assert received({"JMSCorrelationID": sent}).headers.correlation_id == text


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("JMSPriority", "high", "priority", 4),
        ("JMSPriority", "-1", "priority", 4),
        ("JMSPriority", "2147483648", "priority", 4),
        ("JMSPriority", "0", "priority", 0),
        ("JMSPriority", "200", "priority", 200),
        ("JMSDeliveryMode", "2", "persistent", True),
        ("JMSDeliveryMode", "1", "persistent", False),
        ("JMSDeliveryMode", "?", "persistent", True),
        ("JMSExpiration", "soon", "expiration", None),
        ("JMSExpiration", "0", "expiration", None),
        ("JMSExpiration", "-5", "expiration", None),
        ("JMSExpiration", "soon", "time_to_live_ms", None),
        ("JMSExpiration", str(NOW + 9), "expiration", NOW + 9),
        ("JMSExpiration", str(NOW + 9), "time_to_live_ms", 9),
        ("JMSExpiration", str(NOW - 9), "time_to_live_ms", 1),
        ("JMSExpiration", str(2**63 - 1), "time_to_live_ms", LONGEST_LIFE_MS),
        ("JMSMessageId", "mine", "message_id", "mine"),
        ("JMSMessageId", "", "message_id", "ID:12:3:-1"),
        ("JMSType", "", "type", ""),
    ],
)
def test_s3_3_s3_5_s3_7_what_others_write_into_headers(name, value, field, expected):
    """A header that can be read can also be sent on."""
    headers = received({name: value}).headers
    assert getattr(headers, field) == expected
    assert there_and_back(headers=headers).headers.priority == min(headers.priority, 9)


@pytest.mark.parametrize(("event_timestamp", "expected"), [(NOW, NOW), (0, NOW + 5)])
def test_a_message_without_a_time_has_the_time_at_which_it_was_published(event_timestamp, expected):
    headers = received({"JMSExpiration": str(NOW + 15)}, event_timestamp=event_timestamp).headers
    assert headers.timestamp == expected
    assert headers.time_to_live_ms == NOW + 15 - expected


@pytest.mark.parametrize(
    ("persistent", "durable", "mode"),
    [(None, False, None), (True, False, None), (False, False, "1"), (False, True, None)],
)
def test_s3_7_a2_3_the_delivery_mode(persistent, durable, mode):
    sent = encoded(out(headers=Headers(persistent=persistent)), durable=durable)
    assert sent.properties.get("JMSDeliveryMode") == mode


@pytest.mark.parametrize(("redeliveries", "redelivered", "count"), [(0, False, 1), (1, True, 2), (9, True, 10)])
def test_deliveries_are_counted_by_the_broker(redeliveries, redelivered, count):
    headers = received(redeliveries=redeliveries).headers
    assert (headers.redelivered, headers.delivery_count) == (redelivered, count)


# --- groups ---


@pytest.mark.parametrize(
    ("key", "properties", "expected"),
    [
        ("k", {}, "k"),
        ("k", {"JMSXGroupID": "other"}, "k"),
        ("", {"JMSXGroupID": "g"}, None),
        (None, {"JMSXGroupID": ""}, ""),
        ("", {}, None),
        (None, {}, None),
    ],
)
def test_s3_4_the_key_of_pulsar_is_the_group(key, properties, expected):
    message = received(properties, key=key)
    assert message.key == expected
    assert message.properties == {}


@pytest.mark.parametrize(
    ("key", "group", "expected"),
    [("k", None, "k"), ("k", "g", "k"), (None, "g", "g"), ("", "g", ""), (None, None, None)],
)
def test_s3_4_the_group_is_the_key_of_pulsar(key, group, expected):
    sent = encoded(out(properties={"JMSXGroupID": group}, key=key))
    assert sent.key == sent.properties.get("JMSXGroupID") == expected


@pytest.mark.parametrize("number", [42, 2**40])
def test_s3_4_the_number_in_the_group_is_a_property_and_becomes_a_header(number):
    for sent in ({"properties": {"JMSXGroupSeq": number}}, {"headers": Headers(group_sequence=number)}):
        received = there_and_back(**sent)
        assert (received.properties, received.headers.group_sequence) == ({}, number)
    odd = there_and_back(properties={"JMSXGroupSeq": "no number"})
    assert (odd.properties, odd.headers.group_sequence) == ({"JMSXGroupSeq": "no number"}, None)


def test_s3_3_the_delivery_time_of_a_delayed_message_travels():
    """Java's client writes the time of sending there, also for its delayed messages."""
    sent = encode(out(), "ID:7:life", "connection", NOW, delay_ms=60_000, text=True, durable=False, namespace=NAMESPACE)
    assert decode(arrived(sent), NAMESPACE).headers.delivery_time == NOW + 60_000
    assert there_and_back().headers.delivery_time is None


# --- kinds ---


@pytest.mark.parametrize(
    ("properties", "text", "kind"),
    [
        ({}, False, "bytes"),
        ({}, True, "text"),
        ({"jms_message_type": None}, True, "text"),
        ({"jms_message_type": "bytes"}, True, "bytes"),
        ({"jms_message_type": "text"}, False, "text"),
        ({"jms_message_type": "map"}, True, "map"),
        ({"jms_message_type": "stream"}, True, "stream"),
        ({"jms_message_type": "object"}, False, "object"),
        ({"jms_message_type": "header"}, False, "header"),
    ],
)
def test_s3_8_the_kind_of_a_message(properties, text, kind):
    body = {"map": write_map({"a": 1}), "stream": write_stream([1])}.get(kind, b"\xac\xed\0\5body")
    sent = encoded(out(Message(body, properties)), text=text)
    assert sent.properties["JMSPulsarMessageType"] == kind
    assert set(sent.properties) == ALWAYS
    assert sent.content == body
    back = decode(arrived(sent), NAMESPACE)
    assert (back.body, back.properties) == (body, {} if kind == "bytes" else {"jms_message_type": kind})


@pytest.mark.parametrize(("kind", "expected"), [("bytes", None), (None, None), ("unknown", "header"), ("", "header")])
def test_s3_8_a_kind_is_taken_as_java_takes_it(kind, expected):
    properties = {} if kind is None else {"JMSPulsarMessageType": kind}
    message = received(properties)
    assert message.properties.get("jms_message_type") == expected
    assert message.body == b"body"


@pytest.mark.parametrize("kind", ["text", "map", "object", "header"])
def test_s3_8_no_body_is_something_else_than_an_empty_one(kind):
    message = received({"JMSPulsarMessageType": kind}, content=None)
    assert (message.body, message.properties["jms_null"]) == (b"", True)
    sent = encoded(out(message))
    assert sent.content is None
    assert "jms_null" not in sent.properties
    assert decode(arrived(sent), NAMESPACE).properties == message.properties


@pytest.mark.parametrize("kind", ["bytes", "stream"])
def test_s3_8_what_java_could_not_read_without_a_body_has_an_empty_one(kind):
    message = received({"JMSPulsarMessageType": kind}, content=None)
    assert (message.body, message.properties["jms_null"]) == (b"", True)
    assert encoded(out(message)).content == b""


@pytest.mark.parametrize(
    ("properties", "body", "content"),
    [
        ({"jms_null": True}, b"new", b"new"),
        ({"jms_null": False}, b"", b""),
        ({"jms_null": None}, b"", b""),
        ({"jms_message_type": "text"}, b"", b""),
        ({"jms_message_type": "stream"}, b"", b""),
        ({"jms_message_type": "map"}, b"", None),
        ({"jms_message_type": "object"}, b"", None),
        ({"jms_message_type": "header"}, b"", None),
    ],
)
def test_s3_8_what_java_could_not_read_when_it_is_empty_has_no_body(properties, body, content):
    assert encoded(out(Message(body, properties))).content == content


# --- messages of the Java client ---

OF_JAVA = {
    "text": Message(
        "text body é".encode(),
        {
            "pBool": True,
            "pByte": -7,
            "pShort": 1234,
            "pInt": 123456,
            "pLong": 2**40,
            "pFloat": 1.1,
            "pDouble": 1e-10,
            "pString": "héllo",
            "pObjInt": 5,
            "jms_message_type": "text",
            "jms_types": '{"pByte":"byte","pFloat":"float","pShort":"short"}',
        },
        "grp1",
        headers=Headers(
            group_sequence=42,
            correlation_id="corr-1",
            reply_to="queue:replyq",
            type="my.Type",
            priority=7,
            persistent=True,
            expiration=1795250006760,
            time_to_live_ms=59675,
        ),
    ),
    "plain": Message(b"plain", {"jms_message_type": "text"}),
    "nulltext": Message(b"", {"jms_message_type": "text", "jms_null": True}),
    "emptytext": Message(b"", {"jms_message_type": "text"}),
    "map": Message(
        bytes.fromhex(GOLDEN["map"]["content"]),
        {"jms_message_type": "map", "jms_correlation_bytes": True},
        headers=Headers(correlation_id="base64:AAH/", reply_to="topic:replyt", priority=4, persistent=False),
    ),
    "emptymap": Message(b"", {"jms_message_type": "map", "jms_null": True}),
    "bytes": Message(b"\0\0\1\2\0\2hi\t\b"),
    "object": Message(bytes.fromhex(GOLDEN["object"]["content"]), {"jms_message_type": "object"}),
    "object-string": Message(b"\xac\xed\0\5t\0\rjust a string", {"jms_message_type": "object"}),
    "stream": Message(bytes.fromhex(GOLDEN["stream"]["content"]), {"jms_message_type": "stream"}),
    "simple": Message(b"", {"jms_message_type": "header", "jms_null": True}),
    "delayed": Message(b"delayed", {"jms_message_type": "text"}),
    "no-timestamp": Message(b"nots", {"jms_message_type": "text"}),
}
"""What the Java program had set; where it had set no headers, there are the usual ones."""


def of_java(tag):
    one = GOLDEN[tag]
    content = None if one["content"] is None else bytes.fromhex(one["content"])
    return PulsarMessage(
        content, one["properties"], one["key"], one["event_timestamp"], one["publish_timestamp"], 0, PLACE
    )


def test_all_messages_of_the_java_client_are_here():
    assert set(OF_JAVA) == set(GOLDEN)
    assert len(OF_JAVA) == 13


@pytest.mark.parametrize("tag", GOLDEN)
def test_s3_1_s3_8_a_message_of_the_java_client_is_what_its_program_had_set(tag):
    message, expected, one = decode(of_java(tag), NAMESPACE), OF_JAVA[tag], GOLDEN[tag]
    headers = expected.headers or Headers(priority=4, persistent=True)
    assert all_the_same(message.properties, {**expected.properties, "tag": tag})
    assert (message.body, message.key) == (expected.body, expected.key)
    sent_at = one["event_timestamp"] or one["publish_timestamp"]
    assert message.headers == Headers(
        message_id="ID:12:3:-1",
        group_sequence=headers.group_sequence,
        correlation_id=headers.correlation_id,
        reply_to=headers.reply_to,
        type=headers.type,
        priority=headers.priority,
        persistent=headers.persistent,
        time_to_live_ms=headers.time_to_live_ms,
        expiration=headers.expiration,
        timestamp=sent_at,
    )


@pytest.mark.parametrize("tag", GOLDEN)
def test_s3_1_s3_8_a_message_of_the_java_client_is_passed_on_as_it_was(tag):
    """Only two parts change: the id, which Java leaves to Pulsar and which ours must have, and the form of a double."""
    before = of_java(tag)
    sent_at = int(before.properties["JMSDeliveryTime"])
    connection = before.properties["JMSConnectionID"]
    sent = encode(
        out(decode(before, NAMESPACE)), "ID:7:life", connection, sent_at, text=False, durable=False, namespace=NAMESPACE
    )
    expected = {**before.properties, "JMSMessageId": "ID:7:life"}
    if tag == "text":
        assert float(sent.properties["pDouble"]) == float(expected["pDouble"])
        expected["pDouble"] = "1e-10"
    assert sent.properties == expected
    assert (sent.content, sent.key or "") == (before.content, before.key)
    assert sent.event_timestamp == sent_at


# --- whatever there is ---


@given(
    properties=st.dictionaries(st.text(max_size=8), HOSTILE, max_size=4),
    types=st.sampled_from(["boolean", "byte", "short", "int", "long", "float", "double", "bytes", "?"]),
    system=st.dictionaries(st.sampled_from([*SYSTEM_NAMES, *OUR_NAMES]), HOSTILE, max_size=5),
    content=st.none() | st.binary(max_size=5),
    key=st.none() | st.text(max_size=3),
    times=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
def test_s3_2_whatever_the_properties_are_a_message_is_made(properties, types, system, content, key, times):
    """Each value of the message has its type, or is the text that was sent."""
    sent = {**properties, **{f"{name}_jsmtype": types for name in properties}, **system}
    message = decode(PulsarMessage(content, sent, key, *times, 0, PLACE), NAMESPACE)
    assert message.body == (content or b"")
    visible = {name for name in properties if name not in {*SYSTEM_NAMES, *OUR_NAMES} and not name.endswith("_jsmtype")}
    assert visible <= set(message.properties)
    assert not set(message.properties) & {*SYSTEM_NAMES, "correlator_nulls"}
    assert not any(name.endswith("_jsmtype") for name in message.properties)
    for name in visible:
        assert isinstance(message.properties[name], bool | int | float | str | bytes)
    if not has_half_pairs(repr((sent, key))):
        can_be_sent_on(message)


def has_half_pairs(text):
    """Whether the text has unpaired surrogates. Clients of Pulsar return none, since they decode UTF-8."""
    return "\\ud" in text


def can_be_sent_on(message):
    again = there_and_back(message).properties
    ours = {name: value for name, value in message.properties.items() if name not in IGNORED_NAMES}
    if message.body == b"":  # of most kinds Java can read either an empty one or none
        ours.pop("jms_null", None)
        again.pop("jms_null", None)
    assert all_the_same(again, ours)


# --- what cannot be carried ---


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(b"", {"n": 2**63}), "64 bits"),
        (Message(b"", {"n": -(2**63) - 1}), "64 bits"),
        (Message(b"", {"n": 10**5000}), "digits"),
        (Message(b"", {"n": "\ud800"}), "surrogates"),
        (Message(b"", {"\udfff": 1}), "surrogates"),
        (Message(b"", {"a": "\ud83d", "b": "\ude00"}), "surrogates"),
        (Message(b"", {"\udfff": None}), "surrogates"),
        (Message(b"", key="\ud800"), "surrogates"),
        (Message(b"", headers=Headers(type="\ud800")), "surrogates"),
        (Message(b"", headers=Headers(correlation_id="\ud800")), "surrogates"),
        (Message(b"", headers=Headers(reply_to="queue:\ud800")), "surrogates"),
        (Message(b"", headers=Headers(priority=-1)), "priority of -1"),
        (Message(b"", headers=Headers(priority=5.5)), "format"),
        (Message(b"", headers=Headers(time_to_live_ms=-1)), "time to live"),
        (Message(b"", headers=Headers(time_to_live_ms=LONGEST_LIFE_MS + 1)), "time to live"),
        (Message(b"", {"n": {}}), "dict"),
        (Message(b"", {"JMSXGroupID": 1}), "JMSXGroupID"),
        (Message(b"", {"jms_message_type": "Text"}), "'Text' and must be one of bytes, header"),
        (Message(b"", {"jms_message_type": ""}), "must be one of"),
        (Message(b"", {"jms_message_type": 1}), "must be a text"),
        (Message(b"{}", {"jms_message_type": "map"}), "is 'map', and the body does not fit"),
        (Message(b"\xac\xed", {"jms_message_type": "object"}), "is 'object', and the body does not fit"),
        (Message(b"", {"jms_null": "yes"}), "true or false"),
        (Message(b"", {"jms_null": 1}), "true or false"),
        (Message(b"", {"jms_types": 1}), "must be a text"),
        (Message(b"", {"jms_types": "byte"}), "JSON"),
        (Message(b"", {"jms_types": "[" * 9999}), "JSON"),
        (Message(b"", {"jms_types": '{"a":1}'}), "JSON"),
        (Message(b"", {"jms_types": '{"a":"int"}'}), "not one of byte, short, long, float"),
    ],
)
def test_what_cannot_be_carried_is_told_before_it_is_sent(message, reason):
    with pytest.raises(ValueError, match=reason):
        encoded(out(message))


@pytest.mark.parametrize(
    "message",
    [
        Message("text"),
        Message(None),
        Message(b"", {1: "a"}),
        Message(b"", None),
        Message(b"", key=5),
        Message(b"", headers="x"),
        Message(b"", headers=Headers(type=5)),
        Message(b"", headers=Headers(correlation_id=b"c")),
        Message(b"", headers=Headers(reply_to=5)),
        Message(b"", headers=Headers(priority="high")),
        Message(b"", headers=Headers(time_to_live_ms="long")),
    ],
)
def test_parts_of_other_types_are_told_before_they_are_sent(message):
    with pytest.raises((TypeError, AttributeError)):
        encoded(out(message))
