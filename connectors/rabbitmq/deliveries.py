"""What a channel has delivered: on its way to the receiver's thread, and until it is acknowledged."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from connectors.rabbitmq.frames import RabbitDelivery


class ChunkToken(NamedTuple):
    """What acknowledges a chunk: delivery tags mean something on their own channel only (trap T41)."""

    generation: int
    first: int
    last: int


class Settlement(NamedTuple):
    """One frame: settles the message of this tag, or everything up to it that is not settled."""

    tag: int
    multiple: bool


class UnsettledTags:
    """Which deliveries of one channel are settled, so that one cumulative frame never settles more than was asked for.

    Tags of a channel count its deliveries from 1. Owned by the receiver's thread.
    """

    def __init__(self) -> None:
        self._lowest = 1
        self._settled_later: dict[int, int] = {}

    def settle(self, tokens: Sequence[ChunkToken]) -> list[Settlement]:
        """The frames that settle these chunks and nothing else; as few as that needs."""
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
    """Deliveries between the I/O thread, which puts, and the receiver's, which takes.

    It holds at most what the consumer's prefetch count lets the server send unacknowledged.
    """

    def __init__(self) -> None:
        self._waiting: deque[RabbitDelivery] = deque()
        self._stirred = threading.Event()

    def put(self, delivery: RabbitDelivery) -> None:
        """One more."""
        self._waiting.append(delivery)
        self._stirred.set()

    def stir(self) -> None:
        """End a wait although nothing came."""
        self._stirred.set()

    def take(self, most: int, most_bytes: int, timeout_s: float) -> list[RabbitDelivery]:
        """The next ones in order, waiting for the first; their bodies have at most so many bytes, or it is only one."""
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
