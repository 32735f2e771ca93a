"""Which acknowledgements a broker certainly has, so that it never delivers their messages again (trap T42).

If a broker does not confirm acknowledgements, an acknowledgement has certainly arrived once a later one has arrived. If
a broker writes acknowledgements to disk from time to time, it has certainly written one once it has received a later
one. So an acknowledgement is certain when two later ones have followed. If the broker needs some time to receive or to
write, each of the two must be later than the one before it by at least this time.
"""

from collections import deque
from typing import NamedTuple


class _Batch(NamedTuple):
    number: int
    size: int
    acknowledged_at: float
    settles: bool


class Sure(NamedTuple):
    """The batches of a receiver whose acknowledgement the broker certainly has.

    These are the batches up to `through`, and those after `doubtful_through` up to `beyond`.

    Attributes:
        through: number of the last batch up to which all are certain.
        doubtful_through: the last batch that a lost connection has left in doubt; `through` or less if there is none.
        beyond: the last certain batch after those in doubt.
    """

    through: int
    doubtful_through: int
    beyond: int


class Acknowledgements:
    """The acknowledgements of one receiver. Owner: the thread of this receiver.

    Args:
        sure_through: number of the last batch up to which the broker certainly has all acknowledgements.
        received_through: number of the last batch that was received; the batches between these two are in doubt.
        answered: whether the broker has an acknowledgement on disk when the call returns.
        written_within_s: `Features.acknowledgements_written_within_s`.
    """

    def __init__(self, sure_through: int, received_through: int, *, answered: bool, written_within_s: float) -> None:
        self.sure_through = sure_through
        self._doubtful_through = self._beyond = received_through
        self._answered = answered
        self._within_s = written_within_s
        self._unsure: deque[_Batch] = deque()
        self._under_way: deque[_Batch] = deque()
        """Uncertain batches whose acknowledgements the broker may not have received yet."""
        self._taken: _Batch | None = None
        """The last batch whose acknowledgement the broker has received, though perhaps not written."""

    @property
    def sure(self) -> Sure:
        """The batches whose acknowledgements are certain at present."""
        return Sure(self.sure_through, self._doubtful_through, self._beyond)

    def add(self, number: int, size: int, now: float, *, settles: bool) -> None:
        """Note that the receiver has acknowledged a batch.

        Args:
            number: number of the batch, larger than that of the batch before.
            size: number of messages of the batch.
            now: seconds of a clock that does not go back.
            settles: whether every message that an earlier connection left in doubt has been redelivered by now, or
                never will be. If not, the batch makes only itself certain: a redelivered message may be redelivered
                once more, until the acknowledgement of its repeat is certain.
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
        """Note that the connection is lost: all received batches that are not certain are in doubt.

        Args:
            received_through: number of the last batch that was received.

        Returns how many acknowledged messages are in doubt now; the caller counts them from now on.
        """
        self._doubtful_through = self._beyond = received_through
        unsure = sum(batch.size for batch in self._unsure)
        self._unsure.clear()
        self._under_way.clear()
        self._taken = None
        return unsure

    def _is_written(self, batch: _Batch, taken: _Batch) -> bool:
        """Whether `taken` came so much later that the broker has written this batch."""
        return batch.number < taken.number and batch.acknowledged_at <= taken.acknowledged_at - self._within_s

    def _believe(self, batch: _Batch) -> None:
        self._beyond = batch.number
        if batch.settles:
            self.sure_through = batch.number
