"""When a receiver or sender tries to connect again, and what it logs about outages."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from correlator.core.backoff import Backoff
from correlator.runtime.clock import Clock
from correlator.runtime.intervals import STABLE_S, LogIntervals


class ReconnectionPolicy(NamedTuple):
    """The times of the attempts to connect.

    Attributes:
        backoff: computes the time between two attempts.
        jitter: draws a number from 0 to 1 for each back-off.
        fail_fast: whether a failure of the first connection stops the engine.
    """

    backoff: Backoff
    jitter: Callable[[], float]
    fail_fast: bool = False


class Reconnection:
    """The outages of the connection of one receiver or sender. Owner: the thread of this receiver or sender.

    Attempts. The delay between two attempts grows with each failure. After a connection that has held for longer than
    the last delay, the delays begin anew. So if a broker comes back only for short times, the engine also tries less
    and less often.

    Log lines. The first failure is logged, then failures after intervals that double, then the end of the outage. The
    intervals begin anew after a connection that has held for `STABLE_S`. The log must not end with "connected again"
    while the broker is down. So after an outage of `STABLE_S` or more, the next loss is logged at once; after a shorter
    one, the next outage is logged when it has lasted `STABLE_S`.

    Args:
        policy: the times of the attempts to connect.
        clock: for delays and intervals, in monotonic seconds.
        log: logger of the receiver or sender.
    """

    def __init__(self, policy: ReconnectionPolicy, clock: Clock, log: Any) -> None:
        self._policy = policy
        self._clock = clock
        self._log = log
        self._fail_fast = policy.fail_fast
        self._connected_at: float | None = None
        self._down_since = 0.0
        self._attempts = 0
        self._retry_at = 0.0
        self._failures = 0
        self._delay = 0.0
        self._intervals = LogIntervals(policy.backoff.first)
        self._told = False
        self._longest_untold = math.inf

    def wait(self) -> float:
        """Seconds until the next attempt to connect; 0 or less if it is due."""
        return self._retry_at - self._clock.monotonic()

    def away(self) -> float:
        """Seconds since the connection was lost."""
        return self._clock.monotonic() - self._down_since

    def lost(self, error: Exception) -> float:
        """Note that the connection is lost, or that an attempt has failed; return the seconds until the next attempt.

        Raises the error if there was never a connection and the policy is to fail fast.
        """
        if self._fail_fast:
            raise error
        now = self._clock.monotonic()
        if self._connected_at is not None:
            self._note_held(now - self._connected_at)
        self._connected_at = None
        if not self._attempts:
            self._down_since = now
        self._attempts += 1
        self._failures += 1
        self._delay = self._policy.backoff.delay(self._failures, self._policy.jitter())
        self._retry_at = now + self._delay
        self._tell(error, now)
        return self._delay

    def back(self) -> None:
        """Note that there is a connection again."""
        self._fail_fast = False
        self._connected_at = self._clock.monotonic()
        attempts, self._attempts = self._attempts, 0
        if self._told:
            away = round(self._connected_at - self._down_since, 3)
            self._log.warning("connected again", away_s=away, attempts=attempts)
            self._longest_untold = 0.0 if away >= STABLE_S else STABLE_S
        self._told = False

    def _note_held(self, seconds: float) -> None:
        if seconds > self._delay:
            self._failures = 0
        if seconds >= STABLE_S:
            self._intervals.begin_anew()

    def _tell(self, error: Exception, now: float) -> None:
        if not self._intervals.due(now, self._down_since + self._longest_untold):
            return
        self._told, self._longest_untold = True, math.inf
        self._log.warning(
            "no connection; trying again",
            error=error,
            retry_s=round(self._delay, 3),
            attempts=self._attempts,
            away_s=round(self.away(), 3),
        )
