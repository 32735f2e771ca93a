"""Reads the messages of a queue without changing anything."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from connectors.embedded.content import Stored, decode
from connectors.embedded.sql import Sql
from correlator.errors import UsageError
from correlator.events import Message
from correlator.options import check_destination

PAGE = 1000
"""Most messages that one transaction reads: a long transaction would keep the database from removing old rows."""
_FIRST = Sql(
    "SELECT s.id, (SELECT max(number) FROM broker_delivery d WHERE d.subscription = s.id) FROM broker_subscription s"
    " JOIN broker_destination n ON n.id = s.destination WHERE n.name = :name AND s.name = ''"
)
# The primary key finds the next messages of one rank in their order. To order by rank and number together, the database
# would read and sort all that are left for each page.
_NEXT_RANK = Sql(
    "SELECT min(rank) FROM broker_delivery"
    " WHERE subscription = :subscription AND state <> 3 AND number <= :last AND rank > :rank"
)
_NEXT = Sql(
    "SELECT d.number, c.message_id, c.sent_at, d.due, c.content, d.deliveries, d.expires, {now}"
    " FROM broker_delivery d {content_of_d}"
    " WHERE d.subscription = :subscription AND d.state <> 3 AND d.number <= :last"
    " AND d.rank = :rank AND d.number > :number ORDER BY d.number LIMIT :page"
)


def browse(looking: Callable[[], AbstractContextManager[Connection]], name: str, limit: int) -> Sequence[Message]:
    """Return copies of the first messages of a queue, including those that consumers hold.

    With SQLite it pauses after each page for as long as the page took. The write-ahead log begins anew only when nobody
    reads it: without pauses it would grow as long as somebody browses a long queue.

    Args:
        looking: opens a transaction; called for each page.
        name: the queue.
        limit: largest number of messages.

    Raises:
        UsageError: E2110, not a queue.
        ConfigError: E1215, not a destination.
    """
    if check_destination("browse", name).kind != "queue":
        raise UsageError("E2110", name, "only queues can be browsed")
    began_s = time.monotonic()
    with looking() as connection:
        rests = connection.dialect.name == "sqlite"
        browser = Browser(connection, name)
        found = list(browser.page(connection, limit))
    while browser.more and len(found) < limit:
        if rests:
            time.sleep(time.monotonic() - began_s)
        began_s = time.monotonic()
        with looking() as connection:
            found += browser.page(connection, limit - len(found))
    return [decode(stored) for stored in found]


class Browser:
    """Reads the messages that a queue has at the beginning, in the order of claims, including held messages.

    Args:
        connection: a connection in a transaction.
        name: the queue.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        rows = _FIRST.rows(connection, name=name)
        self._subscription: int = rows[0][0] if rows else 0
        self._last: int | None = rows[0][1] if rows else None
        self._rank: int | None = -1
        self._number = 0  # the last number of this rank that was read
        self.more = self._last is not None
        if self.more:
            self._go_on(connection)

    def page(self, connection: Connection, most: int) -> Sequence[Stored]:
        """Return the next messages, without expired ones. Sets `more` to false at the end."""
        limit = min(most, PAGE)
        found: list[Stored] = []
        left = limit
        while self.more and left:
            rows = self._next(connection, left)
            found += self._stored(rows)
            if len(rows) < left:
                self._go_on(connection)
            left -= len(rows)
        return found

    def _next(self, connection: Connection, most: int) -> Sequence[tuple[int, str, int, int, bytes, int, int, int]]:
        values = {"subscription": self._subscription, "last": self._last, "rank": self._rank, "number": self._number}
        rows: Sequence[tuple[int, str, int, int, bytes, int, int, int]] = _NEXT.rows(connection, **values, page=most)
        if rows:
            self._number = rows[-1][0]
        return rows

    def _go_on(self, connection: Connection) -> None:
        """Begin with the next rank that has messages."""
        values = {"subscription": self._subscription, "last": self._last, "rank": self._rank}
        self._rank, self._number = _NEXT_RANK.one(connection, **values), 0
        self.more = self._rank is not None

    @staticmethod
    def _stored(rows: Sequence[tuple[int, str, int, int, bytes, int, int, int]]) -> Iterator[Stored]:
        for number, message_id, sent_at, due, content, deliveries, expires, now in rows:
            if not 0 < expires <= now:
                yield Stored(number, message_id, sent_at, due, content, deliveries + 1, deliveries > 0)
