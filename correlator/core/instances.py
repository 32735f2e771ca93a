"""An instance: one monitor in a context, with its listeners, timers and attempts, and their form in the store."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from correlator.core.expressions import (
    And,
    At,
    Expression,
    Or,
    Pattern,
    Plan,
    Progress,
    Reference,
    Then,
    Unless,
    Wait,
    Within,
)
from correlator.core.monitor import Monitor, refuse_deferred_handler
from correlator.core.state import encode
from correlator.errors import StateError

OnError = Literal["stop", "dead_letter", "skip"]


class StoredListener(msgspec.Struct, array_like=True, frozen=True):
    """A dynamic listener in the form of the store."""

    number: int
    event_type: str
    fields: tuple[str, ...]
    values: list[Any]
    handler: str
    once: bool


class StoredTimer(msgspec.Struct, array_like=True, frozen=True):
    """A timer in the form of the store; `period` is `None` for a timer that fires once."""

    number: int
    due: float
    period: float | None
    handler: str


class StoredMonitor(msgspec.Struct, array_like=True, frozen=True):
    """A persistent monitor in the form of the store: owner `monitor:NAME`, key the number of the instance."""

    type: str
    context: str
    version: int
    attributes: bytes
    listeners: list[StoredListener]
    timers: list[StoredTimer]
    next_number: int
    on_error: OnError = "stop"
    subscriptions: list[str] = []


class StoredExpression(msgspec.Struct, array_like=True, frozen=True):
    """An expression listener in the form of the store: owner `waiting:NAME#INSTANCE`, key the number of the listener.

    The listener and each of its attempts have entries of their own, so the cost of a checkpoint depends on the changes
    and not on the number of attempts under way. The parts are in the order of their numbers.
    """

    parts: list[list[Any]]
    handler: str
    once: bool
    declared: bool


class StoredAttempt(msgspec.Struct, array_like=True, frozen=True):
    """An attempt in the form of the store: the owner is that of its listener, the key is `LISTENER.NUMBER`."""

    events: dict[int, bytes]
    elapsed: tuple[int, ...]
    due: dict[int, float]


class Listener:
    """A method of a monitor that waits for a pattern."""

    __slots__ = ("handler", "instance", "method", "number", "once", "pattern")

    def __init__(self, instance: "Instance", number: int, pattern: Pattern, handler: str, *, once: bool) -> None:
        self.instance = instance
        self.number = number
        self.pattern = pattern
        self.handler = handler
        self.method = _method(instance, handler, "listener")
        self.once = once


class Timer:
    """A timer of an instance; `period` is `None` for a timer that fires once."""

    __slots__ = ("cancelled", "due", "handler", "instance", "method", "number", "period")

    def __init__(self, instance: "Instance", number: int, due: float, period: float | None, handler: str) -> None:
        self.instance = instance
        self.number = number
        self.due = due
        self.period = period
        self.handler = handler
        self.method = _method(instance, handler, "timer")
        self.cancelled = False

    def __lt__(self, other: "Timer | Deadline") -> bool:
        return (self.due, self.number) < (other.due, other.number)


class Deadline:
    """The engine time at which an attempt has to check its clocks."""

    __slots__ = ("attempt", "cancelled", "due", "number")

    def __init__(self, attempt: "Attempt", due: float) -> None:
        self.attempt = attempt
        self.due = due
        self.number = attempt.number
        self.cancelled = False

    @property
    def instance(self) -> "Instance":
        """The instance to which the attempt belongs."""
        return self.attempt.listener.instance

    def __lt__(self, other: "Timer | Deadline") -> bool:
        return (self.due, self.number) < (other.due, other.number)


class ExpressionListener:
    """A method of a monitor that waits for an expression, and the attempts at it that are under way.

    Attributes:
        declared: whether the class declares the listener. A declared listener stays in the store after its end, so that
            no restart begins it anew.
        stored: whether the store may hold the listener.
        alive: whether the monitor still has the listener.
    """

    __slots__ = (
        "alive",
        "attempts",
        "declared",
        "handler",
        "instance",
        "method",
        "number",
        "once",
        "plan",
        "stored",
    )

    def __init__(
        self, instance: "Instance", number: int, plan: Plan, handler: str, *, once: bool, declared: bool
    ) -> None:
        self.instance = instance
        self.number = number
        self.plan = plan
        self.handler = handler
        self.method = _method(instance, handler, "listener")
        self.once = once
        self.declared = declared
        self.attempts: dict[Attempt, None] = {}
        self.stored = False
        self.alive = True

    @property
    def begins_again(self) -> bool:
        """Whether a new attempt begins when an attempt has left the first step."""
        return self.alive and not self.once

    @property
    def key(self) -> bytes:
        """The key of this listener in the store."""
        return str(self.number).encode()

    def encoded(self) -> bytes:
        """The bytes of this listener in the store."""
        stored = StoredExpression(stored_parts(self.plan), self.handler, self.once, self.declared)
        return encode(stored, f"monitor {self.instance.monitor.state_name}")


class Attempt:
    """One attempt at an expression.

    Attributes:
        progress: how far the attempt has come.
        recorded: the events of its progress as the store holds them, by part; empty unless the monitor is persistent.
        leaves: its patterns in the index of listeners, by part.
        deadline: its entry among the timers of the context.
        stored: whether the store may hold the attempt.
        alive: whether the attempt is under way.
    """

    __slots__ = ("alive", "deadline", "leaves", "listener", "number", "progress", "recorded", "stored")

    def __init__(self, listener: ExpressionListener, number: int, progress: Progress) -> None:
        self.listener = listener
        self.number = number
        self.progress = progress
        self.recorded: dict[int, bytes] = {}
        self.leaves: dict[int, Leaf] = {}
        self.deadline: Deadline | None = None
        self.stored = False
        self.alive = True

    @property
    def key(self) -> bytes:
        """The key of this attempt in the store."""
        return f"{self.listener.number}.{self.number}".encode()

    def encoded(self) -> bytes:
        """The bytes of this attempt in the store."""
        where = f"monitor {self.listener.instance.monitor.state_name}"
        return encode(StoredAttempt(self.recorded, self.progress.elapsed, self.progress.due), where)


class Leaf:
    """A pattern of an attempt that waits for an event."""

    __slots__ = ("attempt", "part", "pattern")

    def __init__(self, attempt: Attempt, part: int, pattern: Pattern) -> None:
        self.attempt = attempt
        self.part = part
        self.pattern = pattern


def _method(instance: "Instance", handler: str, what: str) -> Callable[..., None]:
    method: Callable[..., None] | None = getattr(instance.monitor, handler, None)
    if method is None:
        raise StateError(
            "E4203",
            f"monitor {instance.monitor.state_name}",
            f"a stored {what} calls '{handler}', which the class does not have",
            "State is never guessed",
            "Put the method back under its old name",
        )
    refuse_deferred_handler(type(instance.monitor), handler)
    return method


class Instance:
    """One monitor in a context.

    Args:
        monitor: the monitor.
        number: `0` for the monitor that the configuration names, `CONTEXT.N` for the N-th that a context has spawned.
        on_error: the policy for a handler that fails.

    Attributes:
        alive: whether the instance still gets events; `False` as soon as its end begins.
        tables: the state tables that the engine made for the monitor.
        kept: the encoded attributes of the monitor after the last handler; `None` before the first handler, and with
            `on_error: stop`.
        declared: the listeners that the class declares for single patterns.
        listeners: its dynamic listeners for single patterns, by number.
        timers: its timers, by number.
        expressions: its expression listeners, by number.
        subscriptions: the channels that the monitor has subscribed to.
        next_number: number of its next listener or timer.
        next_attempt: number of its next attempt.
    """

    __slots__ = (
        "alive",
        "declared",
        "expressions",
        "kept",
        "listeners",
        "monitor",
        "next_attempt",
        "next_number",
        "number",
        "on_error",
        "subscriptions",
        "tables",
        "timers",
    )

    def __init__(self, monitor: Monitor, number: str, on_error: OnError) -> None:
        self.monitor = monitor
        self.number = number
        self.on_error = on_error
        self.alive = True
        self.tables = monitor.tables()
        self.kept: bytes | None = None
        self.declared: list[Listener] = []
        self.listeners: dict[int, Listener] = {}
        self.timers: dict[int, Timer] = {}
        self.expressions: dict[int, ExpressionListener] = {}
        self.subscriptions: dict[str, None] = {}
        self.next_number = 1
        self.next_attempt = 1

    def take_number(self) -> int:
        """Return a number for a listener or timer of this instance; no number is given twice."""
        number, self.next_number = self.next_number, self.next_number + 1
        return number

    @property
    def owner(self) -> str:
        """The owner of the state of this instance in the store."""
        return f"monitor:{self.monitor.state_name}"

    @property
    def key(self) -> bytes:
        """The key of this instance in the store."""
        return self.number.encode()

    @property
    def waiting_owner(self) -> str:
        """The owner of the expression listeners of this instance in the store."""
        return waiting_owner(type(self.monitor), self.number)


def waiting_owner(cls: type[Monitor], number: str) -> str:
    """Return the owner, in the store, of the expression listeners of an instance."""
    return f"waiting:{cls.state_name}#{number}"


def type_name(cls: type[Any]) -> str:
    """Return the name of a class in the store."""
    return f"{cls.__module__}:{cls.__qualname__}"


def restored_pattern(
    resolve: Callable[[str], type[Any]], event_type: str, fields: tuple[str, ...], values: list[Any]
) -> Pattern:
    """Return the pattern of a stored listener, whose values are converted to the types of the fields."""
    cls = resolve(event_type)
    types = {field.name: field.type for field in msgspec.structs.fields(cls)} if fields else {}
    typed = (
        value if isinstance(value, Reference) else msgspec.convert(value, types[name], strict=False)
        for name, value in zip(fields, values, strict=True)
    )
    return Pattern(cls, fields, tuple(typed))


_WORDS: dict[str, type[Expression]] = {
    "match": Pattern,
    "wait": Wait,
    "at": At,
    "then": Then,
    "and": And,
    "or": Or,
    "unless": Unless,
    "within": Within,
}
_WORD_OF = {cls: word for word, cls in _WORDS.items()}


def stored_parts(plan: Plan) -> list[list[Any]]:
    """Return the parts of an expression in the form of the store, with a `Reference` as (position, part, field)."""
    return [_stored_part(plan, number) for number in range(len(plan.parts))]


def _stored_part(plan: Plan, number: int) -> list[Any]:
    part = plan.parts[number]
    word = _WORD_OF[type(part)]
    if isinstance(part, Pattern):
        values = [None if isinstance(value, Reference) else value for value in part.values]
        return [word, type_name(part.event_type), part.fields, values, plan.references(number)]
    if isinstance(part, At):
        return [word, part.hour, part.minute]
    return [word, part.seconds] if isinstance(part, Wait | Within) else [word]


def restored_expression(resolve: Callable[[str], type[Any]], parts: list[list[Any]]) -> Expression:
    """The expression of `stored_parts`; `resolve` returns the class behind a `type_name`."""
    patterns: dict[int, Pattern] = {}
    rows = iter(enumerate(parts))
    return _restored_part(resolve, rows, patterns)


def _restored_part(
    resolve: Callable[[str], type[Any]], rows: Iterator[tuple[int, list[Any]]], patterns: dict[int, Pattern]
) -> Expression:
    number, (word, *details) = next(rows)
    if word == "match":
        event_type, fields, values, references = details
        for position, source, field in references:
            values[position] = Reference(patterns[source], field)
        patterns[number] = restored_pattern(resolve, event_type, tuple(fields), values)
        return patterns[number]
    if word == "at":
        return At(*details)
    if word == "wait":
        return Wait(*details)
    one = _restored_part(resolve, rows, patterns)
    if word == "within":
        return Within(one, *details)
    cls = _WORDS[word]
    return cls(one, _restored_part(resolve, rows, patterns))


def restore_monitor(cls: type[Monitor], number: str, stored: StoredMonitor, tables: Mapping[str, Any]) -> Monitor:
    """Make a monitor with the attributes and tables that the store holds.

    Args:
        cls: class of the monitor.
        number: number of the instance.
        stored: the monitor in the form of the store.
        tables: stored content of tables, by owner.

    Raises:
        StateError: E4203 when the stored state does not fit the class and `migrate_state` refuses it, or when a table
            has values of another type; E4116 as `Monitor.made_again`.
    """
    data = stored.attributes
    if stored.version != cls.state_version:
        migrated = cls.migrate_state(stored.version, msgspec.msgpack.decode(data))
        if migrated is None:
            raise StateError(
                "E4203",
                f"monitor {cls.state_name}",
                f"stored state has version {stored.version}, the class {cls.state_version}",
                "State is never guessed",
                "Define 'migrate_state(cls, version, data)' on the class",
            )
        data = encode(migrated, f"monitor {cls.state_name}")
    restored = cls.state_codec().decode(data)
    monitor = cls.made_again({name: getattr(restored, name) for name in restored.__struct_fields__})
    monitor.name_tables(number)
    for table in monitor.tables():
        table.load(tables.get(table.owner, {}))
        table.check_stored()
    return monitor
