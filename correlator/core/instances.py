"""A monitor in a context: what it waits for, and how the store holds it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from correlator.core.monitor import Monitor
from correlator.core.state import encode
from correlator.errors import StateError
from correlator.events import Pattern

OnError = Literal["stop", "dead_letter", "skip"]


class StoredListener(msgspec.Struct, array_like=True, frozen=True):
    """A dynamic listener as the store holds it."""

    number: int
    event_type: str
    fields: tuple[str, ...]
    values: list[Any]
    handler: str
    once: bool


class StoredTimer(msgspec.Struct, array_like=True, frozen=True):
    """A timer as the store holds it; `period` is `None` for one that fires once."""

    number: int
    due: float
    period: float | None
    handler: str


class StoredMonitor(msgspec.Struct, array_like=True, frozen=True):
    """A persistent monitor as the store holds it, under owner `monitor:NAME` and its instance number."""

    type: str
    context: str
    version: int
    attributes: bytes
    listeners: list[StoredListener]
    timers: list[StoredTimer]
    next_number: int
    on_error: OnError = "stop"


class Listener:
    """A method of a monitor that waits for a pattern."""

    __slots__ = ("handler", "instance", "method", "number", "once", "pattern")

    def __init__(self, instance: "Instance", number: int, pattern: Pattern, handler: str, *, once: bool) -> None:
        self.instance = instance
        self.number = number
        self.pattern = pattern
        self.handler = handler
        self.method: Callable[[Any], None] = getattr(instance.monitor, handler)
        self.once = once


class Timer:
    """A timer of an instance."""

    __slots__ = ("cancelled", "due", "handler", "instance", "number", "period")

    def __init__(self, instance: "Instance", number: int, due: float, period: float | None, handler: str) -> None:
        self.instance = instance
        self.number = number
        self.due = due
        self.period = period
        self.handler = handler
        self.cancelled = False

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self.number) < (other.due, other.number)


class Instance:
    """One monitor in the context, with what it waits for.

    Its number is "0" for one that the configuration names, and `CONTEXT.N` for the N-th that was spawned in a context.
    """

    __slots__ = ("alive", "declared", "listeners", "monitor", "next_number", "number", "on_error", "timers")

    def __init__(self, monitor: Monitor, number: str, on_error: OnError) -> None:
        self.monitor = monitor
        self.number = number
        self.on_error = on_error
        self.alive = True
        self.declared: list[Listener] = []
        self.listeners: dict[int, Listener] = {}
        self.timers: dict[int, Timer] = {}
        self.next_number = 1

    @property
    def owner(self) -> str:
        """Its owner name in the store."""
        return f"monitor:{self.monitor.state_name}"

    @property
    def key(self) -> bytes:
        """Its key in the store."""
        return self.number.encode()


def type_name(cls: type[Any]) -> str:
    """The name under which the store knows a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def restore_monitor(cls: type[Monitor], number: str, stored: StoredMonitor, tables: Mapping[str, Any]) -> Monitor:
    """A monitor with its state as stored.

    Args:
        cls: its class.
        number: its instance number.
        stored: what the store holds.
        tables: stored content of its tables by owner.

    Raises `StateError` E4203 when the class no longer fits and its `migrate_state` does not help.
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
    monitor = cls(**{name: getattr(restored, name) for name in restored.__struct_fields__})
    monitor.name_tables(number)
    for table in monitor.tables():
        table.load(tables.get(table.owner, {}))
    return monitor
