"""The types of state, their encoding, and the table that writes its changed keys only."""

import dataclasses
import datetime as dt
import decimal
import enum
import threading
import uuid
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.state import CHECKED, Codec, StateTable, check_type, encode, is_immutable
from correlator.errors import StateError
from correlator.events import event


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int


class Frozen(msgspec.Struct, frozen=True):
    x: int


class FrozenWithList(msgspec.Struct, frozen=True):
    xs: list[int]


class Tree(msgspec.Struct):
    children: list["Tree"]


class Locked(msgspec.Struct):
    inner: threading.Lock


@dataclasses.dataclass
class Pair:
    a: int
    b: str
    shared: ClassVar[int] = 1


@event
class Seen:
    what: str


ALLOWED = [
    None.__class__,
    bool,
    int,
    float,
    str,
    bytes,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
    Colour,
    Literal["a", "b"],
    int | None,
    list[int],
    tuple[int, ...],
    tuple[int, str],
    dict[str, list[Point]],
    set[str],
    frozenset[int],
    Annotated[int, "metres"],
    Point,
    Pair,
    Seen,
    Tree,
]


@pytest.mark.parametrize("annotation", ALLOWED, ids=str)
def test_allowed_types(annotation):
    check_type(annotation, "monitor M", "field")


@pytest.mark.parametrize(
    ("annotation", "path"),
    [
        (threading.Thread, "field"),
        (object, "field"),
        (Any, "field"),
        (complex, "field"),
        (type, "field"),
        (bytearray, "field"),
        (list[threading.Thread], "field[]"),
        (dict[str, list[threading.Thread]], "field[][]"),
        (int | threading.Thread, "field"),
        (Locked, "field.inner"),
        (list[Locked], "field[].inner"),
    ],
    ids=str,
)
def test_t46_40_other_types_are_refused_with_the_path_to_them(annotation, path):
    with pytest.raises(StateError) as refused:
        check_type(annotation, "monitor M", "field")
    assert refused.value.code == "E4101"
    assert f"field '{path}' has type" in str(refused.value)
    assert "Allowed: None, bool, int" in str(refused.value)


@pytest.mark.parametrize(
    ("annotation", "immutable"),
    [
        (int, True),
        (str | None, True),
        (tuple[int, ...], True),
        (frozenset[str], True),
        (Literal["a"], True),
        (Colour, True),
        (Frozen, True),
        (Seen, True),
        (list[int], False),
        (dict[str, int], False),
        (set[int], False),
        (tuple[list[int], ...], False),
        (Point, False),
        (Pair, False),
        (FrozenWithList, False),
    ],
    ids=str,
)
def test_what_can_change_in_place(annotation, immutable):
    assert is_immutable(annotation) is immutable


SAMPLES = {
    int: 5,
    float: 0.5,
    bytes: b"\x00\xff",
    dt.datetime: dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC),
    dt.timedelta: dt.timedelta(seconds=90),
    decimal.Decimal: decimal.Decimal("1.10"),
    uuid.UUID: uuid.UUID(int=1),
    Colour: Colour.RED,
    set[str]: {"b", "a"},
    frozenset[int]: frozenset({1}),
    tuple[int, str]: (1, "x"),
    dict[int, list[Point]]: {3: [Point(1, 2)]},
    Pair: Pair(1, "x"),
    Seen: Seen(what="x"),
    Tree: Tree([Tree([])]),
}


@pytest.mark.parametrize("annotation", SAMPLES, ids=str)
def test_a_value_comes_back_as_it_was(annotation):
    codec = Codec(annotation, "here")
    assert codec.decode(codec.encode(SAMPLES[annotation])) == SAMPLES[annotation]


def test_equal_state_has_equal_bytes():
    assert encode({"a": 1, "b": {"x", "y", "z"}}, "") == encode({"b": {"z", "y", "x"}, "a": 1}, "")


@pytest.mark.parametrize(
    ("annotation", "value", "code"),
    [(int, "x", "E4103"), (list[int], [1, "2"], "E4103"), (int, threading.Lock(), "E4102"), (int, 2**70, "E4102")],
)
def test_a_value_that_does_not_fit_is_refused(annotation, value, code):
    with pytest.raises(StateError) as refused:
        Codec(annotation, "monitor M").encode(value)
    assert refused.value.code == code


def test_bytes_of_another_type_are_never_guessed():
    with pytest.raises(StateError, match=r"E4203 .*migrate_state"):
        Codec(Point, "monitor M").decode(encode({"renamed": 1}, ""))


# --- StateTable ---


def a_table(value_type: Any = int, **content: Any) -> StateTable[str, Any]:
    """A table as a restart makes it: values still encoded."""
    table: StateTable[str, Any] = StateTable(str, value_type, "table:M#0.t")
    table.load({encode(key, ""): encode(value, "") for key, value in content.items()})
    return table


def changes(table: StateTable[str, Any]) -> dict[str, Any]:
    decode = msgspec.msgpack.decode
    return {decode(entry.key): None if entry.value is None else decode(entry.value) for entry in table.take_changes()}


def test_only_changed_keys_are_written():
    table = a_table(a=1, b=2)
    table["b"] += 5
    table["c"] = 9
    assert changes(table) == {"b": 7, "c": 9}
    assert changes(table) == {}


def test_reading_a_value_that_cannot_change_writes_nothing():
    table = a_table(a=1)
    assert (table["a"], table.get("a"), dict(table)) == (1, 1, {"a": 1})
    assert changes(table) == {}


def test_a_value_changed_in_place_is_written():
    table = a_table(list[int], a=[1], b=[2])
    table["a"].append(5)
    assert changes(table) == {"a": [1, 5]}


@pytest.mark.parametrize("how", ["get", "items", "values", "setdefault"])
def test_a_value_handed_out_in_any_way_is_written(how):
    table = a_table(list[int], a=[1])
    found = {
        "get": lambda: table.get("a"),
        "items": lambda: dict(table.items())["a"],
        "values": lambda: next(iter(table.values())),
        "setdefault": lambda: table.setdefault("a", []),
    }[how]()
    found.append(2)
    assert changes(table) == {"a": [1, 2]}


def test_deleting_writes_the_absence():
    table = a_table(a=1, b=2)
    del table["a"]
    assert table.pop("b") == 2
    assert len(table) == 0
    assert changes(table) == {"a": None, "b": None}


def test_a_stored_value_that_is_replaced_unread_does_not_come_back():
    table = a_table(a=1, b=2)
    table["a"] = 5
    assert (sorted(table), len(table), table["a"]) == (["a", "b"], 2, 5)
    del table["a"]
    assert (list(table), len(table), changes(table)) == (["b"], 1, {"a": None})


def test_a_missing_key_is_a_key_error():
    table = a_table(a=1)
    with pytest.raises(KeyError):
        table["x"]
    with pytest.raises(KeyError):
        del table["x"]
    assert table.get("x", 5) == 5


def test_values_stay_encoded_until_they_are_used():
    table = a_table(Point, a={"x": 1, "y": 2}, broken={"x": "no", "y": 2})
    assert len(table) == 2
    assert "broken" in table
    assert table["a"] == Point(1, 2)
    with pytest.raises(StateError, match="E4203"):
        table["broken"]


def test_the_first_values_are_compared_with_the_type_and_stay_encoded():
    table = a_table(**{f"k{number:03}": number for number in range(CHECKED)}, odd="no")
    table.check_stored()
    assert (table["k000"], len(table)) == (0, CHECKED + 1)
    with pytest.raises(StateError, match="E4203"):
        table["odd"]
    with pytest.raises(StateError, match=r"E4203 table:M#0\.t: .*Declare a type that takes the stored values"):
        a_table(str, **{f"k{number}": number for number in range(CHECKED)}).check_stored()
    a_table().check_stored()


def test_iteration_meets_every_key_though_reading_warms_others():
    table = a_table(a=1, b=2, c=3)
    assert table["b"] == 2
    met = []
    for key in table:
        met.append(key)
        assert (table["a"], table["c"]) == (1, 3)
    assert sorted(met) == ["a", "b", "c"]


def test_undo_takes_back_every_change_since_it_began():
    table = a_table(list[int], kept=[1], changed=[2], deleted=[3])
    table["kept"].append(9)
    table.begin_undo()
    table["changed"].append(9)
    del table["deleted"]
    table["made"] = [4]
    table.undo()
    assert dict(table) == {"kept": [1, 9], "changed": [2], "deleted": [3]}


def test_after_undo_the_table_writes_what_changed_before():
    table = a_table(list[int], a=[1], c=[4])
    table["c"].append(5)
    table.begin_undo()
    table["a"].append(2)
    table["b"] = [3]
    del table["c"]
    table.undo()
    assert dict(table) == {"a": [1], "c": [4, 5]}
    assert changes(table).keys() == {"a", "c"}, "reading counts"


@pytest.mark.parametrize("key", [None, "\ud800", 1, 1.0, b"a", 2**70])
def test_a_key_that_cannot_be_stored_is_refused_at_the_call_and_leaves_nothing(key):
    table = a_table(int, a=1)
    for call in (lambda: table.__setitem__(key, 2), lambda: table.setdefault(key, 2)):
        with pytest.raises(StateError, match="E410[23]"):
            call()
    with pytest.raises(KeyError):
        del table[key]
    assert changes(table) == {}
    assert dict(table) == {"a": 1}


def test_an_equal_key_of_another_type_is_refused():
    table: StateTable[int, int] = StateTable(int, int, "table")
    table[1] = 1
    for key in (True, 1.0):
        with pytest.raises(StateError, match="E4103"):
            table[key] += 1
    assert [type(key) for key in table] == [int]


def test_what_was_checked_after_an_event_is_what_a_cut_writes():
    """Given a handler that keeps a value, when it changes that in another event, then the table does not follow."""
    table = a_table(list[object], a=[1])
    table.begin_undo()
    kept = table["a"]
    table.check_changes()
    kept.append(object())
    assert changes(table) == {"a": [1]}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "delete", "append", "begin", "undo", "checkpoint", "restart"]),
            st.sampled_from("abc"),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_a_table_is_a_dict_that_survives(steps):
    """Whatever happens, the table is what a dict would be, and the store has it after each checkpoint."""
    table, model = a_table(list[int]), {}
    stored: dict[bytes, bytes] = {}
    before: dict[str, list[int]] | None = None
    for what, key, value in steps:
        if what == "set":
            table[key], model[key] = [value], [value]
        elif what == "delete" and key in model:
            del table[key], model[key]
        elif what == "append" and key in model:
            table[key].append(value)
            model[key].append(value)
        elif what == "begin":
            table.begin_undo()
            before = {name: list(kept) for name, kept in model.items()}
        elif what == "undo" and before is not None:
            table.undo()
            model, before = before, None
        elif what in ("checkpoint", "restart") and before is None:
            for entry in table.take_changes():
                stored.pop(entry.key, None)
                if entry.value is not None:
                    stored[entry.key] = entry.value
            if what == "restart":
                table = StateTable(str, list[int], "t")
                table.load(stored)
            assert {msgspec.msgpack.decode(k): msgspec.msgpack.decode(v) for k, v in stored.items()} == model
        assert {name: list(kept) for name, kept in table.items()} == model
        assert len(table) == len(model)
