"""The binding of the monitors of a context: the other side of `Monitor.send`, `on_all`, `wait`, `spawn` and so on.

It checks each request when a handler makes it, so that a wrong request fails this handler. A request that it accepts
becomes an effect, which the context carries out when the handler has returned (`core/calls.py`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from correlator.core.calls import HandlerCalls
from correlator.core.classnames import ClassNames
from correlator.core.crowding import MAX_WAITING_FROM_INSIDE, Crowding
from correlator.core.expressions import Pattern
from correlator.core.instances import ExpressionListener, Instance, Listener, OnError, type_name
from correlator.core.loaded import LoadedMonitors
from correlator.core.messages import apart, checked, recorded, to_message
from correlator.core.monitor import ListenerSpec, Monitor
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Acknowledge, Routes, nothing_suspended
from correlator.core.staging import Staging
from correlator.errors import MappingError, UsageError, quoted, storable
from correlator.events import FlowControlMarker


class ContextBinding:
    """Implements `core.monitor.Binding` for the monitors of one context. Owner: the context's thread.

    Every method raises `UsageError` E8005 for a call from outside of a handler, E2050 in a forked child, and E8010 for
    a handler with too many effects. The docstrings of `Monitor` name the other errors.

    Args:
        context: name of the context.
        queue: the queue of the context.
        routes: has the outboxes of senders and the queues of channels.
        monitors: the monitors of the context.
        names: checks classes whose names get into the store.
        calls: has the effects of the running handler.
        staging: takes the reliable sends.
        crowding: learns of each send to another context.
        stored: whether checkpoints are taken: a later start must be able to read what contexts send to one another.
    """

    def __init__(
        self,
        context: str,
        queue: InputQueue,
        routes: Routes,
        monitors: LoadedMonitors,
        names: ClassNames,
        calls: HandlerCalls,
        staging: Staging,
        crowding: Crowding,
        *,
        stored: bool,
    ) -> None:
        self._context = context
        self._queue = queue
        self._routes = routes
        self._monitors = monitors
        self._names = names
        self._calls = calls
        self._staging = staging
        self._crowding = crowding
        self._stored = stored

    @property
    def engine_time(self) -> float:
        """Engine time in seconds at the beginning of the work on the present events."""
        return self._calls.moment.engine_time

    # --- sends ---

    def send(
        self,
        monitor: Monitor,
        event: Any,
        to: str,
        key: str | None,
        properties: Mapping[str, Any] | None,
        destination: str | None,
    ) -> None:
        """Send to a sender, or to a channel."""
        calls = self._calls
        if calls.thread() is not calls.working:  # the check of `refuse_outside`, without the cost of a call
            raise calls.outside(monitor)
        if isinstance(event, type):
            name, what = event.__name__, f"the class {event.__name__} was given to send"
            where, allowed = f"monitor {monitor.state_name}", "An event is an instance of it"
            raise MappingError("E5201", where, what, allowed, f"Write {name}(...)")
        if to.startswith("channel:"):
            if key is not None or properties or destination is not None:
                raise _no_message(f"monitor {monitor.state_name}", to)
            self._send_to_channel(monitor, event, to[8:])
            return
        routes = self._routes
        outbox = routes.outboxes.get(to)
        if outbox is None or to in routes.closing:
            outbox = self._default_outbox(monitor, to)
        if outbox.mapping is not None:
            event = outbox.mapping.message(event, key, properties)
        made = to_message(event, key, properties)
        message = made if calls.run is None else calls.traced(made)
        if destination is not None:
            message = checked(msgspec.structs.replace(message, destination=destination))
        elif not outbox.destination and message.destination is None:
            where = f"monitor {monitor.state_name}"
            raise UsageError("E8004", where, f"sender '{to}' has no destination", "", "Send with destination=")
        if outbox.stored:
            calls.stage(monitor, self._staging.sends[to].append, message)
        else:
            calls.stage(monitor, outbox.enqueue, message)
            calls.concerns_others = True

    def _default_outbox(self, monitor: Monitor, sender: str) -> Outbox:
        """The outbox of a default sender; raises `UsageError` E8001 if there is none, E8002 for a sender in removal."""
        outbox = None if sender in self._routes.closing else self._routes.default_outbox(sender)
        if outbox is None:
            raise self._routes.unsendable(f"monitor {monitor.state_name}", sender)
        return outbox

    def _send_to_channel(self, monitor: Monitor, event: Any, channel: str) -> None:
        queues = self._routes.channels.get(channel)
        where = f"monitor {monitor.state_name}"
        if not queues:
            what = f"no context receives channel {quoted(channel)}"
            raise UsageError("E8001", where, what, "A context receives its name")
        data = recorded(event)  # raises, and so fails this handler, if no start could read the event
        if self._stored:
            self._names.check(monitor, type(event))
        for queue in queues:
            waiting = len(queue)
            if waiting >= MAX_WAITING_FROM_INSIDE:
                raise UsageError("E8010", where, f"{waiting} events wait in channel '{channel}'", "", "Send less")
            if queue is not self._queue:
                self._crowding.sends_to(queue)
            kept = type_name(type(event)), data
            run = Run("", 0, (), (apart(event, data),), stored=True, recorded=kept, trace=self._calls.cause)
            self._calls.stage(monitor, queue.deliver, run)
            self._calls.concerns_others = True

    def outstanding(self, monitor: Monitor, sender: str) -> int:
        """Return how many messages of a sender its broker has not confirmed (rule A2.17). Makes no default sender."""
        self._calls.refuse_outside(monitor)
        number = self._routes.outstanding(sender)
        if number is None or sender in self._routes.closing:
            raise self._routes.unsendable(f"monitor {monitor.state_name}", sender)
        return number

    def request_flush(self, monitor: Monitor, sender: str) -> int:
        """Ask for `SenderFlushed` (rule A5.1); returns the number of the request."""
        _refuse_persistent(monitor, "request_flush")
        self._calls.refuse_outside(monitor)
        outbox = self._routes.outboxes.get(sender)
        if outbox is None:
            raise UsageError("E8001", f"monitor {monitor.state_name}", f"no sender {quoted(sender)}")
        if outbox.stored:
            raise UsageError(
                "E8202", f"sender {sender}", "request_flush is for BEST_EFFORT senders", "", "A checkpoint does it here"
            )
        request = FlushRequest(self._routes.next_flush(), self._context)
        self._calls.stage(monitor, outbox.enqueue, request)
        self._calls.concerns_others = True
        return request.request_id

    # --- what monitors wait for ---

    def listen(self, monitor: Monitor, spec: ListenerSpec) -> int:
        """Add a dynamic listener; returns its number within the monitor.

        Raises:
            UsageError: E4118 for events of a persistent monitor that no later start could find.
        """
        instance = self._living(monitor)
        if monitor.persistent:
            self._names.check_listener(monitor, spec)
        number = instance.take_number()
        if spec.plan is not None:
            waits = ExpressionListener(instance, number, spec.plan, spec.handler, once=spec.once, declared=False)
            self._calls.stage(monitor, self._monitors.attempts.begin, waits)
        elif isinstance(spec.expression, Pattern):
            listener = Listener(instance, number, spec.expression, spec.handler, once=spec.once)
            self._calls.stage(monitor, self._monitors.keep_listener, listener)
        return number

    def unlisten(self, monitor: Monitor, number: int) -> None:
        """Remove a dynamic listener or timer."""
        instance = self._known(monitor)
        if not isinstance(number, int):
            where, todo = f"monitor {monitor.state_name}", "Keep what once(), on_all() or wait() returned"
            raise UsageError("E4120", where, f"{quoted(number)} is no number of a listener or timer", "", todo)
        self._calls.stage(monitor, self._monitors.cancel, (instance, number))

    def wait(self, monitor: Monitor, seconds: float, handler: str) -> int:
        """Add a timer that fires once; returns its number within the monitor."""
        instance = self._living(monitor)
        number = instance.take_number()
        due = self.engine_time + seconds
        self._calls.stage(monitor, lambda _: self._monitors.push_timer(instance, number, due, None, handler), None)
        return number

    def subscribe(self, monitor: Monitor, channel: str) -> None:
        """Subscribe the monitor to a channel."""
        self._calls.stage(monitor, self._monitors.join, (self._living(monitor), _channel(monitor, channel)))

    def unsubscribe(self, monitor: Monitor, channel: str) -> None:
        """End the subscription of the monitor to a channel."""
        self._calls.stage(monitor, self._monitors.leave, (self._known(monitor), _channel(monitor, channel)))

    # --- instances ---

    def spawn(self, monitor: Monitor, cls: type[Monitor], attributes: Mapping[str, Any]) -> None:
        """Make another instance; it has the `on_error` of the monitor that spawns it.

        Raises:
            StateError: for attributes of a persistent monitor that no later start could read (`Monitor.settle`).
            UsageError: E4118 for a class of a persistent monitor that no later start could find.
        """
        on_error = self._known(monitor).on_error
        made = cls(**attributes)
        if made.persistent:
            self._names.check(monitor, cls)
            self._names.check_monitor(monitor, made)
        self._calls.stage(monitor, self._begin, (made, on_error))

    def _begin(self, spawned: tuple[Monitor, OnError]) -> None:
        made, on_error = spawned
        made.bind(self)
        self._monitors.begin(made, on_error)

    def stop(self, monitor: Monitor) -> None:
        """End an instance after the running handler has returned; `Monitor.stop` calls it with itself as `monitor`."""
        self._calls.refuse_outside(monitor)
        self._calls.stage(monitor, self._monitors.end, monitor)

    def _living(self, monitor: Monitor) -> Instance:
        """Return the instance of a monitor that goes on. Raises `UsageError` E8005, or E8011 if the monitor ends."""
        instance = self._known(monitor)
        if not instance.alive:
            raise _ended(monitor)
        return instance

    def _known(self, monitor: Monitor) -> Instance:
        """Return the instance of a monitor, which may be ending. Raises `UsageError` E8005, and E8011 after its end."""
        self._calls.refuse_outside(monitor)
        instance = self._monitors.instances.get(monitor)
        if instance is None:
            raise _ended(monitor)
        return instance

    # --- receivers ---

    def acknowledge_and_resume(self, monitor: Monitor, receiver: str) -> None:
        """Acknowledge the suspended batch of a receiver."""
        _refuse_persistent(monitor, "acknowledge_and_resume")
        self._calls.refuse_outside(monitor)
        resume = self._routes.resume.get(receiver)
        if resume is None:
            raise UsageError("E7103", f"receiver {quoted(receiver)}", "is not an APP_CONTROLLED receiver")
        acknowledge = resume(self._context)
        if self._calls.has_effect(_acknowledge, lambda staged: staged[0] == receiver):
            raise nothing_suspended(receiver)
        self._calls.stage(monitor, _acknowledge, (receiver, acknowledge))

    def update_flow_control_window(self, monitor: Monitor, marker: FlowControlMarker, window: int) -> None:
        """Let a receiver deliver `window` messages beyond a marker (rule A9.1)."""
        self._calls.refuse_outside(monitor)
        where = f"monitor {monitor.state_name}"
        grant = self._routes.grant.get(marker.receiver)
        if grant is None:
            known = ", ".join(sorted(self._routes.grant)) or "none"
            what = f"receiver {quoted(marker.receiver)} has no flow control"
            raise UsageError("E7104", where, what, f"Receivers with flow_control: {known}")
        if not (isinstance(window, int) and isinstance(marker.number, int)) or window < 0:
            what = f"a flow control window of {quoted(window)} after message {quoted(marker.number)}"
            raise UsageError("E7105", where, what, "0 or more messages after a marker that was received")
        self._calls.stage(monitor, grant, marker.number + window)


def _refuse_persistent(monitor: Monitor, call: str) -> None:
    if monitor.persistent:
        raise UsageError(
            "E4110",
            f"monitor {monitor.state_name}",
            f"{call}() is not allowed in a persistent monitor",
            "Its acknowledgement would not match the recovered state",
            "Call it from a monitor without persistent=True",
        )


def _ended(monitor: Monitor) -> UsageError:
    return UsageError(
        "E8011",
        f"monitor {monitor.state_name}",
        "it has ended, and gets no events any more",
        "In on_unload a monitor may send and spawn",
        "Ask a monitor that goes on",
    )


def _channel(monitor: Monitor, channel: str) -> str:
    """Return the name of a channel as text that the store can hold. Raises `UsageError` E4115 for anything else."""
    if not isinstance(channel, str) or not channel or ":" in channel or storable(channel) != channel:
        raise UsageError(
            "E4115",
            f"monitor {monitor.state_name}",
            f"{quoted(channel)} is not the name of a channel",
            "The name alone, as in subscribe('NAME') and send(event, to='channel:NAME')",
        )
    return str.__str__(channel)


def _acknowledge(staged: tuple[str, Acknowledge]) -> None:
    staged[1]()


def _no_message(where: str, to: str) -> MappingError:
    what = f"a key, properties or a destination were given for {quoted(to)}"
    return MappingError("E5202", where, what, "An event to a channel is no message", "Make them fields of the event")
