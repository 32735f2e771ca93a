"""The threads of contexts: one works through events with monitors, one hands whole batches to a processor."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from correlator.core.checkpoint import Cuttable
from correlator.core.commit import ContextCut, StateEntry, Suspect
from correlator.core.context import MAX_TIMERS, Context
from correlator.core.faults import point
from correlator.core.poison import Portion, dead_letter, up_to
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.statelog import put
from correlator.core.tape import Tape
from correlator.errors import UsageError
from correlator.events import DeadLetter, Message
from correlator.ports import Delivered, Effects, Processor
from correlator.runtime.actor import Actor
from correlator.runtime.clock import EngineTime
from correlator.runtime.logs import get_logger
from correlator.runtime.status import PipelineCounters
from correlator.runtime.suspects import Suspects

SLICE = 1000
"""Most events between two looks at the clock and at the outboxes."""
FULL_WAIT_S = 0.05
"""Until the next look at an outbox, or at another context's queue, that was full."""


class MonitorThread(Actor):
    """Works through the queue of a context of monitors.

    Args:
        context: the context; this thread's, but while a cut is taken.
        engine_time: engine time.
        hold: says whether work must pause since a sender's queue, or the input log, is full.
        persistent: whether checkpoints take what it stages; without them dead letters are logged only.
        tape: records what it takes in.
    """

    daemon = True

    def __init__(
        self,
        context: Context,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
        tape: Tape | None = None,
    ) -> None:
        super().__init__(f"context-{context.name}")
        self._tape = tape
        self.context = context
        self.lock = threading.Lock()
        self.whole = True
        self.slice = SLICE
        self._persistent = persistent
        self._engine_time = engine_time
        self._hold = hold

    @property
    def queue(self) -> InputQueue:
        """The input queue."""
        return self.context.queue

    @property
    def cuttable(self) -> Cuttable:
        """The context."""
        return self.context

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return not len(self.context.queue)

    def request_cut(self, *, requested: bool) -> None:
        """Stop before the next event, or go on."""
        self.context.cut_requested = requested
        if not requested:
            self.wake()

    def work(self, now: float, most: int, most_timers: int = MAX_TIMERS) -> int:
        """Let the context work; the caller holds the lock, or no other thread runs yet."""
        calendar = self._engine_time.calendar()
        if self._tape is None:
            return self.context.work(most, now, most_timers, calendar)
        return self._tape.work(self.context, most, now, most_timers, calendar)

    def leave_out(self, suspect: Suspect) -> str:
        """Let the context leave its next event out; as `work`."""
        if self._tape is None:
            return self.context.leave_out(suspect)
        return self._tape.leave_out(self.context, suspect)

    def step(self) -> float | None:
        """Handle a slice of events."""
        if self.context.cut_requested:
            return None
        if self._hold() or self.context.crowds():
            return FULL_WAIT_S
        point("app.event")
        now = self._engine_time.now()
        with self.lock:
            self.whole = False  # stays so when a handler raises: no cut may hold what it left half done
            done = self.work(now, self.slice)
            self.whole = True
            if not self._persistent:
                self.context.take_dead_letters()
            due = self.context.next_timer()
        if done:
            return 0
        return None if due is None else max(0.0, due - self._engine_time.now())


class BatchContext:
    """The state of a context whose batches a processor handles: queue, keyed state, what it staged.

    Owner: the processor's thread holds the lock to change it; the checkpointer to cut it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = InputQueue()
        self._began = 0.0
        self._state: dict[str, dict[bytes, bytes]] = {}
        self._changes: dict[tuple[str, bytes], bytes | None] = {}
        self._staged: dict[str, list[Message]] = {}
        self._dead: list[DeadLetter] = []

    def load(self, state: Mapping[str, dict[bytes, bytes]]) -> None:
        """Take the keyed state that the store holds, or is to hold after the first checkpoint."""
        self._state = dict(state)

    def get(self, owner: str, key: bytes) -> bytes | None:
        """The value of one key."""
        return self._state.get(owner, {}).get(key)

    def items(self, owner: str) -> Iterable[tuple[bytes, bytes]]:
        """All keys of an owner."""
        return list(self._state.get(owner, {}).items())

    def take(
        self, max_rows: int, max_bytes: int, most: int = sys.maxsize
    ) -> tuple[list[Delivered], list[tuple[Run, int]]]:
        """What to process next, and how far each run is handled when that is done.

        At most so many rows and bytes, out of at most `most` places in the queue.
        """
        self.queue.enter()
        batch: list[Delivered] = []
        reached: list[tuple[Run, int]] = []
        size = 0
        for run in self.queue.runs():
            position = run.position
            while position < len(run) and len(batch) < max_rows and size < max_bytes and most > 0:
                message = run.messages[position]
                if not run.events or run.events[position] is not None:  # `None` is a dead letter already
                    batch.append(Delivered(run.receiver, run.first + position, message))
                    size += len(message.body)
                position += 1
                most -= 1
            reached.append((run, position))
            if position < len(run):
                break
        return batch, reached

    def apply(self, effects: Effects, reached: list[tuple[Run, int]], routes: Routes) -> None:
        """Let the effects of a batch take place, all at once.

        Raises:
            UsageError: E8001 for an unknown sender, E8002 for one that is being removed; nothing has taken place.
        """
        outboxes, closing = routes.outboxes, routes.closing
        for sender, _ in effects.sends:
            if sender in closing:
                raise UsageError("E8002", f"pipeline {self.name}", f"sender '{sender}' is being removed")
            if sender not in outboxes:
                raise UsageError("E8001", f"pipeline {self.name}", f"no sender '{sender}'")
        for sender, message in effects.sends:
            outbox = outboxes[sender]
            if outbox.stored:
                self._staged.setdefault(sender, []).append(message)
            else:
                outbox.enqueue(message)
        for entry in effects.state:
            self._keep(entry)
        self._dead.extend(effects.dead_letters)
        for run, position in reached:
            self.queue.advance(run, position)

    def _keep(self, entry: StateEntry) -> None:
        put(self._state, entry)
        self._changes[entry.owner, entry.key] = entry.value

    def leave_out(self, suspect: Suspect) -> str:
        """Do not process the next message, which is condemned: it becomes a dead letter; returns the reason."""
        run = self.queue.runs()[0]
        letter = dead_letter(suspect, run.messages[run.position], self._began)
        self.queue.advance(run, run.position + 1)
        self._dead.append(letter)
        return letter.reason

    def restore(self, cut: ContextCut, runs: Sequence[Run], engine_time: float) -> None:
        """Take up the queue of a checkpoint."""
        self._began = engine_time
        self.queue.restore(cut.entered, runs)

    def cut(self) -> ContextCut:
        """The queue at this moment."""
        entered, queue = self.queue.cut(_no_events)
        return ContextCut(self.name, entered, queue)

    def take_state(self) -> list[StateEntry]:
        """Keys that changed since the last cut."""
        changes, self._changes = self._changes, {}
        return [StateEntry(owner, key, value) for (owner, key), value in changes.items()]

    def staged_for(self, sender: str) -> int:
        """Reliable sends to a sender since the last cut; any thread."""
        return len(self._staged.get(sender, ()))

    def awaits_time(self) -> bool:
        """Never: windows and timers of pipelines go by event time."""
        return False

    def take_staged(self) -> dict[str, list[Message]]:
        """Reliable sends since the last cut."""
        staged, self._staged = self._staged, {}
        return staged

    def take_dead_letters(self) -> list[DeadLetter]:
        """What could not be processed since the last cut."""
        dead, self._dead = self._dead, []
        return dead


class ProcessorThread(Actor):
    """Hands batches to a processor. While it computes, nothing has happened yet: a cut may be taken at any time.

    Args:
        processor: what does the work.
        context: queue and state.
        routes: where sends go.
        engine_time: engine time.
        hold: says whether work must pause since a sender's queue is full.
        persistent: whether checkpoints take what it stages; without them dead letters are counted only.
    """

    daemon = True

    def __init__(
        self,
        processor: Processor,
        context: BatchContext,
        routes: Routes,
        engine_time: EngineTime,
        hold: Callable[[], bool],
        *,
        persistent: bool,
    ) -> None:
        super().__init__(f"pipeline-{context.name}")
        self.processor = processor
        self.context = context
        self.lock = threading.Lock()
        self.whole = True
        self.counters = PipelineCounters()
        self.concluded = False
        self.on_processed: Callable[[], None] = lambda: None
        self._log = get_logger(pipeline=context.name)
        self._persistent = persistent
        self._may_conclude = False
        self._suspects: Suspects | None = None
        self._restored = 0
        self._routes = routes
        self._engine_time = engine_time
        self._hold = hold

    @property
    def queue(self) -> InputQueue:
        """The input queue."""
        return self.context.queue

    @property
    def cuttable(self) -> Cuttable:
        """The context."""
        return self.context

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return not len(self.context.queue)

    def request_cut(self, *, requested: bool) -> None:
        """Nothing to do: effects are applied in one piece under the lock."""

    def conclude(self) -> None:
        """All input has ended: when the queue is empty, let the processor conclude."""
        self._may_conclude = True
        self.wake()

    def step(self) -> float | None:
        """Process one batch."""
        if self._hold():
            return FULL_WAIT_S
        most = self.processor.max_rows
        portion = self._restored_portion(most)
        with self.lock:
            places = portion.size if portion else sys.maxsize
            batch, reached = self.context.take(most, self.processor.max_bytes, places)
        if all(position == run.position for run, position in reached):
            self._conclude()
            return None
        point("app.batch")
        self._restored -= sum(position - run.position for run, position in reached)
        effects = self._process(batch, portion, reached) if batch else Effects()
        self._apply(effects, reached)
        self.counters.received += len(batch)
        self.on_processed()
        return 0

    def begin_restored(self, suspects: Suspects) -> None:
        """Note what is processed, as long as it is something that waits now; before the thread starts."""
        self._restored = self.queue.waiting
        self._suspects = suspects

    def _restored_portion(self, most: int) -> Portion | None:
        """The next portion of what waited at the start; `None` once that is processed."""
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

    def finish(self) -> None:
        """Close the processor."""
        self.processor.close()

    def _conclude(self) -> None:
        if self._may_conclude and not self.concluded:
            self._apply(self.processor.conclude(self.context, self._engine_time.now()), [])
            self.concluded = True
            self.on_processed()

    def _apply(self, effects: Effects, reached: list[tuple[Run, int]]) -> None:
        with self.lock:
            self.whole = False
            self.context.apply(effects, reached, self._routes)
            self.whole = True
            if not self._persistent:
                self.context.take_dead_letters()
        self.counters.sent += len(effects.sends)
        if effects.dead_letters:
            self.counters.dead_letters += len(effects.dead_letters)
            first = effects.dead_letters[0].reason
            self._log.error("rows became dead letters", count=len(effects.dead_letters), first=first)
        self._routes.woken()


def _no_events(event: Any) -> tuple[str, bytes]:
    raise AssertionError(f"a pipeline's queue holds an event from inside: {event}")
