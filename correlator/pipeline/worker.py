"""What runs in Spark's Python workers: keyed monitors and Python functions over Arrow batches.

Knows Arrow and the pure monitors, not Spark: Spark calls an object of this module with an iterator of batches and
takes batches back. Every batch has the hidden columns (`_position`, `_part`, `_live`, `_out`, see plan.py); rows that
are not live only carry what they send in `_out` and pass through.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from correlator.core.keyed import Handled, KeyedMonitor, KeyedRun
from correlator.errors import StateError
from correlator.pipeline.correlation import pairs_class
from correlator.pipeline.windows import EPOCH, windows_class

SEND, DEAD, STATE, FORWARD, REWRITE = range(5)
"""Kinds of entries in `_out`: a row that is sent, a dead letter, state, a message as it came or as the row has it."""
HIDDEN = ("_position", "_part", "_live", "_out")
MESSAGE = "_message"
_HIDDEN = frozenset((*HIDDEN, MESSAGE))
_MOST_ROWS = 10_000


def out(kind: int, step: int, key: str | None, body: bytes | None) -> dict[str, Any]:
    """One entry of `_out` that is not a send."""
    nothing = dict.fromkeys(("destination", "headers", "properties"))
    return {"kind": kind, "step": step, "key": key, "body": body, **nothing}


def make_importable(directories: Iterable[str]) -> None:
    """Let modules of these directories be imported, after all others."""
    sys.path.extend(directory for directory in directories if directory not in sys.path)


def load(path: str, directories: Iterable[str]) -> Any:
    """The object that `module:name` names."""
    make_importable(directories)
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class MonitorFactory(Protocol):
    """Says how a worker gets the monitor class of a step; small, so that it travels with every job."""

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """The class."""
        ...


@dataclass(frozen=True, slots=True)
class UserMonitor:
    """A class of the user's."""

    path: str
    directories: tuple[str, ...]

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Import it."""
        cls: type[KeyedMonitor[Any, Any]] = load(self.path, self.directories)
        return cls


@dataclass(frozen=True, slots=True)
class WindowsMonitor:
    """Windows of an `aggregate` step."""

    length_s: float
    every_s: float
    lateness_s: float
    functions: tuple[str, ...]
    types: tuple[type[Any], ...]

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Make the class."""
        return windows_class(self.length_s, self.every_s, self.lateness_s, self.functions, self.types)


@dataclass(frozen=True, slots=True)
class PairsMonitor:
    """Pairs of a `correlate` step."""

    within_s: float
    unmatched: bool

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Make the class."""
        return pairs_class(self.within_s, self.unmatched)


class _Row(NamedTuple):
    position: int
    part: str
    key: str
    time: Any
    values: dict[str, Any]


@dataclass(frozen=True)
class KeyedFunction:
    """Runs a keyed monitor over rows that are grouped by `_key` and in order within a key.

    Attributes:
        factory: the monitor class.
        step: number of the step, to mark its state and dead letters.
        where: pipeline and step, for messages.
        schema: of the result, without the hidden columns.
        hidden: of the hidden columns.
        states: stored state of every key that may come.
        ending: rows are only keys, whose timers fire since all input has ended.
    """

    factory: MonitorFactory
    step: int
    where: str
    schema: pa.Schema
    hidden: pa.Schema
    states: dict[str, bytes]
    ending: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark once for each partition."""
        results = _Results(self)
        for key, rows in groupby(self._live_rows(batches, results), key=lambda row: row.key):
            self._run_key(key, list(rows), results)
            yield from results.take(_MOST_ROWS)
        yield from results.take(1)

    @cached_property
    def monitor(self) -> type[KeyedMonitor[Any, Any]]:
        """The monitor class."""
        return self.factory()

    def _live_rows(self, batches: Iterator[pa.RecordBatch], results: "_Results") -> Iterator[_Row]:
        for batch in batches:
            results.pass_through(batch)
            live = batch.filter(batch.column("_live"))
            names = [name for name in live.schema.names if name not in (*HIDDEN, "_key")]
            columns = [_values(live.column(name)) for name in ("_position", "_part", "_key", *names)]
            for position, part, key, *values in zip(*columns, strict=True):
                row = dict(zip(names, values, strict=True))
                yield _Row(position, part, key, row.get("_time"), row)

    def _run_key(self, key: str, rows: list[_Row], results: "_Results") -> None:
        """Run one key; once more and with care when its outputs or its state turn out not to fit."""
        data = self.states.get(key)
        run = KeyedRun(self.monitor, key, data)
        try:
            found = list(self._handle(run, rows))
            stored = run.stored()
            self._arrow([output for _, handled in found for output in handled.outputs])
        except (StateError, pa.ArrowException, OverflowError, TypeError, ValueError):
            run = KeyedRun(self.monitor, key, data, check=self._arrow)
            found = list(self._handle(run, rows))
            stored = run.stored()
        results.add(found)
        if stored != data:
            results.add_out(rows[0].position, out(STATE, self.step, key, stored))

    def _handle(self, run: KeyedRun, rows: list[_Row]) -> Iterator[tuple[_Row, Handled]]:
        row_type = self.monitor.row_type
        for row in rows:
            if self.ending:
                yield from ((row, handled) for handled in run.finish())
                continue
            try:
                typed = row.values if row_type is dict else msgspec.convert(row.values, row_type)
            except msgspec.ValidationError as error:
                yield row, Handled(failure=f"E5102 {self.where}: does not fit {row_type.__name__}: {error}")
                continue
            yield from ((row, handled) for handled in run.handle(typed, row.time))

    def _arrow(self, outputs: list[dict[str, Any]]) -> None:
        pa.RecordBatch.from_pylist(outputs, schema=self.schema)


def _values(column: pa.Array) -> list[Any]:
    """The values as Python has them, maps as `dict`; timestamps in a tenth of the time that Arrow takes."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    numbers = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if number is None else EPOCH + timedelta(microseconds=number) for number in numbers]


class _Results:
    """Collects result rows and cuts them into batches."""

    def __init__(self, function: KeyedFunction) -> None:
        self._function = function
        self._schema = pa.schema([*function.hidden, *function.schema])
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def pass_through(self, batch: pa.RecordBatch) -> None:
        """Let what rows have in `_out` go on without them."""
        sending = batch.filter(pc.greater(pc.list_value_length(batch.column("_out")), 0))
        if sending.num_rows:
            hidden = [sending.column(field.name) for field in self._function.hidden]
            hidden[2] = pa.repeat(False, sending.num_rows)
            empty = [pa.nulls(sending.num_rows, field.type) for field in self._function.schema]
            self._batches.append(pa.RecordBatch.from_arrays([*hidden, *empty], schema=self._schema))

    def add(self, found: list[tuple[_Row, Handled]]) -> None:
        """What the rows of a key did: outputs become rows in the place of the row that caused them."""
        last, count = None, 0
        for row, handled in found:
            last, count = row, 0 if row is not last else count
            if handled.failure is not None:
                reason = handled.failure.encode()
                self.add_out(row.position, out(DEAD, self._function.step, row.key, reason), row.part)
            for output in handled.outputs:
                part = f"{row.part}{count:08X}"
                self._rows.append({"_position": row.position, "_part": part, "_live": True, "_out": [], **output})
                count += 1

    def add_out(self, position: int, entry: dict[str, Any], part: str = "") -> None:
        """Something that is not a row."""
        self._rows.append({"_position": position, "_part": part, "_live": False, "_out": [entry]})

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """What there is, once it is at least so many rows."""
        yield from self._batches
        self._batches.clear()
        if len(self._rows) >= least:
            yield pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._rows.clear()


@dataclass(frozen=True)
class ArrowFunction:
    """Runs a user's function over the live rows of each batch.

    Attributes:
        path: import path of the function.
        directories: where else to look for its module.
        step: number of the step, to mark its dead letters.
        where: pipeline and step, for messages.
        schema: of the result, with the hidden columns.
    """

    path: str
    directories: tuple[str, ...]
    step: int
    where: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark once for each partition."""
        function = load(self.path, self.directories)
        for batch in batches:
            live = batch.column("_live")
            yield from self._apply(function, batch.filter(live))
            others = batch.filter(pc.invert(live))
            if others.num_rows:
                yield self._passed(others)

    def _apply(self, function: Any, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        try:
            yield self._call(function, rows)
        except Exception as error:  # noqa: BLE001  whatever the user's function raises
            if rows.num_rows == 1:
                yield self._dead(rows, error)
            else:
                half = rows.num_rows // 2
                yield from self._apply(function, rows.slice(0, half))
                yield from self._apply(function, rows.slice(half))

    def _call(self, function: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        result = function(rows.select([name for name in rows.schema.names if name not in _HIDDEN]))
        if result.num_rows != rows.num_rows:
            raise ValueError(f"gave {result.num_rows} rows for {rows.num_rows}")
        values = [
            result.column(field.name).cast(field.type) for field in list(self.schema)[len(_hidden(self.schema)) :]
        ]
        return pa.RecordBatch.from_arrays(
            [*(rows.column(n) for n in _hidden(self.schema)), *values], schema=self.schema
        )

    def _passed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        hidden = _hidden(self.schema)
        empty = [pa.nulls(rows.num_rows, field.type) for field in list(self.schema)[len(hidden) :]]
        return pa.RecordBatch.from_arrays([*(rows.column(name) for name in hidden), *empty], schema=self.schema)

    def _dead(self, rows: pa.RecordBatch, error: Exception) -> pa.RecordBatch:
        reason = f"E5106 {self.where}: {type(error).__name__}: {error}".encode()
        row = {name: rows.column(name)[0].as_py() for name in _hidden(self.schema)}
        row |= {"_live": False, "_out": [*row["_out"], out(DEAD, self.step, None, reason)]}
        return pa.RecordBatch.from_pylist([row], schema=self.schema)


def _hidden(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name in _HIDDEN]
