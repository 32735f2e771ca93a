"""The input queue of a context: runs of events that wait, and how a checkpoint records them.

A checkpoint records received messages by reference (receiver, first number, count), since they are in the receive log
already; so its cost does not depend on the number of messages. It records events that monitors sent to one another by
value. It does not record messages of BEST_EFFORT receivers, which may be lost, messages of APP_CONTROLLED receivers,
which the broker redelivers, and notices of this life, such as `SenderFlushed` (invariant F2).

Threads: any thread may call `deliver` and `len` and read `finished` and `numbers`; the receiver's thread calls
`backlog` and `untaken`. All other methods are for the context's thread, and for the checkpointer while it holds the
context's lock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from correlator.core.commit import QueueRun
from correlator.core.tracecontext import TraceContext, carry_context
from correlator.events import Message


class Run:
    """A part of the queue: the messages of one received batch, or one event from inside the engine.

    Attributes:
        receiver: id of the receiver; `""` for an event from inside the engine.
        first: number of the first message.
        messages: the messages as the broker has delivered them; empty for an event from inside.
        events: the events of the messages, at the same positions, `None` for a message that could not be mapped; empty
            for a pipeline that needs whole messages only.
        stored: whether checkpoints record the run: by reference to the receive log, or an event from inside by value.
        recorded: type name and bytes of an event from inside, if it was encoded when it was sent.
        trace: trace context of an event from inside; a received message carries its own trace context.
        position: index of the next event to handle.
    """

    __slots__ = ("_has_context", "events", "first", "messages", "position", "receiver", "recorded", "stored", "trace")

    def __init__(
        self,
        receiver: str,
        first: int,
        messages: Sequence[Message],
        events: Sequence[Any],
        *,
        stored: bool,
        recorded: tuple[str, bytes] | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        self.receiver = receiver
        self.first = first
        self.messages = messages
        self.events = events
        self.stored = stored
        self.recorded = recorded
        self.trace = trace
        self.position = 0
        self._has_context: bool | None = None

    def __len__(self) -> int:
        return len(self.messages) or len(self.events)

    @property
    def has_context(self) -> bool:
        """Whether any of its events may have a trace context."""
        if self._has_context is None:
            self._has_context = self.trace is not None or carry_context(self.messages)
        return self._has_context


class InputQueue:
    """The queue of one context.

    Args:
        on_entered: called with each run that enters, in the thread that calls `enter`.
        on_forgotten: called with each receiver that is forgotten.

    Attributes:
        finished: how many runs have been handled.
    """

    def __init__(
        self,
        on_entered: Callable[[Run], None] | None = None,
        on_forgotten: Callable[[str], None] | None = None,
    ) -> None:
        self.finished = 0
        self._on_entered = on_entered
        self._on_forgotten = on_forgotten
        self._inbox: deque[Run] = deque()
        self._runs: deque[Run] = deque()
        self._entered: dict[str, int] = {}
        self._handled: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._delivered: dict[str, int] = {}

    def deliver(self, run: Run) -> None:
        """Append a run. One thread delivers the runs of a receiver, in the order of their numbers."""
        if run.receiver:
            self._delivered[run.receiver] = run.first + len(run.messages) - 1
        self._inbox.append(run)

    def backlog(self, receiver: str) -> int:
        """Return how many messages of a receiver are not handled."""
        return self._delivered.get(receiver, 0) - self._handled.get(receiver, 0)

    def untaken(self, receiver: str) -> int:
        """Return how many messages of a receiver are neither handled nor with a processor. Back-pressure depends on
        this number.
        """
        begun = max(self._handled.get(receiver, 0), self._taken.get(receiver, 0))
        return self._delivered.get(receiver, 0) - begun

    def __len__(self) -> int:
        """How many runs wait."""
        return len(self._inbox) + len(self._runs)

    @property
    def numbers(self) -> tuple[int, int]:
        """How many runs were handled, and how many have arrived; an estimate while other threads deliver."""
        come = len(self) + self.finished
        return self.finished, come

    @property
    def waiting(self) -> int:
        """How many events wait; an estimate while other threads deliver."""
        return sum(len(run) - run.position for run in [*self._runs, *self._inbox])

    def head(self) -> Run | None:
        """The first run that is not handled completely; `None` if no run waits."""
        if not self._runs and not self.enter():
            return None
        return self._runs[0]

    def enter(self) -> bool:
        """Take in the delivered runs, so that the next cut records them; returns whether any run waits."""
        while self._inbox:
            run = self._inbox.popleft()
            self._runs.append(run)
            if self._on_entered is not None:
                self._on_entered(run)
            if run.stored and run.receiver:
                self._entered[run.receiver] = run.first + len(run.messages) - 1
        return bool(self._runs)

    def advance(self, run: Run, position: int) -> None:
        """Note that the first run, which is `run`, is handled up to `position` (exclusive)."""
        run.position = position
        if run.receiver:
            self._handled[run.receiver] = run.first + position - 1
        if position >= len(run):
            self._runs.popleft()
            self.finished += 1

    def take(self, run: Run, position: int) -> None:
        """Note that a processor works on the messages of a run before a position, so that the receiver may deliver
        further messages.
        """
        if run.receiver and position > run.position:
            self._taken[run.receiver] = run.first + position - 1

    def runs(self) -> Sequence[Run]:
        """The runs that have entered and are not handled, oldest first."""
        return self._runs

    def cut(self, encode: Callable[[Any], tuple[str, bytes]]) -> tuple[dict[str, int], list[QueueRun]]:
        """Record the queue: for each receiver the last number that entered, and the waiting runs in order.

        `encode` returns type name and bytes of an event from inside that was not encoded when it was sent.
        """
        self.enter()
        recorded: list[QueueRun] = []
        for run in self._runs:
            if run.stored and run.receiver:
                recorded.append(QueueRun(run.receiver, run.first + run.position, len(run.messages) - run.position))
            elif run.stored:
                recorded.append(QueueRun("", 0, 1, [run.recorded or encode(run.events[0])], run.trace))
        return dict(self._entered), recorded

    def needed_from(self) -> dict[str, int]:
        """Return, for each receiver with stored messages that wait here, the number of the first of these messages."""
        needed: dict[str, int] = {}
        for run in self._runs:
            if run.stored and run.receiver:
                needed.setdefault(run.receiver, run.first + run.position)
        return needed

    def handled_through(self, receiver: str) -> int:
        """Return the last number up to which all stored messages of a receiver are handled, as `cut` records it."""
        return self.needed_from().get(receiver, self._entered.get(receiver, 0) + 1) - 1

    def restore(self, entered: dict[str, int], runs: Sequence[Run]) -> None:
        """Take the queue of a checkpoint: the last numbers that had entered, and the waiting runs. A start calls it."""
        self._entered = dict(entered)
        self._delivered.update(entered)
        self._handled.update(entered)
        for run in runs:
            self._runs.append(run)
            if run.receiver:
                self._handled[run.receiver] = min(self._handled.get(run.receiver, 0), run.first - 1)

    def begin(self, receiver: str, after: int) -> None:
        """Let the messages of a receiver begin after number `after`, unless later messages have entered already."""
        for numbers in (self._entered, self._handled, self._delivered):
            numbers[receiver] = max(numbers.get(receiver, after), after)

    def forget(self, receiver: str) -> None:
        """Forget the numbers of a removed receiver: a new receiver with its id may begin with any number."""
        for numbers in (self._entered, self._handled, self._taken, self._delivered):
            numbers.pop(receiver, None)
        if self._on_forgotten is not None:
            self._on_forgotten(receiver)

    def withhold(self) -> list[Run]:
        """Remove and return the runs that were delivered and have not entered the queue."""
        withheld = list(self._inbox)
        self._inbox.clear()
        return withheld

    @property
    def entered(self) -> dict[str, int]:
        """The last number of each receiver that has entered the queue."""
        return self._entered
