"""Counts the orders of a campaign and what became of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable

LOOK_S = 0.5


class Stalled(Exception):
    """No order has come through within the patience of the wait."""


class Board:
    """Counts the orders of a round and what became of them. All threads of the round use the board.

    Attributes:
        begun: number of orders that the publisher has tried to publish.
        confirmed: number of orders that the broker has confirmed.
        counts: how often each order has come through.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.clear()

    def clear(self) -> None:
        """Begin a new round: forget all orders."""
        self.begun = self.confirmed = 0
        self.counts: Counter[str] = Counter()

    @property
    def counted(self) -> int:
        """The number of different orders that have come through."""
        return len(self.counts)

    @property
    def under_way(self) -> int:
        """The number of orders that have not come through."""
        return self.begun - self.counted

    @property
    def doubled(self) -> bool:
        """Whether an order has come through twice."""
        return self.counts.total() > self.counted

    def has_come_to(self, where: str, goal: int) -> bool:
        """Whether at least `goal` orders are at a place, which is `confirmed` or `counted`."""
        return bool(getattr(self, where) >= goal)

    def note(self, *, begun: int = 0, confirmed: int = 0, counted: str = "") -> None:
        """Add orders that were begun, confirmed or counted."""
        with self._changed:
            self.begun += begun
            self.confirmed += confirmed
            if counted:
                self.counts[counted] += 1
            self._changed.notify_all()

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition on the board; returns whether it holds."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def wait_as_long_as_it_moves(
        self, reached: Callable[[], bool], look: Callable[[], None], patience_s: float
    ) -> None:
        """Wait for a condition, without a limit as long as new orders come through.

        Args:
            reached: the condition.
            look: called now and then; raises the error that ends the wait.
            patience_s: longest time without a new order.

        Raises:
            Stalled: no new order was confirmed or counted within `patience_s`.
        """
        moved, deadline = (self.confirmed, self.counted), time.monotonic() + patience_s
        while not self.wait(reached, LOOK_S):
            look()
            if moved != (self.confirmed, self.counted):
                moved, deadline = (self.confirmed, self.counted), time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise Stalled(f"of {self.begun} orders {self.confirmed} are confirmed and {self.counted} counted")


def body_of(number: int) -> bytes:
    """The body of an order. Sizes differ, so that a body in the place of another one shows."""
    return b"%d " % number + b"x" * (number * 37 % 400)


def name_of(body: bytes) -> str:
    """The number of the order in a body; the whole body if it is no order."""
    number = body.partition(b" ")[0]
    return number.decode() if number.isdigit() and body == body_of(int(number)) else repr(body)
