"""What a broker waits to hear about: held here, on its way back, or acknowledged in part. Pure: time is an argument.

A broker gives entries, and takes back entries: what a producer has packed into one comes again as a whole when one
message of it is given back, also those that are still held here and those that were acknowledged. The former must be
acknowledged by the name that they have now, the latter once more.
"""

import heapq
from collections.abc import Iterator
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

MOST_REMEMBERED = 10_000
"""Of what was packed with others; the oldest are forgotten, and what was acknowledged of them may be received twice."""
_T = TypeVar("_T")


class PulsarPosition(NamedTuple):
    """Where a message lies; `batch_index` is below 0 for one that has an entry to itself."""

    ledger: int
    entry: int
    batch_index: int
    partition: int

    def __str__(self) -> str:
        """As JMS has it in the id of a message."""
        place = f"{self.ledger}:{self.entry}:{self.partition}"
        return place if self.batch_index < 0 else f"{place}:{self.batch_index}"


class Arrival(Enum):
    """What a message is that the broker gives."""

    NEW = auto()
    DONE = auto()
    """It came with others of its entry, and was acknowledged before."""
    STILL_HELD = auto()
    """The same, and it was not acknowledged yet; or the broker has taken it back."""
    UNEXPECTED = auto()
    """It is held, and nobody has given it back."""


class Unsettled(Generic[_T]):
    """The messages of one consumer. `_T` is what names a message to the client.

    Args:
        taken_back: whether the broker also gives again what is held and was not given back.
    """

    def __init__(self, *, taken_back: bool) -> None:
        self._taken_back = taken_back
        self._held: dict[PulsarPosition, _T] = {}
        self._done: dict[PulsarPosition, None] = {}
        self._broken_up: dict[PulsarPosition, None] = {}
        self._leaving: dict[PulsarPosition, _T] = {}
        self._due: list[tuple[float, PulsarPosition]] = []

    def arrived(self, at: PulsarPosition, name: _T) -> Arrival:
        """What has come; what is new is held from now on."""
        self._leaving.pop(at, None)
        if at in self._done:
            _remember(self._done, at)
            return Arrival.DONE
        was_held = at in self._held
        if was_held and not self._taken_back and _entry(at) not in self._broken_up:
            return Arrival.UNEXPECTED
        self._held[at] = name
        return Arrival.STILL_HELD if was_held else Arrival.NEW

    def acknowledged(self, at: PulsarPosition) -> _T:
        """It is done; by which name."""
        if at.batch_index >= 0:
            _remember(self._done, at)
        return self._held.pop(at)

    def given_back(self, at: PulsarPosition, due: float) -> None:
        """It goes back, not before `due`."""
        if at.batch_index >= 0:
            _remember(self._broken_up, _entry(at))
        self._leaving[at] = self._held.pop(at)
        heapq.heappush(self._due, (due, at))

    def next_due(self) -> float | None:
        """When the next one goes back; `None` for none."""
        return self._due[0][0] if self._due else None

    def leaving(self, now: float) -> Iterator[_T]:
        """What goes back now. What has come again meanwhile does not."""
        while self._due and self._due[0][0] <= now:
            _, at = heapq.heappop(self._due)
            if at in self._leaving:
                yield self._leaving.pop(at)


def _remember(known: dict[PulsarPosition, None], at: PulsarPosition) -> None:
    """As the newest."""
    known.pop(at, None)
    known[at] = None
    if len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]


def _entry(at: PulsarPosition) -> PulsarPosition:
    return at._replace(batch_index=-1)
