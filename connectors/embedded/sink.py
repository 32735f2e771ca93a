"""The sink of the embedded broker: a batch is one transaction, and confirmed messages are on disk."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection

from connectors.embedded import producers, sending, storing
from connectors.embedded.access import Access
from connectors.embedded.composing import Composer
from connectors.embedded.destinations import is_lasting_queue
from connectors.embedded.link import DatabaseLink
from connectors.embedded.rooms import Rooms, unless_crowded
from connectors.embedded.sending import NoSuchDestination, Terms
from connectors.embedded.storing import NewMessage
from correlator.connector import TAKES_NOTHING
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Outgoing

_Places = Mapping[str, Sequence[tuple[int, NewMessage]]]
"""Messages to be sent, by destination, with their positions in the batch."""
PATIENCE_S = 1.0
"""Seconds for which the sink of an engine waits for room: the engine must be able to stop it."""


class EmbeddedSink:
    """Refuses messages that no database could hold; stores each other message once by its (source, sequence).

    The sink refuses a message before it checks its sequence, so it never treats a later try as a repeat. The commit of
    a batch without persistent messages does not wait for the disk.

    If a destination is full, the sink of a session follows the limit behavior. The sink of an engine waits for room,
    and then raises `ConnectionLost`, so that the engine tries again. It refuses no message for lack of room: after
    later messages were stored, the broker would treat another try of this message as a repeat.

    Args:
        where: name of the sender in messages.
        access: access to the broker.
        composer: composes its messages.
        timeout_s: how long the sink of a session waits for room, 0 for no limit; `None` for the sink of an engine.
        destination: destination at which it registers as a producer; `None` for none.
    """

    def __init__(
        self, where: str, access: Access, composer: Composer, timeout_s: float | None, destination: str | None = None
    ) -> None:
        self._where = where
        self._access = access
        self._composer = composer
        self._is_of_engine = timeout_s is None
        self._rooms = Rooms(access, PATIENCE_S if timeout_s is None else timeout_s)
        self._destination = destination
        self._producer = 0
        self._link: DatabaseLink | None = None

    def connect(self) -> None:
        """Connect to the database, and register as a producer. Raises `UsageError` E7526."""
        self.close()
        link = self._access.connect(self._where)
        if self._destination is not None:
            client = self._access.client()
            with self._access.transaction(self._where, link, synced=False) as connection:
                producers.remove(connection, self._producer)  # it was registered by a connection that is lost
                makes = self._access.auto_create
                self._producer = producers.register(connection, self._destination, client, link, makes=makes)
        self._link = link

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Store the batch, except for refused messages. They are on disk when this returns. Raises `ConnectionLost`."""
        results: list[SendRejected | None] = [None] * len(batch)
        wanted: dict[str, list[tuple[int, NewMessage]]] = {}
        for at, out in enumerate(batch):
            try:
                entry = self._composer.compose(out)
            except SendRejected as refused:
                results[at] = refused
            else:
                wanted.setdefault(out.destination, []).append((at, entry))
        if self._stored_alone(wanted):
            self._access.ring(wanted)
            return results
        left: _Places = wanted
        deadline = self._rooms.deadline()
        while left:
            seen = self._rooms.look(left)
            tried = left
            rejected, left = unless_crowded(lambda: self._store(batch, tried))  # noqa: B023
            for at, error in rejected.items():
                results[at] = error
            # Only for stored messages: a ring for nothing may wake this sender itself, again and again.
            self._access.ring([one for one in tried if len(left.get(one, ())) < len(tried[one])])
            if left and not self._rooms.wait(left, seen, deadline):
                self._give_up(batch, left, results)
                break
        return results

    def _store(self, batch: Sequence[Outgoing], wanted: _Places) -> tuple[dict[int, SendRejected], _Places]:
        """Store messages in one transaction; return the refused messages, and the messages that must wait for room."""
        refused: dict[int, SendRejected] = {}
        left: dict[str, list[tuple[int, NewMessage]]] = {}
        lazy = not any(entry.persistent for entries in wanted.values() for _, entry in entries)
        if self._link is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        makes = self._access.auto_create
        terms = Terms(self._link, self._rooms.nearly_full, lazy, waits=self._is_of_engine, makes=makes)

        def store(connection: Connection) -> None:
            if makes:
                sending.make_missing(connection, wanted)
            # Sorted by name, so that two sinks never wait for each other's destinations.
            for destination in sorted(wanted):
                places, entries = zip(*wanted[destination], strict=True)
                try:
                    verdict = sending.store(connection, destination, entries, terms)
                except NoSuchDestination:
                    refused.update({at: self._composer.gone(batch[at]) for at in places})
                    continue
                if verdict is not None:
                    for place, refusal in verdict.refused.items():
                        refused[places[place]] = self._composer.limited(batch[places[place]], refusal)
                    if verdict.waiting:
                        left[destination] = [wanted[destination][place] for place in verdict.waiting]

        self._access.write(self._where, self._link, store, synced=not lazy)
        terms.tell_stored()
        return refused, left

    def _stored_alone(self, wanted: _Places) -> bool:
        """Return whether the broker could store a single message for a queue with one statement."""
        if len(wanted) != 1:
            return False
        ((name, places),) = wanted.items()
        (_, entry), *others = places
        if others or entry.source or entry.traced or name in self._rooms.nearly_full or not is_lasting_queue(name):
            return False
        lazy = not entry.persistent

        def send(connection: Connection) -> bool:
            return storing.send(connection, name, entry, lazy=lazy)

        if self._access.is_sqlite:
            return self._access.write(self._where, self._link, send, synced=not lazy)
        return self._access.alone(self._where, self._link, send)

    def _give_up(self, batch: Sequence[Outgoing], left: _Places, results: list[SendRejected | None]) -> None:
        """Refuse the messages that have waited in vain. In an engine, raises `ConnectionLost` instead."""
        if self._is_of_engine:
            what = f"{' and '.join(sorted(left))} can hold no more messages, or is paused"
            raise ConnectionLost(
                TAKES_NOTHING, self._where, what, "Its limits are max_num_msgs and max_total_msg_bytes"
            )
        for places in left.values():
            for at, _ in places:
                results[at] = self._composer.limited(batch[at], self._rooms.refusal(batch[at].destination))

    def close(self) -> None:
        """Close the connection to the database. Never raises."""
        link, self._link = self._link, None
        if link is not None:
            if self._producer and not link.maker.is_another_process and self._access.uses(link):
                with suppress(ConnectionLost), self._access.transaction(self._where, link, synced=False) as connection:
                    producers.remove(connection, self._producer)
            self._access.leave()
