"""Time as the engine sees it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic seconds; tests bring one that they move by hand."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment, never going back."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch; for display, for `at` and for the end of messages, never for another decision."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def monotonic(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()


class EngineTime:
    """Seconds of engine time: persisted, grows while the engine runs, stands while it is down (trap T22).

    Args:
        clock: what makes it grow.
        start: engine time of the last checkpoint.
    """

    def __init__(self, clock: Clock, start: float = 0.0) -> None:
        self._clock = clock
        self._offset = start - clock.monotonic()

    def catch_up(self, seconds: float) -> None:
        """Go on from there if it is later: what is stored with a time of receipt lies never in the future."""
        self._offset += max(0.0, seconds - self.now())

    def now(self) -> float:
        """Seconds of engine time."""
        return self._clock.monotonic() + self._offset

    def calendar(self) -> float:
        """Seconds of the local calendar, as if it were UTC: what `at` goes by. They jump when the clock is set."""
        wall = self._clock.wall()
        return wall + time.localtime(wall).tm_gmtoff
