"""A pipeline whose steps change between two lives, over a real engine, store and Spark."""

import datetime as dt
import json

import pytest

from correlator.core.steps import stored_steps
from correlator.errors import RecoveryRefused
from correlator.events import Message
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    MonitorStep,
    PipelineSettings,
    RouteStep,
    SelectStep,
    WhereStep,
)
from correlator.storage import inspect
from tests.pipeline.conftest import CONFIG, HERE
from tests.pipeline.test_decode_binary import avro, record, written
from tests.runtime.world import World, contents, receiver, sender

READINGS = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, a INT, b INT")
OUT = RouteStep(to="out")
PATIENT = 120.0
"""Seconds that an orderly stop may wait for Spark, whose first job is slow."""


def windows(**changes):
    values = {"key": "sensor", "event_time": "at", "window": 600.0, "values": {"n": "sum(a)"}}
    return AggregateStep(**{**values, **changes})


PAIRS = CorrelateStep(key="sensor", event_time="at", first="a = 1", second="a = 2", within=60.0)


class Lives:
    """Lives of one engine after another."""

    def __init__(self, session, directory):
        self.world = World(f"sqlite:///{directory / 'engine.db'}")
        self._session = session

    def live(self, *steps, bodies=(), decode=READINGS, **settings):
        """One life with these steps: the rows that it sends for these bodies."""
        sent = len(self.world.sent())
        pipelines = [PipelineSettings(name="p", from_=("in",), steps=(decode, *steps, OUT))] if steps else []
        processors = [SparkProcessor(one, self._session, [str(CONFIG), str(HERE)]) for one in pipelines]
        parts = (receiver(), sender())
        with self.world.engine(*parts, processors=processors, stop_timeout=PATIENT, **settings):
            self.world.publish(*bodies)
            at_broker = (self.world.broker.waiting, self.world.broker.unacknowledged)
            self.world.wait(lambda: not any(count("queue:in") for count in at_broker))
        return [json.loads(body) for body in self.world.sent()[sent:]]

    def refused(self, *steps, **settings):
        """A life whose start is refused: why. The store is as before."""
        before = contents(self.world.store)
        with pytest.raises(RecoveryRefused) as caught:
            self.live(*steps, **settings)
        assert contents(self.world.store) == before
        return str(caught.value)

    def stored(self):
        """Numbers of keys by step."""
        return {name: len(one.values) for name, one in stored_steps(inspect.state(self.world.store)).items()}

    def mark(self, told):
        """The fingerprint that a refusal tells."""
        return told.partition("state: discard ")[2][:8]


@pytest.fixture
def lives(tmp_path, session):
    made = Lives(session, tmp_path)
    yield made
    made.world.close()


def reading(minute, a=1, b=1, sensor="x"):
    return f'{{"sensor":"{sensor}","at":"2026-01-01T00:{minute:02}:00Z","a":{a},"b":{b}}}'


def test_windows_that_do_not_fit_are_refused_and_discarded(lives):
    lives.live(windows(), bodies=[reading(1, a=5)])
    assert lives.stored() == {"p/aggregate#0": 1}
    changed = [{"values": {"n": "max(b)"}}, {"window": 300.0}, {"values": {"n": "sum(a)", "m": "max(b)"}}]
    for change in changed:
        told = lives.refused(windows(**change))
        assert told.startswith("E4330 step 'p/aggregate#0'")
    assert "E4330" in lives.refused(windows(key="a"))
    most = windows(values={"n": "max(b)"}, state=f"discard {lives.mark(told)}")
    assert lives.live(most, bodies=[reading(2, b=3)]) == []
    (row,) = lives.live(most, bodies=[reading(12, b=1)])
    assert row["n"] == 3, "nothing of the sum is in it"
    assert lives.live(windows(values={"n": "max(b)"}), bodies=[reading(30)])[0]["n"] == 1


def test_windows_that_fit_go_on(lives):
    lives.live(windows(lateness=300.0), bodies=[reading(1, a=5)])
    lower = windows(lateness=60.0, values={"total": "sum(a)"})
    assert lives.live(lower, bodies=[reading(2, a=2), reading(11, a=3)])[0]["total"] == 7
    told = lives.refused(windows(lateness=60.0, values={"total": "sum(b)"}))
    kept = windows(lateness=60.0, values={"total": "sum(b)"}, state=f"keep {lives.mark(told)}")
    (row,) = lives.live(kept, bodies=[reading(25, b=9)])
    assert row["total"] == 3


def avro_of(kind):
    fields = [
        ("sensor", "string"),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("a", kind),
        ("b", "int"),
    ]
    return record(*fields)


def avro_reading(schema, minute, a):
    at = dt.datetime(2026, 1, 1, 0, minute, tzinfo=dt.UTC)
    (body,) = written(schema, {"sensor": "x", "at": at, "a": a, "b": 1})
    return Message(body, {"uniqueMessageId": f"avro {minute}"})


def test_bodies_of_another_format_or_schema(lives):
    """The state belongs to the columns and their types, wherever these come from."""
    lives.live(windows(), bodies=[reading(1, a=5)])
    whole, halves = avro_of("int"), avro_of("double")
    assert lives.live(windows(), decode=avro(whole), bodies=[avro_reading(whole, 2, 1)]) == []
    told = lives.refused(windows(), decode=avro(halves))
    assert told.startswith("E4330 step 'p/aggregate#0'")
    assert "value 1 type: int -> float" in told
    (row,) = lives.live(windows(), bodies=[reading(12, a=9)])
    assert row["n"] == 6, "the next life reads JSON again"


def test_a_step_that_comes_or_goes_or_gets_a_name(lives):
    lives.live(windows(), bodies=[reading(1, a=5)])
    before = WhereStep(condition="a > 0")
    assert lives.live(before, windows(), bodies=[reading(2, a=5)]) == []
    rows = SelectStep(columns={"sensor": "sensor", "at": "window_end", "a": "CAST(n AS INT)", "b": "1"})
    assert "E4330" in lives.refused(windows(window=60.0), rows, windows())
    told = lives.refused(WhereStep(condition="true"))
    assert told.startswith("E4331 step 'p/aggregate#0'")
    named = windows(name="sums", was="aggregate#0")
    lives.live(windows(window=60.0), rows, named, bodies=[reading(3, a=1)])
    assert lives.stored() == {"p/aggregate#0": 1, "p/sums": 1}
    told = lives.refused(named)
    entry = told.partition("discard_state: ['")[2].partition("'")[0]
    assert entry.startswith("p/aggregate#0 ")
    (row,) = lives.live(named, bodies=[reading(12, a=9)], discard_state=(entry,))
    assert row["n"] == 10
    assert lives.stored() == {"p/sums": 1}


def test_a_removed_pipeline_with_state_is_refused(lives):
    lives.live(windows(), bodies=[reading(1)])
    entry = lives.refused().partition("discard_state: ['")[2].partition("'")[0]
    lives.live(discard_state=(entry,))
    assert lives.stored() == {}


def test_monitors_and_pairs_that_change(lives):
    shaped = SelectStep(columns={"sensor": "sensor", "at": "at", "value": "a"})
    sums = MonitorStep(class_="machines:Sums", key="sensor", event_time="at", name="one")
    lives.live(PAIRS, SelectStep(columns={"n": "first.b"}), bodies=[reading(1)])
    assert "first: a = 1 -> a = 3" in lives.refused(
        CorrelateStep(key="sensor", event_time="at", first="a = 3", second="a = 2", within=60.0)
    )
    entry = lives.refused(shaped, sums).partition("discard_state: ['")[2].partition("'")[0]
    lives.live(shaped, sums, bodies=[reading(1, a=4)], discard_state=(entry,))
    other = MonitorStep(class_="machines:Silence", key="sensor", event_time="at", name="one")
    told = lives.refused(shaped, other)
    assert "class: Sums -> Silence" in told
    assert "attribute last: str -> nothing" in told
    assert lives.live(shaped, sums, bodies=[reading(2, a=4)])[0]["total"] == 8


def test_keys_that_follow_the_event_time_of_their_step(lives):
    """A lower `expires` counts from the next row on; a higher one opens no window again; the time moves with a name."""
    lives.live(windows(expires=600.0), bodies=[reading(1, a=5), reading(12, sensor="y"), reading(21, sensor="y")])
    assert lives.stored() == {"p/aggregate#0": 1}, "x has gone, y has an open window"
    assert lives.live(windows(expires=7200.0), bodies=[reading(2, a=7)]) == [], "it is late: its window was given"
    (letter,) = lives.world.dead_letters()
    assert letter.startswith("E5105 key x: late")
    named = windows(expires=60.0, name="sums", was="aggregate#0")
    (row,) = lives.live(named, bodies=[reading(31, a=1)])
    assert (row["sensor"], row["n"]) == ("y", 1)
    assert lives.stored() == {"p/sums": 1}
    told = lives.refused(windows(expires=60.0, name="sums", values={"m": "max(b)"}))
    fresh = windows(expires=60.0, name="sums", values={"m": "max(b)"}, state=f"discard {lives.mark(told)}")
    assert lives.live(fresh, bodies=[reading(2, b=3)]) == []
    assert [row["m"] for row in lives.live(fresh, bodies=[reading(12, sensor="z")])] == [3]


def test_sessions_that_change(lives):
    def sessions(**changes):
        return windows(**{"window": None, "session": 600.0, **changes})

    lives.live(windows(), bodies=[reading(1, a=5)])
    told = lives.refused(sessions())
    assert "window: 600.0 s -> nothing" in told
    lives.live(sessions(state=f"discard {lives.mark(told)}"), bodies=[reading(2, a=1)])
    assert "session: 600.0 s -> 300.0 s" in lives.refused(sessions(session=300.0))
    (row,) = lives.live(sessions(values={"total": "sum(a)"}, expires=60.0), bodies=[reading(11, a=2), reading(30)])
    assert (row["total"], row["window_start"][14:16], row["window_end"][14:16]) == (3, "02", "21")
