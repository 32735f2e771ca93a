"""Monitors: application code with listeners, timers and state.

When Python defines a class, `Monitor` reads it once: annotated attributes are its state, decorated methods are its
listeners and timers. A monitor reaches the engine through its *binding*, which its context sets. Without a binding, as
in a unit test, you can make a monitor and call its methods, but a request such as `send` raises `UsageError` E8003.
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
    """The description of a listener; a context makes the listener from it.

    Attributes:
        expression: the expression that the listener waits for.
        handler: name of the method that it calls.
        once: whether it ends after the first call.
        plan: the plan of the expression; `None` for a single pattern without references, which needs no attempts.
    """

    expression: Expression
    handler: str
    once: bool = False
    plan: Plan | None = None

    @classmethod
    def of(cls, expression: Expression, handler: Handler, name: str, *, once: bool = False) -> "ListenerSpec":
        """The listener that calls `handler`, whose name in the class is `name`, with an event for each pattern.

        Raises:
            UsageError: E4112, E4113 for the expression; E4114 for a handler that does not take this number of events.
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
    """Decorator: call the method of a monitor for each event of a class whose fields have given values.

    `@on(Trade, account="A1")` calls it with each `Trade` of this account; `@on(Message)` with messages of receivers
    without `event`. Only events of exactly this class count. Several decorators may stand above one method.

    Args:
        what: an event class, `Message`, a notice of the engine such as `SenderFlushed`, or an expression. For an
            expression the engine calls the method as `Monitor.on_all` does.
        fields: the values that fields must have; not with an expression.

    Raises, when Python defines the class:
        UsageError: E4108 for a class that is no event class, a field that the class does not have, or a value that the
            field never has; E4114 for a method that does not take the event; E4117 for a method that is `async def` or
            a generator; E4112 and E4113 for an expression, as `Monitor.on_all`.
    """
    expression = what if isinstance(what, Expression) else Pattern.of(what, fields)

    def decorate(method: F) -> F:
        refuse_deferred(method, f"handler {method.__qualname__}")
        specs = method.__dict__.setdefault(_LISTENERS, [])
        specs.append(ListenerSpec.of(expression, partial(method, None), method.__name__))
        return method

    return decorate


def every(seconds: float) -> Callable[[F], F]:
    """Decorator: call the method of a monitor periodically. The first call comes one period after the monitor has
    begun.

    Args:
        seconds: the period, in seconds of engine time, which stands still while the engine is down.

    Raises, when Python defines the class:
        UsageError: E4109 for a period that is no number, not more than 0, or longer than 100 years; E4114 for a method
            that takes arguments; E4117 for a method that is `async def` or a generator.
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
    """The requests of a monitor to its context. `Monitor` has a method for each of them, with the same errors."""

    def send(
        self,
        monitor: "Monitor",
        event: Any,
        to: str,
        key: str | None,
        properties: Mapping[str, Any] | None,
        destination: str | None,
    ) -> None:
        """Send to a sender, or to a channel."""
        ...

    def listen(self, monitor: "Monitor", spec: ListenerSpec) -> int:
        """Add a listener; return its number within the monitor."""
        ...

    def unlisten(self, monitor: "Monitor", number: int) -> None:
        """Remove a listener or timer that a handler has added."""
        ...

    def wait(self, monitor: "Monitor", seconds: float, handler: str) -> int:
        """Add a timer that fires once; return its number within the monitor."""
        ...

    def subscribe(self, monitor: "Monitor", channel: str) -> None:
        """Subscribe the monitor to a channel."""
        ...

    def unsubscribe(self, monitor: "Monitor", channel: str) -> None:
        """End the subscription of the monitor to a channel."""
        ...

    def spawn(self, monitor: "Monitor", cls: "type[Monitor]", attributes: Mapping[str, Any]) -> None:
        """Begin another monitor of this class in the same context."""
        ...

    def stop(self, monitor: "Monitor") -> None:
        """End this monitor after the running handler has returned."""
        ...

    def outstanding(self, monitor: "Monitor", sender: str) -> int:
        """Return how many messages of a sender its broker has not confirmed."""
        ...

    def request_flush(self, monitor: "Monitor", sender: str) -> int:
        """Ask for `SenderFlushed`; return the number of the request."""
        ...

    def acknowledge_and_resume(self, monitor: "Monitor", receiver: str) -> None:
        """Acknowledge the suspended batch of a receiver."""
        ...

    def update_flow_control_window(self, monitor: "Monitor", marker: FlowControlMarker, window: int) -> None:
        """Let a receiver deliver `window` messages beyond a marker."""
        ...

    @property
    def engine_time(self) -> float:
        """Engine time in seconds at the beginning of the work on the present events; see `Monitor.engine_time`."""
        ...


class Monitor:
    """Base class of the monitors of an application.

    State. `class Positions(Monitor, persistent=True)`: checkpoints hold its annotated attributes. The default value of
    an annotation is the initial value; each instance gets a copy. Attributes without annotation are lost at a restart.
    `name=` keeps the name in the store when the class is renamed.

    Handlers. `@on` and `@every` declare handlers; `once`, `on_all` and `wait` add them while the monitor runs. A
    subclass has the handlers of its bases. A handler that it defines again needs `@on` or `@every` again; `NAME = None`
    removes a handler.

    Threads. The engine calls all methods in the thread of the monitor's context, one at a time; during a start, in the
    thread that calls `Engine.start`. A handler should return soon: its context and the checkpoint wait for it.

    Requests. A handler makes requests (`send`, `once`, `wait` and so on) in its own thread and before it returns. The
    engine carries them out when the handler has returned. If the handler raises, the engine carries out none of them,
    undoes changes of persistent state, and then follows `on_error` of the monitor. Every request can raise

    - `UsageError` E8003 without a running engine, E8005 outside of a handler or in another thread, E2050 in a forked
      child;
    - `UsageError` E8010 if the handler has made too many requests for one event;
    - `UsageError` E8011 if the monitor has ended. In its `on_unload` a monitor can still send and spawn.

    A class that breaks these rules raises when Python defines it: `UsageError` E4111 for a life-cycle method with a
    misspelt name, E4117 for a handler that is `async def` or a generator, E4121 for a handler that is defined again
    without its decorator, E4122 for an attribute with the name of a method; `StateError` E4101 for a type that cannot
    be stored, E4107 for a `StateTable` without `persistent=True`.

    Args:
        attributes: values of annotated attributes. `UsageError` E4104 refuses an attribute that the class does not
            have; E4105 refuses a missing attribute without an initial value.
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
        """Send an event to a sender, or to `channel:NAME`.

        The message leaves after the handler has returned: with AT_LEAST_ONCE and EXACTLY_ONCE after the next
        checkpoint, with BEST_EFFORT at once. An event to a channel goes into the queues of all contexts that receive
        the channel. The call does not wait for the broker. If the broker refuses the message for good, it becomes a
        dead letter.

        A connection without configured senders has a sender named `CONNECTION-default-sender`.

        Args:
            event: an event, sent as JSON or by the sender's mapping; `bytes` and `Message` are sent as they are.
            to: id of the sender, or `channel:NAME`; a channel takes none of the other arguments.
            key: key of the message: messages with the same key keep their order. It replaces the key of a `Message`.
            properties: properties of the message by name; values are `None`, bool, int, float, str or bytes. They are
                added to the properties of a `Message`, and replace properties of the same name.
            destination: `queue:NAME` or `topic:NAME` or a logical destination, instead of the sender's destination.

        Raises:
            UsageError: E8001 for an unknown sender or a channel that no context receives, E8002 for a sender that is
                being removed, E8004 if neither the sender nor the call nor the message names a destination, E8010 if
                too many events wait in the channel: send less.
            MappingError: E5201 for a value that cannot become a message, E5202 for properties, a key, a destination or
                headers that a message cannot carry, and for any of them with a channel.
            StateError: E4102 or E4103 for an event to a channel that cannot be stored.
        """
        (self._binding or self._bound).send(self, event, to, key, properties, destination)

    def once(self, expression: Expression, then: Handler) -> int:
        """Call a method of this monitor once, when the expression becomes true; returns a number for `cancel`.

        The expression begins to wait when the running handler has returned. The listener of a persistent monitor
        survives a restart.

        Args:
            expression: `match()`, `wait()`, `at()` or a combination of them (docs/listeners.md).
            then: a method of this monitor. The engine calls it with one event for each `match()` that is not after `~`,
                in the order of writing; for a `match()` without a matching event it passes `None`.

        Raises:
            UsageError: E4106 for a handler that is no method of this monitor, E4112 for an invalid expression, E4113
                for a reference to an event that need not have happened, E4114 for a handler that does not take these
                events, E4117 for a handler that is `async def` or a generator, E4118 for event classes of a persistent
                monitor that a later start could not import.
        """
        return self._bound.listen(self, ListenerSpec.of(expression, then, self._own(then), once=True))

    def on_all(self, expression: Expression, then: Handler) -> int:
        """Call a method of this monitor each time the expression becomes true; returns a number for `cancel`.

        Whenever the first step of a sequence becomes true, another attempt at the sequence begins. An expression that
        is no sequence begins anew when it has become true. When the first step can no longer become true, no further
        attempt begins. Arguments and errors are those of `once`.
        """
        return self._bound.listen(self, ListenerSpec.of(expression, then, self._own(then)))

    def subscribe(self, channel: str) -> None:
        """Let this context receive events that are sent to `channel:NAME`, from the end of this handler on.

        All monitors of the context get them, until the last subscribed monitor unsubscribes or ends. A context receives
        the channel of its own name without a subscription.

        Raises:
            UsageError: E4115 for a name that is no text, is empty or has a colon.
        """
        self._bound.subscribe(self, channel)

    def unsubscribe(self, channel: str) -> None:
        """End the subscription of this monitor after this handler; without effect if there is none.

        Raises:
            UsageError: E4115, as `subscribe`.
        """
        self._bound.unsubscribe(self, channel)

    def cancel(self, number: int) -> None:
        """End a listener or timer of this monitor when the handler has returned; without effect if it has ended.

        Args:
            number: the value that `once`, `on_all` or `wait` returned.

        Raises:
            UsageError: E4120 for a value that is no number.
        """
        self._bound.unlisten(self, number)

    def wait(self, seconds: float, then: Handler) -> int:
        """Call a method of this monitor once, after some time; returns a number for `cancel`.

        The time is counted from `engine_time` of the running handler. Engine time stands still while the engine is
        down. The timer of a persistent monitor survives a restart.

        Args:
            seconds: seconds of engine time, 0 or more.
            then: a method of this monitor without arguments.

        Raises:
            UsageError: E4106 for a handler that is no method of this monitor, E4109 for a time that is no number, less
                than 0 or longer than 100 years, E4114 for a method that takes arguments, E4117 for a method that is
                `async def` or a generator.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT_S:
            what = f"{quoted(seconds)} s is no time to wait"
            allowed = "A number, 0 seconds or more, at most 100 years"
            raise UsageError("E4109", f"monitor {self.state_name}", what, allowed)
        name = self._own(then)
        check_arguments(then, 0)
        return self._bound.wait(self, float(seconds), name)

    def spawn(self, cls: "type[Monitor]", **attributes: Any) -> None:
        """Make another monitor in the same context; it begins, with its `onload`, when this handler has returned.

        Args:
            cls: class of the monitor.
            attributes: values of its annotated attributes; an attribute with an initial value may be missing.

        Raises:
            UsageError: E4104 for an attribute that the class does not have, E4105 for a missing one, E4118 for a
                persistent class that a later start could not import.
            StateError: E4102, E4103, E4116 for a persistent monitor that a later start could not restore.
        """
        self._bound.spawn(self, cls, attributes)

    def stop(self) -> None:
        """End this monitor when the handler has returned: call its `on_unload`, delete listeners, timers and state."""
        self._bound.stop(self)

    def outstanding(self, sender: str) -> int:
        """The number of messages to a sender, from all contexts, that its broker has not confirmed yet.

        An application can send less while this number is high. Sends of the running handler count when it has returned;
        a flush request counts as one message. The number is not state: a handler that runs again after a crash may get
        another number.

        Raises:
            UsageError: E8001 for an unknown sender, E8002 for a sender that is being removed.
        """
        return self._bound.outstanding(self, sender)

    def request_flush(self, sender: str) -> int:
        """Ask for a `SenderFlushed` event when each earlier send to a BEST_EFFORT sender is confirmed or a dead letter.

        Returns the number of the request, which the event repeats. The event goes to the context of this monitor. A
        crash loses the request.

        Raises:
            UsageError: E4110 in a persistent monitor, E8001 for an unknown sender, E8202 for a reliable sender, because
                checkpoints store its sends.
        """
        return self._bound.request_flush(self, sender)

    def acknowledge_and_resume(self, receiver: str) -> None:
        """Acknowledge the batch that `ReceivingSuspended` announced, and receive further messages, after this handler.

        A handler that fails acknowledges nothing. If the connection of the receiver is lost before the acknowledgement,
        the broker redelivers the batch.

        Raises:
            UsageError: E4110 in a persistent monitor, E7101 when no batch is suspended, E7102 in a context other than
                the receiver's, E7103 for a receiver that is not APP_CONTROLLED.
        """
        self._bound.acknowledge_and_resume(self, receiver)

    def update_flow_control_window(self, marker: FlowControlMarker, window: int) -> None:
        """Let the receiver of a marker deliver `window` messages beyond this marker, after this handler.

        The last call counts. Persistent monitors may call it: the window is not state, and the application gets a new
        marker after a restart. A smaller window does not take back messages that the receiver has just requested from
        its broker.

        Args:
            marker: a marker that a handler of this context got.
            window: number of messages, 0 or more; 0 lets the receiver wait.

        Raises:
            UsageError: E7104 for a receiver without flow control, E7105 for a window that is negative or no number.
        """
        self._bound.update_flow_control_window(self, marker, window)

    @property
    def engine_time(self) -> float:
        """Engine time in seconds. It never goes back, and after a restart it continues where it ended.

        It stands still while a handler runs.
        """
        return self._bound.engine_time

    # --- life cycle, to be overridden ---

    def onload(self) -> None:
        """Called when the monitor begins: once for a persistent monitor, at each start for any other monitor."""

    def on_unload(self) -> None:
        """Called when the monitor ends by `stop`, not when the engine stops. It may send and spawn."""

    def on_begin_recovery(self) -> None:
        """Called at each start, before the queued events are handled.

        All state is restored, and monitors that begin with this start have had their `onload`.
        """

    def on_conclude_recovery(self) -> None:
        """Called at each start, after the queued events are handled.

        Receivers open when this method has returned for all monitors.
        """

    @classmethod
    def migrate_state(cls, version: int, data: dict[str, Any]) -> dict[str, Any] | None:
        """Convert the state that an earlier version of the class has stored. A start calls it if the versions differ.

        Args:
            version: the `state_version` that the earlier class had.
            data: the stored attributes by name, as plain values.

        Returns the attributes of this class by name. `None`, which the method returns unless a class overrides it,
        refuses the start (E4203).
        """
        del version, data
        return None

    # --- for the context ---

    @classmethod
    def made_again(cls, attributes: Mapping[str, Any]) -> "Monitor":
        """Make a monitor of this class with attributes from the store.

        Raises:
            StateError: E4116 when the class has an `__init__` of its own that does not take or keep the attributes.
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
        """Replace the attributes with the copies that a start would read back, so that no other object can change them.

        Raises:
            StateError: E4102 or E4103 for a value that cannot be stored, E4116 as `made_again`.
        """
        restored = self.state_codec().decode(self.encoded())
        attributes = {name: getattr(restored, name) for name in self._attributes}
        if type(self).__init__ is not Monitor.__init__:
            self.made_again(attributes)
        for name, value in attributes.items():
            setattr(self, name, value)

    @classmethod
    def acknowledges(cls) -> bool:
        """Whether monitors of this class may acknowledge batches: it declares a listener for `ReceivingSuspended`."""
        return not cls.persistent and any(
            isinstance(spec.expression, Pattern) and spec.expression.event_type is ReceivingSuspended
            for spec in cls.listeners
        )

    @classmethod
    def state_codec(cls) -> Codec[Any]:
        """The codec of the annotated attributes of this class, without its tables, for the bytes of a checkpoint."""
        return cls._codec

    def attributes(self) -> dict[str, Any]:
        """The annotated attributes and their values; raises `StateError` E4102 for a deleted attribute."""
        try:
            return {name: getattr(self, name) for name in self._attributes}
        except AttributeError as error:
            what = f"attribute {quoted(error.name)} was deleted"
            raise StateError(
                "E4102", f"monitor {self.state_name}", what, "", "Assign None or an empty value"
            ) from error

    def encoded(self) -> bytes:
        """The annotated attributes, encoded by `state_codec`.

        Raises:
            StateError: E4102 or E4103, with the name of the attribute that cannot be stored.
        """
        attributes = self.attributes()
        try:
            return self.state_codec().encode(attributes)
        except StateError:
            for name, value in attributes.items():
                encode(value, f"monitor {self.state_name}.{name}")
            raise

    def tables(self) -> list[StateTable[Any, Any]]:
        """The state tables of this instance, in the order in which its class declares them."""
        return [getattr(self, name) for name in self._tables]

    def check_tables(self, made: Sequence[StateTable[Any, Any]]) -> None:
        """Raise `StateError` E4119 when code has replaced one of the tables that the engine made."""
        for name, table in zip(self._tables, made, strict=True):
            if getattr(self, name, None) is not table:
                where, todo = f"monitor {self.state_name}", f"Change what it holds: self.{name}.clear(), .update(…)"
                raise StateError("E4119", where, f"another value took the place of its StateTable '{name}'", "", todo)

    def take_back(self, attributes: bytes, tables: Sequence[StateTable[Any, Any]]) -> None:
        """Undo a failed handler: restore the attributes, as `state_codec` encoded them, and undo the tables."""
        restored = self.state_codec().decode(attributes)
        for name in self._attributes:
            setattr(self, name, getattr(restored, name))
        for name, table in zip(self._tables, tables, strict=True):
            setattr(self, name, table)
            table.undo()

    def name_tables(self, instance: str) -> None:
        """Make the tables of this instance, each with its owner name in the store."""
        for attribute, (key_type, value_type) in self._tables.items():
            owner = f"table:{self.state_name}#{instance}.{attribute}"
            setattr(self, attribute, StateTable(key_type, value_type, owner))

    def bind(self, binding: Binding) -> None:
        """Set the binding. The context of the monitor calls it."""
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
    """Raise `UsageError` E4117 for a method of the class that is `async def` or a generator."""
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
    """The attributes and tables of a class that checkpoints would hold if it were persistent."""
    return {*cls._attributes, *cls._tables}


_HOOKS = {name.replace("_", ""): name for name in ("onload", "on_unload", "on_begin_recovery", "on_conclude_recovery")}
_LIKENESS = 0.8


def _refuse_strange_hooks(cls: type[Monitor]) -> None:
    """Refuse a life-cycle method with a misspelt name, which would never be called."""
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
    """Refuse a method that replaces a handler without its decorator, and so would never be called for an event."""
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
    """Raise `UsageError` E4114 for a handler that cannot be called with `events` events."""
    function = getattr(handler, "__func__", handler)
    if isinstance(handler, partial):
        function = handler.func
    if not _takes(function, events + 1 if function is not handler else events):
        raise UsageError(
            "E4114",
            f"handler {getattr(function, '__name__', '')}",
            f"is called with {events} events, and takes other arguments",
            "One for @on(TYPE), none for a timer, one for each match() of an expression that does not follow 'not'",
        )


@lru_cache(maxsize=10_000)
def _takes(function: Handler, arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # the handler has no signature
        return True
    return True
