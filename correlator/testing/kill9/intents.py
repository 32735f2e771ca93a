"""Which transactions were committed: a child announces and confirms each one; after its death the store decides.

This module does no I/O. There is one writer, so at most one announced transaction is open.
"""

from collections.abc import Sequence
from typing import NamedTuple

from correlator.core.commit import Write


class AnnouncedTransaction(NamedTuple):
    """A transaction that a child has announced."""

    epoch: int
    number: int
    writes: Sequence[Write]


class Intents:
    """The transactions of one store, over all lives.

    Attributes:
        open: the announced transaction whose outcome is not known yet, or `None`.
        last: number of the last transaction that is known to be committed; 0 for none.
    """

    def __init__(self) -> None:
        self.open: AnnouncedTransaction | None = None
        self.last = 0

    def announced(self, intent: AnnouncedTransaction) -> None:
        """Note that a transaction is about to be committed. A transaction that was announced before and not done was
        rolled back.
        """
        self.open = intent

    def done(self, number: int) -> AnnouncedTransaction:
        """Note that the announced transaction is durable, and return it; raises `ValueError` when nobody announced
        it.
        """
        intent, self.open = self.open, None
        if intent is None or intent.number != number:
            announced = intent and intent.number
            raise ValueError(f"transaction {number} was reported as done, but {announced} was announced")
        self.last = number
        return intent

    def settled(self, epoch: int, number: int) -> AnnouncedTransaction | None:
        """Decide about the open intent with the store of a dead writer; return the intent if its transaction was
        committed.

        Raises `ValueError` when the last transaction in the store is neither the last known one nor the announced one.
        """
        intent, self.open = self.open, None
        if intent is not None and (epoch, number) == (intent.epoch, intent.number):
            self.last = number
            return intent
        if number != self.last:
            said = f"{self.last}" if intent is None else f"{self.last} and an announced {intent.number}"
            raise ValueError(f"the store holds transaction {number} of epoch {epoch}, but the child reported {said}")
        return None
