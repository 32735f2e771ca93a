"""The contexts that a receiver delivers to: their queues, their limits, and the numbers of the messages they get."""

from collections.abc import Callable, Sequence
from typing import Any

from correlator.core.faults import point
from correlator.core.intake import Intake
from correlator.core.queue import InputQueue, Run
from correlator.events import FlowControlMarker
from correlator.settings import ReceiverSettings


class Targets:
    """The contexts that a receiver delivers to, and the limits that make it wait.

    Args:
        queues: for each context its name, its queue, and the call that wakes its thread.
        max_backlog: how many messages of the receiver may wait in one context before the receiver pauses; a batch that
            a pipeline has taken does not wait.
        full_outbox: returns the name of a sender whose outbox is full, `None` if none is.
        ended: called when the source has come to its end.

    Attributes:
        names: the names of the contexts.
        ended: see above; called in the thread of the receiver.
    """

    def __init__(
        self,
        queues: Sequence[tuple[str, InputQueue, Callable[[], None]]],
        max_backlog: int,
        full_outbox: Callable[[], str | None],
        ended: Callable[[], None],
    ) -> None:
        self._queues = queues
        self._max_backlog = max_backlog
        self._full_outbox = full_outbox
        self.ended = ended
        self.names = [name for name, _, _ in queues]

    def deliver(self, make_run: Callable[[], Run]) -> None:
        """Make a run for each queue, put it into the queue, and wake the thread of the context."""
        for _, queue, wake in self._queues:
            queue.deliver(make_run())
            wake()

    def back_pressure(self, receiver: str) -> str:
        """The full queue or outbox that the receiver must wait for: `queue:CONTEXT` or `outbox:SENDER`; "" for none."""
        for name, queue, _ in self._queues:
            if queue.untaken(receiver) >= self._max_backlog:
                return f"queue:{name}"
        full = self._full_outbox()
        return f"outbox:{full}" if full is not None else ""


class Delivery:
    """Numbers the messages of one receiver and delivers them. Owner: the thread of the receiver.

    Args:
        settings: settings of the receiver.
        intake: has the number of the next message.
        targets: the contexts that get the messages.
    """

    def __init__(self, settings: ReceiverSettings, intake: Intake, targets: Targets) -> None:
        self._settings = settings
        self._intake = intake
        self._targets = targets

    def deliver(self, messages: Sequence[Any], events: Sequence[Any]) -> None:
        """Give the next numbers to these messages, and put them into the queues with their events."""
        first = self._intake.number(len(messages))
        point("rx.enqueue")
        if messages:
            name, stored = self._settings.id, self._intake.mode.stored
            self._targets.deliver(lambda: Run(name, first, messages, events, stored=stored))
            self.mark()

    def mark(self) -> None:
        """Put a marker with the number of the last delivered message into the queues (rule A9.1)."""
        if self._settings.flow_control:
            self.notify(FlowControlMarker(receiver=self._settings.id, number=self._intake.next_number - 1))

    def notify(self, notice: Any) -> None:
        """Put a notice into the queues, which no checkpoint keeps."""
        self._targets.deliver(lambda: Run("", 0, (), (notice,), stored=False))
