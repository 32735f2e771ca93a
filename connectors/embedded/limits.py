"""Keeps destinations within their limits: decides which new messages are stored or wait, and which old ones are
removed.

The count is exact even while others send. SQLite has one writer at a time. With PostgreSQL, senders do not see what
others have not committed yet. In the lower half of a limit that does not matter: `max_connections` limits the number of
transactions at a time, and each of them adds so little that all together add less than the upper half. A larger
transaction, and any transaction in the upper half, locks the destination for itself (`Crowded`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import dead, evicting, storing
from connectors.embedded.dead import Circumstances, Death, Ending
from connectors.embedded.destinations import Destination, Subscription
from connectors.embedded.evicting import Victim
from connectors.embedded.properties import REMOVE_LOW_PRIORITY, REMOVE_OLDEST
from connectors.embedded.sql import Sql
from connectors.embedded.storing import Arrival, NewMessage, Undone

_COUNT_DROPPED = Sql("UPDATE broker_destination SET dropped = dropped + :dropped WHERE id = :destination")


class Crowded(Undone):
    """The transaction must be done again, and must then lock the destination for itself."""


class NoRoom(Undone):
    """The transaction may be done again when the destination has room."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


class Refusal(NamedTuple):
    """The reason for which a message is not stored.

    Attributes:
        full: whether there may be room later; otherwise the message is too large.
        what, allowed: texts of the error.
    """

    full: bool
    what: str
    allowed: str = ""


@dataclass(slots=True)
class Verdict:
    """The decision about new messages, by their positions in the batch.

    Attributes:
        admitted: the messages that are stored.
        refused: the messages that are not stored.
        waiting: messages that are not stored now, because senders wait for room. All later messages wait, too.
    """

    admitted: list[Arrival] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)


def has_room(there: Destination, entries: Sequence[NewMessage], rivals: int) -> bool:
    """Return whether all of these messages fit, whatever `rivals` other transactions add at the same time."""
    count, size = len(entries), 0
    if there.max_total_msg_bytes > 0:
        size = sum(len(entry.content) for entry in entries)
    return _fits(count, there.messages or 0, there.max_num_msgs, rivals) and _fits(
        size, there.bytes or 0, there.max_total_msg_bytes, rivals
    )


def _fits(added: int, there: int, most: int, rivals: int) -> bool:
    if most <= 0:
        return True
    if rivals:
        return 2 * added * rivals <= most and 2 * there <= most
    return there + added <= most


def exceed(there: Destination, entries: Sequence[NewMessage]) -> bool:
    """Return whether these messages are more than the destination may ever hold."""
    return not has_room(there._replace(messages=0, bytes=0), entries, 0)


def fits_by_itself(there: Destination, entries: Sequence[NewMessage]) -> bool:
    """Return whether no message is larger than `max_per_msg_bytes`."""
    most = there.max_per_msg_bytes
    return most <= 0 or all(len(entry.content) <= most for entry in entries)


class Gatekeeper:
    """Admits new messages to one destination, one after another, in a transaction that has locked it for itself.

    Args:
        connection: a connection in that transaction.
        there, readers: the destination and its subscriptions.
        waits: whether senders wait for room, whatever the limit behavior is.
    """

    def __init__(
        self, connection: Connection, there: Destination, readers: Sequence[Subscription], *, waits: bool
    ) -> None:
        self._connection = connection
        self._there = there
        self._readers = readers
        self._waits = waits or there.lets_wait
        self._messages = there.messages or 0
        self._bytes = there.bytes or 0
        self._dropped = 0
        self._verdict = Verdict()
        by_rank = there.limit_behavior == REMOVE_LOW_PRIORITY
        self._stored = evicting.candidates(connection, readers, least_rank=0 if by_rank else None)
        self._next: deque[Victim] = deque()
        self._victims: list[Victim] = []
        self._outdone: list[Arrival] = []

    def admit(self, arrivals: Sequence[Arrival]) -> Verdict:
        """Decide about new messages, and remove stored ones that make room for them."""
        for arrival in arrivals:
            size = len(arrival.entry.content)
            if refusal := self._never(size):
                self._verdict.refused[arrival.at] = refusal
            elif self._verdict.waiting:
                self._verdict.waiting.append(arrival.at)
            elif self._lacks(size) == (0, 0):
                self._let_in(arrival)
            elif self._there.limit_behavior not in {REMOVE_OLDEST, REMOVE_LOW_PRIORITY} or not self._replace(arrival):
                self._turn_away(arrival)
        self._end()
        return self._verdict

    def _never(self, size: int) -> Refusal | None:
        for name in ("max_per_msg_bytes", "max_total_msg_bytes"):
            most = getattr(self._there, name)
            if 0 < most < size:
                return Refusal(full=False, what=f"the message has {size} bytes", allowed=f"{name} is {most}")
        return None

    def _lacks(self, size: int) -> tuple[int, int]:
        """Return how many messages and bytes must be removed before one more message of this size has room."""
        most, most_bytes = self._there.max_num_msgs, self._there.max_total_msg_bytes
        return (
            max(0, self._messages + 1 - most) if most > 0 else 0,
            max(0, self._bytes + size - most_bytes) if most_bytes > 0 else 0,
        )

    def _let_in(self, arrival: Arrival) -> None:
        self._verdict.admitted.append(arrival)
        self._count(1, len(arrival.entry.content))

    def _count(self, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size

    def _turn_away(self, arrival: Arrival) -> None:
        if self._waits:
            self._verdict.waiting.append(arrival.at)
        elif arrival.entry.persistent or arrival.entry.insists:
            there = self._there
            held = f"max_num_msgs is {there.max_num_msgs}, max_total_msg_bytes is {there.max_total_msg_bytes}"
            self._verdict.refused[arrival.at] = Refusal(full=True, what=f"{there.name} is full", allowed=held)
        else:
            self._dropped += 1

    def _replace(self, arrival: Arrival) -> bool:
        """Remove others for this message, or drop it if it is the first to be removed; return false if
        others are held.
        """
        messages, size = self._lacks(len(arrival.entry.content))
        stored, new = 0, list(self._verdict.admitted)
        chosen: list[Arrival] = []
        while messages > 0 or size > 0:
            oldest = self._peek(stored)
            newer = min(new, key=lambda one: self._place(one.entry.rank, one.number), default=None)
            places = [self._place(oldest.rank, oldest.number)] if oldest else []
            places += [self._place(newer.entry.rank, newer.number)] if newer else []
            if not places:
                return False
            if self._place(arrival.entry.rank, arrival.number) < min(places):
                self._outdone.append(arrival)
                return True
            if oldest is not None and places[0] == min(places):
                stored, messages, size = stored + 1, messages - 1, size - oldest.size
            elif newer is not None:
                new.remove(newer)
                chosen.append(newer)
                messages, size = messages - 1, size - len(newer.entry.content)
        for _ in range(stored):
            victim = self._next.popleft()
            self._victims.append(victim)
            self._count(-1, -victim.size)
        for one in chosen:
            self._verdict.admitted.remove(one)
            self._outdone.append(one)
            self._count(-1, -len(one.entry.content))
        self._let_in(arrival)
        return True

    def _place(self, rank: int, number: int) -> tuple[int, int]:
        """Return the position in the order in which messages are removed to make room."""
        return (-rank, number) if self._there.limit_behavior == REMOVE_LOW_PRIORITY else (0, number)

    def _peek(self, at: int) -> Victim | None:
        while len(self._next) <= at:
            victim = next(self._stored, None)
            if victim is None:
                return None
            self._next.append(victim)
        return self._next[at]

    def _end(self) -> None:
        """Remove and count the messages that make room or are dropped."""
        by_rank = self._there.limit_behavior == REMOVE_LOW_PRIORITY
        reason = dead.LOW_PRIORITY if by_rank else dead.OLDEST
        why = Circumstances(self._there.name, self._there.use_dmq, Ending(reason, "the destination was full"))
        deaths = [
            Death(victim.number, victim.rank, copy.deliveries, copy.subscription.name)
            for victim in self._victims
            for copy in victim.copies
        ]
        deaths += [
            Death(one.number, one.entry.rank, 0, reader.name)
            for one in self._outdone
            for reader in self._readers
            if storing.wants(reader, one.number, one.entry)
        ]
        dead.bury(self._connection, why, deaths, {one.number: one.entry for one in self._outdone})
        evicting.remove(self._connection, self._there, self._victims)
        if self._dropped:
            _COUNT_DROPPED.run(self._connection, destination=self._there.id, dropped=self._dropped)
