"""Monitors with state per key, for pipelines: state and rows in, outputs and state out.

A *run* handles the rows of one key in a batch: it makes a monitor from the stored state of the key, passes the rows to
the monitor in order, and encodes the monitor's state again. Only state and rows decide the outputs. So it makes no
difference how rows are cut into batches, in which process a run happens, or whether it happens twice.

Time is the *event time of the key*: the latest time of all rows of this key that have arrived so far. Neither rows of
other keys nor a clock move it, unless the step has `expires` (`pipeline/clock.py`). Without `expires`, a key without
further rows keeps its timers until the end of all input.

A handler that raises must leave no trace. A copy of the state before each row would cost more than the handlers. So a
run remembers the rows and timers that it has handled since it last decoded or encoded the state, and handles them again
after a failure. Therefore handlers must be functions of state and row, without a clock and without random values.
"""

# ruff: noqa: SLF001  a run uses the private members of its monitor; what application code may call is public

import copy
import typing
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec

from correlator.core.state import Codec, check_type
from correlator.errors import CorrelatorError, StateError, UsageError, quoted, storable
from correlator.handlers import refuse_deferred

RowT = TypeVar("RowT")
OutputT = TypeVar("OutputT")


class _Stored(msgspec.Struct, array_like=True):
    """The stored state of a key: its event time, its timers in order, and its encoded attributes."""

    time: datetime | None
    timers: list[tuple[datetime, str]]
    attributes: bytes


_stored_codec: Codec[_Stored] = Codec(_Stored, "keyed state")
_parts_codec: Codec[list[Any]] = Codec(list[Any], "keyed state")
_attributes_codec: Codec[dict[str, Any]] = Codec(dict[str, Any], "keyed state")


class KeyedMonitor(Generic[RowT, OutputT]):
    """Base class of application code with state per key, for a keyed step of a pipeline (docs/pipelines.md).

    `class Lateness(KeyedMonitor[Departure, Alert])`: its handlers get rows as `Departure` objects and return `Alert`
    objects. A type of rows or outputs is an `@event`, a struct or a dataclass; its fields are the columns. The type of
    rows may also be `dict`, for all columns; the type of outputs may be `dict`, for the columns of the rows.

    Annotated attributes are the state of one key. Each annotation needs a default value, which is the state of a new
    key. Attributes without annotation may be lost after each batch. The state becomes durable with the checkpoint that
    holds the outputs of the batch.

    A handler must depend on state and row only, not on a clock or a random number: the engine repeats calls after a
    failure and after a crash, perhaps in another process, and expects the same result. One thread at a time calls the
    methods of an object. If a handler raises, its row or timer has no effect, and the row becomes a dead letter
    (E5500).

    Raises, when Python defines the class:
        UsageError: E4117 for a handler that is `async def`.
        StateError: E4101 for an attribute whose type cannot be stored, E4105 for an attribute without an initial value.
    """

    row_type: ClassVar[type[Any]] = dict
    output_type: ClassVar[type[Any]] = dict
    _attributes: ClassVar[dict[str, Any]] = {}
    _codec: ClassVar[Codec[Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is KeyedMonitor:
                cls.row_type, cls.output_type = (typing.get_origin(part) or part for part in typing.get_args(base))
        _read_annotations(cls)
        for name in ("on_event", "on_time"):
            refuse_deferred(getattr(cls, name), f"handler {cls.__qualname__}.{name}", may_yield=True)

    def __init__(self, key: str = "") -> None:
        self._key = key
        self._time: datetime | None = None
        self._timers: list[tuple[datetime, str]] = []
        self._forgotten = False
        for name in self._attributes:
            setattr(self, name, copy.deepcopy(getattr(type(self), name)))

    # --- to be overridden ---

    def on_event(self, row: RowT) -> Iterable[OutputT] | None:
        """Handle a row of the key; called for each row in order. To be overridden.

        Returns or yields outputs of the declared type; `None` for no output. An output of another type fails the row.
        """
        raise NotImplementedError

    def on_time(self, name: str) -> Iterable[OutputT] | None:
        """Handle a timer that is due: called before the row that made it due, and at the end of all input.

        Args:
            name: the name that `wake_at` got.

        Returns or yields outputs as `on_event`.
        """
        del name
        return None

    # --- for application code ---

    @property
    def key(self) -> str:
        """The key of this state, as text."""
        return self._key

    @property
    def time(self) -> datetime:
        """Event time of the key: the latest time of its rows so far. It never goes back.

        In `on_time` it is at least the time of the timer.

        Raises:
            UsageError: E4110 if the step has no `event_time`.
        """
        if self._time is None:
            raise UsageError(
                "E4110", type(self).__name__, "there is no event time", "", "Give the step an 'event_time'"
            )
        return self._time

    def wake_at(self, time: datetime, name: str = "") -> None:
        """Set a timer: call `on_time(name)` when the event time of this key reaches `time`.

        The timer fires before the row that moves event time to `time` or beyond. A timer whose time has passed fires
        before the next row of the key, whatever the event time of this row is. At the end of all input all timers fire;
        without event time they fire only then. Two calls with the same time and name make one timer. Timers are part of
        the state.

        Raises:
            UsageError: E4109 if `time` is no `datetime`, if `time` has a time zone and event time has none or the
                reverse, or if `name` is no text.
        """
        if not isinstance(time, datetime) or (self._time is not None and _zoned(time) != _zoned(self._time)):
            raise self._no_timer(
                f"{quoted(time)} is no event time", "A datetime, with a time zone if event time has one"
            )
        if not isinstance(name, str) or storable(name) != name:
            raise self._no_timer(f"{quoted(name)} is no name of a timer", "Text")
        if (time, name) not in self._timers:
            insort(self._timers, (time, name))

    def forget(self) -> None:
        """Delete state and timers of this key when the handler has returned; its next row finds the initial state."""
        self._forgotten = True

    def _no_timer(self, what: str, allowed: str) -> UsageError:
        return UsageError("E4109", f"monitor {type(self).__name__}", what, allowed)

    # --- for a run ---

    def encode(self) -> bytes:
        """Encode state, timers and event time.

        Raises:
            StateError: E4102 for a value that cannot be stored, E4103 for a value of another type than declared.
        """
        attributes = {name: getattr(self, name) for name in self._attributes}
        return _stored_codec.encode(_Stored(self._time, self._timers, self._codec.encode(attributes)))

    @classmethod
    def attributes(cls) -> dict[str, Any]:
        """The types of the attributes that are state, by name."""
        return dict(cls._attributes)

    @classmethod
    def decode(cls, key: str, data: bytes | None) -> "KeyedMonitor[RowT, OutputT]":
        """Make the monitor of a key from its encoded state; `None` makes the monitor of a new key.

        Raises:
            StateError: E4203 for state that does not fit the class.
        """
        monitor = cls(key)
        if data is not None:
            stored = _stored_codec.decode(data)
            monitor._time, monitor._timers = stored.time, stored.timers
            for name in cls._attributes:
                setattr(monitor, name, getattr(cls._codec.decode(stored.attributes), name))
        return monitor


class KeyedState(NamedTuple):
    """The stored state of a key without its class: event time, timers in order, and the values of the attributes.

    Values have the types of the encoding: a `Decimal` is text, a set is a list, a record is a mapping.
    """

    time: datetime | None
    timers: Sequence[tuple[datetime, str]]
    attributes: Mapping[str, Any]


def keyed_state(data: bytes) -> KeyedState:
    """Decode the state of a key without its class.

    Raises:
        StateError: E4203 for bytes that are not the state of a key, or that another version of correlator has stored.
    """
    parts = _parts_codec.decode(data)
    if len(parts) != len(_Stored.__struct_fields__):
        what = f"has {len(parts)} parts instead of {len(_Stored.__struct_fields__)}: another version has stored it"
        raise StateError("E4203", "keyed state", what)
    stored = _stored_codec.decode(data)
    return KeyedState(stored.time, stored.timers, _attributes_codec.decode(stored.attributes))


def due_of(data: bytes) -> datetime | None:
    """The event time of the first timer of a stored state; without a timer, the event time of the key.

    `None` for state without event time.
    """
    stored = _stored_codec.decode(data)
    return _due(stored.time, stored.timers)


def _due(time: datetime | None, timers: Sequence[tuple[datetime, str]]) -> datetime | None:
    due = timers[0][0] if timers else time
    return due if time is not None and due is not None and _zoned(due) else None


class Handled(NamedTuple):
    """The result of a row or timer: its outputs as mappings of plain values, or the reason why it failed."""

    outputs: Sequence[dict[str, Any]] = ()
    failure: str | None = None


Unit = Callable[[KeyedMonitor[Any, Any]], Iterable[Any] | None]
Check = Callable[[list[dict[str, Any]]], None]

_PLAIN = (bytes, datetime, date, time_of_day, timedelta, Decimal)


class KeyedRun:
    """Handles the rows of one key in a batch.

    Args:
        cls: the monitor class.
        key: the key.
        data: the stored state of the key; `None` for a key without state.
        check: raises an exception for outputs that cannot be used. With `check` the run also encodes the state after
            every row, so that a second run over the same rows finds the row whose outputs or state cannot be used.
    """

    def __init__(
        self, cls: type[KeyedMonitor[Any, Any]], key: str, data: bytes | None, check: Check | None = None
    ) -> None:
        self._cls = cls
        self._key = key
        self._base = data
        self._check = check
        self._since: list[Unit] = []
        self._monitor: KeyedMonitor[Any, Any] | None = cls.decode(key, data)

    def handle(self, row: Any, time: datetime | None) -> Iterator[Handled]:
        """Fire the timers that are due at `time`, then handle the row; yields a result for each timer and the row."""
        if time is not None:
            yield from self._fire(time)
        yield self._try(lambda monitor: _handle_row(monitor, row, time))

    def finish(self) -> Iterator[Handled]:
        """Fire all timers at the end of all input, including timers that are set meanwhile; yields a result for
        each.
        """
        yield from self._fire(None)

    @property
    def due(self) -> datetime | None:
        """The result of `due_of` for the state after the rows so far; `None` if there is no state."""
        return _due(self._monitor._time, self._monitor._timers) if self._monitor is not None else None

    def follow(self, horizon: datetime) -> Iterator[Handled]:
        """Let the event time of the key go on to a time without a row: fire the timers that are due then.

        If no timer is left and the event time of the key was not beyond that time, the state of the key is deleted.
        Yields a result for each timer.
        """
        yield from self._fire(horizon)
        if self.due is not None and self.due <= horizon:
            self._delete()

    def stored(self) -> bytes | None:
        """Return the state to store for the key; `None` for no state. Raises `StateError` E4102 or E4103."""
        if self._monitor is None or (self._base is None and not self._since):
            return None
        return self._monitor.encode()

    def _fire(self, time: datetime | None) -> Iterator[Handled]:
        while self._monitor is not None and (timers := self._monitor._timers):
            due, name = timers[0]
            if time is not None and due > max(time, self._monitor._time or time):
                return
            handled = self._try(partial(_fire_timer, due=due, name=name))
            if handled.failure is not None:
                self._do(_drop_timer)
            yield handled

    def _try(self, unit: Unit) -> Handled:
        try:
            return Handled(self._do(unit))
        except Exception as error:  # noqa: BLE001  whatever application code raises
            self._restore()
            return Handled(failure=_reason(error, self._cls.__name__))

    def _do(self, unit: Unit) -> list[dict[str, Any]]:
        if self._monitor is None:
            self._monitor = self._cls.decode(self._key, None)
        outputs = [self._plain(output) for output in unit(self._monitor) or ()]
        if self._check is not None:
            self._check(outputs)
            self._monitor.encode()
        self._since.append(unit)
        if self._monitor._forgotten:
            self._delete()
        return outputs

    def _delete(self) -> None:
        self._monitor, self._base, self._since = None, None, []

    def _plain(self, output: Any) -> dict[str, Any]:
        expected = self._cls.output_type
        if not isinstance(output, expected):
            raise TypeError(f"output is a {type(output).__name__}, must be a {expected.__name__}")
        plain: dict[str, Any] = msgspec.to_builtins(output, builtin_types=_PLAIN)
        if expected is not dict:
            msgspec.convert(plain, expected)
        return plain

    def _restore(self) -> None:
        """Restore the state before the failure: decode the last known state, and repeat the calls since then."""
        since, self._since = self._since, []
        self._monitor = self._cls.decode(self._key, self._base)
        for unit in since:
            list(unit(self._monitor) or ())
        if since:
            self._base = self._monitor.encode()


def _zoned(time: datetime) -> bool:
    return time.utcoffset() is not None


def _handle_row(monitor: KeyedMonitor[Any, Any], row: Any, time: datetime | None) -> Iterable[Any] | None:
    if time is not None:
        monitor._time = time if monitor._time is None else max(monitor._time, time)
    return monitor.on_event(row)


def _fire_timer(monitor: KeyedMonitor[Any, Any], due: datetime, name: str) -> Iterable[Any] | None:
    monitor._timers.remove((due, name))
    monitor._time = due if monitor._time is None else max(monitor._time, due)
    return monitor.on_time(name)


def _drop_timer(monitor: KeyedMonitor[Any, Any]) -> None:
    monitor._timers.pop(0)


def _reason(error: Exception, name: str) -> str:
    if isinstance(error, CorrelatorError):
        return str(error)
    return f"E5500 {name}: {type(error).__name__}: {error}"


def _read_annotations(cls: type[KeyedMonitor[Any, Any]]) -> None:
    where = f"monitor {cls.__name__}"
    cls._attributes = {
        name: hint
        for name, hint in get_type_hints(cls, include_extras=True).items()
        if name not in KeyedMonitor.__annotations__ and typing.get_origin(hint) is not ClassVar
    }
    for name, hint in cls._attributes.items():
        check_type(hint, where, name)
        if not hasattr(cls, name):
            raise StateError("E4105", where, f"attribute '{name}' has no initial value", "", "Give one in the class")
    fields = list(cls._attributes.items())
    cls._codec = Codec(
        msgspec.defstruct(f"{cls.__name__}State", fields, kw_only=True, forbid_unknown_fields=True), where
    )
