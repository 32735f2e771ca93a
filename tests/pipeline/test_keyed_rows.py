"""Rows that a keyed step cannot use: each becomes a dead letter, and has no other effect. Other rows pass by."""

import json

import pytest

from correlator.pipeline.spec import AggregateStep, CorrelateStep, DecodeStep, MonitorStep, RouteStep, SelectStep

READINGS = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT, seconds BIGINT")
OUT = RouteStep(to="out")
COUNTS = {"key": "sensor", "event_time": "at", "window": 600.0, "values": {"n": "count(*)"}}


def counts(**changes):
    return AggregateStep(**{**COUNTS, **changes})


def pairs(**changes):
    values = {"key": "sensor", "event_time": "at", "first": "value = 1", "second": "value = 2", "within": 300.0}
    return CorrelateStep(**{**values, **changes})


def reading(at="2026-01-01T00:00:00Z", **changes):
    return json.dumps({"sensor": "a", "at": at, "value": 1, **changes})


def rows(engine):
    return [json.loads(body) for body in engine.bodies()]


KEYED = {
    "aggregate": counts,
    "correlate": pairs,
    "monitor": lambda **changes: MonitorStep(
        **{"class_": "machines:Sums", "key": "sensor", "event_time": "at", **changes}
    ),
}


@pytest.mark.parametrize("word", KEYED)
@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("at", 1767607200000, "+57983-03-30 16:00:00"),
        ("at", "-0044-03-15T00:00:00Z", "-0044-03-15 00:00:00"),
        ("seconds", 1767607200000, "+57983-03-30 16:00:00"),
        ("seconds", 253402300800, "+10000-01-01 00:00:00"),
    ],
)
def test_an_event_time_that_python_does_not_know_is_a_dead_letter(engine, word, column, value, shown):
    e = engine(READINGS, KEYED[word](event_time=column), OUT)
    good = {column: 1767225600 if column == "seconds" else "2026-01-01T00:00:00Z"}
    e.run(reading(**good), reading(**{**good, column: value}), reading(**good))
    where = f"E5104 pipeline p step 2 ({word})"
    why = f"event time {shown} is not in the years 1 to 9999. A number is seconds since 1970."
    assert e.reasons() == [f"{where}: {why}"]
    assert len(e.state.entries) == 1, "the other rows have their effects"


@pytest.mark.parametrize("at", ["9999-12-31T23:55:00Z", "0001-01-01T00:01:00Z"])
def test_a_window_that_python_does_not_know_is_the_dead_letter_of_its_row(engine, at):
    e = engine(READINGS, counts(window=1000.0, lateness=60.0), OUT)
    e.run(reading(at=at))
    assert e.state.entries == {}
    e.conclude()
    assert rows(e) == []
    (reason,) = e.reasons()
    assert reason.startswith("E5104 key a: a window of event time")
    assert reason.endswith("is not in the years 1 to 9999.")


def test_a_pair_that_would_be_given_up_after_the_year_9999_waits_for_its_partner(engine):
    e = engine(READINGS, pairs(), OUT)
    e.run(reading("9999-12-31T23:58:00Z"), reading("9999-12-31T23:59:00Z", value=2))
    assert (len(rows(e)), e.reasons(), e.state.entries) == (1, [], {})


@pytest.mark.parametrize("word", KEYED)
def test_a_key_that_is_no_text_is_a_dead_letter(engine, word):
    shown = SelectStep(columns={"sensor": "CAST(body AS STRING)", "at": "TIMESTAMP'2026-01-01 00:00:00'", "value": "1"})
    e = engine(shown, KEYED[word](), OUT)
    e.run("a", b"\xff", "a")
    assert e.reasons() == [f"E5104 pipeline p step 2 ({word}): the key is not UTF-8"]
    assert [key for _, key in e.state.entries] == [b"a"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("CAST(body AS STRING)", "'utf-8' codec can't decode byte 0xff"),
        ("timestamp_seconds(length(body) * 1767607200000)", "date value out of range"),
        ("DATE'9999-12-31' + length(body)", "date value out of range"),
    ],
)
def test_a_value_that_python_does_not_know_is_a_dead_letter(engine, value, why):
    value = f"CASE WHEN length(body) = 1 THEN {value} END"
    e = engine(counts(key="'k'", event_time="TIMESTAMP'2026-01-01 00:00:00'", values={"v": f"max({value})"}), OUT)
    e.run("good", b"\xff", "good")
    (reason,) = e.reasons()
    assert reason.startswith(f"E5102 pipeline p step 1 (aggregate): column v0: {why}")
    assert len(e.state.entries) == 1


def test_rows_that_fulfil_no_condition_pass_by_whatever_their_key_and_time(engine):
    e = engine(READINGS, pairs(key="CAST(sensor AS INT)", unmatched=True), OUT)
    others = [{"sensor": None}, {"at": None}, {"at": 1767607200000}, {"sensor": "no number"}]
    e.run(*(reading(**{"value": 3, **one}) for one in others), *(reading(**{"value": None, **one}) for one in others))
    assert (e.reasons(), e.state.entries) == ([], {})
    e.run(reading(sensor=None), reading(sensor=None, value=2))
    assert e.reasons() == ["E5104 pipeline p step 2 (correlate): key or event time is NULL"] * 2


def test_a_sum_that_overflows_closes_its_window(engine):
    values = {"n": "count(*)", "sum": "sum(seconds)", "exact": "sum(CAST(seconds / 100 AS DECIMAL(19,2)))"}
    e = engine(READINGS, counts(values=values), OUT)
    most = 2**63 - 1
    e.run(*(reading(seconds=seconds) for seconds in (most, 7, -7, 0)))
    assert e.reasons() == [f"E5107 key a: the sum 'sum' would be {most + 7}, which is no BIGINT."]
    e.run(reading("2026-01-01T00:20:00Z", seconds=1))
    assert [(row["n"], row["sum"], row["exact"]) for row in rows(e)] == [(3, most - 7, 92233720368547758.01)]
    assert len(e.dead) == 1
