"""A context: monitors, their listeners and timers, and the input queue that they work through, one event at a time.

What a handler does is *staged* and takes effect when it has returned; when it raises, nothing of it remains. A cut
falls only between two handlers, so that no checkpoint holds half an event (rule A2.10).

Owner: the context's thread; the checkpointer calls `cut` while that thread is parked.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from correlator.core.attempts import Attempts
from correlator.core.commit import ContextCut, StateEntry, Suspect
from correlator.core.expressions import Moment, Pattern
from correlator.core.instances import (
    Deadline,
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
from correlator.core.messages import apart, checked, decode_event, encode_event, from_inside, recorded, to_message
from correlator.core.monitor import ListenerSpec, Monitor
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.poison import dead_letter
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Acknowledge, Routes, nothing_suspended
from correlator.core.staging import Staging
from correlator.core.state import encode
from correlator.core.timers import Timers
from correlator.core.unhandled import Unhandled
from correlator.errors import CorrelatorError, HandlerFailed, MappingError, UsageError, quoted, storable
from correlator.events import (
    DeadLetter,
    FlowControlMarker,
    Message,
)
from correlator.handlers import refuse_result

MAX_EFFECTS = 100_000
"""Sends, listeners, timers and other effects of one handler for one event; beyond it the call raises E8010."""
MAX_TIMERS = 100_000
"""Timers that fire in one stretch of work; what else is due fires in the next one."""
MAX_WAITING_FROM_INSIDE = 100_000
"""Runs that may wait in a context when another sends to its channel; beyond it the send raises E8010."""
CROWDED = MAX_WAITING_FROM_INSIDE // 10
"""Runs in a queue from which on those who send to it let it catch up: after any one event it still has room."""

_NOTHING: dict[bytes, bytes] = {}
_CONFIGURED = "0"
"""Number of the instance that the configuration names."""


class Process(Protocol):
    """The process that a context lives in; a child that it forks is another one."""

    def thread(self) -> object:
        """The calling thread: itself in each of its calls, another one in a forked child."""
        ...

    def check(self, where: str) -> None:
        """Raises `UsageError` E2050 in a forked child."""
        ...


class _OneThread:
    """A process whose threads are not told apart."""

    def thread(self) -> object:
        return self

    def check(self, where: str) -> None:
        pass


class Context:
    """One context.

    Args:
        name: its name.
        routes: where sends go.
        resolve: the class behind a `type_name`.
        failed: told of each handler failure that does not stop the engine, and of the message that it was about.
        engine_time: at this start: timers that begin with it count from here.
        wall_time: at this start, in seconds of the local calendar: what `at` counts from.
        process: tells the thread of a handler from others.
        queue: its input queue.
        stored: whether cuts are taken, so that a later start must be able to read what contexts send each other.
        unhandled: gives the ledger of each receiver for which it matters that nobody handles a message.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        resolve: Callable[[str], type[Any]],
        failed: Callable[[OnError, CorrelatorError, str], None] = lambda _policy, _error, _about: None,
        engine_time: float = 0.0,
        wall_time: float = 0.0,
        process: Process = _OneThread(),  # noqa: B008  # it has no state
        *,
        queue: InputQueue | None = None,
        stored: bool = True,
        unhandled: Callable[[], Mapping[str, Unhandled]] = dict,
    ) -> None:
        self.name = name
        self.queue = InputQueue() if queue is None else queue
        self.staging = Staging()
        self.cut_requested = False
        self.handled = 0
        self.fired = 0
        self._stored_events = stored
        self._unhandled = unhandled
        self._routes = routes
        self._resolve = resolve
        self._failed = failed
        self._process = process
        self._thread = process.thread
        self._worked_by: object = None
        self._index: ListenerIndex[Listener] = ListenerIndex()
        self._instances: dict[Monitor, Instance] = {}
        self.timers = Timers()
        self._attempts = Attempts(
            Moment(engine_time, wall_time),
            self.timers,
            self._invoke,
            lambda apply, item: self._effects.append((apply, item)),
        )
        self._subscribed: dict[str, int] = {}
        self._spawned: dict[str, int] = {}
        self._engine_time = engine_time
        self._effects: list[tuple[Callable[[Any], None], Any]] = []
        self._others_concerned = False
        self._sent_to: dict[InputQueue, int | None] = {}
        self._named: set[type[Any]] = set()
        self._dirty: dict[Instance, None] = {}
        self._removed: list[StateEntry] = []

    # --- loading ---

    def load(
        self,
        monitor: Monitor,
        on_error: OnError,
        number: str = _CONFIGURED,
        stored: StoredMonitor | None = None,
        waiting: Mapping[bytes, bytes] = _NOTHING,
    ) -> None:
        """Put a monitor into the context, with its stored listeners, timers and subscriptions when it had any.

        `waiting` is what the store holds under its `waiting_owner`. Raises `StateError` and `UsageError` for one that
        begins now and whose state, or what it waits for, no later start could read.
        """
        if monitor.persistent and stored is None and number == _CONFIGURED:
            self._refuse_unreadable(monitor, monitor)
        instance = Instance(monitor, number, on_error)
        self._instances[monitor] = instance
        monitor.bind(self)
        begins = monitor.listeners
        for spec in monitor.listeners:
            if isinstance(spec.expression, Pattern):
                listener = Listener(instance, 0, spec.expression, spec.handler, once=spec.once)
                instance.declared.append(listener)
                self._index.add(listener)
        if stored is None:
            for timer in monitor.timers:
                self._add_timer(instance, self._engine_time + timer.period, timer.period, timer.handler)
            if monitor.persistent:
                self._dirty[instance] = None
        else:
            self._restore_waiting(instance, stored)
            begins = tuple(self._attempts.restore(instance, monitor.listeners, self._resolve, waiting))
        self._begin_declared(instance, begins)

    def _begin_declared(self, instance: Instance, specs: Sequence[ListenerSpec]) -> None:
        for spec in specs:
            if spec.plan is not None:
                number = self._number(instance)
                listener = ExpressionListener(instance, number, spec.plan, spec.handler, once=spec.once, declared=True)
                self._attempts.begin(listener)
                if instance.monitor.persistent:
                    self._dirty[instance] = None

    def _restore_waiting(self, instance: Instance, stored: StoredMonitor) -> None:
        instance.next_number = stored.next_number
        for listener in stored.listeners:
            pattern = restored_pattern(self._resolve, listener.event_type, listener.fields, listener.values)
            self._keep_listener(Listener(instance, listener.number, pattern, listener.handler, once=listener.once))
        declared = {(timer.period, timer.handler) for timer in instance.monitor.timers}
        for timer in stored.timers:
            if timer.period is None or (timer.period, timer.handler) in declared:
                self._push_timer(instance, timer.number, timer.due, timer.period, timer.handler)
        known = {(timer.period, timer.handler) for timer in stored.timers}
        for added in instance.monitor.timers:
            if (added.period, added.handler) not in known:
                self._add_timer(instance, self._engine_time + added.period, added.period, added.handler)
        for channel in stored.subscriptions:
            self._join((instance, channel))

    def restore(self, cut: ContextCut, runs: Sequence[Run], engine_time: float) -> None:
        """Take up queue and counters of a checkpoint."""
        self.queue.restore(cut.entered, runs)
        self._spawned = dict(cut.spawned)
        self._engine_time = engine_time
        self._attempts.moment = self._attempts.moment._replace(engine_time=engine_time)

    def monitors(self) -> list[Monitor]:
        """The monitors that live here."""
        return list(self._instances)

    def acknowledges(self) -> bool:
        """Whether a monitor here acknowledges batches."""
        return any(monitor.acknowledges() for monitor in self.monitors())

    def call_one(self, monitor: Monitor, hook: str) -> None:
        """Call a life-cycle method of a monitor, unless it has ended."""
        if (instance := self._instances.get(monitor)) is not None:
            before, self._worked_by = self._worked_by, self._thread()
            try:
                self._call(instance, hook)
            finally:
                self._worked_by = before

    def call_all(self, hook: str, but: Collection[Monitor] = ()) -> None:
        """Call a life-cycle method of every monitor but these, in the order of loading."""
        for monitor in list(self._instances):
            if monitor not in but:
                self.call_one(monitor, hook)

    # --- work ---

    def work(self, most: int, engine_time: float, most_timers: int = MAX_TIMERS, wall_time: float = 0.0) -> int:
        """Fire up to `most_timers` due timers, then handle up to `most` events.

        Stops early when a cut is requested, and behind an event that crowds another context (`crowds`). `wall_time` is
        in seconds of the local calendar; only `at` asks for it. Returns the number of events handled. Raises
        `HandlerFailed` when a handler failed and may not be skipped.
        """
        self._engine_time = engine_time
        self._attempts.moment = Moment(engine_time, wall_time)
        before, self._worked_by = self._worked_by, self._thread()
        try:
            self._fire_due(engine_time, most_timers)
            done = 0
            while done < most and not self.cut_requested and (run := self.queue.head()) is not None:
                done += self._work_run(run, most - done)
                if self._sent_to and self.crowds():
                    break
            return done
        finally:
            self._worked_by = before

    def crowds(self) -> bool:
        """Whether the last sends to another context crowd it: that one is let catch up before this one works on.

        The fullest context waits for nobody, so that not all of them wait. A crowd that keeps itself up is waited for
        until it has handled what there was when it was sent to.
        """
        mine = max(len(self.queue), CROWDED - 1)
        crowded: dict[InputQueue, int | None] = {}
        for queue, turn in self._sent_to.items():
            waiting = len(queue)
            if waiting > mine and (turn is None or queue.finished < turn):
                crowded[queue] = queue.finished + waiting if turn is None else turn
        self._sent_to = crowded
        return bool(crowded)

    def _work_run(self, run: Run, most: int) -> int:
        begin = position = run.position
        end = min(len(run), begin + most)
        events, matching, invoke = run.events, self._index.matching, self._invoke
        attempted = self._attempts.index.matching
        left: list[int] = []
        try:
            while position < end:
                event = events[position]
                listeners = matching(event)
                for listener in listeners:
                    instance = listener.instance
                    if instance.alive:
                        if listener.once:
                            self._effects.append((self._forget_listener, listener))
                        invoke(instance, listener.method, event)
                if leaves := attempted(event):
                    self._attempts.happened(leaves, event)
                elif not listeners:
                    left.append(position)
                position += 1
                if self.cut_requested or (self._sent_to and self.crowds()):
                    break
        finally:
            self.queue.advance(run, position)
            self.handled += position - begin
            self._note_left(run, left)
        return position - begin

    def _note_left(self, run: Run, left: Sequence[int]) -> None:
        """Nothing here waited for these events of a run; `None` among them is a dead letter already."""
        unhandled = self._unhandled().get(run.receiver)
        if unhandled is not None and (left or unhandled.shared):
            those = [(run.first + at, run.events[at], run.messages[at]) for at in left if run.events[at] is not None]
            through = run.first + run.position - 1
            for letter in unhandled.passed(self.name, through, those, self._engine_time):
                self.staging.add_dead_letter(letter)

    def leave_out(self, suspect: Suspect) -> str:
        """Do not handle the next event, which is condemned: it becomes a dead letter; returns the reason."""
        run = self.queue.head()
        assert run is not None
        message = run.messages[run.position] if run.receiver else from_inside(run.events[run.position])
        letter = dead_letter(suspect, message, self._engine_time)
        self.queue.advance(run, run.position + 1)
        self.staging.add_dead_letter(letter)
        self._note_left(run, ())
        return letter.reason

    def next_timer(self) -> float | None:
        """Engine time of the next timer."""
        return self.timers.next_due()

    def _fire_due(self, engine_time: float, most: int) -> None:
        """Fire the timers that are due now; those that their handlers add wait for the next stretch of work."""
        if not most:
            return
        before = self.fired
        due = self.timers.take_due(engine_time)
        for position, timer in enumerate(due):
            if self.cut_requested or self.fired - before >= most:
                for waiting in due[position:]:
                    self.timers.add(waiting)
                break
            if not timer.cancelled:
                self.fired += 1
                self._fire(timer)

    def _fire(self, timer: Timer | Deadline) -> None:
        if isinstance(timer, Deadline):
            self._attempts.look(timer.attempt)
            return
        if timer.instance.monitor.persistent:  # it has fired, even when its handler fails and is skipped
            self._dirty[timer.instance] = None
        if timer.period is None:
            timer.instance.timers.pop(timer.number, None)
        else:
            timer.due += timer.period
            self.timers.add(timer)
        self._invoke(timer.instance, lambda _: timer.method(), None)

    def _call(self, instance: Instance, name: str) -> None:
        method = getattr(instance.monitor, name)
        self._invoke(instance, lambda _: method(), None)

    def _invoke(self, instance: Instance, method: Callable[[Any], object], event: Any) -> None:
        if instance.on_error != "stop":
            self._invoke_protected(instance, method, event)
            return
        try:
            if (result := method(event)) is not None:
                refuse_result(result, method, f"handler {instance.monitor.state_name}")
        except Exception as error:
            self._effects.clear()
            raise _failure(instance.monitor, event, error) from error
        if instance.monitor.persistent:
            self._dirty[instance] = None
        if self._effects:
            self._take_effect()

    def _invoke_protected(self, instance: Instance, method: Callable[[Any], object], event: Any) -> None:
        monitor = instance.monitor
        if monitor.persistent and instance.kept is None:
            instance.kept = monitor.encoded()
        for table in instance.tables:
            table.begin_undo()
        try:
            if (result := method(event)) is not None:
                refuse_result(result, method, f"handler {monitor.state_name}")
            if monitor.persistent:  # what cannot be stored is the handler's failure, not the next checkpoint's
                monitor.check_tables(instance.tables)
                for table in instance.tables:
                    table.check_changes()
                instance.kept = monitor.encoded()
        except Exception as error:  # noqa: BLE001  # whatever application code raises is the application's failure
            self._undo(instance)
            cause = self._cause(event)
            if instance.on_error == "dead_letter":
                letter = _dead_letter(monitor, self._as_it_came(event), error, self._engine_time, cause)
                self.staging.add_dead_letter(letter)
            about = f"message {cause[1]} of receiver '{cause[0]}'" if cause else "from inside the engine"
            self._failed(instance.on_error, _failure(monitor, event, error), about)
            return
        if monitor.persistent:
            self._dirty[instance] = None
        self._take_effect()

    def _as_it_came(self, event: Any) -> Any:
        """The event in hand as another context sent it, whatever handlers have made of what it holds."""
        run = self.queue.head() if event is not None else None
        if run is None or run.recorded is None or run.events[0] is not event:
            return event
        return decode_event(self._resolve, run.recorded)

    def _cause(self, event: Any) -> tuple[str, int, Message] | None:
        """Receiver, number and message that the event in hand was mapped from; `None` for one from inside."""
        run = self.queue.head() if event is not None else None
        if run is None or not run.receiver:
            return None
        for position in range(run.position, len(run.events)):
            if run.events[position] is event:
                return run.receiver, run.first + position, run.messages[position]
        return None

    def _undo(self, instance: Instance) -> None:
        self._effects.clear()
        if instance.kept is not None:
            instance.monitor.take_back(instance.kept, instance.tables)

    def _take_effect(self) -> None:
        effects, self._effects = self._effects, []
        for apply, item in effects:
            apply(item)
        if self._others_concerned:
            self._others_concerned = False
            self._routes.woken()

    # --- what monitors ask for: the binding ---

    @property
    def engine_time(self) -> float:
        """Seconds of engine time at the beginning of this stretch of work."""
        return self._engine_time

    def send(
        self,
        monitor: Monitor,
        event: Any,
        to: str,
        key: str | None,
        properties: Mapping[str, Any] | None,
        destination: str | None,
    ) -> None:
        """Stage a send."""
        if self._thread() is not self._worked_by:
            raise self._outside(monitor)
        if isinstance(event, type):
            name, what = event.__name__, f"the class {event.__name__} was given to send"
            where, allowed = f"monitor {monitor.state_name}", "An event is an instance of it"
            raise MappingError("E5201", where, what, allowed, f"Write {name}(...)")
        if to.startswith("channel:"):
            self._send_to_channel(monitor, event, to[8:])
            return
        outbox = self._outbox(monitor, to)
        if outbox.mapping is not None:
            event = outbox.mapping.message(event, key, properties)
        message = to_message(event, key, properties)
        if destination is not None:
            message = checked(msgspec.structs.replace(message, destination=destination))
        elif not outbox.destination and message.destination is None:
            where = f"monitor {monitor.state_name}"
            raise UsageError("E8004", where, f"sender '{to}' has no destination", "", "Send with destination=")
        if outbox.stored:
            self._stage(monitor, self.staging.sends_to(to).append, message)
        else:
            self._stage(monitor, outbox.enqueue, message)
            self._others_concerned = True

    def outstanding(self, monitor: Monitor, sender: str) -> int:
        """How much waits for the broker of a sender (rule A2.17); asking makes no default sender."""
        self._refuse_outside(monitor)
        number = self._routes.outstanding(sender)
        if number is None or sender in self._routes.closing:
            raise self._unsendable(monitor, sender)
        return number

    def _outbox(self, monitor: Monitor, sender: str) -> Outbox:
        outbox = self._routes.outboxes.get(sender) or self._routes.default_outbox(sender)
        if outbox is None or sender in self._routes.closing:
            raise self._unsendable(monitor, sender)
        return outbox

    def _refuse_outside(self, monitor: Monitor) -> None:
        """Raise `UsageError` unless a handler of this context makes the call: no other call would ever take effect."""
        if self._thread() is not self._worked_by:
            raise self._outside(monitor)

    def _living(self, monitor: Monitor) -> Instance:
        """The instance, which asks for what comes to it later. Raises `UsageError` E8011 for one that has ended."""
        instance = self._known(monitor)
        if not instance.alive:
            raise self._ended(monitor)
        return instance

    def _known(self, monitor: Monitor) -> Instance:
        """The instance; it may be ending. Raises `UsageError`, E8005 or E8011."""
        self._refuse_outside(monitor)
        instance = self._instances.get(monitor)
        if instance is None:
            raise self._ended(monitor)
        return instance

    def _ended(self, monitor: Monitor) -> UsageError:
        return UsageError(
            "E8011",
            f"monitor {monitor.state_name}",
            "it has ended, and nothing comes to it any more",
            "In on_unload a monitor may send and spawn",
            "Ask a monitor that goes on",
        )

    def _outside(self, monitor: Monitor) -> UsageError:
        where = f"monitor {monitor.state_name}"
        self._process.check(where)
        return UsageError(
            "E8005",
            where,
            "a call was made outside of its handlers, or in a thread that a handler started",
            "A monitor asks for something within its handlers and life-cycle methods, in the thread that calls them",
            "To bring something in from elsewhere, send it to a destination that a receiver takes from",
        )

    def _stage(self, monitor: Monitor, apply: Callable[[Any], None], item: Any) -> None:
        """Have this done when the handler has returned."""
        if len(self._effects) >= MAX_EFFECTS:
            where = f"monitor {monitor.state_name}"
            raise UsageError("E8010", where, f"asks for more than {MAX_EFFECTS} effects of one event", "", "Do less")
        self._effects.append((apply, item))

    def _unsendable(self, monitor: Monitor, to: str) -> UsageError:
        return self._routes.unsendable(f"monitor {monitor.state_name}", to)

    def _send_to_channel(self, monitor: Monitor, event: Any, channel: str) -> None:
        queues = self._routes.channels.get(channel)
        where = f"monitor {monitor.state_name}"
        if not queues:
            what = f"no context receives channel {quoted(channel)}"
            raise UsageError("E8001", where, what, "A context receives its name")
        data = recorded(event)  # what no start could read is this handler's failure
        if self._stored_events:
            self._refuse_unnamed(monitor, type(event))
        for queue in queues:
            waiting = len(queue)
            if waiting >= MAX_WAITING_FROM_INSIDE:
                raise UsageError("E8010", where, f"{waiting} events wait in channel '{channel}'", "", "Send less")
            if queue is not self.queue:
                self._sent_to[queue] = None
            run = Run("", 0, (), (apart(event, data),), stored=True, recorded=(type_name(type(event)), data))
            self._stage(monitor, queue.deliver, run)
            self._others_concerned = True

    def listen(self, monitor: Monitor, spec: ListenerSpec) -> int:
        """Add a dynamic listener; raises `UsageError`, E4118 for events that the store could not name."""
        instance = self._living(monitor)
        if monitor.persistent:
            self._refuse_unnamed_events(monitor, spec)
        number = self._number(instance)
        if spec.plan is not None:
            waits = ExpressionListener(instance, number, spec.plan, spec.handler, once=spec.once, declared=False)
            self._stage(monitor, self._attempts.begin, waits)
        elif isinstance(spec.expression, Pattern):
            listener = Listener(instance, number, spec.expression, spec.handler, once=spec.once)
            self._stage(monitor, self._keep_listener, listener)
        return number

    def unlisten(self, monitor: Monitor, number: int) -> None:
        """Stage the end of a dynamic listener or timer."""
        instance = self._known(monitor)
        if not isinstance(number, int):
            where, todo = f"monitor {monitor.state_name}", "Keep what once(), on_all() or wait() returned"
            raise UsageError("E4120", where, f"{quoted(number)} is no number of a listener or timer", "", todo)
        self._stage(monitor, self._cancel, (instance, number))

    def wait(self, monitor: Monitor, seconds: float, handler: str) -> int:
        """Stage a timer that fires once."""
        instance = self._living(monitor)
        number = self._number(instance)
        due = self._engine_time + seconds
        self._stage(monitor, lambda _: self._push_timer(instance, number, due, None, handler), None)
        return number

    def subscribe(self, monitor: Monitor, channel: str) -> None:
        """Stage a subscription."""
        self._stage(monitor, self._join, (self._living(monitor), _channel(monitor, channel)))

    def unsubscribe(self, monitor: Monitor, channel: str) -> None:
        """Stage the end of a subscription."""
        self._stage(monitor, self._leave, (self._known(monitor), _channel(monitor, channel)))

    def spawn(self, monitor: Monitor, cls: type[Monitor], attributes: Mapping[str, Any]) -> None:
        """Stage another instance; it takes over what happens when a handler fails."""
        on_error = self._known(monitor).on_error
        made = cls(**attributes)
        if made.persistent:
            self._refuse_unnamed(monitor, cls)
            self._refuse_unreadable(monitor, made)
        self._stage(monitor, lambda _: self._begin(made, on_error), None)

    def stop(self, monitor: Monitor) -> None:
        """Stage the end of an instance."""
        self._refuse_outside(monitor)
        self._stage(monitor, self._end, monitor)

    def request_flush(self, monitor: Monitor, sender: str) -> int:
        """Stage a flush request (rule A5.1)."""
        self._refuse_persistent(monitor, "request_flush")
        self._refuse_outside(monitor)
        outbox = self._routes.outboxes.get(sender)
        if outbox is None:
            raise UsageError("E8001", f"monitor {monitor.state_name}", f"no sender {quoted(sender)}")
        if outbox.stored:
            raise UsageError(
                "E8202", f"sender {sender}", "request_flush is for BEST_EFFORT senders", "", "A checkpoint does it here"
            )
        request = FlushRequest(self._routes.next_flush(), self.name)
        self._stage(monitor, outbox.enqueue, request)
        self._others_concerned = True
        return request.request_id

    def acknowledge_and_resume(self, monitor: Monitor, receiver: str) -> None:
        """Stage the acknowledgement of a suspended batch."""
        self._refuse_persistent(monitor, "acknowledge_and_resume")
        self._refuse_outside(monitor)
        resume = self._routes.resume.get(receiver)
        if resume is None:
            raise UsageError("E7103", f"receiver {quoted(receiver)}", "is not an APP_CONTROLLED receiver")
        acknowledge = resume(self.name)
        if any(apply is _acknowledge and item[0] == receiver for apply, item in self._effects):
            raise nothing_suspended(receiver)
        self._stage(monitor, _acknowledge, (receiver, acknowledge))

    def update_flow_control_window(self, monitor: Monitor, marker: FlowControlMarker, window: int) -> None:
        """Stage a larger or smaller window of a receiver (rule A9.1)."""
        self._refuse_outside(monitor)
        where = f"monitor {monitor.state_name}"
        grant = self._routes.grant.get(marker.receiver)
        if grant is None:
            known = ", ".join(sorted(self._routes.grant)) or "none"
            what = f"receiver {quoted(marker.receiver)} has no flow control"
            raise UsageError("E7104", where, what, f"Receivers with flow_control: {known}")
        if not (isinstance(window, int) and isinstance(marker.number, int)) or window < 0:
            what = f"a flow control window of {quoted(window)} behind message {quoted(marker.number)}"
            raise UsageError("E7105", where, what, "0 or more messages behind a marker that was received")
        self._stage(monitor, grant, marker.number + window)

    def _refuse_unreadable(self, monitor: Monitor, made: Monitor) -> None:
        """What no later start could make again: its attributes, and the events that its expressions wait for."""
        made.settle()
        for spec in made.listeners:
            if spec.plan is not None:
                self._refuse_unnamed_events(monitor, spec)

    def _refuse_unnamed_events(self, monitor: Monitor, spec: ListenerSpec) -> None:
        for part in spec.plan.parts if spec.plan is not None else (spec.expression,):
            if isinstance(part, Pattern):
                self._refuse_unnamed(monitor, part.event_type)

    def _refuse_unnamed(self, monitor: Monitor, cls: type[Any]) -> None:
        """The store holds the name of a class, by which a later start must find it; raises `UsageError` E4118."""
        if cls in self._named:
            return
        name = type_name(cls)
        try:
            found = type_name(self._resolve(name))
        except CorrelatorError:
            found = ""
        if found != name:
            raise UsageError(
                "E4118",
                f"monitor {monitor.state_name}",
                f"{quoted(name)} cannot be imported by this name, so that no later start could read it back",
                "Classes of events and of spawned monitors stand at the top of a module, under their own name",
                "Move the class there",
            )
        self._named.add(cls)

    def _refuse_persistent(self, monitor: Monitor, call: str) -> None:
        if monitor.persistent:
            raise UsageError(
                "E4110",
                f"monitor {monitor.state_name}",
                f"{call}() is not allowed in a persistent monitor",
                "Its acknowledgement would not match the recovered state",
                "Call it from a monitor without persistent=True",
            )

    def _join(self, wanted: tuple[Instance, str]) -> None:
        instance, channel = wanted
        if not instance.alive or channel in instance.subscriptions:
            return
        instance.subscriptions[channel] = None
        count = self._subscribed[channel] = self._subscribed.get(channel, 0) + 1
        if count == 1 and channel != self.name:
            self._routes.subscribe(channel, self.queue)

    def _leave(self, unwanted: tuple[Instance, str]) -> None:
        instance, channel = unwanted
        if channel not in instance.subscriptions:
            return
        del instance.subscriptions[channel]
        self._subscribed[channel] -= 1
        if self._subscribed[channel]:
            return
        del self._subscribed[channel]
        if channel != self.name:
            self._routes.unsubscribe(channel, self.queue)

    def _keep_listener(self, listener: Listener) -> None:
        if not listener.instance.alive:
            return
        listener.instance.listeners[listener.number] = listener
        self._index.add(listener)

    def _forget_listener(self, listener: Listener) -> None:
        self._cancel((listener.instance, listener.number))

    def _cancel(self, waiting: tuple[Instance, int]) -> None:
        instance, number = waiting
        if (listener := instance.listeners.pop(number, None)) is not None:
            self._index.remove(listener)
        if (waits := instance.expressions.get(number)) is not None:
            self._attempts.cancel(waits)
        if (timer := instance.timers.pop(number, None)) is not None:
            self.timers.cancel(timer)

    def _begin(self, monitor: Monitor, on_error: OnError) -> None:
        name = monitor.state_name
        count = self._spawned.get(name, 1)
        self._spawned[name] = count + 1
        number = f"{self.name}.{count}"
        monitor.name_tables(number)
        self.load(monitor, on_error, number)
        self._call(self._instances[monitor], "onload")

    def _end(self, monitor: Monitor) -> None:
        instance = self._instances.get(monitor)
        if instance is None or not instance.alive:
            return
        instance.alive = False
        self._call(instance, "on_unload")
        del self._instances[monitor]
        for listener in (*instance.declared, *instance.listeners.values()):
            self._index.remove(listener)
        for waits in list(instance.expressions.values()):
            self._attempts.cancel(waits)
        for channel in list(instance.subscriptions):
            self._leave((instance, channel))
        for timer in instance.timers.values():
            self.timers.cancel(timer)
        instance.listeners.clear()
        instance.timers.clear()
        self._dirty.pop(instance, None)
        if monitor.persistent:
            self._removed.append(StateEntry(instance.owner, instance.key, None))
            for table in instance.tables:
                table.clear()
                self._removed.extend(table.take_changes())

    def _add_timer(self, instance: Instance, due: float, period: float | None, handler: str) -> int:
        number = self._number(instance)
        self._push_timer(instance, number, due, period, handler)
        return number

    def _push_timer(self, instance: Instance, number: int, due: float, period: float | None, handler: str) -> None:
        if instance.alive:
            timer = Timer(instance, number, due, period, handler)
            instance.timers[number] = timer
            self.timers.add(timer)

    @staticmethod
    def _number(instance: Instance) -> int:
        number, instance.next_number = instance.next_number, instance.next_number + 1
        return number

    # --- the cut ---

    def awaits_time(self) -> bool:
        """Whether a timer or deadline of a monitor with lasting state is set."""
        return any(one.instance.monitor.persistent for one in self.timers.living())

    def cut(self) -> ContextCut:
        """The queue and counters at this moment."""
        entered, queue = self.queue.cut(encode_event)
        return ContextCut(self.name, entered, queue, dict(self._spawned))

    def take_state(self) -> list[StateEntry]:
        """State that changed since the last cut."""
        entries, self._removed = self._removed, []
        dirty, self._dirty = self._dirty, {}
        for instance in dirty:
            entries.append(self._stored(instance))
            instance.monitor.check_tables(instance.tables)
            for table in instance.tables:
                entries.extend(table.take_changes())
        undecided = [entry for ledger in self._unhandled().values() for entry in ledger.take_changes()]
        return [*entries, *self._attempts.take_changes(), *undecided]

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
            self.name,
            monitor.state_version,
            monitor.encoded() if instance.kept is None else instance.kept,
            listeners,
            timers,
            instance.next_number,
            instance.on_error,
            list(instance.subscriptions),
        )
        return StateEntry(instance.owner, instance.key, encode(stored, f"monitor {monitor.state_name}"))


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # application code, too
        return "an error that cannot be told as text"


def _channel(monitor: Monitor, channel: str) -> str:
    """The name as plain text, which the store takes; raises `UsageError` E4115 for what is none."""
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


def _failure(monitor: Monitor, event: Any, error: Exception) -> CorrelatorError:
    if isinstance(error, CorrelatorError):
        return error
    shown = f"handling {type(event).__name__}" if event is not None else "in a timer or life-cycle method"
    return HandlerFailed(
        "E5500",
        f"monitor {monitor.state_name}",
        f"{shown} raised {storable(f'{type(error).__name__}: {_text_of(error)}')}",
        "",
        "Mend the handler, or set on_error: dead_letter or skip",
    )


def _dead_letter(
    monitor: Monitor, event: Any, error: Exception, engine_time: float, cause: tuple[str, int, Message] | None
) -> DeadLetter:
    receiver, number, message = cause or ("", 0, from_inside(event))
    return DeadLetter(
        kind="handler",
        origin=monitor.state_name,
        reason=storable(str(_failure(monitor, event, error))),
        message=message,
        time=engine_time,
        receiver=receiver,
        number=number,
    )
