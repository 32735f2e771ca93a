"""The columns that the engine adds to the rows of a pipeline (`envelope`), in Arrow batches."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from correlator.pipeline.envelope import EFFECT, KEY, LIVE, OF_MESSAGES, OUT, PART, POSITION, ROW, TIME

_HIDDEN = frozenset(OF_MESSAGES)
_EFFECT_TYPES = {"kind": pa.int32(), "step": pa.int32(), "body": pa.binary()}
KEYED_SCHEMA = pa.schema(
    [
        (POSITION, pa.int64()),
        (PART, pa.string()),
        (LIVE, pa.bool_()),
        (OUT, pa.list_(pa.struct([(name, _EFFECT_TYPES.get(name, pa.string())) for name in EFFECT]))),
        (KEY, pa.string()),
        (TIME, pa.timestamp("us", tz="UTC")),
    ]
)
"""The rows that go into a keyed step, without the columns of the user."""


def live_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of the user."""
    return batch.filter(batch.column(LIVE))


def other_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are not live."""
    return batch.filter(pc.invert(batch.column(LIVE)))


def carriers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that have effects, live or not."""
    return batch.filter(pc.greater(pc.list_value_length(batch.column(OUT)), 0))


def only_carrying(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows without their values and not live, in a schema that may have other columns of the user."""
    kept = {name: rows.column(name) for name in hidden_of(schema)}
    kept[LIVE] = pa.repeat(False, rows.num_rows)
    columns = [kept[one.name] if one.name in kept else pa.nulls(rows.num_rows, one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_effect(rows: pa.RecordBatch, one: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """The result of `only_carrying` for a single row, with one more effect."""
    hidden = {name: rows.column(name)[0].as_py() for name in hidden_of(schema)}
    return pa.RecordBatch.from_pylist([{**hidden, LIVE: False, OUT: [*hidden[OUT], one]}], schema=schema)


def hidden_of(schema: pa.Schema) -> list[str]:
    """The hidden columns of a schema."""
    return [name for name in schema.names if name in _HIDDEN]


def without_hidden(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the user."""
    return batch.select([name for name in batch.schema.names if name not in _HIDDEN])


def in_place(rows: pa.Table) -> Iterator[tuple[tuple[int, str], int]]:
    """Place and event time, in microseconds since 1970, of each live row that goes into a keyed step, in order."""
    live = rows.select([POSITION, PART, TIME]).filter(rows.column(LIVE))
    ordered = live.sort_by([(POSITION, "ascending"), (PART, "ascending")])
    times = ordered.column(TIME).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    places = zip(ordered.column(POSITION).to_pylist(), ordered.column(PART).to_pylist(), strict=True)
    return zip(places, times.to_pylist(), strict=True)


def in_order(collected: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Position and fields of each effect that `collect_sql` gave, in the order of the messages that caused them."""
    counted = collected.append_column(ROW, pa.array(range(collected.num_rows), pa.int64()))
    keys = [(name, "ascending") for name in (POSITION, PART, ROW)]
    ordered = counted.take(pc.sort_indices(counted, sort_keys=keys))
    return zip(*(ordered.column(name).to_pylist() for name in (POSITION, *EFFECT)), strict=True)
