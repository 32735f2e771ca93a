"""Chooses messages that nobody holds, and removes them to make room for other messages."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import settling
from connectors.embedded.claiming import Holder
from connectors.embedded.destinations import Destination, Subscription
from connectors.embedded.sql import Sql

PAGE = 50
"""Most candidates of a subscription that one statement chooses."""
RANKS = range(10)
_OLDEST = Sql(
    "SELECT number, rank, size, deliveries, state FROM broker_delivery"
    " WHERE subscription = :subscription AND state IN (0, 2) AND number > :above"
    " ORDER BY number LIMIT :page{skip}"
)
_OLDEST_OF_RANK = Sql(
    "SELECT number, rank, size, deliveries, state FROM broker_delivery"
    " WHERE subscription = :subscription AND state IN (0, 2) AND rank = :rank AND number > :above"
    " ORDER BY number LIMIT :page{skip}"
)
_REFERENCES = Sql("SELECT number, refs_left FROM broker_content WHERE number IN :numbers{skip}")


class Copy(NamedTuple):
    """The state of a message in one subscription."""

    subscription: Subscription
    deliveries: int
    state: int


class Victim(NamedTuple):
    """A message that may be removed. With PostgreSQL its rows are locked."""

    number: int
    rank: int
    size: int
    copies: Sequence[Copy]


def candidates(
    connection: Connection, readers: Sequence[Subscription], *, least_rank: int | None = None
) -> Iterator[Victim]:
    """Yield the messages of a destination that no consumer and no prepared transaction holds.

    Args:
        connection: a connection in a transaction.
        readers: the subscriptions of the destination.
        least_rank: yield the messages of the lowest priority first, down to this rank, and within a priority the oldest
            first; with `None`, yield the oldest first, whatever their priority is.
    """
    if least_rank is None:
        yield from _in_order(connection, readers, None)
    else:
        for rank in reversed(RANKS[least_rank:]):
            yield from _in_order(connection, readers, rank)


def _in_order(connection: Connection, readers: Sequence[Subscription], rank: int | None) -> Iterator[Victim]:
    above: float = 0
    while True:
        pages = {reader: _page(connection, reader, rank, int(above)) for reader in readers}
        # If a page is full, copies with higher numbers than its last one may be on the next page.
        through = min((rows[-1][0] for rows in pages.values() if len(rows) == PAGE), default=float("inf"))
        found: dict[int, Victim] = {}
        for reader, rows in pages.items():
            for number, its_rank, size, deliveries, state in rows:
                if number <= through:
                    before = found.get(number, Victim(number, its_rank, size, ()))
                    copies = (*before.copies, Copy(reader, deliveries, state))
                    found[number] = before._replace(copies=copies)
        if found:
            references = dict(_REFERENCES.rows(connection, numbers=sorted(found)))
            for number in sorted(found):
                if references.get(number) == len(found[number].copies):  # otherwise somebody holds a copy
                    yield found[number]
        if through == float("inf"):
            return
        above = through


def _page(connection: Connection, reader: Subscription, rank: int | None, above: int) -> Sequence[tuple[int, ...]]:
    values = {"subscription": reader.id, "above": above, "page": PAGE}
    if rank is None:
        return _OLDEST.rows(connection, **values)
    return _OLDEST_OF_RANK.rows(connection, **values, rank=rank)


def remove(connection: Connection, there: Destination, victims: Sequence[Victim]) -> None:
    """Delete these messages from all subscriptions."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for victim in victims:
        for copy in victim.copies:
            kinds.setdefault((copy.subscription.id, copy.state), []).append(victim.number)
    for (subscription, state), numbers in kinds.items():
        settling.leave(connection, Holder(there.id, subscription, 0, there.is_queue), numbers, state)
