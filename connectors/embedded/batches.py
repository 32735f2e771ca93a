"""Stores batches of a producer, each once and completely, whatever rows a repeat of the batch contains.

Here a *producer* is a program that sends numbered batches, and may send the last one again, perhaps with other messages
or in another order. A streaming query of Spark is one: its id tells which batches belong together; their numbers begin
with 0. For the broker, the producer is the source `batches:NAME:QUERY`. The last message of batch `b` has the sequence
`(b + 1) * MOST`. So the broker has a batch if the last sequence of its source, in any destination, is at least that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from connectors.embedded import whole
from connectors.embedded.access import Access
from connectors.embedded.composing import Composer
from connectors.embedded.limits import NoRoom
from connectors.embedded.link import DatabaseLink
from connectors.embedded.rooms import Rooms
from connectors.embedded.sending import Terms
from connectors.embedded.sql import Sql
from connectors.embedded.storing import NewMessage
from correlator.errors import UsageError, quoted
from correlator.events import SOURCE_ID, UNIQUE_ID, Message, Outgoing

MOST = 2**32
"""A number of messages that no batch reaches."""
PATIENCE_S = 600.0
"""Seconds for which a batch waits for room in a full destination."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_SOURCES = Sql(
    "SELECT source, max(last_sequence) FROM broker_sender"
    " WHERE substr(source, 1, length(CAST(:prefix AS text))) = :prefix GROUP BY source"
)
_ALONE = Sql("SELECT 1", "SELECT pg_advisory_xact_lock({lock_key})")
_FORGET = Sql("DELETE FROM broker_sender WHERE source = :source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of a producer.

    Attributes:
        producer: name of the producer.
        query: id of its query.
        number: number of the batch in the query, 0 or more.
        sends: the messages with their destinations, in order. Each is stored with a unique id, like messages of an
            `EXACTLY_ONCE` sender.
        instead_of: id of the query that this query may replace; "" for none.
    """

    producer: str
    query: str
    number: int
    sends: Sequence[tuple[str, Message]]
    instead_of: str = ""


def check_producer(where: str, name: str) -> None:
    """Raise `UsageError` E2207 for a name that no producer can have."""
    if not _NAME.fullmatch(name):
        allowed = "1 to 200 of the characters A to Z, a to z, 0 to 9, '_', '-' and '.'"
        raise UsageError("E2207", where, f"{quoted(name)} cannot be the name of a producer", allowed)


def store_batch(store: str, batch: Batch) -> bool:
    """Store a batch in one transaction, unless it is the last one that the broker has; return whether it was stored.

    Args:
        store: address of the broker's database, as `connection.store_url` returns it.
        batch: the batch. Nothing is stored if one of its messages is refused.

    Raises:
        UsageError: E8111, the producer has another query; E8113, the broker has a later batch of the query.
        SendRejected: the broker refuses a message; nothing was stored.
        ConnectionLost: the database failed. It is unknown whether the batch was stored; store it again.
    """
    where = f"producer {batch.producer}"
    access = Access(store)
    link = access.connect(where)
    try:
        return _Storing(where, access, link, batch).store()
    finally:
        access.close()


class _Storing:
    def __init__(self, where: str, access: Access, link: DatabaseLink, batch: Batch) -> None:
        self._where = where
        self._access = access
        self._link = link
        self._batch = batch
        self._prefix = f"batches:{batch.producer}:"
        self._source = f"{self._prefix}{batch.query}"
        self._last = (batch.number + 1) * MOST
        self._rooms = Rooms(access, PATIENCE_S)
        self._composer = Composer(where, lasting=True, passing=False)
        self._destinations = {destination for destination, _ in batch.sends}
        self._sends: list[tuple[Outgoing, NewMessage]] = []
        for sequence, (destination, message) in enumerate(batch.sends, self._last - len(batch.sends) + 1):
            stamp = {UNIQUE_ID: f"{sequence}:{self._source}", SOURCE_ID: self._source}
            stamped = msgspec.structs.replace(message, properties={**message.properties, **stamp})
            out = Outgoing(sequence, self._source, destination, stamped)
            self._sends.append((out, self._composer.compose(out)))

    def store(self) -> bool:
        try:
            terms = self._rooms.transact(
                self._destinations, lambda: self._access.write(self._where, self._link, self._stored)
            )
        except NoRoom as full:
            raise whole.no_room(full, self._sends, self._rooms.refusal(full.name), self._composer) from full
        if terms is None:
            return False
        terms.tell_stored()
        self._access.ring(self._destinations)
        return True

    def _stored(self, connection: Connection) -> Terms | None:
        """Store the batch in a transaction; return `None` if the broker has it already."""
        _ALONE.one(connection, name=self._prefix)
        known = {str(source): int(last) for source, last in _SOURCES.rows(connection, prefix=self._prefix)}
        for source in known.keys() - {self._source}:
            self._replace(connection, source.removeprefix(self._prefix))
        last = known.get(self._source, 0)
        if last > self._last:
            raise self._older(last // MOST - 1)
        if last == self._last:
            return None
        terms = Terms(self._link, self._rooms.nearly_full, whole=True)
        whole.store_all(connection, self._sends, terms, self._composer)
        return terms

    def _older(self, last: int) -> UsageError:
        """Return the error for a batch before the last one: a query repeats only its last batch."""
        return UsageError(
            "E8113",
            self._where,
            f"sends batch {self._batch.number} of its query again, and the broker has batch {last} already: the"
            " checkpoint directory is an older copy, and new rows in the batches up to this one would be left out",
            "A query repeats only its last batch",
            "Restore the newest copy; or remove the directory, and let the query that begins anew take over:"
            f" takeover={self._batch.query}",
        )

    def _replace(self, connection: Connection, other: str) -> None:
        if other != self._batch.instead_of:
            raise UsageError(
                "E8111",
                self._where,
                f"belongs to the query {other}, and this is the query {self._batch.query}: its batches would be stored"
                " a second time",
                "A producer has one query, whose id is in its checkpoint directory",
                f"Restore that directory, give this query another name, or let it take over: takeover={other}",
            )
        _FORGET.run(connection, source=f"{self._prefix}{other}")
