"""The hidden columns of a pipeline's rows, without Spark."""

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest

from correlator.errors import ConfigError
from correlator.pipeline import arrow_rows, envelope
from correlator.pipeline.envelope import DEAD, HIDDEN, LIVE, OF_MESSAGES, OUT, PART, POSITION, SEND
from correlator.pipeline.worker import ArrowFunction

HERE = Path(__file__).parent
PACKAGE = Path(envelope.__file__).parent
NAMES = re.compile(r"\b_(position|part|live|out|message|key|time|row|bad|index|rejected)\b")
EFFECTS = pa.list_(
    pa.struct([(name, {"kind": pa.int32(), "step": pa.int32(), "body": pa.binary()}.get(name, pa.string())) for name in envelope.EFFECT])
)  # fmt: skip
TYPES = {
    POSITION: pa.int64(),
    PART: pa.string(),
    LIVE: pa.bool_(),
    OUT: EFFECTS,
    "value": pa.int64(),
    "name": pa.string(),
}


def schema_of(*names: str) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names])


def batch_of(schema: pa.Schema, *rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


SENT = {**envelope.effect(SEND, 0, "k", b"x")}
ORDERS = [
    (POSITION, PART, LIVE, OUT, "value", "name"),
    (POSITION, PART, OUT, "value", "name", LIVE),  # after `where`
    (POSITION, "value", PART, LIVE, "name", OUT),
]


def test_no_other_module_writes_the_name_of_a_hidden_column() -> None:
    found = []
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path.name}:{node.lineno} {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
            if path.name != "envelope.py" and NAMES.search(node.value)
        ]
    assert found == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_python_step_takes_its_rows_wherever_the_hidden_columns_stand(order: tuple[str, ...]) -> None:
    schema = schema_of(*order)
    rows = [
        envelope.live_row(0, "", {"value": 1, "name": "a"}) | {OUT: [SENT]},
        envelope.live_row(1, "", {"value": 2, "name": "b"}),
        envelope.carrier(2, "", SENT) | {"value": 3, "name": "c"},
    ]
    step = ArrowFunction("machines:same", (str(HERE),), 4, "step", schema)
    live, dropped = step(iter([batch_of(schema, *rows)]))
    assert live.schema == dropped.schema == schema
    assert live.to_pylist() == rows[:2]
    assert dropped.to_pylist() == [{**rows[2], "value": None, "name": None}]


@pytest.mark.parametrize("order", ORDERS)
def test_a_row_with_which_a_python_step_fails_keeps_its_effects(order: tuple[str, ...]) -> None:
    schema = schema_of(*order)
    row = envelope.live_row(7, "00000001", {"value": 13, "name": "a"}) | {OUT: [SENT]}
    step = ArrowFunction("machines:double", (str(HERE),), 4, "step", schema)
    (dead,) = step(iter([batch_of(schema, row)]))
    letter = envelope.effect(DEAD, 4, None, b"E5106 step: ValueError: thirteen")
    assert dead.to_pylist() == [
        {POSITION: 7, PART: "00000001", LIVE: False, OUT: [SENT, letter], "value": None, "name": None}
    ]


@pytest.mark.parametrize(
    ("names", "hidden", "told"),
    [
        ([*HIDDEN, "a", "b"], HIDDEN, ""),
        ([*OF_MESSAGES, "a"], OF_MESSAGES, ""),
        ([*OF_MESSAGES, "a"], HIDDEN, "column '_message' has a name that the engine uses"),
        ([*HIDDEN, "a", LIVE], HIDDEN, "column '_live' has a name that the engine uses"),
        ([LIVE], (), "column '_live' has a name that the engine uses"),
        ([*HIDDEN, "_OUT"], HIDDEN, "column '_OUT' has a name that the engine uses"),
        ([*HIDDEN, "_part_"], HIDDEN, "column '_part_' has a name that the engine uses"),
        ([*HIDDEN, "_key"], HIDDEN, "column '_key' has a name that the engine uses"),
        ([*HIDDEN, "a", "b", "a"], HIDDEN, "there are two columns 'a'"),
    ],
)
def test_a_column_of_the_user_has_none_of_the_engine_s_names(
    names: list[str], hidden: tuple[str, ...], told: str
) -> None:
    if not told:
        assert envelope.visible(names, hidden, "step") == [name for name in names if name not in hidden]
        return
    with pytest.raises(ConfigError, match=f"E1517 step: {told}"):
        envelope.visible(names, hidden, "step")


def test_effects_come_back_in_the_order_of_messages_parts_and_rows() -> None:
    rows = [(2, "", "e"), (1, "0000000A", "d"), (1, "00000001", "b"), (1, "00000001", "c"), (0, "0000000F", "a")]
    nothing = dict.fromkeys(envelope.EFFECT)
    collected = pa.Table.from_pylist([{POSITION: at, PART: part, **nothing, "key": key} for at, part, key in rows])
    assert [(position, key) for position, _, _, key, *_ in arrow_rows.in_order(collected)] == [
        (0, "a"), (1, "b"), (1, "c"), (1, "d"), (2, "e"),
    ]  # fmt: skip
