"""Monitors with state per key, for pipelines: state and rows in, outputs and state out.

Theory of operation. A *run* is the pass of one key through a batch: the stored state of the key becomes a monitor, the
rows of the key go through it in order, what the monitor has become is stored again. Nothing else decides what comes
out, so it makes no difference how rows are cut into batches, in which process a run happens, or whether it happens
twice.

Time is *event time of the key*: the latest that a row of this key had so far, in order of arrival. Rows of other keys
and clocks do not move it; so a key that falls silent keeps its timers until its next row or the end of all input.

A handler that raises must leave no trace. Keeping a copy of the state before each row would cost more than the
handlers, so a run remembers what it did since its last known bytes and, after a failure, does that again from there.
This asks handlers to be functions of state and row; what they drew from a clock or at random may differ.
"""

# ruff: noqa: SLF001  a run and its monitor are one thing; what application code may call is public

import copy
import typing
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
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
    """What the store holds for a key: event time, timers in their order, the attributes encoded."""

    time: datetime | None
    timers: list[tuple[datetime, str]]
    attributes: bytes


_stored_codec: Codec[_Stored] = Codec(_Stored, "keyed state")


class KeyedMonitor(Generic[RowT, OutputT]):
    """Base class of application code with state per key.

    `class Lateness(KeyedMonitor[Departure, Alert])`: rows come as `Departure`, an `@event`, struct or dataclass whose
    fields are columns (`dict` for all columns as they are), and `Alert` objects go out, whose fields become the
    columns of the next step. Annotated attributes are the state of one key; a value beside the annotation is where
    each key begins. Attributes without annotation are scratch and gone after the batch.

    Handlers are functions of state and row: called again after a crash, they must do the same again. A class whose
    handler is `async def` is refused when it is made (`UsageError` E4117).
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
        """Called for each row of the key, in order; returns or yields outputs."""
        raise NotImplementedError

    def on_time(self, name: str) -> Iterable[OutputT] | None:
        """Called when a timer is due, before the row that made it so; at the end of all input for every timer left."""
        del name
        return None

    # --- for application code ---

    @property
    def key(self) -> str:
        """The key as text."""
        return self._key

    @property
    def time(self) -> datetime:
        """Event time of the key; in `on_time` that of the timer. Raises `UsageError` E4110 without `event_time`."""
        if self._time is None:
            raise UsageError(
                "E4110", type(self).__name__, "there is no event time", "", "Give the step an 'event_time'"
            )
        return self._time

    def wake_at(self, time: datetime, name: str = "") -> None:
        """Call `on_time(name)` when event time reaches `time`; the same time and name twice are one timer.

        A time that has passed is reached with the next row; event time does not go back to it. Raises `UsageError`
        E4109 for what is no time, or has a time zone where event time has none (or the other way round), and for a name
        that is no text.
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
        """Forget this key after the handler: its state and timers are gone, its next row begins anew."""
        self._forgotten = True

    def _no_timer(self, what: str, allowed: str) -> UsageError:
        return UsageError("E4109", f"monitor {type(self).__name__}", what, allowed)

    # --- for a run ---

    def encode(self) -> bytes:
        """State, timers and event time; raises `StateError` E4102 or E4103 for a value that cannot be stored."""
        attributes = {name: getattr(self, name) for name in self._attributes}
        return _stored_codec.encode(_Stored(self._time, self._timers, self._codec.encode(attributes)))

    @classmethod
    def attributes(cls) -> dict[str, Any]:
        """Name and type of each attribute that is state."""
        return dict(cls._attributes)

    @classmethod
    def decode(cls, key: str, data: bytes | None) -> "KeyedMonitor[RowT, OutputT]":
        """The monitor of a key; raises `StateError` E4203 when the bytes were written for another class."""
        monitor = cls(key)
        if data is not None:
            stored = _stored_codec.decode(data)
            monitor._time, monitor._timers = stored.time, stored.timers
            for name in cls._attributes:
                setattr(monitor, name, getattr(cls._codec.decode(stored.attributes), name))
        return monitor


class Handled(NamedTuple):
    """What one row or timer did: outputs as mappings of plain values, or why it failed and left no trace."""

    outputs: Sequence[dict[str, Any]] = ()
    failure: str | None = None


Unit = Callable[[KeyedMonitor[Any, Any]], Iterable[Any] | None]
Check = Callable[[list[dict[str, Any]]], None]

_PLAIN = (bytes, datetime, date, Decimal)


class KeyedRun:
    """The pass of one key through a batch.

    Args:
        cls: the monitor class.
        key: the key.
        data: its stored state, `None` for a key without.
        check: refuses outputs by an exception; with it state is encoded after every row, too. For a second pass
            that finds the row whose outputs or state cannot be used.
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
        """Fire the timers that are due at `time`, then handle the row: one result for each."""
        if time is not None:
            yield from self._fire(time)
        yield self._try(lambda monitor: _handle_row(monitor, row, time))

    def finish(self) -> Iterator[Handled]:
        """The end of all input: fire every timer that is left, and those that these set."""
        yield from self._fire(None)

    def stored(self) -> bytes | None:
        """What is to be stored for the key, `None` for nothing; raises `StateError` E4102 or E4103."""
        if self._monitor is None or (self._base is None and not self._since):
            return None
        return self._monitor.encode()

    def _fire(self, time: datetime | None) -> Iterator[Handled]:
        while self._monitor is not None and (timers := self._monitor._timers):
            due, name = timers[0]
            if time is not None and due > time:
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
            self._monitor, self._base, self._since = None, None, []
        return outputs

    def _plain(self, output: Any) -> dict[str, Any]:
        expected = self._cls.output_type
        if not isinstance(output, expected):
            raise TypeError(f"output is a {type(output).__name__}, must be a {expected.__name__}")
        plain: dict[str, Any] = msgspec.to_builtins(output, builtin_types=_PLAIN)
        if expected is not dict:
            msgspec.convert(plain, expected)
        return plain

    def _restore(self) -> None:
        """Back to the state before the unit that failed: the last known bytes, and what was done since."""
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
