"""Orders, and what has become of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable

LOOK_S = 0.5


class Stalled(Exception):
    """Nothing moves."""


class Board:
    """What has happened in a round. All threads of it use the board.

    Attributes:
        begun: orders that the publisher has ever tried to publish.
        confirmed: those of them that the broker has.
        counts: how often each has come through.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.clear()

    def clear(self) -> None:
        """A new round."""
        self.begun = self.confirmed = 0
        self.counts: Counter[str] = Counter()

    @property
    def counted(self) -> int:
        """Different orders that have come through."""
        return len(self.counts)

    @property
    def under_way(self) -> int:
        """Orders that have not come through."""
        return self.begun - self.counted

    @property
    def doubled(self) -> bool:
        """Whether something has come through twice."""
        return self.counts.total() > self.counted

    def has_come_to(self, where: str, goal: int) -> bool:
        """Whether so many orders are at a place: `confirmed`, `counted`."""
        return bool(getattr(self, where) >= goal)

    def note(self, *, begun: int = 0, confirmed: int = 0, counted: str = "") -> None:
        """So many more."""
        with self._changed:
            self.begun += begun
            self.confirmed += confirmed
            if counted:
                self.counts[counted] += 1
            self._changed.notify_all()

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition on it; says whether it holds."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def wait_as_long_as_it_moves(
        self, reached: Callable[[], bool], look: Callable[[], None], patience_s: float
    ) -> None:
        """Wait for a condition, however long new orders come through.

        Args:
            reached: the condition.
            look: called now and then; raises what stands in the way.
            patience_s: longest standstill.

        Raises:
            Stalled: nothing new was confirmed or counted for so long.
        """
        moved, deadline = (self.confirmed, self.counted), time.monotonic() + patience_s
        while not self.wait(reached, LOOK_S):
            look()
            if moved != (self.confirmed, self.counted):
                moved, deadline = (self.confirmed, self.counted), time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise Stalled(f"of {self.begun} orders {self.confirmed} are confirmed and {self.counted} counted")


def body_of(number: int) -> bytes:
    """Of different sizes, so that one in another's place is seen."""
    return b"%d " % number + b"x" * (number * 37 % 400)


def name_of(body: bytes) -> str:
    """The number of an order; of what is none, all of it."""
    number = body.partition(b" ")[0]
    return number.decode() if number.isdigit() and body == body_of(int(number)) else repr(body)
