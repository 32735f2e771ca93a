"""Calls of handlers. A request of a handler is an *effect*: the context carries it out after the handler has returned.

A handler that raises has no effect. With `on_error: stop` the error ends the engine. With `skip` and `dead_letter` the
monitor gets back the state that it had before the call, and the context goes on.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from correlator.core.expressions import Moment
from correlator.core.instances import Instance, OnError
from correlator.core.messages import decode_event, from_inside
from correlator.core.monitor import Monitor
from correlator.core.queue import InputQueue, Run
from correlator.core.staging import Staging
from correlator.core.tracecontext import TraceContext, carrying, context_of, sampled_context_of
from correlator.errors import CorrelatorError, HandlerFailed, StateError, UsageError, storable, told_with
from correlator.events import DeadLetter, Message
from correlator.handlers import refuse_result

MAX_EFFECTS = 100_000
"""Most effects (sends, listeners, timers and others) of one handler for one event; the next request raises E8010."""


RunningCall: TypeAlias = tuple[Monitor]
"""A call of a handler of this monitor: an object of its own for each call, in the quickest form."""


class Watcher(Protocol):
    """Learns of each call of a handler, with its effects. Calls nest: a monitor may begin or end as an effect."""

    def begins(self, instance: Instance, handler: str) -> None:
        """A method of an instance is about to be called."""
        ...

    def ends(self, failure: str) -> None:
        """The last call that has begun has ended, with its effects.

        Args:
            failure: the error of the handler; "" for none.
        """
        ...


class Process(Protocol):
    """The process of a context, as the context uses it. A forked child is another process."""

    def thread(self) -> object:
        """Identify the calling thread: every call in one thread returns the same object, and a forked child gets
        another object.
        """
        ...

    def check(self, where: str) -> None:
        """Raise `UsageError` E2050 in a forked child."""
        ...


class OneThread:
    """A process with one thread, for tests and tools."""

    def thread(self) -> object:
        """Identify the calling thread, as `Maker.thread`: always the same object, since there is only one thread."""
        return self

    def check(self, where: str) -> None:
        """Accept every call: the process never forks. `Maker.check` raises `UsageError` E2050 in a forked child."""


class HandlerCalls:
    """Calls the handlers of one context and carries out their effects. Owner: the context's thread.

    Args:
        queue: the queue of the context; the event that is being handled is in its first run.
        staging: takes the dead letters of failed handlers.
        resolve: returns the class behind a `type_name`.
        failed: called with each failure that does not stop the engine, and the origin of the event.
        woken: called after effects that concern other threads.
        process: identifies the calling thread, and refuses calls in a forked child.
        moment: the time at which this start begins.

    Attributes:
        moment: the time at the beginning of the work on the present events.
        changed: instances of persistent monitors that the next cut must store.
        concerns_others: whether an effect concerns another thread.
        thread: the calling thread.
        working: the thread whose requests count; `None` while the context does not work.
        running: the last call while the context works: it still runs, or it has returned and the next call follows at
            once. Any thread may read it.
        run: the run whose events are handled, if any of them has a trace context.
        position: the position of the event in this run.
        span: the trace context of the span for this event; `None` without one.
        failure: the text of the last error of a handler.
    """

    def __init__(
        self,
        queue: InputQueue,
        staging: Staging,
        resolve: Callable[[str], type[Any]],
        failed: Callable[[OnError, CorrelatorError, str], None],
        woken: Callable[[], None],
        process: Process,
        moment: Moment,
    ) -> None:
        self.moment = moment
        self.changed: dict[Instance, Callable[[Any], object] | None] = {}
        self.concerns_others = False
        self._queue = queue
        self._staging = staging
        self._resolve = resolve
        self._failed = failed
        self._woken = woken
        self._process = process
        self.thread = process.thread
        self.working: object = None
        self.running: RunningCall | None = None
        self.run: Run | None = None
        self.position = 0
        self.span: TraceContext | None = None
        self.failure = ""
        self._effects: list[tuple[Callable[[Any], None], Any]] = []

    # --- what messages carry ---

    @property
    def cause(self) -> TraceContext | None:
        """The trace context of the received message that has caused the present event; `None` without one."""
        run = self.run
        if run is None:
            return None
        return context_of(run.messages[self.position]) if run.messages else run.trace

    @property
    def sampled_cause(self) -> TraceContext | None:
        """The trace context that `cause` returns, if somebody collects the spans of the trace; otherwise `None`."""
        run = self.run
        if run is not None and run.messages:
            return sampled_context_of(run.messages[self.position])
        return run.trace if run is not None and run.trace is not None and run.trace.sampled else None

    def traced(self, message: Message) -> Message:
        """Return a message that is sent with the trace context of the present event."""
        return carrying(message, self.cause, self.span)

    # --- whose calls count ---

    def enter(self) -> object:
        """Allow requests from the calling thread alone. Returns the argument of `leave`."""
        before, self.working = self.working, self.thread()
        return before

    def leave(self, before: object) -> None:
        """Restore what the last `enter` has changed."""
        self.working = before
        self.running = None

    def refuse_outside(self, monitor: Monitor) -> None:
        """Raise `UsageError` E8005 unless a handler of this context makes the call, E2050 in a forked child.

        A request from anywhere else would never be carried out.
        """
        if self.thread() is not self.working:
            raise self.outside(monitor)

    def outside(self, monitor: Monitor) -> UsageError:
        """The error that `refuse_outside` raises."""
        where = f"monitor {monitor.state_name}"
        self._process.check(where)
        return UsageError(
            "E8005",
            where,
            "a call was made outside of its handlers, or in a thread that a handler started",
            "A monitor asks for something within its handlers and life-cycle methods, in the thread that calls them",
            "To bring something in from elsewhere, send it to a destination that a receiver takes from",
        )

    # --- effects ---

    def stage(self, monitor: Monitor, apply: Callable[[Any], None], item: Any) -> None:
        """Call `apply(item)` when the running handler has returned.

        Raises:
            UsageError: E8010 when the handler has too many effects already.
        """
        if len(self._effects) >= MAX_EFFECTS:
            where = f"monitor {monitor.state_name}"
            raise UsageError("E8010", where, f"asks for more than {MAX_EFFECTS} effects of one event", "", "Do less")
        self._effects.append((apply, item))

    def add_effect(self, apply: Callable[[Any], None], item: Any) -> None:
        """Call `apply(item)` when the next handler has returned. For effects of the engine itself."""
        self._effects.append((apply, item))

    def has_effect(self, apply: Callable[[Any], None], of: Callable[[Any], bool]) -> bool:
        """Whether the running handler has requested `apply` with an item for which `of` returns `True`."""
        return any(one is apply and of(item) for one, item in self._effects)

    def _make_effects(self) -> None:
        effects, self._effects = self._effects, []
        for apply, item in effects:
            apply(item)
        if self.concerns_others:
            self.concerns_others = False
            self._woken()

    # --- the cut ---

    def take_changed(self) -> Mapping[Instance, Callable[[Any], object] | None]:
        """The instances that have changed since the last call, each with its last handler that has returned since
        then.
        """
        changed, self.changed = self.changed, {}
        return changed

    # --- calls ---

    def call_hook(self, instance: Instance, name: str) -> None:
        """Call a life-cycle method; raises as `call`."""
        self.call(instance, partial(without_event, getattr(instance.monitor, name)), None)

    def call(self, instance: Instance, method: Callable[[Any], object], event: Any) -> None:
        """Call a handler with an event (`None` for a timer or life-cycle method), then carry out its effects.

        Raises:
            CorrelatorError: E5500 (`HandlerFailed`), or the handler's own `CorrelatorError`, with `on_error: stop`.
        """
        self.running = (instance.monitor,)
        if instance.on_error != "stop":
            self._call_protected(instance, method, event)
            return
        try:
            if (result := method(event)) is not None:
                refuse_result(result, method, f"handler {instance.monitor.state_name}")
        except Exception as error:
            self._effects.clear()
            failure = _failure(instance, method, event, error, self._cure(instance))
            self.failure = str(failure)
            raise failure from error
        if instance.monitor.persistent:
            self.changed[instance] = method
        if self._effects:
            self._make_effects()

    def _call_protected(self, instance: Instance, method: Callable[[Any], object], event: Any) -> None:
        monitor = instance.monitor
        if monitor.persistent and instance.kept is None:
            instance.kept = monitor.encoded()
        for table in instance.tables:
            table.begin_undo()
        try:
            if (result := method(event)) is not None:
                refuse_result(result, method, f"handler {monitor.state_name}")
            if monitor.persistent:  # a value that cannot be stored must fail this handler, not the next checkpoint
                monitor.check_tables(instance.tables)
                for table in instance.tables:
                    table.check_changes()
                instance.kept = monitor.encoded()
        except Exception as error:  # noqa: BLE001  # application code may raise anything
            self._undo(instance)
            self._pass_over(instance, method, event, error)
            return
        if monitor.persistent:
            self.changed[instance] = method
        self._make_effects()

    def _undo(self, instance: Instance) -> None:
        self._effects.clear()
        if instance.kept is not None:
            instance.monitor.take_back(instance.kept, instance.tables)

    def _pass_over(self, instance: Instance, method: Callable[[Any], object], event: Any, error: Exception) -> None:
        """Report a failed handler, and with `on_error: dead_letter` keep its event."""
        failure = _failure(instance, method, event, error, self._cure(instance))
        cause = self._cause(event)
        if instance.on_error == "dead_letter":
            receiver, number, message = cause or ("", 0, from_inside(self._as_it_came(event)))
            letter = DeadLetter(
                kind="handler",
                origin=instance.monitor.state_name,
                reason=storable(str(failure)),
                message=message,
                time=self.moment.engine_time,
                receiver=receiver,
                number=number,
            )
            self._staging.add_dead_letter(letter)
        about = f"message {cause[1]} of receiver '{cause[0]}'" if cause else "from inside the engine"
        self.failure = str(failure)
        self._failed(instance.on_error, failure, about)

    def _cure(self, instance: Instance) -> str:
        logged_only = instance.on_error == "dead_letter" and not self._staging.stored
        return _LOGGED_ONLY if logged_only else _CURES[instance.on_error]

    def _as_it_came(self, event: Any) -> Any:
        """Return the present event as another context sent it: handlers may have changed its values."""
        run = self._queue.head() if event is not None else None
        if run is None or run.recorded is None or run.events[0] is not event:
            return event
        return decode_event(self._resolve, run.recorded)

    def _cause(self, event: Any) -> tuple[str, int, Message] | None:
        """Return receiver, number and message from which the present event was mapped; `None` for an event from inside
        the engine.
        """
        run = self._queue.head() if event is not None else None
        if run is None or not run.receiver:
            return None
        for position in range(run.position, len(run.events)):
            if run.events[position] is event:
                return run.receiver, run.first + position, run.messages[position]
        return None


class WatchedCalls(HandlerCalls):
    """Calls handlers, and tells a watcher of each call.

    Args:
        watcher: the watcher.
        arguments: the arguments of `HandlerCalls`.
    """

    def __init__(self, watcher: Watcher, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._watcher = watcher

    def call(self, instance: Instance, method: Callable[[Any], object], event: Any) -> None:
        """Call a handler between `Watcher.begins` and `Watcher.ends`; raises as `HandlerCalls.call`."""
        self._watcher.begins(instance, name_of(method))
        try:
            super().call(instance, method, event)
        finally:
            failure, self.failure = self.failure, ""
            self._watcher.ends(failure)


def without_event(method: Callable[[], object], _event: Any) -> object:
    """Call a method that takes no event: of a timer or of the life cycle."""
    return method()


def with_arguments(method: Callable[..., object], arguments: Iterable[Any], _event: Any) -> object:
    """Call a method with the arguments of its expression instead of the last event."""
    return method(*arguments)


def name_of(method: Callable[[Any], object]) -> str:
    """The name of the method of a monitor that a call calls; "" if it calls none."""
    name: str = getattr(method.args[0] if isinstance(method, partial) else method, "__name__", "")
    return name


_CURES = {
    "stop": "Correct the handler, or set on_error: dead_letter or skip",
    "dead_letter": "Correct the handler, then replay the dead letter",
    "skip": "Correct the handler",
}
_LOGGED_ONLY = "Correct the handler, then send the message again: an engine without a store keeps no dead letters"


def _failure(
    instance: Instance, method: Callable[[Any], object], event: Any, error: Exception, cure: str
) -> CorrelatorError:
    if isinstance(error, StateError):
        handled = f", handling {type(event).__name__}" if event is not None else ""
        return told_with(error, f"Raised in {name_of(method)} of monitor {instance.monitor.state_name}{handled}")
    if isinstance(error, CorrelatorError):
        return error
    shown = f"handling {type(event).__name__}" if event is not None else "in a timer or life-cycle method"
    return HandlerFailed(
        "E5500",
        f"monitor {instance.monitor.state_name}",
        f"{shown} raised {storable(f'{type(error).__name__}: {_text_of(error)}')}",
        "",
        cure,
    )


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # `__str__` of the application, too
        return "an error without a readable text"
