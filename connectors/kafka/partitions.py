"""The partitions that are assigned to a consumer, with the progress of each. This module does no I/O."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence

from connectors.progress import ReadProgress

Place = tuple[str, int]
"""A topic and the number of a partition of it."""


_next_epoch = itertools.count(1)


class AssignedPartition:
    """A partition from its assignment to its revocation.

    The next assignment of the same partition is another object with another epoch, so a token of this one is then
    invalid. Otherwise the broker would accept the late acknowledgement of a consumer that has lost the partition to
    another.

    Attributes:
        epoch: number that no other assignment in this process has.
        place: the topic and the number of the partition.
        progress: what was taken and acknowledged since the assignment.
    """

    __slots__ = ("epoch", "place", "progress")

    def __init__(self, place: Place, position: int) -> None:
        self.epoch = next(_next_epoch)
        self.place = place
        self.progress = ReadProgress(position)

    def take(self, offsets: Sequence[int]) -> list[int]:
        """Hold the records at these ascending offsets.

        Return their tokens in the same order; 0 for a record that is not to be delivered (again).
        """
        tokens: list[int] = []
        while (at := len(tokens)) < len(offsets):
            start, until = self.progress.next()
            if offsets[at] < start:
                tokens.append(0)
                continue
            end = len(offsets) if until is None else bisect_left(offsets, until)
            if end > at:
                tokens += self.progress.take([offset + 1 for offset in offsets[at:end]])
            else:  # the topic no longer contains what was given back
                assert until is not None
                self.progress.acknowledge(self.progress.take([until]))
        return tokens


Token = tuple[int, int]
"""Identifies a message: the epoch of the assignment, and a token of its progress.

The garbage collector does not track tuples of numbers.
"""
