"""`KeyedMonitor` without Spark: a run is a function of state and rows."""

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec
import pytest

from correlator.core.keyed import KeyedMonitor, KeyedRun
from correlator.errors import ConfigError, StateError
from correlator.pipeline.columns import ddl_of, fields_of
from correlator.pipeline.correlation import pairs_class
from correlator.pipeline.windows import Value, windows_class
from tests.pipeline.machines import Reading, Silence, Sums

START = datetime(2026, 1, 1, tzinfo=UTC)


def reading(minute: int, value: int) -> Reading:
    return Reading(sensor="a", at=START + timedelta(minutes=minute), value=value)


def run_all(cls, rows, data=None, cuts=()):
    """Outputs and final bytes, with the run begun anew at each cut."""
    outputs, failures = [], []
    for begin, end in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        run = KeyedRun(cls, "a", data)
        for row in rows[begin:end]:
            for handled in run.handle(row, row.at):
                outputs.extend(handled.outputs)
                failures.extend([handled.failure] if handled.failure else [])
        data = run.stored()
    return outputs, failures, data


@pytest.mark.parametrize("cls", [Sums, Silence])
@pytest.mark.parametrize("seed", range(20))
def test_cutting_changes_nothing(cls, seed):
    chance = random.Random(seed)
    rows = [reading(chance.randrange(60), chance.choice((0, 1, 2, 3, 13))) for _ in range(30)]
    cuts = sorted(chance.sample(range(1, 30), 5))
    assert run_all(cls, rows) == run_all(cls, rows, cuts=cuts) == run_all(cls, rows, cuts=range(1, 30))


def test_a_failing_first_row_leaves_no_state():
    outputs, failures, data = run_all(Sums, [reading(0, 13)])
    assert (outputs, failures, data) == ([], ["E5500 Sums: ValueError: thirteen"], None)


def test_forgotten_keys_have_no_state_and_begin_anew():
    outputs, _, data = run_all(Sums, [reading(0, 5), reading(0, 0), reading(0, 2)])
    assert [output["total"] for output in outputs] == [5, 5, 2]
    assert data is not None
    assert run_all(Sums, [reading(0, 0)], data)[2] is None


class Alarm(KeyedMonitor[Reading, dict[str, Any]]):
    """Its timer fails at a certain value, and sets another one otherwise."""

    last: int = 0

    def on_event(self, row):
        self.last = row.value
        self.wake_at(row.at + timedelta(minutes=1), "first")

    def on_time(self, name):
        if self.last == 7:
            raise KeyError(name)
        if name == "first":
            self.wake_at(self.time + timedelta(minutes=1), "second")
        yield {"name": name, "at": self.time}


def test_timers_fire_in_order_and_may_set_others():
    run = KeyedRun(Alarm, "a", run_all(Alarm, [reading(0, 1)])[2])
    assert [output["name"] for handled in run.finish() for output in handled.outputs] == ["first", "second"]


def test_a_timer_that_fails_is_gone():
    outputs, failures, data = run_all(Alarm, [reading(0, 7), reading(5, 1)])
    assert (outputs, failures) == ([], ["E5500 Alarm: KeyError: 'first'"])
    assert [handled.failure for handled in KeyedRun(Alarm, "a", data).finish()] == [None, None]


def test_event_time_does_not_go_back():
    class Times(KeyedMonitor[Reading, dict[str, Any]]):
        def on_event(self, row):
            return [{"time": self.time}]

    outputs, _, _ = run_all(Times, [reading(5, 1), reading(3, 1), reading(6, 1)])
    assert [output["time"].minute for output in outputs] == [5, 5, 6]


def test_a_timer_in_the_past_does_not_set_event_time_back():
    """Given a late row that sets a timer before event time, when it fires, then at event time, which goes on from there."""

    class Late(KeyedMonitor[Reading, dict[str, Any]]):
        def on_event(self, row):
            self.wake_at(row.at + timedelta(minutes=1))
            return [{"row": self.time.minute}]

        def on_time(self, name):
            return [{"timer": self.time.minute}]

    outputs, failures, data = run_all(Late, [reading(50, 1), reading(3, 1), reading(40, 1)])
    assert failures == []
    assert outputs == [{"row": 50}, {"row": 50}, {"timer": 50}, {"row": 50}]
    assert run_all(Late, [reading(45, 1)], data)[0] == [{"timer": 50}, {"row": 50}]


@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_a_timer_in_the_past_fires_before_the_next_row_though_this_row_is_late(cuts):
    class Late(KeyedMonitor[Reading, dict[str, Any]]):
        def on_event(self, row):
            if row.value:
                self.wake_at(row.at + timedelta(minutes=1))
            return [{"row": row.at.minute}]

        def on_time(self, name):
            return [{"timer": self.time.minute}]

    outputs, failures, _ = run_all(Late, [reading(50, 0), reading(30, 1), reading(3, 0)], cuts=cuts)
    assert failures == []
    assert outputs == [{"row": 50}, {"row": 30}, {"timer": 50}, {"row": 3}]


@pytest.mark.parametrize(
    ("time", "name"),
    [
        (None, ""),
        ("2026-01-01", ""),
        (START.date(), ""),
        (START.replace(tzinfo=None), ""),
        (START, "\ud800"),
        (START, None),
        (START, 5),
    ],
)
def test_a_timer_that_could_not_be_stored_or_compared_is_the_failure_of_its_row(time, name):
    class Sets(KeyedMonitor[Reading, dict[str, Any]]):
        count: int = 0

        def on_event(self, row):
            self.count += 1
            if row.value:
                self.wake_at(time, name)
            return [{"count": self.count}]

    outputs, failures, _ = run_all(Sets, [reading(0, 0), reading(1, 1), reading(2, 0)], cuts=[1, 2])
    assert outputs == [{"count": 1}, {"count": 2}]
    assert len(failures) == 1
    assert failures[0].startswith("E4109 monitor Sets: ")


def test_without_event_time():
    class Curious(KeyedMonitor[dict[str, Any], dict[str, Any]]):
        def on_event(self, row):
            return [{"time": self.time}]

    (handled,) = KeyedRun(Curious, "a", None).handle({}, None)
    assert handled.failure == "E4110 Curious: there is no event time. Give the step an 'event_time'."


def test_outputs_of_another_type_are_failures():
    class Wrong(KeyedMonitor[Reading, Reading]):
        def on_event(self, row):
            return [Reading(sensor="a", at="today", value=1)] if row.value else ["text"]

    _, failures, _ = run_all(Wrong, [reading(0, 0), reading(0, 1)])
    assert failures[0] == "E5500 Wrong: TypeError: output is a str, must be a Reading"
    assert failures[1].startswith("E5500 Wrong: ValidationError: ")


def test_state_that_cannot_be_stored_is_refused_with_the_class():
    with pytest.raises(StateError, match="E4101 monitor Bad: field 'x'"):

        class Bad(KeyedMonitor[Reading, Reading]):
            x: object = None

    with pytest.raises(StateError, match="E4105 monitor Bare: attribute 'x' has no initial value"):

        class Bare(KeyedMonitor[Reading, Reading]):
            x: int


def test_state_of_another_class_is_refused():
    with pytest.raises(StateError, match="E4203"):
        KeyedRun(Alarm, "a", run_all(Sums, [reading(0, 5)])[2])


class Colour(StrEnum):
    RED = "red"


class Inner(msgspec.Struct):
    x: Decimal


class Everything(msgspec.Struct):
    a: int
    b: float | None
    c: list[str]
    d: dict[str, Inner]
    e: datetime
    f: Colour = Colour.RED
    g: bytes = b""


def test_columns_of_a_struct():
    assert ddl_of(Everything, "E") == (
        "`a` BIGINT, `b` DOUBLE, `c` ARRAY<STRING>, `d` MAP<STRING, STRUCT<`x`: DECIMAL(38,18)>>, `e` TIMESTAMP, "
        "`f` STRING, `g` BINARY"
    )
    assert fields_of(Everything) == {"a": True, "b": True, "c": True, "d": True, "e": True, "f": False, "g": False}


def test_columns_that_cannot_be():
    class Odd(msgspec.Struct):
        a: int | str

    with pytest.raises(ConfigError, match=r"E1513 Odd.a: no column can hold a Union"):
        ddl_of(Odd, "Odd")
    with pytest.raises(ConfigError, match="E1513 int: has no fields"):
        fields_of(int)


def live_of(cls, data, *rows):
    """One life of a key: outputs, failures, and the state that it leaves."""
    run = KeyedRun(cls, "a", data)
    handled = [one for row in rows for one in run.handle(row, row["_time"])]
    return [o for one in handled for o in one.outputs], [one.failure for one in handled if one.failure], run.stored()


def ended(cls, data):
    handled = list(KeyedRun(cls, "a", data).finish())
    return [o for one in handled for o in one.outputs], [one.failure for one in handled if one.failure]


def at(minute, **values):
    return {"_time": START + timedelta(minutes=minute), **values}


@pytest.mark.parametrize(("before", "after"), [(300.0, 60.0), (60.0, 300.0), (0.0, 0.0)])
def test_windows_close_once_when_their_lateness_has_changed(before, after):
    old, new = (windows_class(600.0, 600.0, lateness, (Value("n", "count", "int"),)) for lateness in (before, after))
    _, _, data = live_of(old, None, at(1, v0=1), at(2, v0=1))
    outputs, failures, data = live_of(new, data, at(3, v0=1), at(9, v0=1), at(30, v0=1))
    assert ([one["v0"] for one in outputs], failures) == ([4], [])
    assert [one["v0"] for one in ended(new, data)[0]] == [1]
    _, _, data = live_of(old, None, at(1, v0=1))
    outputs, failures = ended(new, data)
    assert ([one["v0"] for one in outputs], failures) == ([1], [])


@pytest.mark.parametrize(("before", "after"), [(60.0, 300.0), (300.0, 60.0)])
def test_rows_that_wait_are_given_up_once_when_within_has_changed(before, after):
    old, new = (pairs_class(within, True) for within in (before, after))
    _, _, data = live_of(old, None, at(1, side="first", row="1"), at(1.5, side="first", row="2"))
    assert ([one["first"] for one in ended(new, data)[0]], ended(new, data)[1]) == (["1", "2"], [])
    outputs, failures, data = live_of(new, data, at(20, side="first", row="3"))
    outputs += ended(new, data)[0]
    assert ([one["first"] for one in outputs], failures) == (["1", "2", "3"], [])


def paired(outputs):
    return [(one["first"], one["second"]) for one in outputs]


def test_a_late_row_waits_until_event_time_moves_on():
    """Given event time 20 and a `within` of five minutes, when rows of the minutes 0 to 4 come, then they can pair."""
    cls = pairs_class(300.0, True)
    rows = [at(20, side="first", row="20"), at(0, side="first", row="0"), at(2, side="first", row="2")]
    _, _, data = live_of(cls, None, *rows)
    outputs, failures, data = live_of(cls, data, at(4, side="second", row="4"))
    assert (paired(outputs), failures) == ([("0", "4")], [])
    outputs, _, data = live_of(cls, data, at(20, side="second", row="20b"), at(20.5, side="first", row="20.5"))
    assert paired(outputs) == [("20", "20b"), ("2", None)]
    assert paired(ended(cls, data)[0]) == [("20.5", None)]


@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_rows_at_the_end_of_all_times_are_given_up_once(cuts):
    cls, last = pairs_class(300.0, True), datetime.max.replace(tzinfo=UTC)
    rows = [
        {"_time": last - timedelta(seconds=ago), "side": "first", "row": str(ago)} for ago in (300, 1, 0, 299, 400, 0)
    ]
    data, outputs = None, []
    for begin, end in zip((0, *cuts), (*cuts, 6), strict=True):
        more, failures, data = live_of(cls, data, *rows[begin:end])
        assert failures == []
        outputs += more
    outputs += ended(cls, data)[0]
    assert sorted(one["first"] for one in outputs) == ["0", "0", "1", "299", "300", "400"]
