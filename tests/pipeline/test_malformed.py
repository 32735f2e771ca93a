"""The reason of a dead letter of `decode`. Whatever a body contains, the reason is one short line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from correlator.pipeline.malformed import why_malformed
from correlator.pipeline.spec import DecodeStep

JSON = DecodeStep(format="json", schema="a INT, b STRUCT<c: DOUBLE>")
CSV = DecodeStep(format="csv", schema="item STRING, price INT")
STEPS = [
    JSON,
    CSV,
    DecodeStep(format="csv", schema="item STRING, price INT", options={"sep": "||"}),
    DecodeStep(format="csv", schema="item STRING, price INT", options={"Delimiter": "\\t", "quote": ""}),
    DecodeStep(format="csv", schema="item STRING, price INT", options={"quote": "'", "escape": "^", "sep": ";"}),
    DecodeStep(format="text"),
]
HOSTILE = [
    b"",
    b"\x00",
    b"x,1\ny,2",
    b"x,1\r\ny,2\r\n",
    b"x\ry",
    b'"',
    b'"x',
    b'x,"1\n',
    b"\\",
    b"x," + b"1" * 200_000,
    b"[" * 100_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"a": ' + b"9" * 10_000 + b"}",
    b'{"a": 1e999999999}',
    b'{"a": 1}\x00',
    b'{"a": "\\ud800"}',
    "{\u2028\x85\x0b".encode(),
    b"\xef\xbb\xbf{}",
    b"\xff",
]


def text_like():
    return st.text(alphabet=st.sampled_from("{}[]\",:;'\\|\t\n\r\x00\x85 a1eNé")).map(str.encode)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.format} {dict(step.options)}")
@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:20]))
def test_a_hostile_body_has_a_reason(step, body):
    check(step, body)


@given(step=st.sampled_from(STEPS), body=st.one_of(st.binary(), text_like(), st.text().map(str.encode)))
@example(CSV, b"x,1\ny,2")
def test_every_body_has_a_reason(step, body):
    check(step, body)


def check(step, body):
    reason = why_malformed(step, body)
    assert reason.startswith(": ")
    assert reason.isprintable()
    assert len(reason) < 300


@pytest.mark.parametrize(
    ("options", "body", "reason"),
    [
        ({}, "x,1\ny,2", r": 3 values, must be 2: 'x,1\ny,2'"),
        ({}, "x,1\r\ny", r": a value has another type than its column: 'x,1\r\ny'"),
        ({}, '"a,b",1,2', ": 3 values, must be 2: '\"a,b\",1,2'"),
        ({}, r'"a\",b",x', r""": a value has another type than its column: '"a\",b",x'"""),
        ({}, "x," + "1" * 200_000, ": the values do not fit the schema: 'x," + "1" * 57 + "…'"),
        ({"SEP": ";"}, "x;1;2", ": 3 values, must be 2: 'x;1;2'"),
        ({"delimiter": "\\t"}, "x", ": 1 values, must be 2: 'x'"),
        ({"sep": "||"}, "x", ": the values do not fit the schema: 'x'"),
        ({"quote": "'"}, "'x,y',1,2", ": 3 values, must be 2: ''x,y',1,2'"),
    ],
)
def test_the_values_of_a_record_are_counted_as_spark_divides_it(options, body, reason):
    assert why_malformed(DecodeStep(format="csv", schema=CSV.schema, options=options), body.encode()) == reason


def test_a_comma_in_a_comment_of_the_schema_makes_no_column():
    step = DecodeStep(format="csv", schema="item STRING COMMENT 'a, b', price INT")
    assert why_malformed(step, b"x") == ": 1 values, must be 2: 'x'"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a": tru}', ": line 1 column 11: JSON is malformed: invalid character: "),
        (b'{"a": 1,\n"b"}', ": line 2 column 4: JSON is malformed: expected ':': "),
        (b'{"a": "x"}', ": a value has another type than its column: "),
    ],
)
def test_the_place_of_a_mistake_in_json(body, reason):
    assert why_malformed(JSON, body).startswith(reason)
