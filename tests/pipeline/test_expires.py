"""Keys without further rows follow the event time of their step at a distance, and leave the store."""

import json
import random

import pytest

from correlator.core.steps import clock_of_step
from correlator.errors import ConfigError
from correlator.pipeline.spec import AggregateStep, CorrelateStep, DecodeStep, MonitorStep, RouteStep

READINGS = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT")
OUT = RouteStep(to="out")


def counts(**changes):
    values = {"key": "sensor", "event_time": "at", "window": 600.0, "expires": 300.0, "values": {"n": "count(*)"}}
    return AggregateStep(**{**values, **changes})


def pairs(**changes):
    values = {"key": "sensor", "event_time": "at", "first": "value = 1", "second": "value = 2", "within": 600.0}
    return CorrelateStep(**{**values, "unmatched": True, "expires": 300.0, **changes})


def silence(**changes):
    return MonitorStep(
        **{"class_": "machines:Silence", "key": "sensor", "event_time": "at", "expires": 300.0, **changes}
    )


def reading(sensor: str, minute: float, value: int = 1) -> str:
    at = f"2026-01-01T{int(minute) // 60:02}:{int(minute) % 60:02}:{round(minute % 1 * 60):02}Z"
    return json.dumps({"sensor": sensor, "at": at, "value": value})


def rows(engine):
    return [json.loads(body) for body in engine.bodies()]


def keys(engine):
    """The keys that have state."""
    return sorted(key.decode() for owner, key in engine.state.entries if owner.startswith("step:"))


def counted(engine):
    return [(row["sensor"], row["window_start"][14:16], row["n"]) for row in rows(engine)]


@pytest.mark.parametrize("together", [True, False])
def test_windows_of_a_key_without_rows_close_and_the_key_leaves_the_store(engine, together):
    e = engine(READINGS, counts(), OUT)
    given = [("a", 1), ("b", 8), ("b", 14.5), ("c", 15), ("a", 16), ("a", 8), ("c", 40)]
    for batch in [given] if together else [[one] for one in given]:
        e.run(*(reading(*one) for one in batch))
    assert counted(e) == [("b", "00", 1), ("a", "00", 1), ("c", "10", 1), ("a", "10", 1), ("b", "10", 1)]
    assert e.reasons() == ["E5105 key a: late: its windows are closed, event time is 2026-01-01 00:16:00+00:00."]
    assert keys(e) == ["c"]


def test_a_window_is_given_once_though_its_key_has_left_the_store(engine):
    e = engine(READINGS, counts(), OUT)
    e.run(reading("a", 1), reading("b", 20))
    assert (counted(e), keys(e)) == ([("a", "00", 1)], ["b"])
    e.run(reading("a", 5), reading("new", 9), reading("new", 12))
    assert [reason[:11] for reason in e.reasons()] == ["E5105 key a", "E5105 key n"]
    assert keys(e) == ["b", "new"]
    e.run(reading("c", 60))
    assert counted(e)[1:] == [("b", "20", 1), ("new", "10", 1)], "in the order of the keys"


def test_rows_that_stay_alone_are_given_up_and_their_keys_leave_the_store(engine):
    e = engine(READINGS, pairs(), OUT)
    e.run(reading("a", 0, 1), reading("b", 0, 2), reading("c", 14, 1), reading("d", 15, 1))
    assert (rows(e), keys(e)) == ([], ["a", "b", "c", "d"]), "not later than ten and five minutes"
    e.run(reading("e", 15.5, 2), reading("a", 1, 2))
    assert [
        (row["first"] and row["first"]["sensor"], row["second"] and row["second"]["sensor"]) for row in rows(e)
    ] == [
        ("a", None),
        (None, "b"),
    ]
    assert keys(e) == ["a", "c", "d", "e"], "the second row of a is new"
    e.run(reading("d", 24, 2))
    assert len(rows(e)) == 4
    assert keys(e) == ["c", "e"]


def test_timers_of_a_monitor_fire_and_its_state_is_deleted(engine):
    e = engine(READINGS, silence(), OUT)
    e.run(reading("a", 0, 1), reading("b", 14, 5))
    assert (rows(e), keys(e)) == ([], ["a", "b"])
    e.run(reading("b", 15, 5))
    assert [(row["sensor"], row["total"]) for row in rows(e)] == [("a", 1)]
    assert keys(e) == ["b"]
    e.run(reading("a", 30, 2))
    assert [(row["sensor"], row["total"]) for row in rows(e)][1:] == [("b", 10), ("b", 10)]
    e.run(reading("a", 35, 2), reading("c", 40, 1))
    assert keys(e) == ["a", "c"]


def test_state_without_timers_is_deleted(engine):
    e = engine(READINGS, MonitorStep(class_="machines:Sums", key="sensor", event_time="at", expires=300.0), OUT)
    e.run(reading("a", 0, 1), reading("b", 4, 5))
    assert keys(e) == ["a", "b"]
    e.run(reading("b", 5, 5), reading("a", 5, 7), reading("b", 2, 1))
    assert [row["total"] for row in rows(e)] == [1, 5, 10, 7, 11]
    assert keys(e) == ["a", "b"]


def test_nothing_follows_without_the_setting(engine):
    e = engine(READINGS, counts(expires=None), OUT)
    e.run(reading("a", 1), reading("b", 59))
    assert (rows(e), keys(e)) == ([], ["a", "b"])
    assert (clock_of_step("p/aggregate#0"), b"") not in e.state.entries


def test_rows_that_fail_do_not_keep_a_key(engine):
    e = engine(READINGS, MonitorStep(class_="machines:Sums", key="sensor", event_time="at", expires=300.0), OUT)
    e.run(reading("a", 0, 1), reading("a", 6, 13), reading("a", 6, 1))
    assert [row["total"] for row in rows(e)] == [1, 1], "the key had no row for six minutes"
    assert e.reasons() == ["E5500 Sums: ValueError: thirteen"]


STEPS = {
    "aggregate": counts(every=300.0, lateness=60.0),
    "correlate": pairs(),
    "monitor": silence(),
}


@pytest.mark.parametrize("word", STEPS)
def test_batches_make_no_difference(engine, word):
    chance = random.Random(word)
    times = [at * 2 + chance.randrange(-20, 5) for at in range(36)]
    given = [reading(chance.choice("abcdefgh"), max(at, 0), chance.choice((1, 2))) for at in times]
    found = []
    for cuts in ([], sorted(chance.sample(range(1, 36), 5)), range(1, 36)):
        e = engine(READINGS, STEPS[word], OUT)
        for begin, end in zip((0, *cuts), (*cuts, len(given)), strict=True):
            e.run(*given[begin:end], large=len(cuts) == 0 or begin == 0)
        before = (e.bodies(), e.reasons(), dict(e.state.entries))
        e.conclude()
        found.append((*before, e.bodies()))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) > 15
    assert len(found[0][2]) < 8, "some keys have left the store"


def test_a_message_that_spark_refuses_makes_no_difference(engine):
    decode = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT")
    e = engine(decode, counts(key="IF(value = 0, CAST(1 / value AS STRING), sensor)"), OUT)
    given = [("a", 1), ("b", 8), ("b", 50, 0), ("a", 9), ("c", 15), ("a", 2, 0), ("d", 16)]
    e.run(*(reading(*one) for one in given))
    assert [row["n"] for row in rows(e)] == [2, 1]
    assert [reason[:5] for reason in e.reasons()] == ["E5103"] * 2


def test_a_monitor_without_event_time_cannot_expire():
    with pytest.raises(ConfigError, match="E1510 monitor: has 'expires', but no 'event_time'"):
        silence(event_time=None)
