"""How the thread of a receiver or sender spends its time, logged once per interval (rules A9.6 to A9.8).

The thread names what it has just done, once per step of a batch and never per message, so the measurement costs one
reading of the clock per step. If the settings of the part do not ask for the measurement, the thread has a
`NoBreakdown`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from correlator.reliability import RECEIVING, Reliability

TellText = Callable[[str], None]

SENDER_ITEMS = ("MAPPING", "SENDING", "WAITING", "BATCHING")


def receiver_items(reliability: Reliability) -> tuple[str, ...]:
    """The items of the breakdown of a receiver in this mode, in the order of the log line, without TOTAL."""
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
    """Counts batches, and the messages of all of them, of the smallest and of the largest batch."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, size: int) -> None:
        """Count a batch of `size` messages."""
        self.least = min(self.least, size) if self.count else size
        self.most = max(self.most, size)
        self.count += 1
        self.total += size


class NoBreakdown:
    """Stands in for `Breakdown` where the settings ask for no measurement: its methods do nothing."""

    def restart(self) -> None:
        """Attribute the time since the last call to no item."""

    def lap(self, item: str) -> None:
        """Attribute the time since the last call to an item."""

    def lap_until(self, item: str, then: float) -> None:
        """Attribute the time from the last call to `then`, an earlier moment in monotonic seconds, to an item."""

    def batch(self, size: int) -> None:
        """Count a batch of `size` messages."""


class Breakdown(NoBreakdown):
    """Measures one thread, which owns this object.

    Args:
        items: names of the activities on which the thread can spend time.
        now: returns monotonic seconds.
        interval: seconds from one log line to the next.
        tell: gets the text of each log line.
    """

    def __init__(self, items: Sequence[str], now: Callable[[], float], interval: float, tell: TellText) -> None:
        self._items = items
        self._now = now
        self._interval = interval
        self._tell = tell
        self._since = now()
        self._begin(self._since)

    def restart(self) -> None:
        """Attribute the time since the last call to no item: there was no connection."""
        self._since = self._now()

    def lap(self, item: str) -> None:
        """Attribute the time since the last call to an item, and log the line if it is due."""
        now = self._now()
        self._spent[item] += now - self._since
        self._since = now
        if now >= self._due:
            self._tell(breakdown_text(self._spent, self._batches, now - self._began))
            self._begin(now)

    def lap_until(self, item: str, then: float) -> None:
        """Attribute the time from the last call to `then` to an item; the next call counts from `then`."""
        self._spent[item] += then - self._since
        self._since = then

    def batch(self, size: int) -> None:
        """Count a batch of `size` messages."""
        self._batches.add(size)

    def _begin(self, now: float) -> None:
        self._began = now
        self._due = now + self._interval
        self._spent = dict.fromkeys(self._items, 0.0)
        self._batches = Batches()


def breakdown_text(spent: Mapping[str, float], batches: Batches, passed: float) -> str:
    """Return the text of the log line: the share of each item, the throughput, and the sizes of batches.

    Args:
        spent: seconds by item.
        batches: the batches of the interval.
        passed: the length of the interval in seconds.
    """
    total = sum(spent.values())
    shares = " ".join(f"{item}={100 * seconds / total if total else 0:.1f}%" for item, seconds in spent.items())
    mean = batches.total / batches.count if batches.count else 0
    sizes = f"min={batches.least} mean={mean:.1f} max={batches.most}"
    throughput = batches.total / passed
    return (
        f"Performance breakdown: {shares} TOTAL={total:.1f}s "
        f"throughput={throughput:.0f}/s batches={batches.count} {sizes}"
    )
