"""The threads of contexts: one lets monitors handle events, the other hands whole batches to a processor."""

import sys
import threading
from collections.abc import Callable, Sequence

from correlator.core.batch_context import BatchContext, Delivered, Effects
from correlator.core.checkpoint import Cuttable
from correlator.core.commit import Suspect
from correlator.core.context import MAX_TIMERS, Context
from correlator.core.faults import point
from correlator.core.poison import Portion, up_to
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.tape import Tape
from correlator.ports import Processor
from correlator.runtime.actor import Actor
from correlator.runtime.clock import EngineTime
from correlator.runtime.logs import get_logger
from correlator.runtime.status import PipelineCounters
from correlator.runtime.suspects import Suspects

SLICE = 1000
"""Most events between two looks at the clock and at the outboxes."""
FULL_WAIT_S = 0.05
"""Seconds until a context looks again at a full outbox, or at the full queue of another context."""


class ContextActor(Actor):
    """The actor of a context: its lock, and its part in the cut of a checkpoint.

    Args:
        name: of the thread.
        context: the context; it belongs to this thread, and to the checkpointer while that holds the lock.
        engine_time: engine time.
        hold: says whether work must pause, since the outbox of a sender or the input log is full.
        persistent: whether checkpoints take what the context stages; otherwise its dead letters are only logged.

    Attributes:
        lock: held by whoever changes the context or takes its cut.
        whole: whether the context holds no change that was begun and not ended; read under the lock. An exception
            leaves it `False` for good: no cut may hold half a change, and the engine is stopping.
    """

    daemon = True
    context: Cuttable

    def __init__(
        self, name: str, context: Cuttable, engine_time: EngineTime, hold: Callable[[], bool], *, persistent: bool
    ) -> None:
        super().__init__(name)
        self.context = context
        self.lock = threading.Lock()
        self.whole = True
        self._engine_time = engine_time
        self._hold = hold
        self._persistent = persistent

    @property
    def queue(self) -> InputQueue:
        """The queue of the context. Receivers and other contexts fill it in their threads; this thread empties it."""
        return self.context.queue

    @property
    def idle(self) -> bool:
        """Whether the queue is empty. The handler of the last event may still be running."""
        return not len(self.context.queue)

    def request_cut(self, *, requested: bool) -> None:
        """Ask the context to stop before its next event (`True`), or let it go on; the checkpointer calls it."""
        raise NotImplementedError

    def step(self) -> float | None:
        """Do a piece of work, unless work must pause."""
        return FULL_WAIT_S if self._hold() else self._advance()

    def _advance(self) -> float | None:
        """Do a piece of work; returns as `step`."""
        raise NotImplementedError

    def _begin_change(self) -> None:
        """The caller, which holds the lock, changes the context from now on; an exception keeps it from being whole."""
        self.whole = False

    def _end_change(self) -> None:
        """The change that `_begin_change` began is complete."""
        self.whole = True
        if not self._persistent:
            self.context.staging.take_dead_letters()


class MonitorThread(ContextActor):
    """Works through the queue of a context of monitors.

    Args:
        context: the context.
        engine_time: engine time.
        hold: says whether work must pause.
        persistent: whether checkpoints take what the context stages.
        tape: records what the context takes in; `None` without an input log.

    Attributes:
        slice: most events of one step.
    """

    context: Context

    def __init__(
        self,
        context: Context,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
        tape: Tape | None = None,
    ) -> None:
        super().__init__(f"context-{context.name}", context, engine_time, hold, persistent=persistent)
        self.slice = SLICE
        self._tape = tape

    def request_cut(self, *, requested: bool) -> None:
        """Ask the context to stop before its next event, or wake it."""
        self.context.cut_requested = requested
        if not requested:
            self.wake()

    def work(self, now: float, most: int, most_timers: int = MAX_TIMERS) -> int:
        """Let the context work (`Context.work`); the caller holds the lock, or no other thread runs yet."""
        calendar = self._engine_time.calendar()
        if self._tape is None:
            return self.context.work(most, now, most_timers, calendar)
        return self._tape.work(self.context, most, now, most_timers, calendar)

    def leave_out(self, suspect: Suspect) -> str:
        """Let the context leave out its next event (`Context.leave_out`); the lock as for `work`."""
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
            self._begin_change()
            done = self.work(now, self.slice)
            self._end_change()
            due = self.context.next_timer()
        if done:
            return 0
        return None if due is None else max(0.0, due - self._engine_time.now())


class ProcessorThread(ContextActor):
    """Hands batches to a processor. A batch has no effect while the processor computes, so a cut may fall at any time.

    Args:
        processor: computes the effects of batches.
        context: queue and state.
        routes: where sends go.
        engine_time: engine time.
        hold: says whether work must pause.
        persistent: whether checkpoints take what the context stages.
        processed: called after each batch, and after the conclusion.

    Attributes:
        counters: messages in, sends and dead letters out.
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
        processed: Callable[[], None],
    ) -> None:
        super().__init__(f"pipeline-{context.name}", context, engine_time, hold, persistent=persistent)
        self.processor = processor
        self.counters = PipelineCounters()
        self.concluded = False
        self._processed = processed
        self._log = get_logger(pipeline=context.name)
        self._may_conclude = False
        self._suspects: Suspects | None = None
        self._restored = 0
        self._routes = routes

    def request_cut(self, *, requested: bool) -> None:
        """Nothing to do: effects are applied in one piece under the lock."""

    def conclude(self) -> None:
        """Let the processor conclude when the queue is empty: all input has ended. Any thread may call it."""
        self._may_conclude = True
        self.wake()

    def begin_restored(self, suspects: Suspects) -> None:
        """Note in the store what is processed, until the messages that wait now are; before the thread starts."""
        self._restored = self.queue.waiting
        self._suspects = suspects

    def finish(self) -> None:
        """Close the processor; called once in this thread, after its last step."""
        self.processor.close()

    def _advance(self) -> float | None:
        """Process one batch."""
        may_conclude = self._may_conclude  # asked first: once it is set, every message is in the queue
        most = self.processor.max_rows
        portion = self._restored_portion(most)
        with self.lock:
            places = portion.size if portion else sys.maxsize
            batch, reached = self.context.take(most, self.processor.max_bytes, places)
        if all(position == run.position for run, position in reached):
            if may_conclude and not self.concluded:
                self._conclude()
            return None
        point("app.batch")
        self._restored -= sum(position - run.position for run, position in reached)
        effects = self._process(batch, portion, reached) if batch else Effects()
        self._apply(effects, reached)
        self.counters.received += len(batch)
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
            return self.processor.process(batch, self.context, now)
        through = {run.receiver: run.first + position - 1 for run, position in reached}
        self._suspects.note(up_to(portion.suspects, through))
        with self._suspects.forgiving():
            return self.processor.process(batch, self.context, now)

    def _conclude(self) -> None:
        self._apply(self.processor.conclude(self.context, self._engine_time.now()), [])
        self.concluded = True
        self._processed()

    def _apply(self, effects: Effects, reached: Sequence[tuple[Run, int]]) -> None:
        with self.lock:
            self._begin_change()
            self.context.apply(effects, reached, self._routes)
            self._end_change()
        self.counters.sent += len(effects.sends)
        if effects.dead_letters:
            self.counters.dead_letters += len(effects.dead_letters)
            first = effects.dead_letters[0].reason
            self._log.error("rows became dead letters", count=len(effects.dead_letters), first=first)
        self._routes.woken()
