"""Priorities with an effect, as Starlight for JMS gives them one: a sender puts a message into a partition of its
priority, and a receiver hands out what it has in memory by priority. Knows no broker and no client, and draws no lots.
"""

import heapq
import math
from collections.abc import Iterator
from typing import Generic, TypeVar

LINEAR, NON_LINEAR = "linear", "non-linear"
MAPPINGS = (LINEAR, NON_LINEAR)
_DEFAULT, _HIGHEST = 4, 9
_FEW_PARTITIONS = 3
_T = TypeVar("_T")


def partition_of(priority: int, share: float, partitions: int, mapping: str) -> int:
    """A partition of this priority.

    Args:
        priority: of JMS; what is above 9 counts as 9.
        share: which one of them, from 0 to less than 1. Starlight for JMS draws it by lot.
        partitions: how many the topic has.
        mapping: one of `MAPPINGS`. Of up to three partitions both are the same: low, default and high.
    """
    level = min(max(priority, 0), _HIGHEST)
    if partitions <= _FEW_PARTITIONS:
        return _third(level) * (partitions - 1) // 2
    begin, width = _tenth(level, partitions) if mapping == LINEAR else _quarters(level, partitions)
    return min(math.floor(begin + share * width), partitions - 1)


def _third(level: int) -> int:
    """0 below the default, 1 for it, 2 above."""
    return (level >= _DEFAULT) + (level > _DEFAULT)


def _tenth(level: int, partitions: int) -> tuple[float, float]:
    width = partitions / (_HIGHEST + 1)
    return math.floor(width * level), width


def _quarters(level: int, partitions: int) -> tuple[float, float]:
    quarter = partitions / 4
    return ((0, quarter), (math.ceil(quarter), 2 * quarter), (math.ceil(3 * quarter), quarter))[_third(level)]


class PriorityBuffer(Generic[_T]):
    """What a receiver has in memory and has not handed out.

    A step of priority is worth as many places as may wait: among so many in a row the higher goes first, of one
    priority the earlier one; and nothing is overtaken by more than nine times as many.

    Args:
        most: how many may wait.

    Attributes:
        size: of all that wait, in bytes.
    """

    def __init__(self, most: int) -> None:
        self.size = 0
        self._most = most
        self._arrived = 0
        self._heap: list[tuple[int, int, int, _T]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def room(self) -> int:
        """For how many more there is place."""
        return self._most - len(self._heap)

    def add(self, item: _T, priority: int, size: int) -> None:
        """One more, behind those that came before."""
        self._arrived += 1
        place = self._arrived - min(max(priority, 0), _HIGHEST) * self._most
        heapq.heappush(self._heap, (place, self._arrived, size, item))
        self.size += size

    def take(self, most: int, most_bytes: int) -> Iterator[_T]:
        """The foremost, at most so many; the last of them may be the one that makes the bytes too many."""
        taken_bytes = 0
        while self._heap and most > 0 and taken_bytes < most_bytes:
            *_, size, item = heapq.heappop(self._heap)
            self.size -= size
            most -= 1
            taken_bytes += size
            yield item
