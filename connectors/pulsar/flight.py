"""What is under way of one batch, between the thread that sends and the client's, which tells what became of it."""

import threading
from collections.abc import Callable
from typing import Any

from connectors.pulsar.failures import TOO_LARGE

MOST_OUTSTANDING = 1000
"""Messages sent and not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Their bytes; a larger message goes alone."""
_REFILLED_AT = 0.9
"""Who waits for room waits until only that part is taken: to be woken for each message costs more than to send it."""
_CONFIRMED = "Ok"


class Flight:
    """A batch.

    Attributes:
        confirmed: places of messages that the broker has.
        too_large: places of messages that the client did not send for their size.
        failure: what went wrong first, by the client's name of it; "" while nothing has.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.too_large: set[int] = set()
        self.failure = ""
        self._outstanding = 0
        self._bytes = 0
        self._settled = 0
        self._moved = threading.Condition(threading.Lock())
        self._awaited: Callable[[], bool] | None = None
        """What the thread that sends waits for, while it does."""

    def begin(self, size: int, timeout_s: float) -> bool:
        """Count one more, once there is room for it. Returns as `land`."""
        with self._moved:
            going = not self.failure
            if self._outstanding and not self._has_room(size, 1):
                going = self._wait(lambda: not self._outstanding or self._has_room(size, _REFILLED_AT), timeout_s)
            self._outstanding += 1
            self._bytes += size
        return going

    def settle(self, place: int, size: int, result: Any, _: object) -> None:
        """Called by the client, by a thread of its own or from within a send; must not raise."""
        name = result.name
        with self._moved:
            self._outstanding -= 1
            self._bytes -= size
            self._settled += 1
            if name == TOO_LARGE:
                self.too_large.add(place)
            elif name != _CONFIRMED:
                self.failure = self.failure or name
            else:
                self.confirmed.add(place)
            if self._awaited is not None and (self.failure or self._awaited()):
                self._moved.notify()

    def land(self, timeout_s: float) -> bool:
        """Wait until everything is settled.

        False when something has gone wrong: `failure` tells what, or is empty when nothing was settled for so long.
        """
        with self._moved:
            return self._wait(lambda: not self._outstanding, timeout_s)

    def _has_room(self, size: int, part: float) -> bool:
        """Within a part of the bounds."""
        return self._outstanding < part * MOST_OUTSTANDING and self._bytes + size <= part * MOST_OUTSTANDING_BYTES

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """The time counts from the last message that was settled."""
        settled = -1
        self._awaited = reached
        while not (self.failure or reached()):
            if settled == self._settled:
                return False
            settled = self._settled
            self._moved.wait_for(lambda: bool(self.failure) or reached(), timeout_s)
        self._awaited = None
        return not self.failure
