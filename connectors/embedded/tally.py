"""Counts the messages and bytes of each destination.

On SQLite, which runs one writing transaction at a time, a destination has one row. On PostgreSQL each transaction adds
a row with what it changes, so that no transaction waits for another. The sum of the rows is what the destination holds.
On average one of `FOLDED` transactions folds the rows of its destination into one row.
"""

from sqlalchemy import Connection

from connectors.embedded.sql import Sql

FOLDED = 64
"""On average one of so many transactions on PostgreSQL folds the rows of its destination."""
_SPREAD = 0x9E3779B1
_ADD = Sql(
    "INSERT INTO broker_tally (destination, messages, bytes) VALUES (:destination, :messages, :bytes){counted}"
    " RETURNING id"
)
_MESSAGES = Sql("SELECT sum(messages) FROM broker_tally WHERE destination = :destination")
_GONE = Sql(
    "SELECT 1",
    # Another transaction may fold at the same time: each row belongs to one of them.
    "DELETE FROM broker_tally WHERE id IN (SELECT id FROM broker_tally WHERE destination = :destination"
    " AND id <= :last FOR UPDATE SKIP LOCKED) RETURNING messages, bytes, changes",
)
_FOLD = Sql(
    "INSERT INTO broker_tally (destination, messages, bytes, changes)"
    " VALUES (:destination, :messages, :bytes, :changes)"
)


def add(connection: Connection, destination: int, messages: int, size: int) -> None:
    """Add messages and bytes to the tally of a destination; negative numbers subtract."""
    added = int(_ADD.one(connection, destination=destination, messages=messages, bytes=size))
    if connection.dialect.name == "postgresql":
        fold_in_turn(connection, destination, added)


def total(connection: Connection, destination: int) -> int:
    """The number of messages that a destination holds."""
    return int(_MESSAGES.one(connection, destination=destination) or 0)


def fold_in_turn(connection: Connection, destination: int, added: int) -> None:
    """Fold the rows of a destination on PostgreSQL if the id of the row that the transaction has added says so.

    The ids are scattered by a hash: if two destinations are used by turns, one destination gets only odd ids and the
    other only even ids, and the rows of both must be folded.
    """
    if ((added * _SPREAD & 0xFFFFFFFF) >> 8) % FOLDED == 0:
        _fold(connection, destination, added)


def _fold(connection: Connection, destination: int, last: int) -> None:
    """Replace the rows of a destination up to this id by one row with their sums."""
    rows = _GONE.rows(connection, destination=destination, last=last)
    if rows:
        messages, size, changes = (int(sum(column)) for column in zip(*rows, strict=True))
        _FOLD.run(connection, destination=destination, messages=messages, bytes=size, changes=changes)
