"""How long a batch may take on a cluster before the engine gives it up, since Spark waits for executors without end."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from correlator.runtime.clock import Clock, SystemClock

LEAST_S = 60.0
"""Seconds that each batch may take at least."""
TIMES = 3
REMEMBERED = 20
ENDS_WITHIN_S = 30.0
"""Seconds that the batch may take to end after its jobs were cancelled."""


class BatchDeadline:
    """Gives up a batch that takes much longer than the batches before. Used by the pipeline's thread.

    Args:
        clock: measures how long batches take.

    Attributes:
        passed: whether the last batch was given up.
        last_s: how long the last batch was allowed to take.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.passed = False
        self.last_s = 0.0
        self._clock = clock or SystemClock()
        self._taken: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """How long the next batch may take: three times as long as the slowest of the last 20, at least a minute."""
        return max(LEAST_S, TIMES * max(self._taken, default=0.0))

    @contextmanager
    def over(self, cancel: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
        """Give up the block when its time has passed; the block then raises an error.

        Args:
            cancel: lets the block end soon; called in another thread.
            kill: ends the block for certain; called in another thread if `cancel` has had no effect.
        """
        self.passed, self.last_s = False, self.seconds
        timers = [
            threading.Timer(self.last_s, self._pass, [cancel]),
            threading.Timer(self.last_s + ENDS_WITHIN_S, kill),
        ]
        began = self._clock.monotonic()
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
            self.passed = False
        finally:
            for timer in timers:
                timer.cancel()
            self._taken.append(self._clock.monotonic() - began)

    def forget_last(self) -> None:
        """Forget how long the last batch took: it waited for executors."""
        self._taken.pop()

    def _pass(self, cancel: Callable[[], None]) -> None:
        self.passed = True
        cancel()
