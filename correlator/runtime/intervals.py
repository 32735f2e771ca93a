"""When the log reports a lasting outage: at once, then at intervals that double."""

import math

STABLE_S = 60.0
"""If something has worked for this many seconds, its next outage begins with short intervals again."""
LONGEST_SILENCE_S = 3600.0
"""Longest time in seconds between two log lines about the same outage."""


class LogIntervals:
    """The times of the log lines about one operation that may fail. Owner: the thread that uses it.

    Args:
        first: seconds between the first two lines.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self.begin_anew()

    def begin_anew(self) -> None:
        """Let the next failure be reported at once, and the first interval apply again."""
        self._interval = self._first
        self._due = -math.inf

    def due(self, now: float, at_latest: float = math.inf) -> bool:
        """Whether to report a failure at the time `now`. If so, the interval until the next line doubles.

        Args:
            now: seconds of a clock that is the same in each call.
            at_latest: time at which a failure is reported even if the interval has not passed.
        """
        if now < min(self._due, at_latest):
            return False
        self._due = now + self._interval
        self._interval = min(LONGEST_SILENCE_S, 2 * self._interval)
        return True
