"""Finds the messages of a queue that match the selector of a consumer.

Message and selector never change, so a message that did not match once never will: the scan reads each message once,
however many messages stay in the queue for other consumers. It remembers the numbers of matching messages as long as
they are in the queue, since a consumer that holds them may give them back.

With PostgreSQL a message may become visible after one with a higher number. So the scan passes over a number for good
only when every transaction has ended that may have taken a lower number. A sender's transaction has an id before it
takes numbers. So if it took a number below the numbers that a snapshot shows, its id is below the `xmax` of that
snapshot, and it has ended when the `xmin` of a later snapshot has reached this `xmax`.
"""

from bisect import insort
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from connectors.embedded.claiming import Bounds, Ready
from connectors.embedded.content import Stored
from connectors.embedded.sql import DELAYED, READY, Sql

PAGE = 500
"""Most messages that one statement reads or names."""
PAGES = 10
"""Most pages of new messages that the scan reads in one transaction."""
MOST_MATCHING = 10_000
"""Most matching messages that the scan remembers before it reads on."""

_NUMBERS = Sql(
    "SELECT number FROM broker_delivery WHERE subscription = :subscription AND number > :above AND number <= :through"
    " ORDER BY number"
)
_NEXT = Sql(
    "SELECT number FROM broker_delivery WHERE subscription = :subscription AND number > :above"
    " ORDER BY number LIMIT :page"
)
_CONTENT = Sql(
    "SELECT d.number, c.message_id, c.sent_at, d.due, c.content, d.deliveries, d.rank"
    " FROM broker_delivery d {content_of_d}"
    " WHERE d.subscription = :subscription AND d.number IN :numbers{bounded_d}"
)
_STATES = Sql(
    "SELECT number, size, suspect, state, due, {now} FROM broker_delivery"
    " WHERE subscription = :subscription AND number IN :numbers{bounded}"
)
_SNAPSHOT = Sql(
    "SELECT 0, 0",
    "SELECT CAST(CAST(pg_snapshot_xmin(s) AS text) AS bigint), CAST(CAST(pg_snapshot_xmax(s) AS text) AS bigint)"
    " FROM pg_current_snapshot() AS s",
)


class Scan:
    """The progress of one consumer through its queue. Only the thread of the consumer uses the object.

    Args:
        wanted: returns whether a message matches.

    Attributes:
        behind: whether the last transaction ended before the scan had read all messages.
    """

    def __init__(self, wanted: Callable[[Stored], bool]) -> None:
        self.behind = False
        self._wanted = wanted
        self._passed = 0  # no number up to this one will ever appear
        self._through = 0  # the highest number that was seen
        self._seen: set[int] = set()  # the numbers between these two that were seen
        # A number, and the id below which all transactions must have ended before the scan passes over it.
        self._waits: tuple[int, int] | None = None
        self._matching: list[tuple[int, int]] = []  # rank and number, in the order of claims

    def choose(self, connection: Connection, subscription: int, bounds: Bounds) -> list[Ready]:
        """Return the first matching messages that nobody holds, at most as many as the bounds allow."""
        self._look_on(connection, subscription)
        chosen: list[Ready] = []
        for first in range(0, len(self._matching), PAGE):
            chosen += self._ready_among(connection, subscription, self._matching[first : first + PAGE])
            if len(chosen) >= bounds.messages:
                break
        return chosen

    def _ready_among(self, connection: Connection, subscription: int, places: Sequence[tuple[int, int]]) -> list[Ready]:
        numbers = [number for _, number in places]
        rows = {row[0]: row for row in _STATES.rows(connection, subscription=subscription, numbers=numbers)}
        ready = []
        for place in places:
            row = rows.get(place[1])
            if row is None:
                self._matching.remove(place)
                continue
            number, size, suspect, state, due, now = row
            if state == READY or (state == DELAYED and due <= now):
                ready.append(Ready(number, size, suspect))
        return ready

    def _look_on(self, connection: Connection, subscription: int) -> None:
        """Read the messages that have appeared since the last time."""
        on_postgres = connection.dialect.name == "postgresql"
        ended_below = _SNAPSHOT.rows(connection)[0][0] if on_postgres else 0
        self._look_at(connection, subscription, self._late(connection, subscription))
        if self._waits is not None and ended_below >= self._waits[1]:
            self._pass(self._waits[0])
        self.behind = False
        for _ in range(PAGES):
            if len(self._matching) >= MOST_MATCHING:
                break
            rows = _NEXT.rows(connection, subscription=subscription, above=self._through, page=PAGE)
            self._look_at(connection, subscription, [row[0] for row in rows])
            self.behind = len(rows) == PAGE
            if not self.behind:
                break
        if not on_postgres:
            self._pass(self._through)
        elif self._waits is None and self._through > self._passed:
            self._waits = self._through, _SNAPSHOT.rows(connection)[0][1]

    def _pass(self, number: int) -> None:
        self._passed, self._waits = number, None
        self._seen = {seen for seen in self._seen if seen > number}

    def _late(self, connection: Connection, subscription: int) -> list[int]:
        """Return numbers below the highest seen number that were not visible before."""
        if self._passed == self._through:
            return []
        span = {"above": self._passed, "through": self._through}
        rows = _NUMBERS.rows(connection, subscription=subscription, **span)
        return [row[0] for row in rows if row[0] not in self._seen]

    def _look_at(self, connection: Connection, subscription: int, numbers: list[int]) -> None:
        for first in range(0, len(numbers), PAGE):
            page = numbers[first : first + PAGE]
            for number, message_id, sent_at, due, content, deliveries, rank in _CONTENT.rows(
                connection, subscription=subscription, numbers=page
            ):
                message = Stored(number, message_id, sent_at, due, content, deliveries + 1, deliveries > 0)
                if self._wanted(message):
                    insort(self._matching, (rank, message.number))
            self._seen.update(page)
            self._through = max(self._through, page[-1])
