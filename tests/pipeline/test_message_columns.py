"""Spark gets the properties of messages where a step may read them, and only there."""

import pytest

from correlator.events import Message
from correlator.pipeline.spec import DecodeStep, RouteStep, SelectStep, SqlStep, WhereStep

DECODE, OUT = DecodeStep(format="json", schema="a INT"), RouteStep(to="out")
READING = {
    "by the message": ((DECODE, SelectStep(columns={"p": "_message.properties['p']"}), OUT), '{"p":"secret"}'),
    "among all columns": ((DECODE, WhereStep(condition="to_json(struct(*)) LIKE '%secret%'"), OUT), '{"a":1}'),
    "after a comma": ((DECODE, WhereStep(condition="to_json(struct(a, *)) LIKE '%secret%'"), OUT), '{"a":1}'),
    "in a route": ((DECODE, RouteStep(to="out", where="to_json(struct( *)) LIKE '%secret%'")), '{"a":1}'),
    "before `decode`": ((WhereStep(condition="properties['p'] = 'secret'"), DECODE, OUT), '{"a":1}'),
    "without `decode`": ((SqlStep(query="SELECT properties FROM input"), OUT), '{"properties":{"p":"secret"}}'),
}  # fmt: skip
MESSAGE = Message(b'{"a": 1}', {"p": "secret"})


@pytest.mark.parametrize(("steps", "body"), READING.values(), ids=READING)
def test_a_step_that_may_read_properties_sees_them(engine, steps, body):
    e = engine(*steps)
    e.run(MESSAGE, large=False)
    assert e.bodies() == [body]


def test_other_steps_do_without_them(engine):
    e = engine(DECODE, SelectStep(columns={"b": "a * 2", "c": "array(a, 1.5 * a)"}), OUT)
    assert not e.processor._reads_properties
    e.run(MESSAGE)
    assert e.bodies() == ['{"b":2,"c":[1.0,1.5]}']
