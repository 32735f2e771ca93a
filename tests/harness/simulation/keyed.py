"""Checks keyed state against a model: rows that come late, timers in the past, batches of any size."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from correlator.core.keyed import KeyedMonitor, KeyedRun
from correlator.testing.invariants.catalogue import Violation

EVENT_TIME = "the event time of a key is the latest of its rows, and a timer for an earlier time does not set it back"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A row: its event time, and the time for which it sets a timer, both in seconds."""

    at: int
    wakes_at: int


class Clocked(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """Returns its event time at each call."""

    calls: int = 0

    def on_event(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Set a timer for any time, past or future."""
        self.calls += 1
        self.wake_at(_time(row["wakes_at"]), str(self.calls))
        return [self._told()]

    def on_time(self, name: str) -> list[dict[str, Any]]:
        """Return the event time at which the timer fires."""
        del name
        return [self._told()]

    def _told(self) -> dict[str, Any]:
        return {"at": (self.time - _BEGIN).total_seconds()}


def violations(seed: int) -> Iterator[Violation]:
    """Yield violations for rows and batches that the seed determines."""
    rng = random.Random(f"keyed {seed}")
    rows = [Row(rng.randrange(100), rng.randrange(100)) for _ in range(rng.randint(2, 10))]
    cuts = {at for at in range(1, len(rows)) if rng.random() < 0.5}
    found, expected = _run(rows, cuts), _model(rows)
    if found != expected:
        yield Violation("M10", EVENT_TIME, f"{rows} with batches from {sorted(cuts)}: {found}, expected {expected}")


def _run(rows: Sequence[Row], cuts: set[int]) -> list[float]:
    told: list[float] = []
    run = KeyedRun(Clocked, "key", None)
    for at, row in enumerate(rows):
        if at in cuts:
            run = KeyedRun(Clocked, "key", run.stored())
        for handled in run.handle(row._asdict(), _time(row.at)):
            told.extend(one["at"] for one in handled.outputs)
    return told


def _model(rows: Sequence[Row]) -> list[float]:
    told: list[float] = []
    timers: list[int] = []
    now = -1
    for row in rows:
        for due in sorted(one for one in timers if one <= max(row.at, now)):
            now = max(now, due)
            timers.remove(due)
            told.append(now)
        now = max(now, row.at)
        timers.append(row.wakes_at)
        told.append(now)
    return told


def _time(seconds: int) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)
