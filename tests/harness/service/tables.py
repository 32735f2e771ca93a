"""Checks the rows of a broker: whether they agree with each other, and whether anything is left at the end."""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from tests.harness.service import topology

_CONTRADICTIONS = {
    "a content's refs_left is not the number of its deliveries": (
        "SELECT c.number, c.refs_left, (SELECT count(*) FROM broker_delivery d WHERE d.number = c.number)"
        " FROM broker_content c"
        " WHERE c.refs_left <> (SELECT count(*) FROM broker_delivery d WHERE d.number = c.number)"
    ),
    "a delivery has no content": (
        "SELECT subscription, number FROM broker_delivery d"
        " WHERE NOT EXISTS (SELECT 1 FROM broker_content c WHERE c.number = d.number)"
    ),
    "a delivery belongs to no subscription": (
        "SELECT subscription, number FROM broker_delivery d"
        " WHERE NOT EXISTS (SELECT 1 FROM broker_subscription s WHERE s.id = d.subscription)"
    ),
    "the tally is wrong": (
        "SELECT n.name, t.messages, t.bytes, c.messages, c.bytes FROM broker_destination n"
        " LEFT JOIN (SELECT destination, sum(messages) AS messages, sum(bytes) AS bytes FROM broker_tally"
        " GROUP BY destination) t ON t.destination = n.id"
        " LEFT JOIN (SELECT destination, count(*) AS messages, sum(length(content)) AS bytes FROM broker_content"
        " GROUP BY destination) c ON c.destination = n.id"
        " WHERE coalesce(t.messages, 0) <> coalesce(c.messages, 0) OR coalesce(t.bytes, 0) <> coalesce(c.bytes, 0)"
    ),
    "a message is held by nobody": (
        "SELECT d.subscription, d.number, d.state, d.consumer FROM broker_delivery d WHERE"
        " (d.state IN (0, 2) AND d.consumer <> 0)"
        " OR (d.state = 1 AND NOT EXISTS (SELECT 1 FROM broker_consumer c"
        " WHERE c.id = d.consumer AND c.subscription = d.subscription))"
        " OR (d.state = 3 AND NOT EXISTS (SELECT 1 FROM broker_tx t WHERE t.id = d.consumer AND t.state = 'PREPARED'))"
    ),
    "a transaction that has ended keeps sends": (
        "SELECT tx FROM broker_tx_send s"
        " WHERE NOT EXISTS (SELECT 1 FROM broker_tx t WHERE t.id = s.tx AND t.state = 'PREPARED')"
    ),
    "a number is above the last one": (
        "SELECT number FROM broker_content WHERE number > (SELECT last_number FROM broker_store)"
    ),
}
_LEFT = {
    "messages are left": "SELECT count(*) FROM broker_content",
    "transactions are left": "SELECT count(*) FROM broker_tx WHERE state = 'PREPARED'",
    "consumers are left": "SELECT count(*) FROM broker_consumer",
    "clients are left": "SELECT count(*) FROM broker_client",
    "temporary destinations are left": "SELECT count(*) FROM broker_destination WHERE client IS NOT NULL",
    "subscriptions are left": "SELECT count(*) FROM broker_subscription WHERE durable = 0",
}
_LIMITS = (
    "SELECT n.name, count(c.number) FROM broker_destination n JOIN broker_content c ON c.destination = n.id"
    " WHERE n.max_num_msgs > 0 AND n.name LIKE 'queue:%' GROUP BY n.name, n.max_num_msgs"
    " HAVING count(c.number) > n.max_num_msgs"
)


class Tables:
    """The rows of a broker at one moment.

    Args:
        execute: runs a query, all within one transaction.
        on_sqlite: whether the database is a SQLite file.
    """

    def __init__(self, execute: Any, *, on_sqlite: bool) -> None:
        self._execute = execute
        self._on_sqlite = on_sqlite

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return list(self._execute(query).fetchall())

    def one(self, query: str) -> int:
        """Return the number that a query returns in its only row."""
        return int(self.rows(query)[0][0])

    def contradictions(self) -> Iterator[str]:
        """Yield descriptions of rows that do not agree with each other."""
        for what, query in _CONTRADICTIONS.items():
            if "last_number" in query and not self._on_sqlite:
                continue
            if found := self.rows(query):
                yield f"{what}: {found[:5]}"
        for name, count in self.rows(_LIMITS):
            yield f"{name} has {count} messages, more than its limit of {topology.LIMIT}"

    def left(self) -> Iterator[str]:
        """Yield descriptions of rows that should have been deleted with their owner."""
        for what, query in _LEFT.items():
            if self.one(query):
                yield f"{what}: {self.one(query)}"

    def starts(self) -> int:
        """Return how often the broker has started."""
        return self.one("SELECT starts FROM broker_store")


@contextlib.contextmanager
def tables(store: str) -> Iterator[Tables]:
    """The rows of a broker, as one transaction sees them."""
    url = make_url(store)
    if url.get_backend_name() == "sqlite":
        with contextlib.closing(sqlite3.connect(url.database or "", timeout=60, isolation_level=None)) as file:
            file.execute("BEGIN")
            yield Tables(file.execute, on_sqlite=True)
            file.execute("COMMIT")
    else:
        with psycopg.connect(store) as server:
            server.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield Tables(server.execute, on_sqlite=False)
