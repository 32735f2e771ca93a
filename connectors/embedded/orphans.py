"""Removes the messages of subscriptions that are gone, in slices.

A subscription with many messages counts as deleted when its row is deleted. Its messages stay without an owner until
they are removed here. If the process that removes them dies, another process continues.
"""

from sqlalchemy import Connection

from connectors.embedded import settling
from connectors.embedded.claiming import Holder
from connectors.embedded.sql import Sql

SLICE = 500
"""Most messages that one transaction removes."""
_FIND = Sql(
    "WITH RECURSIVE seen (id) AS (SELECT min(subscription) FROM broker_delivery UNION ALL"
    " SELECT (SELECT min(subscription) FROM broker_delivery WHERE subscription > seen.id)"
    " FROM seen WHERE seen.id IS NOT NULL)"
    " SELECT id FROM seen WHERE id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM broker_subscription s WHERE s.id = seen.id) LIMIT 1"
)
_NEXT = Sql(
    "SELECT d.number, d.state, c.destination FROM broker_delivery d {content_of_d}"
    " WHERE d.subscription = :subscription AND d.consumer = 0 ORDER BY d.number LIMIT :limit"
)
_TALLY_OF_NOBODY = Sql(
    "DELETE FROM broker_tally WHERE NOT EXISTS (SELECT 1 FROM broker_destination n WHERE n.id = destination)"
)


def exist(connection: Connection) -> bool:
    """Return whether there are messages without an owner."""
    return _FIND.one(connection) is not None


def sweep(connection: Connection) -> bool:
    """Remove a slice, in a transaction. Return whether there may be more."""
    subscription = _FIND.one(connection)
    rows = [] if subscription is None else _NEXT.rows(connection, subscription=subscription, limit=SLICE)
    if not rows:
        _TALLY_OF_NOBODY.run(connection)
        return False
    numbers: dict[tuple[int, int], list[int]] = {}
    for number, state, destination in rows:
        numbers.setdefault((state, destination), []).append(number)
    for (state, destination), some in numbers.items():
        # A message of a queue may be treated like a message of a topic whose last subscription releases it.
        settling.leave(connection, Holder(destination, subscription, 0, is_queue=False), some, state)
    return True
