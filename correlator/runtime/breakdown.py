"""What a receiver's or sender's thread spends its time on, told once in an interval (rules A9.6 to A9.8).

The thread says what it has just done, once per step of a batch and never per message, so that the measurement costs a
look at the clock for each. Where it was not asked for, `NoBreakdown` does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from correlator.reliability import RECEIVING, Reliability

TellText = Callable[[str], None]

SENDER_ITEMS = ("MAPPING", "SENDING", "WAITING", "BATCHING")


def receiver_items(reliability: Reliability) -> tuple[str, ...]:
    """The items of a receiver in a mode, without TOTAL."""
    mode = RECEIVING[reliability]
    if mode.stored:
        between: tuple[str, ...] = ("DB_WAIT", "DB_COMMIT")
    elif mode.acknowledged_by_application:
        between = ("ENQUEUING", "APP_CONTROLLED_BLOCKING")
    else:
        between = ("ENQUEUING",)
    return ("RECEIVING", "MAPPING", *between, "ACK", "R_TIMEOUTS", "FLOW_CONTROL")


@dataclass(slots=True)
class Batches:
    """How many batches there were, and how many messages in all, in the smallest and in the largest."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, size: int) -> None:
        """One more."""
        self.least = min(self.least, size) if self.count else size
        self.most = max(self.most, size)
        self.count += 1
        self.total += size


class NoBreakdown:
    """Measures nothing."""

    def restart(self) -> None:
        """What passed until now counts for nothing."""

    def lap(self, item: str) -> None:
        """What passed since the last call was this."""

    def lap_until(self, item: str, then: float) -> None:
        """As `lap`, but only up to an earlier moment."""

    def batch(self, size: int) -> None:
        """A batch of so many messages is done."""


class Breakdown(NoBreakdown):
    """Measures one thread, which owns it.

    Args:
        items: what its time can be spent on.
        now: monotonic seconds.
        interval: seconds that a line tells about.
        tell: gets the line.
    """

    def __init__(self, items: Sequence[str], now: Callable[[], float], interval: float, tell: TellText) -> None:
        self._items = items
        self._now = now
        self._interval = interval
        self._tell = tell
        self._since = now()
        self._begin(self._since)

    def restart(self) -> None:
        """What passed until now counts for nothing: there was no connection."""
        self._since = self._now()

    def lap(self, item: str) -> None:
        """What passed since the last call was this; tells the line when it is due."""
        now = self._now()
        self._spent[item] += now - self._since
        self._since = now
        if now >= self._due:
            self._tell(breakdown_text(self._spent, self._batches, now - self._began))
            self._begin(now)

    def lap_until(self, item: str, then: float) -> None:
        """What passed since the last call, up to `then`, was this."""
        self._spent[item] += then - self._since
        self._since = then

    def batch(self, size: int) -> None:
        """A batch of so many messages is done."""
        self._batches.add(size)

    def _begin(self, now: float) -> None:
        self._began = now
        self._due = now + self._interval
        self._spent = dict.fromkeys(self._items, 0.0)
        self._batches = Batches()


def breakdown_text(spent: Mapping[str, float], batches: Batches, passed: float) -> str:
    """The line: the share of each item, throughput over the time that passed, and how large batches were."""
    total = sum(spent.values())
    shares = " ".join(f"{item}={100 * seconds / total if total else 0:.1f}%" for item, seconds in spent.items())
    mean = batches.total / batches.count if batches.count else 0
    sizes = f"min={batches.least} mean={mean:.1f} max={batches.most}"
    throughput = batches.total / passed
    return (
        f"Performance breakdown: {shares} TOTAL={total:.1f}s "
        f"throughput={throughput:.0f}/s batches={batches.count} {sizes}"
    )
