"""Moves messages of a queue to other destinations, in slices.

Each slice is one transaction that takes messages out of the queue and stores them again. So each message is always in
exactly one place, even if the process dies between two slices or within a slice.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import sending, settling
from connectors.embedded.access import Access
from connectors.embedded.claiming import Holder
from connectors.embedded.content import Stored, decode
from connectors.embedded.limits import Crowded
from connectors.embedded.link import DatabaseLink
from connectors.embedded.sending import Terms
from connectors.embedded.sql import Sql
from connectors.embedded.storing import NewMessage
from correlator.connector import Taken
from correlator.errors import SendRejected
from correlator.events import Message
from correlator.selector import Selector

SLICE = 100
"""Most messages that one transaction moves."""
SLICE_BYTES = 16 * 1024 * 1024
"""Most bytes of content that one transaction moves; it moves at least one message."""
LAST = Sql("SELECT coalesce(max(number), 0) FROM broker_delivery WHERE subscription = :subscription")
"""The highest number that a subscription has."""
LEFT = Sql(
    "SELECT count(*) FROM broker_delivery WHERE consumer > 0 AND subscription = :subscription AND number <= :last"
)
"""Counts the messages up to a number that consumers and prepared transactions hold."""
_FREE = Sql(
    "SELECT number, size FROM broker_delivery WHERE subscription = :subscription AND consumer = 0"
    " AND number > :above AND number <= :last ORDER BY number LIMIT :limit"
)
_CONTENT = Sql(
    "SELECT d.number, c.message_id, c.sent_at, d.due, c.content, d.deliveries, d.rank, d.expires, c.persistent, {now}"
    " FROM broker_delivery d {content_of_d}"
    " WHERE d.subscription = :subscription AND d.number IN :numbers{bounded_d} ORDER BY d.number"
)
STILL_FREE = Sql(
    "SELECT number, state FROM broker_delivery WHERE subscription = :subscription AND number IN :numbers{bounded}"
    " AND consumer = 0 ORDER BY number{skip}"
)
"""Finds which of these messages nobody holds, with their states. Nobody else gets them before the transaction ends."""


class Target(NamedTuple):
    """Where a message goes: all subscriptions of a destination that want it, or one of them."""

    destination: str
    subscription: str = ""


class Route(NamedTuple):
    """Where a message goes, and its new content; `None` if the content is unchanged."""

    target: Target
    content: bytes | None = None


class Mover:
    """Moves the messages that a queue has at the beginning, oldest first.

    Args:
        access: access to the broker.
        where: name for messages.
        link: the link of `access`.
        selector: chooses messages; `None` for all.
        route: returns where a message goes; `None` leaves it where it is.

    Attributes:
        done: number of moved messages.
    """

    def __init__(
        self,
        access: Access,
        where: str,
        link: DatabaseLink,
        selector: Selector | None,
        route: Callable[[Message], Route | None],
    ) -> None:
        self._access = access
        self._where = where
        self._link = link
        self._selector = selector
        self._route = route
        self.done = 0
        self._nearly_full: set[str] = set()

    def move(self, holder: Holder, limit: int | None) -> Taken:
        """Move the messages of the queue that nobody holds, at most `limit`.

        Raises `SendRejected` if a target refuses a message; messages that were moved before stay moved.
        """
        with self._access.reading(self._where, self._link) as connection:
            last = int(LAST.one(connection, subscription=holder.subscription))
        above = skipped = 0
        while limit is None or self.done < limit:
            most = SLICE if limit is None else min(SLICE, limit - self.done)
            with self._access.reading(self._where, self._link) as connection:
                numbers = self._next(connection, holder, above, last, most)
                found = self._wanted(connection, holder, numbers)
            if not numbers:
                break
            above = numbers[-1]
            skipped += len(numbers) - len(found)
            if found:
                self.done += self._transfer(holder, found)
                self._access.ring({route.target.destination for _, route in found.values()})
        with self._access.reading(self._where, self._link) as connection:
            left = int(LEFT.one(connection, subscription=holder.subscription, last=last))
        return Taken(self.done, left, skipped)

    @staticmethod
    def _next(connection: Connection, holder: Holder, above: int, last: int, most: int) -> list[int]:
        rows = _FREE.rows(connection, subscription=holder.subscription, above=above, last=last, limit=most)
        numbers: list[int] = []
        total = 0
        for number, size in rows:
            total += size
            if numbers and total > SLICE_BYTES:
                break
            numbers.append(number)
        return numbers

    def _wanted(
        self, connection: Connection, holder: Holder, numbers: Sequence[int]
    ) -> dict[int, tuple[NewMessage, Route]]:
        """Return the messages to move, in their stored form, with their routes."""
        found = {}
        for row in _CONTENT.rows(connection, subscription=holder.subscription, numbers=numbers):
            number, message_id, sent_at, due, content, deliveries, rank, expires, persistent, now = row
            if 0 < expires <= now:
                continue
            message = decode(Stored(number, message_id, sent_at, due, content, deliveries + 1, deliveries > 0))
            route = self._route(message) if self._selector is None or self._selector.matches(message) else None
            if route is not None:
                found[number] = (
                    NewMessage(
                        source="",
                        sequence=0,
                        message_id=message_id,
                        content=content if route.content is None else route.content,
                        rank=rank,
                        lives_ms=expires - now if expires else 0,
                        delay_ms=max(0, due - now),
                        persistent=persistent,
                        sent_at=sent_at,
                    ),
                    route,
                )
        return found

    def _transfer(self, holder: Holder, found: dict[int, tuple[NewMessage, Route]]) -> int:
        """Take the messages that nobody has got meanwhile out of the queue, and store them; return how many."""
        while True:
            try:
                with self._access.transaction(self._where, self._link) as connection:
                    free = STILL_FREE.rows(connection, subscription=holder.subscription, numbers=list(found))
                    take(connection, holder, free)
                    self._store(connection, [found[number] for number, _ in free])
                return len(free)
            except Crowded:
                continue

    def _store(self, connection: Connection, entries: Sequence[tuple[NewMessage, Route]]) -> None:
        """Store the messages. Raises `SendRejected` unless all of them are admitted."""
        targets: dict[Target, list[NewMessage]] = {}
        for entry, route in entries:
            targets.setdefault(route.target, []).append(entry)
        # Sorted by name, so that two transactions never wait for each other's destinations.
        for target in sorted(targets):
            # `waits`: otherwise a full target would drop messages that are not persistent.
            terms = Terms(self._link, self._nearly_full, waits=True, moves=True, only=target.subscription)
            verdict = sending.store(connection, target.destination, targets[target], terms)
            if verdict is None:
                continue
            for refusal in verdict.refused.values():
                raise SendRejected("E7570", target.destination, refusal.what, refusal.allowed)
            if verdict.waiting:
                raise SendRejected("E7570", target.destination, "it is full, or its producers are paused")


def take(connection: Connection, holder: Holder, free: Sequence[tuple[int, int]]) -> None:
    """Delete messages that nobody holds, given as numbers and states; `holder` names their subscription."""
    states: dict[int, list[int]] = {}
    for number, state in free:
        states.setdefault(state, []).append(number)
    for state, numbers in states.items():
        settling.leave(connection, holder, numbers, state)
