"""What a context does at a time: timers and deadlines, the earliest first.

Owner: the context's thread.
"""

import heapq

from correlator.core.instances import Deadline, Timer

SLACK = 100
"""Cancelled entries that may lie about; beyond it, no more of them than of living ones."""


class Timers:
    """Timers and deadlines. A cancelled one stays until its turn, or until the cancelled are the majority."""

    def __init__(self) -> None:
        self._waiting: list[Timer | Deadline] = []
        self._cancelled = 0

    def add(self, timer: Timer | Deadline) -> None:
        """Add one."""
        heapq.heappush(self._waiting, timer)

    def cancel(self, timer: Timer | Deadline) -> None:
        """It will not fire; one that has fired already is no error."""
        timer.cancelled = True
        self._cancelled += 1
        if self._cancelled > SLACK and self._cancelled * 2 > len(self._waiting):
            self._waiting = [one for one in self._waiting if not one.cancelled]
            self._cancelled = 0
            heapq.heapify(self._waiting)

    def next_due(self) -> float | None:
        """The engine time of the next one."""
        while self._waiting and self._waiting[0].cancelled:
            heapq.heappop(self._waiting)
            self._cancelled -= 1
        return self._waiting[0].due if self._waiting else None

    def take_due(self, engine_time: float) -> list[Timer | Deadline]:
        """Take out what is due."""
        due: list[Timer | Deadline] = []
        while (first := self.next_due()) is not None and first <= engine_time:
            due.append(heapq.heappop(self._waiting))
        return due

    def living(self) -> list[Timer | Deadline]:
        """All that may fire."""
        return [one for one in self._waiting if not one.cancelled]
