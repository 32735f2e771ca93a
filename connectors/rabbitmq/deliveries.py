"""Deliveries of a channel: passes them to the receiver's thread, and tracks their acknowledgement."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from connectors.rabbitmq.frames import RabbitDelivery


class Settlement(NamedTuple):
    """One `basic.ack` or `basic.nack`: for the message of this tag, or for all unsettled messages up to it."""

    tag: int
    multiple: bool


class UnsettledTags:
    """The unsettled delivery tags of one channel: a cumulative frame must never settle more than the given messages.

    The deliveries of a channel have the tags 1, 2, 3 and so on. Each channel numbers its deliveries anew, so a token is
    the tag plus the number of deliveries on earlier channels. Otherwise a token of a lost connection would settle
    another message of the new one. The receiver's thread owns this object.

    Args:
        earlier: number of deliveries on earlier channels of the source.
    """

    def __init__(self, earlier: int = 0) -> None:
        self.delivered = earlier
        self._earlier = earlier
        self._lowest = 1
        self._settled_later: set[int] = set()

    def tokens(self, first: int, last: int) -> Sequence[int]:
        """Return the tokens of the deliveries with these tags and all between them."""
        self.delivered = self._earlier + last
        return range(self._earlier + first, self.delivered + 1)

    def settle(self, tokens: Iterable[int]) -> list[Settlement]:
        """Return the fewest frames that settle exactly these messages, ignoring messages of earlier channels."""
        tags = sorted({token - self._earlier for token in tokens if token > self._earlier})
        single: list[Settlement] = []
        through = 0
        for tag in tags:
            if tag == self._lowest:
                through = tag
                self._lowest += 1
                self._skip_settled()
            elif tag > self._lowest and tag not in self._settled_later:
                single.append(Settlement(tag, multiple=False))
                self._settled_later.add(tag)
        return [Settlement(through, multiple=True), *single] if through else single

    def _skip_settled(self) -> None:
        while self._lowest in self._settled_later:
            self._settled_later.remove(self._lowest)
            self._lowest += 1


class Inbox:
    """Deliveries that wait for the receiver's thread; the I/O thread adds them.

    The consumer's prefetch count limits their number.
    """

    def __init__(self) -> None:
        self._waiting: deque[RabbitDelivery] = deque()
        self._stirred = threading.Event()

    def put(self, delivery: RabbitDelivery) -> None:
        """Add a delivery. Called by the I/O thread."""
        self._waiting.append(delivery)
        self._stirred.set()

    def stir(self) -> None:
        """Wake the receiver's thread although no delivery has arrived."""
        self._stirred.set()

    def take(self, most: int, most_bytes: int, timeout_s: float) -> list[RabbitDelivery]:
        """Return the next deliveries in order; wait for the first one. A body of more than `most_bytes`
        is returned alone.
        """
        if not self._waiting:
            self._stirred.clear()
            if not self._waiting:
                self._stirred.wait(timeout_s)
        taken: list[RabbitDelivery] = []
        size = 0
        while self._waiting and len(taken) < most:
            size += len(self._waiting[0].body)
            if taken and size > most_bytes:
                break
            taken.append(self._waiting.popleft())
        return taken
