"""The checkpoint cycle: stop all contexts between two events, take the cut, let them go on, commit, release."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from correlator.core.checkpoint import Checkpoint, Cut, Cuttable
from correlator.core.commit import Suspect
from correlator.core.faults import point
from correlator.core.routes import Routes
from correlator.runtime.actor import Actor
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.latency import Runs, StagingTimes, numbered
from correlator.runtime.recording import Recording
from correlator.runtime.requests import CheckpointRequest
from correlator.runtime.status import CheckpointCounters, TakenCheckpoint
from correlator.runtime.writer import Writer

FAILED_HANDLER_WAIT_S = 0.05
"""Seconds until the next attempt to take a cut, after a handler has failed halfway: the engine is about to stop."""
RESTING_SHARE = 0.1
"""The share of the interval after which a checkpoint is due if sends wait for it and no context has anything to do."""
MOST_OF_THE_TIME = 0.2
"""The largest share of the time that such early checkpoints take."""
MOST_TAKEN = 100
"""Number of the last checkpoints that the checkpointer remembers."""
CUT_PATIENCE_S = 1.0
"""Seconds that one attempt waits for a handler to return before it counts as a retry (rule A2.10)."""


class Parkable(Protocol):
    """The thread of a context, as the checkpointer uses it."""

    lock: threading.Lock
    whole: bool
    """Whether no handler has failed halfway; read under the lock. Once it is `False` it stays `False`: the engine is
    stopping."""

    staging_times: StagingTimes
    """Read under the lock."""

    @property
    def context(self) -> Cuttable:
        """The context that this thread owns; the checkpointer uses it only while it holds `lock`."""
        ...

    def request_cut(self, *, requested: bool) -> None:
        """Ask the context to stop before its next event (`True`), or let it go on (`False`)."""
        ...


class Checkpointer(Actor):
    """Takes checkpoints.

    Args:
        checkpoint: makes the cuts; this thread owns it from now on.
        contexts: the threads to stop; none is added later.
        routes: has the outboxes of all senders.
        receiver_routes: returns, for each receiver with stored messages, the contexts to which it delivers.
        writer: commits the cuts.
        interval: the longest time in seconds from the end of one checkpoint to the beginning of the next.
        clock: for the interval, in monotonic seconds.
        engine_time: the engine time that a checkpoint stores.
        staged: called for each cut and each sender to which it has sends, before these may leave: with the id of the
            sender, the number of the first send and the runs of the sends.
        released: called with each cut after its sends are released.
        recording: gets each cut; `None` without an input log.

    Attributes:
        counters: counts the checkpoints.
        taken: the last checkpoints, the newest last. Any thread may copy it.
        absolved: condemned messages whose dead letters the contexts hold. Whoever appends one holds the lock of its
            context.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        contexts: Sequence[Parkable],
        routes: Routes,
        receiver_routes: Callable[[], Mapping[str, Sequence[str]]],
        writer: Writer,
        *,
        interval: float,
        clock: Clock,
        engine_time: EngineTime,
        staged: Callable[[str, int, Runs], None],
        released: Callable[[Cut], None],
        recording: Recording | None = None,
    ) -> None:
        super().__init__("checkpointer")
        self.counters = CheckpointCounters(interval_s=interval)
        self.taken: deque[TakenCheckpoint] = deque(maxlen=MOST_TAKEN)
        self.checkpoint = checkpoint
        self.absolved: deque[Suspect] = deque()
        self._absolving = 0
        self._contexts = contexts
        self._routes = routes
        self._receiver_routes = receiver_routes
        self._writer = writer
        self._interval = interval
        self._clock = clock
        self._engine_time = engine_time
        self._staged = staged
        self._released = released
        self._recording = recording
        self._due = clock.monotonic() + interval
        self._due_at_rest = self._due
        self._resting = False
        self._pending: Cut | None = None
        self._course = _Course("", 0.0)
        self._orders = _Orders()

    @property
    def busy(self) -> bool:
        """Whether a cut was taken and its sends are not released yet."""
        return self._pending is not None

    def ask(self, *, forced: bool = False) -> int:
        """Order a checkpoint as soon as possible; return the number of the order, for `answered`. Any thread may call
        it.

        Args:
            forced: take the checkpoint even if only engine time has changed, as for the last checkpoint of a life.
        """
        number = self._orders.place(forced=forced)
        self.wake()
        return number

    def ask_once(self) -> None:
        """Order a checkpoint as soon as possible, unless one is ordered already. Any thread may call it."""
        if self._orders.done:
            self.ask()

    def note_rest(self) -> None:
        """Note that a context has nothing to do, while its sends wait for a checkpoint. Any thread may call it."""
        self._resting = True
        self.wake()

    def answered(self, number: int) -> bool:
        """Whether the checkpoint of the order with this number, and of all earlier orders, is durable and released."""
        return self._orders.answered >= number

    def wait_answered(self, number: int, timeout: float) -> bool:
        """Wait until `answered`, at most `timeout` seconds, or until this thread is stopped; return `answered`."""
        self._orders.wait(lambda: self.answered(number) or self.stopping, timeout)
        return self.answered(number)

    def stop(self) -> None:
        """End after the current step, and wake the threads that wait for an answer."""
        super().stop()
        self._orders.notify()

    def step(self) -> float | None:
        """Begin a checkpoint that is due, or release one that is committed."""
        if self._pending is not None:
            if self._course.committed is None:
                return None
            self._release(self._pending)
            return 0
        now = self._clock.monotonic()
        due = self._due_at_rest if self._at_rest else self._due
        if self._orders.done and now < due:
            return due - now
        self._course = _Course(self._cause(now), now)
        if not self._take_cut():
            return FAILED_HANDLER_WAIT_S
        self._course.cut = self._clock.monotonic()
        if self._pending is None:
            self._conclude()
            return 0
        if self._recording is not None:
            self._recording.flush()  # without this, a killed process could leave a checkpoint whose cut the log lacks
        self._writer.submit(CheckpointRequest(self._pending), self._commit_done)
        return None

    def _commit_done(self, _: None) -> None:
        """Note that the cut is durable; called in the writer's thread."""
        self._course.committed = self._clock.monotonic()
        self.wake()

    def _cause(self, now: float) -> str:
        """Why the checkpoint is taken that begins now."""
        if not self._orders.done:
            return "order"
        return "interval" if now >= self._due else "rest"

    @property
    def _at_rest(self) -> bool:
        """Whether sends wait for a checkpoint, and no context has anything else to do."""
        return self._resting and not any(len(one.context.queue) for one in self._contexts)

    @property
    def _whole(self) -> bool:
        """Whether no handler has failed halfway; read under the locks of all contexts."""
        return all(context.whole for context in self._contexts)

    def _take_cut(self) -> bool:
        """Stop all contexts and take a cut; if nothing has changed, no cut is pending afterwards. Return whether it was
        possible.

        It is impossible after a handler has failed, or if the engine stops while a handler does not return.
        """
        point("ck.trigger")
        self._orders.take()
        self._resting = False
        for context in self._contexts:
            context.request_cut(requested=True)
        held: list[threading.Lock] = []
        try:
            for context in self._contexts:
                while not context.lock.acquire(timeout=CUT_PATIENCE_S):
                    self.counters.cut_retries += 1
                    if self.stopping:
                        return False
                held.append(context.lock)
            if not self._whole:
                return False
            point("ck.snapshot")
            self._absolving = len(self.absolved)
            self._pending = self._cut(self._engine_time.now())
            if self._pending is not None and self._recording is not None:
                self._recording.cut(self._pending)
            return True
        finally:
            for context in self._contexts:
                context.request_cut(requested=False)
            for lock in held:
                lock.release()

    def _cut(self, now: float) -> Cut | None:
        runs = [one.staging_times.take(now, one.context.staging.sends) for one in self._contexts]
        cut = self.checkpoint.cut(
            [thread.context for thread in self._contexts],
            list(self._routes.outboxes.values()),
            self._receiver_routes(),
            now,
            forced=self._orders.forced,
            absolved=list(self.absolved),
        )
        for sender, first, staged in numbered(runs, cut.commit.outbound if cut is not None else ()):
            self._staged(sender, first, staged)
        return cut

    def _release(self, cut: Cut) -> None:
        point("ck.release.before")
        cut.release()
        point("ck.release.after")
        self._pending = None
        for _ in range(self._absolving):
            self.absolved.popleft()
        taken = self._course.taken(cut, self._clock.monotonic(), self._clock.wall())
        self.counters.note(taken.duration_s)
        self.taken.append(taken)
        self._conclude()
        self._released(cut)

    def _conclude(self) -> None:
        now = self._clock.monotonic()
        self._due = now + self._interval
        pause = max(RESTING_SHARE * self._interval, (now - self._course.began) * (1 / MOST_OF_THE_TIME - 1))
        self._due_at_rest = min(self._due, now + pause)
        self._orders.answer()


@dataclass(slots=True)
class _Course:
    """The course of a checkpoint: its cause, and the monotonic times at which its parts ended."""

    cause: str
    began: float
    cut: float = 0.0
    committed: float | None = None

    def taken(self, cut: Cut, released: float, wall: float) -> TakenCheckpoint:
        """Describe the checkpoint, whose sends were released just now."""
        assert self.committed is not None
        return TakenCheckpoint(
            number=cut.commit.number,
            time=wall,
            cause=self.cause,
            duration_s=released - self.began,
            cut_s=self.cut - self.began,
            commit_s=self.committed - self.cut,
            release_s=released - self.committed,
            changes=len(cut.changes),
            sends=sum(len(segment.messages) for segment in cut.commit.outbound),
            dead_letters=len(cut.commit.dead_letters),
        )


class _Orders:
    """The orders of checkpoints, by number.

    Any thread places orders and waits for answers. When the checkpointer begins a checkpoint, it takes all orders that
    were placed so far, and answers them together.
    """

    def __init__(self) -> None:
        self.placed = 0
        self.answered = 0
        self.forced = False
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def done(self) -> bool:
        """Whether all orders are answered."""
        return self.placed == self.answered

    def place(self, *, forced: bool) -> int:
        """Place an order and return its number.

        After the first forced order, every checkpoint is taken even if only engine time has changed.
        """
        with self._changed:
            self.forced = self.forced or forced
            self.placed += 1
            return self.placed

    def take(self) -> None:
        """Let the checkpoint that begins now be the answer to all orders so far."""
        self._taken = self.placed

    def answer(self) -> None:
        """Answer the orders of the last `take`: their checkpoint is durable and released, or there was nothing to
        store.
        """
        with self._changed:
            self.answered = self._taken
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool], timeout: float) -> None:
        """Wait at most `timeout` seconds until `until` returns true; call it again after each answer and each
        `notify`.
        """
        with self._changed:
            self._changed.wait_for(until, timeout)

    def notify(self) -> None:
        """Let the waiting threads check their conditions again."""
        with self._changed:
            self._changed.notify_all()
