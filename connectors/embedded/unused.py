"""Deletes destinations that were made by their first use, when nobody has used them for some time.

A destination is in use while it has a consumer, a producer, a message, a durable subscription of a topic, or a prepared
transaction that will send there, and while an administrator has paused it. It is also kept while the broker remembers
the sequence of a sender that may repeat its messages after a crash: otherwise a repeat would be stored as a new
message. The number of changes in the tally shows whether messages came and went between two rounds.
"""

from collections.abc import Callable

from sqlalchemy import Connection

from connectors.embedded import destinations
from connectors.embedded.link import DatabaseLink
from connectors.embedded.sql import Sql

KEPT_MS = 120_000
"""Milliseconds for which a destination is kept after its last use."""
_IS_UNUSED = (
    "n.auto_created = 1 AND n.client IS NULL AND n.paused IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM broker_subscription s JOIN broker_consumer c ON c.subscription = s.id"
    " WHERE s.destination = n.id)"
    " AND NOT EXISTS (SELECT 1 FROM broker_producer o WHERE o.destination = n.id)"
    " AND NOT EXISTS (SELECT 1 FROM broker_subscription s WHERE s.destination = n.id AND s.name <> '')"
    " AND NOT EXISTS (SELECT 1 FROM broker_subscription s JOIN broker_delivery d ON d.subscription = s.id"
    " WHERE s.destination = n.id)"
    " AND NOT EXISTS (SELECT 1 FROM broker_sender x WHERE x.destination = n.id AND x.source NOT LIKE 'one life: %')"
    " AND NOT EXISTS (SELECT 1 FROM broker_tx_send p WHERE p.destination = n.name)"
)
_CHANGES = "coalesce((SELECT sum(t.changes) FROM broker_tally t WHERE t.destination = n.id), 0)"
_FORMS = {"{is_unused}": _IS_UNUSED, "{changes}": _CHANGES}


def _sql(text: str) -> Sql:
    for form, meaning in _FORMS.items():
        text = text.replace(form, meaning)
    return Sql(text)


_CHANGED = _sql(
    "SELECT 1 FROM broker_destination n WHERE n.auto_created = 1 AND n.client IS NULL AND ("
    "(n.unused_since IS NULL OR n.unused_changes <> {changes}) AND {is_unused}"
    " OR n.unused_since IS NOT NULL AND NOT ({is_unused})) LIMIT 1"
)
_USED = _sql(
    "UPDATE broker_destination AS n SET unused_since = NULL"
    " WHERE n.unused_since IS NOT NULL AND (NOT ({is_unused}) OR n.unused_changes <> {changes})"
)
_UNUSED = _sql(
    "UPDATE broker_destination AS n SET unused_since = {now}, unused_changes = {changes}"
    " WHERE n.unused_since IS NULL AND {is_unused}"
)
_OVERDUE = _sql(
    "SELECT n.id, n.name FROM broker_destination n WHERE n.unused_since <= {now} - :kept AND {is_unused}"
    " AND n.unused_changes = {changes} ORDER BY n.id"
)
_STILL = _sql(
    "SELECT 1 FROM broker_destination n WHERE n.id = :destination AND n.unused_since <= {now} - :kept"
    " AND {is_unused} AND n.unused_changes = {changes}"
)


def delete(link: DatabaseLink, pause: Callable[[float], bool]) -> None:
    """Note which destinations are unused; delete those that have been unused for long, each in a transaction.

    Args:
        link: the link of the sweeper.
        pause: waits for a number of seconds; returns true if the round is to end early.
    """
    with link.reading() as connection:
        changed = _CHANGED.rows(connection)
        overdue = _OVERDUE.rows(connection, kept=KEPT_MS)
    if changed:
        with link.transaction(synced=False) as connection:
            _USED.run(connection)
            _UNUSED.run(connection)
    for destination, name in overdue:
        with link.transaction() as connection:
            _delete_one(connection, destination, name)
        if pause(0.0):
            return


def _delete_one(connection: Connection, destination: int, name: str) -> None:
    destinations.lock_registry(connection)
    destinations.lock_against_sends(connection, name)
    if not _STILL.rows(connection, destination=destination, kept=KEPT_MS):  # somebody has used it meanwhile
        return
    for subscription in destinations.subscriptions(connection, destination):
        destinations.delete_subscription(connection, subscription.id)
    destinations.delete(connection, destination)
