"""A context: the loop that takes events from its input queue and timers, and calls the handlers of its monitors.

The context handles one event at a time. A cut falls between two handlers only, so no checkpoint holds half an event
(rule A2.10). The other parts of a context have modules of their own: `calls` (handlers and their effects), `loaded`
(monitors and what they wait for), `binding` (requests of monitors), `staging` (results for the next checkpoint).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from correlator.core.binding import ContextBinding
from correlator.core.calls import (
    HandlerCalls,
    OneThread,
    Process,
    RunningCall,
    WatchedCalls,
    Watcher,
    without_event,
)
from correlator.core.classnames import ClassNames
from correlator.core.commit import ContextCut, StateEntry, Suspect
from correlator.core.crowding import Crowding
from correlator.core.expressions import Moment
from correlator.core.instances import Deadline, OnError, StoredMonitor, Timer
from correlator.core.loaded import CONFIGURED, LoadedMonitors
from correlator.core.messages import encode_event, from_inside
from correlator.core.monitor import Monitor
from correlator.core.poison import dead_letter
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.staging import Staging
from correlator.core.tracecontext import Tracer
from correlator.core.unhandled import Unhandled
from correlator.errors import CorrelatorError

MAX_TIMERS = 100_000
"""Most timers that fire in one stretch of work; the other due timers fire in the next stretch."""

_NOTHING: dict[bytes, bytes] = {}


def _ignore(_policy: OnError, _error: CorrelatorError, _about: str) -> None:
    """Do nothing: the default of `failed`."""


class Context:
    """One context of monitors.

    Owner: the context's thread. The checkpointer calls the methods of the cut while it holds the context's lock.

    Args:
        name: name of the context.
        routes: has the outboxes of senders and the queues of channels.
        resolve: returns the class behind a `type_name`.
        failed: called with each failure of a handler that does not stop the engine: the policy, the error, and the
            origin of the event.
        engine_time: engine time of this start; timers that begin with it count from it.
        wall_time: time of this start in seconds of the local calendar; `at` counts from it.
        process: identifies the calling thread, and refuses calls in a forked child.
        queue: the input queue.
        stored: whether checkpoints are taken: a later start must be able to read what contexts send to one another.
        unhandled: returns the ledgers of unhandled messages, by receiver; called for each run.
        tracer: makes a span for each message of a trace that somebody collects; `None` for no spans.
        watcher: learns of each call of a handler; `None` for nobody.

    Attributes:
        cut_requested: while this is `True`, the context stops before its next event; the checkpointer sets it.
        handled: how many events this context has handled in this life.
        fired: how many timers of this context have fired in this life.
        monitors: the monitors, and what they wait for.
        staging: reliable sends and dead letters for the next checkpoint.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        resolve: Callable[[str], type[Any]],
        failed: Callable[[OnError, CorrelatorError, str], None] = _ignore,
        engine_time: float = 0.0,
        wall_time: float = 0.0,
        process: Process = OneThread(),  # noqa: B008  # it has no state
        *,
        queue: InputQueue | None = None,
        stored: bool = True,
        unhandled: Callable[[], Mapping[str, Unhandled]] = dict,
        tracer: Tracer | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.name = name
        self.queue = InputQueue() if queue is None else queue
        self.staging = Staging(stored=stored)
        self.cut_requested = False
        self.handled = 0
        self.fired = 0
        moment = Moment(engine_time, wall_time)
        arguments = (self.queue, self.staging, resolve, failed, routes.woken, process, moment)
        self._calls = HandlerCalls(*arguments) if watcher is None else WatchedCalls(watcher, *arguments)
        self._crowding = Crowding(self.queue)
        names = ClassNames(resolve)
        self.monitors = LoadedMonitors(name, self.queue, routes, resolve, names, self._calls)
        self._binding = ContextBinding(
            name, self.queue, routes, self.monitors, names, self._calls, self.staging, self._crowding, stored=stored
        )
        self._unhandled = unhandled
        self._tracer = tracer
        self._matching = self.monitors.index.matching  # in attributes of their own, since each event needs these three
        self._attempted = self.monitors.attempts.index
        self._call = self._calls.call

    # --- before the thread starts ---

    def load(
        self,
        monitor: Monitor,
        on_error: OnError,
        number: str = CONFIGURED,
        stored: StoredMonitor | None = None,
        waiting: Mapping[bytes, bytes] = _NOTHING,
    ) -> None:
        """Add a monitor, and bind it to this context; arguments and errors as `LoadedMonitors.load`."""
        monitor.bind(self._binding)
        self.monitors.load(monitor, on_error, number, stored, waiting)

    def restore(self, cut: ContextCut, runs: Sequence[Run], engine_time: float) -> None:
        """Take the queue and the counters of a checkpoint. A start calls it.

        Args:
            cut: the context in the checkpoint.
            runs: the runs of the queue.
            engine_time: engine time of the checkpoint.
        """
        self.queue.restore(cut.entered, runs)
        self.monitors.spawned = dict(cut.spawned)
        self._calls.moment = self._calls.moment._replace(engine_time=engine_time)

    def call_one(self, monitor: Monitor, hook: str) -> None:
        """Call a life-cycle method of a monitor, unless the monitor has ended; raises as `HandlerCalls.call`."""
        if (instance := self.monitors.instances.get(monitor)) is not None:
            before = self._calls.enter()
            try:
                self._calls.call_hook(instance, hook)
            finally:
                self._calls.leave(before)

    def call_all(self, hook: str, but: Collection[Monitor] = ()) -> None:
        """Call a life-cycle method of every monitor that is not in `but`, in the order of loading."""
        for monitor in list(self.monitors.instances):
            if monitor not in but:
                self.call_one(monitor, hook)

    # --- work ---

    def work(self, most: int, engine_time: float, most_timers: int = MAX_TIMERS, wall_time: float = 0.0) -> int:
        """Fire due timers, then handle events.

        Stops early when a cut is requested, and after an event that crowds another context (`crowds`).

        Args:
            most: largest number of events to handle.
            engine_time: engine time in seconds.
            most_timers: largest number of timers to fire.
            wall_time: seconds of the local calendar, which only `at` uses.

        Returns the number of events handled.

        Raises:
            CorrelatorError: a handler with `on_error: stop` failed; its event counts as not handled.
        """
        calls = self._calls
        calls.moment = Moment(engine_time, wall_time)
        before = calls.enter()
        try:
            self._fire_due(engine_time, most_timers)
            done = 0
            while done < most and not self.cut_requested and (run := self.queue.head()) is not None:
                done += self._work_run(run, most - done)
                if self._crowding.sent_to and self._crowding.crowds():
                    break
            return done
        finally:
            calls.leave(before)

    @property
    def running(self) -> RunningCall | None:
        """The call of a handler that runs; `None` while the context does not work. Any thread may ask."""
        return self._calls.running

    def crowds(self) -> bool:
        """Whether this context must wait until a context that it has crowded has caught up."""
        return self._crowding.crowds()

    def _work_run(self, run: Run, most: int) -> int:
        begin = position = run.position
        end = min(len(run), begin + most)
        events, crowding, calls = run.events, self._crowding, self._calls
        matching, attempted, call = self._matching, self._attempted, self._call
        traced = run.has_context
        left: list[int] = []
        calls.run = run if traced else None
        try:
            while position < end:
                event = events[position]
                if traced:
                    self._enter(position, event)
                listeners = matching(event)
                for listener in listeners:
                    instance = listener.instance
                    if instance.alive:
                        if listener.once:
                            calls.add_effect(self.monitors.forget_listener, listener)
                        call(instance, listener.method, event)
                if attempted.types and (leaves := attempted.matching(event)):
                    self.monitors.attempts.happened(leaves, event)
                elif not listeners:
                    left.append(position)
                position += 1
                if self.cut_requested or (crowding.sent_to and crowding.crowds()):
                    break
        finally:
            self._end_span()
            calls.run = None
            self.queue.advance(run, position)
            self.handled += position - begin
            if run.receiver:
                self._note_left(run, left)
        return position - begin

    def _enter(self, position: int, event: Any) -> None:
        """Note which event the context handles now. End the span of the previous event, and begin a span for this event
        if it is sampled.
        """
        calls, tracer = self._calls, self._tracer
        calls.position = position
        if tracer is not None:
            self._end_span()
            if event is not None and calls.run is not None and (cause := calls.sampled_cause) is not None:
                calls.failure = ""
                calls.span = tracer.begin(cause, calls.run.receiver, calls.run.first + position)

    def _end_span(self) -> None:
        if self._calls.span is not None:
            assert self._tracer is not None
            self._calls.span = None
            self._tracer.end(self._calls.failure)

    def _note_left(self, run: Run, left: Sequence[int]) -> None:
        """Report the positions of a received run whose events no listener waited for.

        `None` in the place of an event stands for a message that is a dead letter already.
        """
        unhandled = self._unhandled().get(run.receiver)
        if unhandled is not None and (left or unhandled.shared):
            those = [(run.first + at, run.events[at], run.messages[at]) for at in left if run.events[at] is not None]
            through = run.first + run.position - 1
            for letter in unhandled.passed(self.name, through, those, self._calls.moment.engine_time):
                self.staging.add_dead_letter(letter)

    def leave_out(self, suspect: Suspect) -> str:
        """Make a dead letter of the next event, which is condemned, without handling it; returns the reason."""
        run = self.queue.head()
        assert run is not None
        message = run.messages[run.position] if run.receiver else from_inside(run.events[run.position])
        letter = dead_letter(suspect, message, self._calls.moment.engine_time)
        self.queue.advance(run, run.position + 1)
        self.staging.add_dead_letter(letter)
        if run.receiver:
            self._note_left(run, ())
        return letter.reason

    def next_timer(self) -> float | None:
        """Engine time of the next timer; `None` without a timer."""
        return self.monitors.timers.next_due()

    def _fire_due(self, engine_time: float, most: int) -> None:
        """Fire the timers that are due now. A timer that their handlers add waits for the next stretch of work."""
        if not most:
            return
        before = self.fired
        timers = self.monitors.timers
        due = timers.take_due(engine_time)
        for position, timer in enumerate(due):
            if self.cut_requested or self.fired - before >= most:
                for waiting in due[position:]:
                    timers.add(waiting)
                break
            if not timer.cancelled:
                self.fired += 1
                self._fire(timer)

    def _fire(self, timer: Timer | Deadline) -> None:
        if isinstance(timer, Deadline):
            self.monitors.attempts.look(timer.attempt)
            return
        if timer.instance.monitor.persistent:  # the timer has fired even if its handler fails and is skipped
            self._calls.changed[timer.instance] = None
        if timer.period is None:
            timer.instance.timers.pop(timer.number, None)
        else:
            timer.due += timer.period
            self.monitors.timers.add(timer)
        self._calls.call(timer.instance, partial(without_event, timer.method), None)

    # --- the cut ---

    def awaits_time(self) -> bool:
        """Whether a timer or deadline of a persistent monitor is set."""
        return self.monitors.awaits_time()

    def cut(self) -> ContextCut:
        """Return the queue and the counters at this moment, for a checkpoint."""
        entered, queue = self.queue.cut(encode_event)
        return ContextCut(self.name, entered, queue, dict(self.monitors.spawned))

    def take_state(self) -> list[StateEntry]:
        """Return the changes of state since the last cut.

        Raises:
            StateError: E4102, E4103 or E4119 for state that cannot be stored, with `on_error: stop`.
        """
        entries = self.monitors.take_changes()
        for ledger in self._unhandled().values():
            entries.extend(ledger.take_changes())
        return entries
