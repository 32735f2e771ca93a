"""Which transactions were committed: a child announces and confirms each; after its death the store decides.

Pure. There is one writer, so at most one announced transaction is open.
"""

from collections.abc import Sequence
from typing import NamedTuple

from correlator.core.commit import Write


class Intent(NamedTuple):
    """A transaction that was announced."""

    epoch: int
    number: int
    writes: Sequence[Write]


class Intents:
    """The transactions of one store, over all lives.

    Attributes:
        open: announced, and not yet known to be committed or not.
        last: number of the last one that is known to be committed.
    """

    def __init__(self) -> None:
        self.open: Intent | None = None
        self.last = 0

    def announced(self, intent: Intent) -> None:
        """A transaction is about to be committed. One that was announced before and not done was rolled back."""
        self.open = intent

    def done(self, number: int) -> Intent:
        """It is durable; raises `ValueError` when nobody announced it."""
        intent, self.open = self.open, None
        if intent is None or intent.number != number:
            raise ValueError(f"transaction {number} is said to be done, announced was {intent and intent.number}")
        self.last = number
        return intent

    def settled(self, epoch: int, number: int) -> Intent | None:
        """The writer is dead and the store says how far it got: the open intent, if it took place.

        Raises `ValueError` when the store is neither before nor after it.
        """
        intent, self.open = self.open, None
        if intent is not None and (epoch, number) == (intent.epoch, intent.number):
            self.last = number
            return intent
        if number != self.last:
            said = f"{self.last}" if intent is None else f"{self.last} and announced {intent.number}"
            raise ValueError(f"the store holds transaction {number} of epoch {epoch}, done were {said}")
        return None
