"""Which member runs which share: what a member starts, takes and gives up, and until when it may run a share. Pure.

A *share* is one of the engines of a configuration that several processes, its *members*, run together. A *lease* names
the member that runs a share; its epoch grows each time that a share changes hands. Leases spread the work and let
members take over from one another. They do not keep anyone from writing; the epoch of each store does this.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

_SOON_S = 0.05
"""Seconds from the end of another member's lease until this member reads the leases again."""
_WANTING_S = 0.5
"""The longest time between two readings of the leases while this member expects shares, or gives some back."""


class Lease(NamedTuple):
    """The right to run a share: its number, and the epoch at which this member has taken it."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The leases at one moment, after this member has renewed its own.

    Attributes:
        count: number of shares.
        mine: the leases of this member.
        others: for each other member that lives, by id: how many leases it has.
        free: how many shares nobody runs: they were given back, or their lease has ended.
        next_end: seconds until the next lease of another member ends, unless that member renews it; `None` if there is
            none.
    """

    count: int
    mine: Iterable[Lease]
    others: Mapping[str, int]
    free: int
    next_end: float | None


class Actions(NamedTuple):
    """What a member does after it has read the leases.

    Attributes:
        start: shares to start; this member has their leases.
        leave: shares to stop in order and give back, because they exceed the member's fair part.
        drop: shares to stop at once: another member may run them.
        take: how many free shares to take.
        wait: seconds until the next reading.
    """

    start: list[Lease]
    leave: list[int]
    drop: list[int]
    take: int
    wait: float


class Fate(Enum):
    """What happens to a share that this member has started."""

    RUN = auto()
    LEAVE = auto()
    """It stops in order; then the member gives the lease back."""
    DROP = auto()
    """It stops at once."""


def fair_parts(count: int, held: Mapping[str, int]) -> dict[str, int]:
    """Return how many shares each member should have, so that as few shares as possible change hands.

    Parts differ by at most one. The larger parts go to the members that have the most shares now. Members that see the
    same leases get the same result, so they need not communicate.

    Args:
        count: number of shares.
        held: for each member, by id: how many shares it has now.
    """
    least, larger = divmod(count, len(held))
    ranked = sorted(held, key=lambda member: (-held[member], member))
    return {member: least + (place < larger) for place, member in enumerate(ranked)}


def valid_for(lease_s: float) -> float:
    """Return for how many seconds after the sending of a renewal a member may run a share.

    The last third of the lease is for the stop, and for clocks that do not run at quite the same speed.
    """
    return lease_s * 2 / 3


class Assignment:
    """The shares of one member: turns the leases into orders. One thread uses it.

    Args:
        me: id of this member; a new one for each start of a process.
        lease_s: how long a lease lasts without a renewal.

    Attributes:
        leases: the epoch of each share that this member has started and not yet ended, by number.
        leaving: whether the member gives up all shares, because it stops.
    """

    def __init__(self, me: str, lease_s: float) -> None:
        self.leases: dict[int, int] = {}
        self.leaving = False
        self._me = me
        self._lease_s = lease_s
        self._fates: dict[int, Fate] = {}

    def look(self, seen: Seen) -> Actions:
        """Compare the leases with the shares that run here; return what to do."""
        mine = {lease.number: lease.epoch for lease in seen.mine}
        drop = [number for number, epoch in self.leases.items() if mine.get(number) != epoch and self._drops(number)]
        part = 0 if self.leaving else fair_parts(seen.count, {**seen.others, self._me: len(mine)})[self._me]
        start = [] if self.leaving else self.begin(seen.mine)
        take = max(0, min(part - len(mine), seen.free))
        return Actions(start, self._leaves(part), drop, take, self._wait(seen, wanting=part != len(mine)))

    def begin(self, leases: Iterable[Lease]) -> list[Lease]:
        """Note that shares start here. Return them, except for shares that still run here from before."""
        new = [lease for lease in leases if lease.number not in self.leases]
        self.leases.update(new)
        self._fates.update((lease.number, Fate.RUN) for lease in new)
        return new

    def ended(self, number: int) -> Lease | None:
        """Note that a share has stopped here; return its lease if the member must give it back."""
        lease = Lease(number, self.leases.pop(number))
        return lease if self._fates.pop(number) is Fate.LEAVE else None

    def _drops(self, number: int) -> bool:
        """Mark a share as dropped; return whether it was not marked before."""
        before, self._fates[number] = self._fates[number], Fate.DROP
        return before is not Fate.DROP

    def _leaves(self, part: int) -> list[int]:
        """Mark the shares above the fair part."""
        leave = [number for number in sorted(self.leases) if self._fates[number] is Fate.RUN][part:]
        self._fates.update(dict.fromkeys(leave, Fate.LEAVE))
        return leave

    def _wait(self, seen: Seen, *, wanting: bool) -> float:
        wait = self._lease_s / 3
        if wanting:
            wait = min(wait, _WANTING_S)
        if seen.next_end is not None:
            wait = min(wait, max(0.0, seen.next_end) + _SOON_S)
        return wait
