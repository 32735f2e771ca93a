"""The input queue of a context: what entered, what waits, and how a checkpoint records it.

Received messages lie in the receive log already, so a checkpoint records them by reference (receiver, first, count) and
costs the same however long the queue is. Events that monitors sent to each other are recorded by value. What a
BEST_EFFORT or APP_CONTROLLED receiver delivered is not recorded: the one may be lost, the other comes again. Nor are
notices of this life, such as `SenderFlushed` (invariant F2).

Threads: any thread may `deliver`; all else is the context's, or the checkpointer's while the context is parked.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from correlator.core.commit import QueueRun
from correlator.events import Message


class Run:
    """A stretch of the queue: messages of one received batch, or one event from inside (`receiver == ""`).

    Attributes:
        receiver: who received it.
        first: number of its first message in the receiver's stream.
        messages: what the broker carried; empty for an event from inside.
        events: what they were mapped to, parallel; empty where only whole messages are asked for.
        stored: whether checkpoints record it: by reference to the receive log, or by value for an event from inside.
        position: index of the next one to handle.
    """

    __slots__ = ("events", "first", "messages", "position", "receiver", "recorded", "stored")

    def __init__(
        self,
        receiver: str,
        first: int,
        messages: Sequence[Message],
        events: Sequence[Any],
        *,
        stored: bool,
        recorded: tuple[str, bytes] | None = None,
    ) -> None:
        self.receiver = receiver
        self.first = first
        self.messages = messages
        self.events = events
        self.stored = stored
        self.recorded = recorded
        self.position = 0

    def __len__(self) -> int:
        return len(self.messages) or len(self.events)


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
        self._delivered: dict[str, int] = {}

    def deliver(self, run: Run) -> None:
        """Put a run behind all others. The runs of one receiver come from one thread, in the order of numbers."""
        if run.receiver:
            self._delivered[run.receiver] = run.first + len(run.messages) - 1
        self._inbox.append(run)

    def backlog(self, receiver: str) -> int:
        """Messages of a receiver that wait here: the measure for back-pressure, read by the receiver's thread."""
        return self._delivered.get(receiver, 0) - self._handled.get(receiver, 0)

    def __len__(self) -> int:
        """Runs that wait."""
        return len(self._inbox) + len(self._runs)

    @property
    def waiting(self) -> int:
        """Events that wait (an estimate while other threads deliver)."""
        return sum(len(run) - run.position for run in [*self._runs, *self._inbox])

    def head(self) -> Run | None:
        """The run to go on with; `None` when nothing waits."""
        if not self._runs and not self.enter():
            return None
        return self._runs[0]

    def enter(self) -> bool:
        """Take in what was delivered: from now on it is part of the next checkpoint. Says whether anything waits."""
        while self._inbox:
            run = self._inbox.popleft()
            self._runs.append(run)
            if self._on_entered is not None:
                self._on_entered(run)
            if run.stored and run.receiver:
                self._entered[run.receiver] = run.first + len(run.messages) - 1
        return bool(self._runs)

    def advance(self, run: Run, position: int) -> None:
        """The head run is handled up to `position`."""
        run.position = position
        if run.receiver:
            self._handled[run.receiver] = run.first + position - 1
        if position >= len(run):
            self._runs.popleft()
            self.finished += 1

    def runs(self) -> Sequence[Run]:
        """What waits and has entered, oldest first."""
        return self._runs

    def cut(self, encode: Callable[[Any], tuple[str, bytes]]) -> tuple[dict[str, int], list[QueueRun]]:
        """Record the queue: for each receiver the last number that entered, and what waits, in order."""
        self.enter()
        recorded: list[QueueRun] = []
        for run in self._runs:
            if run.stored and run.receiver:
                recorded.append(QueueRun(run.receiver, run.first + run.position, len(run.messages) - run.position))
            elif run.stored:
                recorded.append(QueueRun("", 0, 1, [run.recorded or encode(run.events[0])]))
        return dict(self._entered), recorded

    def needed_from(self) -> dict[str, int]:
        """For each receiver with stored messages waiting, the first number still needed."""
        needed: dict[str, int] = {}
        for run in self._runs:
            if run.stored and run.receiver:
                needed.setdefault(run.receiver, run.first + run.position)
        return needed

    def handled_through(self, receiver: str) -> int:
        """The last number of a receiver's stored messages that is handled: as `cut` records it."""
        return self.needed_from().get(receiver, self._entered.get(receiver, 0) + 1) - 1

    def restore(self, entered: dict[str, int], runs: Sequence[Run]) -> None:
        """Take up the queue as a checkpoint recorded it."""
        self._entered = dict(entered)
        self._delivered.update(entered)
        self._handled.update(entered)
        for run in runs:
            self._runs.append(run)
            if run.receiver:
                self._handled[run.receiver] = min(self._handled.get(run.receiver, 0), run.first - 1)

    def begin(self, receiver: str, after: int) -> None:
        """The first message of a receiver that enters has a number beyond `after`, unless more has entered already."""
        for numbers in (self._entered, self._handled, self._delivered):
            numbers[receiver] = max(numbers.get(receiver, after), after)

    def forget(self, receiver: str) -> None:
        """A receiver was removed: its numbers may begin anew."""
        for numbers in (self._entered, self._handled, self._delivered):
            numbers.pop(receiver, None)
        if self._on_forgotten is not None:
            self._on_forgotten(receiver)

    def withhold(self) -> list[Run]:
        """Take back what was delivered and has not entered."""
        withheld = list(self._inbox)
        self._inbox.clear()
        return withheld

    @property
    def entered(self) -> dict[str, int]:
        """For each receiver the last number that entered."""
        return self._entered
