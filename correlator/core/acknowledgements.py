"""Which acknowledgements a broker surely has, so that what was acknowledged never comes again (RELIABILITY 1.7).

A broker that does not answer to an acknowledgement has it when it has taken the next two as well. One that writes them
to disk from time to time needs more: of these two the first must be so much younger, too.
"""

from collections import deque
from typing import NamedTuple

FOLLOWED_BY = 2


class _Batch(NamedTuple):
    number: int
    size: int
    acknowledged_at: float
    settles: bool


class Acknowledgements:
    """Those of one receiver. Owned by its thread.

    Args:
        sure_through: number of the last batch that the broker surely knows to be done, and all before it.
        answered: whether the broker has an acknowledgement when the call returns.
        written_within_s: `Features.acknowledgements_written_within_s`.
    """

    def __init__(self, sure_through: int, *, answered: bool, written_within_s: float) -> None:
        self.sure_through = sure_through
        self._followed_by = 0 if answered else FOLLOWED_BY
        self._written_within_s = 0.0 if answered else written_within_s
        self._unsure: deque[_Batch] = deque()

    def add(self, number: int, size: int, now: float, *, settles: bool) -> None:
        """A batch was acknowledged.

        Args:
            number: of the batch; grows.
            size: its messages.
            now: seconds of a clock that does not go back.
            settles: whether all that an earlier connection had left in doubt has come again by now, or never will. An
                earlier one makes nothing sure: what came again may do so once more, until its repeat is surely done.
        """
        self._unsure.append(_Batch(number, size, now, settles))
        while len(self._unsure) > self._followed_by and self._is_written(self._unsure[0]):
            batch = self._unsure.popleft()
            if batch.settles:
                self.sure_through = batch.number

    def lose(self) -> int:
        """The connection was lost: how many messages are in doubt by that; no longer counted here."""
        unsure = sum(batch.size for batch in self._unsure)
        self._unsure.clear()
        return unsure

    def _is_written(self, batch: _Batch) -> bool:
        """Whether an acknowledgement that the broker has had for sure came late enough to be written with this one."""
        return (
            self._unsure[-max(1, self._followed_by)].acknowledged_at - batch.acknowledged_at >= self._written_within_s
        )
