"""The timers of a context, and the deadlines of its attempts, the earliest first.

Owner: the context's thread.
"""

import heapq

from correlator.core.instances import Deadline, Timer

SLACK = 100
"""This number of cancelled entries may always stay; if there are more, they are at most half of all entries."""


class Timers:
    """Timers and deadlines. A cancelled entry stays until it is due, or until most entries are cancelled."""

    def __init__(self) -> None:
        self._waiting: list[Timer | Deadline] = []
        self._cancelled = 0

    def add(self, timer: Timer | Deadline) -> None:
        """Add a timer or deadline."""
        heapq.heappush(self._waiting, timer)

    def cancel(self, timer: Timer | Deadline) -> None:
        """Keep a timer or deadline from firing; do nothing if it has fired already."""
        timer.cancelled = True
        self._cancelled += 1
        if self._cancelled > SLACK and self._cancelled * 2 > len(self._waiting):
            self._waiting = [one for one in self._waiting if not one.cancelled]
            self._cancelled = 0
            heapq.heapify(self._waiting)

    def next_due(self) -> float | None:
        """Engine time of the next timer or deadline; `None` without any."""
        while self._waiting and self._waiting[0].cancelled:
            heapq.heappop(self._waiting)
            self._cancelled -= 1
        return self._waiting[0].due if self._waiting else None

    def take_due(self, engine_time: float) -> list[Timer | Deadline]:
        """Remove and return the timers and deadlines that are due, the earliest first."""
        due: list[Timer | Deadline] = []
        while (first := self.next_due()) is not None and first <= engine_time:
            due.append(heapq.heappop(self._waiting))
        return due

    def living(self) -> list[Timer | Deadline]:
        """All timers and deadlines that are not cancelled."""
        return [one for one in self._waiting if not one.cancelled]
