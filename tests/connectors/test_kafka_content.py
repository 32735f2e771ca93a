"""Records of Kafka and messages: round trips, records of other programs, and what no record can hold."""

import math

import confluent_kafka as kafka
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.kafka.content import KEY, NULL, OFFSET, PARTITION, SOURCE_ID, UNIQUE_ID, Decoder, Record, encode
from correlator.events import CUT_FROM, UNREADABLE, Headers, Message, Outgoing, PropertyValue

NOW_MS = 1_700_000_000_000
POSITION = {PARTITION: 3, OFFSET: 17}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = TEXTS.filter(lambda name: "\0" not in name and not name.startswith(("correlator", "kafka_")))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXTS, st.binary()
)


def sent(message: Message, message_id: str = "") -> Record:
    return encode(Outgoing(1, "life", "topic:t", message, message_id), "t", NOW_MS)


def record(
    value: bytes | None = b"",
    key: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
    time_ms: int = NOW_MS,
) -> kafka.Message:
    stamp = (kafka.TIMESTAMP_CREATE_TIME, time_ms)
    return kafka.Message(topic="t", partition=3, offset=17, key=key, value=value, headers=headers, timestamp=stamp)


def received(one: kafka.Message, *, most_bytes: int = 1000, wants: bool = False) -> Message:
    (message,) = Decoder("T", most_bytes, wants_id=wants, wants_source=wants).messages(3, [one])
    return message


def round_trip(message: Message, message_id: str = "") -> Message:
    made = sent(message, message_id)
    return received(record(made.value, made.key, list(made.headers.items())))


@given(st.binary(), st.none() | TEXTS, st.dictionaries(NAMES, VALUES, max_size=5))
@settings(max_examples=200, deadline=None)
def test_body_key_and_properties_come_back(body: bytes, key: str | None, properties: dict[str, PropertyValue]) -> None:
    back = round_trip(Message(body, dict(properties), key))
    assert (back.body, back.key) == (body, key)
    assert back.properties == properties | POSITION
    assert all(type(back.properties[name]) is type(value) for name, value in properties.items())


def test_not_a_number_comes_back() -> None:
    value = round_trip(Message(b"", {"nan": math.nan})).properties["nan"]
    assert isinstance(value, float)
    assert math.isnan(value)


def test_headers_come_back() -> None:
    headers = Headers(
        correlation_id="c",
        reply_to="topic:answers",
        type="order",
        priority=7,
        time_to_live_ms=5000,
        group_sequence=2,
        message_id="old",
        timestamp=1,
        expiration=2,
        redelivered=True,
    )
    back = round_trip(Message(b"", headers=headers), "new")
    assert back.headers == Headers(
        message_id="new",
        correlation_id="c",
        reply_to="topic:answers",
        type="order",
        priority=7,
        time_to_live_ms=5000,
        expiration=NOW_MS + 5000,
        timestamp=NOW_MS,
        group_sequence=2,
    )


def test_no_value_is_not_an_empty_one() -> None:
    deletion = received(record(None, b"k"))
    assert (deletion.body, deletion.properties[NULL]) == (b"", True)
    assert sent(deletion).value is None
    assert NULL not in received(record(b"", b"k")).properties
    assert sent(msgspec.structs.replace(deletion, body=b"new")).value == b"new"


def test_a_key_that_is_no_text_comes_back() -> None:
    raw = b"\x00\xff"
    message = received(record(b"", raw))
    assert (message.key, message.properties[KEY]) == ("\0\\xff", raw)
    assert sent(message).key == raw
    assert sent(msgspec.structs.replace(message, key="other")).key == b"other"
    assert received(record(b"", b"")).key == ""


def test_headers_of_other_programs() -> None:
    headers: list[tuple[str, bytes | None]] = [
        ("text", b"abc"),
        ("raw", b"\xff\x00"),
        ("null", None),
        ("twice", b"1"),
        ("twice", b"2"),
        ("", b"empty name"),
        ("correlator-priority", b"high"),
        ("correlator-expiration", b"9" * 30),
        ("correlator-types", b'{"text": "int", "raw": "float", "null": "bool", "other": "int"}'),
    ]
    message = received(record(b"x", None, headers))
    assert UNREADABLE not in message.properties
    assert message.properties == {
        "text": "abc",
        "raw": b"\xff\x00",
        "null": None,
        "twice": "2",
        "": "empty name",
        **POSITION,
    }
    assert message.headers == Headers(message_id="T:3:17", timestamp=NOW_MS)


def test_types_that_are_none_make_the_message_unreadable() -> None:
    message = received(record(b"x", b"k", [("a", b"1"), ("correlator-types", b"[1]")]))
    assert (message.body, set(message.properties)) == (b"x", {UNREADABLE, PARTITION, OFFSET})


def test_one_unreadable_record_among_others() -> None:
    records = [record(b"1"), record(b"2", None, [("correlator-types", b"{")]), record(b"3")]
    messages = Decoder("T", 1000, wants_id=True, wants_source=True).messages(3, records)
    assert [one.body for one in messages] == [b"1", b"2", b"3"]
    assert [UNREADABLE in one.properties for one in messages] == [False, True, False]
    assert {one.properties[UNIQUE_ID] for one in messages} == {"T:3:17"}


def test_a_time_to_live_of_another_program_is_bounded() -> None:
    late = received(record(b"", None, [("correlator-expiration", b"-5")]))
    assert late.headers is not None
    assert (late.headers.expiration, late.headers.time_to_live_ms) == (-5, 1)


def test_a_position_is_the_id_of_a_message_without_one() -> None:
    message = received(record(), wants=True)
    assert (message.properties[UNIQUE_ID], message.properties[SOURCE_ID]) == ("T:3:17", "T:3")
    own = received(record(headers=[(UNIQUE_ID, b"5:shop"), (SOURCE_ID, b"shop")]), wants=True)
    assert (own.properties[UNIQUE_ID], own.properties[SOURCE_ID]) == ("5:shop", "shop")
    assert UNIQUE_ID not in received(record()).properties


@given(
    st.none() | st.binary(max_size=5),
    st.none() | st.binary(max_size=5),
    st.none() | st.lists(st.tuples(NAMES | st.sampled_from([UNIQUE_ID, SOURCE_ID]), st.none() | st.binary(max_size=5))),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_record_beside_an_unusual_one_becomes_the_same_message(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]] | None, wants: bool
) -> None:
    decoder = Decoder("T", 1000, wants_id=wants, wants_source=wants)
    (alone,) = decoder.messages(3, [record(value, key, headers)])
    unusual = record(headers=[("correlator-type", b"order")])
    beside, other = decoder.messages(3, [record(value, key, headers), unusual])
    assert beside == alone
    assert other.headers is not None
    assert other.headers.type == "order"


def test_a_record_without_a_time_has_no_timestamp() -> None:
    one = kafka.Message(topic="t", partition=3, offset=17, timestamp=(kafka.TIMESTAMP_NOT_AVAILABLE, -1))
    headers = received(one).headers
    assert headers is not None
    assert headers.timestamp is None


def test_a_long_body_is_cut() -> None:
    message = received(record(b"x" * 50), most_bytes=9)
    assert (message.body, message.properties[CUT_FROM]) == (b"x" * 10, 50)


@pytest.mark.parametrize(
    "message",
    [
        Message("text"),  # type: ignore[arg-type]
        Message(b"", {"big": 2**63}),
        Message(b"", {"list": [1]}),  # type: ignore[dict-item]
        Message(b"", {"zero\0": 1}),
        Message(b"", {"half": "\ud800"}),
        Message(b"", {"\ud800": 1}),
        Message(b"", {}, "\ud800"),
        Message(b"", headers=Headers(delivery_delay_ms=5)),
        Message(b"", headers=Headers(time_to_live_ms=-1)),
        Message(b"", headers=Headers(priority="high")),  # type: ignore[arg-type]
    ],
)
def test_what_no_record_can_hold(message: Message) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        sent(message)


def test_the_size_is_that_of_all_parts() -> None:
    size = sent(Message(b"v" * 100, {"name": "text"}, "key")).size
    assert 100 + len("nametextkey") + 61 < size < 250
