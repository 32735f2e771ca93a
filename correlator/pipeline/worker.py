"""The code that runs in Spark's Python workers: keyed monitors and Python functions over Arrow batches.

The module uses Arrow and the pure monitors, but not Spark: Spark calls an object of this module with an iterator of
batches, and gets batches from it. Every batch has the hidden columns (`envelope`); rows that are not live only carry
effects, and pass through.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from correlator.core.keyed import Handled, KeyedMonitor, KeyedRun
from correlator.errors import StateError, printable, quoted
from correlator.pipeline import arrow_rows, envelope
from correlator.pipeline.binary import Format, Malformed
from correlator.pipeline.clock import EventClock, Place
from correlator.pipeline.correlation import pairs_class
from correlator.pipeline.envelope import DEAD, HIDDEN, KEY, PART, POSITION, STATE, TIME
from correlator.pipeline.sessions import sessions_class
from correlator.pipeline.windows import EPOCH, Value, windows_class

_MOST_ROWS = 10_000
_MOST_BYTES = 1024 * 1024
"""The number of bytes of bodies whose values are in memory as Python objects at a time; a longer body is processed
alone."""
_LONGEST_WHY = 300
BODY = "body"
"""The column with the bodies that a `DecodeFunction` decodes."""
_AFTER_ALL = "G"
"""A character that sorts after every hexadecimal digit (`envelope.PART`)."""
_UNREADABLE = (ValueError, OverflowError, KeyError, pa.ArrowException)
"""The errors for a value of Spark that Python cannot represent, such as a date in the year 10000."""


def make_importable(directories: Iterable[str]) -> None:
    """Add directories to the end of the import path."""
    sys.path.extend(directory for directory in directories if directory not in sys.path)


def load(path: str, directories: Iterable[str]) -> Any:
    """The object that `module:name` names."""
    make_importable(directories)
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class FileRows:
    """Reads rows from an Arrow file that the driver has written; Spark calls it in workers on the same host.

    Attributes:
        path: path of the file.
        parts: how many calls share its rows.
    """

    path: str
    parts: int

    def __call__(self, markers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the parts whose numbers are in the first column of the markers."""
        for marker in markers:
            for part in marker.column(0).to_pylist():
                with pa.memory_map(self.path) as file, pa.ipc.open_file(file) as rows:
                    yield from map(rows.get_batch, range(part, rows.num_record_batches, self.parts))


class MonitorFactory(Protocol):
    """Makes the monitor class of a step in a worker; small, because it is sent with every job."""

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """The monitor class."""
        ...


@dataclass(frozen=True, slots=True)
class UserMonitor:
    """A class of the user, by its import path."""

    path: str
    directories: tuple[str, ...]

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Import the class."""
        cls: type[KeyedMonitor[Any, Any]] = load(self.path, self.directories)
        return cls


@dataclass(frozen=True, slots=True)
class WindowsMonitor:
    """The windows of an `aggregate` step."""

    length_s: float
    every_s: float
    lateness_s: float
    values: tuple[Value, ...]
    updates: bool = False

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Make the class."""
        return windows_class(self.length_s, self.every_s, self.lateness_s, self.values, updates=self.updates)


@dataclass(frozen=True, slots=True)
class SessionsMonitor:
    """The sessions of an `aggregate` step."""

    gap_s: float
    lateness_s: float
    values: tuple[Value, ...]
    updates: bool = False

    def __call__(self) -> type[KeyedMonitor[Any, Any]]:
        """Make the class."""
        return sessions_class(self.gap_s, self.lateness_s, self.values, updates=self.updates)


@dataclass(frozen=True, slots=True)
class PairsMonitor:
    """The pairs of a `correlate` step."""

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
    unreadable: str


@dataclass(frozen=True)
class KeyedFunction:
    """Runs a keyed monitor over rows that are grouped by key and in order within a key.

    Attributes:
        factory: makes the monitor class.
        step: the number of the step, which marks its state and dead letters.
        where: pipeline and step, for messages.
        schema: of the result, without the hidden columns.
        hidden: the schema of the hidden columns.
        states: the stored state of every key that may occur.
        clock: the event time of the step during the batch; `None` for a step without `expires`.
        ending: whether all input has ended: each row only names a key whose timers fire.
        following: each row only names a key that has no row in the batch and follows the event time of the step.
    """

    factory: MonitorFactory
    step: int
    where: str
    schema: pa.Schema
    hidden: pa.Schema
    states: dict[str, bytes]
    clock: EventClock | None = None
    ending: bool = False
    following: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark once for each partition."""
        results = _Results(self)
        for key, rows in groupby(self._live_rows(batches, results), key=lambda row: row.key):
            self._run_key(key, list(rows), results)
            yield from results.take(_MOST_ROWS)
        yield from results.take(1)

    @cached_property
    def monitor(self) -> type[KeyedMonitor[Any, Any]]:
        """The class of the keyed monitor, made by `factory` at the first use in each Python worker."""
        return self.factory()

    def _live_rows(self, batches: Iterator[pa.RecordBatch], results: "_Results") -> Iterator[_Row]:
        for batch in batches:
            results.pass_through(batch)
            live = arrow_rows.live_rows(batch)
            names = [name for name in live.schema.names if name not in (*HIDDEN, KEY, TIME)]
            columns = [_values(live.column(name)) for name in (POSITION, PART, KEY, TIME, *names)]
            for position, part, key, time, *values in zip(*columns, strict=True):
                row = dict(zip(names, values, strict=True))
                why = _why_unreadable(row)
                yield _Row(position, part, key, time, row if self._is_users else {TIME: time, **row}, why)

    def _run_key(self, key: str, rows: list[_Row], results: "_Results") -> None:
        """Run one key. If its outputs or its state cannot be stored, run it again and check each row."""
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
            results.add_effect(rows[0].position, envelope.effect(STATE, self.step, key, stored))

    def _handle(self, run: KeyedRun, rows: list[_Row]) -> Iterator[tuple[_Row, Handled]]:
        if self.clock is not None and not self.ending:
            return self._handle_in_time(run, rows, self.clock)
        return self._handle_rows(run, rows)

    def _handle_in_time(self, run: KeyedRun, rows: list[_Row], clock: EventClock) -> Iterator[tuple[_Row, Handled]]:
        """Handle rows like `_handle_rows`; between the rows, the key follows the event time of the step."""
        for given in () if self.following else rows:
            place = given.position, given.part
            yield from self._follow(run, given, clock, place)
            horizon = clock.horizon(place)
            row = given if given.unreadable else given._replace(time=max(given.time, horizon))
            yield from self._handle_rows(run, [row])
            if run.due is not None and run.due <= horizon:
                yield from ((row, handled) for handled in run.follow(horizon))
        yield from self._follow(run, rows[-1], clock, None)

    def _follow(
        self, run: KeyedRun, row: _Row, clock: EventClock, before: Place | None
    ) -> Iterator[tuple[_Row, Handled]]:
        """Let the key follow the event time of the step up to a place. The result belongs to the row that moves it."""
        while run.due is not None and (place := clock.reaches(run.due)) is not None:
            if before is not None and place >= before:
                return
            position, part = place
            # The results come after everything that this row causes, and their order among the keys depends on the keys
            # alone.
            cause = row._replace(position=position, part=f"{part}{_AFTER_ALL}{row.key.encode().hex().upper()}-")
            yield from ((cause, handled) for handled in run.follow(clock.horizon(place)))

    def _handle_rows(self, run: KeyedRun, rows: list[_Row]) -> Iterator[tuple[_Row, Handled]]:
        row_type = self.monitor.row_type
        for row in rows:
            if self.ending:
                yield from ((row, handled) for handled in run.finish())
                continue
            if row.unreadable:
                yield row, Handled(failure=f"E5102 {self.where}: {row.unreadable}")
                continue
            try:
                typed = row.values if row_type is dict else msgspec.convert(row.values, row_type)
            except msgspec.ValidationError as error:
                yield row, Handled(failure=f"E5102 {self.where}: does not fit {row_type.__name__}: {error}")
                continue
            yield from ((row, handled) for handled in run.handle(typed, row.time))

    @property
    def _is_users(self) -> bool:
        """Whether the rows go to a class of the user, which sees the columns of the user only."""
        return isinstance(self.factory, UserMonitor)

    def _arrow(self, outputs: list[dict[str, Any]]) -> None:
        if self._is_users and self.monitor.output_type is dict:
            self._check_names(outputs)
        pa.RecordBatch.from_pylist(outputs, schema=self.schema)

    def _check_names(self, outputs: list[dict[str, Any]]) -> None:
        """Refuse a name that is no column; Arrow would leave it out."""
        known = self.schema.names
        other = next((name for output in outputs for name in output if name not in known), None)
        if other is not None:
            raise ValueError(f"output has {quoted(other)}, which is not a column. Columns: {', '.join(known)}")


class _Unreadable(NamedTuple):
    """A placeholder for a value that Python cannot represent."""

    why: str


def _why_unreadable(row: dict[str, Any]) -> str:
    found = ((name, value.why) for name, value in row.items() if isinstance(value, _Unreadable))
    return next((f"column {name}: {why}" for name, why in found), "")


def _values(column: pa.Array) -> list[Any]:
    """The values as Python objects, maps as `dict`; an object `_Unreadable` for a value that Python cannot
    represent.
    """
    try:
        return _objects(column)
    except _UNREADABLE:
        return [_value(column.slice(at, 1)) for at in range(len(column))]


def _value(column: pa.Array) -> Any:
    try:
        return _objects(column)[0]
    except _UNREADABLE as error:
        return _Unreadable(str(error))


def _objects(column: pa.Array) -> list[Any]:
    """The values as Python objects; converts timestamps ten times as fast as Arrow."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    numbers = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if number is None else EPOCH + timedelta(microseconds=number) for number in numbers]


class _Results:
    """Collects the rows of results and cuts them into batches."""

    def __init__(self, function: KeyedFunction) -> None:
        self._function = function
        self._schema = pa.schema([*function.hidden, *function.schema])
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def pass_through(self, batch: pa.RecordBatch) -> None:
        """Pass the effects of earlier steps on without their rows."""
        carriers = arrow_rows.carriers(batch)
        if carriers.num_rows:
            self._batches.append(arrow_rows.only_carrying(carriers, self._schema))

    def add(self, found: list[tuple[_Row, Handled]]) -> None:
        """Add the results of the rows of a key: an output becomes a row with the position of the row that caused it."""
        last, count = None, 0
        for row, handled in found:
            last, count = row, 0 if row is not last else count
            if handled.failure is not None:
                reason = handled.failure.encode()
                self.add_effect(row.position, envelope.effect(DEAD, self._function.step, row.key, reason), row.part)
            for output in handled.outputs:
                part = f"{row.part}{count:08X}"
                self._rows.append(envelope.live_row(row.position, part, output))
                count += 1

    def add_effect(self, position: int, effect: dict[str, Any], part: str = "") -> None:
        """Add an effect that is not a row."""
        self._rows.append(envelope.carrier(position, part, effect))

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """The batches so far, and the rows if there are at least `least` of them."""
        yield from self._batches
        self._batches.clear()
        if len(self._rows) >= least:
            yield pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._rows.clear()


@dataclass(frozen=True)
class ArrowFunction:
    """Runs a user's function over the live rows of each batch.

    Attributes:
        path: the import path of the function.
        directories: further directories in which Python finds its module.
        step: the number of the step, which marks its dead letters.
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
            yield from self._apply(function, arrow_rows.live_rows(batch))
            others = arrow_rows.other_rows(batch)
            if others.num_rows:
                yield arrow_rows.only_carrying(others, self.schema)

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
        result = function(arrow_rows.without_hidden(rows))
        if result.num_rows != rows.num_rows:
            raise ValueError(f"gave {result.num_rows} rows for {rows.num_rows}")
        hidden = arrow_rows.hidden_of(self.schema)
        columns = [
            rows.column(one.name) if one.name in hidden else result.column(one.name).cast(one.type)
            for one in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _dead(self, row: pa.RecordBatch, error: Exception) -> pa.RecordBatch:
        reason = f"E5106 {self.where}: {type(error).__name__}: {error}".encode()
        return arrow_rows.with_effect(row, envelope.effect(DEAD, self.step, None, reason), self.schema)


@dataclass(frozen=True)
class DecodeFunction:
    """Makes columns of bodies of a binary format; a body that is not of the format becomes a dead letter.

    Attributes:
        format: decodes bodies.
        word: the name of the format.
        step: the number of the step, which marks its dead letters.
        where: pipeline and step, for messages.
        schema: of the result, with the hidden columns.
    """

    format: Format
    word: str
    step: int
    where: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark once for each partition."""
        for batch in batches:
            yield from self._decoded(arrow_rows.live_rows(batch))
            others = arrow_rows.other_rows(batch)
            if others.num_rows:
                yield arrow_rows.only_carrying(others, self.schema)

    def _decoded(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        decode = _decoder(self.format)
        good: list[int] = []
        values: list[Mapping[str, Any]] = []
        size = 0
        for at, body in enumerate(rows.column(BODY).to_pylist()):
            try:
                values.append(_value_of(decode, body))
                good.append(at)
            except Exception as error:  # noqa: BLE001  no body may stop the engine
                yield self._dead(rows.slice(at, 1), error)
                continue
            size += len(body)
            if size >= _MOST_BYTES:
                yield from self._made(rows.take(pa.array(good)), values)
                good, values, size = [], [], 0
        if good:
            yield from self._made(rows.take(pa.array(good)), values)

    def _made(self, rows: pa.RecordBatch, values: list[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        hidden = arrow_rows.hidden_of(self.schema)
        visible = pa.schema([one for one in self.schema if one.name not in hidden])
        try:
            made = pa.RecordBatch.from_pylist(values, schema=visible)
        except Exception as error:  # noqa: BLE001  as above
            if len(values) == 1:
                yield self._dead(rows, error)
                return
            half = len(values) // 2
            yield from self._made(rows.slice(0, half), values[:half])
            yield from self._made(rows.slice(half), values[half:])
            return
        columns = [(rows if one.name in hidden else made).column(one.name) for one in self.schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _dead(self, row: pa.RecordBatch, error: Exception) -> pa.RecordBatch:
        why = str(error) if isinstance(error, Malformed) else f"{type(error).__name__}: {error}"
        size = len(row.column(BODY)[0].as_py() or b"")
        why = printable(why)[:_LONGEST_WHY]
        reason = f"E5101 {self.where}: not {self.word} of the schema: {why}: {size} bytes".encode()
        return arrow_rows.with_effect(row, envelope.effect(DEAD, self.step, None, reason), self.schema)


@lru_cache(maxsize=32)
def _decoder(format_: Format) -> Callable[[bytes], Mapping[str, Any]]:
    """Make a decoder, once in each process, since Spark sends the function of a step with every job."""
    return format_.decoder()


def _value_of(decode: Callable[[bytes], Mapping[str, Any]], body: bytes | None) -> Mapping[str, Any]:
    if body is None:
        raise Malformed("is NULL")
    return decode(body)
