"""How long the oldest message waits in a queue that keeps the order of arrival, computed from occasional readings."""

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

MOST_MARKS = 256


class Age:
    """The age of the oldest waiting message, computed from readings of two numbers. Owner: the caller; it has no lock.

    A reading shows only that a message has arrived since the previous reading, not when. So the age may be too small,
    by at most the time between two readings; it is never too large. If messages wait for very long, the object drops
    the marks that are closest in time. This makes the age smaller by about another hundredth.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        """Each mark has the number of the last message that had arrived, and the time of the reading that found it."""

    def look(self, now: float, left: int, come: int) -> float:
        """Return for how many seconds the oldest message that has arrived and has not left waits; 0.0 if none waits.

        Args:
            now: seconds of a clock that does not go back.
            left: number of the last message up to which all have left.
            come: number of the last message that has arrived. While other threads count, it may be a little too small.
        """
        marks = self._marks
        found = None
        while marks and marks[-1][0] > come:
            found = marks.pop()
        if found is not None:
            marks.append((come, found[1]))  # what waited before still waits, although the number was too large
        while marks and marks[0][0] <= left:
            marks.popleft()
        if come > (marks[-1][0] if marks else left):
            marks.append((come, now))
        if len(marks) > MOST_MARKS:
            times = [time for _, time in marks]
            del marks[min(range(1, MOST_MARKS), key=lambda at: times[at + 1] - times[at - 1])]
        return now - marks[0][1] if marks else 0.0


class Ages:
    """The ages of several kinds of messages, by name. Any thread may call `look`.

    Args:
        lock: the lock that a call of `look` holds.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._ages: dict[str, Age] = {}

    def look(self, now: float, numbers: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """Return `Age.look` for each name, and forget all other names.

        Args:
            now: seconds of a clock that does not go back.
            numbers: for each name the arguments `left` and `come`.
        """
        with self._lock:
            self._ages = {name: self._ages.get(name) or Age() for name in numbers}
            return {name: self._ages[name].look(now, *both) for name, both in numbers.items()}
