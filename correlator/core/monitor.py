"""Monitors: application code with listeners, timers and state.

A class is read once, when it is made: its annotated attributes are its state, its decorated methods its listeners. An
instance talks to the engine through its *binding*, which its context sets; without one nothing can be sent, so a
monitor can be made and called in a unit test of its own.
"""

import copy
import difflib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import msgspec

from correlator.core.expressions import LONGEST_WAIT_S, Expression, Pattern, Plan
from correlator.core.state import Codec, StateTable, check_key_type, check_type, encode
from correlator.errors import StateError, UsageError, quoted
from correlator.events import FlowControlMarker, ReceivingSuspended
from correlator.handlers import refuse_deferred

Handler = Callable[..., None]
F = TypeVar("F", bound=Handler)


class ListenerSpec(msgspec.Struct, frozen=True):
    """A listener as declared: what it waits for and the name of the method it calls.

    `plan` is `None` for a single pattern, which needs no attempts.
    """

    expression: Expression
    handler: str
    once: bool = False
    plan: Plan | None = None

    @classmethod
    def of(cls, expression: Expression, handler: Handler, name: str, *, once: bool = False) -> "ListenerSpec":
        """The listener; `handler` is called with an event for each pattern, `name` is its name in the class.

        Raises `UsageError` E4112, E4113, and E4114 for a handler that does not take as many events.
        """
        if isinstance(expression, Pattern) and not expression.refers:
            check_arguments(handler, 1)
            return cls(expression, name, once)
        plan = Plan(expression)
        check_arguments(handler, len(plan.arguments))
        return cls(expression, name, once, plan)


class TimerSpec(msgspec.Struct, frozen=True):
    """A repeating timer as declared by `@every`."""

    period: float
    handler: str


_LISTENERS, _TIMERS = "_correlator_listeners", "_correlator_timers"
_DECORATORS = {_LISTENERS: "@on", _TIMERS: "@every"}


def on(what: type[Any] | Expression, /, **fields: Any) -> Callable[[F], F]:
    """Call the method for every event of a type whose fields have these values, or as `Monitor.on_all` does.

    Raises `UsageError` E4108 for a field that the type, or a value that the field does not have, E4114 for a
    method that does not take the event, E4117 for one that is `async def` or a generator, and as `on_all` does for an
    expression.
    """
    expression = what if isinstance(what, Expression) else Pattern.of(what, fields)

    def decorate(method: F) -> F:
        refuse_deferred(method, f"handler {method.__qualname__}")
        specs = method.__dict__.setdefault(_LISTENERS, [])
        specs.append(ListenerSpec.of(expression, partial(method, None), method.__name__))
        return method

    return decorate


def every(seconds: float) -> Callable[[F], F]:
    """Call the method again and again, `seconds` of engine time apart.

    Raises `UsageError` E4109 for what is no period, E4114 for a method that takes arguments, E4117 for one that is
    `async def` or a generator.
    """
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_WAIT_S:
        allowed = "A number, more than 0 seconds, at most 100 years"
        raise UsageError("E4109", "every", f"{quoted(seconds)} s is no period of a timer", allowed)

    def decorate(method: F) -> F:
        refuse_deferred(method, f"handler {method.__qualname__}")
        check_arguments(partial(method, None), 0)
        method.__dict__.setdefault(_TIMERS, []).append(TimerSpec(float(seconds), method.__name__))
        return method

    return decorate


class Binding(Protocol):
    """What a monitor instance asks of its context."""

    def send(
        self,
        monitor: "Monitor",
        event: Any,
        to: str,
        key: str | None,
        properties: Mapping[str, Any] | None,
        destination: str | None,
    ) -> None:
        """Stage a send."""
        ...

    def listen(self, monitor: "Monitor", spec: ListenerSpec) -> int:
        """Add a listener; returns its number within the monitor."""
        ...

    def unlisten(self, monitor: "Monitor", number: int) -> None:
        """Remove a listener."""
        ...

    def wait(self, monitor: "Monitor", seconds: float, handler: str) -> int:
        """Add a timer; returns its number within the monitor."""
        ...

    def subscribe(self, monitor: "Monitor", channel: str) -> None:
        """Have the context receive a channel."""
        ...

    def unsubscribe(self, monitor: "Monitor", channel: str) -> None:
        """No longer have it receive a channel."""
        ...

    def spawn(self, monitor: "Monitor", cls: "type[Monitor]", attributes: Mapping[str, Any]) -> None:
        """Make another instance."""
        ...

    def stop(self, monitor: "Monitor") -> None:
        """End this instance after the handler."""
        ...

    def outstanding(self, monitor: "Monitor", sender: str) -> int:
        """How much waits for the broker of a sender."""
        ...

    def request_flush(self, monitor: "Monitor", sender: str) -> int:
        """Ask for `SenderFlushed`."""
        ...

    def acknowledge_and_resume(self, monitor: "Monitor", receiver: str) -> None:
        """Acknowledge the suspended batch."""
        ...

    def update_flow_control_window(self, monitor: "Monitor", marker: FlowControlMarker, window: int) -> None:
        """Let a receiver deliver further."""
        ...

    @property
    def engine_time(self) -> float:
        """Seconds of engine time."""
        ...


class Monitor:
    """Base class of application code.

    `class Positions(Monitor, persistent=True)`: annotated attributes are the state that the checkpoint holds; a value
    beside the annotation is the initial one, copied for each instance. Attributes without annotation are scratch and
    gone after a restart. `name=` fixes the name in the store when the class is renamed.

    A subclass has the handlers of its bases. One that it defines again needs `@on` or `@every` again (`UsageError`
    E4121); `NAME = None` leaves it out.

    All methods are called in the thread of the monitor's context, one at a time. What they ask for is asked for in this
    thread, before they return: any other call raises `UsageError` E8005, E2050 in a forked child. A monitor that ends
    can still send and spawn in its `on_unload`, and wait for nothing (`UsageError` E8011).
    """

    persistent: ClassVar[bool] = False
    state_name: ClassVar[str] = ""
    state_version: ClassVar[int] = 1
    listeners: ClassVar[tuple[ListenerSpec, ...]] = ()
    timers: ClassVar[tuple[TimerSpec, ...]] = ()
    _attributes: ClassVar[dict[str, Any]] = {}
    _tables: ClassVar[dict[str, tuple[Any, Any]]] = {}
    _codec: ClassVar[Codec[Any]]
    _binding: Binding | None = None

    def __init_subclass__(cls, *, persistent: bool | None = None, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if persistent is not None:
            cls.persistent = persistent
        cls.state_name = name or cls.__name__
        _refuse_strange_hooks(cls)
        _refuse_silent_overrides(cls)
        cls.listeners = tuple(_declared(cls, _LISTENERS))
        cls.timers = tuple(_declared(cls, _TIMERS))
        handlers = [*(spec.handler for spec in cls.listeners), *(spec.handler for spec in cls.timers)]
        for called in (*_HOOKS.values(), "migrate_state", *handlers):
            refuse_deferred_handler(cls, called)
        _read_annotations(cls)

    def __init__(self, **attributes: Any) -> None:
        unknown = attributes.keys() - self._attributes.keys()
        if unknown:
            raise UsageError(
                "E4104",
                f"monitor {self.state_name}",
                f"has no attribute {quoted(min(unknown))}",
                _listed(self._attributes),
            )
        for attribute in self._attributes:
            if attribute in attributes:
                setattr(self, attribute, attributes[attribute])
            elif hasattr(type(self), attribute):
                setattr(self, attribute, copy.deepcopy(getattr(type(self), attribute)))
            else:
                raise UsageError(
                    "E4105",
                    f"monitor {self.state_name}",
                    f"attribute '{attribute}' has no initial value",
                    "",
                    "Give one in the class or where the monitor is made",
                )
        for attribute, (key_type, value_type) in self._tables.items():
            setattr(self, attribute, StateTable(key_type, value_type, f"table:{self.state_name}#0.{attribute}"))

    # --- for application code ---

    def send(
        self,
        event: Any,
        to: str,
        *,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        destination: str | None = None,
    ) -> None:
        """Send an event to a sender by its id, or to `channel:NAME`; leaves as the sender's reliability says.

        A `bytes` or `Message` value is sent as it is, an event as JSON; `destination` takes the place of the sender's.
        A connection without configured senders has one named `CONNECTION-default-sender`. Raises
        `UsageError` E8001 for an unknown sender, E8004 when neither it nor the call names a destination, and
        `MappingError` E5201 for a value that cannot become a message.
        """
        (self._binding or self._bound).send(self, event, to, key, properties, destination)

    def once(self, expression: Expression, then: Handler) -> int:
        """Call `then` (a method of this monitor) when the expression is true; returns a number for `cancel`.

        `then` is called with one event for each `match()` that is not behind `not`, in the order of writing, `None` for
        one that has not matched. Raises `UsageError` E4112 for an expression that cannot be, E4113 for a reference to
        what need not have happened, E4114 for a handler that does not take these events, E4117 for one that is
        `async def` or a generator.
        """
        return self._bound.listen(self, ListenerSpec.of(expression, then, self._own(then), once=True))

    def on_all(self, expression: Expression, then: Handler) -> int:
        """Call `then`, as `once` does, each time the expression is true; returns a number for `cancel`.

        Whenever the first step of a sequence is true, another attempt begins to wait for it; what is no sequence begins
        again when it was true. When the first step can no longer become true, no attempt begins any more.
        """
        return self._bound.listen(self, ListenerSpec.of(expression, then, self._own(then)))

    def subscribe(self, channel: str) -> None:
        """Have this context receive what is sent to `channel:NAME`, from the end of this handler on.

        All monitors of the context hear it, until the last subscribed one unsubscribes or ends. The context's own name
        needs no subscription.
        """
        self._bound.subscribe(self, channel)

    def unsubscribe(self, channel: str) -> None:
        """End the subscription of this monitor; without one this is no error."""
        self._bound.unsubscribe(self, channel)

    def cancel(self, number: int) -> None:
        """End a listener or timer; one that has ended already is no error."""
        self._bound.unlisten(self, number)

    def wait(self, seconds: float, then: Handler) -> int:
        """Call `then` (a method of this monitor) once, after `seconds` of engine time.

        Raises `UsageError` E4109 for less than 0 seconds, more than a hundred years, and what is no number, E4114 for
        a method that takes arguments, E4117 for one that is `async def` or a generator.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT_S:
            what = f"{quoted(seconds)} s is no time to wait"
            allowed = "A number, 0 seconds or more, at most 100 years"
            raise UsageError("E4109", f"monitor {self.state_name}", what, allowed)
        name = self._own(then)
        check_arguments(then, 0)
        return self._bound.wait(self, float(seconds), name)

    def spawn(self, cls: "type[Monitor]", **attributes: Any) -> None:
        """Make another monitor in the same context, with these attributes; it begins after this handler."""
        self._bound.spawn(self, cls, attributes)

    def stop(self) -> None:
        """End this monitor after the handler: its listeners, timers and state are gone."""
        self._bound.stop(self)

    def outstanding(self, sender: str) -> int:
        """How many messages to a sender its broker has not confirmed yet, from all contexts.

        To send less while it is many. What this handler sends counts from its end on. A handler that is run again, in
        another life, may be told another number; a flush that was asked for counts as one. Raises `UsageError` E8001
        for an unknown sender, E8002 for one that is being removed.
        """
        return self._bound.outstanding(self, sender)

    def request_flush(self, sender: str) -> int:
        """Ask to be told by a `SenderFlushed` event when all earlier sends to a BEST_EFFORT sender are settled.

        Raises `UsageError` E4110 in a persistent monitor and E8202 for a reliable sender.
        """
        return self._bound.request_flush(self, sender)

    def acknowledge_and_resume(self, receiver: str) -> None:
        """Acknowledge the batch that `ReceivingSuspended` announced, and receive on, when this handler has returned.

        A handler that fails acknowledges nothing, and what was lost with its connection comes again. Raises
        `UsageError` E4110 in a persistent monitor, E7101 when nothing is suspended, E7102 in a wrong context.
        """
        self._bound.acknowledge_and_resume(self, receiver)

    def update_flow_control_window(self, marker: FlowControlMarker, window: int) -> None:
        """Let a receiver deliver `window` messages beyond a marker of its own; the last call counts.

        Allowed in persistent monitors: the window is not state, a new marker comes after a restart. A smaller window
        does not take back what the receiver has just asked its broker for. Raises `UsageError` E7104 for a receiver
        without flow control, E7105 for a negative window.
        """
        self._bound.update_flow_control_window(self, marker, window)

    @property
    def engine_time(self) -> float:
        """Seconds of engine time: grows while the engine runs, goes on where it stopped, never follows a clock."""
        return self._bound.engine_time

    # --- life cycle, to be overridden ---

    def onload(self) -> None:
        """Called once in the life of the monitor; non-persistent monitors begin a new life at each start."""

    def on_unload(self) -> None:
        """Called when the monitor ends by `stop`."""

    def on_begin_recovery(self) -> None:
        """Called in a recovery before queued events: state is restored, and monitors that begin anew had `onload`."""

    def on_conclude_recovery(self) -> None:
        """Called in a recovery after queued events; receivers open when it has returned on all monitors."""

    @classmethod
    def migrate_state(cls, version: int, data: dict[str, Any]) -> dict[str, Any] | None:
        """Turn state that an earlier version of the class stored into today's fields; `None` refuses (E4203)."""
        del version, data
        return None

    # --- for the context ---

    @classmethod
    def made_again(cls, attributes: Mapping[str, Any]) -> "Monitor":
        """The monitor with the attributes that another life left it with.

        Raises `StateError` E4116 when its own `__init__` does not take them, or does not keep them.
        """
        try:
            made = cls(**attributes)
        except TypeError as error:
            raise _unmakeable(cls, f"'__init__' does not take the attributes that the store has: {error}") from error
        now = made.attributes()
        lost = [name for name, value in attributes.items() if now[name] is not value and now[name] != value]
        if lost:
            raise _unmakeable(cls, f"'__init__' does not keep the attribute '{lost[0]}' that the store has")
        return made

    def settle(self) -> None:
        """Give it the attributes that a start would read back: nobody else holds what is in them.

        Raises `StateError` E4102 or E4103 for a value that cannot be stored, E4116 as `made_again`.
        """
        restored = self.state_codec().decode(self.encoded())
        attributes = {name: getattr(restored, name) for name in self._attributes}
        if type(self).__init__ is not Monitor.__init__:
            self.made_again(attributes)
        for name, value in attributes.items():
            setattr(self, name, value)

    @classmethod
    def acknowledges(cls) -> bool:
        """Whether it may acknowledge batches, and declares to listen for those that are to be acknowledged."""
        return not cls.persistent and any(
            isinstance(spec.expression, Pattern) and spec.expression.event_type is ReceivingSuspended
            for spec in cls.listeners
        )

    @classmethod
    def state_codec(cls) -> Codec[Any]:
        """Encodes the annotated attributes."""
        return cls._codec

    def attributes(self) -> dict[str, Any]:
        """The annotated attributes and their values; raises `StateError` E4102 when one was deleted."""
        try:
            return {name: getattr(self, name) for name in self._attributes}
        except AttributeError as error:
            what = f"attribute {quoted(error.name)} was deleted"
            raise StateError(
                "E4102", f"monitor {self.state_name}", what, "", "Assign None or an empty value"
            ) from error

    def encoded(self) -> bytes:
        """The annotated attributes as `state_codec` encodes them; raises `StateError` E4102 or E4103 naming the one."""
        attributes = self.attributes()
        try:
            return self.state_codec().encode(attributes)
        except StateError:
            for name, value in attributes.items():
                encode(value, f"monitor {self.state_name}.{name}")
            raise

    def tables(self) -> list[StateTable[Any, Any]]:
        """The state tables."""
        return [getattr(self, name) for name in self._tables]

    def check_tables(self, made: Sequence[StateTable[Any, Any]]) -> None:
        """Raise `StateError` E4119 when its tables are no longer those that the engine made."""
        for name, table in zip(self._tables, made, strict=True):
            if getattr(self, name, None) is not table:
                where, todo = f"monitor {self.state_name}", f"Change what it holds: self.{name}.clear(), .update(…)"
                raise StateError("E4119", where, f"another value took the place of its StateTable '{name}'", "", todo)

    def take_back(self, attributes: bytes, tables: Sequence[StateTable[Any, Any]]) -> None:
        """Make attributes and tables what they were; `attributes` as `state_codec` encoded them."""
        restored = self.state_codec().decode(attributes)
        for name in self._attributes:
            setattr(self, name, getattr(restored, name))
        for name, table in zip(self._tables, tables, strict=True):
            setattr(self, name, table)
            table.undo()

    def name_tables(self, instance: str) -> None:
        """Give each table its owner name in the store."""
        for attribute, (key_type, value_type) in self._tables.items():
            owner = f"table:{self.state_name}#{instance}.{attribute}"
            setattr(self, attribute, StateTable(key_type, value_type, owner))

    def bind(self, binding: Binding) -> None:
        """Set by the context that the monitor lives in."""
        self._binding = binding

    @property
    def _bound(self) -> Binding:
        if self._binding is None:
            raise UsageError("E8003", f"monitor {self.state_name}", "is not part of a running engine")
        return self._binding

    def _own(self, handler: Handler) -> str:
        name = getattr(handler, "__name__", "")
        if getattr(handler, "__self__", None) is not self or getattr(type(self), name, None) is None:
            raise UsageError(
                "E4106", f"monitor {self.state_name}", "a handler must be a method of the same monitor", "", "Name it"
            )
        refuse_deferred_handler(type(self), name)
        return name


def refuse_deferred_handler(cls: type[Monitor], name: str) -> None:
    """Raises `UsageError` E4117 for a method of the class that is `async def` or a generator."""
    refuse_deferred(getattr(cls, name, None), f"handler {cls.__qualname__}.{name}")


def _declared(cls: type, marker: str) -> list[Any]:
    found: list[Any] = []
    for name in dir(cls):
        found.extend(getattr(getattr(cls, name, None), marker, ()))
    return found


def _read_annotations(cls: type[Monitor]) -> None:
    where = f"monitor {cls.state_name}"
    hints = get_type_hints(cls, include_extras=True)
    own = {
        name: hint
        for name, hint in hints.items()
        if name not in Monitor.__annotations__ and typing.get_origin(hint) is not ClassVar
    }
    cls._tables = {}
    cls._attributes = {}
    for name, hint in own.items():
        if hasattr(Monitor, name):
            what = f"attribute '{name}' takes the place of what every monitor has under this name"
            raise UsageError("E4122", where, what, "", "Give it another name")
        if (typing.get_origin(hint) or hint) is StateTable:
            types = typing.get_args(hint) or (str, object)
            if len(types) != 2:
                what, allowed = f"StateTable '{name}' has {len(types)} type", "The types of keys and of values"
                raise StateError("E4101", where, what, allowed, f"Write {name}: StateTable[KEY, VALUE]")
            key_type, value_type = types
            check_key_type(key_type, where, f"{name}.key")
            check_type(value_type, where, f"{name}[]")
            cls._tables[name] = (key_type, value_type)
        else:
            if cls.persistent:
                check_type(hint, where, name)
            cls._attributes[name] = hint
    if cls.persistent:
        fields = list(cls._attributes.items())
        struct = msgspec.defstruct(f"{cls.__name__}State", fields, kw_only=True, forbid_unknown_fields=True)
        cls._codec = Codec(struct, where)
    elif cls._tables:
        raise StateError("E4107", where, "a StateTable needs a persistent monitor", "", "Add persistent=True")


def _listed(names: Mapping[str, Any]) -> str:
    return f"Allowed: {', '.join(sorted(names))}" if names else "It has none"


def stored_attributes(cls: type[Monitor]) -> set[str]:
    """Names of the attributes and tables of a class that a checkpoint holds when it is persistent."""
    return {*cls._attributes, *cls._tables}


_HOOKS = {name.replace("_", ""): name for name in ("onload", "on_unload", "on_begin_recovery", "on_conclude_recovery")}
_LIKENESS = 0.8


def _refuse_strange_hooks(cls: type[Monitor]) -> None:
    """A life-cycle method under a name that is none would never be called, and nobody would know."""
    for name in dir(cls):
        method = getattr(cls, name)
        plain = name.replace("_", "").lower()
        if hasattr(Monitor, name) or not plain.startswith("on") or not inspect.isfunction(method):
            continue
        near = difflib.get_close_matches(plain, _HOOKS, n=1, cutoff=_LIKENESS)
        if near and (plain in _HOOKS or not _takes_events(method)):
            raise UsageError(
                "E4111",
                f"monitor {cls.state_name}",
                f"'{name}' looks like a life-cycle method and is none",
                f"Allowed: {', '.join(_HOOKS.values())}",
                f"Did you mean '{_HOOKS[near[0]]}'?",
            )


def _refuse_silent_overrides(cls: type[Monitor]) -> None:
    """A method that takes the place of a handler, without its decorator, would never be called by itself."""
    for name in dir(cls):
        owners = [base for base in cls.__mro__ if name in vars(base)]
        if len(owners) < 2 or vars(owners[0])[name] is None:
            continue
        method, before = (vars(base)[name] for base in owners[:2])
        lost = next((word for marker, word in _DECORATORS.items() if getattr(before, marker, ())), "")
        if lost and not any(getattr(method, marker, ()) for marker in _DECORATORS):
            raise UsageError(
                "E4121",
                f"handler {owners[0].__qualname__}.{name}",
                f"takes the place of {owners[1].__qualname__}.{name}, which has {lost}, and has none: nothing calls it",
                f"A handler has {lost} in each class that defines it",
                f"Write {lost} above it, or give it another name; to let nothing be called, write {name} = None",
            )


def _unmakeable(cls: type[Monitor], what: str) -> StateError:
    todo = "Write def __init__(self, **attributes) and pass them to super().__init__(**attributes)"
    return StateError("E4116", f"monitor {cls.state_name}", what, "", todo)


def _takes_events(method: Handler) -> bool:
    return len(inspect.signature(method).parameters) > 1


def check_arguments(handler: Handler, events: int) -> None:
    """Raises `UsageError` E4114 for a handler that cannot be called with so many events."""
    function = getattr(handler, "__func__", handler)
    if isinstance(handler, partial):
        function = handler.func
    if not _takes(function, events + 1 if function is not handler else events):
        raise UsageError(
            "E4114",
            f"handler {getattr(function, '__name__', '')}",
            f"is called with {events} events, and takes other arguments",
            "One for @on(TYPE), none for a timer, one for each match() of an expression that is not behind 'not'",
        )


@lru_cache(maxsize=10_000)
def _takes(function: Handler, arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # it does not tell what it takes
        return True
    return True
