"""Message types of protobuf as columns, and bodies of protobuf as their values."""

import subprocess
import sys
from decimal import Decimal

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from correlator.errors import ConfigError
from correlator.pipeline.binary import MOST_ELEMENTS, MOST_FIELDS, Malformed
from correlator.pipeline.protobuf import ProtobufFormat
from tests.pipeline.protos import classes, compiled

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Size { SMALL = 0; LARGE = 1; }
message Item { string sku = 1; optional int32 count = 2; }
message Order {
  double a_double = 1; float a_float = 2; int32 an_int32 = 3; int64 an_int64 = 4; uint32 a_uint32 = 5;
  uint64 a_uint64 = 6; sint32 a_sint32 = 7; sint64 a_sint64 = 8; fixed32 a_fixed32 = 9; fixed64 a_fixed64 = 10;
  sfixed32 a_sfixed32 = 11; sfixed64 a_sfixed64 = 12; bool a_bool = 13; string a_string = 14; bytes some_bytes = 15;
  Size size = 16; Item item = 17; repeated Item items = 18; repeated Size sizes = 19;
  map<string, int64> counts = 20; map<int32, Item> by_number = 21; optional string note = 22;
  oneof pays { string card = 23; Item voucher = 24; }
  google.protobuf.Timestamp at = 25; google.protobuf.Duration lasts = 26;
  google.protobuf.UInt64Value wrapped = 27; google.protobuf.StringValue text = 28;
  google.protobuf.FieldMask mask = 29; repeated google.protobuf.Timestamp times = 30;
}
"""
OLD = """
syntax = "proto2";
package old;
message Order {
  enum Size { SMALL = 3; LARGE = 4; BIG = 4; }
  required int32 id = 1; optional int32 count = 2 [default = 5]; optional Size size = 3; optional string text = 4;
  optional group Part = 5 { optional int32 n = 1; }
  map<string, int32> counts = 6;
  extensions 100 to 199;
}
extend Order { optional int32 more = 100; }
"""


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    return compiled(ORDER, tmp_path_factory.mktemp("order"))


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return compiled(OLD.replace("BIG = 4; }", "BIG = 5; }"), tmp_path_factory.mktemp("old"))


def format_of(descriptor, message="shop.Order"):
    return ProtobufFormat(descriptor.read_bytes(), message)


def test_every_type_has_a_column(order):
    item = "STRUCT<`sku`: STRING, `count`: INT>"
    assert format_of(order).columns() == {
        "a_double": "DOUBLE",
        "a_float": "FLOAT",
        "an_int32": "INT",
        "an_int64": "BIGINT",
        "a_uint32": "BIGINT",
        "a_uint64": "DECIMAL(20,0)",
        "a_sint32": "INT",
        "a_sint64": "BIGINT",
        "a_fixed32": "BIGINT",
        "a_fixed64": "DECIMAL(20,0)",
        "a_sfixed32": "INT",
        "a_sfixed64": "BIGINT",
        "a_bool": "BOOLEAN",
        "a_string": "STRING",
        "some_bytes": "BINARY",
        "size": "STRING",
        "item": item,
        "items": f"ARRAY<{item}>",
        "sizes": "ARRAY<STRING>",
        "counts": "MAP<STRING, BIGINT>",
        "by_number": f"MAP<INT, {item}>",
        "note": "STRING",
        "card": "STRING",
        "voucher": item,
        "at": "TIMESTAMP",
        "lasts": "BIGINT",
        "wrapped": "DECIMAL(20,0)",
        "text": "STRING",
        "mask": "STRUCT<`paths`: ARRAY<STRING>>",
        "times": "ARRAY<TIMESTAMP>",
    }


def test_a_field_that_is_not_there_is_null_if_a_message_knows_that(order):
    """A field of proto3 without presence has the value of its type, and a list or map is empty."""
    values = format_of(order).decoder()(b"")
    nulls = {"item", "note", "card", "voucher", "at", "lasts", "wrapped", "text", "mask"}
    assert {name for name, value in values.items() if value is None} == nulls
    assert (values["an_int32"], values["a_string"], values["size"], values["items"]) == (0, "", "SMALL", [])
    assert (values["counts"], values["a_bool"], values["a_uint64"]) == ([], False, Decimal(0))


def test_a_field_has_the_value_of_its_message(order):
    cls = classes(order)["shop.Order"]
    message = cls(a_uint64=2**64 - 1, an_int64=-(2**63), a_fixed32=2**32 - 1, size=7, sizes=[0, 1, 9], card="")
    message.item.count = 0
    message.items.add(sku="tea")
    message.counts.update({"b": 1, "a": 2})
    message.by_number[3].sku = "cup"
    message.at.FromJsonString("2026-01-05T10:00:00.123456789Z")
    message.lasts.FromJsonString("-1.500000999s")
    message.wrapped.value = 0
    message.mask.paths.append("a.b")
    message.times.add(seconds=-62_135_596_800)
    values = format_of(order).decoder()(message.SerializeToString())
    wanted = {
        "a_uint64": Decimal(2**64 - 1),
        "an_int64": -(2**63),
        "a_fixed32": 2**32 - 1,
        "size": "7",
        "sizes": ["SMALL", "LARGE", "9"],
        "card": "",
        "voucher": None,
        "item": {"sku": "", "count": 0},
        "items": [{"sku": "tea", "count": None}],
        "counts": [("a", 2), ("b", 1)],
        "by_number": [(3, {"sku": "cup", "count": None})],
        "at": 1_767_607_200_123_456,
        "lasts": -1_500_000,
        "wrapped": Decimal(0),
        "text": None,
        "mask": {"paths": ["a.b"]},
        "times": [-62_135_596_800_000_000],
    }
    assert {name: values[name] for name in wanted} == wanted


def test_fields_that_the_message_type_does_not_have_are_ignored(order, old):
    message = classes(order)["shop.Order"](an_int32=7, a_string="x")
    body = message.SerializeToString() + b"\xfa\x7f\x03abc"
    assert format_of(order).decoder()(body)["a_string"] == "x"
    other = classes(old)["old.Order"](id=1)
    with_extension = other.SerializeToString() + b"\xa0\x06\x05"
    assert format_of(old, "old.Order").decoder()(with_extension)["id"] == 1


def test_messages_of_proto2(old):
    format_ = format_of(old, "old.Order")
    assert format_.columns() == {
        "id": "INT",
        "count": "INT",
        "size": "STRING",
        "text": "STRING",
        "part": "STRUCT<`n`: INT>",
        "counts": "MAP<STRING, INT>",
    }
    decode = format_.decoder()
    assert decode(b"\x08\x01") == {"id": 1, "count": None, "size": None, "text": None, "part": None, "counts": []}
    assert decode(b"\x08\x01\x18\x04\x2b\x08\x05\x2c")["part"] == {"n": 5}
    assert decode(b"\x08\x01\x18\x04")["size"] == "LARGE"
    assert decode(b"\x08\x01\x18\x09")["size"] is None, "a closed enum has no other values"
    with pytest.raises(Malformed, match="the body has no required field id"):
        decode(b"\x10\x01")
    for wrong, name in ((b"\x22\x01\xff", "text"), (b"\x32\x03\x0a\x01a\x32\x03\x0a\x01\xff", "counts")):
        with pytest.raises(Malformed, match=f"field {name} is not UTF-8"):
            decode(b"\x08\x01" + wrong)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff" * 20, "the body is no message"),
        (b"\x72\x05abc", "the body is no message"),
        (b"\x72\xff\xff\xff\xff\x07", "the body is no message"),
        (b"\x72\x01\xff", "the body is no message"),
        (b"\xca\x01\x0b\x08" + b"\xff" * 9 + b"\x01", "field at has -1 seconds and 0 nanoseconds"),
        (b"\xca\x01\x06\x10\x80\x94\xeb\xdc\x03", "field at has 0 seconds and 1000000000 nanoseconds"),
        (b"\xd2\x01\x0d\x08\x01\x10" + b"\xff" * 9 + b"\x01", "field lasts has 1 seconds and -1 nanoseconds"),
        (b"\x92\x01\x00" * (MOST_ELEMENTS + 1), "field items comes after more than 1000000 elements"),
        (b"\x0b" * 1_000_000, "the body is no message"),
        (b"\xfb\x7f" * 1_000_000, "the body is no message"),
    ],
    ids=range(10),
)
def test_188_a_body_that_is_no_message_is_malformed(order, body, told):
    if told.startswith("field at has -1"):
        body = b"\xca\x01\x0b\x08" + b"\x80" * 9 + b"\x01"
        told = f"field at has {-(2**63)} seconds and 0 nanoseconds"
    with pytest.raises(Malformed) as malformed:
        format_of(order).decoder()(body)
    assert told in str(malformed.value)


@given(body=st.binary(max_size=200))
def test_any_bytes_are_malformed_or_a_message(order, body):
    try:
        values = format_of(order).decoder()(body)
    except Malformed:
        return
    assert len(values) == 30


def field(name, number, type_name="", kind=FieldDescriptorProto.TYPE_INT32):
    return FieldDescriptorProto(
        name=name,
        number=number,
        type=FieldDescriptorProto.TYPE_MESSAGE if type_name else kind,
        type_name=type_name or None,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )


def descriptor(*messages, **more):
    found = FileDescriptorSet()
    found.file.add(name="one.proto", package="p", syntax="proto3", message_type=messages, **more)
    return found.SerializeToString()


def message(name, *fields):
    return DescriptorProto(name=name, field=fields)


@pytest.mark.parametrize(
    ("messages", "more", "name", "code", "told"),
    [
        ([message("M", field("a", 1))], {}, "p.N", "E1529", "the descriptor has no message 'p.N'"),
        ([message("M", field("a", 1))], {}, "M", "E1529", "the descriptor has no message 'M'"),
        (
            [message("M", field("m", 1, ".p.M"))],
            {},
            "p.M",
            "E1513",
            "field 'm' is of the recursive type 'p.M', which no column can hold",
        ),
        (
            [message("M", field("n", 1, ".p.N")), message("N", field("m", 1, ".p.M"))],
            {},
            "p.M",
            "E1513",
            "field 'n.m' is of the recursive type 'p.M', which no column can hold",
        ),
        (
            [message("M", field("n", 1, ".p.N")), message("N")],
            {},
            "p.M",
            "E1513",
            "field 'n' is of the message 'p.N' without fields",
        ),
        ([message("M")], {}, "p.M", "E1513", "the body is of the message 'p.M' without fields"),
        ([message("M", field("_Out", 1))], {}, "p.M", "E1517", "field '_Out' has a name that the engine uses"),
        ([message("M", field("a_B", 1), field("a_b", 2))], {}, "p.M", "E15", ""),
        ([message("M", field("a", 1, ".p.Nope"))], {}, "p.M", "E1529", "one.proto: "),
        (
            [message("M", field("a", 1))],
            {"dependency": ["other.proto"]},
            "p.M",
            "E1529",
            "imports 'other.proto', which is not in it",
        ),
        ([message("M", field("a", 1))], {"dependency": ["one.proto"]}, "p.M", "E1529", "imports itself"),
        (
            [
                message("M0", field("a", 1)),
                *(
                    message(f"M{at}", field("a", 1, f".p.M{at - 1}"), field("b", 2, f".p.M{at - 1}"))
                    for at in range(1, 30)
                ),
            ],
            {},
            "p.M29",
            "E1513",
            f"has more than {MOST_FIELDS} fields",
        ),
    ],
    ids=range(12),
)
def test_what_cannot_be_columns_is_refused(messages, more, name, code, told):
    with pytest.raises(ConfigError) as refused:
        ProtobufFormat(descriptor(*messages, **more), name).columns()
    assert refused.value.code.startswith(code)
    assert told in refused.value.what, refused.value.what
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"not a descriptor", b'syntax = "proto3";', b"\xff" * 100])
def test_a_file_that_is_no_descriptor_set_is_refused(content):
    with pytest.raises(ConfigError, match="is no descriptor set. protoc --include_imports"):
        ProtobufFormat(content, "p.M").columns()


def test_an_empty_file_has_no_messages():
    with pytest.raises(ConfigError, match="It has no messages"):
        ProtobufFormat(b"", "p.M").columns()


def test_a_descriptor_set_without_imported_files_is_refused(tmp_path):
    made = compiled(ORDER, tmp_path, imports=False)
    with pytest.raises(ConfigError, match=r"one.proto imports 'google/protobuf/duration.proto', which is not in it"):
        format_of(made).columns()


def test_struct_of_protobuf_contains_itself(tmp_path):
    text = 'syntax = "proto3"; import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }'
    with pytest.raises(ConfigError, match="is of the recursive type 'google.protobuf.Struct'"):
        format_of(compiled(text, tmp_path), "M").columns()


def test_two_formats_with_types_of_one_name_do_not_meet(tmp_path):
    texts = [f'syntax = "proto3"; message M {{ {kind} a = 1; }}' for kind in ("int32", "string")]
    formats = []
    for at, text in enumerate(texts):
        (tmp_path / str(at)).mkdir()
        formats.append(format_of(compiled(text, tmp_path / str(at)), "M"))
    assert [dict(one.columns()) for one in formats] == [{"a": "INT"}, {"a": "STRING"}]
    assert [dict(one.decoder()(b"")) for one in formats] == [{"a": 0}, {"a": ""}]


def test_the_order_of_a_map_does_not_depend_on_the_process(order):
    message = classes(order)["shop.Order"](counts={f"k{at}": at for at in range(50)})
    program = (
        "import sys; from correlator.pipeline.protobuf import ProtobufFormat\n"
        f"format_ = ProtobufFormat(open({str(order)!r}, 'rb').read(), 'shop.Order')\n"
        f"print(format_.decoder()(bytes.fromhex({message.SerializeToString().hex()!r}))['counts'])"
    )
    made = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
        for _ in range(3)
    }
    assert len(made) == 1
