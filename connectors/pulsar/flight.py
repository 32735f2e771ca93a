"""A batch in flight: shared by the thread that sends and the client's thread, which reports confirms."""

import math
import threading
from collections import deque
from typing import Any

from connectors.pulsar.failures import TOO_LARGE

MOST_OUTSTANDING = 1000
"""Largest number of messages that are sent and not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Largest number of bytes of these messages together; a larger message is sent alone."""
_REFILLED_BY = 10
"""The sending thread waits until this fraction (1/N) of the outstanding messages is settled: waking it for each message
would cost more than sending a message.
"""
_CONFIRMED = "Ok"


class BatchInFlight:
    """A batch that is being sent.

    Both threads use it for every message. So they take no lock unless one waits for the other: the client's thread only
    appends to collections from which the sending thread takes, and each of these operations is atomic.

    Attributes:
        confirmed: indexes of messages that the broker has stored.
        too_large: indexes of messages that the client has refused for their size.
        failure: the client's name of the first error; "" while there is none.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.too_large: set[int] = set()
        self.failure = ""
        self._outstanding = 0
        self._bytes = 0
        self._settled: deque[int] = deque()
        """Sizes of settled messages that still count as outstanding."""
        self._enough: float = math.inf
        """Number of settled messages that wakes the sending thread while it waits."""
        self._moved = threading.Condition(threading.Lock())

    def begin(self, size: int, timeout_s: float) -> bool:
        """Wait for room, and count one more message as outstanding. Returns as `finish`."""
        if not self._has_room(size):
            self._count()
        while not self._has_room(size):
            if not self._wait(max(1, self._outstanding // _REFILLED_BY), timeout_s):
                return False
        self._outstanding += 1
        self._bytes += size
        return not self.failure

    def settle(self, index: int, size: int, result: Any, _: object) -> None:
        """Note the result of a message. Called by a thread of the client, or within a send; must not raise."""
        name = result.name
        if name == _CONFIRMED:
            self.confirmed.add(index)
        elif name == TOO_LARGE:
            self.too_large.add(index)
        else:
            self.failure = self.failure or name
        self._settled.append(size)
        if len(self._settled) >= self._enough or self.failure:
            with self._moved:
                self._moved.notify()

    def finish(self, timeout_s: float) -> bool:
        """Wait until all messages are settled.

        Return false after an error: `failure` names it, or is empty if no message was settled within `timeout_s`.
        """
        return self._wait(self._outstanding, timeout_s)

    def _has_room(self, size: int) -> bool:
        return not self._outstanding or (
            self._outstanding < MOST_OUTSTANDING and self._bytes + size <= MOST_OUTSTANDING_BYTES
        )

    def _wait(self, enough: int, timeout_s: float) -> bool:
        """Wait until `enough` messages are settled; the time-out begins again with each settled message."""
        self._enough = enough  # before the check, so that no message settled meanwhile is missed
        with self._moved:
            while not self._is_over(enough):
                settled = len(self._settled)
                self._moved.wait_for(lambda: self._is_over(enough), timeout_s)
                if len(self._settled) == settled and not self.failure:
                    return False
        self._enough = math.inf
        self._count()
        return not self.failure

    def _is_over(self, enough: int) -> bool:
        return bool(self.failure) or len(self._settled) >= enough

    def _count(self) -> None:
        while self._settled:
            self._bytes -= self._settled.popleft()
            self._outstanding -= 1
