"""The types of Spark: each goes through the steps as it is, or the start refuses it and names the column."""

import json

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.spec import CorrelateStep, DecodeStep, MonitorStep, PythonStep, RouteStep

OUT = RouteStep(to="out")
VALUES = {
    "BOOLEAN": True,
    "TINYINT": -128,
    "BIGINT": 2**63 - 1,
    "FLOAT": 0.1,
    "DECIMAL(38,0)": 10**38 - 1,
    "STRING": "ü",
    "BINARY": "AP8=",
    "DATE": "2026-01-05",
    "TIMESTAMP": "2026-01-05T10:00:00.123456Z",
    "TIMESTAMP_NTZ": "2026-01-05T10:00:00.123456",
    "TIME": "23:59:59.123456",
    "TIME(0)": "10:11:12",
    "INTERVAL DAY TO SECOND": "INTERVAL '-1 02:03:04.500001' DAY TO SECOND",
    "VARIANT": {"a": [1, "x", None]},
    "VOID": None,
    "ARRAY<TIME>": ["10:11:12", None],
    "MAP<STRING, ARRAY<STRUCT<x: INT, m: MAP<STRING, DATE>>>>": {"a": [{"x": 1, "m": {"d": "2026-01-05"}}]},
    "STRUCT<d: INTERVAL DAY TO SECOND, t: TIMESTAMP_NTZ, b: BINARY, v: VARIANT>": {
        "d": "INTERVAL '0 00:00:01' DAY TO SECOND",
        "t": "2026-01-05T10:00:00.000000",
        "b": "AAEC",
        "v": 7,
    },
}
FOR_SQL_ALONE = {
    "INTERVAL YEAR TO MONTH": "INTERVAL '1-2' YEAR TO MONTH",
    "INTERVAL": "1 months 2 days",
}
"""Python does not get these."""


def schema(kinds):
    return DecodeStep(
        format="json", schema=", ".join(["k STRING", *(f"c{at} {kind}" for at, kind in enumerate(kinds))])
    )


def body(values):
    return json.dumps({"k": "a", **{f"c{at}": value for at, value in enumerate(values)}})


@pytest.mark.parametrize(
    "step",
    [PythonStep(function="machines:same"), MonitorStep(class_="machines:Same", key="k")],
    ids=["python", "monitor"],
)
def test_a_value_of_each_type_goes_through_python_unchanged(engine, step):
    e = engine(schema(VALUES), step, OUT)
    e.run(body(VALUES.values()), large=isinstance(step, MonitorStep))
    assert e.reasons() == []
    assert [json.loads(one) for one in e.bodies()] == [json.loads(body(VALUES.values()))]


def test_a_value_of_each_type_waits_for_its_counterpart(engine):
    values = {**VALUES, **FOR_SQL_ALONE}
    first, second = ("_message.number = 1", "_message.number = 2")
    at = "TIMESTAMP '2026-01-05 10:00:00'"
    e = engine(schema(values), CorrelateStep(key="k", event_time=at, first=first, second=second, within=1.0), OUT)
    for _ in range(2):
        e.run(body(values.values()), large=False)
    assert e.reasons() == []
    (pair,) = e.bodies()
    assert json.loads(pair) == dict.fromkeys(("first", "second"), json.loads(body(values.values())))


def test_fields_of_a_monitor_may_be_times_of_a_day_and_lengths_of_time(engine):
    e = engine(schema(["TIME", "INTERVAL DAY TO SECOND"]), MonitorStep(class_="machines:Shifts", key="k"), OUT)
    e.run(body(["22:30:00", "INTERVAL '0 08:00:00' DAY TO SECOND"]))
    assert (e.reasons(), e.bodies()) == ([], ['{"begin":"22:30:00","whole":"INTERVAL \'0 08:00:00\' DAY TO SECOND"}'])
    e.run(body(["06:30:00", "INTERVAL '1 00:00:00' DAY TO SECOND"]))
    assert json.loads(e.bodies()[1]) == {"begin": "06:30:00", "whole": "INTERVAL '1 08:00:00' DAY TO SECOND"}


PYTHON, MONITOR = PythonStep(function="machines:same"), MonitorStep(class_="machines:Same", key="k")
REFUSED = [
    ([schema(["INT", "CHAR(3)"])], "E1511", "step 1 .* column 'c1' is char"),
    ([schema(["INT", "ARRAY<VARCHAR(3)>"])], "E1511", "step 1 .* column 'c1' is array<varchar"),
    ([schema(["INT", "MAP<INT, STRING>"])], "E1511", "step 1 .* column 'c1' is map<int,string>"),
    ([schema(["INT", "GEOMETRY(4326)"])], "E1511", "step 1 .* column 'c1' is geometry"),
    ([DecodeStep(format="csv", schema="k STRING, v VOID")], "E1511", "step 1 .* column 'v' is void"),
    ([schema(["INTERVAL YEAR TO MONTH"]), PYTHON], "E1513", "step 2 .* column 'c0' is interval year to month"),
    ([schema(["ARRAY<INTERVAL>"]), MONITOR], "E1513", "step 2 .* column 'c0' is array<interval>"),
    ([schema(["DECIMAL(16,2)"]), RouteStep(to="out", headers={"p": "c0"})], "E1513", r"header 'p' is decimal\(16,2\)"),
]


@pytest.mark.parametrize(("steps", "code", "text"), REFUSED)
def test_the_start_refuses_what_a_step_cannot_take_and_names_the_column(engine, steps, code, text):
    with pytest.raises(ConfigError, match=f"{code} .*{text}"):
        engine(*steps, OUT)


def test_a_short_decimal_is_a_property_without_loss(engine):
    e = engine(schema(["DECIMAL(15,2)"]), RouteStep(to="out", headers={"p": "c0"}))
    e.run('{"k": "a", "c0": 1234567890123.45}', large=False)
    assert [message.properties for message in e.sends["out"]] == [{"p": 1234567890123.45}]
