"""Bodies of streams and maps: they are written as the Java client writes them, and no body that is read does harm."""

import math
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.jms_bodies import (
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
from tests.connectors.test_pulsar_content import GOLDEN, all_the_same, same

MAP, STREAM, OBJECT = (bytes.fromhex(GOLDEN[tag]["content"]) for tag in ("map", "stream", "object"))
MAGIC = b"\xac\xed\0\5"
INTEGER = b"r\0\x11java.lang.Integer\x12\xe2\xa0\xa4\xf7\x81\x878\2\0\1I\0\5valuex"
NUMBER = b"r\0\x10java.lang.Number\x86\xac\x95\x1d\x0b\x94\xe0\x8b\2\0\0x"
BYTES = b"ur\0\2[B\xac\xf3\x17\xf8\x06\x08T\xe0\2\0\0xp"

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["\0", "😀\0é", "ü" * 40_000])
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-9, 9)
    | st.floats()
    | TEXTS
    | st.binary(max_size=20)
)
STREAM_VALUES = VALUES.filter(lambda value: not isinstance(value, str) or len(value) < 10_000)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.sampled_from(
    ["é" * 999, "n" * 300, "😀" * 999]
)


# --- as Java does it ---


def test_s3_8_a_stream_of_the_java_client():
    values = read_stream(STREAM)
    assert values == [True, "s", 1, 2, 3, 1.5, 2.5, 4, "c", b"\5\6", None]
    assert [type(value) for value in values] == [bool, str, int, int, int, float, float, int, str, bytes, type(None)]
    named = [True, "s", 1, Short(2), Long(3), Single(1.5), 2.5, Byte(4), Char("c"), b"\5\6", None]
    assert write_stream(named) == STREAM


def test_s3_8_a_map_of_the_java_client():
    entries = read_map(MAP)
    expected = {
        "b": True,
        "bt": 3,
        "s": "x",
        "c": "z",
        "d": 1.5,
        "nul": None,
        "sh": 4,
        "f": 2.5,
        "by": b"\1\2",
        "i": 1,
        "l": 2,
    }
    assert all_the_same(entries, expected)
    assert list(entries) == list(expected)
    named = {**expected, "bt": Byte(3), "c": Char("z"), "sh": Short(4), "f": Single(2.5), "l": Long(2)}
    assert write_map(named) == MAP


def test_s3_8_an_empty_map_has_an_empty_body():
    assert write_map({}) == b""
    assert read_map(b"") == {}
    assert read_map(MAGIC + b"w\4\0\0\0\0") == {}


@given(st.lists(STREAM_VALUES, max_size=6))
def test_s3_8_what_is_written_into_a_stream_is_read(values):
    again = read_stream(write_stream(values))
    assert len(again) == len(values)
    assert all(map(same, again, values))


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_s3_8_what_is_written_into_a_map_is_read(entries):
    again = read_map(write_map(entries))
    assert all_the_same(again, entries)
    assert list(again) == list(entries)


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("\0", b"\xc0\x80"),
        ("é", b"\xc3\xa9"),
        ("€", b"\xe2\x82\xac"),
        ("😀", b"\xed\xa0\xbd\xed\xb8\x80"),
        ("a\0😀", b"a\xc0\x80\xed\xa0\xbd\xed\xb8\x80"),
    ],
)
def test_texts_are_in_the_utf_8_of_java(text, encoded):
    assert write_stream([text]) == b"\2" + len(encoded).to_bytes(2, "big") + encoded
    assert read_stream(write_stream([text])) == [text]


def test_s3_8_java_refers_to_objects_that_it_has_written():
    """Java writes a reference for a repeated Boolean, text or array, and for the class of a second Integer."""
    boolean = MAP[MAP.index(b"sr\0\x11java.lang.Boolean") : MAP.index(b"w\4\0\2bt")]
    body = MAGIC + b"w\7\0\0\0\x08\0\1a" + boolean  # handles 0 and 1
    body += b"w\3\0\1bq\0~\0\1"
    body += b"w\3\0\1ct\0\1x"  # 2
    body += b"w\3\0\1dq\0~\0\2"
    body += b"w\3\0\1e" + BYTES + b"\0\0\0\2\1\2"  # 3 and 4
    body += b"w\3\0\1fq\0~\0\4"
    body += b"w\3\0\1gs" + INTEGER + NUMBER + b"p\0\0\0\5"  # 5, 6 and 7
    body += b"w\3\0\1hsq\0~\0\5\0\0\0\6"
    assert read_map(body) == {"a": True, "b": True, "c": "x", "d": "x", "e": b"\1\2", "f": b"\1\2", "g": 5, "h": 6}


def test_s3_8_names_may_lie_in_any_blocks():
    body = MAGIC + b"w\3\0\0\0" + b"w\0" + b"z\0\0\0\3\2\0\1" + b"w\1a" + b"p" + b"z\0\0\0\1\0" + b"w\2\1b" + b"p"
    assert read_map(body) == {"a": None, "b": None}


def test_blocks_are_of_the_sizes_that_java_writes():
    body = write_map({"n" * 2000: None})
    assert body[4:9] == b"z\0\0\4\0"
    assert body[1033:1038] == b"z\0\0\3\xd6"
    assert write_map({"n" * 249: None})[4:6] == b"w\xff"
    assert write_map({"n" * 250: None})[4:9] == b"z\0\0\1\0"


# --- limits ---


@pytest.mark.parametrize("write", [lambda value: write_stream([value]), lambda value: write_map({"a": value})])
@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        Byte(128),
        Short(-32769),
        Long(2**63),
        Single(1e39),
        Char(""),
        Char("ab"),
        Char("😀"),
    ],
)
def test_what_java_could_not_hold_is_refused(write, value):
    with pytest.raises(ValueError):
        write(value)


@pytest.mark.parametrize("write", [lambda value: write_stream([value]), lambda value: write_map({"a": value})])
@pytest.mark.parametrize("value", [{}, [], object(), bytearray(b"a"), 1j])
def test_other_types_are_refused(write, value):
    with pytest.raises(TypeError, match=type(value).__name__):
        write(value)


def test_texts_of_streams_and_names_of_maps_have_at_most_65535_bytes():
    longest = "é" * 32767 + "a"
    assert read_stream(write_stream([longest])) == [longest]
    assert read_map(write_map({longest: 1})) == {longest: 1}
    with pytest.raises(ValueError, match="65536"):
        write_stream([longest + "a"])
    with pytest.raises(ValueError, match="65536"):
        write_map({longest + "a": 1})
    assert read_map(write_map({"a": longest + "a"})) == {"a": longest + "a"}


# --- whatever there is ---


def refused_or_read(read, body):
    try:
        read(body)
    except ValueError:
        return


@given(st.binary(max_size=60))
def test_86_whatever_is_read_as_a_stream_is_read_or_refused(body):
    refused_or_read(read_stream, body)


@given(st.binary(max_size=60))
@example(b"")
def test_86_whatever_is_read_as_a_map_is_read_or_refused(body):
    refused_or_read(read_map, body)
    refused_or_read(read_map, MAGIC + body)
    refused_or_read(read_map, MAGIC + b"w\7\0\0\0\1\0\1a" + body)


@given(st.integers(0, len(MAP) - 1), st.integers(0, 255))
def test_a_map_with_a_wrong_byte_is_read_or_refused(place, octet):
    refused_or_read(read_map, MAP[:place] + bytes((octet,)) + MAP[place + 1 :])


def test_a_map_that_is_cut_off_or_goes_on_is_refused():
    for end in range(1, len(MAP)):
        with pytest.raises(ValueError):
            read_map(MAP[:end])
    for more in (b"p", b"w\0", b"\0"):
        with pytest.raises(ValueError, match="after the last entry"):
            read_map(MAP + more)
    with pytest.raises(ValueError, match="after the last entry"):
        read_map(MAGIC + b"w\5\0\0\0\0\0")


def test_values_lie_behind_their_own_names():
    with pytest.raises(ValueError, match="between the name 'a' and its value"):
        read_map(MAGIC + b"w\x0a\0\0\0\2\0\1a\0\1bpp")


def test_a_negative_length_does_not_lead_back():
    with pytest.raises(ValueError, match="-4 bytes"):
        read_stream(b"\x0a\xff\xff\xff\xfc")
    with pytest.raises(ValueError, match="-1 bytes"):
        read_map(entry(BYTES + b"\xff\xff\xff\xff"))


def test_a_stream_that_is_cut_off_is_refused():
    ends = {0, 2, 6, 11, 14, 23, 28, 37, 39, 42, 49, 50}
    for end in range(len(STREAM)):
        if end in ends:
            read_stream(STREAM[:end])
            continue
        with pytest.raises(ValueError):
            read_stream(STREAM[:end])


def entry(value):
    return MAGIC + b"w\7\0\0\0\1\0\1a" + value


@pytest.mark.parametrize(
    "body",
    [
        OBJECT,
        b"\xac\xed\0\4",
        MAGIC + b"w\4\xff\xff\xff\xff",
        MAGIC + b"p",
        MAGIC + b"w\x08\0\0\0\1\0\1aXp",
        MAGIC + b"z\xff\xff\xff\xff",
        MAGIC + b"w\7\0\0\0\1\0\1\xff" + b"p",
        entry(b"s" + INTEGER + b"p\0\0\0\1"),
        entry(b"s" + INTEGER + b"q\0~\0\0" + b"\0\0\0\1"),
        entry(b"s" + INTEGER + INTEGER + b"p\0\0\0\1"),
        entry(b"s" + INTEGER.replace(b"\x12", b"\x13", 1) + NUMBER + b"p\0\0\0\1"),
        entry(b"s" + NUMBER + b"p"),
        entry(b"s" + BYTES[1:] + b"\0\0\0\1\1"),
        entry(b"u" + INTEGER + NUMBER + b"p\0\0\0\1"),
        entry(BYTES + b"\xff\xff\xff\xff"),
        entry(BYTES + b"\x7f\xff\xff\xff"),
        entry(b"|\xff\xff\xff\xff\xff\xff\xff\xff"),
        entry(b"q\0~\0\0"),
        entry(b"q\0~\0\1"),
        entry(b"q\xff\xff\xff\xff"),
        entry(b"sr\0\x11java.lang.Runtime"),
        entry(b"v"),
        entry(b"t\0\1\xff"),
    ],
)
def test_a_map_that_java_would_not_write_is_refused(body):
    """This includes a map with objects of other classes; its body stays bytes."""
    with pytest.raises(ValueError):
        read_map(body)


def test_a_value_cannot_be_a_class():
    body = MAGIC + b"w\7\0\0\0\2\0\1a" + BYTES + b"\0\0\0\1\1" + b"w\3\0\1b"
    assert read_map(body + b"q\0~\0\1") == {"a": b"\1", "b": b"\1"}
    with pytest.raises(ValueError, match="has the handle"):
        read_map(body + b"q\0~\0\0")
    with pytest.raises(ValueError, match="has the handle"):
        read_map(body + b"uq\0~\0\1\0\0\0\1\1")


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"\x0c",
        b"\2\0\1\xff",
        b"\x0a\xff\xff\xff\xff",
        b"\x0a\x7f\xff\xff\xff",
    ],
)
def test_a_stream_that_java_would_not_write_is_refused(body):
    with pytest.raises(ValueError):
        read_stream(body)


@pytest.mark.parametrize(
    "body",
    [
        MAGIC + b"w\4\x7f\xff\xff\xff",
        MAGIC + b"z\x7f\xff\xff\xff",
        MAGIC + b"w\0" * 50_000,
        entry(b"|\0\0\0\xff\xff\xff\xff\xff"),
        entry(b"s" + INTEGER * 2_000),
        entry(b"s" + (INTEGER + NUMBER) * 1_000),
        MAGIC + b"w\6\0\0\0\1\xff\xff" + b"w\1a" * 30_000,
    ],
)
def test_a_body_that_promises_much_takes_little(body):
    """It allocates no memory for content that is only announced, and does not recurse into classes within classes."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read_map(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * len(body) + 50_000


def test_numbers_of_32_bits_are_read_as_java_shows_them():
    assert read_stream(write_stream([Single(1.1)])) == [1.1]
    assert math.copysign(1, read_map(write_map({"z": Single(-0.0)}))["z"]) == -1
