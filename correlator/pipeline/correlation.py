"""The `correlate` step: a keyed monitor that pairs rows which belong together. Pure; runs in Spark's workers."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, ClassVar

from correlator.core.keyed import KeyedMonitor
from correlator.pipeline.envelope import TIME

_JUST_AFTER = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)
_OTHER = {"first": "second", "second": "first"}


class Pairs(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """The rows of one key that wait for a partner, in the order of arrival.

    An input row has `side` (`first` or `second`) and `row` (all columns as JSON); an output has `first` and `second`.
    """

    within: ClassVar[timedelta]
    unmatched: ClassVar[bool]

    first: list[tuple[datetime, str]] = []
    second: list[tuple[datetime, str]] = []

    def on_event(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Pair the row with the oldest waiting row that is near enough in time, or let it wait."""
        side, time, text = row["side"], row[TIME], row["row"]
        waiting = self._waiting(_OTHER[side])
        partner = next((entry for entry in waiting if abs(entry[0] - time) <= self.within), None)
        if partner is not None:
            waiting.remove(partner)
            yield {side: text, _OTHER[side]: partner[1]}
        else:
            self._waiting(side).append((time, text))
            self.wake_at(max(self._end_of_waiting(time), _after(self.time, timedelta())))
        self._forget_if_nothing_waits()

    def on_time(self, name: str) -> Iterator[dict[str, Any]]:
        """Remove rows that have waited too long; output them as unmatched rows if the step is configured to do so."""
        del name
        for side, other in _OTHER.items():
            expired = [entry for entry in self._waiting(side) if self._end_of_waiting(entry[0]) <= self.time]
            for entry in expired:
                self._waiting(side).remove(entry)
                if self.unmatched:
                    yield {side: entry[1], other: None}
        self._wake_for_the_rest()
        self._forget_if_nothing_waits()

    def _wake_for_the_rest(self) -> None:
        """Set a timer again: the timers depend on `within` at the arrival of their rows, and this setting may have
        changed.
        """
        if waiting := [time for time, _ in (*self.first, *self.second)]:
            self.wake_at(self._end_of_waiting(min(waiting)))

    def _end_of_waiting(self, time: datetime) -> datetime:
        """The event time of the key at which a row of this time is given up, unless the row arrived later."""
        return _after(time, self.within)

    def _waiting(self, side: str) -> list[tuple[datetime, str]]:
        return self.first if side == "first" else self.second

    def _forget_if_nothing_waits(self) -> None:
        if not self.first and not self.second:
            self.forget()


def _after(time: datetime, length: timedelta) -> datetime:
    """The moment just after the length; if there is no such time, the last time that Python knows."""
    return time + length + _JUST_AFTER if _LAST - time > length else _LAST


@cache
def pairs_class(within_s: float, unmatched: bool) -> type[Pairs]:
    """The class for one `correlate` step."""
    return type("Pairs", (Pairs,), {"within": timedelta(seconds=within_s), "unmatched": unmatched})
