"""Mistakes in steps that are found without Spark. `lint_agrees` compares every other test of this directory with them."""

import subprocess
import sys

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    ExplodeStep,
    LookupStep,
    MonitorStep,
    PipelineSettings,
    PythonStep,
    RouteStep,
    SelectStep,
    SqlStep,
    WhereStep,
)
from correlator.pipeline.static_checks import check_steps
from tests.pipeline.conftest import HERE
from tests.pipeline.protos import compiled

DECODE = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT, s STRUCT<x: INT>, l ARRAY<INT>")
PAIRS = CorrelateStep(key="sensor", event_time="at", first="value = 1", second="value = 2", within=60.0)
UNKNOWN = SqlStep(query="SELECT sensor, value + 1 FROM input")


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def check(*steps, spark_settings=()):
    return check_steps(PipelineSettings(name="p", from_=("in",), steps=steps), spark_settings)


def found(*steps, **options):
    """Step, code, setting, text and hint of each mistake."""
    return [
        (one.step + 1, one.error.code, one.error.where, one.error.what, one.error.todo)
        for one in check(*steps, **options).mistakes
    ]


def windows(**changes):
    values = {"key": "sensor", "event_time": "at", "window": 60.0, "values": {"n": "sum(value)"}}
    return AggregateStep(**{**values, **changes})


MISTAKES = [
        ([WhereStep(condition="valu > 1")], "E1511", "condition", "'valu' is not a column", "Did you mean 'value'?"),
        ([SelectStep(columns={"n": "senor"})], "E1511", "columns.n", "'senor' is not a column", "Did you mean 'sensor'?"),
        ([SelectStep(columns={"a": "b", "b": "value"})], "E1511", "columns.a", "'b' is not a column", ""),
        ([SelectStep(columns={"_live": "1"})], "E1517", "columns._live", "column '_live' has a name that the engine uses", ""),
        ([SelectStep(columns={"n": "s.y"})], "E1511", "columns.n", "'s' has no field 'y'", ""),
        ([SelectStep(columns={"n": "s.x.y"})], "E1511", "columns.n", "'s.x' has no field 'y'", ""),
        ([SelectStep(columns={"n": "_message.keys"})], "E1511", "columns.n", "'_message' has no field 'keys'", "Did you mean 'key'?"),
        ([ExplodeStep(array="value", name="v")], "E1511", "array", "'value' is int, must be an array", ""),
        ([RouteStep(to="x", headers={"h": "nope + 1"})], "E1511", "headers.h", "'nope' is not a column", ""),
        ([RouteStep(to="x", key="nope")], "E1511", "key", "'nope' is not a column", ""),
        ([DECODE], "E1517", "", "there is no column 'body'", ""),
        ([PythonStep(function="machines:same", schema="a INT,")], "E1511", "schema", "schema: ends with ','", ""),
        ([PythonStep(function="machines:same", schema="a INT, a INT")], "E1517", "schema", "there are two columns 'a'", "Rename one of them"),
        ([PythonStep(function="machines:same", schema="a INT"), WhereStep(condition="value")], "E1511", "condition", "'value' is not a column", ""),
        ([windows(values={"n": "median(value)"})], "E1512", "values.n", "'median(value)' is not an aggregate", "To calculate with results, use a 'select' after this step"),
        ([windows(values={"n": "last(l)"})], "E1513", "values.n", "type array<int> cannot be aggregated", ""),
        *(
            ([windows(values={"n": f"{function}({name})"})], "E1513", "values.n", f"{function} of '{name}', whose type is {kind}", f"Convert it: {function}(CAST({name} AS DOUBLE))")
            for function in ("sum", "avg")
            for name, kind in (("sensor", "string"), ("at", "timestamp"), ("l", "array<int>"), ("_message.key", "string"))
        ),
        ([windows(values={"n": "max(value) + (value)"})], "E1512", "values.n", "'max(value) + (value)' is not an aggregate", "To calculate with results, use a 'select' after this step"),
        ([windows(values={"window_end": "sum(value)"})], "E1517", "values", "there are two columns 'window_end'", "Rename one of them"),
        ([windows(event_time="att")], "E1511", "event_time", "'att' is not a column", "Did you mean 'at'?"),
        ([windows(), WhereStep(condition="value > 1")], "E1511", "condition", "'value' is not a column", ""),
        ([windows(key="upper(sensor)"), WhereStep(condition="sensor = 'A'")], "E1511", "condition", "'sensor' is not a column", ""),
        ([windows(), WhereStep(condition="_message.key = 'a'")], "E1511", "condition", "'_message' is not a column", ""),
        ([PAIRS, SelectStep(columns={"n": "first.valu"})], "E1511", "columns.n", "'first' has no field 'valu'", "Did you mean 'value'?"),
        ([MonitorStep(class_="machines:Sums", key="senor")], "E1511", "key", "'senor' is not a column", "Did you mean 'sensor'?"),
        ([MonitorStep(class_="machines:Sums", key="sensor"), WhereStep(condition="value > 1")], "E1511", "condition", "'value' is not a column", ""),
        ([SelectStep(columns={"sensor": "sensor", "at": "at", "valu": "value"}), MonitorStep(class_="machines:Sums", key="sensor")],
         "E1517", "class", "field 'value' of Reading is not a column", "Did you mean 'valu'?"),
        ([MonitorStep(class_="machines:Changes", key="sensor"), WhereStep(condition="value > 1 AND valu > 1")], "E1511", "condition", "'valu' is not a column", "Did you mean 'value'?"),
        ([SqlStep(query="SELECT *, valu AS v FROM input")], "E1511", "query", "'valu' is not a column", "Did you mean 'value'?"),
        ([SqlStep(query="SELECT value FROM input WHERE valu > 1")], "E1511", "query", "'valu' is not a column", "Did you mean 'value'?"),
        ([SqlStep(query="SELECT *, value FROM input")], "E1517", "query", "there are two columns 'value'", "Rename one of them"),
        ([SqlStep(query="SELECT sensor, value + 1 AS v FROM input"), WhereStep(condition="value > 1")], "E1511", "condition", "'value' is not a column", ""),
        ([SqlStep(query="SELECT _message.keys AS k FROM input")], "E1511", "query", "'_message' has no field 'keys'", "Did you mean 'key'?"),
        ([SqlStep(query="FROM input")], "E1511", "query", "does not begin with SELECT", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(("steps", "code", "setting", "what", "hint"), MISTAKES)
def test_a_mistake_behind_a_decode_step(steps, code, setting, what, hint):
    assert found(DECODE, *steps) == [(len(steps) + 1, code, setting, what, hint)]


@pytest.mark.parametrize(("steps", "code"), [case[:2] for case in MISTAKES])
def test_the_compiler_refuses_it_with_the_same_code(engine, steps, code):
    with pytest.raises(ConfigError) as caught:
        engine(DECODE, *steps)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "steps",
    [
        [WhereStep(condition="VALUE > 1 AND s.X = 2 AND _message.properties.kind = 'a' AND _live")],
        [SelectStep(columns={"a": "value + 1", "b": "a + 1"}), WhereStep(condition="b > a")],
        [windows(values={"n": "sum(value)", "m": "sum(v0)"})],
        [ExplodeStep(array="l", name="l"), WhereStep(condition="l > 1 AND value > 1")],
        [SqlStep(query="SELECT value AS v, v + 1 AS w, input.at AS t FROM input WHERE input.value > 1")],
        [UNKNOWN, WhereStep(condition="nope > 1"), RouteStep(to="x", key="nope"), MonitorStep(class_="machines:Sums", key="k")],
        [LookupStep(table="rooms", on=("sensor",)), WhereStep(condition="nope > 1")],
        [LookupStep(file="/nowhere.csv", on=("sensor",)), WhereStep(condition="nope > 1")],
        [PAIRS, SelectStep(columns={"n": "first.sensor", "m": "second.s.x"})],
        [MonitorStep(class_="nowhere:X", key="sensor"), WhereStep(condition="nope > 1")],
        [WhereStep(condition="correlator_1_0_1.value > 1")],
    ],
)  # fmt: skip
def test_what_is_right_or_not_known_is_not_reported(steps):
    assert found(DECODE, *steps) == []


def test_a_message_has_columns():
    assert found(WhereStep(condition="key = 'a' AND properties['b'] = 'c' AND body IS NOT NULL")) == []
    ((_, code, _, what, hint),) = found(WhereStep(condition="keys = 'a'"))
    assert (code, what, hint) == ("E1511", "'keys' is not a column", "Did you mean 'key'?")


def test_csv_has_no_nested_columns():
    (mistake,) = found(DecodeStep(format="csv", schema="a INT, b ARRAY<INT>"))
    assert mistake == (1, "E1511", "schema", "schema: column 'b' is array<int>", "")


def test_columns_of_avro_and_protobuf_are_known(tmp_path):
    avro = '{"type": "record", "name": "R", "fields": [{"name": "at", "type": ["null", "string"]}]}'
    descriptor = compiled('syntax = "proto3"; message M { string at = 1; }', tmp_path)
    for step in (
        DecodeStep(format="avro", schema=avro),
        DecodeStep(format="protobuf", descriptor=str(descriptor), message="M"),
    ):
        assert found(step, WhereStep(condition="at > ''")) == []
        ((_, code, _, what, hint),) = found(step, WhereStep(condition="att > ''"))
        assert (code, what, hint) == ("E1511", "'att' is not a column", "Did you mean 'at'?")


def test_a_binary_format_that_cannot_be_used_is_a_mistake_of_its_setting():
    avro = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}'
    assert [one[1:3] for one in found(DecodeStep(format="avro", schema=avro))] == [("E1513", "schema")]
    assert [one[1:3] for one in found(DecodeStep(format="avro", schema="{"))] == [("E1529", "schema")]
    assert [one[1:3] for one in found(DecodeStep(format="avro", schema_file="no.avsc"))] == [("E1529", "schema_file")]
    protobuf = DecodeStep(format="protobuf", descriptor="no.desc", message="M")
    assert [one[1:3] for one in found(protobuf)] == [("E1529", "descriptor")]


def test_every_mistake_is_reported():
    wrong = [SelectStep(columns={"a": "x1", "b": "x2 + x3 + x2"}), WhereStep(condition="a > c")]
    named = [what.partition(" ")[0] for *_, what, _ in found(DECODE, *wrong)]
    assert named == ["'x1'", "'x2'", "'x3'", "'c'"]


def lookup(tmp_path, content, **settings):
    (tmp_path / "f.csv").write_bytes(content)
    return LookupStep(**{"file": str(tmp_path / "f.csv"), "on": ("sensor",), **settings})


def test_the_header_of_a_file_gives_columns(tmp_path):
    step = lookup(tmp_path, b"sensor,room\na,1\n")
    assert found(DECODE, step, WhereStep(condition="room = '1' AND value > 1")) == []
    ((_, code, setting, what, _),) = found(DECODE, step, WhereStep(condition="floor = '1'"))
    assert (code, setting, what) == ("E1511", "condition", "'floor' is not a column")
    ((_, code, setting, what, hint),) = found(DECODE, lookup(tmp_path, b"senor,room\n"))
    assert (code, setting, hint) == ("E1518", "on[0]", "Did you mean 'senor'?")
    assert what.endswith("f.csv has no column 'sensor'")
    ((_, code, _, what, _),) = found(DECODE, lookup(tmp_path, b"sensor,value\n"))
    assert (code, what) == ("E1517", "column 'value' is there already")
    ((_, code, setting, what, _),) = found(DECODE, lookup(tmp_path, b"room,x\n", on=("room",)))
    assert (code, setting, what) == ("E1511", "on[0]", "'room' is not a column")


def test_the_schema_of_a_file_gives_columns(tmp_path):
    step = lookup(tmp_path, b"", schema="sensor STRING, room INT")
    ((_, code, _, what, _),) = found(DECODE, step, WhereStep(condition="rom = 1"))
    assert (code, what) == ("E1511", "'rom' is not a column")
    ((_, code, setting, what, hint),) = found(DECODE, lookup(tmp_path, b"", schema="sensor STRIN"))
    assert (code, setting, hint) == ("E1518", "schema", "Did you mean 'string'?")
    assert "schema: 'STRIN' is not a type" in what


@pytest.mark.parametrize(
    "header", [b"", b'"sensor",room', b"sensor,room,room", b"sensor,,x", b"\xff", "﻿sensor,x".encode()]
)
def test_a_header_that_spark_may_read_in_another_way_gives_no_columns(tmp_path, header):
    assert found(DECODE, lookup(tmp_path, header), WhereStep(condition="nope > 1")) == []


def test_settings_of_spark_may_give_names_and_paths_another_meaning(tmp_path):
    wrong = WhereStep(condition="nope > 1")
    assert found(DECODE, wrong, spark_settings=["spark.sql.extensions"]) == []
    assert len(found(DECODE, wrong, spark_settings=["spark.executor.memory"])) == 1
    step = lookup(tmp_path, b"x,room\n")
    assert found(DECODE, step, spark_settings=["spark.hadoop.fs.defaultFS"]) == []


def test_steps_that_only_spark_checks_completely():
    steps = [
        DECODE,
        WhereStep(condition="value > 1"),
        RouteStep(to="x", key="sensor"),
        SelectStep(columns={"sensor": "sensor", "n": "1"}),
        RouteStep(to="x"),
        windows(key="sensor", event_time="sensor", values={"n": "count(*)", "m": "sum(n)"}),
        UNKNOWN,
        RouteStep(to="x", key="sensor"),
    ]
    assert check(*steps).unchecked == {1, 6, 7}


def test_the_checks_import_neither_spark_nor_arrow():
    script = (
        "import sys, correlator.cli.lint\nassert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
