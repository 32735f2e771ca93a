"""The `correlate` step: a keyed monitor that pairs rows which belong together. Pure; runs in Spark's workers."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar

from correlator.core.keyed import KeyedMonitor
from correlator.pipeline.envelope import TIME

_JUST_AFTER = timedelta(microseconds=1)
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
            self.wake_at(time + self.within + _JUST_AFTER)
        self._forget_if_nothing_waits()

    def on_time(self, name: str) -> Iterator[dict[str, Any]]:
        """Remove rows that have waited too long; give them as unmatched rows if the step asks for these."""
        del name
        for side, other in _OTHER.items():
            expired = [entry for entry in self._waiting(side) if entry[0] + self.within < self.time]
            for entry in expired:
                self._waiting(side).remove(entry)
                if self.unmatched:
                    yield {side: entry[1], other: None}
        self._wake_for_the_rest()
        self._forget_if_nothing_waits()

    def _wake_for_the_rest(self) -> None:
        """Set a timer again: timers follow from the `within` at the arrival of their rows, which may have changed."""
        if waiting := [time for time, _ in (*self.first, *self.second)]:
            self.wake_at(min(waiting) + self.within + _JUST_AFTER)

    def _waiting(self, side: str) -> list[tuple[datetime, str]]:
        return self.first if side == "first" else self.second

    def _forget_if_nothing_waits(self) -> None:
        if not self.first and not self.second:
            self.forget()


@cache
def pairs_class(within_s: float, unmatched: bool) -> type[Pairs]:
    """The class for one `correlate` step."""
    return type("Pairs", (Pairs,), {"within": timedelta(seconds=within_s), "unmatched": unmatched})
