"""Keyed steps that change between two lives: what each change means for the state, without Spark."""

import enum
from dataclasses import dataclass
from typing import Annotated, Literal, Optional

import msgspec
import pytest

from correlator.core.differences import Verdict, refuse
from correlator.core.fingerprints import UNKNOWN, Fit, changes_between, described, digest, fit_of
from correlator.core.steps import (
    RECORDS,
    ConfiguredStep,
    changed_state,
    changes_of,
    compare_steps,
    owner_of,
    stored_steps,
)
from correlator.errors import RecoveryRefused, StateError

FACTS = {
    "kind": "aggregate",
    "key": "carrier",
    "key type": "string",
    "event time": "at",
    "window": "600.0 s",
    "every": "600.0 s",
    "lateness": "60.0 s",
    "value 1 name": "total",
    "value 1 function": "sum",
    "value 1 argument": "a",
    "value 1 type": "int",
}
MARK = digest(FACTS)
VALUES = {b"UA": b"1", b"AA": b"2"}


def readable(key, data):
    """Reads all but one value."""
    if data == b"unreadable":
        raise StateError("E4203", "monitor Windows", "stored state does not fit the class")


def step(name="p/aggregate#0", was="", decision="", **changed):
    facts = {**FACTS, **{field.replace("_", " "): value for field, value in changed.items()}}
    return ConfiguredStep(name, {k: v for k, v in facts.items() if v is not None}, was, decision, readable)


def state_of(**steps):
    """A store: facts and values by the last part of the name; a space stands for a '#' there."""
    state = {RECORDS: {}}
    for name, (facts, values) in steps.items():
        whole = f"p/{name.replace('_', '#')}"
        if values:
            state[owner_of(whole)] = dict(values)
        if facts is not None:
            state[RECORDS][whole.encode()] = msgspec.json.encode(facts)
    return state


def start(state, *configured, discarded=()):
    """The differences, and the store after the first checkpoint of a start that is not refused."""
    found = compare_steps(stored_steps(state), configured, discarded)
    refuse(found)
    return found, changed_state(state, changes_of(found, state))


def refusal(state, *configured, discarded=()):
    before = repr(state)
    with pytest.raises(RecoveryRefused) as caught:
        start(state, *configured, discarded=discarded)
    assert repr(state) == before
    return str(caught.value)


def test_a_first_start_records_the_fingerprint():
    (one,), after = start({}, step())
    assert (one.verdict, one.note) == (Verdict.NEW, "")
    assert stored_steps(after)["p/aggregate#0"].facts == FACTS


def test_an_unchanged_step_goes_on_and_nothing_is_written():
    state = state_of(aggregate_0=(FACTS, VALUES))
    (one,), after = start(state, step())
    assert (one.verdict, one.note) == (Verdict.UNCHANGED, "goes on with the state of 2 keys")
    assert after == state
    assert changes_of([one], state) == []


MEANINGS = {
    "function": ({"value_1_function": "max", "value_1_argument": "b"}, Fit.NONE),
    "window": ({"window": "300.0 s"}, Fit.NONE),
    "every": ({"every": "300.0 s"}, Fit.NONE),
    "type": ({"value_1_type": "float"}, Fit.NONE),
    "added value": ({"value_2_function": "max", "value_2_name": "m"}, Fit.NONE),
    "removed value": ({"value_1_function": None, "value_1_name": None}, Fit.NONE),
    "another value": ({"value_1_name": "other", "value_1_argument": "b"}, Fit.NONE),
    "kind": ({"kind": "correlate"}, Fit.NONE),
    "key": ({"key": "upper(carrier)"}, Fit.READABLE),
    "key type": ({"key_type": "int"}, Fit.READABLE),
    "event time": ({"event_time": "scheduled"}, Fit.READABLE),
    "argument": ({"value_1_argument": "b"}, Fit.READABLE),
    "higher lateness": ({"lateness": "90.0 s"}, Fit.READABLE),
    "lower lateness": ({"lateness": "0.0 s"}, Fit.SAME_MEANING),
    "name of a value": ({"value_1_name": "sum"}, Fit.SAME_MEANING),
}


@pytest.mark.parametrize(("changed", "fit"), MEANINGS.values(), ids=MEANINGS.keys())
def test_what_a_changed_window_means_for_its_state(changed, fit):
    after = step(**changed)
    changes = changes_between(FACTS, after.facts)
    assert fit_of(changes) is fit
    state = state_of(aggregate_0=(FACTS, VALUES))
    if fit is Fit.SAME_MEANING:
        (one,), then = start(state, after)
        assert (one.verdict, one.changes) == (Verdict.CHANGED, changes)
        assert then[owner_of("p/aggregate#0")] == VALUES
        return
    told = refusal(state, after)
    assert told.startswith("E4330 step 'p/aggregate#0': the state of 2 keys of 'p/aggregate#0'")
    assert MARK in told
    assert digest(after.facts) in told
    assert all(f"{one.field}: {one.before or 'nothing'} -> {one.after or 'nothing'}" in told for one in changes)
    assert (f"state: keep {MARK}" in told) == (fit is Fit.READABLE)
    refused_too = after._replace(decision=f"keep {digest(after.facts)}")
    assert f"state: discard {MARK}" in refusal(state, refused_too), "a decision about another fingerprint"


OTHERS = {
    "attribute": ("attribute total", "int", "str", Fit.NONE),
    "new attribute": ("attribute worst", "", "int", Fit.NONE),
    "class": ("class", "Sums", "Means", Fit.READABLE),
    "column of a monitor": ("row a", "int", "double", Fit.READABLE),
    "column that it loses": ("row a", "int", "", Fit.READABLE),
    "column that it gets": ("row a", "", "int", Fit.SAME_MEANING),
    "condition of a pair": ("first", "a = 1", "a = 2", Fit.READABLE),
    "within": ("within", "60.0 s", "90.0 s", Fit.SAME_MEANING),
    "unmatched": ("unmatched", "true", "false", Fit.SAME_MEANING),
    "type of a waiting column": ("column a", "int", "string", Fit.NONE),
    "waiting rows without a column": ("column a", "", "int", Fit.READABLE),
    "anything unknown": ("something new", "a", "b", Fit.NONE),
}


@pytest.mark.parametrize(("field", "before", "after", "fit"), OTHERS.values(), ids=OTHERS.keys())
def test_what_a_changed_monitor_or_pair_means_for_its_state(field, before, after, fit):
    facts = ({"kind": "x"} | ({field: value} if value else {}) for value in (before, after))
    assert fit_of(changes_between(*facts)) is fit


def test_the_largest_change_counts():
    assert fit_of(changes_between(FACTS, step(key="x", window="1.0 s", value_1_name="y").facts)) is Fit.NONE


def test_discarded_state_is_deleted_once():
    state = state_of(aggregate_0=(FACTS, VALUES))
    changed = step(value_1_function="max", decision=f"discard {MARK}")
    (one,), after = start(state, changed)
    assert (one.verdict, one.note) == (Verdict.CHANGED, "the state of 2 keys of 'p/aggregate#0' is discarded")
    assert [entry.value for entry in changes_of([one], state)].count(None) == 2
    assert after[owner_of("p/aggregate#0")] == {}
    after[owner_of("p/aggregate#0")] = dict(VALUES)
    (again,), then = start(after, changed)
    assert again.note.endswith(f"'state: discard {MARK}' belongs to an earlier change and does nothing")
    assert then == after
    assert "E4330" in refusal(after, step(window="1.0 s", decision=f"discard {MARK}")), "it was for the first change"


def test_kept_state_is_what_its_author_says():
    state = state_of(aggregate_0=(FACTS, VALUES))
    changed = step(key="upper(carrier)", decision=f"keep {MARK}")
    (one,), after = start(state, changed)
    assert one.note == "goes on with the state of 2 keys; as 'state: keep' says"
    assert after[owner_of("p/aggregate#0")] == VALUES
    assert stored_steps(after)["p/aggregate#0"].facts == changed.facts
    assert "E4330" in refusal(after, step(key="lower(carrier)", decision=f"keep {MARK}"))


def test_kept_state_must_be_readable():
    state = state_of(aggregate_0=(FACTS, {**VALUES, b"DL": b"unreadable"}))
    assert "cannot read the state of key 'DL'" in refusal(state, step(key="x", decision=f"keep {MARK}"))


def test_a_step_without_keys_may_change_freely():
    (one,), after = start(state_of(aggregate_0=(FACTS, {})), step(window="1.0 s"))
    assert (one.verdict, one.note) == (Verdict.CHANGED, "the store holds no keys of it")
    assert stored_steps(after)["p/aggregate#0"].facts["window"] == "1.0 s"


def test_state_from_before_fingerprints_is_recorded_and_said_so_once():
    state = state_of(aggregate_0=(None, VALUES))
    (one,), after = start(state, step())
    assert one.verdict is Verdict.CHANGED
    assert one.note.startswith("goes on with the state of 2 keys; a version without fingerprints has stored it")
    (again,), _ = start(after, step())
    assert again.verdict is Verdict.UNCHANGED


def test_state_from_before_fingerprints_that_cannot_be_read_is_refused():
    state = state_of(aggregate_0=(None, {b"UA": b"unreadable"}))
    assert f"discard {UNKNOWN}" in refusal(state, step())
    _, after = start(state, step(decision=f"discard {UNKNOWN}"))
    assert after[owner_of("p/aggregate#0")] == {}


def test_the_advice_for_a_renamed_step_is_given_only_where_it_helps():
    """`was` names a step of the same pipeline, so it is of no use if the pipeline has another name."""
    state = state_of(aggregate_0=(FACTS, VALUES))
    assert "give the step its name and was: 'aggregate#0'" in refusal(state, step(name="p/sums"))
    for told in (refusal(state, step(name="q/aggregate#0")), refusal(state, step(name="q/aggregate#0", was="q/x"))):
        assert "Put it back: a pipeline keeps its name as long as the store holds state of it. To delete" in told
        assert "was:" not in told


def test_a_removed_step_is_refused_until_its_state_is_discarded():
    state = state_of(aggregate_0=(FACTS, VALUES))
    told = refusal(state)
    assert told.startswith("E4331 step 'p/aggregate#0': is not configured")
    entry = f"p/aggregate#0 {MARK}"
    assert f"discard_state: ['{entry}']" in told
    (one,), after = start(state, discarded=[entry])
    assert "the state of 2 keys is discarded" in one.note
    assert stored_steps(after) == {}
    (idle,), _ = start(after, discarded=[entry])
    assert idle.idle
    assert (idle.kind, idle.verdict) == ("discard_state", Verdict.UNCHANGED)
    assert "E4331" in refusal(state, discarded=["p/aggregate#0 00000000"])


def test_a_removed_step_without_keys_is_left_out():
    (one,), after = start(state_of(aggregate_0=(FACTS, {})))
    assert (one.verdict, one.note) == (Verdict.CHANGED, "not configured any more; holds no keys")
    assert stored_steps(after) == {}


def test_a_renamed_step_takes_its_state_along():
    state = state_of(aggregate_0=(FACTS, VALUES))
    named = step("p/late", was="p/aggregate#0")
    (one,), after = start(state, named)
    assert (one.verdict, one.note) == (Verdict.MOVED, "goes on with the state of 2 keys of 'p/aggregate#0'")
    assert stored_steps(after).keys() == {"p/late"}
    assert stored_steps(after)["p/late"].values == VALUES
    (again,), then = start(after, named)
    assert again.verdict is Verdict.UNCHANGED
    assert then == after


def test_a_renamed_step_that_changed_is_refused_under_both_names():
    state = state_of(aggregate_0=(FACTS, VALUES))
    assert "of 'p/aggregate#0'" in refusal(state, step("p/late", was="p/aggregate#0", window="1.0 s"))
    (one,), after = start(state, step("p/late", was="p/aggregate#0", window="1.0 s", decision=f"discard {MARK}"))
    assert one.discarded == "p/aggregate#0"
    assert stored_steps(after)["p/late"].values == {}
    assert "p/aggregate#0" not in stored_steps(after)


def test_a_name_for_a_step_and_a_new_one_at_its_place():
    state = state_of(aggregate_0=(FACTS, VALUES))
    configured = [step(window="1.0 s"), step("p/late", was="p/aggregate#0")]
    (new, moved), after = start(state, *configured)
    assert (new.verdict, moved.verdict) == (Verdict.NEW, Verdict.MOVED)
    kept = stored_steps(after)
    assert kept["p/late"].values == VALUES
    assert (kept["p/aggregate#0"].facts["window"], kept["p/aggregate#0"].values) == ("1.0 s", {})
    assert [one.verdict for one in start(after, *configured)[0]] == [Verdict.UNCHANGED] * 2


OTHER_VALUES, MORE_VALUES = {b"DL": b"3"}, {b"WN": b"4"}


def values_of(state):
    """The values of each step of the store that has any."""
    return {name.removeprefix("p/"): one.values for name, one in stored_steps(state).items() if one.values}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_chain_of_new_names_is_resolved_in_one_start(reverse):
    state = state_of(a=(FACTS, VALUES), b=(FACTS, OTHER_VALUES), c=(FACTS, MORE_VALUES))
    configured = [step("p/b", was="p/a"), step("p/c", was="p/b"), step("p/d", was="p/c"), step("p/a")]
    found, after = start(state, *(reversed(configured) if reverse else configured))
    assert {one.name: (one.verdict, one.source) for one in found} == {
        "p/a": (Verdict.NEW, ""),
        "p/b": (Verdict.MOVED, "p/a"),
        "p/c": (Verdict.MOVED, "p/b"),
        "p/d": (Verdict.MOVED, "p/c"),
    }
    assert values_of(after) == {"b": VALUES, "c": OTHER_VALUES, "d": MORE_VALUES}
    again, then = start(after, *configured)
    assert {one.verdict for one in again} == {Verdict.UNCHANGED}
    assert then == after


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_names_that_are_exchanged_are_refused_with_a_way_to_do_it(names):
    """The same lines would exchange the state back at the next start."""
    state = state_of(**{name: (FACTS, {name.encode(): b"1"}) for name in names})
    circle = list(zip(names, names[1:] + names[0], strict=True))
    told = refusal(state, *(step(f"p/{name}", was=f"p/{before}") for name, before in circle))
    assert told.count("E4330") == len(names)
    assert "E4330 step 'p/a': the steps of 'was' form a circle: p/a, p/b" in told
    _, after = start(state, *(step(f"p/new {name}", was=f"p/{before}") for name, before in circle))
    assert values_of(after) == {f"new {name}": {before.encode(): b"1"} for name, before in circle}


def test_a_was_that_cannot_be_followed_is_named_where_its_state_is_refused():
    state = state_of(a=(FACTS, VALUES), b=(FACTS, OTHER_VALUES))
    told = refusal(state, step("p/b", was="p/a"))
    assert "of it; 'p/b', which names it in 'was', has state of its own. Put it back. To delete" in told


def test_a_was_that_does_nothing_is_told():
    state = state_of(a=(FACTS, VALUES), b=(FACTS, OTHER_VALUES))
    renamed = step("p/b", was="p/a")
    (one, _), _ = start(state, renamed, step("p/a"))
    assert (one.verdict, one.idle) == (Verdict.UNCHANGED, True)
    assert one.note == "goes on with the state of 1 key; 'was' does nothing, since the step has state of its own"
    (itself,), _ = start(state_of(a=(FACTS, VALUES)), step("p/a", was="p/a"))
    assert itself.idle
    _, after = start(state_of(a=(FACTS, VALUES)), renamed)
    (again,), _ = start(after, renamed)
    assert (again.note, again.idle) == (one.note.replace("1 key", "2 keys"), True)


def test_what_does_nothing_in_a_new_step_is_told():
    (one,), _ = start({}, step("p/late", was="p/late_", decision=f"keep {MARK}"))
    assert one.note == f"'state: keep {MARK}' and 'was', since the store holds nothing of 'p/late_', does nothing"
    assert one.idle


def test_a_step_put_before_another_gets_nothing_of_its_state():
    state = state_of(aggregate_0=(FACTS, VALUES))
    assert "window: 600.0 s -> 1.0 s" in refusal(state, step(window="1.0 s"), step("p/aggregate#1"))


def test_steps_in_another_order_are_refused():
    other = step(window="1.0 s").facts
    state = state_of(aggregate_0=(FACTS, VALUES), aggregate_1=(other, VALUES))
    told = refusal(state, step(window="1.0 s"), step("p/aggregate#1"))
    assert told.count("E4330") == 2


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_twins_cannot_be_told_apart(before, after):
    state = state_of(**{f"aggregate_{at}": (FACTS, VALUES) for at in range(before)})
    configured = [step(f"p/aggregate#{at}") for at in range(after)]
    assert "E4330 step 'p/aggregate#0': equal steps were added or removed" in refusal(state, *configured)
    same = [step(f"p/aggregate#{at}") for at in range(before)]
    assert {one.verdict for one in start(state, *same)[0]} == {Verdict.UNCHANGED}
    names = [step(f"p/n{at}", was=f"p/aggregate#{at}") for at in range(before)]
    assert {one.verdict for one in start(state, *names, step("p/another"))[0]} == {Verdict.MOVED, Verdict.NEW}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: Optional["Point"] = None


class Line(msgspec.Struct):
    points: list[Point]
    colour: Colour = Colour.RED


@pytest.mark.parametrize(
    ("how", "inner"),
    [
        ({}, "unit_price: int"),
        ({"rename": "camel"}, "unitPrice: int"),
        ({"array_like": True}, "array_like, unit_price: int"),
        ({"tag": "line"}, "type='line', unit_price: int"),
        ({"tag": 7, "tag_field": "kind"}, "kind=7, unit_price: int"),
    ],
)
def test_a_record_that_is_stored_in_another_way_is_described_otherwise(how, inner):
    record = msgspec.defstruct("Line", [("unit_price", int, 0)], **how)
    assert described(dict[str, record]) == f"dict(str, Line({inner}))"


def test_a_type_is_described_with_all_that_is_stored():
    assert (
        described(dict[str, Line])
        == "dict(str, Line(points: list(Point(x: int, y: NoneType | Point)), colour: Colour(red)))"
    )
    assert described(tuple[int, ...] | None) == "NoneType | tuple(int, ...)"
    assert described(Annotated[int, "positive"]) == "int"
    assert described(Literal["a", "b"]) == "typing.Literal['a', 'b']"
