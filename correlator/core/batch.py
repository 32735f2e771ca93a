"""The batch of a receiver. A number of messages, a number of bytes, or the time since its first message closes it (rule
A3.12).
"""

from collections.abc import Sequence
from typing import Any

from correlator.events import Message


class ReceiveBatch:
    """Collects chunks until a limit is reached. Owner: the receiver's thread.

    Args:
        max_messages: number of messages that closes the batch, which never holds more.
        max_bytes: bytes of bodies that close the batch. The message that reaches this limit is part of the batch.
        max_interval: seconds from the first message until the batch closes.

    Attributes:
        messages: the messages, in the order of receipt.
        tokens: what acknowledges them at the source.
        size: the bytes of their bodies.
        began: the time of day at which the first of them came; 0 for an empty batch.
    """

    __slots__ = ("_max_bytes", "_max_interval", "_max_messages", "_opened", "began", "messages", "size", "tokens")

    def __init__(self, max_messages: int, max_bytes: int, max_interval: float) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_interval = max_interval
        self._opened = 0.0
        self.messages: list[Message] = []
        self.tokens: list[Any] = []
        self.size = 0
        self.began = 0.0

    def add(self, messages: Sequence[Message], tokens: Sequence[Any], now: float, wall_s: float) -> None:
        """Add a chunk of at most `room` messages, received at `now` in monotonic seconds, at `wall_s` by the time of
        day.
        """
        if not self.messages:
            self._opened, self.began = now, wall_s
        self.messages.extend(messages)
        self.tokens.extend(tokens)
        self.size += sum([len(message.body) for message in messages])

    @property
    def room(self) -> int:
        """How many more messages fit into the batch."""
        return self._max_messages - len(self.messages)

    def remaining(self, now: float) -> float:
        """Seconds until the interval closes the batch. Only for a batch that holds a message."""
        return max(0.0, self._opened + self._max_interval - now)

    def closed(self, now: float) -> bool:
        """Whether a limit is reached. An empty batch is never closed."""
        return bool(self.messages) and (
            len(self.messages) >= self._max_messages or self.size >= self._max_bytes or not self.remaining(now)
        )
