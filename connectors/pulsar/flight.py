"""What is under way of one batch, between the thread that sends and the client's, which tells what became of it."""

import math
import threading
from collections import deque
from typing import Any

from connectors.pulsar.failures import TOO_LARGE

MOST_OUTSTANDING = 1000
"""Messages sent and not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Their bytes; a larger message goes alone."""
_REFILLED_BY = 10
"""Who waits for room waits until that part of it is free: to be woken for each message costs more than to send it."""
_CONFIRMED = "Ok"


class BatchInFlight:
    """A batch.

    Both threads pass here for every message. So they hold no lock while none waits for the other: the client's thread
    only adds to what the other one takes, and each of these steps is one for the interpreter.

    Attributes:
        confirmed: indexes of messages that the broker has.
        too_large: indexes of messages that the client did not send for their size.
        failure: what went wrong first, by the client's name of it; "" while nothing has.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.too_large: set[int] = set()
        self.failure = ""
        self._outstanding = 0
        self._bytes = 0
        self._settled: deque[int] = deque()
        """Sizes of messages that are settled and still counted as outstanding."""
        self._enough: float = math.inf
        """So many of these wake the thread that sends, while it waits."""
        self._moved = threading.Condition(threading.Lock())

    def begin(self, size: int, timeout_s: float) -> bool:
        """Count one more, once there is room for it. Returns as `finish`."""
        if not self._has_room(size):
            self._count()
        while not self._has_room(size):
            if not self._wait(max(1, self._outstanding // _REFILLED_BY), timeout_s):
                return False
        self._outstanding += 1
        self._bytes += size
        return not self.failure

    def settle(self, index: int, size: int, result: Any, _: object) -> None:
        """Called by the client, by a thread of its own or from within a send; must not raise."""
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
        """Wait until everything is settled.

        False when something has gone wrong: `failure` tells what, or is empty when nothing was settled for so long.
        """
        return self._wait(self._outstanding, timeout_s)

    def _has_room(self, size: int) -> bool:
        return not self._outstanding or (
            self._outstanding < MOST_OUTSTANDING and self._bytes + size <= MOST_OUTSTANDING_BYTES
        )

    def _wait(self, enough: int, timeout_s: float) -> bool:
        """Until so many more are settled; the time counts from the last one. They count as outstanding no more."""
        self._enough = enough  # before the look: who settles one meanwhile has not been seen, or sees this
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
