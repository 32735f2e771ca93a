"""Prepared transactions: the broker stores what they will do, and for a day their outcome."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import settling
from connectors.embedded.sql import Sql, now_ms
from correlator.errors import UsageError, quoted

OUTCOMES_KEPT_MS = 24 * 3600 * 1000
_FIND = Sql("SELECT id, state, at FROM broker_tx WHERE name = :name{lock}")
_FORGET = Sql("DELETE FROM broker_tx WHERE state <> 'PREPARED' AND at < {now} - :kept")
_MAKE = Sql(
    "INSERT INTO broker_tx (name, state, at) VALUES (:name, 'PREPARED', :at) ON CONFLICT DO NOTHING RETURNING id"
)
_END = Sql("UPDATE broker_tx SET state = :state, at = :at WHERE id = :tx")
_SEND = Sql(
    "INSERT INTO broker_tx_send (tx, position, destination, message_id, content)"
    " VALUES (:tx, :position, :destination, :message_id, :content)"
)
_SENDS = Sql("SELECT destination, message_id, content FROM broker_tx_send WHERE tx = :tx ORDER BY position")
_FORGET_SENDS = Sql("DELETE FROM broker_tx_send WHERE tx = :tx")


_SENDS_TO = Sql(
    "SELECT DISTINCT s.destination FROM broker_tx t JOIN broker_tx_send s ON s.tx = t.id WHERE t.name = :name"
)
_ACKNOWLEDGED_FROM = Sql(
    "SELECT DISTINCT n.name FROM broker_tx t JOIN broker_delivery d ON d.consumer = t.id AND d.consumer > 0"
    " JOIN broker_subscription s ON s.id = d.subscription JOIN broker_destination n ON n.id = s.destination"
    " WHERE t.name = :name AND d.state = 3"
)


class PreparedSend(NamedTuple):
    """A message that a prepared transaction will send."""

    destination: str
    message_id: str
    content: bytes


class Resolved(NamedTuple):
    """The messages that a resolved transaction sends.

    Attributes:
        since_s: time at which the transaction was prepared, by the monotonic clock of this process.
    """

    sends: Sequence[PreparedSend]
    since_s: float


def forget(connection: Connection) -> None:
    """Forget the outcomes of transactions that were resolved more than a day ago."""
    _FORGET.run(connection, kept=OUTCOMES_KEPT_MS)


def prepare(connection: Connection, name: str, sends: Sequence[PreparedSend]) -> int:
    """Store a prepared transaction; return its id. Raises `UsageError` E7519 if the name is in use."""
    at = now_ms(connection)
    forget(connection)
    tx = _MAKE.one(connection, name=name, at=at)
    if tx is None:
        what = "a transaction of this name is prepared, or was resolved within the last day"
        raise UsageError("E7519", f"transaction {quoted(name)}", what, "", "Use a new name for each transaction")
    rows = [{"tx": tx, "position": at, **send._asdict()} for at, send in enumerate(sends)]
    _SEND.run_all(connection, rows)
    return int(tx)


def sends_to(connection: Connection, name: str) -> set[str]:
    """Return the destinations to which a prepared transaction will send."""
    return {row[0] for row in _SENDS_TO.rows(connection, name=name)}


def acknowledged_from(connection: Connection, name: str) -> set[str]:
    """Return the destinations from which a prepared transaction has acknowledged messages."""
    return {row[0] for row in _ACKNOWLEDGED_FROM.rows(connection, name=name)}


def resolve(connection: Connection, name: str, *, commit: bool) -> Resolved:
    """End a prepared transaction. Raises `UsageError` E7520 as `ServiceSession.resolve`."""
    now_s, at = time.monotonic(), now_ms(connection)
    forget(connection)
    rows = _FIND.rows(connection, name=name)
    if not rows:
        raise UsageError("E7520", f"transaction {quoted(name)}", "there is no prepared transaction of this name")
    tx, state, prepared_at = rows[0]
    wanted = "COMMITTED" if commit else "ROLLEDBACK"
    if state == wanted:
        return Resolved((), now_s)
    if state != "PREPARED":
        raise UsageError("E7520", f"transaction {quoted(name)}", f"it is {state} already")
    sends = [PreparedSend(*row) for row in _SENDS.rows(connection, tx=tx)] if commit else []
    if commit:
        settling.leave_prepared(connection, tx)
    else:
        settling.return_prepared(connection, tx)
    _FORGET_SENDS.run(connection, tx=tx)
    _END.run(connection, tx=tx, state=wanted, at=at)
    return Resolved(sends, now_s - (at - prepared_at) / 1000)
