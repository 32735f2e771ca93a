"""The monitors of a context: how they begin and end, what they wait for, and their changes for the next cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from correlator.core.attempts import Attempts
from correlator.core.calls import HandlerCalls, name_of
from correlator.core.classnames import ClassNames
from correlator.core.commit import StateEntry
from correlator.core.expressions import Pattern
from correlator.core.instances import (
    ExpressionListener,
    Instance,
    Listener,
    OnError,
    StoredListener,
    StoredMonitor,
    StoredTimer,
    Timer,
    restored_pattern,
    type_name,
)
from correlator.core.listeners import ListenerIndex
from correlator.core.monitor import ListenerSpec, Monitor
from correlator.core.queue import InputQueue
from correlator.core.routes import Routes
from correlator.core.state import encode
from correlator.core.timers import Timers
from correlator.errors import StateError, told_with

CONFIGURED = "0"
"""Number of the instance that the configuration names."""
_NOTHING: dict[bytes, bytes] = {}


class LoadedMonitors:
    """The monitors of one context. Owner: the context's thread.

    Methods that change what a monitor waits for do nothing for a monitor that has ended meanwhile: they are effects,
    and another effect of the same handler may have ended it.

    Args:
        context: name of the context.
        queue: the queue of the context.
        routes: has the queues of channels, for subscriptions.
        resolve: returns the class behind a `type_name`.
        names: checks classes whose names get into the store.
        calls: calls the handlers.

    Attributes:
        instances: the instances by monitor, in the order of loading.
        index: finds the listeners of an event.
        attempts: the attempts at expressions.
        timers: timers of monitors, and deadlines of attempts.
        spawned: the number of the next instance that this context spawns, by class.
    """

    def __init__(
        self,
        context: str,
        queue: InputQueue,
        routes: Routes,
        resolve: Callable[[str], type[Any]],
        names: ClassNames,
        calls: HandlerCalls,
    ) -> None:
        self.instances: dict[Monitor, Instance] = {}
        self.index: ListenerIndex[Listener] = ListenerIndex()
        self.timers = Timers()
        self.attempts = Attempts(calls, self.timers)
        self.spawned: dict[str, int] = {}
        self._context = context
        self._queue = queue
        self._routes = routes
        self._resolve = resolve
        self._names = names
        self._calls = calls
        self._subscribed: dict[str, int] = {}
        self._removed: list[StateEntry] = []

    # --- a monitor begins and ends ---

    def load(
        self,
        monitor: Monitor,
        on_error: OnError,
        number: str = CONFIGURED,
        stored: StoredMonitor | None = None,
        waiting: Mapping[bytes, bytes] = _NOTHING,
    ) -> Instance:
        """Add a monitor, with its stored listeners, timers and subscriptions if there are any.

        Args:
            monitor: the monitor, already with its stored attributes and tables.
            on_error: the policy for a handler that fails.
            number: number of the instance.
            stored: the monitor in the form of the store; `None` for a monitor that begins now.
            waiting: what the store holds under its `waiting_owner`.

        Raises:
            StateError: E4203 for a stored handler that the class no longer has; E4102, E4103 and E4116 for a persistent
                monitor that begins now, if no later start could read its state.
            UsageError: E4118 for its event classes, if no later start could find them.
        """
        if monitor.persistent and stored is None and number == CONFIGURED:
            self._names.check_monitor(monitor, monitor)
        instance = Instance(monitor, number, on_error)
        self.instances[monitor] = instance
        begins = monitor.listeners
        for spec in monitor.listeners:
            if isinstance(spec.expression, Pattern):
                listener = Listener(instance, 0, spec.expression, spec.handler, once=spec.once)
                instance.declared.append(listener)
                self.index.add(listener)
        if stored is None:
            for timer in monitor.timers:
                self._add_timer(instance, timer.period, timer.handler)
            if monitor.persistent:
                self._calls.changed[instance] = None
        else:
            self._restore_waiting(instance, stored)
            begins = tuple(self.attempts.restore(instance, monitor.listeners, self._resolve, waiting))
        self._begin_declared(instance, begins)
        return instance

    def _begin_declared(self, instance: Instance, specs: Sequence[ListenerSpec]) -> None:
        for spec in specs:
            if spec.plan is not None:
                number = instance.take_number()
                listener = ExpressionListener(instance, number, spec.plan, spec.handler, once=spec.once, declared=True)
                self.attempts.begin(listener)
                if instance.monitor.persistent:
                    self._calls.changed[instance] = None

    def _restore_waiting(self, instance: Instance, stored: StoredMonitor) -> None:
        instance.next_number = stored.next_number
        for listener in stored.listeners:
            pattern = restored_pattern(self._resolve, listener.event_type, listener.fields, listener.values)
            self.keep_listener(Listener(instance, listener.number, pattern, listener.handler, once=listener.once))
        declared = {(timer.period, timer.handler) for timer in instance.monitor.timers}
        for timer in stored.timers:
            if timer.period is None or (timer.period, timer.handler) in declared:
                self.push_timer(instance, timer.number, timer.due, timer.period, timer.handler)
        known = {(timer.period, timer.handler) for timer in stored.timers}
        for added in instance.monitor.timers:
            if (added.period, added.handler) not in known:
                self._add_timer(instance, added.period, added.handler)
        for channel in stored.subscriptions:
            self.join((instance, channel))

    def begin(self, monitor: Monitor, on_error: OnError) -> None:
        """Add a monitor that a handler has spawned, and call its `onload`; raises as `HandlerCalls.call`."""
        name = monitor.state_name
        count = self.spawned.get(name, 1)
        self.spawned[name] = count + 1
        number = f"{self._context}.{count}"
        monitor.name_tables(number)
        self._calls.call_hook(self.load(monitor, on_error, number), "onload")

    def end(self, monitor: Monitor) -> None:
        """Call the monitor's `on_unload`, then remove it with everything that it waits for, and its state."""
        instance = self.instances.get(monitor)
        if instance is None or not instance.alive:
            return
        instance.alive = False
        self._calls.call_hook(instance, "on_unload")
        del self.instances[monitor]
        for listener in (*instance.declared, *instance.listeners.values()):
            self.index.remove(listener)
        for waits in list(instance.expressions.values()):
            self.attempts.cancel(waits)
        for channel in list(instance.subscriptions):
            self.leave((instance, channel))
        for timer in instance.timers.values():
            self.timers.cancel(timer)
        instance.listeners.clear()
        instance.timers.clear()
        self._calls.changed.pop(instance, None)
        if monitor.persistent:
            self._removed.append(StateEntry(instance.owner, instance.key, None))
            for table in instance.tables:
                table.clear()
                self._removed.extend(table.take_changes())

    # --- what monitors wait for ---

    def keep_listener(self, listener: Listener) -> None:
        """Add a listener that a handler has requested with `on_all` or `once`; the next cut stores it.

        Does nothing if its monitor has ended meanwhile.
        """
        if listener.instance.alive:
            listener.instance.listeners[listener.number] = listener
            self.index.add(listener)

    def forget_listener(self, listener: Listener) -> None:
        """Remove a `once` listener, as an effect of the event for which it waited; do nothing if it is gone."""
        self.cancel((listener.instance, listener.number))

    def cancel(self, waiting: tuple[Instance, int]) -> None:
        """Remove the dynamic listener or timer with this number; do nothing if there is none."""
        instance, number = waiting
        if (listener := instance.listeners.pop(number, None)) is not None:
            self.index.remove(listener)
        if (waits := instance.expressions.get(number)) is not None:
            self.attempts.cancel(waits)
        if (timer := instance.timers.pop(number, None)) is not None:
            self.timers.cancel(timer)

    def push_timer(self, instance: Instance, number: int, due: float, period: float | None, handler: str) -> None:
        """Add a timer; `due` is in engine time, `period` is `None` for a timer that fires once."""
        if instance.alive:
            timer = Timer(instance, number, due, period, handler)
            instance.timers[number] = timer
            self.timers.add(timer)

    def _add_timer(self, instance: Instance, period: float, handler: str) -> None:
        due = self._calls.moment.engine_time + period
        self.push_timer(instance, instance.take_number(), due, period, handler)

    def join(self, wanted: tuple[Instance, str]) -> None:
        """Subscribe an instance to a channel. The first subscription lets the context receive the channel."""
        instance, channel = wanted
        if not instance.alive or channel in instance.subscriptions:
            return
        instance.subscriptions[channel] = None
        count = self._subscribed[channel] = self._subscribed.get(channel, 0) + 1
        if count == 1 and channel != self._context:
            self._routes.subscribe(channel, self._queue)

    def leave(self, unwanted: tuple[Instance, str]) -> None:
        """End the subscription of an instance to a channel; do nothing if there is none."""
        instance, channel = unwanted
        if channel not in instance.subscriptions:
            return
        del instance.subscriptions[channel]
        self._subscribed[channel] -= 1
        if self._subscribed[channel]:
            return
        del self._subscribed[channel]
        if channel != self._context:
            self._routes.unsubscribe(channel, self._queue)

    # --- the cut ---

    def awaits_time(self) -> bool:
        """Whether a timer or deadline of a persistent monitor is set."""
        return any(one.instance.monitor.persistent for one in self.timers.living())

    def take_changes(self) -> list[StateEntry]:
        """Return the changes of state since the last cut: of monitors, their tables and their attempts."""
        entries, self._removed = self._removed, []
        for instance, handler in self._calls.take_changed().items():
            try:
                entries.append(self._stored(instance))
                instance.monitor.check_tables(instance.tables)
                for table in instance.tables:
                    entries.extend(table.take_changes())
            except StateError as error:
                raise _told_at_the_cut(error, handler) from error
        return [*entries, *self.attempts.take_changes()]

    def _stored(self, instance: Instance) -> StateEntry:
        monitor = instance.monitor
        listeners = [
            StoredListener(
                number,
                type_name(listener.pattern.event_type),
                listener.pattern.fields,
                list(listener.pattern.values),
                listener.handler,
                listener.once,
            )
            for number, listener in instance.listeners.items()
        ]
        timers = [StoredTimer(t.number, t.due, t.period, t.handler) for t in instance.timers.values()]
        stored = StoredMonitor(
            type_name(type(monitor)),
            self._context,
            monitor.state_version,
            monitor.encoded() if instance.kept is None else instance.kept,
            listeners,
            timers,
            instance.next_number,
            instance.on_error,
            list(instance.subscriptions),
        )
        return StateEntry(instance.owner, instance.key, encode(stored, f"monitor {monitor.state_name}"))


def _told_at_the_cut(error: StateError, handler: Callable[[Any], object] | None) -> StateError:
    """Return the error with the handler that ran last: each handler since the last cut may have caused the error."""
    last = f"Its last handler before this checkpoint was {name_of(handler)}. " if handler is not None else ""
    return told_with(error, f"{last}With on_error: skip or dead_letter, the handler that stores it fails, and is named")
