"""The event time of a keyed step with `expires`: keys without further rows follow it at this distance. Pure.

The *latest* time of a step is the latest event time of all its rows so far. Its *horizon* is `expires` before this
time, and never goes back. A key whose own event time is earlier than the horizon has the horizon as its event time. So
its timers fire, and its state is deleted when no timer is left.

The horizon moves with the rows in the order of their messages, not with batches: it makes no difference how messages
are divided into batches.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from correlator.pipeline.windows import FIRST, microseconds, moment

Place = tuple[int, str]
"""Position and part of a row (`envelope`)."""


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """The event time of a step in the store, in microseconds since 1970."""

    latest: int
    horizon: int


_decoder = msgspec.msgpack.Decoder(_Stored)


@dataclass(frozen=True, slots=True)
class EventClock:
    """The event time of a step during a batch.

    Attributes:
        places: the places of the first row and of the rows that move the horizon, in order.
        horizons: the horizon from each of these places on, in microseconds since 1970.
        stored: the value in the store after the batch.
    """

    places: tuple[Place, ...]
    horizons: tuple[int, ...]
    stored: bytes

    def horizon(self, place: Place) -> datetime:
        """The horizon after the row at this place."""
        return moment(self.horizons[bisect_right(self.places, place) - 1])

    def reaches(self, due: datetime) -> Place | None:
        """The first place at which the horizon is not before a time; `None` if there is none in the batch."""
        at = bisect_left(self.horizons, microseconds(due))
        return self.places[at] if at < len(self.places) else None

    @property
    def last(self) -> datetime:
        """The horizon after the batch."""
        return moment(self.horizons[-1])


def clock_of(rows: Iterable[tuple[Place, int]], expires: float, stored: bytes | None) -> EventClock | None:
    """The event time of a step during a batch; `None` for a batch without rows.

    Args:
        rows: place and event time of each row, in order.
        expires: the distance in seconds.
        stored: the value in the store before the batch.
    """
    before = _decoder.decode(stored) if stored is not None else _Stored(FIRST, FIRST)
    distance, latest, horizon = round(expires * 1e6), before.latest, before.horizon
    places: list[Place] = []
    horizons: list[int] = []
    for place, time in rows:
        latest = max(latest, time)
        moved = max(horizon, latest - distance)
        if moved > horizon or not places:
            places.append(place)
            horizons.append(moved)
        horizon = moved
    if not places:
        return None
    return EventClock(tuple(places), tuple(horizons), msgspec.msgpack.encode(_Stored(latest, horizon)))


class DueKeys:
    """The keys of a step in the order in which they may be due. The store decides whether a key is due.

    Args:
        due_of: returns the event time at which a stored state is due; `None` if it never is.
    """

    def __init__(self, due_of: Callable[[bytes], datetime | None]) -> None:
        self._due_of = due_of
        self._order: list[tuple[datetime, str]] = []
        self._noted: dict[str, datetime] = {}

    def note(self, key: str, data: bytes) -> None:
        """Remember a key whose state has changed."""
        due = self._due_of(data)
        if due is not None and (key not in self._noted or due < self._noted[key]):
            self._noted[key] = due
            heappush(self._order, (due, key))

    def until(self, horizon: datetime, data_of: Callable[[str], bytes | None]) -> dict[str, bytes]:
        """The states of the keys that are due, by key. They stay remembered until `forget_gone`."""
        found: dict[str, bytes] = {}
        gone: list[tuple[datetime, str]] = []
        while self._order and self._order[0][0] <= horizon:
            due, key = heappop(self._order)
            if self._noted.get(key) != due:
                continue
            data = data_of(key)
            real = self._due_of(data) if data is not None else None
            if data is not None and real is not None and real > horizon:
                self._noted[key] = real
                heappush(self._order, (real, key))
                continue
            gone.append((due, key))
            if data is not None and real is not None:
                found[key] = data
        for entry in gone:
            heappush(self._order, entry)
        return found

    def forget_gone(self, data_of: Callable[[str], bytes | None]) -> None:
        """Forget the first keys, up to the first key that has state."""
        while self._order and ((key := self._order[0][1]) not in self._noted or data_of(key) is None):
            heappop(self._order)
            self._noted.pop(key, None)
