"""Avro schemas as columns, and bodies of Avro as their values: all types, and whatever a body may claim."""

import datetime as dt
import io
import json
import time
import tracemalloc

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from correlator.errors import ConfigError
from correlator.pipeline.avro import AvroFormat
from correlator.pipeline.binary import MOST_ELEMENTS, MOST_FIELDS, Malformed
from tests.pipeline.test_decode_binary import EVERYTHING, VALUES, record, written


def columns(*fields):
    return AvroFormat(json.dumps(record(*fields))).columns()


def decoder(schema, **more):
    return AvroFormat(json.dumps(schema), **more).decoder()


def number(value):
    """A whole number as Avro writes it."""
    value = (value << 1) ^ (value >> 63)
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def fixed(size, name="F", **more):
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items):
    return {"type": "array", "items": items}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("int", "INT"),
        (["null", "long"], "BIGINT"),
        (["double", "null"], "DOUBLE"),
        (["string"], "STRING"),
        ([{"type": "null"}, {"type": "bytes"}], "BINARY"),
        (array(["null", array("float")]), "ARRAY<ARRAY<FLOAT>>"),
        ({"type": "map", "values": logical("int", "date")}, "MAP<STRING, DATE>"),
        (record(("a", "int"), ("b`c", "string"), name="In"), "STRUCT<`a`: INT, `b``c`: STRING>"),
        (logical("bytes", "decimal", precision=5), "DECIMAL(5,0)"),
        (logical("long", "timestamp-millis"), "TIMESTAMP"),
        (logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ"),
        (logical("int", "time-millis"), "INT"),
        (logical("long", "time-micros"), "BIGINT"),
        (logical("long", "timestamp-nanos"), "BIGINT"),
        (logical("string", "date"), "STRING"),
        (fixed(12, logicalType="duration"), "STRUCT<`months`: BIGINT, `days`: BIGINT, `milliseconds`: BIGINT>"),
    ],
)
def test_a_type_has_a_column(kind, column):
    assert columns(("a", kind)) == {"a": column}


NESTED = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
WIDE = [record(*((f"f{at}", "int") for at in range(101)), name="Leaf")]
WIDE += [("a" * at, "Leaf") for at in range(1, 101)]


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ([("a", ["null", "int", "string"])], "E1513", "field 'a' is a union of int, string"),
        ([("a", ["null"])], "E1513", "field 'a' is a union of null alone"),
        ([("a", [])], "E1513", "field 'a' is a union of null alone"),
        ([("a", NESTED)], "E1513", "field 'a.next' is of the recursive type 'Node', which no column can hold"),
        ([("a", array("R"))], "E1513", "field 'a' is of the recursive type 'R', which no column can hold"),
        ([("a", logical("bytes", "decimal", precision=39))], "E1513", "field 'a' is a decimal of 39 digits"),
        ([("a", logical("bytes", "decimal"))], "E1513", "field 'a' is a decimal without 'precision'"),
        ([("a", logical("bytes", "decimal", precision=2, scale=3))], "E1529", "scale must be less than"),
        ([("a", fixed(11, logicalType="duration"))], "E1513", "field 'a' is a duration of 11 bytes"),
        ([("a", fixed(15, logicalType="uuid"))], "E1513", "field 'a' is a uuid of 15 bytes"),
        ([("a", array("null"))], "E1513", "field 'a' is an array of elements that take no bytes"),
        ([("a", array(record(("n", "null"), name="N")))], "E1513", "field 'a' is an array of elements that take no"),
        ([("a", array(fixed(0)))], "E1513", "field 'a' is an array of elements that take no bytes"),
        ([("a", record(name="N"))], "E1513", "field 'a' is of the record 'N' without fields"),
        ([], "E1513", "the body is of the record 'R' without fields"),
        ([("a", "int"), ("A", "int")], "E1517", "there are two fields 'A'"),
        ([("b", record(("a", "int"), ("a", "int"), name="N"))], "E1517", "there are two fields 'b.a'"),
        ([("_Out", "int")], "E1517", "field '_Out' has a name that the engine uses"),
        ([("a", "nope")], "E1529", "'nope' is not a type"),
        ([("a", {"type": "array"})], "E1529", "a type has no 'items'"),
        ([("a", {"type": "enum", "name": "E"})], "E1529", "a type has no 'symbols'"),
        ([("a", {"type": {"type": "int"}})], "E1529", "is no Avro schema"),
        ([("a", fixed(-1))], "E1529", "a type 'F' of the size -1"),
        ([("a", fixed("3"))], "E1529", "a type 'F' of the size '3'"),
        ([(5, "int")], "E1529", "is no Avro schema"),
    ],
)
def test_what_no_column_can_hold_is_refused_with_its_field(fields, code, told):
    with pytest.raises(ConfigError) as refused:
        columns(*fields)
    assert (refused.value.code, refused.value.where) == (code, "schema")
    assert told in refused.value.what, refused.value.what


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"int"', "is no record"),
        ("[]", "is no record"),
        ("null", "is no"),
        ("5", "is no"),
        ("{}", "a type has no 'type'"),
        ('{"type": "array", "items": "int"}', "is no record"),
        ('{"type": "record", "fields": []}', "required field missing"),
        ('{"type": "record", "name": "R", "fields": [5]}', "Record field must be a dict"),
        ('{"type": "record", "name": "R", "fields": 5}', "is no Avro schema"),
    ],
)
def test_what_is_no_schema_of_a_record_is_refused(schema, told):
    with pytest.raises(ConfigError) as refused:
        AvroFormat(schema).columns()
    assert refused.value.code == "E1529"
    assert told in refused.value.what


def test_a_short_schema_with_very_many_fields_is_refused():
    """Each record has two fields of the one before it."""
    inner = record(("a", "int"), name="R0")
    fields = [("f0", inner)]
    for at in range(1, 40):
        inner = record(("a", f"R{at - 1}"), ("b", f"R{at - 1}"), name=f"R{at}")
        fields.append((f"f{at}", inner))
    began = time.thread_time()
    with pytest.raises(ConfigError, match=f"more than {MOST_FIELDS} fields"):
        columns(*fields)
    assert time.thread_time() - began < 10


BLOCKS = record(("a", array("int")), ("m", {"type": "map", "values": "string"}))


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"\0\0", {"a": [], "m": []}),
        (number(2) + b"\2\4" + b"\0\0", {"a": [1, 2], "m": []}),
        (number(1) + b"\2" + number(1) + b"\4" + b"\0\0", {"a": [1, 2], "m": []}),
        (number(-2) + number(2) + b"\2\4" + b"\0\0", {"a": [1, 2], "m": []}),
        (b"\0" + number(-1) + number(4) + b"\2a\2b" + b"\0", {"a": [], "m": [("a", "b")]}),
    ],
)
def test_arrays_and_maps_come_in_blocks(body, values):
    assert decoder(BLOCKS)(body) == values


ONE = {
    "int": record(("a", "int")),
    "long": record(("a", "long")),
    "boolean": record(("a", "boolean")),
    "bytes": record(("a", "bytes")),
    "string": record(("a", "string")),
    "enum": record(("a", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
    "union": record(("a", ["null", "int"])),
    "fixed": record(("a", fixed(4))),
    "double": record(("a", "double")),
    "array": record(("a", array("int"))),
    "deep": record(("a", array(array(record(("b", array("boolean")), name="In"))))),
    "map": record(("a", {"type": "map", "values": "int"})),
    "decimal": record(("a", logical("bytes", "decimal", precision=3, scale=1))),
    "timestamp": record(("a", logical("long", "timestamp-millis"))),
}


@pytest.mark.parametrize(
    ("schema", "body", "told"),
    [
        ("int", b"", "field a ends too early"),
        ("int", b"\x80", "field a ends too early"),
        ("int", number(2**31), "field a has the number 2147483648, which is no int"),
        ("int", b"\2\2", "the body has 1 bytes after the record"),
        ("long", b"\xff" * 10 + b"\1", "field a has a number of more than 10 bytes"),
        ("long", b"\xff" * 9 + b"\2", "field a has a number of more than 64 bits"),
        ("long", b"\x80" * 1_000_000, "field a has a number of more than 10 bytes"),
        ("boolean", b"\2", "field a has the byte 2, which is no boolean"),
        ("bytes", number(-1) + b"abc", "field a has the length -1, where the body has 3 more bytes"),
        ("bytes", number(2**62), f"field a has the length {2**62}, where the body has 0 more bytes"),
        ("string", number(4) + b"abc", "field a has the length 4, where the body has 3 more bytes"),
        ("string", number(1) + b"\xff", "field a is not UTF-8"),
        ("enum", number(2), "field a has the symbol 2 of 2"),
        ("enum", number(-1), "field a has the symbol -1 of 2"),
        ("union", number(2) + b"\0", "field a has the branch 2 of a union of 2"),
        ("union", number(-1) + b"\0", "field a has the branch -1 of a union of 2"),
        ("fixed", b"abc", "field a ends too early"),
        ("double", b"1234567", "field a ends too early"),
        ("array", number(2**62), f"field a has a block of {2**62} elements, where the body has 0 more bytes"),
        ("array", number(-(2**63)) + number(0), f"field a has a block of {2**63} elements in 0 bytes"),
        ("array", number(-1) + number(2**62) + b"\0\0", f"a block of 1 elements in {2**62} bytes"),
        ("array", number(-1) + number(-1) + b"\0\0", "a block of 1 elements in -1 bytes"),
        ("array", number(-1) + number(2) + b"\0\0\0", "field a has a block of 2 bytes whose elements have others"),
        ("deep", number(1) + number(1) + number(9) + b"\1", "field a.b has a block of 9 elements"),
        ("deep", b"\2" * 1_000_000, "field a.b has the byte 2, which is no boolean"),
        ("map", number(1) + number(-1) + b"\0", "field a has the length -1"),
        ("map", number(1) + number(1) + b"\xff\0\0", "field a is not UTF-8"),
        ("decimal", number(2) + b"\x03\xe8", "field a has more than 3 digits"),
        ("timestamp", number(2**62), f"field a has {2**62} milliseconds, which no timestamp can be"),
        ("array", number(MOST_ELEMENTS + 1) + b"\0" * (MOST_ELEMENTS + 2), "comes after more than 1000000 elements"),
        ("array", b"\1\2\0" * 0 + b"\2\0" * (MOST_ELEMENTS + 1) + b"\0", "comes after more than 1000000 elements"),
    ],
)
def test_188_a_body_that_is_not_of_the_schema_is_malformed(schema, body, told):
    decode = decoder(ONE[schema])
    with pytest.raises(Malformed) as malformed:
        decode(body)
    assert told in str(malformed.value)


def test_a_hostile_body_takes_no_memory():
    """Claims of gigabytes, and a body of a megabyte that nests as deep as the schema."""
    decode = decoder(ONE["deep"])
    bodies = number(2**40) * 3, b"\2" * 1_000_000, number(-(2**40)) + number(2**40)
    tracemalloc.start()
    for body in bodies:
        with pytest.raises(Malformed):
            decode(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000


WHOLE = written(EVERYTHING, VALUES)[0]
DECODE = decoder(EVERYTHING)


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_a_damaged_body_is_malformed_or_of_the_schema(at, put, lost):
    """What the check lets through, the library reads to the end: written again, it has the same values."""
    try:
        values = DECODE(WHOLE[:at] + put + WHOLE[at + lost :])
    except Malformed:
        return
    assert list(values) == [field["name"] for field in EVERYTHING["fields"]]


@given(st.binary(max_size=300))
def test_any_bytes_are_malformed_or_of_the_schema(body):
    for schema in ONE.values():
        try:
            values = decoder(schema)(body)
        except Malformed:
            continue
        assert list(values) == ["a"]


def header(schema):
    return b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def test_the_single_object_encoding_is_recognised_by_its_fingerprint():
    assert fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572", "0x7275d51a3f395c8f, the lowest byte first"
    decode = decoder(ONE["long"])
    assert decode(header(ONE["long"]) + number(5)) == {"a": 5}
    with pytest.raises(Malformed, match="the body has 1 bytes after the record"):
        decode(header(ONE["long"]) + number(5) + b"\0")
    other = header(ONE["int"])
    with pytest.raises(
        Malformed, match=f"names the schema of fingerprint {other[2:].hex()}, .* is {header(ONE['long'])[2:].hex()}"
    ):
        decode(other + number(5))


def test_a_body_that_begins_like_a_header_may_be_a_body():
    assert decoder(ONE["long"])(number(-98)) == {"a": -98}
    assert number(-98) == b"\xc3\x01"


OLD = record(("id", "int"), ("name", "string"), ("gone", array("double")), ("price", "float"))


def test_a_body_of_another_schema_is_read_by_the_rules_of_avro():
    new = record(
        ("price", "double"),
        ("title", ["null", "string"]),
        ("id", "long"),
        ("since", logical("int", "date")),
        ("raw", "bytes"),
        ("item", record(("n", "int"), ("b", "bytes"), name="Item")),
        ("tags", array("string")),
        ("map", {"type": "map", "values": "float"}),
        ("size", {"type": "enum", "name": "E", "symbols": ["S", "M"]}),
    )
    defaults = {"since": 9, "raw": "\xff", "item": {"n": 1, "b": "\xfe"}, "tags": ["x"], "map": {"k": 1}, "size": "M"}
    for field in new["fields"]:
        if field["name"] in defaults:
            field["default"] = defaults[field["name"]]
    new["fields"][1]["aliases"] = ["name"]
    body = written(OLD, {"id": 1, "name": "tea", "gone": [1.0, 2.0], "price": 0.5})[0]
    format_ = AvroFormat(json.dumps(new), json.dumps(OLD))
    assert list(format_.columns()) == [field["name"] for field in new["fields"]]
    decode = format_.decoder()
    for _ in range(2):  # a default is the same for every body
        assert decode(body) == {
            "price": 0.5,
            "title": "tea",
            "id": 1,
            "since": 9,
            "raw": b"\xff",
            "item": {"n": 1, "b": b"\xfe"},
            "tags": ["x"],
            "map": [("k", 1.0)],
            "size": "M",
        }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("string", "int", "field 'a' is string there, int here"),
        ("long", "int", "field 'a' is long there, int here"),
        (array("string"), array("int"), "field 'a' is string there, int here"),
        ({"type": "map", "values": "int"}, array("int"), "field 'a' is map there, array here"),
        (fixed(3), fixed(4), "field 'a' has 3 bytes there, 4 here"),
        (fixed(3, "F"), fixed(3, "G"), "field 'a' is named F there, G here"),
        (["null", "string"], ["null", "int"], ""),
        (["int", "string"], "boolean", "field 'a' is int there, boolean here"),
        ("int", ["null", "string"], "field 'a' is int there, string here"),
        (
            logical("long", "timestamp-millis"),
            logical("long", "timestamp-micros"),
            "is timestamp-millis there, timestamp-micros here",
        ),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            logical("bytes", "decimal", precision=4, scale=1),
            "is decimal(4,2) there, decimal(4,1) here",
        ),
        (
            record(("b", "int"), name="In"),
            record(("b", "int"), ("c", "int"), name="In"),
            "field 'a.c' is missing and has no default",
        ),
    ],
)
def test_a_schema_with_which_no_body_can_be_read_is_refused(old, new, told):
    format_ = AvroFormat(json.dumps(record(("a", new))), json.dumps(record(("a", old))))
    if not told:
        assert format_.columns()
        return
    with pytest.raises(ConfigError) as refused:
        format_.columns()
    assert (refused.value.code, refused.value.where) == ("E1529", "writer_schema")
    assert told in refused.value.what


def test_a_value_that_the_schema_of_the_columns_does_not_have_is_an_error_of_its_body():
    old, new = record(("a", ["null", "string"])), record(("a", "string"))
    decode = AvroFormat(json.dumps(new), json.dumps(old)).decoder()
    assert decode(written(old, {"a": "x"})[0]) == {"a": "x"}
    with pytest.raises(Malformed, match="cannot be read with the schema of the columns"):
        decode(written(old, {"a": None})[0])


def test_the_values_are_those_of_the_library():
    """The library reads dates and times itself; the columns get the same ones as whole numbers."""
    values = DECODE(WHOLE)
    read = fastavro.schemaless_reader(io.BytesIO(WHOLE), fastavro.parse_schema(EVERYTHING), None)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert epoch + dt.timedelta(microseconds=values["stamp_ms"]) == read["stamp_ms"]
    assert epoch + dt.timedelta(microseconds=values["stamp_us"]) == read["stamp_us"]
    assert epoch.date() + dt.timedelta(days=values["on"]) == read["on"]
    same = [
        name
        for name in read
        if name not in ("on", "at_ms", "at_us", "days", "stamps", "counts", "id", "raw_id", "lasts")
    ]
    plain = [name for name in same if not name.startswith(("stamp", "local"))]
    assert {name: values[name] for name in plain} == {name: read[name] for name in plain}
