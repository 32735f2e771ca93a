"""What a reader of a replication slot makes of the bytes of the server: the format, the messages, and the progress."""

import contextlib
import json
import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.sql.change_progress import ChangeProgress
from connectors.sql.changes import Layout
from connectors.sql.pgoutput import (
    Begin,
    Change,
    Column,
    Commit,
    Keepalive,
    Kept,
    Other,
    Relation,
    Truncate,
    Value,
    Wal,
    lsn_of,
    lsn_text,
    read_change,
    read_frame,
    status,
)

LSNS = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(0, 2**32 - 1)
NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.lists(st.none() | st.just(Kept.UNCHANGED) | st.binary(max_size=40), max_size=5)
MAYBE_OLD = st.none() | st.tuples(st.sampled_from([b"K", b"O"]), VALUES)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(values: Sequence[Value]) -> bytes:
    """A row as the server writes it."""
    written = [
        b"n" if one is None else b"u" if isinstance(one, Kept) else b"t" + struct.pack("!I", len(one)) + one
        for one in values
    ]
    return struct.pack("!H", len(values)) + b"".join(written)


def relation(described: Relation) -> bytes:
    columns = b"".join(
        bytes([one.is_key]) + text(one.name) + struct.pack("!Ii", one.type, one.modifier) for one in described.columns
    )
    names = text(described.schema) + text(described.table)
    count = struct.pack("!H", len(described.columns))
    return b"R" + struct.pack("!I", described.oid) + names + b"d" + count + columns


def change(kind: bytes, oid: int, old: tuple[bytes, Sequence[Value]] | None, new: Sequence[Value] | None) -> bytes:
    before = b"" if old is None else old[0] + row(old[1])
    return kind + struct.pack("!I", oid) + before + (b"" if new is None else b"N" + row(new))


RELATIONS = st.builds(
    Relation,
    NUMBERS,
    NAMES,
    NAMES,
    st.lists(st.builds(Column, NAMES, NUMBERS, st.integers(-1, 2**31 - 1), st.booleans()), max_size=4),
)
MESSAGES = (
    st.tuples(NUMBERS, VALUES).map(lambda one: change(b"I", one[0], None, one[1]))
    | st.tuples(NUMBERS, MAYBE_OLD, VALUES).map(lambda one: change(b"U", *one))
    | RELATIONS.map(relation)
    | st.tuples(LSNS, st.integers(0, 2**50), NUMBERS).map(lambda one: b"B" + struct.pack("!QqI", *one))
    | st.tuples(LSNS, LSNS).map(lambda one: b"C\0" + struct.pack("!QQq", *one, 0))
    | st.lists(NUMBERS).map(lambda ids: b"T" + struct.pack(f"!IB{len(ids)}I", len(ids), 0, *ids))
)


# --- the format ---


@given(NUMBERS, MAYBE_OLD, VALUES)
def test_changes_of_rows(oid: int, old: tuple[bytes, list[Value]] | None, new: list[Value]) -> None:
    before, whole = (None, False) if old is None else (old[1], old[0] == b"O")
    assert read_change(change(b"U", oid, old, new)) == Change("update", oid, before, new, whole)
    assert read_change(change(b"I", oid, None, new)) == Change("insert", oid, None, new)
    assert read_change(change(b"D", oid, (b"K", new), None)) == Change("delete", oid, new, None)


@given(RELATIONS)
def test_descriptions_of_tables(described: Relation) -> None:
    assert read_change(relation(described)) == described


@given(LSNS, LSNS, st.lists(NUMBERS, max_size=5))
def test_transactions_and_places(lsn: int, end: int, tables: list[int]) -> None:
    assert read_change(b"B" + struct.pack("!QqI", lsn, 1_000_000, 7)) == Begin(lsn, 946_684_801_000)
    assert read_change(b"C\0" + struct.pack("!QQq", lsn, end, 0)) == Commit(end)
    packed = struct.pack(f"!IB{len(tables)}I", len(tables), 3, *tables)
    assert read_change(b"T" + packed) == Truncate(tuple(tables))
    assert read_frame(b"k" + struct.pack("!QqB", end, 0, 1)) == Keepalive(end, True)
    assert read_frame(b"w" + struct.pack("!QQq", lsn, end, 0) + b"xyz") == Wal(b"xyz")
    assert lsn_of(lsn_text(lsn)) == lsn


def test_what_the_server_is_told() -> None:
    told = status(7, 5, 946_684_800_000_002_000, asks=True)
    assert told == b"r" + struct.pack("!QQQqB", 7, 5, 5, 2, 1)
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert read_change(b"Ywhatever") == Other(b"Y")


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_off_is_an_error(whole: bytes, data: st.DataObject) -> None:
    """No part of a message passes for another one."""
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ValueError):
        read_change(part)


@given(st.binary(max_size=60) | st.tuples(st.sampled_from("BCRIUDT"), st.binary(max_size=60)).map(
    lambda one: one[0].encode() + one[1]
))  # fmt: skip
def test_other_bytes_are_an_error_or_a_message(data: bytes) -> None:
    for read in (read_change, read_frame):
        with contextlib.suppress(ValueError):
            read(data)


# --- messages ---

KINDS = {
    "b": (16, b"t", True),
    "raw": (17, b"\\x00ff41", "AP9B"),
    "big": (20, b"9007199254740993", 9007199254740993),
    "j": (114, b'{"a": [1, null]}', {"a": [1, None]}),
    "f": (701, b"1e+20", 1e20),
    "nan": (701, b"NaN", "NaN"),
    "inf": (1700, b"-Infinity", "-Infinity"),
    "n": (1700, b"1.50", 1.5),
    "day": (1082, b"2026-01-31", "2026-01-31"),
    "at": (1114, b"2026-01-31 10:00:00.5", "2026-01-31T10:00:00.5"),
    "tz": (1184, b"2026-01-31 10:00:00+00", "2026-01-31T10:00:00+00:00"),
    "bc": (1184, b"0044-03-15 00:00:00+00 BC", "0044-03-15T00:00:00+00:00 BC"),
    "ever": (1184, b"infinity", "infinity"),
    "array": (1009, b'{x,"y z"}', '{x,"y z"}'),
    'it\'s "q" \\': (25, 'Grüße "\n'.encode(), 'Grüße "\n'),
    "bad": (25, b"\xff", "\\xff"),
    "null": (23, None, None),
}


def test_values_as_json() -> None:
    described = Relation(1, "public", "t", [Column(name, kind, -1) for name, (kind, _, _) in KINDS.items()])
    content = Layout(described).changed(Change("insert", 1, None, [value for _, value, _ in KINDS.values()]))
    assert json.loads(content.body) == {name: value for name, (_, _, value) in KINDS.items()}
    assert content.body.startswith(b'{"b":true,"raw":"AP9B","big":9007199254740993,')
    assert b'"n":1.50,' in content.body


@pytest.mark.parametrize("value", [b"00ff41", b"\\000\\377A", b"ab", b""])
def test_bytes_that_are_not_in_hex_are_an_error(value: bytes) -> None:
    layout = Layout(Relation(1, "public", "t", [Column("raw", 17, -1)]))
    with pytest.raises(ValueError, match="not in the hex format"):
        layout.changed(Change("insert", 1, None, [value]))


TABLE = Relation(1, "public", "t", [Column("id", 23, -1, True), Column("a", 25, -1), Column("b", 25, -1)])


@pytest.mark.parametrize(
    ("change", "body", "properties"),
    [
        (Change("insert", 1, None, [b"1", b"x", None]), {"id": 1, "a": "x", "b": None}, {}),
        (Change("update", 1, None, [b"1", b"y", Kept.UNCHANGED]), {"id": 1, "a": "y"}, {"unchanged": '["b"]'}),
        (
            Change("update", 1, [b"1", None, None], [b"2", b"x", b"z"]),
            {"id": 2, "a": "x", "b": "z"},
            {"old": '{"id":1}'},
        ),
        (
            Change("update", 1, [b"1", b"x", b"big"], [b"1", b"y", Kept.UNCHANGED], is_whole=True),
            {"id": 1, "a": "y", "b": "big"},
            {"old": '{"id":1,"a":"x","b":"big"}'},
        ),
        (Change("delete", 1, [b"1", None, None], None), {"id": 1}, {}),
        (Change("delete", 1, [b"1", None, b"z"], None, is_whole=True), {"id": 1, "a": None, "b": "z"}, {}),
    ],
    ids=["insert", "unchanged is not null", "another key", "full identity", "delete", "delete with full identity"],
)
def test_a_change_as_a_message(change: Change, body: dict[str, object], properties: dict[str, str]) -> None:
    content = Layout(TABLE).changed(change)
    assert json.loads(content.body) == body
    layout = content.properties.pop("layout")
    assert content.properties == {"operation": change.operation, "schema": "public", "table": "t", **properties}
    assert Layout(TABLE).truncated().properties["layout"] == layout
    other = TABLE._replace(columns=[*TABLE.columns, Column("c", 25, -1)])
    assert Layout(other).truncated().properties["layout"] != layout


def test_a_change_of_another_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Layout(TABLE).changed(Change("insert", 1, None, [b"1"]))


@given(st.lists(st.none() | st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))))
def test_rows_of_a_snapshot(values: list[str | None]) -> None:
    """Each text comes back from the text format of COPY."""
    escapes = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    line = "\t".join("\\N" if one is None else "".join(escapes.get(char, char) for char in one) for one in values)
    layout = Layout(Relation(1, "s", "t", [Column(f"c{at}", 25, -1) for at in range(len(values))]))
    content = layout.read(line.encode() + b"\n")
    assert list(json.loads(content.body).values()) == values
    assert content.properties["operation"] == "snapshot"


# --- progress ---


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers())
def test_each_change_comes_once_whatever_is_acknowledged(sizes: list[int], seed: int) -> None:
    """Lives end anywhere. Of a transaction that comes again, only changes come that were not acknowledged."""
    chance = random.Random(seed)
    log = [(100 * (number + 1), size) for number, size in enumerate(sizes)]
    progress = ChangeProgress(0)
    acknowledged: list[object] = []
    is_last = False
    while not is_last:
        is_last = len(acknowledged) == sum(sizes)
        progress = ChangeProgress(progress.flushed, progress.rows.place, progress.rows.done)
        for lsn, size in log:
            if lsn < progress.flushed:
                continue
            progress.begin(lsn)
            for place in filter(None, [progress.next() for _ in range(size)]):
                (token,) = progress.rows.hold([place])
                if chance.random() < 0.6:
                    assert list(progress.acknowledge([token])) == [place]
                    acknowledged.append(place)
            if chance.random() < 0.1 and not is_last:
                break
            progress.end(lsn + 10)
            progress.told(lsn + 20)
        for lsn, size in log:
            if lsn < progress.flushed:
                assert {(lsn, index + 1) for index in range(size)} <= set(acknowledged)
    assert len(acknowledged) == len(set(acknowledged)) == sum(sizes)
    assert progress.is_settled
    assert progress.flushed == log[-1][0] + 20


def test_the_log_may_go_when_nothing_waits() -> None:
    progress = ChangeProgress(10)
    progress.told(50)
    assert progress.flushed == 50
    progress.begin(60)
    place = progress.next()
    assert place == (60, 1)
    (token,) = progress.rows.hold([place])
    progress.told(65)
    progress.end(70)
    progress.told(80)
    assert (progress.flushed, progress.received) == (50, 80)
    progress.acknowledge([token])
    assert progress.flushed == 70
    progress.told(90)
    assert progress.flushed == 90


def test_the_order_of_the_server_is_needed() -> None:
    with pytest.raises(ValueError, match="outside a transaction"):
        ChangeProgress(0).next()
    with pytest.raises(ValueError, match="without a transaction"):
        ChangeProgress(0).end(5)
