"""When the log reports an outage that lasts: at once, then at intervals that double."""

import math

STABLE_S = 60.0
"""What has worked for so long begins with short intervals when it fails again."""
LONGEST_SILENCE_S = 3600.0
"""Longest time between two log lines about the same outage."""


class LogIntervals:
    """The times of the log lines about one thing that may fail. Owner: the thread that uses it.

    Args:
        first: seconds between the first two lines.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self.begin_anew()

    def begin_anew(self) -> None:
        """Report the next failure at once, and begin again with the first interval."""
        self._interval = self._first
        self._due = -math.inf

    def due(self, now: float, at_latest: float = math.inf) -> bool:
        """Whether a failure at `now` is to be reported; the interval to the next line is then twice as long.

        Args:
            now: seconds of a clock that is the same in each call.
            at_latest: time at which a failure is reported even if the interval has not passed.
        """
        if now < min(self._due, at_latest):
            return False
        self._due = now + self._interval
        self._interval = min(LONGEST_SILENCE_S, 2 * self._interval)
        return True
