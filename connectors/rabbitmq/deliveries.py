"""Deliveries of a channel: passes them to the receiver's thread, and keeps track of their acknowledgement."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from connectors.rabbitmq.frames import RabbitDelivery


class ChunkToken(NamedTuple):
    """The token of a chunk: its delivery tags, and the number of their channel.

    Each channel numbers its deliveries anew. Without the number of the channel, a token of a lost connection would
    acknowledge other messages of the new one.
    """

    generation: int
    first: int
    last: int


class Settlement(NamedTuple):
    """One `basic.ack` or `basic.nack`: for the message of this tag, or for all unsettled messages up to it."""

    tag: int
    multiple: bool


class UnsettledTags:
    """The unsettled delivery tags of one channel: a cumulative frame must never settle more than the given chunks.

    The deliveries of a channel have the tags 1, 2, 3 and so on. Owned by the receiver's thread.
    """

    def __init__(self) -> None:
        self._lowest = 1
        self._settled_later: dict[int, int] = {}

    def settle(self, tokens: Sequence[ChunkToken]) -> list[Settlement]:
        """The fewest frames that settle exactly these chunks."""
        single: list[Settlement] = []
        through = 0
        for token in sorted(tokens):
            if token.first == self._lowest:
                through = token.last
                self._lowest = token.last + 1
                self._skip_settled()
            elif token.first > self._lowest and token.first not in self._settled_later:
                single += [Settlement(tag, multiple=False) for tag in range(token.first, token.last + 1)]
                self._settled_later[token.first] = token.last
        return [Settlement(through, multiple=True), *single] if through else single

    def _skip_settled(self) -> None:
        while self._lowest in self._settled_later:
            self._lowest = self._settled_later.pop(self._lowest) + 1


class Inbox:
    """Deliveries that wait for the receiver's thread; the I/O thread puts them in.

    The consumer's prefetch count bounds them.
    """

    def __init__(self) -> None:
        self._waiting: deque[RabbitDelivery] = deque()
        self._stirred = threading.Event()

    def put(self, delivery: RabbitDelivery) -> None:
        """Add a delivery. Called by the I/O thread."""
        self._waiting.append(delivery)
        self._stirred.set()

    def stir(self) -> None:
        """Wake the receiver's thread although nothing has come."""
        self._stirred.set()

    def take(self, most: int, most_bytes: int, timeout_s: float) -> list[RabbitDelivery]:
        """The next deliveries in order; waits for the first one. A body beyond `most_bytes` comes alone."""
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
