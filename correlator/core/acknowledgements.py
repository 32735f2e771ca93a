"""Which acknowledgements a broker surely has, so that what was acknowledged never comes again (trap T42).

A broker that does not answer to an acknowledgement has it when it has taken a later one; one that writes them to disk
from time to time has written it when it has a later one. So two must follow. Where either takes a time, each must be so
much younger than the one before it.
"""

from collections import deque
from typing import NamedTuple


class _Batch(NamedTuple):
    number: int
    size: int
    acknowledged_at: float
    settles: bool


class Sure(NamedTuple):
    """Batches of a receiver that the broker surely knows to be done.

    Attributes:
        through: the last of those before which there is no other.
        doubtful_through: the last one that a lost line has left in doubt; `through` or less when there is none.
        beyond: the last one behind those in doubt.
    """

    through: int
    doubtful_through: int
    beyond: int


class Acknowledgements:
    """Those of one receiver. Owned by its thread.

    Args:
        sure_through: number of the last batch that the broker surely knows to be done, and all before it.
        received_through: number of the last batch; those in between are in doubt.
        answered: whether the broker has an acknowledgement when the call returns.
        written_within_s: `Features.acknowledgements_written_within_s`.
    """

    def __init__(self, sure_through: int, received_through: int, *, answered: bool, written_within_s: float) -> None:
        self.sure_through = sure_through
        self._doubtful_through = self._beyond = received_through
        self._answered = answered
        self._within_s = written_within_s
        self._unsure: deque[_Batch] = deque()
        self._under_way: deque[_Batch] = deque()
        """Those of them that the broker may not have taken yet."""
        self._taken: _Batch | None = None
        """The last one that it has."""

    @property
    def sure(self) -> Sure:
        """What is sure at present."""
        return Sure(self.sure_through, self._doubtful_through, self._beyond)

    def add(self, number: int, size: int, now: float, *, settles: bool) -> None:
        """A batch was acknowledged.

        Args:
            number: of the batch; grows.
            size: its messages.
            now: seconds of a clock that does not go back.
            settles: whether all that an earlier connection had left in doubt has come again by now, or never will. An
                earlier one makes nothing sure but itself: what came again may do so once more, until its repeat is
                surely done.
        """
        batch = _Batch(number, size, now, settles)
        if self._answered:
            self._believe(batch)
            return
        while self._under_way and self._under_way[0].acknowledged_at <= now - self._within_s:
            self._taken = self._under_way.popleft()
        self._under_way.append(batch)
        self._unsure.append(batch)
        while self._taken is not None and self._is_written(self._unsure[0], self._taken):
            self._believe(self._unsure.popleft())

    def lose(self, received_through: int) -> int:
        """The connection was lost, and all is in doubt that was received and is not sure.

        Args:
            received_through: number of the last batch.

        Returns how many acknowledged messages are in doubt by that; no longer counted here.
        """
        self._doubtful_through = self._beyond = received_through
        unsure = sum(batch.size for batch in self._unsure)
        self._unsure.clear()
        self._under_way.clear()
        self._taken = None
        return unsure

    def _is_written(self, batch: _Batch, taken: _Batch) -> bool:
        """Whether the broker has taken one that came late enough to be written with this one."""
        return batch.number < taken.number and batch.acknowledged_at <= taken.acknowledged_at - self._within_s

    def _believe(self, batch: _Batch) -> None:
        self._beyond = batch.number
        if batch.settles:
            self.sure_through = batch.number
