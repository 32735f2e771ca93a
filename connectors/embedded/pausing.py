"""Pauses the producers or consumers of a destination. The row of the destination records it until somebody resumes
them.

Senders read the row in each transaction, and wait as they do for room. A consumer reads it before it claims: so it
takes no more messages, but can settle the messages that it holds.
"""

from sqlalchemy import Connection

from connectors.embedded import destinations
from connectors.embedded.sql import Sql

_PAUSE = Sql("UPDATE broker_destination SET paused = :paused WHERE id = :destination")
_PAUSED = Sql("SELECT paused FROM broker_destination WHERE id = :destination")


def pause(connection: Connection, name: str, destination: int, paused: str | None) -> None:
    """Set what the destination pauses, after all transactions that send to it have ended."""
    destinations.lock_against_sends(connection, name)
    _PAUSE.run(connection, destination=destination, paused=paused)


def stops_consumers(connection: Connection, destination: int) -> bool:
    """Return whether the consumers of a destination take no more messages."""
    return _PAUSED.one(connection, destination=destination) in {"CONSUMERS", "ALL"}
