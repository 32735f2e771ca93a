"""How long to wait before the next attempt after a failure. Pure: the caller draws the random numbers."""

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
        """Seconds to wait after a failure: twice as long as after the previous failure, minus a random part of up to
        half.

        Args:
            failures: how many failures there were in a row, at least 1.
            chance: a random number from 0 (nothing is subtracted) to 1 (half is subtracted), so that callers which
                failed at the same time do not try again at the same time.
        """
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
        return whole * (1 - chance / 2)
