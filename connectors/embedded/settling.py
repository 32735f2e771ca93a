"""Ends or gives back the messages that a consumer holds. Every message leaves its subscription through `leave`."""

from collections.abc import Sequence

from sqlalchemy import Connection

from connectors.embedded import tally
from connectors.embedded.claiming import Holder
from connectors.embedded.sql import HELD, PREPARED, Function, Sql

_LEAVE = Sql(
    "DELETE FROM broker_delivery WHERE subscription = :subscription AND number IN :numbers"
    " AND state = :state AND consumer = :consumer RETURNING size"
)
_LEAVE_QUEUE_POSTGRES = Sql(
    "SELECT 1", "SELECT broker_leave(:destination, :subscription, :consumer, :state, :numbers, :folded)"
)
_LEAVE_ALONE_POSTGRES = Function("broker_leave")
_LOCK_CONTENT = Sql("SELECT 1", "SELECT 1 FROM broker_content WHERE number IN :numbers ORDER BY number FOR UPDATE")
_DROP_QUEUE = Sql("DELETE FROM broker_content WHERE number IN :numbers")
_LET_GO = Sql(
    "UPDATE broker_content SET refs_left = refs_left - 1 WHERE number IN :numbers AND refs_left > 1 RETURNING number"
)
_DROP = Sql("DELETE FROM broker_content WHERE number IN :numbers RETURNING length(content)")
_REJECT = Sql(
    "UPDATE broker_delivery SET {returned}"
    " WHERE subscription = :subscription AND number IN :numbers AND state = 1 AND consumer = :consumer"
)
_REJECT_ALL = Sql(
    "UPDATE broker_delivery SET {returned}"
    " WHERE subscription = :subscription AND state = 1 AND consumer = :consumer AND consumer > 0"
)
_RELEASE = Sql(
    "UPDATE broker_delivery SET state = 0, consumer = 0, deliveries = deliveries - suspect"
    " WHERE subscription = :subscription AND number IN :numbers AND state = 1 AND consumer = :consumer"
)
_PREPARE = Sql(
    "UPDATE broker_delivery SET state = 3, consumer = :tx"
    " WHERE subscription = :subscription AND number IN :numbers AND state = 1 AND consumer = :consumer"
)
_ROLL_BACK = Sql("UPDATE broker_delivery SET {returned} WHERE state = 3 AND consumer = :tx")
_PREPARED = Sql(
    "SELECT s.destination, d.subscription, n.name, d.number FROM broker_delivery d"
    " JOIN broker_subscription s ON s.id = d.subscription JOIN broker_destination n ON n.id = s.destination"
    " WHERE d.state = 3 AND d.consumer = :tx ORDER BY s.destination, d.subscription, d.number"
)


def acknowledge(connection: Connection, holder: Holder, numbers: Sequence[int]) -> bool:
    """Delete acknowledged messages; return false if the consumer no longer held all of them."""
    return leave(connection, holder, numbers, HELD)


def acknowledge_alone(connection: Connection, holder: Holder, numbers: Sequence[int]) -> bool:
    """Do the same as `acknowledge` for a queue on PostgreSQL, outside a transaction; false means that
    nothing has changed.
    """
    place = holder.destination, holder.subscription, holder.consumer
    return not numbers or _LEAVE_ALONE_POSTGRES.call(connection, *place, HELD, numbers, tally.FOLDED)


def leave(connection: Connection, holder: Holder, numbers: Sequence[int], state: int) -> bool:
    """Delete messages that are in this state for this holder. Their content is deleted with the last subscription.

    Return whether all of these messages were found.
    """
    if not numbers:
        return True
    values = {"subscription": holder.subscription, "consumer": holder.consumer, "state": state, "numbers": numbers}
    if holder.is_queue and connection.dialect.name == "postgresql":
        place = {"destination": holder.destination, "folded": tally.FOLDED}
        return bool(_LEAVE_QUEUE_POSTGRES.one(connection, **values, **place))
    gone = [row[0] for row in _LEAVE.rows(connection, **values)]
    if len(gone) != len(numbers):
        return False
    if holder.is_queue:
        _DROP_QUEUE.run(connection, numbers=numbers)
        tally.add(connection, holder.destination, -len(gone), -sum(gone))
    else:
        # Sorted, so that two consumers do not wait for each other.
        _LOCK_CONTENT.rows(connection, numbers=numbers)
        kept = {row[0] for row in _LET_GO.rows(connection, numbers=numbers)}
        if last := [number for number in numbers if number not in kept]:
            sizes = [row[0] for row in _DROP.rows(connection, numbers=last)]
            tally.add(connection, holder.destination, -len(sizes), -sum(sizes))
    return True


def reject(connection: Connection, holder: Holder, numbers: Sequence[int]) -> None:
    """Make messages that the program has seen ready again, in their place."""
    _give_back(connection, _REJECT, holder, numbers)


def reject_all(connection: Connection, subscription: int, consumer: int) -> None:
    """Do the same as `reject` for all messages that a consumer holds."""
    _REJECT_ALL.run(connection, subscription=subscription, consumer=consumer)


def release(connection: Connection, holder: Holder, numbers: Sequence[int]) -> None:
    """Make messages that the program has not seen ready again, in their place."""
    _give_back(connection, _RELEASE, holder, numbers)


def _give_back(connection: Connection, how: Sql, holder: Holder, numbers: Sequence[int]) -> None:
    if numbers:
        how.run(connection, subscription=holder.subscription, consumer=holder.consumer, numbers=numbers)


def prepare(connection: Connection, holder: Holder, numbers: Sequence[int], tx: int) -> bool:
    """Assign messages to a prepared transaction; return false if the consumer no longer held all of them."""
    values = {"subscription": holder.subscription, "consumer": holder.consumer, "numbers": numbers, "tx": tx}
    return not numbers or _PREPARE.run(connection, **values) == len(numbers)


def leave_prepared(connection: Connection, tx: int) -> None:
    """Delete the messages that a prepared transaction has acknowledged."""
    found: dict[Holder, list[int]] = {}
    for destination, subscription, name, number in _PREPARED.rows(connection, tx=tx):
        found.setdefault(Holder(destination, subscription, tx, name.startswith("queue:")), []).append(number)
    for holder, numbers in found.items():
        leave(connection, holder, numbers, PREPARED)


def return_prepared(connection: Connection, tx: int) -> None:
    """Make the messages that a prepared transaction has acknowledged ready again, in their place."""
    _ROLL_BACK.run(connection, tx=tx)
