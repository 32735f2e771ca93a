"""Ends messages whose time to live is over even if no consumer asks for them."""

from collections.abc import Sequence

from sqlalchemy import Connection

from connectors.embedded import dead, settling
from connectors.embedded.claiming import EXPIRED, Holder
from connectors.embedded.dead import Circumstances, Death, Ending
from connectors.embedded.destinations import Subscription
from connectors.embedded.sql import Sql

MOST = 1000
"""Most messages that one transaction ends."""
COMMENT = "its time to live was over"
_COLUMNS = "SELECT d.subscription, d.number, d.rank, d.deliveries, d.state, s.name, n.id, n.name, n.use_dmq"
_JOINED = (
    " JOIN broker_subscription s ON s.id = d.subscription JOIN broker_destination n ON n.id = s.destination"
    " WHERE d.expires > 0 AND d.expires <= {now} AND d.state IN (0, 2)"
)
_FIRST = " ORDER BY d.expires LIMIT :most{skip_d}"
_EXPIRED = Sql(f"{_COLUMNS} FROM broker_delivery d{_JOINED}{_FIRST}")
_OF = " AND d.subscription = :subscription"
_EXPIRED_OF = Sql(
    # SQLite would read all messages of the subscription, at each send to a full destination.
    f"{_COLUMNS} FROM broker_delivery d INDEXED BY broker_delivery_expiry{_JOINED}{_OF}{_FIRST}",
    f"{_COLUMNS} FROM broker_delivery d{_JOINED}{_OF}{_FIRST}",
)
_FREE = Sql("SELECT number FROM broker_content WHERE number IN :numbers{skip}")


def end(connection: Connection, most: int) -> int:
    """End the messages that expired first; return how many."""
    return _end(connection, _EXPIRED.rows(connection, most=most))


def end_of(connection: Connection, readers: Sequence[Subscription]) -> int:
    """End expired messages of these subscriptions; return how many."""
    return sum(_end(connection, _EXPIRED_OF.rows(connection, subscription=one.id, most=MOST)) for one in readers)


def _end(connection: Connection, rows: Sequence[tuple[int, int, int, int, int, str, int, str, int]]) -> int:
    """End these messages, except for messages that another transaction is acknowledging: do not wait for that one."""
    free = {row[0] for row in _FREE.rows(connection, numbers=sorted({row[1] for row in rows}))} if rows else set()
    deaths: dict[Circumstances, list[Death]] = {}
    ended: dict[tuple[Holder, int], list[int]] = {}
    for subscription, number, rank, deliveries, state, name, destination, destination_name, use_dmq in rows:
        if number in free:
            why = Circumstances(destination_name, use_dmq, Ending(EXPIRED, COMMENT))
            deaths.setdefault(why, []).append(Death(number, rank, deliveries, name))
            holder = Holder(destination, subscription, 0, destination_name.startswith("queue:"))
            ended.setdefault((holder, state), []).append(number)
    for why, those in deaths.items():
        dead.bury(connection, why, those)
    for (holder, state), numbers in ended.items():
        settling.leave(connection, holder, numbers, state)
    return sum(map(len, ended.values()))
