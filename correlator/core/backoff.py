"""How long to wait before the next try of something that failed. Pure: chance comes from outside."""

from typing import NamedTuple

_MOST_DOUBLINGS = 60


class Backoff(NamedTuple):
    """Exponential back-off with jitter.

    Attributes:
        first: seconds after the first failure, at most.
        longest: seconds after any failure, at most.
    """

    first: float
    longest: float

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures: the double of the last time, less up to half of it.

        Args:
            failures: in a row, 1 for the first.
            chance: from 0 (nothing is taken off) to 1 (half of it): those who failed together come back apart.
        """
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
        return whole * (1 - chance / 2)
