"""`inspect state`: the values of keyed steps, monitors and tables, and what cannot be read."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest

from correlator.core.keyed import KeyedMonitor, KeyedRun
from correlator.core.steps import RECORDS
from correlator.pipeline.clock import clock_of
from correlator.pipeline.correlation import pairs_class
from correlator.pipeline.envelope import TIME
from correlator.pipeline.sessions import sessions_class
from correlator.pipeline.windows import Value, microseconds, windows_class
from correlator.storage.states import plain, shown_state
from tests.cli.commands import run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SALES = {
    "kind": "aggregate",
    "window": "3600.0 s",
    "value 1 name": "orders",
    "value 1 function": "count",
    "value 2 name": "total",
    "value 2 function": "sum",
    "value 3 name": "mean",
    "value 3 function": "avg",
}


class Limits(KeyedMonitor):
    price: Decimal = Decimal(0)
    seen: set[str] = set()
    ratio: float = 0.0
    raw: bytes = b""

    def on_event(self, row):
        self.price, self.ratio, self.raw = row["price"], float("inf"), b"\xff\x1b"
        self.seen.add(row["name"])
        self.wake_at(NOON + timedelta(hours=1), "close")


def stored(cls, *rows):
    one = KeyedRun(cls, "A", None)
    for row in rows:
        assert [handled.failure for handled in one.handle(row, row[TIME])] == [None]
    return one.stored()


def value_of(data, facts=None, owner="step:p/s"):
    state = {owner: {b"A": data}} | ({RECORDS: {b"p/s": msgspec.json.encode(facts)}} if facts else {})
    (one,) = [one for one in shown_state(state) if one.owner == owner]
    assert (one.key, one.size) == ("A", len(data))
    return one.value, one.problem


def sales():
    cls = windows_class(3600, 3600, 0, tuple(Value(name, name, "int") for name in ("count", "sum", "avg")))
    return stored(cls, *({TIME: NOON, "v0": 1, "v1": price, "v2": price} for price in (10, 20)))


def test_the_windows_of_a_key_have_their_values_by_name():
    value, problem = value_of(sales(), SALES)
    assert problem == ""
    assert value == {
        "event_time": "2026-03-01T12:00:00Z",
        "windows": [
            {
                "start": "2026-03-01T12:00:00Z",
                "end": "2026-03-01T13:00:00Z",
                "values": {"orders": 2, "total": 30, "mean": {"count": 2, "sum": 30}},
            }
        ],
        "timers": [{"time": "2026-03-01T13:00:00Z", "name": "1772366400000000"}],
    }


def test_rows_that_wait_for_their_counterpart():
    row = {TIME: NOON, "side": "first", "row": '{"order":7}'}
    value, _ = value_of(stored(pairs_class(60.0, unmatched=True), row), {"kind": "correlate"})
    assert value["waiting"] == {"first": [{"time": "2026-03-01T12:00:00Z", "row": {"order": 7}}], "second": []}


def test_the_attributes_of_a_monitor_step_without_its_class():
    value, _ = value_of(stored(Limits, {TIME: NOON, "price": Decimal("1.50"), "name": "x"}), {"kind": "monitor"})
    assert value == {
        "event_time": "2026-03-01T12:00:00Z",
        "attributes": {"price": "1.50", "ratio": "inf", "raw": "\\xff\x1b", "seen": ["x"]},
        "timers": [{"time": "2026-03-01T13:00:00Z", "name": "close"}],
    }


@pytest.mark.parametrize("facts", [None, {"kind": "aggregate"}, {"kind": "correlate"}, {"kind": "newer"}])
def test_without_its_fingerprint_a_step_shows_what_it_keeps(facts):
    value, problem = value_of(sales(), facts)
    assert (value["attributes"], problem) == ({"open": {"1772366400000000": [2, 30, [2, 30]]}}, "")


@pytest.mark.parametrize(
    ("owner", "data", "reason"),
    [
        ("step:p/s", b"\xc1", "stored state does not fit the class"),
        ("step:p/s", b"", "stored state does not fit the class"),
        ("step:p/s", msgspec.msgpack.encode([None, [], b"\x80", 1]), "has 4 parts instead of 3: another version"),
        ("step:p/s", msgspec.msgpack.encode([None, [], b"\xc1"]), "stored state does not fit the class"),
        ("step:p/s", msgspec.msgpack.encode([None, [], b"\x81\xa1a\xd4\x05x"]), "unknown type Ext"),
        ("step:p/s", b"\x91" * 5000 + b"\x90", ""),
        ("monitor:Positions", b"\x90", ""),
        ("table:Positions#0.counts", b"\xc1", ""),
        ("sketch:p/s", b"\x00\x01", "no owner of this kind; a newer version may have stored it"),
        (RECORDS, b"{", ""),
    ],
)
def test_state_that_cannot_be_read_is_named_with_its_size(owner, data, reason):
    value, problem = value_of(data, owner=owner)
    assert value is None
    assert problem.startswith("cannot be read: ")
    assert reason in problem


def test_a_key_that_cannot_be_read_hides_no_other_key():
    state = {"step:p/s": {b"A": b"\xc1", b"B": sales(), b"\xff\x1b": b"\xc1"}, RECORDS: {b"p/s": b"no json"}}
    shown = shown_state(state)
    assert [(one.owner, one.key, bool(one.problem)) for one in shown] == [
        (RECORDS, "p/s", True),
        ("step:p/s", "A", True),
        ("step:p/s", "B", False),
        ("step:p/s", "\\xff\\x1b", True),
    ]


def test_the_keys_of_tables_are_values():
    key, value = msgspec.msgpack.encode(("a", 1)), msgspec.msgpack.encode({"n": [1, 2]})
    (one,) = shown_state({"table:T#0.orders": {key: value}})
    assert (one.key, one.value, one.problem) == ('["a",1]', {"n": [1, 2]}, "")


def test_a_value_of_a_foreign_type_is_refused():
    with pytest.raises(ValueError, match="unknown type object"):
        plain([object()])
    assert plain((1.5, None)) == [1.5, None]


# --- the command ---


def test_the_command_shows_monitors(after_a_run):
    place = after_a_run(b"")
    result = run("inspect", "state", "engine.yaml", "--json", cwd=place)
    (monitor,) = [row for row in json.loads(result.stdout) if row["owner"].startswith("monitor:")]
    assert monitor["value"]["attributes"] == {"counts": {"a": 10}}
    assert (monitor["problem"], monitor["bytes"] > 0) == ("", True)
    text = run("inspect", "state", "sqlite:///store/trades.db", cwd=place).stdout
    assert text.splitlines()[0].split("\t") == ["owner", "key", "bytes", "value", "problem"]
    assert '"attributes":{"counts":{"a":10}}' in text


def test_sessions_and_the_event_time_of_a_step():
    values = (Value("entry", "first", "int"), Value("mean", "avg", "double"))
    data = stored(sessions_class(60.0, 0.0, values), {TIME: NOON, "v0": 5, "v1": 1.5})
    facts = {"kind": "aggregate", "session": "60.0 s", "value 1 name": "entry", "value 1 function": "first"}
    value, problem = value_of(data, facts | {"value 2 name": "mean", "value 2 function": "avg"})
    assert problem == ""
    noon = "2026-03-01T12:00:00Z"
    shown = {"entry": 5, "mean": {"count": 1, "sum": 1.5}}
    assert value["sessions"] == [{"start": noon, "last": noon, "values": shown}]
    clock = clock_of([((0, ""), microseconds(NOON))], 60.0, None)
    times = {"event_time": noon, "horizon": "2026-03-01T11:59:00Z"}
    assert value_of(clock.stored, owner="clock:p/s") == (times, "")
