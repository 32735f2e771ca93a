"""When a batch is closed: by count, by bytes, or by the time since its first message (rule A3.12)."""

from collections.abc import Sequence
from typing import Any

from correlator.events import Message


class Batch:
    """Collects chunks until a limit is reached. Owner: the receiver's thread.

    Args:
        max_messages: count that closes it; never exceeded.
        max_bytes: bytes of bodies that close it; the message that reaches them is still in.
        max_interval: seconds from the first message until it closes.
    """

    __slots__ = ("_max_bytes", "_max_interval", "_max_messages", "_opened", "messages", "size", "tokens")

    def __init__(self, max_messages: int, max_bytes: int, max_interval: float) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_interval = max_interval
        self._opened = 0.0
        self.messages: list[Message] = []
        self.tokens: list[Any] = []
        self.size = 0

    def add(self, messages: Sequence[Message], token: Any, now: float) -> None:
        """Take in a chunk, at most `room` messages, received at `now` (monotonic seconds)."""
        if not self.messages:
            self._opened = now
        self.messages.extend(messages)
        self.tokens.append(token)
        self.size += sum([len(message.body) for message in messages])

    @property
    def room(self) -> int:
        """How many messages still fit."""
        return self._max_messages - len(self.messages)

    def remaining(self, now: float) -> float:
        """Seconds until it closes by time; meaningful once it holds a message."""
        return max(0.0, self._opened + self._max_interval - now)

    def closed(self, now: float) -> bool:
        """Whether it is to be handed on."""
        return bool(self.messages) and (
            len(self.messages) >= self._max_messages or self.size >= self._max_bytes or not self.remaining(now)
        )
