"""The `aggregate` step: which values a start accepts, and how they are folded. Needs no Spark."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from correlator.core.keyed import KeyedRun
from correlator.errors import ConfigError
from correlator.pipeline.spec import AggregateStep, CorrelateStep
from correlator.pipeline.windows import Call, Value, parse_call, windows_class

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("count(*)", Call("count", "1")),
        (" COUNT ( * ) ", Call("count", "1")),
        ("sum(v)", Call("sum", "v")),
        ("max((v) + (w))", Call("max", "(v) + (w)")),
        ("max((v))", Call("max", "(v)")),
        ("sum(CASE WHEN s = ')' THEN v END)", Call("sum", "CASE WHEN s = ')' THEN v END")),
        (r"""last(concat('\')', ")", `)`))""", Call("last", r"""concat('\')', ")", `)`)""")),
        (r"first(r'\')", Call("first", r"r'\'")),
        ("min(v /* ) */)", Call("min", "v /* ) */")),
        ("avg(a[0])", Call("avg", "a[0]")),
        ("sum(greatest(v, w))", Call("sum", "greatest(v, w)")),
        ("count(element_at(a[greatest(0, 1)], 1))", Call("count", "element_at(a[greatest(0, 1)], 1)")),
    ],
)
def test_a_value_is_one_call(text, call):
    assert parse_call(text, "x") == call


@pytest.mark.parametrize(
    "text",
    [
        "max(v) + (v)",
        "(max(v))",
        "max(v) + 1",
        "sum(v) FILTER (WHERE v > 1)",
        "sum(a) / sum(b)",
        "max(v, w)",
        "count()",
        "count( )",
        "sum(v",
        "sum(v))",
        "sum v",
        "summary(v)",
        "median(v)",
        "max('v)",
        "",
        "max(a[0)]) + (1",
    ],
)
def test_what_is_not_one_call_is_refused(text):
    with pytest.raises(ConfigError, match="E1512 x: '.*' is not an aggregate. Use count") as caught:
        parse_call(text, "x")
    assert "'select' after this step" in caught.value.todo


def step(**changes):
    return AggregateStep(**{"key": "k", "event_time": "t", "window": 600.0, "values": {"n": "count(*)"}, **changes})


def test_windows_with_gaps_between_them_are_refused():
    with pytest.raises(ConfigError, match="E1510 aggregate: 'every' is 601s, longer than 'window' .600s.: rows would"):
        step(every=601.0)
    assert step(every=600.0).every == 600.0


@pytest.mark.parametrize("name", ["window", "session", "every", "lateness", "expires"])
def test_a_duration_that_event_time_cannot_have_is_refused(name):
    other = {"window": None} if name == "session" else {"window": 3e9, "every": 3e9} if name == "every" else {}
    with pytest.raises(ConfigError, match="E1510 .*: is longer than 100 years"):
        step(**{**other, name: 1e15})
    with pytest.raises(ConfigError, match="E1510 within: is longer than 100 years"):
        CorrelateStep(key="k", event_time="t", first="a", second="b", within=1e15)


def folded(value, *given, cuts=(), every=600.0):
    """The value of each window, and failures, when the rows come one minute after another."""
    cls, data = windows_class(600.0, every, 0.0, (value,)), None
    outputs, failures = [], []
    for begin, end in zip((0, *cuts), (*cuts, len(given)), strict=True):
        run = KeyedRun(cls, "a", data)
        for at in range(begin, end):
            time = START + timedelta(minutes=at)
            handled = list(run.handle({"_time": time, "v0": given[at]}, time))
            failures += [one.failure for one in handled if one.failure]
            outputs += [output["v0"] for one in handled for output in one.outputs]
        data = run.stored()
    run = KeyedRun(cls, "a", data)
    for handled in run.finish():
        outputs += [one["v0"] for one in handled.outputs]
        failures += [handled.failure] if handled.failure else []
    assert not KeyedRun(cls, "a", run.stored())._monitor.open, "every window is closed"
    return outputs, failures


MOST = 2**63 - 1


@pytest.mark.parametrize("cuts", [(), (1, 2)])
@pytest.mark.parametrize(
    ("kind", "given", "total", "refused"),
    [
        ("bigint", (MOST, 1, -5), MOST - 5, MOST + 1),
        ("int", (-MOST - 1, -1, 5), -MOST + 4, -MOST - 2),
        ("decimal(38,0)", (Decimal(10**38 - 2), Decimal(3), Decimal(1)), Decimal(10**38 - 1), Decimal(10**38 + 1)),
        (
            "decimal(38,2)",
            (Decimal(-(10**36) + 1), Decimal(-1), Decimal(2)),
            Decimal(-(10**36) + 3),
            Decimal(-(10**36)),
        ),
    ],
)
def test_the_row_with_which_a_sum_would_overflow_is_a_dead_letter_and_the_window_closes(
    kind, given, total, refused, cuts
):
    outputs, failures = folded(Value("v", "sum", kind), *given, cuts=cuts)
    result = {"int": "BIGINT"}.get(kind, kind.upper())
    assert outputs == [total]
    assert failures == [f"E5107 key a: the sum 'v' would be {refused}, which is no {result}."]


def test_a_row_that_one_window_refuses_counts_in_no_window():
    outputs, failures = folded(Value("v", "sum", "bigint"), *[MOST, *[0] * 7, 1, 0], every=300.0)
    assert (outputs, len(failures)) == ([MOST, MOST, 0], 1)


def test_sums_of_decimals_are_exact_and_have_ten_digits_more():
    value = Value("v", "sum", "decimal(5,2)")
    assert folded(value, *[Decimal("999.99")] * 9) == ([Decimal("8999.91")], [])
    assert value.result == "decimal(15,2)"
    long = Value("v", "sum", "decimal(38,18)")
    assert folded(long, Decimal(10**18), Decimal("0.000000000000000001"))[0] == [
        Decimal(f"{10**18}.000000000000000001")
    ]
    assert long.result == "decimal(38,18)"


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_updates_show_each_window_that_a_row_changes_and_close_it_once(cuts):
    cls, data, outputs = windows_class(600.0, 300.0, 0.0, (Value("v", "sum", "int"),), updates=True), None, []
    given = [(0, 1), (6, 2), (12, None), (5, 9)]
    for begin, end in zip((0, *cuts), (*cuts, len(given)), strict=True):
        run = KeyedRun(cls, "a", data)
        for minute, value in given[begin:end]:
            time = START + timedelta(minutes=minute)
            handled = list(run.handle({"_time": time, "v0": value}, time))
            assert not any(one.failure for one in handled)
            outputs += [output for one in handled for output in one.outputs]
        data = run.stored()
    outputs += [output for handled in KeyedRun(cls, "a", data).finish() for output in handled.outputs]
    told = [((one["window_start"] - START) / timedelta(minutes=1), one["v0"], one["closed"]) for one in outputs]
    assert told == [
        *[(-5, 1, False), (0, 1, False)],
        *[(-5, 1, True), (0, 3, False), (5, 2, False)],
        *[(0, 3, True), (5, 2, False), (10, None, False)],
        (5, 11, False),
        *[(5, 11, True), (10, None, True)],
    ]


def test_a_row_that_a_window_refuses_is_no_update():
    run = KeyedRun(windows_class(600.0, 300.0, 0.0, (Value("v", "sum", "bigint"),), updates=True), "a", None)
    for value, outputs in ((MOST, 2), (1, 0), (-1, 2)):
        (handled,) = run.handle({"_time": START, "v0": value}, START)
        assert (len(handled.outputs), handled.failure is None) == (outputs, outputs > 0)
