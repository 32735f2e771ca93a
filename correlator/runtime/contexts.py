"""The threads of contexts: one lets monitors handle events, the other hands whole batches to a processor."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from correlator.core.batch_context import BatchContext, Delivered, Effects
from correlator.core.checkpoint import Cuttable
from correlator.core.commit import Suspect
from correlator.core.context import MAX_TIMERS, Context
from correlator.core.faults import point
from correlator.core.poison import Portion, up_to
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.tape import Tape
from correlator.errors import TryAgain
from correlator.ports import Processor
from correlator.runtime.actor import Actor
from correlator.runtime.clock import EngineTime
from correlator.runtime.latency import StagingTimes
from correlator.runtime.logs import get_logger
from correlator.runtime.status import ContextCounters, PipelineCounters
from correlator.runtime.suspects import Suspects

if TYPE_CHECKING:
    from correlator.runtime.spans import Spans

SLICE = 1000
"""The largest number of events between two checks of the clock and the outboxes."""
FULL_WAIT_S = 0.05
"""Seconds until a context checks a full outbox, or the full queue of another context, again."""


def _nothing() -> None:
    """Do nothing, for a context without a checkpointer."""


class ContextActor(Actor):
    """The actor of a context: its lock, and its part in the cut of a checkpoint.

    Args:
        name: name of the thread.
        context: the context; it belongs to this thread, and to the checkpointer while the checkpointer holds the lock.
        engine_time: the clock for the work of the context.
        hold: returns whether work must pause because the outbox of a sender or the input log is full.
        persistent: whether checkpoints take what the context stages; otherwise its dead letters are only logged.
        rested: called when the context has nothing to do while its sends wait for a checkpoint.

    Attributes:
        lock: held by the thread that changes the context or takes its cut.
        whole: whether every change of the context that was begun is complete; read under the lock. An exception in the
            middle of a change leaves it `False` for good: no cut may hold half a change, and the engine is stopping.
        staging_times: when the staged sends of the context were staged; used under the lock.
    """

    daemon = True
    context: Cuttable

    def __init__(
        self,
        name: str,
        context: Cuttable,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
        rested: Callable[[], None],
    ) -> None:
        super().__init__(name)
        self.context = context
        self.lock = threading.Lock()
        self.whole = True
        self.staging_times = StagingTimes()
        self._engine_time = engine_time
        self._hold = hold
        self._persistent = persistent
        self._rested = rested

    @property
    def queue(self) -> InputQueue:
        """The queue of the context. Receivers and other contexts fill it in their threads; this thread empties it."""
        return self.context.queue

    @property
    def idle(self) -> bool:
        """Whether the queue is empty: every delivered event is handled. A handler of a timer may be running."""
        return not len(self.context.queue)

    def request_cut(self, *, requested: bool) -> None:
        """Ask the context to stop before its next event (`True`), or let it go on; the checkpointer calls it."""
        raise NotImplementedError

    def step(self) -> float | None:
        """Advance, unless work must pause; see `Actor.step`."""
        wait = FULL_WAIT_S if self._hold() else self._advance()
        if wait != 0 and self.context.staging.sends:
            self._rested()
        return wait

    def _advance(self) -> float | None:
        """Do one piece of work, such as a slice of events or one batch; returns as `step`."""
        raise NotImplementedError

    def _begin_change(self, now: float) -> None:
        """Note that the caller, which holds the lock, begins to change the context at this engine time.

        Unless `_end_change` follows, the context stays not whole.
        """
        self.whole = False
        if self._persistent:
            self.staging_times.note(now, self.context.staging.sends)

    def _end_change(self) -> None:
        """Note that the change which `_begin_change` announced is complete."""
        self.whole = True
        if not self._persistent:
            self.context.staging.take_dead_letters()


class MonitorThread(ContextActor):
    """Works through the queue of a context of monitors.

    Args:
        context: the context.
        engine_time: the clock for the work of the context.
        hold: returns whether work must pause.
        persistent: whether checkpoints take what the context stages.
        rested: called when the context has nothing to do while its sends wait for a checkpoint.
        tape: records the inputs of the context; `None` without an input log.

    Attributes:
        slice: largest number of events of one step.
        counters: what the context has handled. Written by this thread.
    """

    context: Context

    def __init__(
        self,
        context: Context,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
        rested: Callable[[], None] = _nothing,
        tape: Tape | None = None,
    ) -> None:
        super().__init__(f"context-{context.name}", context, engine_time, hold, persistent=persistent, rested=rested)
        self.slice = SLICE
        self.counters = ContextCounters()
        self._tape = tape

    def request_cut(self, *, requested: bool) -> None:
        """Ask the context to stop before its next event (`True`), or wake it to go on (`False`)."""
        self.context.cut_requested = requested
        if not requested:
            self.wake()

    def work(self, now: float, most: int, most_timers: int = MAX_TIMERS) -> int:
        """Let the context handle events and timers that are due; see `Context.work`. Return the number of handled
        events.

        The caller holds the lock, or no other thread runs yet.
        """
        calendar = self._engine_time.calendar()
        if self._tape is None:
            return self.context.work(most, now, most_timers, calendar)
        return self._tape.work(self.context, most, now, most_timers, calendar)

    def leave_out(self, suspect: Suspect) -> str:
        """Let the context leave out its next event; see `Context.leave_out`.

        The caller holds the lock, or no other thread runs yet.
        """
        if self._tape is None:
            return self.context.leave_out(suspect)
        return self._tape.leave_out(self.context, suspect)

    def step(self) -> float | None:
        """Handle a slice of events, unless a cut is requested or work must pause."""
        return None if self.context.cut_requested else super().step()

    def _advance(self) -> float | None:
        if self.context.crowds():
            return FULL_WAIT_S
        point("app.event")
        now = self._engine_time.now()
        with self.lock:
            self._begin_change(now)
            done = self.work(now, self.slice)
            self._end_change()
            due = self.context.next_timer()
        self.counters.busy_s += self._engine_time.now() - now
        self.counters.handled += done
        if done:
            return 0
        return None if due is None else max(0.0, due - self._engine_time.now())


class ProcessorThread(ContextActor):
    """Hands batches to a processor. A batch has no effect while the processor computes, so a cut may be taken at any
    time.

    Args:
        processor: computes the effects of batches.
        context: the queue and the keyed state of the pipeline.
        routes: has the outboxes of all senders.
        engine_time: the clock for the processor.
        hold: returns whether work must pause.
        persistent: whether checkpoints take what the context stages.
        rested: called when the context has nothing to do while its sends wait for a checkpoint.
        processed: called after each batch, and after the processor has concluded.
        told: reports dead letters for the timeline, as `Timeline.add`.
        spans: makes spans of sampled messages; `None` for no spans.

    Attributes:
        counters: how many messages came in, and how many sends and dead letters went out.
        concluded: whether the processor has concluded.
    """

    context: BatchContext

    def __init__(
        self,
        processor: Processor,
        context: BatchContext,
        routes: Routes,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
        rested: Callable[[], None] = _nothing,
        processed: Callable[[], None],
        told: Callable[..., None],
        spans: "Spans | None" = None,
    ) -> None:
        super().__init__(f"pipeline-{context.name}", context, engine_time, hold, persistent=persistent, rested=rested)
        self.processor = processor
        self.counters = PipelineCounters()
        self.concluded = False
        self._processed = processed
        self._told = told
        self._spans = spans
        self._log = get_logger(pipeline=context.name)
        self._may_conclude = False
        self._suspects: Suspects | None = None
        self._restored = 0
        self._again_at = 0.0
        self._routes = routes

    def request_cut(self, *, requested: bool) -> None:
        """Do nothing: this thread applies all effects of a batch at once, under the lock."""

    def conclude(self) -> None:
        """Note that all input has ended: the processor concludes once the queue is empty. Any thread may call it."""
        self._may_conclude = True
        self.wake()

    def begin_restored(self, suspects: Suspects) -> None:
        """Let this thread note in the store which messages it processes next, until it has processed all that wait now.

        Called before the thread starts. The notes show the next start which message has ended the process.
        """
        self._restored = self.queue.waiting
        self._suspects = suspects

    def finish(self) -> None:
        """Close the processor; called once in this thread, after its last step."""
        self.processor.close()

    def _advance(self) -> float | None:
        """Process one batch. If the processor cannot do so at present, the batch stays in the queue, and nothing
        changes.
        """
        wait = self._again_at - self._engine_time.now()
        if wait > 0:
            return wait
        try:
            return self._advance_now()
        except TryAgain as failure:
            self._log.warning(str(failure))
            self._again_at = self._engine_time.now() + failure.wait_s
            return failure.wait_s

    def _advance_now(self) -> float | None:
        may_conclude = self._may_conclude  # read before the queue: once it is set, the queue has every message
        most = self.processor.max_rows
        portion = self._restored_portion(most)
        began = self._engine_time.now()
        with self.lock:
            places = portion.size if portion else sys.maxsize
            batch, reached = self.context.take(most, self.processor.max_bytes, places)
        if all(position == run.position for run, position in reached):
            if may_conclude and not self.concluded:
                self._conclude()
            return None
        point("app.batch")
        started = self._spans.now() if self._spans is not None else 0.0
        self.counters.take_s += self._engine_time.now() - began
        effects = self._process(batch, portion, reached) if batch else Effects()
        self._restored -= sum(position - run.position for run, position in reached)
        self._apply(effects, reached)
        if self._spans is not None:
            self._spans.processed(self.context.name, (one.message for one in batch), started)
        self.counters.received += len(batch)
        self.counters.batches += 1
        self._processed()
        return 0

    def _restored_portion(self, most: int) -> Portion | None:
        """The next portion of the messages that waited at the start; `None` once these are processed."""
        while self._suspects is not None:
            if self._restored <= 0:
                self._suspects.conclude()
                self._suspects = None
                return None
            with self.lock:
                portion = self._suspects.portion(self.context.name, self.queue, most)
                if not portion.condemned:
                    return portion
                self._suspects.leave_out(portion.suspects[0], self.context.leave_out)
            self._restored -= 1
        return None

    def _process(self, batch: list[Delivered], portion: Portion | None, reached: Sequence[tuple[Run, int]]) -> Effects:
        now = self._engine_time.now()
        if self._suspects is None or portion is None:
            return self._computed(lambda: self.processor.process(batch, self.context, now))
        through = {run.receiver: run.first + position - 1 for run, position in reached}
        self._suspects.note(up_to(portion.suspects, through))
        with self._suspects.forgiving():
            return self._computed(lambda: self.processor.process(batch, self.context, now))

    def _computed(self, compute: Callable[[], Effects]) -> Effects:
        """Let the processor compute, and measure how long it planned and computed."""
        began, planned = self._engine_time.now(), self.processor.planned_s
        effects = compute()
        planning = self.processor.planned_s - planned
        self.counters.plan_s += planning
        self.counters.compute_s += self._engine_time.now() - began - planning
        return effects

    def _conclude(self) -> None:
        now = self._engine_time.now()
        self._apply(self._computed(lambda: self.processor.conclude(self.context, now)), [])
        self.concluded = True
        self._processed()

    def _apply(self, effects: Effects, reached: Sequence[tuple[Run, int]]) -> None:
        began = self._engine_time.now()
        with self.lock:
            self._begin_change(began)
            self.context.apply(effects, reached, self._routes)
            self._end_change()
        self.counters.apply_s += self._engine_time.now() - began
        self.counters.sent += len(effects.sends)
        if effects.dead_letters:
            self.counters.dead_letters += len(effects.dead_letters)
            first, count = effects.dead_letters[0], len(effects.dead_letters)
            self._log.error(
                "rows became dead letters",
                count=count,
                first=first.reason,
                receiver=first.receiver,
                number=first.number,
                unique_id=first.unique_id,
            )
            self._told("dead_letters", pipeline=self.context.name, count=count, reason=first.reason)
        self._routes.woken()
