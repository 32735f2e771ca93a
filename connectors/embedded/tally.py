"""Counts the messages and bytes of each destination.

On SQLite, which runs one writing transaction at a time, a destination has one row. On PostgreSQL each transaction adds
a row with its changes, so that no transaction waits for another. The sum of the rows is what the destination holds. On
average one of `FOLDED` transactions folds the rows of its destination into one row.
"""

from sqlalchemy import Connection

from connectors.embedded.sql import Sql

FOLDED = 64
"""On average, one of this number of transactions on PostgreSQL folds the rows of its destination."""
_ADD = Sql(
    "INSERT INTO broker_tally (destination, messages, bytes) VALUES (:destination, :messages, :bytes){counted}",
    "SELECT broker_count(:destination, :messages, :bytes, :folded)",
)
_MESSAGES = Sql("SELECT sum(messages) FROM broker_tally WHERE destination = :destination")


def add(connection: Connection, destination: int, messages: int, size: int) -> None:
    """Add messages and bytes to the tally of a destination; negative numbers subtract."""
    _ADD.run(connection, destination=destination, messages=messages, bytes=size, folded=FOLDED)


def total(connection: Connection, destination: int) -> int:
    """Return the number of messages that a destination holds."""
    return int(_MESSAGES.one(connection, destination=destination) or 0)
