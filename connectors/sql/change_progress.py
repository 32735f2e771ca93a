"""How far a receiver has read and acknowledged the changes of a replication slot. This module does no I/O."""

from collections import deque
from collections.abc import Collection, Sequence

from connectors.sql.polled_dialects import Place
from connectors.sql.row_progress import RowProgress


class ChangeProgress:
    """The progress of one receiver since it connected. The receiver's thread owns it.

    The place of a change consists of the place of its transaction's commit in the log, and its number in the
    transaction. The server sends whole transactions, in the order of their commits, and keeps a transaction until the
    receiver has acknowledged all of it. So it sends a transaction that is acknowledged in part again, and this class
    skips the acknowledged changes.

    Args:
        flushed: the place in the log before which the receiver needs nothing.
        place: all changes up to this place are acknowledged; empty for none after `flushed`.
        done: places of further changes that are acknowledged.

    Attributes:
        flushed: the present value of the argument.
        received: the place in the log up to which the receiver has read.
        rows: the changes that were read.
    """

    def __init__(self, flushed: int, place: Place = (), done: Collection[Place] = ()) -> None:
        self.flushed = self.received = flushed
        self.rows = RowProgress(place, done)
        self._transaction: int | None = None
        self._index = 0
        self._ends: deque[tuple[Place, int]] = deque()
        """For each transaction that was read and is not acknowledged: the place of its last change, and its end."""

    @property
    def is_settled(self) -> bool:
        """Return whether everything that was read is acknowledged."""
        return self.rows.first is None and self._transaction is None

    def begin(self, lsn: int) -> None:
        """Begin a transaction whose commit has this place in the log."""
        self._transaction, self._index = lsn, 0

    def next(self) -> Place | None:
        """Count the next change of the transaction; return its place, or `None` if it was acknowledged earlier.

        Raises `ValueError` outside a transaction.
        """
        if self._transaction is None:
            raise ValueError("a change outside a transaction")
        self._index += 1
        place: Place = (self._transaction, self._index)
        if place <= self.rows.place or not self.rows.read([place])[0]:
            return None
        return place

    def end(self, lsn: int) -> None:
        """End the transaction; `lsn` is the place after its commit."""
        if self._transaction is None:
            raise ValueError("an end without a transaction")
        self._ends.append(((self._transaction, self._index), lsn))
        self._transaction = None
        self.received = max(self.received, lsn)
        self._advance()

    def told(self, lsn: int) -> None:
        """Note that the server has sent everything before this place. If no change waits, it need not keep it."""
        self.received = max(self.received, lsn)
        if self.is_settled:
            self.flushed = max(self.flushed, lsn)

    def acknowledge(self, tokens: Sequence[int]) -> Sequence[Place]:
        """Acknowledge changes; ignore unknown tokens. Return their places."""
        places = self.rows.acknowledge(tokens)
        self._advance()
        return places

    def _advance(self) -> None:
        first = self.rows.first
        while self._ends and (first is None or first > self._ends[0][0]):
            self.flushed = max(self.flushed, self._ends.popleft()[1])
