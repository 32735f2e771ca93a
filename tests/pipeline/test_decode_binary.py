"""The formats `avro` and `protobuf` of a `decode` step on Spark; `engine` compares small, large and repeated batches."""

import datetime as dt
import io
import json
import struct
import sys
import uuid
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from correlator.errors import ConfigError
from correlator.events import Message
from correlator.pipeline import worker
from correlator.pipeline.arrow_rows import KEYED_SCHEMA
from correlator.pipeline.avro import AvroFormat
from correlator.pipeline.envelope import HIDDEN
from correlator.pipeline.spec import CorrelateStep, DecodeStep, PythonStep, RouteStep, SelectStep, SqlStep, WhereStep
from tests.pipeline.protos import classes, compiled

OUT = RouteStep(to="out")
EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "namespace": "shop",
    "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "single", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "maybe", "type": ["null", "string"]},
        {"name": "perhaps", "type": ["long", "null"]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "M"]}},
        {"name": "other_size", "type": "Size"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "numbers", "type": {"type": "array", "items": "int"}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "long"]}},
        {
            "name": "item",
            "type": {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": ["null", "string"]}]},
        },
        {"name": "items", "type": {"type": "array", "items": "Item"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at_ms", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "at_us", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "stamp_ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "stamp_us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local_ms", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "local_us", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {
            "name": "huge",
            "type": {
                "type": "fixed",
                "name": "Huge",
                "size": 16,
                "logicalType": "decimal",
                "precision": 38,
                "scale": 9,
            },
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw_id", "type": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}},
        {"name": "lasts", "type": {"type": "fixed", "name": "Lasts", "size": 12, "logicalType": "duration"}},
        {"name": "unknown", "type": {"type": "long", "logicalType": "timestamp-eons"}},
        {"name": "days", "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
        {"name": "stamps", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}},
    ],
}
VALUES = {
    "nothing": None,
    "flag": True,
    "small": -5,
    "large": 2**62,
    "single": 1.5,
    "double": 2.25,
    "raw": b"\x00\xff",
    "text": "é",
    "maybe": None,
    "perhaps": 7,
    "size": "M",
    "other_size": "S",
    "code": b"abc",
    "numbers": [1, -1],
    "counts": {"a": 1, "b": None},
    "item": {"sku": "tea"},
    "items": [{"sku": None}, {"sku": "cup"}],
    "on": dt.date(2026, 1, 5),
    "at_ms": dt.time(10, 20, 30),
    "at_us": dt.time(10, 20, 30, 5),
    "stamp_ms": dt.datetime(2026, 1, 5, 10, tzinfo=dt.UTC),
    "stamp_us": dt.datetime(1900, 1, 5, 10, tzinfo=dt.UTC),
    "local_ms": dt.datetime(2026, 1, 5, 10),  # noqa: DTZ001  without a time zone
    "local_us": dt.datetime(2026, 1, 5, 10, microsecond=7),  # noqa: DTZ001
    "price": Decimal("-12.30"),
    "huge": Decimal("12345678901234567890123456789.123456789"),
    "id": uuid.UUID(int=5),
    "raw_id": uuid.UUID(int=6).bytes,
    "lasts": struct.pack("<3I", 1, 2, 2**32 - 1),
    "unknown": 9,
    "days": [dt.date(1969, 12, 31)],
    "stamps": {"first": dt.datetime(2026, 1, 5, tzinfo=dt.UTC)},
}


def written(schema, *values):
    bodies = []
    for value in values:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
        bodies.append(body.getvalue())
    return bodies


def record(*fields, name="R"):
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def avro(schema, **more):
    return DecodeStep(format="avro", schema=json.dumps(schema), **more)


def rows(engine):
    return [json.loads(body) for body in engine.bodies()]


ROW = {
    "nothing": None,
    "flag": True,
    "small": -5,
    "large": 2**62,
    "single": 1.5,
    "double": 2.25,
    "raw": "AP8=",
    "text": "é",
    "maybe": None,
    "perhaps": 7,
    "size": "M",
    "other_size": "S",
    "code": "YWJj",
    "numbers": [1, -1],
    "counts": {"a": 1, "b": None},
    "item": {"sku": "tea"},
    "items": [{"sku": None}, {"sku": "cup"}],
    "on": "2026-01-05",
    "at_ms": 37_230_000,
    "at_us": 37_230_000_005,
    "stamp_ms": "2026-01-05T10:00:00.000000Z",
    "stamp_us": "1900-01-05T10:00:00.000000Z",
    "local_ms": "2026-01-05T10:00:00.000000",
    "local_us": "2026-01-05T10:00:00.000007",
    "price": Decimal("-12.30"),
    "huge": Decimal("12345678901234567890123456789.123456789"),
    "id": str(uuid.UUID(int=5)),
    "raw_id": str(uuid.UUID(int=6)),
    "lasts": {"months": 1, "days": 2, "milliseconds": 2**32 - 1},
    "unknown": 9,
    "days": ["1969-12-31"],
    "stamps": {"first": "2026-01-05T00:00:00.000000Z"},
}


def exact(engine):
    return [json.loads(body, parse_float=Decimal) for body in engine.bodies()]


def test_every_type_of_avro(engine):
    e = engine(avro(EVERYTHING), OUT)
    e.run(*written(EVERYTHING, VALUES))
    assert (e.reasons(), exact(e)) == ([], [ROW])


def test_every_type_goes_through_the_other_steps(engine):
    """Through a `sql`, which makes NULLs of all types, a function, and a keyed step that stores rows."""
    wanted = "small < 0", "small > 0"
    pairs = CorrelateStep(key="text", event_time="stamp_ms", first=wanted[0], second=wanted[1], within=5.0)
    e = engine(
        avro(EVERYTHING),
        SqlStep(query="SELECT *, 1 AS one FROM input"),
        PythonStep(function="machines:same"),
        pairs,
        OUT,
    )
    e.run(*written(EVERYTHING, VALUES))
    e.run(*written(EVERYTHING, {**VALUES, "small": 5}))
    assert e.reasons() == []
    assert exact(e) == [{"first": {**ROW, "one": 1}, "second": {**ROW, "small": 5, "one": 1}}]


ID = record(("id", "int"), ("name", ["null", "string"]))


def test_a_body_that_is_not_avro_of_the_schema_becomes_a_dead_letter(engine):
    e = engine(avro(ID), OUT)
    good, more = written(ID, {"id": 1, "name": "tea"}, {"id": 2, "name": None})
    e.run(b"", good, good + b"!", more, b"\x02\x05", b"\xff" * 300)
    assert rows(e) == [{"id": 1, "name": "tea"}, {"id": 2, "name": None}]
    assert e.reasons() == [
        "E5101 pipeline p step 1 (decode): not avro of the schema: field id ends too early: 0 bytes",
        "E5101 pipeline p step 1 (decode): not avro of the schema: the body has 1 bytes after the record: 7 bytes",
        "E5101 pipeline p step 1 (decode): not avro of the schema: field name has the branch -3 of a union of 2: 2 bytes",
        "E5101 pipeline p step 1 (decode): not avro of the schema: field id has a number of more than 10 bytes: 300 bytes",
    ]
    assert [letter.message.body for letter in e.dead] == [b"", good + b"!", b"\x02\x05", b"\xff" * 300]


def test_a_schema_may_stand_in_a_file(engine, tmp_path):
    (tmp_path / "id.avsc").write_text(json.dumps(ID))
    e = engine(DecodeStep(format="avro", schema_file=str(tmp_path / "id.avsc")), OUT)
    e.run(*written(ID, {"id": 1, "name": "tea"}))
    assert rows(e) == [{"id": 1, "name": "tea"}]


def test_bodies_of_an_older_schema(engine):
    new = {**ID, "fields": [*ID["fields"], {"name": "price", "type": "double", "default": 1}]}
    e = engine(avro(new, writer_schema=json.dumps(ID)), OUT)
    e.run(*written(ID, {"id": 1, "name": "tea"}))
    assert rows(e) == [{"id": 1, "name": "tea", "price": 1.0}]


def test_a_decode_step_may_stand_anywhere_before_a_keyed_step(engine):
    """Rows that earlier steps have dropped or sent do not come to it; the message stays with the row."""
    e = engine(
        RouteStep(to="all"),
        WhereStep(condition="properties['kind'] = 'order'"),
        SelectStep(columns={"body": "unhex(CAST(body AS STRING))", "shop": "key"}),
        avro(ID),
        RouteStep(to="named", where="name IS NOT NULL"),
        SelectStep(columns={"id": "id", "shop": "_message.key"}),
        OUT,
    )
    bodies = [body.hex().encode() for body in written(ID, {"id": 1, "name": "tea"}, {"id": 2, "name": None})]
    order = {"kind": "order"}
    e.run(
        Message(bodies[0], order, "Lyon"),
        Message(bodies[1], {}, "Oslo"),
        Message(bodies[1], order),
        Message(b"zz", order),
    )
    assert rows(e) == [{"id": 1, "shop": "Lyon"}, {"id": 2, "shop": None}]
    assert [message.body for message in e.sends["all"]] == [bodies[0], bodies[1], bodies[1], b"zz"]
    assert e.bodies("named") == ['{"id":1,"name":"tea"}']
    assert len(e.reasons()) == 1


def test_a_body_that_is_null_becomes_a_dead_letter(engine):
    e = engine(SelectStep(columns={"body": "nullif(body, CAST('x' AS BINARY))"}), avro(ID), OUT)
    e.run(b"x")
    assert e.reasons() == ["E5101 pipeline p step 2 (decode): not avro of the schema: the body is NULL: 0 bytes"]


def test_many_bodies_are_decoded_in_parts(monkeypatch):
    """So the values of few bodies are in memory as objects of Python, which are much larger than the bodies."""
    monkeypatch.setattr(worker, "_MOST_BYTES", 10)
    bodies = written(ID, *({"id": at, "name": "x" * (at % 7)} for at in range(30)))
    bodies[7] = b""
    hidden = [KEYED_SCHEMA.field(name) for name in HIDDEN]
    count = len(bodies)
    columns = [range(count), [""] * count, [at != 5 for at in range(count)], [[]] * count]
    arrays = [pa.array(column, one.type) for column, one in zip(columns, hidden, strict=True)]
    rows = pa.record_batch([*arrays, pa.array(bodies, pa.binary())], schema=pa.schema([*hidden, ("body", pa.binary())]))
    made = pa.schema([*hidden, ("id", pa.int32()), ("name", pa.string())])
    decode = worker.DecodeFunction(AvroFormat(json.dumps(ID)), "avro", 0, "here", made)
    parts = list(decode(iter([rows])))
    assert max(part.num_rows for part in parts) <= 4
    whole = pa.Table.from_batches(parts).sort_by("_position").to_pylist()
    assert [row["_position"] for row in whole] == list(range(count))
    assert [row["id"] for row in whole] == [None if at in (5, 7) else at for at in range(count)]
    assert [row["_live"] for row in whole] == [at not in (5, 7) for at in range(count)]
    assert [len(row["_out"]) for row in whole] == [int(at == 7) for at in range(count)]


WRONG_DEFAULT = {**ID, "fields": [{"name": "raw", "type": "bytes", "default": "€"}]}
"""In the JSON of Avro, a default of bytes has characters up to U+00FF only."""


class Odd:
    """A format whose values do not fit its columns, as nothing that is known makes them."""

    def columns(self):
        return {"a": "INT"}

    def decoder(self):
        def decode(body):
            if body == b"raise":
                raise RuntimeError("no reason")
            return {"a": 2**40 if body == b"large" else len(body)}

        return decode


def test_whatever_a_decoder_does_only_its_body_becomes_a_dead_letter(engine, monkeypatch):
    monkeypatch.setattr("correlator.pipeline.formats.format_of", lambda step: Odd())
    e = engine(avro(ID), OUT)
    e.run("x", "large", "xxx", "raise", "xxxxx")
    assert rows(e) == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert [reason.partition("schema: ")[2].partition(":")[0] for reason in e.reasons()] == [
        "ArrowInvalid",
        "RuntimeError",
    ]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Size { SMALL = 0; LARGE = 1; }
message Item { string sku = 1; optional int32 count = 2; }
message Order {
  int32 id = 1; uint64 number = 2; Size size = 3; repeated Item items = 4; map<string, int64> counts = 5;
  map<int32, string> names = 6; google.protobuf.Timestamp at = 7; oneof pays { string card = 8; Item voucher = 9; }
  bytes raw = 10;
}
"""


@pytest.fixture
def shop(tmp_path):
    return compiled(PROTO, tmp_path)


def protobuf(descriptor, message="shop.Order"):
    return DecodeStep(format="protobuf", descriptor=str(descriptor), message=message)


def test_protobuf(engine, shop):
    cls = classes(shop)["shop.Order"]
    order = cls(
        id=1, number=2**64 - 1, size=1, counts={"b": 1, "a": 2}, names={2: "two", 1: "one"}, card="", raw=b"\xff"
    )
    order.items.add(sku="tea", count=0)
    order.at.FromJsonString("2026-01-05T10:00:00.5Z")
    e = engine(protobuf(shop), OUT)
    e.run(order.SerializeToString(), b"", b"\xff", b"\x08\x02\xfa\x7f\x03new")
    assert rows(e)[0] == {
        "id": 1,
        "number": 2**64 - 1,
        "size": "LARGE",
        "items": [{"sku": "tea", "count": 0}],
        "counts": {"a": 2, "b": 1},
        "names": {"1": "one", "2": "two"},
        "at": "2026-01-05T10:00:00.500000Z",
        "card": "",
        "voucher": None,
        "raw": "/w==",
    }
    empty = {"id": 0, "number": 0, "size": "SMALL", "items": [], "counts": {}, "names": {}, "at": None, "card": None}
    assert rows(e)[1:] == [{**empty, "voucher": None, "raw": ""}, {**empty, "id": 2, "voucher": None, "raw": ""}]
    assert e.reasons() == [
        "E5101 pipeline p step 1 (decode): not protobuf of the schema: the body is no message: Wire format was corrupt: 1 bytes"
    ]


@pytest.mark.parametrize(
    ("step", "code", "told"),
    [
        (
            avro(record(("a", ["int", "string"]))),
            "E1513",
            "field 'a' is a union of int, string, which no column can hold",
        ),
        (DecodeStep(format="avro", schema="{"), "E1529", "is not JSON"),
        (DecodeStep(format="avro", schema_file="nowhere.avsc"), "E1529", "nowhere.avsc cannot be read: No such file"),
        (DecodeStep(format="avro", schema_file="."), "E1529", ". is not a regular file"),
        (DecodeStep(format="avro", schema_file="/dev/zero"), "E1529", "/dev/zero is not a regular file"),
        (protobuf("nowhere.desc"), "E1529", "nowhere.desc cannot be read: No such file"),
        (protobuf(__file__), "E1529", "is no descriptor set"),
        (avro(ID, writer_schema='"int"'), "E1529", "bodies of it cannot be read with 'schema'"),
        (avro(WRONG_DEFAULT, writer_schema=json.dumps(ID)), "E1529", "cannot be used: UnicodeEncodeError"),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_the_start(engine, step, code, told):
    with pytest.raises(ConfigError) as refused:
        engine(step, OUT)
    assert (refused.value.code, refused.value.where) == (code, "pipeline p step 1 (decode)")
    assert told in refused.value.what


def test_a_library_that_is_missing_is_named(engine, shop, monkeypatch):
    for module, step in (("fastavro.schema", avro(ID)), ("google.protobuf.descriptor_pb2", protobuf(shop))):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            ConfigError, match=r"E1537 .*the package '(fastavro|protobuf)' is missing. Install: pip install"
        ):
            engine(step, OUT)
