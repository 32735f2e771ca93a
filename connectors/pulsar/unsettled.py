"""Tracks unsettled messages: held ones, those to be given back, and acknowledged ones of a packed entry. Does no I/O.

The broker delivers and takes back whole entries. If a producer has packed several messages into an entry, and one of
them is given back, the broker redelivers all of them, even held and acknowledged ones. Held messages must then be
acknowledged by their new message id, and acknowledged ones once more.
"""

import heapq
from collections.abc import Iterator
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

MOST_REMEMBERED = 10_000
"""Most remembered messages of packed entries.

The oldest are forgotten; the broker may then deliver an acknowledged one again.
"""
_T = TypeVar("_T")


class PulsarPosition(NamedTuple):
    """The position of a message in its topic; `batch_index` is below 0 if it has an entry of its own."""

    ledger: int
    entry: int
    batch_index: int
    partition: int

    def __str__(self) -> str:
        """Return the position as part of a JMS message id."""
        place = f"{self.ledger}:{self.entry}:{self.partition}"
        return place if self.batch_index < 0 else f"{place}:{self.batch_index}"


class Arrival(Enum):
    """What the source knows about a delivered message."""

    NEW = auto()
    DONE = auto()
    """It was acknowledged before, and was redelivered with others of its entry."""
    STILL_HELD = auto()
    """It is held, and was redelivered with others of its entry, or after the broker had taken it back."""
    UNEXPECTED = auto()
    """It is held and was not given back: the connection was lost meanwhile."""


class Unsettled(Generic[_T]):
    """The unsettled messages of one consumer. `_T` is the client's type of message ids.

    Args:
        taken_back: whether the broker also redelivers held messages that were not given back (`ack_timeout`).
    """

    def __init__(self, *, taken_back: bool) -> None:
        self._taken_back = taken_back
        self._held: dict[PulsarPosition, _T] = {}
        self._done: dict[PulsarPosition, None] = {}
        self._broken_up: dict[PulsarPosition, None] = {}
        self._leaving: dict[PulsarPosition, _T] = {}
        self._due: list[tuple[float, PulsarPosition]] = []

    def arrived(self, at: PulsarPosition, name: _T) -> Arrival:
        """Note a delivered message, and return what is known about it. A new message is held from now on."""
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
        """Note that a message is acknowledged; return the message id to acknowledge."""
        if at.batch_index >= 0:
            _remember(self._done, at)
        return self._held.pop(at)

    def given_back(self, at: PulsarPosition, due: float) -> None:
        """Note that a message is to be given back at the time `due`."""
        if at.batch_index >= 0:
            _remember(self._broken_up, _entry(at))
        self._leaving[at] = self._held.pop(at)
        heapq.heappush(self._due, (due, at))

    def next_due(self) -> float | None:
        """Return the time at which the next message is to be given back; `None` if there is none."""
        return self._due[0][0] if self._due else None

    def leaving(self, now: float) -> Iterator[_T]:
        """Yield the ids of messages to give back now, without those that were redelivered meanwhile."""
        while self._due and self._due[0][0] <= now:
            _, at = heapq.heappop(self._due)
            if at in self._leaving:
                yield self._leaving.pop(at)


def _remember(known: dict[PulsarPosition, None], at: PulsarPosition) -> None:
    """Add a position as the newest one; forget the oldest if there are too many."""
    known.pop(at, None)
    known[at] = None
    if len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]


def _entry(at: PulsarPosition) -> PulsarPosition:
    return at._replace(batch_index=-1)
