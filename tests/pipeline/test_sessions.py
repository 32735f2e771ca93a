"""The `aggregate` step with `session`."""

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest

from correlator.core.keyed import KeyedRun
from correlator.errors import ConfigError
from correlator.pipeline.sessions import sessions_class
from correlator.pipeline.spec import AggregateStep, DecodeStep, RouteStep
from correlator.pipeline.windows import Value

START = datetime(2026, 1, 1, tzinfo=UTC)
FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last")
VALUES = tuple(Value(function, function, "double" if function == "avg" else "int") for function in FUNCTIONS)
GAP = 600.0


def run_all(given, *, values=VALUES, lateness=0.0, cuts=(), ending=True, gap=GAP):
    """Minutes and values of the sessions for rows (minute, value), failures, and the number of keys with state."""
    cls, data, outputs, failures = sessions_class(gap, lateness, values), None, [], []
    for begin, end in zip((0, *cuts), (*cuts, len(given)), strict=True):
        run = KeyedRun(cls, "a", data)
        for minute, value in given[begin:end]:
            time = START + timedelta(minutes=minute)
            row = {"_time": time, **{f"v{at}": value for at in range(len(values))}}
            for handled in run.handle(row, time):
                outputs += handled.outputs
                failures += [handled.failure] if handled.failure else []
        data = run.stored()
    if ending:
        run = KeyedRun(cls, "a", data)
        outputs += [one for handled in run.finish() for one in handled.outputs]
        assert not run._monitor.open
    return [told(one, len(values)) for one in outputs], failures


def told(output, values):
    minutes = [(output[name] - START) / timedelta(minutes=1) for name in ("window_start", "window_end")]
    return (*minutes, *(output[f"v{at}"] for at in range(values)))


def test_a_session_ends_the_gap_after_its_last_row():
    given = [(0, 5), (9, None), (18, 2), (28, 7), (37, 1), (60, 0)]
    assert run_all(given, ending=False)[0] == [(0, 28, 2, 7, 2, 5, 3.5, 5, 2), (28, 47, 2, 8, 1, 7, 4.0, 7, 1)]


def test_count_of_a_value_leaves_null_out():
    assert run_all([(0, None), (1, None)])[0] == [(0, 11, 0, None, None, None, None, None, None)]


@pytest.mark.parametrize("cuts", [(), (1, 2, 3)])
def test_a_late_row_joins_two_sessions(cuts):
    given = [(0, 5), (15, 7), (8, 1), (40, 0)]
    both = (0, 25, 3, 13, 1, 7, 13 / 3, 5, 1)
    assert run_all(given, lateness=600.0, cuts=cuts)[0][0] == both, "first and last follow the order of arrival"
    assert run_all([(15, 7), (0, 5), (8, 1)], lateness=600.0, cuts=cuts[:2])[0] == [(0, 25, 3, 13, 1, 7, 13 / 3, 7, 1)]


def test_a_late_row_counts_in_an_open_session_and_else_is_a_dead_letter():
    given = [(0, 5), (30, 7), (19, 1), (25, 2), (20, 3), (39, 0), (15, 1)]
    rows, failures = run_all(given)
    assert rows == [(0, 10, 1, 5, 5, 5, 5.0, 5, 5), (15, 49, 5, 13, 0, 7, 2.6, 7, 1)]
    assert [one[:24] for one in failures] == ["E5105 key a: late: its s"], "19 comes before there is a session near it"


@pytest.mark.parametrize("seed", range(30))
def test_any_order_gives_the_sessions_of_the_ordered_rows_if_the_lateness_is_long_enough(seed):
    chance = random.Random(seed)
    given = [(chance.randrange(300), chance.randrange(-9, 9)) for _ in range(25)]
    ordered = sorted({minute for minute, _ in given})
    begins = [ordered[0], *(after for before, after in pairwise(ordered) if after - before >= 10)]
    expected = []
    for begin, end in zip(begins, [*begins[1:], 1000], strict=True):
        inside = [(minute, value) for minute, value in given if begin <= minute < end]
        numbers = [value for _, value in inside]
        last = max(minute for minute, _ in inside)
        some = (len(numbers), sum(numbers), min(numbers), max(numbers), sum(numbers) / len(numbers))
        expected.append((begin, last + 10, *some, numbers[0], numbers[-1]))
    assert run_all(given, lateness=30_000.0) == (expected, [])


@pytest.mark.parametrize("seed", range(30))
def test_cutting_changes_nothing(seed):
    chance = random.Random(seed)
    given = [(at * 3 + chance.randrange(-40, 5), chance.randrange(-9, 9)) for at in range(40)]
    lateness = chance.choice((0.0, 300.0, 1200.0))
    cuts = sorted(chance.sample(range(1, 40), 6))
    whole = run_all(given, lateness=lateness)
    assert whole == run_all(given, lateness=lateness, cuts=cuts) == run_all(given, lateness=lateness, cuts=range(1, 40))
    assert whole[1] or lateness > 300.0


def test_a_row_that_would_overflow_a_sum_leaves_its_sessions_as_they_are():
    most, value = Decimal(10**38 - 1), (Value("v", "sum", "decimal(38,0)"),)
    rows, failures = run_all([(0, most), (15, most), (8, Decimal(-1)), (9, Decimal(0))], values=value, lateness=600.0)
    assert failures == [f"E5107 key a: the sum 'v' would be {2 * int(most)}, which is no DECIMAL(38,0)."] * 2
    assert rows == [(0, 10, most), (15, 25, most)]


def test_a_session_has_few_timers():
    cls = sessions_class(GAP, 0.0, VALUES)
    run = KeyedRun(cls, "a", None)
    for second in range(1000):
        time = START + timedelta(seconds=second)
        list(run.handle({"_time": time, **{f"v{at}": 1 for at in range(len(VALUES))}}, time))
    assert len(run._monitor._timers) == 1


def test_settings_that_contradict_one_another():
    def step(**changes):
        return AggregateStep(key="k", event_time="t", values={"n": "count(*)"}, **changes)

    for changes in ({}, {"window": 1.0, "session": 1.0}):
        with pytest.raises(ConfigError, match="E1510 aggregate: needs exactly one of 'window' and 'session'"):
            step(**changes)
    with pytest.raises(ConfigError, match="E1510 aggregate: has 'every' and 'session'. 'every' is for 'window'"):
        step(session=1.0, every=1.0)


def reading(sensor, minute, value=1):
    at = f"2026-01-01T{int(minute) // 60:02}:{int(minute) % 60:02}:00Z"
    return json.dumps({"sensor": sensor, "at": at, "value": value})


def test_sessions_of_a_pipeline(engine):
    """Small and large batches, with `expires`: a session of a key without rows closes, and its key leaves the store."""
    values = {"n": "count(*)", "total": "sum(value)", "last": "last(value)", "mean": "avg(value)"}
    step = AggregateStep(key="sensor", event_time="at", session=600.0, lateness=60.0, expires=300.0, values=values)
    e = engine(DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT"), step, RouteStep(to="out"))
    e.run(reading("a", 0, 1), reading("b", 3, 5), reading("a", 12, 2), reading("a", 11, 3), reading("b", 9))
    e.run(reading("a", 6, 4), reading("c", 29))
    found = [json.loads(body) for body in e.bodies()]
    shown = [
        (one["sensor"], one["window_start"][14:16], one["window_end"][14:16], one["n"], one["last"]) for one in found
    ]
    assert shown == [("a", "00", "10", 1, 1), ("a", "06", "22", 3, 4), ("b", "03", "19", 2, 1)]
    assert sorted(key for owner, key in e.state.entries if owner.startswith("step:")) == [b"c"]
    e.conclude()
    assert json.loads(e.bodies()[-1])["sensor"] == "c"


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_updates_show_the_session_of_each_row(cuts):
    cls, data, outputs = sessions_class(GAP, 600.0, (Value("v", "count", "int"),), updates=True), None, []
    given = [0, 15, 8, 40]
    for begin, end in zip((0, *cuts), (*cuts, len(given)), strict=True):
        run = KeyedRun(cls, "a", data)
        for minute in given[begin:end]:
            time = START + timedelta(minutes=minute)
            outputs += [output for one in run.handle({"_time": time, "v0": 1}, time) for output in one.outputs]
        data = run.stored()
    outputs += [output for handled in KeyedRun(cls, "a", data).finish() for output in handled.outputs]
    found = [(*told(one, 1), one["closed"]) for one in outputs]
    joined = (0, 25, 3)
    updates = [(0, 10, 1, False), (15, 25, 1, False), (*joined, False)]
    assert found == [*updates, (*joined, True), (40, 50, 1, False), (40, 50, 1, True)]
