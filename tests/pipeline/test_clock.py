"""Keyed steps with `expires`, without Spark: batches of any size do what a simple model does row by row."""

import random
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest

from correlator.core.keyed import KeyedRun, due_of
from correlator.core.steps import clock_of_step
from correlator.pipeline.arrow_rows import KEYED_SCHEMA
from correlator.pipeline.clock import DueKeys, clock_of
from correlator.pipeline.envelope import CLOCK, DEAD, HIDDEN, KEY, LIVE, OUT, PART, POSITION, STATE, TIME
from correlator.pipeline.stages import KeyedWork
from correlator.pipeline.windows import FIRST, Value
from correlator.pipeline.worker import KeyedFunction, PairsMonitor, SessionsMonitor, UserMonitor, WindowsMonitor
from tests.pipeline.conftest import TinyState

START = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = (Value("v", "sum", "bigint"),)
HIDDEN_FIELDS = [KEYED_SCHEMA.field(name) for name in HIDDEN]
MOMENT = pa.timestamp("us", "UTC")
WINDOW = pa.schema([("key", pa.string()), ("window_start", MOMENT), ("window_end", MOMENT), ("v0", pa.int64())])
PAIR = pa.schema([("first", pa.string()), ("second", pa.string())])
TOTAL = pa.schema([("sensor", pa.string()), ("total", pa.int64()), ("why", pa.string())])
MONITORS = {
    "windows": (WindowsMonitor(600.0, 300.0, 60.0, COUNT), WINDOW),
    "sessions": (SessionsMonitor(300.0, 60.0, COUNT), WINDOW),
    "pairs": (PairsMonitor(400.0, True), PAIR),
    "monitor": (UserMonitor("tests.pipeline.machines:Silence", ()), TOTAL),
    "sums": (UserMonitor("tests.pipeline.machines:Sums", ()), TOTAL),
}


class Step:
    """A keyed step with its state, as the engine runs it for small batches."""

    def __init__(self, name, expires):
        factory, schema = MONITORS[name]
        function = KeyedFunction(factory, 0, "w", schema, pa.schema(HIDDEN_FIELDS), {})
        self.state = TinyState()
        self.again(expires, function)

    def again(self, expires, function=None):
        """The next life."""
        self.work = KeyedWork(
            place="w", number=0, name="p/s", function=function or self.work.function, schema=None, expires=expires
        )
        for key, data in self.state.items(self.work.owner):
            self.work.due.note(key.decode(), data)

    def run(self, rows):
        """The outputs and failures of a batch, in order."""
        self.work.due.forget_gone(self.work.reader(self.state))
        given = [one | {POSITION: at, PART: "", LIVE: True, OUT: []} for at, one in enumerate(rows)]
        names = [*KEYED_SCHEMA]
        names += [pa.field(name, kind) for name, kind in COLUMNS.items()]
        table = pa.Table.from_pylist(given, pa.schema(names))
        ordered = table.sort_by([(name, "ascending") for name in (KEY, POSITION, PART)])
        keys = {one[KEY] for one in rows}
        clock = self.work.clock(table, self.state)
        states = self.work.states(keys, self.state)
        made = [self.work.worked(ordered, states, clock=clock)]
        if clock is not None:
            made.append(self.work.followed(clock, keys, self.state))
        return self.effects(pa.concat_tables(made).to_pylist())

    def effects(self, made):
        told = []
        for one in sorted(made, key=lambda one: (one[POSITION], one[PART])):
            if one[LIVE]:
                told.append(shown(one))
            for effect in one[OUT]:
                if effect["kind"] == DEAD:
                    told.append(effect["body"].decode())
                else:
                    self.store(effect)
        return told

    def store(self, effect):
        time = effect["kind"] == CLOCK
        assert time or effect["kind"] == STATE
        owner, key = (clock_of_step("p/s"), "") if time else (self.work.owner, effect["key"])
        before = self.state.entries.get((owner, key.encode()))
        assert before != effect["body"]
        if effect["body"] is None:
            del self.state.entries[owner, key.encode()]
        else:
            self.state.entries[owner, key.encode()] = effect["body"]
            if not time:
                self.work.due.note(key, effect["body"])


COLUMNS = {
    "v0": pa.int64(),
    "side": pa.string(),
    "row": pa.string(),
    "sensor": pa.string(),
    "at": MOMENT,
    "value": pa.int64(),
}


def shown(row):
    names = [name for name in row if name not in HIDDEN]
    return tuple(row[name] for name in names)


def a_row(key, minute, value, number):
    time = START + timedelta(minutes=minute)
    side = "first" if value % 2 else "second"
    return {
        KEY: key, TIME: time, "v0": value, "side": side, "row": f"{key}{number}",
        "sensor": key, "at": time, "value": value,
    }  # fmt: skip


def modelled(name, expires, rows):
    """Outputs, failures and states of a model that runs every key after every row."""
    factory, schema = MONITORS[name]
    cls, states, latest, horizon, told = factory(), {}, None, None, []
    fields = schema.names

    def tell(found):
        for handled in found:
            if handled.failure:
                told.append(handled.failure)
            told.extend(tuple(output[field] for field in fields) for output in handled.outputs)

    for row in rows:
        latest = row[TIME] if latest is None else max(latest, row[TIME])
        moved = latest - timedelta(seconds=expires)
        horizon = moved if horizon is None else max(horizon, moved)
        keys = [row[KEY], *sorted(key for key in states if key != row[KEY])]
        for key in keys:
            run = KeyedRun(cls, key, states.pop(key, None))
            if key == row[KEY]:
                typed = row if cls.row_type is dict else msgspec.convert(row, cls.row_type)
                tell(run.handle(typed, max(row[TIME], horizon)))
            if run.due is not None and run.due <= horizon:
                tell(run.follow(horizon))
            if (data := run.stored()) is not None:
                states[key] = data
    return told, states


@pytest.mark.parametrize("name", MONITORS)
@pytest.mark.parametrize("seed", range(25))
def test_batches_of_any_size_do_what_the_model_does(name, seed):
    chance = random.Random(f"{name}{seed}")
    expires = chance.choice((0.0, 120.0, 300.0, 1200.0))
    keys = ["a", "ab", "b", "ä", "", "c"]
    values = (0, 1, 2, 3, 13) if name == "sums" else (1, 2, 3)
    rows = [
        a_row(chance.choice(keys), at * 0.7 + chance.uniform(-15, 2), chance.choice(values), at) for at in range(50)
    ]
    told, states = modelled(name, expires, rows)
    for count in (0, 3, 49):
        step = Step(name, expires)
        cuts = sorted(chance.sample(range(1, 50), count))
        found = []
        for begin, end in zip((0, *cuts), (*cuts, 50), strict=True):
            found += step.run(rows[begin:end])
            if chance.random() < 0.2:
                step.again(expires)
        assert found == told
        kept = {key.decode(): data for key, data in step.state.items(step.work.owner)}
        assert kept == states
        assert len(step.work.due._order) <= 2 * len(keys)


@pytest.mark.parametrize("name", MONITORS)
def test_the_keys_of_the_past_leave_the_store(name):
    step = Step(name, 60.0)
    for at in range(300):
        step.run([a_row(f"key {at}", at, 1, at)])
        assert len(step.state.entries) <= 20
        assert len(step.work.due._order) <= 20


def test_a_higher_expires_does_not_set_the_horizon_back_and_a_lower_one_moves_it():
    row = ((0, ""), FIRST + 10_000_000)
    first = clock_of([row], 3.0, None)
    assert first.horizons == (FIRST + 7_000_000,)
    assert clock_of([row], 5.0, first.stored).horizons == first.horizons
    assert clock_of([((0, ""), FIRST)], 1.0, first.stored).horizons == (FIRST + 9_000_000,)
    assert clock_of([], 1.0, first.stored) is None


def test_keys_that_are_due_are_found_again_until_they_are_gone():
    """Given keys due at 1, 2 and 3, when some are asked for twice, then twice they are found; gone ones are forgotten."""
    due = DueKeys(lambda data: START + timedelta(minutes=int(data)))
    states = {"a": b"2", "b": b"1", "c": b"3"}
    for key, data in states.items():
        due.note(key, data)
    at = START + timedelta(minutes=2)
    assert due.until(at, states.get) == due.until(at, states.get) == {"a": b"2", "b": b"1"}
    states["b"] = b"9"
    due.note("b", b"9")
    del states["a"]
    assert due.until(at, states.get) == {}
    due.forget_gone(states.get)
    assert sorted(due._noted) == ["b", "c"]
    states["a"] = b"1"
    due.note("a", b"1")
    assert due.until(START + timedelta(minutes=9), states.get) == states


def test_state_without_event_time_is_never_due():
    cls = MONITORS["sums"][0]()
    run = KeyedRun(cls, "a", None)
    list(run.handle(cls.row_type(sensor="a", at=START, value=1), None))
    assert due_of(run.stored()) is None
    assert run.due is None
