"""Lets senders wait, outside of transactions, until a full destination has room."""

import time
from collections.abc import Callable, Collection
from typing import TypeVar

from connectors.embedded.access import Access
from connectors.embedded.limits import Crowded, NoRoom, Refusal

_LOOK_S = 1.0
"""Seconds after which a waiting sender tries again without a wake-up, since a wake-up may be lost."""
T = TypeVar("T")


def room_of(destination: str) -> str:
    """Return the name of the bell that rings when messages have left a destination."""
    return f"room:{destination}"


class Rooms:
    """What one sender knows about full destinations. Only the thread that sends uses the object.

    Args:
        access: access to the broker.
        timeout_s: longest wait for room in seconds; 0 for no limit.

    Attributes:
        nearly_full: see `sending.Terms`.
    """

    def __init__(self, access: Access, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.nearly_full: set[str] = set()
        self._access = access

    def deadline(self) -> float:
        """Return when a sender that begins to wait now gives up, by the monotonic clock."""
        return time.monotonic() + self._timeout_s if self._timeout_s else float("inf")

    def look(self, destinations: Collection[str]) -> int:
        """Return the argument `seen` of `wait`. Call this before the transaction that may find no room."""
        return self._access.bells.rung(*self._heard(destinations))

    def wait(self, destinations: Collection[str], seen: int, deadline: float) -> bool:
        """Wait until there may be room; return false when the time is over, or if nobody may wait any more."""
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not self._access.waits:
            return False
        self._access.bells.wait_for_any(self._heard(destinations), seen, min(left_s, _LOOK_S))
        return self._access.waits

    def refusal(self, destination: str) -> Refusal:
        """Return why a message is refused that has waited in vain."""
        if not self._access.waits:
            when = "when the session, or a consumer or producer of it, was closed"
            return Refusal(full=True, what=f"{destination} had no room, or was paused, {when}, and nothing was stored")
        what = f"{destination} had no room within {self._timeout_s * 1000:g} ms, or was paused, and nothing was stored"
        return Refusal(full=True, what=what, allowed="ack_timeout_ms of the connection limits the wait")

    def _heard(self, destinations: Collection[str]) -> set[str]:
        return {self._access.bell, *map(room_of, destinations)}

    def transact(self, destinations: Collection[str], do: Callable[[], T]) -> T:
        """Do a transaction, and repeat it when there is room. Raises `NoRoom` when `wait` returns false."""
        deadline = self.deadline()
        while True:
            seen = self.look(destinations)
            try:
                return unless_crowded(do)
            except NoRoom:
                if not self.wait(destinations, seen, deadline):
                    raise


def unless_crowded(do: Callable[[], T]) -> T:
    """Do a transaction, and repeat it as long as it raises `Crowded`."""
    while True:
        try:
            return do()
        except Crowded:
            continue
