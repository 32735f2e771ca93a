"""The sink of the embedded broker: a batch is one transaction, and confirmed messages are on disk."""

from collections.abc import Sequence

from connectors.embedded import sending
from connectors.embedded.access import Access
from connectors.embedded.composing import Composer
from connectors.embedded.link import DatabaseLink
from connectors.embedded.sending import NewMessage, NoSuchDestination
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Outgoing


class EmbeddedSink:
    """Refuses messages that no database could hold; stores each other message once by its (source, sequence).

    The sink refuses a message before it looks at its sequence, so it never takes a later try for a repeat. The commit
    of a batch without persistent messages does not wait for the disk.

    Args:
        where: the sender, for messages.
        access: the way to the broker.
        lasting: whether the next life of the sender uses the same source.
        passing: whether a message that says that it is not persistent ends with the broker.
    """

    def __init__(self, where: str, access: Access, *, lasting: bool, passing: bool) -> None:
        self._where = where
        self._access = access
        self._composer = Composer(where, lasting=lasting, passing=passing)
        self._link: DatabaseLink | None = None

    def connect(self) -> None:
        """Connect to the database."""
        self.close()
        self._link = self._access.connect(self._where)

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Store the batch, except for refused messages."""
        results: list[SendRejected | None] = [None] * len(batch)
        wanted: dict[str, list[tuple[int, NewMessage]]] = {}
        for at, out in enumerate(batch):
            try:
                entry = self._composer.compose(out)
            except SendRejected as refused:
                results[at] = refused
            else:
                wanted.setdefault(out.destination, []).append((at, entry))
        if self._link is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        lazy = not any(entry.persistent for entries in wanted.values() for _, entry in entries)
        with self._access.transaction(self._where, self._link, synced=not lazy) as connection:
            sending.make_missing(connection, wanted)
            # In the order of the names, so that two sinks never wait for each other's destinations.
            for destination in sorted(wanted):
                places, entries = zip(*wanted[destination], strict=True)
                try:
                    sending.store(connection, destination, entries, lazy=lazy)
                except NoSuchDestination:
                    for at in places:
                        results[at] = self._composer.gone(batch[at])
        self._access.ring(wanted)
        return results

    def close(self) -> None:
        """Close the connection to the database."""
        if self._link is not None:
            self._link = None
            self._access.leave()
