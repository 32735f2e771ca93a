"""The columns that the engine adds to the rows of a pipeline: their names, types and handling in SQL (in Arrow:
`arrow_rows`). Needs neither Spark nor Arrow.

A row may be two things at once: a row of the user, and the carrier of effects. These hidden columns are beside the
user's columns:

- `_position`: the position, in the batch, of the message from which the row comes.
- `_part`: the order among the rows of one message, as text that sorts: each step that makes several rows of one row
  appends eight hexadecimal digits.
- `_live`: whether the row goes on to the next step. A step drops a row by setting this column to false.
- `_out`: the effects of the row so far: sends, dead letters, state. They travel with the row to the end of the
  pipeline, where all effects are collected at once, so a pipeline that sends in the middle is still one pass.
- `_message`: the message from which the row comes, until a keyed step makes new rows.

A row that is not live only carries its effects. Keyed steps and the SQL of single steps temporarily add further
columns. No column of the user may have any of these names (`visible`).
"""

# ruff: noqa: S608  all text here is SQL, made of the pipeline file, which is trusted like a program

from collections.abc import Mapping, Sequence
from typing import Any

from correlator.errors import ConfigError

POSITION, PART, LIVE, OUT, MESSAGE = "_position", "_part", "_live", "_out", "_message"
HIDDEN = (POSITION, PART, LIVE, OUT)
"""The hidden columns of all rows, in their order."""
OF_MESSAGES = (*HIDDEN, MESSAGE)
"""The hidden columns of the rows before the first keyed step."""
KEY, TIME = "_key", "_time"
KEYED = (*HIDDEN, KEY, TIME)
"""The columns that the engine adds to the rows for a keyed step: the key as text, and the event time."""
ROW, BAD, INDEX, REJECTED = "_row", "_bad", "_index", "_rejected"
"""Columns within the SQL of a step: a decoded body, whether a row is refused, a position in an array, the corrupt text
of a body."""

SEND, DEAD, STATE, FORWARD, REWRITE, CLOCK = range(6)
"""Kinds of effects: a row to send, a dead letter, state, a message to send unchanged or with the values of the row, the
event time of a step.
"""
EFFECT = ("kind", "step", "key", "body", "destination", "headers", "properties")
"""The fields of an effect."""

_OUT_TYPE = (
    "ARRAY<STRUCT<kind: INT, step: INT, key: STRING, body: BINARY, destination: STRING, headers: STRING, "
    "properties: STRING>>"
)
HIDDEN_DDL = f"{POSITION} BIGINT, {PART} STRING, {LIVE} BOOLEAN, {OUT} {_OUT_TYPE}"
NOTHING = f"CAST(array() AS {_OUT_TYPE})"
"""An `_out` without effects, in SQL."""
CARRIES = f"size({OUT}) > 0"
"""The SQL condition that a row has effects."""
GROUPED = f"DISTRIBUTE BY coalesce({KEY}, CAST({POSITION} AS STRING)) SORT BY {KEY}, {POSITION}, {PART}"
"""Brings the rows of one key to one worker, in order, and spreads the rows without a key over all workers."""


def _aside(name: str) -> str:
    return f"{name}_"


RESERVED = frozenset((*OF_MESSAGES, *map(_aside, OF_MESSAGES), KEY, TIME, ROW, BAD, INDEX, REJECTED))
"""Names that no column of the user may have."""


def visible(names: Sequence[str], hidden: Sequence[str], where: str) -> list[str]:
    """The columns of the user among all columns of a relation, in their order.

    Args:
        names: names of all columns.
        hidden: names of the hidden columns of the relation, each once.
        where: pipeline and step, for messages.

    Raises:
        ConfigError: E1517, two columns have one name, or a column of the user has a name that the engine uses; Spark
            does not distinguish upper and lower case.
    """
    columns = [name for name in names if name not in hidden]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None and twice not in RESERVED:
        raise ConfigError("E1517", where, f"there are two columns '{twice}'", "", "Rename one of them")
    taken = twice or next((name for name in columns if name.lower() in RESERVED), None)
    if taken is not None:
        raise ConfigError("E1517", where, f"column '{taken}' has a name that the engine uses")
    return columns


def quote(name: str) -> str:
    """A name in the quotes of SQL, which may contain any character."""
    return f"`{name.replace('`', '``')}`"


def hidden_sql(hidden: Sequence[str], changes: Mapping[str, str] | None = None) -> str:
    """The hidden columns of a SELECT; the expressions of `changes` replace the columns that they name."""
    changed = changes or {}
    return ", ".join(f"{changed[name]} AS {name}" if name in changed else name for name in hidden)


def hidden_aside(hidden: Sequence[str]) -> str:
    """The hidden columns with other names and without effects, for a SELECT with a `*` that also contains the hidden
    columns.
    """
    return ", ".join(f"{NOTHING if name == OUT else name} AS {_aside(name)}" for name in hidden)


def hidden_back(hidden: Sequence[str]) -> str:
    """The columns of `hidden_aside` with their own names."""
    return ", ".join(f"{_aside(name)} AS {name}" for name in hidden)


def if_live(expression: str) -> str:
    """An expression of the user, NULL for rows that are not live: a row that was dropped must not fail again."""
    return f"CASE WHEN {LIVE} THEN ({expression}) END"


def live_and(condition: str) -> str:
    """Whether a row is live and a condition of the user is true for it, never NULL."""
    return f"coalesce({if_live(condition)}, false)"


def out_with(condition: str, effect: str) -> str:
    """`_out` with one more effect in the rows for which a condition is true."""
    return f"CAST(CASE WHEN {condition} THEN concat({OUT}, array({effect})) ELSE {OUT} END AS {_OUT_TYPE})"


def effect_sql(kind: int, step: int, **fields: str) -> str:
    """An effect; `fields` are expressions of the types of `_out`, the other fields are NULL."""
    nothing = dict.fromkeys(EFFECT, "CAST(NULL AS STRING)") | {"body": "CAST(NULL AS BINARY)"}
    values = {**nothing, "kind": str(kind), "step": str(step), **fields}
    return f"struct({', '.join(f'{value} AS {name}' for name, value in values.items())})"


def collect_sql(source: str) -> str:
    """All effects of a relation, each as a row with the position and part of the row that carries it."""
    return f"SELECT {POSITION}, {PART}, inline({OUT}) FROM {source}"


def effect(kind: int, step: int, key: str | None, body: bytes | None) -> dict[str, Any]:
    """An effect that is not a send."""
    return {**dict.fromkeys(EFFECT), "kind": kind, "step": step, "key": key, "body": body}


def live_row(position: int, part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the user with these values and no effects."""
    return {POSITION: position, PART: part, LIVE: True, OUT: [], **values}


def carrier(position: int, part: str, one: Mapping[str, Any]) -> dict[str, Any]:
    """A row that only carries an effect."""
    return {POSITION: position, PART: part, LIVE: False, OUT: [one]}
