"""Deliberate bugs in contexts: what a handler does, undoes and leaves behind."""

from typing import Any

from correlator.core import binding, keyed
from correlator.core.binding import ContextBinding
from correlator.core.calls import HandlerCalls
from correlator.core.context import Context
from correlator.core.loaded import LoadedMonitors
from correlator.errors import HandlerFailed
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.writer import Writer
from tests.harness.mutants.catalogue import Patches, mutant


@mutant(
    "failed_handler_sends", "the sends of a handler that failed leave all the same", "S9", "M4", "M1", "M3", "G5", "M2"
)
def failed_handler_sends(patches: Patches) -> None:
    """Trap T27: a failed handler must leave nothing behind."""

    def make(original: Any) -> Any:
        def undo(self: Any, instance: Any) -> Any:
            effects = list(self._effects)
            original(self, instance)
            self._effects.extend(effects)
            self._make_effects()

        return undo

    patches.replace(HandlerCalls, "_undo", make)


@mutant(
    "failed_handler_changes_state",
    "the state of a handler that failed is not put back",
    "A3",
    "S9",
    "M5",
    "S3",
    "M1",
    "M4",
    "M3",
    "M2",
    "G1",
)
def failed_handler_changes_state(patches: Patches) -> None:
    """Trap T27: a failed handler must leave nothing behind."""
    patches.replace(HandlerCalls, "_undo", lambda _: lambda self, instance: self._effects.clear())


@mutant(
    "failure_passed_over",
    "a handler that must not fail is skipped when it does",
    "A2",
    "A3",
    "M1",
    "M3",
    "M4",
    "S9",
    seed=8,
)
def failure_passed_over(patches: Patches) -> None:
    """With `on_error: stop`, the engine must stop."""

    def make(original: Any) -> Any:
        def call(self: Any, instance: Any, method: Any, event: Any) -> Any:
            try:
                original(self, instance, method, event)
            except HandlerFailed:
                return

        return call

    patches.replace(HandlerCalls, "call", make)


@mutant(
    "checkpoint_after_failure",
    "a handler failed half-way, and what it changed is written before the engine stops",
    "A3",
    "G1",
    "S9",
    "M5",
    "A2",
    budget=600,
    seed=130,
)
def checkpoint_after_failure(patches: Patches) -> None:
    """The failing thread races with a checkpoint that waits."""
    patches.replace(Checkpointer, "_whole", lambda _: property(lambda self: True))


@mutant("once_forever", "a listener that waits for one event is called for each", "M2", seed=3)
def once_forever(patches: Patches) -> None:
    """The listener is not removed after its first call."""
    patches.replace(LoadedMonitors, "forget_listener", lambda _: lambda self, listener: None)


@mutant("timer_fires_again", "a timer stays after it has fired", "M1", "M2", "G1", "G7")
def timer_fires_again(patches: Patches) -> None:
    """The timer stays in the state, and a start restores it."""

    def make(original: Any) -> Any:
        def fire(self: Any, timer: Any) -> Any:
            original(self, timer)
            self.again = getattr(timer, "handler", "") == "due" and not getattr(self, "again", False)
            if self.again:
                self.monitors.push_timer(timer.instance, 10**6, self._calls.moment.engine_time, None, "due")

        return fire

    patches.replace(Context, "_fire", make)


@mutant("ended_monitor_stays", "the state of a monitor that ended stays in the store", "M3", "G1")
def ended_monitor_stays(patches: Patches) -> None:
    """A start restores the monitor."""

    def make(original: Any) -> Any:
        def end(self: Any, monitor: Any) -> Any:
            before = list(self._removed)
            original(self, monitor)
            self._removed = before

        return end

    patches.replace(LoadedMonitors, "end", make)


@mutant("persistent_may_flush", "a persistent monitor may flush and acknowledge", "F5", "C6")
def persistent_may_flush(patches: Patches) -> None:
    """The engine must refuse both calls."""
    patches.replace(binding, "_refuse_persistent", lambda _: lambda monitor, call: None)


@mutant("fresh_timers_count_from_zero", "timers that begin with a start count from the first start", "M6", seed=8)
def fresh_timers_count_from_zero(patches: Patches) -> None:
    """A monitor without lasting state gets all beats since the first start at once."""

    def make(original: Any) -> Any:
        def init(
            self: Any, name: Any, routes: Any, resolve: Any, failed: Any, _: Any, *others: Any, **options: Any
        ) -> Any:
            original(self, name, routes, resolve, failed, 0.0, *others, **options)

        return init

    patches.replace(Context, "__init__", make)


@mutant("channel_sent_twice", "an event for a channel is delivered twice", "M4", "M3")
def channel_sent_twice(patches: Patches) -> None:
    """Each event must be handled exactly once."""

    def make(original: Any) -> Any:
        def send(self: Any, monitor: Any, event: Any, channel: Any) -> Any:
            original(self, monitor, event, channel)
            original(self, monitor, event, channel)

        return send

    patches.replace(ContextBinding, "_send_to_channel", make)


@mutant("idle_time_is_not_stored", "engine time is stored with other changes only", "G12", budget=240, seed=7)
def idle_time_is_not_stored(patches: Patches) -> None:
    """If an idle engine dies often, its timers never fire."""
    patches.replace(Context, "awaits_time", lambda _: lambda self: False)


@mutant("locks_released_before_the_cut", "contexts work on while a cut is taken", "G10")
def locks_released_before_the_cut(patches: Patches) -> None:
    """The cut combines the states of several moments."""

    def make(original: Any) -> Any:
        def cut(self: Any) -> Any:
            take = self.checkpoint.cut

            def unlocked(*parts: Any, **options: Any) -> Any:
                for context in self._contexts:
                    context.lock.release()
                try:
                    return take(*parts, **options)
                finally:
                    for context in self._contexts:
                        context.lock.acquire()

            self.checkpoint.cut = unlocked
            try:
                return original(self)
            finally:
                self.checkpoint.cut = take

        return cut

    patches.replace(Checkpointer, "_take_cut", make)


@mutant("receipts_by_another_clock", "ids are stored with the time since this start", "G13", seed=4)
def receipts_by_another_clock(patches: Patches) -> None:
    """Windows by time then compare times of different lives."""

    def make(original: Any) -> Any:
        def init(self: Any, store: Any, number: Any, engine_time: Any, *others: Any) -> Any:
            began = engine_time()
            original(self, store, number, lambda: engine_time() - began, *others)

        return init

    patches.replace(Writer, "__init__", make)


@mutant("event_time_set_back", "a timer in the past sets the event time of its key back", "M10")
def event_time_set_back(patches: Patches) -> None:
    """The timer fires at the time for which it was set, though the event time of its key is later."""

    def make(original: Any) -> Any:
        def fire(monitor: Any, due: Any, name: Any) -> Any:
            monitor._time = due
            return original(monitor, due, name)

        return fire

    patches.replace(keyed, "_fire_timer", make)


@mutant(
    "half_an_event_in_the_cut",
    "a cut is taken when the first of several listeners has returned",
    "A3",
    "G1",
    "M2",
    "M3",
    "A2",
    "D1",
    seed=3,
)
def half_an_event_in_the_cut(patches: Patches) -> None:
    """The event counts as handled before its handlers have run."""

    def make(original: Any) -> Any:
        def work(self: Any, most: Any, *times: Any) -> Any:
            for run in self.queue.runs():
                if run.stored and run.receiver and run.position < len(run) - 1 and self.handled % 7 == 3:
                    run.position += 1
                break
            return original(self, most, *times)

        return work

    patches.replace(Context, "work", make)
