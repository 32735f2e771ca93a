"""The partitions that a consumer has been assigned, with the progress of each. Pure."""

from typing import NamedTuple

from connectors.progress import ReadProgress


class AssignedPartition:
    """A partition from its assignment to its revocation.

    The next assignment of the same partition is another object, so a token of this one then stands for nothing: the
    broker would accept the late acknowledgement of a consumer that has lost the partition to another one.

    Attributes:
        number: the number of the partition.
        progress: what was taken and acknowledged since the assignment.
    """

    __slots__ = ("number", "progress")

    def __init__(self, number: int, position: int) -> None:
        self.number = number
        self.progress = ReadProgress(position)

    def take(self, offset: int) -> int | None:
        """Hold the record at an offset; returns its token, `None` if it is not to be delivered (again)."""
        while True:
            start, until = self.progress.next()
            if offset < start:
                return None
            if until is None or offset < until:
                (token,) = self.progress.take([offset + 1])
                return token
            self.progress.acknowledge(self.progress.take([until]))  # what was given back is not in the topic any more


class Token(NamedTuple):
    """Stands for a message: its partition since the last assignment, and a token of its progress."""

    partition: AssignedPartition
    number: int
