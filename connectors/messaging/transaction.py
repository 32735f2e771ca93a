"""The messages that a transaction of a session will send."""

import time

import msgspec

from correlator.errors import UsageError
from correlator.events import Outgoing

MOST_SENDS = 1000
"""Largest number of messages that a transaction sends by default."""


class Transaction:
    """The sends of a session since the last `commit` or `rollback`, in memory. One thread at a time uses it.

    Args:
        most: largest number of messages.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sends: list[tuple[float, Outgoing]] = []

    def __len__(self) -> int:
        """Number of messages in the transaction."""
        return len(self._sends)

    def add(self, outgoing: Outgoing) -> None:
        """Add a message. Raises `UsageError` E7544 if there are too many; those that were added can be committed."""
        if len(self._sends) >= self._most:
            what = f"the transaction has {self._most} messages already"
            allowed = "tx_producer_max_num_msgs of the factory limits them"
            raise UsageError("E7544", "session", what, allowed, "Commit more often, or raise the limit")
        self._sends.append((time.monotonic(), outgoing))

    def sends(self) -> list[Outgoing]:
        """The messages in order. Time to live and delivery delay have begun when each was added."""
        now = time.monotonic()
        return [_aged(outgoing, int((now - added) * 1000)) for added, outgoing in self._sends]

    def clear(self) -> None:
        """Forget all messages: they are committed, or the session rolls back."""
        self._sends.clear()


def _aged(outgoing: Outgoing, age_ms: int) -> Outgoing:
    headers = outgoing.message.headers
    if headers is None or not (headers.time_to_live_ms or headers.delivery_delay_ms):
        return outgoing
    lives_ms, delay_ms = headers.time_to_live_ms, headers.delivery_delay_ms
    headers = msgspec.structs.replace(
        headers,
        time_to_live_ms=max(1, lives_ms - age_ms) if lives_ms else lives_ms,  # 0 would be no limit
        delivery_delay_ms=max(0, delay_ms - age_ms) if delay_ms else delay_ms,
    )
    return msgspec.structs.replace(outgoing, message=msgspec.structs.replace(outgoing.message, headers=headers))
