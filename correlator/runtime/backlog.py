"""Asks the source of a receiver what its destination still holds."""

from correlator.connector import Source, TellsBacklog
from correlator.core.intake import ReceiverCounters
from correlator.runtime.clock import Clock

BACKLOG_INTERVAL_S = 1.0
"""Seconds between two questions to a source what its destination still holds."""


class BacklogLook:
    """Keeps the backlog among the counters of a receiver up to date. Owner: the thread of the receiver.

    Args:
        source: the source; one that cannot tell is never asked.
        counters: get the backlog.
        clock: monotonic seconds.

    Attributes:
        interval: seconds between two questions; `None` if the source cannot tell.
    """

    def __init__(self, source: Source, counters: ReceiverCounters, clock: Clock) -> None:
        self._ask = source.backlog if isinstance(source, TellsBacklog) else None
        self._counters = counters
        self._clock = clock
        self._next = 0.0
        self.interval = BACKLOG_INTERVAL_S if self._ask is not None else None

    def look(self) -> None:
        """Ask the source if that is due. Raises `ConnectionLost`."""
        if self._ask is not None and self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + BACKLOG_INTERVAL_S
            self._counters.backlog = self._ask()

    def end(self) -> None:
        """Note that the source has come to its end, so that nothing is left to tell."""
        self._counters.backlog = None
