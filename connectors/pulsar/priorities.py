"""Priorities as in Starlight for JMS: a sender puts a message into a partition for its priority, and a receiver returns
the messages in its memory by priority. This module does no I/O, and chooses nothing at random.
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
    """Return a partition for this priority.

    Args:
        priority: of JMS; above 9 counts as 9.
        share: position among the partitions for this priority, from 0 to less than 1. Starlight chooses it at random.
        partitions: number of partitions of the topic.
        mapping: one of `MAPPINGS`. With up to three partitions both mean the same: low, default and high.
    """
    level = min(max(priority, 0), _HIGHEST)
    if partitions <= _FEW_PARTITIONS:
        return _third(level) * (partitions - 1) // 2
    begin, width = _tenth(level, partitions) if mapping == LINEAR else _quarters(level, partitions)
    return min(math.floor(begin + share * width), partitions - 1)


def _third(level: int) -> int:
    """Return 0 below the default, 1 for it, 2 above."""
    return (level >= _DEFAULT) + (level > _DEFAULT)


def _tenth(level: int, partitions: int) -> tuple[float, float]:
    width = partitions / (_HIGHEST + 1)
    return math.floor(width * level), width


def _quarters(level: int, partitions: int) -> tuple[float, float]:
    quarter = partitions / 4
    return ((0, quarter), (math.ceil(quarter), 2 * quarter), (math.ceil(3 * quarter), quarter))[_third(level)]


class PriorityBuffer(Generic[_T]):
    """Messages in the memory of a receiver that it has not returned yet.

    A message is ahead of all messages of a lower priority that arrived at most `most` messages before it for each step
    of priority. So at most nine times `most` messages overtake a message. Within a priority the order is that of
    arrival.

    Args:
        most: largest number of waiting messages.

    Attributes:
        size: number of bytes of all waiting messages.
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
        """Return how many more messages may wait."""
        return self._most - len(self._heap)

    def add(self, item: _T, priority: int, size: int) -> None:
        """Add a message, after earlier messages of the same priority."""
        self._arrived += 1
        place = self._arrived - min(max(priority, 0), _HIGHEST) * self._most
        heapq.heappush(self._heap, (place, self._arrived, size, item))
        self.size += size

    def take(self, most: int, most_bytes: int) -> Iterator[_T]:
        """Yield the first messages by priority, at most `most`; end with the message that reaches `most_bytes`."""
        taken_bytes = 0
        while self._heap and most > 0 and taken_bytes < most_bytes:
            *_, size, item = heapq.heappop(self._heap)
            self.size -= size
            most -= 1
            taken_bytes += size
            yield item
