"""At which fault points simulated processes die."""

import random
from collections import Counter
from collections.abc import Sequence

from correlator.testing.schedule import KILL, Schedule


class Killed(BaseException):
    """The simulated process dies here. This is not an `Exception`, so that no handler of the engine catches it."""


class Kills:
    """Counts the fault points that a run passes, and decides at which of them its engines die.

    Args:
        schedule: decides which faults strike.
        longest_lives: numbers of fault points that a life may pass before it is killed; one is chosen for each life.
        order: the source of the random choices.

    Attributes:
        planned: whether lives end at a random fault point.
        passed: how often each fault point was passed while faults were on.
        at: kills by fault point.
    """

    def __init__(self, schedule: Schedule, longest_lives: Sequence[int], order: random.Random) -> None:
        self.planned = KILL in schedule.rates
        self.passed: Counter[str] = Counter()
        self.at: Counter[str] = Counter()
        self._schedule = schedule
        self._longest_lives = longest_lives
        self._order = order
        self._left = 0

    def plan(self) -> None:
        """Choose where the next life ends: some die during recovery, most while they work, a few after a long life."""
        longest = self._order.choice(self._longest_lives)
        self._left = self._order.randint(1, longest)

    def strikes(self, point: str) -> bool:
        """Count that an engine passes this point, and return whether it dies there."""
        if self._schedule.on:
            self.passed[point] += 1
        self._left -= 1
        if not self._schedule.kills(self._left == 0 and self.planned):
            return False
        self.at[point] += 1
        return True
