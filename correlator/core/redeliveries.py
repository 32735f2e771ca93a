"""Which messages a broker may redeliver to a receiver, and from when on it certainly redelivers none of them (trap
T42).
"""

from collections.abc import Callable

from correlator.connector import Features
from correlator.core.acknowledgements import Acknowledgements, Sure

MOST_IN_DOUBT = 100_000
"""With more messages (or more than ten batches) in doubt, a receiver waits until the broker has noticed the losses."""


class Redeliveries:
    """Counts the possible redeliveries of one receiver. Owner: the thread of this receiver; any thread may read
    `may_give_back`.

    Times are seconds of a clock that does not go back.

    Args:
        features: features of the connection.
        confirmed_batch: the last batch whose acknowledgement the broker certainly has.
        last_batch: the last batch that was received.
        in_doubt: largest number of messages in the batches between these two.
        max_batch_size: largest number of messages of a batch.
        beside: returns the largest number of messages that other receivers of the destination may return to the broker.
    """

    def __init__(
        self,
        features: Features,
        *,
        confirmed_batch: int,
        last_batch: int,
        in_doubt: int,
        max_batch_size: int,
        beside: Callable[[], int],
    ) -> None:
        self._acknowledgements = Acknowledgements(
            confirmed_batch,
            last_batch,
            answered=features.acknowledges_surely,
            written_within_s=features.acknowledgements_written_within_s,
        )
        self._max_batch_size = max_batch_size
        self._beside = beside
        self._notices_loss_within_s = features.notices_loss_within_s
        self._noticed_at = 0.0
        """The time by which the broker has noticed the loss of every earlier connection."""
        self._in_doubt = in_doubt
        self._left_in_doubt = 0
        """How many messages are in doubt because of lost connections of this life."""
        self.awaited: int | None = None
        """How many more messages must be acknowledged before nothing is in doubt; `None` while nothing is counted."""

    @property
    def sure(self) -> Sure:
        """The batches whose acknowledgements the broker certainly has."""
        return self._acknowledgements.sure

    @property
    def may_give_back(self) -> int:
        """The largest number of messages that the broker may redeliver because this receiver has or had them."""
        return self._in_doubt + self._max_batch_size

    def connected(self, now: float) -> None:
        """Note that there is a connection."""
        self._noticed_at = now + self._notices_loss_within_s

    def lost(self, under_way: int, last_batch: int) -> None:
        """Note that the connection is lost.

        Args:
            under_way: number of messages whose acknowledgement was under way, so that nobody knows whether the broker
                has it.
            last_batch: number of the last batch that was received.
        """
        in_doubt = under_way + self._acknowledgements.lose(last_batch)
        self._in_doubt += in_doubt
        self._left_in_doubt += in_doubt
        self.awaited = None

    def expect(self, now: float) -> None:
        """Begin to count down the possible redeliveries, if the broker has noticed every lost connection.

        Called before the first chunk of a batch. The broker redelivers the messages in doubt. Before them it may
        redeliver messages that other receivers of the destination have or had. Until the broker has noticed the loss,
        newer messages may precede all of these, and so may newer messages that are under way at that moment. A loss in
        an earlier life counts as a loss before the first connection of this life.
        """
        if not self._in_doubt or self.awaited is not None or now < self._noticed_at:
            return
        on_their_way = self._max_batch_size if self._notices_loss_within_s else 0
        self.awaited = self._in_doubt + on_their_way + self._beside()

    def acknowledged(self, batch: int, size: int, now: float) -> None:
        """Note that the receiver has acknowledged a batch with `size` messages.

        The broker delivers unacknowledged messages before new ones. So when the receiver has acknowledged as many
        messages as the broker may redeliver, none of them is in doubt any more.
        """
        if self.awaited is not None:
            self.awaited -= size
            if self.awaited <= 0:
                self.awaited = None
                self._in_doubt = self._left_in_doubt = 0
        self._acknowledgements.add(batch, size, now, settles=not self._in_doubt)

    def too_many(self, now: float) -> bool:
        """Whether so many messages are in doubt that the receiver must wait until the broker has noticed the losses."""
        return self._left_in_doubt > max(MOST_IN_DOUBT, 10 * self._max_batch_size) and now < self._noticed_at
