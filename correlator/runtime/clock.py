"""Clocks: monotonic time, the time of day, and engine time."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock of the engine; tests use a clock that they move by hand."""

    def monotonic(self) -> float:
        """Seconds since a fixed moment; they never go back."""
        ...

    def wall(self) -> float:
        """The time of day in seconds since the epoch; it can jump.

        Only for display, for `at` and for the expiry of messages.
        """
        ...


class SystemClock:
    """The clocks of the machine."""

    def monotonic(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """The time of day in seconds since the epoch (UTC); an administrator may set it back."""
        return time.time()


class EngineTime:
    """Engine time in seconds. It is part of checkpoints, and stands still while the engine is down (trap T22).

    Args:
        clock: engine time advances with its monotonic seconds.
        start: engine time of the last checkpoint.
    """

    def __init__(self, clock: Clock, start: float = 0.0) -> None:
        self._clock = clock
        self._offset = start - clock.monotonic()

    def catch_up(self, seconds: float) -> None:
        """Advance to `seconds` if that is later: no stored time of receipt may lie in the future."""
        self._offset += max(0.0, seconds - self.now())

    def now(self) -> float:
        """Engine time in seconds; it never goes back. Any thread may call it."""
        return self._clock.monotonic() + self._offset

    def calendar(self) -> float:
        """Local time in seconds since the epoch, as if it were UTC; `at` uses it. It jumps when the clock is set."""
        wall = self._clock.wall()
        return wall + time.localtime(wall).tm_gmtoff
