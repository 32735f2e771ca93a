"""Each step on its own."""

import json
from dataclasses import replace

import pytest

from correlator.errors import HandlerFailed
from correlator.events import Headers, Message
from correlator.pipeline import compiled, small
from correlator.pipeline.correlation import Pairs
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    ExplodeStep,
    LookupStep,
    MonitorStep,
    PythonStep,
    RouteStep,
    SelectStep,
    SqlStep,
    WhereStep,
)
from correlator.pipeline.stages import Stage, step_with
from tests.pipeline.conftest import as_large
from tests.pipeline.test_malformed import HOSTILE

READINGS = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT")
OUT = RouteStep(to="out")


def reading(sensor: str, minute: int, value: int = 1) -> str:
    return json.dumps({"sensor": sensor, "at": f"2026-01-01T00:{minute:02}:00Z", "value": value})


def rows(engine, sender="out"):
    return [json.loads(body) for body in engine.bodies(sender)]


def test_json(engine):
    e = engine(DecodeStep(format="json", schema="a INT, b STRUCT<c: DOUBLE>"), OUT)
    e.run('{"a": 1, "b": {"c": 2.5}, "more": 0}', '{"a": ', '{"a": "x"}', "", b"\xff{}", "{}", "null", "[]")
    assert e.bodies() == ['{"a":1,"b":{"c":2.5}}', '{"a":null,"b":null}']
    assert [reason.partition("schema")[2] for reason in e.reasons()] == [
        ": Input data was truncated: '{\"a\": '",
        ': a value has another type than its column: \'{"a": "x"}\'',
        ": Input data was truncated: ''",
        ": byte 0 is not UTF-8",
        ": a value has another type than its column: 'null'",
        ": a value has another type than its column: '[]'",
    ]


SPACE = " \t\r\n"
FORGED = [
    '{"a": 1} {"a": 2}',
    '{"a": 1}\n{"a": 2}\n',
    '{"a": 1}garbage',
    '{"a": 1},{"a": 2}',
    '{"a": 1},',
    '{"a": 1}]',
    '{"a": 1}}',
    '{"a": 1}] garbage',
    '{"a": 1},{}] garbage',
    '{"a": 1},{},{}] garbage',
    '{"a": 1}\x00',
    '{"a": 1} // no comment',
    '{"a": 1, "b": {"c": 2}} {}',
    '{"a": 1, "b": {"c": 2}},{}]}',
]


def test_what_follows_the_object_makes_a_dead_letter(engine):
    e = engine(DecodeStep(format="json", schema="a INT"), OUT)
    e.run(*FORGED)
    assert e.bodies() == []
    assert len(e.reasons()) == len(FORGED)
    assert all("trailing characters" in reason for reason in e.reasons())


def test_white_space_around_the_object_is_no_content(engine):
    e = engine(DecodeStep(format="json", schema="a INT, b STRUCT<c: STRING>"), OUT)
    objects = ['{"a":1}', '{"a":1,"b":{"c":"}{]["}}', '{"a":1,"more":[{},[]]}']
    e.run(*objects, *(f"{SPACE}{one}{SPACE}" for one in objects))
    assert (len(e.bodies()), e.reasons()) == (6, [])


def test_a_comment_behind_the_object_is_no_content_if_the_step_allows_comments(engine):
    e = engine(DecodeStep(format="json", schema="a INT", options={"allowComments": "true"}), OUT)
    e.run('{"a": 1} // }', '{"a": 2} /* } */', '{"a": 3} // \n {"a": 4}', '{"a": 5} /* open')
    assert e.bodies() == ['{"a":1}', '{"a":2}']
    assert len(e.reasons()) == 2


def test_csv_options_and_quotes(engine):
    e = engine(DecodeStep(format="csv", schema="a STRING, b DECIMAL(9,2)", options={"delimiter": ";"}), OUT)
    e.run('"x;y";1.10', "a;b", "a;1;2")
    assert e.bodies() == ['{"a":"x;y","b":1.10}']
    assert len(e.dead) == 2


@pytest.mark.parametrize(
    "step",
    [
        DecodeStep(format="json", schema="a INT, b STRING, c DECIMAL(9,2)"),
        DecodeStep(format="csv", schema="a STRING, b INT"),
        DecodeStep(format="csv", schema="a STRING, b STRING", options={"sep": ";"}),
        DecodeStep(format="text"),
    ],
    ids=lambda step: f"{step.format} {dict(step.options)}",
)
def test_a_hostile_body_is_a_row_or_a_dead_letter(engine, step):
    e = engine(step, OUT)
    effects = e.run(*HOSTILE)
    assert len(effects.sends) + len(effects.dead_letters) == len(HOSTILE)
    assert all(one.startswith("E5101 pipeline p step 1 (decode): ") for one in e.reasons())


def test_a_csv_record_of_several_lines_that_does_not_fit_is_a_dead_letter(engine):
    e = engine(DecodeStep(format="csv", schema="a STRING, b INT"), OUT)
    e.run("x,1", "x,1\ny,2", "z,3")
    assert e.bodies() == ['{"a":"x","b":1}', '{"a":"z","b":3}']
    assert e.reasons() == [r"E5101 pipeline p step 1 (decode): not csv of the schema: 3 values, must be 2: 'x,1\ny,2'"]


def test_text(engine):
    e = engine(DecodeStep(format="text"), WhereStep(condition="text like '%late%'"), OUT)
    e.run("very late", "on time", b"\xc3(")
    assert e.bodies() == ['{"text":"very late"}']
    assert "byte 0 is not UTF-8" in e.reasons()[0]


def test_a_message_that_nothing_decodes_goes_on_as_it_came(engine):
    e = engine(WhereStep(condition="properties['kind'] = 'a' AND _message.receiver = 'in'"), OUT)
    message = Message(b"\x00\xff", {"kind": "a", "n": 5}, "k", None, Headers(correlation_id="c", delivery_count=3))
    e.run(message, Message(b"", {"kind": "b"}))
    assert e.sends["out"] == [Message(b"\x00\xff", {"kind": "a", "n": 5}, "k", None, Headers(correlation_id="c"))]


RAW = Message(b"b", {"kind": "a", "n": 5, "raw": b"x", "none": None}, "k", None, Headers(correlation_id="c"))


def test_a_python_step_on_undecoded_rows_sees_all_and_what_it_writes_is_sent(engine):
    e = engine(PythonStep(function="machines:rewrite"), OUT, RouteStep(to="keyed", key="'K'", headers={"n": "7"}))
    e.run(RAW, Message(b"", {"kind": "z"}))
    seen = {"kind": "a", "n": 5, "raw": b"x", "none": None, "seen": "yes"}
    assert e.sends["out"] == [
        Message(b"a:b", seen, "k", None, Headers(correlation_id="c")),
        Message(b"", {"kind": "z", "seen": "yes"}),
    ]
    assert e.sends["keyed"][0] == Message(b"a:b", {**seen, "n": 7}, "K", None, Headers(correlation_id="c"))


def test_a_select_that_rewrites_a_message_sends_what_it_wrote(engine):
    columns = {
        "body": "CAST(upper(CAST(body AS STRING)) AS BINARY)",
        "key": "'new'",
        "properties": "map('n', '5', 'm', '6')",
    }
    e = engine(SelectStep(columns=columns), WhereStep(condition="true"), OUT)
    e.run(RAW)
    assert e.sends["out"] == [Message(b"B", {"n": 5, "m": "6", "none": None}, "new", None, Headers(correlation_id="c"))]


@pytest.mark.parametrize(
    "first", [[], [SelectStep(columns={"body": "body", "key": "key", "properties": "properties"})]]
)
def test_a_message_has_only_the_headers_that_its_route_names_even_if_their_values_are_null(engine, first):
    headers = {"priority": "CASE WHEN key = 'k' THEN 7 END"}
    e = engine(*first, RouteStep(to="out", headers=headers))
    e.run(RAW, Message(b"", {}, "other", None, Headers(correlation_id="d", type="t", priority=3)))
    assert [message.headers for message in e.sends["out"]] == [Headers(priority=7), None]


def test_a_row_that_a_decode_made_is_no_message_whatever_its_columns_are(engine):
    decode = DecodeStep(format="json", schema="body BINARY, key STRING, properties MAP<STRING, STRING>")
    e = engine(decode, OUT)
    e.run(Message(b'{"body": "YQ==", "key": "k", "properties": {"a": "b"}}', {"kind": "x"}))
    assert e.sends["out"] == [Message(b'{"body":"YQ==","key":"k","properties":{"a":"b"}}')]
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    e.run(Message(b'{"key": "k"}', trace), Message(b'{"key": "l"}', {"traceparent": "malformed"}))
    assert [one.properties for one in e.sends["out"]] == [{}, trace, {}]  # what is sent has the context of its cause


def test_a_body_that_is_null_is_empty(engine):
    e = engine(RouteStep(to="out", body="CAST(NULL AS STRING)"))
    e.run(RAW)
    assert e.sends["out"] == [Message(b"")]


def test_a_monitor_on_undecoded_rows_sees_properties(engine):
    e = engine(MonitorStep(class_="machines:Kinds", key="key"), OUT)
    e.run(RAW)
    assert e.reasons() == []
    assert rows(e) == [{"sensor": "a", "total": 1, "why": "b"}]


def test_properties_reach_any_step_that_names_them_in_any_way(engine):
    e = engine(
        SelectStep(columns={"m": "_message"}),
        SqlStep(query="SELECT m.* FROM input"),
        RouteStep(to="out", body="properties['kind']"),
    )
    e.run(RAW)
    assert e.bodies() == ["a"]


def test_route_with_everything(engine):
    route = RouteStep(
        to="out",
        where="value > 1",
        body="concat(sensor, '!')",
        destination="concat('queue:', sensor)",
        key="sensor",
        headers={"n": "value", "none": "NULL", "ok": "value > 2", "correlation_id": "_message.key", "priority": "7"},
    )
    e = engine(READINGS, route, SelectStep(columns={"v": "value"}), RouteStep(to="rest"))
    e.run(Message(reading("a", 1, 1).encode()), Message(reading("b", 2, 2).encode(), key="K"))
    assert e.sends["out"] == [
        Message(b"b!", {"n": 2, "ok": False}, "b", "queue:b", Headers(correlation_id="K", priority=7))
    ]
    assert e.bodies("rest") == ['{"v":1}', '{"v":2}']


def test_a_message_whose_route_makes_what_no_message_can_carry_is_dead_alone(engine):
    headers = {"time_to_live_ms": "value", "type": "CAST(NULL AS STRING)", "of": "CAST(sensor AS VARCHAR(3))"}
    e = engine(READINGS, RouteStep(to="all"), RouteStep(to="out", headers=headers))
    e.run(reading("a", 0, 1), reading("b", 0, -1), reading("c", 0, 3))
    assert [(sent.properties, sent.headers) for sent in e.sends["out"]] == [
        ({"of": "a"}, Headers(time_to_live_ms=1)),
        ({"of": "c"}, Headers(time_to_live_ms=3)),
    ]
    assert len(e.bodies("all")) == 2
    (reason,) = e.reasons()
    assert reason.startswith("E5103 pipeline p step 3 (route): E5202 send: ")


@pytest.mark.parametrize("setting", ["key", "destination"])
def test_a_text_that_is_not_utf8_makes_its_message_dead_alone(engine, setting):
    e = engine(RouteStep(to="out", **{setting: "CAST(body AS STRING)"}))
    e.run("a", b"\xff", "c")
    assert [getattr(sent, setting) for sent in e.sends["out"]] == ["a", "c"]
    (reason,) = e.reasons()
    assert reason.startswith("E5103 pipeline p: 'utf-8' codec can't decode byte 0xff")


def test_select_and_sql(engine):
    e = engine(
        READINGS,
        RouteStep(to="all"),
        SqlStep(query="SELECT *, value * 2 AS twice FROM input WHERE value > 1"),
        SelectStep(columns={"odd name": "sensor", "n": "twice + 1"}),
        SqlStep(query="SELECT n, `odd name` AS who FROM input"),
        OUT,
    )
    e.run(reading("a", 0, 1), reading("b", 0, 2), "bad")
    assert e.bodies() == ['{"n":5,"who":"b"}']
    assert len(e.bodies("all")) == 2
    assert len(e.dead) == 1


def test_sql_may_use_the_message(engine):
    e = engine(
        READINGS,
        SqlStep(
            query="SELECT *, _message.key AS k, input._message.properties['p'] AS p FROM input WHERE _message.number > 1"
        ),
        SqlStep(query="SELECT value, k, p, concat(k, _message.number) AS id, _message FROM input"),
        RouteStep(to="out", headers={"n": "_message.number"}),
        SqlStep(query="SELECT value FROM input"),
        RouteStep(to="rest", key="_message.key"),
    )
    e.run(*(Message(reading("a", 0, value).encode(), {"p": "q"}, f"k{value}") for value in (1, 2)), "bad")
    assert e.sends["out"] == [Message(b'{"value":2,"k":"k2","p":"q","id":"k22"}', {"n": 2})]
    assert e.sends["rest"] == [Message(b'{"value":2}', {}, "k2")]
    assert len(e.dead) == 1


MICROSECONDS = "2026-01-05T10:00:00.123456"


def test_times_keep_their_microseconds(engine):
    decode = DecodeStep(format="json", schema="id INT, n TIMESTAMP_NTZ, z TIMESTAMP, l ARRAY<TIMESTAMP_NTZ>")
    pairs = CorrelateStep(key="'k'", event_time="z", first="id = 1", second="id = 2", within=60.0)
    python = PythonStep(function="machines:same")
    e = engine(decode, python, RouteStep(to="out", headers={"n": "n", "z": "z"}), pairs, RouteStep(to="pairs"))
    body = '{{"id":{},"n":"{}","z":"{}Z","l":["{}"]}}'
    given = [body.format(number, MICROSECONDS, MICROSECONDS, MICROSECONDS) for number in (1, 2)]
    e.run(given[0])
    e.run(given[1])
    assert e.bodies() == given
    assert [message.properties for message in e.sends["out"]] == [{"n": MICROSECONDS, "z": f"{MICROSECONDS}Z"}] * 2
    assert e.bodies("pairs") == [f'{{"first":{given[0]},"second":{given[1]}}}']


def test_a_pair_finds_the_row_that_an_earlier_version_has_stored(engine):
    decode = DecodeStep(format="json", schema="id INT, n TIMESTAMP_NTZ")
    pairs = CorrelateStep(key="'k'", event_time="n", first="id = 1", second="id = 2", within=60.0)
    e = engine(decode, pairs, OUT)
    e.run(f'{{"id":1,"n":"{MICROSECONDS}"}}')
    ((place, stored),) = e.state.entries.items()
    assert stored.count(b".123456") == 1
    e.state.entries[place] = stored.replace(b'.123456"}', b'.123"   }')
    e.run(f'{{"id":2,"n":"{MICROSECONDS}"}}')
    assert rows(e)[0]["first"] == {"id": 1, "n": "2026-01-05T10:00:00.123000"}


def test_explode_keeps_order_and_sends_nothing_twice(engine):
    decode = DecodeStep(format="json", schema="id INT, items ARRAY<ARRAY<INT>>")
    inner = ExplodeStep(array="items", name="items")
    e = engine(decode, RouteStep(to="all"), inner, ExplodeStep(array="items", name="item"), OUT)
    e.run('{"id":1,"items":[[1,2],[],[3]]}', '{"id":2,"items":[]}', '{"id":3}', '{"id":4,"items":[[4]]}')
    assert [row["item"] for row in rows(e)] == [1, 2, 3, 4]
    assert len(e.bodies("all")) == 4


def test_lookup(engine, tmp_path):
    names = tmp_path / "names.csv"
    names.write_text("sensor,room\na,kitchen\nb,cellar\n")
    e = engine(READINGS, LookupStep(file=str(names), on=("sensor",), refresh=0.5), OUT)
    e.run(reading("a", 0), reading("c", 0))
    assert [row["room"] for row in rows(e)] == ["kitchen", None]
    names.write_text("sensor,room\nc,attic\n")
    e.processor.process([], e.state, 7.6)
    e.run(reading("c", 0))
    assert rows(e)[-1]["room"] is None, "not yet old"
    e.processor._opened.lookups[0]._read_at = 7.0
    e.run(reading("c", 0))
    assert rows(e)[-1]["room"] == "attic"


def test_python(engine):
    step = PythonStep(function="machines:double", schema="sensor STRING, doubled BIGINT")
    e = engine(READINGS, RouteStep(to="all"), step, OUT)
    e.run(*(reading("s", 0, value) for value in (1, 13, 3)), "bad")
    assert e.bodies() == ['{"sensor":"s","doubled":2}', '{"sensor":"s","doubled":6}']
    assert len(e.bodies("all")) == 3
    assert e.reasons()[0] == "E5106 pipeline p step 3 (python): ValueError: thirteen"


def test_python_may_follow_steps_that_drop_and_send_rows(engine):
    e = engine(
        READINGS, WhereStep(condition="value > 1"), RouteStep(to="all"), PythonStep(function="machines:same"), OUT
    )
    e.run(*(reading("s", 0, value) for value in (1, 2)))
    assert (e.reasons(), len(e.bodies("all"))) == ([], 1)
    assert e.bodies() == e.bodies("all")


def test_python_must_give_a_row_for_each(engine):
    e = engine(READINGS, PythonStep(function="machines:halve"), OUT)
    e.run(reading("s", 0))
    assert e.reasons() == ["E5106 pipeline p step 2 (python): ValueError: gave 0 rows for 1"]


def test_the_function_of_a_python_step_runs_once_for_a_row_though_the_next_step_reads_the_rows_twice(engine, tmp_path):
    told = tmp_path / "told"
    e = engine(READINGS, PythonStep(function="machines:tell"), SqlStep(query="SELECT value FROM input"), OUT)
    e.run(reading(str(told), 0, 1), large=False)
    assert (e.bodies(), told.read_text()) == (['{"value":1}'], "seen\n")


def test_without_keyed_steps_cores_share_a_batch_of_any_size_by_one_plan(engine, monkeypatch):
    monkeypatch.setattr(small, "MOST_ROWS", 2)
    e = engine(READINGS, PythonStep(function="machines:same"), OUT)
    for values in ((1, 2, 3, 4, 5), (6, 7), (8, 9, 10), (11, 12)):
        e.run(*(reading("a", 0, value) for value in values), large=values[0] == 1)
    assert [row["value"] for row in rows(e)] == list(range(1, 13))
    assert sorted(section.parts for section in e.processor._opened.small._sections.values()) == [1, 2]


def test_cores_share_the_rows_of_a_batch_whose_keyed_steps_run_in_this_thread(engine, monkeypatch):
    monkeypatch.setattr(small, "MOST_ROWS", 2)
    e = engine(READINGS, SUMS, OUT)
    e.run(*(reading("a", 0, value) for value in (1, 2, 3, 4, 5)), large=False)
    assert [row["total"] for row in rows(e)] == [1, 3, 6, 10, 15]
    assert [section.parts for section in e.processor._opened.small._sections.values()] == [2, 2]


def test_only_a_batch_of_few_rows_is_a_small_one(engine, monkeypatch):
    monkeypatch.setattr(small, "MOST_KEYED_ROWS", 2)
    e = engine(READINGS, SUMS, OUT)
    planned = e.processor._opened.small._sections
    e.run(*(reading("a", 0, value) for value in (1, 2, 3)))
    assert not planned
    e.run(reading("a", 0, 4))
    assert len(planned) == 2, "the rows before the monitor and those behind it"
    plans = list(planned.values())
    e.run(reading("b", 0, 1))
    assert list(planned.values()) == plans, "nothing is planned twice"
    assert [row["total"] for row in rows(e)] == [1, 3, 6, 10, 1]


SUMS = MonitorStep(class_="machines:Sums", key="sensor", event_time="at")


def test_monitor_keeps_state_per_key(engine):
    e = engine(READINGS, SUMS, OUT)
    e.run(reading("a", 0, 1), reading("b", 0, 10), reading("a", 0, 2))
    e.run(reading("a", 0, 3))
    assert [row["total"] for row in rows(e)] == [1, 10, 3, 6]
    assert {key for _, key in e.state.entries} == {b"a", b"b"}
    e.run(reading("a", 0, 0))
    assert {key for _, key in e.state.entries} == {b"b"}


@pytest.mark.parametrize("together", [True, False])
def test_a_row_that_fails_is_a_dead_letter_and_leaves_no_trace(engine, together):
    e = engine(READINGS, SUMS, OUT)
    values = [1, 13, 2, 14, 3, 15, 4]
    if together:
        e.run(*(reading("a", 0, value) for value in values))
    else:
        for value in values:
            e.run(reading("a", 0, value))
    assert [row["total"] for row in rows(e)] == [1, 3, 6, 10]
    first, second, third = e.reasons()
    assert first == "E5500 Sums: ValueError: thirteen"
    assert second.startswith("E4102")
    assert third.startswith("E5500 Sums: OverflowError")


def test_z8_letters_tell_which_received_message_they_are_about(engine):
    e = engine(READINGS, SUMS, OUT)
    e.run(*(reading("a", 0, value) for value in (1, 13, 2)), "no json", receiver="in")
    assert [(one.receiver, one.number) for one in e.dead] == [("in", 2), ("in", 4)]
    e = engine(READINGS, WhereStep(condition="sensor = 'a' and 10 / (value - 5) > 0"), OUT)
    e.run(reading("a", 0, 1), reading("a", 0, 5), receiver="other")
    assert [(one.receiver, one.number) for one in e.dead] == [("other", 2)]


def test_rows_without_key_or_time_or_of_another_shape_are_dead_letters(engine):
    e = engine(READINGS, SUMS, OUT)
    e.run('{"at": "2026-01-01T00:00:00Z", "value": 1}', '{"sensor": "a", "value": 1}', reading("a", 0, 5))
    assert e.reasons() == ["E5104 pipeline p step 2 (monitor): key or event time is NULL"] * 2
    e = engine(READINGS, MonitorStep(class_="machines:Sums", key="sensor"), OUT)
    e.run('{"sensor": "a", "value": 1}')
    assert e.reasons()[0].startswith("E5102 pipeline p step 2 (monitor): does not fit Reading: Expected `datetime`")


@pytest.mark.parametrize("event_time", ["at", None])
def test_outputs_of_a_monitor_may_be_rows_as_they_came(engine, event_time):
    decode = DecodeStep(
        format="json", schema="sensor STRING, at TIMESTAMP, value INT, tags MAP<STRING, INT>, x DECIMAL(5,2)"
    )
    e = engine(decode, MonitorStep(class_="machines:Changes", key="sensor", event_time=event_time), OUT)
    more = {"tags": {"a": 1}, "x": 1.5}
    e.run(*(json.dumps({**json.loads(reading("a", 0, value)), **more}) for value in (1, 1, 2, -1, -2, -3, -4)))
    shown = {"sensor": "a", "at": "2026-01-01T00:00:00.000000Z", "tags": {"a": 1}, "x": 1.5}
    assert rows(e) == [
        {**shown, "value": 1},
        {**shown, "value": 2},
        {**shown, "value": -1, "sensor": "sensor,at,value,tags,x"},
        {"sensor": "a", "at": None, "value": None, "tags": None, "x": None},
    ]
    known = "Columns: sensor, at, value, tags, x"
    assert e.reasons()[0] == f"E5500 Changes: ValueError: output has 'sensr', which is not a column. {known}"
    assert e.reasons()[1].startswith("E5500 Changes: ArrowInvalid: ")


def test_timers_fire_in_event_time_of_the_key(engine):
    e = engine(READINGS, MonitorStep(class_="machines:Silence", key="sensor", event_time="at"), OUT)
    e.run(reading("a", 0, 1), reading("b", 50, 1), reading("a", 9, 1))
    assert rows(e) == []
    e.run(reading("a", 15, 1))
    assert [(row["sensor"], row["total"]) for row in rows(e)] == [("a", 2)], "10, before the row at 15 counts"
    e.conclude()
    assert [(row["sensor"], row["total"]) for row in rows(e)] == [("a", 2), ("a", 3), ("a", 3), ("b", 1)]
    assert e.conclude().sends == []


def test_much_state_travels_only_for_the_keys_of_the_batch(engine, monkeypatch):
    monkeypatch.setattr(compiled, "FEW_KEYS", 1)
    e = engine(READINGS, SUMS, OUT)
    for value in (1, 2, 3):
        e.run(reading("a", 0, value), reading("b", 0, value), reading("c", 0, value))
    assert [row["total"] for row in rows(e)] == [1, 1, 1, 3, 3, 3, 6, 6, 6]
    assert e.state.listed == 2, "once seen to be much it is not listed again"


WINDOWS = AggregateStep(
    key="sensor",
    event_time="at",
    window=600.0,
    lateness=60.0,
    values={
        "n": "count(*)",
        "total": "sum(value)",
        "mean": "avg(value)",
        "first": "min(at)",
        "last": "last(value)",
        "big": "count(CASE WHEN value > 5 THEN 1 END)",
    },
)


@pytest.mark.parametrize("size", [8, 2])
def test_aggregate(engine, size):
    """Batches of two: the first window is filled by three of them, and what is late comes after the one that ends it."""
    e = engine(READINGS, WINDOWS, OUT)
    given = [("a", 1, 4), ("b", 2, 1), ("a", 8, 8), ("a", 10, 1), ("a", 5, 3), ("a", 11, 2), ("a", 9, 9), ("b", 40, 1)]
    for at in range(0, len(given), size):
        e.run(*(reading(*one) for one in given[at : at + size]))
    assert rows(e)[0] == {
        "sensor": "a",
        "window_start": "2026-01-01T00:00:00.000000Z",
        "window_end": "2026-01-01T00:10:00.000000Z",
        "n": 3,
        "total": 15,
        "mean": 5.0,
        "first": "2026-01-01T00:01:00.000000Z",
        "last": 3,
        "big": 1,
    }
    assert [(row["sensor"], row["n"]) for row in rows(e)] == [("a", 3), ("b", 1)]
    assert e.reasons()[0].startswith("E5105 key a: late")
    e.conclude()
    assert [(row["sensor"], row["n"]) for row in rows(e)] == [("a", 3), ("b", 1), ("a", 2), ("b", 1)]


def test_overlapping_windows(engine):
    step = AggregateStep(key="upper(sensor)", event_time="at", window=600.0, every=300.0, values={"n": "count(*)"})
    e = engine(READINGS, step, OUT)
    e.run(reading("a", 1), reading("a", 6))
    e.conclude()
    assert [(row["key"], row["window_start"][11:16], row["n"]) for row in rows(e)] == [
        ("A", "23:55", 1),
        ("A", "00:00", 2),
        ("A", "00:05", 1),
    ]


@pytest.mark.parametrize("unmatched", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_correlate(engine, together, unmatched):
    step = CorrelateStep(
        key="sensor", event_time="at", first="value = 1", second="value = 2", within=300.0, unmatched=unmatched
    )
    e = engine(READINGS, step, SelectStep(columns={"one": "first.at", "two": "second.at"}), OUT)
    given = [("a", 0, 1), ("a", 5, 2), ("b", 7, 2), ("b", 6, 1), ("c", 0, 1), ("c", 9, 2), ("d", 0, 3), ("a", 6, 2)]
    if together:
        e.run(*(reading(*one) for one in given))
    else:
        for one in given:
            e.run(reading(*one))
    e.conclude()
    minutes = [tuple(row[side] and row[side][14:16] for side in ("one", "two")) for row in rows(e)]
    lonely = [("00", None), (None, "06"), (None, "09")]
    assert minutes[:2] == [("00", "05"), ("06", "07")]
    assert minutes[2:] == (lonely if unmatched else [])
    assert e.state.entries == {}


def test_monitors_one_after_another(engine):
    e = engine(
        READINGS,
        RouteStep(to="all"),
        MonitorStep(class_="machines:Silence", key="sensor", event_time="at"),
        RouteStep(to="middle"),
        SelectStep(columns={"sensor": "'all'", "at": "TIMESTAMP'2026-01-01 00:00:00'", "value": "CAST(total AS INT)"}),
        MonitorStep(class_="machines:Sums", key="sensor", event_time="at"),
        OUT,
        SqlStep(query="SELECT total FROM input"),
        RouteStep(to="end"),
    )
    e.run(reading("a", 0, 1), "bad", reading("a", 20, 2), reading("b", 0, 4))
    assert (len(e.bodies("all")), len(e.bodies("middle"))) == (3, 1)
    e.conclude()
    assert [row["total"] for row in rows(e)] == [1, 4, 8]
    assert e.bodies("end") == ['{"total":1}', '{"total":4}', '{"total":8}']
    assert len(e.dead) == 1


def test_a_value_that_spark_refuses_takes_no_other_message_with_it(engine):
    e = engine(READINGS, RouteStep(to="all"), SUMS, SelectStep(columns={"q": "100 div (total - 6)"}), OUT)
    e.run(*(reading("a", 0, value) for value in (1, 2, 3, 4)), reading("b", 0, 6))
    assert (
        e.reasons()
        == [
            'E5103 pipeline p step 4 (select): [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error'
        ]
        * 2
    )
    assert rows(e) == [{"q": -20}, {"q": -33}, {"q": 100}], "3 came to nothing, so 4 makes 7"
    assert len(e.bodies("all")) == 3


def test_a_value_that_spark_refuses_at_the_end_of_all_input_takes_no_other_key_with_it(engine):
    silence = MonitorStep(class_="machines:Silence", key="sensor", event_time="at")
    e = engine(READINGS, silence, SelectStep(columns={"q": "100 div (total - 6)"}), OUT)
    e.run(reading("a", 0, 6), reading("b", 0, 8), reading("c", 0, 5))
    for end in (1, 2):
        e.conclude()
        assert rows(e) == [{"q": 50}, {"q": -100}]
        assert [one.message.key for one in e.dead] == ["a"] * end, "its timer is still due"
    assert e.reasons()[0].startswith("E5103 pipeline p step 3 (select): [DIVIDE_BY_ZERO]")


def test_state_of_another_class_stops_with_one_line(engine):
    e = engine(READINGS, SUMS, OUT)
    e.state.entries["step:p/monitor:Sums#0", b"a"] = Pairs("a").encode()
    failure = r"E5510 pipeline p step 2 \(monitor\): the step failed: E4203 monitor Sums: stored state"
    with pytest.raises(HandlerFailed, match=failure) as small:
        e.run(reading("a", 0))
    failure = "E5510 pipeline p: Spark failed: .*E4203 monitor Sums: stored state"
    with as_large(e.processor), pytest.raises(HandlerFailed, match=failure) as caught:
        e.run(reading("a", 0))
    assert "\n" not in f"{small.value}{caught.value}"


def test_expressions_with_braces_and_quotes(engine):
    e = engine(READINGS, SelectStep(columns={"t": "concat('{', sensor, '\\'}')"}), OUT)
    e.run(reading("a", 0))
    assert rows(e) == [{"t": "{a'}"}]


def test_nothing_in_nothing_out(engine):
    e = engine(READINGS, OUT)
    assert e.run() == ((), (), ())
    assert e.conclude() == ((), (), ())


def test_a_dead_letter_names_the_step_that_refuses_a_value(engine):
    """The step whose number is the value of the message divides by zero."""
    keep = {"sensor": "sensor", "at": "at", "value": "value"}
    e = engine(
        READINGS,
        WhereStep(condition="'𝄞' <> concat('', 1 div (value - 2))"),
        WhereStep(condition="'𝄞' <> concat('', 1 div (value - 3))"),
        SelectStep(columns={**keep, "𝄞": "1 div (value - 4)"}),
        SqlStep(query="SELECT *, 1 div (value - 5) AS a FROM input"),
        ExplodeStep(array="array(1 div (value - 6))", name="b"),
        RouteStep(to="rest", where="1 div (value - 7) <> 9"),
        MonitorStep(class_="machines:Sums", key="concat('', 1 div (value - 8))", event_time="at"),
        WhereStep(condition="1 div (total - 9) <> 9"),
        AggregateStep(
            key="sensor",
            event_time="TIMESTAMP'2026-01-01 00:00:00'",
            window=60,
            values={"a": "sum(1 div (total - 10))"},
        ),
        OUT,
    )
    words = ("where", "where", "select", "sql", "explode", "route", "monitor", "where", "aggregate")
    for number, word in enumerate(words, start=2):
        e.run(reading("a", 0, number), large=word == "monitor")
        assert len(e.dead) == number - 1
        place, _, what = e.reasons()[-1].partition(": ")
        assert (place, what[:16]) == (f"E5103 pipeline p step {number} ({word})", "[DIVIDE_BY_ZERO]")


def test_of_two_stages_with_the_same_text_no_step_is_named():
    stage = Stage(view="v", schema=None, text="a/b", reads_twice=False, work=None, steps=(), pieces=[(0, 3, "step 1")])
    assert step_with([stage], 0, 2, "a/b") == "step 1"
    assert step_with([stage, replace(stage, pieces=[(0, 3, "step 2")])], 0, 2, "a/b") == ""
    assert step_with([stage], 0, 2, "a/c") == step_with([stage], 5, 9, "") == ""
