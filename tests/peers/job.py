"""The job of all peers, as each program gets it, and a state in SQLite for those that have none of their own."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """What a life gets by its environment.

    Attributes:
        broker: address of the broker.
        source: where orders come from: a queue, a topic or a directory. An order is JSON with `order`, its number, and
            `customer`.
        target: where results go. A result is an order with `count`: how many orders of this customer there were.
        directory: place of the state.
        remembers: "yes" if the program recognises orders that it has counted.
    """

    broker: str
    source: str
    target: str
    directory: str
    remembers: str

    @classmethod
    def here(cls) -> "Job":
        """The job of this process."""
        return cls(*(os.environ[f"PEER_{name.upper()}"] for name in cls._fields))

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that hold it."""
        return {f"PEER_{name.upper()}": value for name, value in self._asdict().items()}

    def counts(self) -> "Counts":
        """Open the state in SQLite."""
        return Counts(Path(self.directory), remembers=self.remembers == "yes")


class Counts:
    """Counts orders for each customer in SQLite, with one commit for each order.

    Args:
        directory: place of the database.
        remembers: whether it keeps the count of each order, and returns it when the order comes again. A consumer that
            does this is called idempotent.
    """

    def __init__(self, directory: Path, *, remembers: bool) -> None:
        self._remembers = remembers
        self._connection = sqlite3.connect(directory / "counts.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS counts (customer TEXT PRIMARY KEY, number INTEGER)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, count INTEGER)")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All within the block is one commit."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield

    def add(self, order: int, customer: str) -> int:
        """Count an order in a transaction of its own; returns the number of orders of this customer."""
        with self.transaction():
            return self.add_within(order, customer)

    def add_within(self, order: int, customer: str) -> int:
        """Count an order in the transaction that is open."""
        if self._remembers:
            known = self._connection.execute("SELECT count FROM orders WHERE number = ?", (order,)).fetchone()
            if known:
                return int(known[0])
        sql = "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number"
        ((number,),) = self._connection.execute(sql, (customer,)).fetchall()
        if self._remembers:
            self._connection.execute("INSERT INTO orders VALUES (?, ?)", (order, number))
        return int(number)


def counts_of(directory: Path) -> dict[str, int]:
    """What the state in SQLite holds when its program has ended."""
    with contextlib.closing(sqlite3.connect(directory / "counts.db")) as connection:
        return dict(connection.execute("SELECT customer, number FROM counts").fetchall())
