"""The sink of the embedded broker: a batch is one transaction, and confirmed messages are on disk."""

import time
from collections.abc import Sequence
from functools import lru_cache

from connectors.embedded.content import encode
from connectors.embedded.ledger import NewMessage, of_one_life, store
from connectors.embedded.link import DatabaseLink, open_link, translated
from connectors.embedded.neighbours import neighbours
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing
from correlator.options import is_name, parse_destination


@lru_cache(maxsize=256)
def _is_destination(text: str) -> bool:
    return parse_destination(text) is not None


_is_source = lru_cache(maxsize=256)(is_name)


class EmbeddedSink:
    """Refuses messages that no database could hold; stores each other message once by its (source, sequence).

    The sink refuses a message before it looks at its sequence, so it never takes a later try for a repeat.

    Args:
        where: the sender, for messages.
        store_url: the broker's database.
        lasting: whether the next life of the sender uses the same source.
    """

    def __init__(self, where: str, store_url: str, *, lasting: bool) -> None:
        self._lasting = lasting
        self._where = where
        self._store = store_url
        self._neighbours = neighbours(store_url)
        self._link: DatabaseLink | None = None

    def connect(self) -> None:
        """Connect to the database."""
        self.close()
        with translated(self._where):
            self._link = open_link(self._store)

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Store the batch, except for refused messages."""
        entries: dict[str, list[NewMessage]] = {}
        results = [self._prepare(out, entries) for out in batch]
        if self._link is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        self._link.maker.check(self._where)
        try:
            self._store_all(self._link, entries)
        except BaseException:
            self.close()
            raise
        self._neighbours.ring()
        return results

    def close(self) -> None:
        """Close the connection to the database."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def _prepare(self, out: Outgoing, entries: dict[str, list[NewMessage]]) -> SendRejected | None:
        """Add the message to those of its destination; return the error if it is refused."""
        if not _is_destination(out.destination):
            what = f"{quoted(out.destination)} is not a destination"
            return self._refused(out, "E8104", what, "Use queue:NAME or topic:NAME")
        if out.source and not _is_source(out.source):
            return self._refused(out, "E8105", f"{quoted(out.source)} cannot be stored as a source")
        try:
            content = encode(out.message)
        except ValueError as error:
            return self._refused(out, "E8110", f"the message cannot be stored: {error}")
        source = out.source if self._lasting or not out.source else of_one_life(out.source)
        entries.setdefault(out.destination, []).append(NewMessage(source, out.sequence, content))
        return None

    def _refused(self, out: Outgoing, code: str, what: str, allowed: str = "") -> SendRejected:
        return SendRejected(code, f"{self._where} message {out.sequence}", what, allowed)

    def _store_all(self, link: DatabaseLink, entries: dict[str, list[NewMessage]]) -> None:
        now_ms = int(time.time() * 1000)
        with translated(self._where), link.transaction() as connection:
            # In the order of the names, so that two sinks never wait for each other's destinations.
            for destination in sorted(entries):
                store(connection, destination, entries[destination], now_ms)
