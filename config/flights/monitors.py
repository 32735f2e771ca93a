"""The monitor of the flights example: which airline is in trouble right now?"""

from bisect import insort
from collections.abc import Iterator
from datetime import datetime, timedelta

from correlator.core.keyed import KeyedMonitor
from correlator.events import event

VERY_LATE_MINUTES = 60
ENOUGH = 10
WITHIN = timedelta(hours=6)


@event
class Departure:
    """A departure that was late; the fields are columns of the pipeline's rows."""

    carrier: str
    flight: int
    scheduled: datetime
    dep_delay: int


@event
class CarrierAlert:
    """Ten departures of one carrier, scheduled within six hours, each more than an hour late."""

    carrier: str
    scheduled: datetime
    departures: int
    mean_delay: float
    worst_delay: int


class CarrierDelays(KeyedMonitor[Departure, CarrierAlert]):
    """Delay statistics of one carrier, and an alert when ten departures within six hours were more than an hour late.

    The six hours end at the latest scheduled time that the carrier had so far. One alert when the number reaches ten;
    the next one only after it has fallen below ten in between. The last ten are all that has to be remembered.
    """

    departures: int = 0
    total_delay: int = 0
    worst_delay: int = 0
    very_late: list[datetime] = []
    alerted: bool = False

    def on_event(self, row: Departure) -> Iterator[CarrierAlert]:
        """Count the departure; alert when it makes the number cross the limit."""
        self.departures += 1
        self.total_delay += row.dep_delay
        self.worst_delay = max(self.worst_delay, row.dep_delay)
        if row.dep_delay > VERY_LATE_MINUTES:
            insort(self.very_late, row.scheduled)
        begin = self.time - WITHIN
        self.very_late = [scheduled for scheduled in self.very_late[-ENOUGH:] if scheduled > begin]
        enough = len(self.very_late) >= ENOUGH
        if enough and not self.alerted:
            yield self._alert(row.scheduled)
        self.alerted = enough

    def _alert(self, scheduled: datetime) -> CarrierAlert:
        return CarrierAlert(
            carrier=self.key,
            scheduled=scheduled,
            departures=self.departures,
            mean_delay=round(self.total_delay / self.departures, 1),
            worst_delay=self.worst_delay,
        )
