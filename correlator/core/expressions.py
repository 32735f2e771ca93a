"""Expressions: combinations of events and times that a listener waits for (docs/listeners.md).

How it works. An expression is a tree of frozen values. A `Plan` numbers its parts in the order of writing. A `Progress`
records how far one attempt has come: which events matched which parts, which clocks have run out, and which clocks run.
The progress alone determines whether each part is true, false or open, and which parts wait for events or time. So the
store holds an attempt as its progress. A step makes a new progress and changes nothing, so a failed handler leaves
nothing to undo.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from correlator.core.state import Codec, is_immutable, is_record
from correlator.errors import StateError, UsageError, quoted

MAX_PARTS = 100
"""How many parts one expression may have; an expression with more raises E4112."""
LONGEST_WAIT_S = 3_155_760_000.0
"""The longest wait of a timer, a hundred years: no sum of times overflows."""
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


class Moment(NamedTuple):
    """The current time: seconds of engine time, and seconds of the local calendar (as if it were UTC)."""

    engine_time: float
    wall_time: float


# --- the tree ---


class Expression(msgspec.Struct, frozen=True):
    """Base class of all parts of an expression. At each moment of an attempt a part is true, false or open.

    The methods and operators make a new expression, and change no existing one. An expression is immutable, so any
    number of listeners can share it.
    """

    def then(self, later: "Expression") -> "Then":
        """A sequence: `later` begins to wait when this part has become true."""
        return Then(self, later)

    def and_(self, other: "Expression | Not") -> "Expression":
        """True when both parts are true, in any order: `a & b`."""
        return Unless(self, other.part) if isinstance(other, Not) else And(self, other)

    def or_(self, other: "Expression") -> "Or":
        """True when one of the parts is true: `a | b`."""
        return Or(self, other)

    def and_not(self, other: "Expression") -> "Unless":
        """True when this part becomes true, unless the other part becomes true earlier or with the same event:
        `a & ~b`.
        """
        return Unless(self, other)

    def within(self, seconds: float) -> "Within":
        """True if this part becomes true within the time, false if it does not.

        The time of a sequence begins with its first step, the time of any other part when the part begins to wait.

        Args:
            seconds: seconds of engine time.

        Raises:
            UsageError: E4112 for a time that is no number, not more than 0, or longer than 100 years.
        """
        return Within(self, _seconds("within", seconds))

    def __and__(self, other: "Expression | Not") -> "Expression":
        return self.and_(other)

    def __or__(self, other: "Expression") -> "Or":
        return self.or_(other)

    def __invert__(self) -> "Not":
        return Not(self)


class Not(msgspec.Struct, frozen=True):
    """`~part`: the operand of `&` that must not become true first. It is allowed only as an operand of `&`."""

    part: Expression

    def __and__(self, other: Expression) -> "Unless":
        return Unless(other, self.part)


class Reference(msgspec.Struct, frozen=True):
    """A placeholder for the value of a field of the event that an earlier pattern has matched."""

    pattern: "Pattern"
    field: str


class Pattern(Expression, frozen=True):
    """Matches the events of one class whose fields have given values.

    Attributes:
        event_type: the class.
        fields: names of the fields that must have given values, sorted.
        values: the value of each field; a `Reference` stands for a value of an earlier event.
    """

    event_type: type[Any]
    fields: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()

    @classmethod
    def of(cls, event_type: type[Any], fields: Mapping[str, Any]) -> "Pattern":
        """Make the pattern of a class and the values of its fields.

        Raises:
            UsageError: E4108 for a class that is no event class, a field that the class does not have, or a value that
                the field never has.
        """
        if not isinstance(event_type, type) or not is_record(event_type):
            allowed = "A class made by @event, Message, or a notice of the engine such as SenderFlushed"
            raise UsageError("E4108", "match", f"{quoted(event_type)} is no type of events", allowed)
        for name in fields:
            _check_field(event_type, name)
            try:
                hash(fields[name])
            except TypeError as error:
                raise _changes(event_type, name, "a value") from error
            _check_value(event_type, name, fields[name])
        names = tuple(sorted(fields))
        return cls(event_type, names, tuple(fields[name] for name in names))

    def __getitem__(self, field: str) -> Reference:
        """A reference to the value of a field of the matched event, for a later part of the same expression.

        Raises:
            UsageError: E4108 for a field that the class does not have, or whose values are mutable.
        """
        _check_field(self.event_type, field)
        annotation = next(one.type for one in msgspec.structs.fields(self.event_type) if one.name == field)
        if not is_immutable(annotation):
            raise _changes(self.event_type, field, "a value of a type")
        return Reference(self, field)

    @property
    def refers(self) -> bool:
        """Whether one of its values comes from an earlier event."""
        return any(isinstance(value, Reference) for value in self.values)


class Wait(Expression, frozen=True):
    """True when `seconds` of engine time have passed since it began to wait."""

    seconds: float


class At(Expression, frozen=True):
    """True at a given minute of each day by the local calendar; if `hour` is `None`, at a given minute of each hour."""

    hour: int | None
    minute: int

    def next_after(self, wall_time: float) -> float:
        """The first moment after `wall_time` at which it becomes true; both in seconds of the local calendar."""
        period = _HOUR_S if self.hour is None else _DAY_S
        offset = (self.hour or 0) * _HOUR_S + self.minute * 60
        return math.floor((wall_time - offset) / period) * period + offset + period


class Then(Expression, frozen=True):
    """True when `later` is true; `later` begins to wait when `first` has become true."""

    first: Expression
    later: Expression


class And(Expression, frozen=True):
    """True when both parts are true."""

    one: Expression
    other: Expression


class Or(Expression, frozen=True):
    """True when one of the parts is true."""

    one: Expression
    other: Expression


class Unless(Expression, frozen=True):
    """True with `part`, false as soon as `never` is true."""

    part: Expression
    never: Expression


class Within(Expression, frozen=True):
    """True with `part`, false if `part` is not true in time."""

    part: Expression
    seconds: float


def match(event_type: type[Any], /, **fields: Any) -> Pattern:
    """A pattern for `on`, `on_all` and `once`: matches an event of a class whose fields have given values.

    `match(Order)["id"]` stands for the id of the matched order, as a value in a later part of the same expression:
    `order.then(match(Payment, order=order["id"]))` with `order = match(Order)`.

    Args:
        event_type: an event class, `Message`, or a notice of the engine such as `SenderFlushed`.
        fields: the values that fields must have. A `Reference` stands for a value of an earlier event.

    Raises:
        UsageError: E4108 for a class that is no event class, a field that the class does not have, a mutable value, or
            a value that the field never has.
    """
    return Pattern.of(event_type, fields)


def wait(seconds: float) -> Wait:
    """A part of an expression that becomes true some time after it has begun to wait.

    Args:
        seconds: seconds of engine time, which stands still while the engine is down.

    Raises:
        UsageError: E4112 for a time that is no number, not more than 0, or longer than 100 years.
    """
    return Wait(_seconds("wait", seconds))


def at(*, hour: int | None = None, minute: int = 0) -> At:
    """A part of an expression that becomes true when the local clock next shows a given time.

    If the engine misses the minute because it was down or the clock was set forward, the part becomes true as soon as
    the engine notices; several missed minutes count as one. A minute that the clock shows a second time does not count
    again.

    Args:
        hour: 0 to 23; `None` for each hour.
        minute: 0 to 59.

    Raises:
        UsageError: E4112 for an hour or minute that does not exist.
    """
    numbers = isinstance(minute, int) and isinstance(hour, int | None)
    if not numbers or not 0 <= minute < 60 or not (hour is None or 0 <= hour < 24):
        raise UsageError("E4112", "at", f"there is no time {hour}:{minute}", "Hours 0 to 23, minutes 0 to 59")
    return At(None if hour is None else int(hour), int(minute))


def _seconds(where: str, seconds: float) -> float:
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_WAIT_S:
        what = f"{quoted(seconds)} s is no time to wait"
        raise UsageError("E4112", where, what, "A number, more than 0 seconds, at most 100 years")
    return float(seconds)


def _check_field(event_type: type[Any], name: str) -> None:
    known = getattr(event_type, "__struct_fields__", ())
    if name not in known:
        raise UsageError(
            "E4108", f"event {event_type.__name__}", f"has no field '{name}'", f"Fields: {', '.join(known)}"
        )


def _check_value(event_type: type[Any], name: str, value: Any) -> None:
    """Refuse a value that the store would not return unchanged. Without this check the mistake would appear only at the
    next start.
    """
    if isinstance(value, Reference):
        _check_reference(event_type, name, value)
        return
    where, what = f"event {event_type.__name__}", f"field '{name}' never has the value {quoted(value)}"
    codec = _codec(event_type, name)  # type: ignore[arg-type]
    try:
        read_back = codec.decode(codec.encode(value))
    except StateError as error:
        raise UsageError("E4108", where, what, f"The {error.what}") from error
    if read_back != value:
        raise UsageError("E4108", where, what, f"The store would make {quoted(read_back)} of it")


def _check_reference(event_type: type[Any], name: str, reference: Reference) -> None:
    """Refuse a reference between fields whose types have no equal values."""
    wanted, given = _annotation(event_type, name), _annotation(reference.pattern.event_type, reference.field)
    family, other = (_FAMILIES.get(one) if isinstance(one, type) else None for one in (wanted, given))
    if family is not None and other is not None and family != other:
        what = (
            f"field '{name}' of type {wanted.__name__} never has the value of field '{reference.field}' "
            f"of {reference.pattern.event_type.__name__}, which is of type {given.__name__}"
        )
        raise UsageError("E4108", f"event {event_type.__name__}", what)


_FAMILIES = {str: "text", bytes: "bytes", bool: "number", int: "number", float: "number"}
"""Types whose values are equal only to values of the same family. A type that is not listed may equal any value."""


def _annotation(event_type: type[Any], name: str) -> Any:
    return next(one.type for one in msgspec.structs.fields(event_type) if one.name == name)


@lru_cache(maxsize=1000)
def _codec(event_type: type[Any], name: str) -> Codec[Any]:
    return Codec(_annotation(event_type, name), f"event {event_type.__name__}")


def _changes(event_type: type[Any], name: str, what: str) -> UsageError:
    return UsageError(
        "E4108", f"event {event_type.__name__}", f"field '{name}' cannot be matched with {what} that changes"
    )


# --- the progress of an attempt ---


class Progress(msgspec.Struct, frozen=True):
    """How far one attempt has come. Parts have the numbers of the `Plan`.

    Attributes:
        events: for each matched pattern, its event.
        elapsed: the clocks that have run out.
        due: for each running clock, the time at which it runs out: engine time, or for `At` seconds of the local
            calendar.
    """

    events: dict[int, Any] = {}
    elapsed: tuple[int, ...] = ()
    due: dict[int, float] = {}


FRESH = Progress()
"""The progress of a new attempt: no event has matched, and no clock runs."""


class Plan:
    """An expression with its parts numbered in the order of writing.

    Attributes:
        parts: all parts, by number.
        arguments: numbers of the patterns whose events the handler gets: all patterns that are not within a `Not`.

    Raises:
        UsageError: E4112 for an invalid expression, E4113 for a reference to an event that need not have happened.
    """

    def __init__(self, expression: Expression) -> None:
        self.parts: list[Expression] = []
        self._below: list[tuple[int, ...]] = []
        self._sequence: list[int | None] = []
        self._references: dict[int, tuple[tuple[int, int, str], ...]] = {}
        self._add(expression)
        self.arguments = tuple(self._matching(0))
        self._refer(0, ())
        self._asked = {(source, field) for all_of in self._references.values() for _, source, field in all_of}

    # --- making ---

    def _add(self, part: Expression) -> int:
        if not isinstance(part, Expression):
            raise _no_part(part)
        if len(self.parts) == MAX_PARTS:
            raise UsageError("E4112", "expression", f"has more than {MAX_PARTS} parts", "", "Use several listeners")
        if isinstance(part, Within):
            _seconds("within", part.seconds)
        number = len(self.parts)
        self.parts.append(part)
        self._below.append(())
        self._sequence.append(None)
        self._below[number] = tuple([self._add(below) for below in _below(part)])
        self._sequence[number] = self._first_sequence(number)
        return number

    def _first_sequence(self, number: int) -> int | None:
        """The innermost sequence with which this part begins. The first step of this sequence decides when the part has
        begun.
        """
        part = self.parts[number]
        if not isinstance(part, Then | Unless | Within):
            return None
        inner = self._sequence[self._below[number][0]]
        return number if inner is None and isinstance(part, Then) else inner

    def _matching(self, number: int) -> Iterator[int]:
        part, below = self.parts[number], self._below[number]
        if isinstance(part, Pattern):
            yield number
        for one in below[:1] if isinstance(part, Unless) else below:
            yield from self._matching(one)

    def _refer(self, number: int, known: tuple[int, ...]) -> tuple[int, ...]:
        """Resolve the references in a part. `known` has the patterns that are matched before the part; the result has
        the patterns that are matched after it.
        """
        part, below = self.parts[number], self._below[number]
        if isinstance(part, Pattern):
            self._references[number] = tuple(
                (at, self._referred(value, known), value.field)
                for at, value in enumerate(part.values)
                if isinstance(value, Reference)
            )
            return (number,)
        if isinstance(part, Then):
            first = self._refer(below[0], known)
            return first + self._refer(below[1], known + first)
        after = [self._refer(one, known) for one in below]
        if isinstance(part, And):
            return after[0] + after[1]
        return after[0] if isinstance(part, Unless | Within) else ()

    def _referred(self, reference: Reference, known: tuple[int, ...]) -> int:
        found = [number for number in known if self.parts[number] is reference.pattern]
        if len(found) == 1:
            return found[0]
        raise UsageError(
            "E4113",
            f"match({reference.pattern.event_type.__name__})['{reference.field}']",
            "stands in several parts of the expression" if found else "need not have matched before",
            "A value comes from a part of a sequence that is certainly true before",
            "Make another match() for each part" if found else "Put it before, with then()",
        )

    # --- asking ---

    def outcome(self, progress: Progress) -> bool | None:
        """Whether the expression is true or false; `None` while it is open."""
        return self._truth(0, progress)

    def begun(self, progress: Progress) -> bool:
        """Whether the sequence with which the expression begins has left its first step."""
        return self._has_begun(0, progress)

    def waiting(self, progress: Progress) -> Iterator[int]:
        """Numbers of the patterns that wait for an event, and of the clocks that run."""
        return self._open(0, progress)

    def pattern(self, number: int, progress: Progress) -> Pattern:
        """A pattern with the values of earlier events in place of its references."""
        part = self.parts[number]
        assert isinstance(part, Pattern)
        references = self._references[number]
        if not references:
            return part
        values = list(part.values)
        for at, source, field in references:
            values[at] = getattr(progress.events[source], field)
        return Pattern(part.event_type, part.fields, tuple(values))

    def event_type(self, number: int) -> type[Any]:
        """The class of the events that a pattern matches."""
        part = self.parts[number]
        assert isinstance(part, Pattern)
        return part.event_type

    def references(self, number: int) -> tuple[tuple[int, int, str], ...]:
        """The references of a pattern: (position of the value, number of the earlier pattern, field of its event)."""
        return self._references[number]

    def check(self, happened: Iterable[int], event: Any) -> None:
        """Raise `TypeError` if a later part refers to an unhashable value of the event."""
        for source, field in self._asked:
            if source in happened:
                hash(getattr(event, field))

    def step(self, progress: Progress, happened: Iterable[int], event: Any, moment: Moment) -> Progress:
        """The progress after the event has matched these patterns; if `event` is `None`, after these clocks have run
        out.
        """
        events, elapsed = progress.events, progress.elapsed
        if event is None:
            elapsed = (*elapsed, *happened)
        else:
            events = {**events, **dict.fromkeys(happened, event)}
        after = Progress(events, elapsed)
        due = {
            number: progress.due[number] if number in progress.due else self._end_of(number, moment)
            for number in self.waiting(after)
            if not isinstance(self.parts[number], Pattern)
        }
        return Progress(events, elapsed, due)

    def run_out(self, progress: Progress, moment: Moment) -> list[int]:
        """The clocks that have run out: all clocks of the local calendar; if there are none, the clocks of engine time
        that ran out first.

        The caller makes a step with these clocks and calls this again, since an earlier clock can decide whether a
        later one counts.
        """
        by_wall = [number for number, due in progress.due.items() if self._is_at(number) and due <= moment.wall_time]
        if by_wall:
            return by_wall
        by_engine = {number: due for number, due in progress.due.items() if not self._is_at(number)}
        earliest = min(by_engine.values(), default=math.inf)
        return [number for number, due in by_engine.items() if due == earliest <= moment.engine_time]

    def next_look(self, progress: Progress, moment: Moment, patience: float) -> float | None:
        """The engine time at which to check the clocks next; `None` without a clock.

        While a clock of the local calendar runs, the next check is at most `patience` seconds away, since somebody may
        set the clock.
        """
        looks = [
            moment.engine_time + max(0.0, min(due - moment.wall_time, patience)) if self._is_at(number) else due
            for number, due in progress.due.items()
        ]
        return min(looks, default=None)

    def _is_at(self, number: int) -> bool:
        return isinstance(self.parts[number], At)

    def _end_of(self, number: int, moment: Moment) -> float:
        part = self.parts[number]
        if isinstance(part, At):
            return part.next_after(moment.wall_time)
        assert isinstance(part, Wait | Within)
        return moment.engine_time + part.seconds

    def _truth(self, number: int, progress: Progress) -> bool | None:
        part, below = self.parts[number], self._below[number]
        if not below:
            return True if number in progress.events or number in progress.elapsed else None
        one = self._truth(below[0], progress)
        other = self._truth(below[1], progress) if len(below) > 1 else None
        if isinstance(part, Then):
            return other if one else one
        if isinstance(part, And):
            return _both(one, other)
        if isinstance(part, Or):
            return _either(one, other)
        if isinstance(part, Unless):
            return False if other else one
        return False if one is None and number in progress.elapsed else one

    def _has_begun(self, number: int, progress: Progress) -> bool:
        sequence = self._sequence[number]
        return sequence is not None and self._truth(self._below[sequence][0], progress) is True

    def _open(self, number: int, progress: Progress) -> Iterator[int]:
        if self._truth(number, progress) is not None:
            return
        part, below = self.parts[number], self._below[number]
        if isinstance(part, Then):
            yield from self._open(below[1] if self._truth(below[0], progress) else below[0], progress)
            return
        for one in below:
            yield from self._open(one, progress)
        runs = not isinstance(part, Within) or self._sequence[number] is None or self._has_begun(number, progress)
        if runs and isinstance(part, Pattern | Wait | At | Within):
            yield number


def _no_part(value: object) -> UsageError:
    if isinstance(value, type):
        name = value.__name__
        return UsageError("E4112", "expression", f"the class {name} cannot be a part of it", "", f"Write match({name})")
    what = f"{quoted(value)} of type {type(value).__name__} cannot be a part of it"
    allowed = "Parts are match(), wait(), at() and combinations of them; ~ stands beside & only"
    return UsageError("E4112", "expression", what, allowed)


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return True if one and other else None


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return False if one is False and other is False else None


def _below(part: Expression) -> tuple[Expression, ...]:
    return tuple(getattr(part, name) for name in _BELOW.get(type(part), ()))


_BELOW: dict[type[Expression], tuple[str, ...]] = {
    Then: ("first", "later"),
    And: ("one", "other"),
    Or: ("one", "other"),
    Unless: ("part", "never"),
    Within: ("part",),
}
