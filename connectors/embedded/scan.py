"""Finds the messages that match the selector of a consumer.

Message and selector never change, so a message that did not match once never will: the scan looks at each message once,
however many stay in the queue for other consumers. A message that another consumer held at that moment may wait again
later, so the scan remembers its number. Other consumers bound how many these are.
"""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection

from connectors.embedded import ledger
from connectors.embedded.ledger import Bounds, QueuedMessage, StoredMessage

_PAGES = 10
"""Most pages that one transaction looks at, since other consumers wait for its end."""


class Scan:
    """The progress of one consumer through its subscription. Used by its thread, under the lock on the subscription.

    Args:
        wanted: whether a message matches.

    Attributes:
        behind: whether the last transaction ended before it had looked at all messages.
    """

    def __init__(self, wanted: Callable[[StoredMessage], bool]) -> None:
        self.behind = False
        self._wanted = wanted
        self._through = 0
        self._held: set[int] = set()

    def choose(self, connection: Connection, subscription: int, bounds: Bounds) -> list[int]:
        """The numbers of the oldest matching messages that nobody holds, within the bounds; goes on from last time."""
        chosen: list[int] = []
        room = bounds.bytes
        for row in self._rows(connection, subscription):
            if row.consumer:
                self._held.add(row.stored.number)
            elif self._wanted(row.stored):
                if len(chosen) == bounds.messages or (chosen and row.size > room):
                    return chosen
                chosen.append(row.stored.number)
                room -= row.size
            if not row.consumer:
                self._held.discard(row.stored.number)
            self._through = max(self._through, row.stored.number)
        return chosen

    def start_again(self) -> None:
        """Look at all messages again, since chosen messages were given back."""
        self._through = 0
        self._held.clear()

    def _rows(self, connection: Connection, subscription: int) -> Iterator[QueuedMessage]:
        for page in ledger.pages(sorted(self._held)):
            rows = ledger.rows_among(connection, subscription, page)
            self._held.difference_update(set(page).difference(row.stored.number for row in rows))
            yield from rows
        for _ in range(_PAGES):
            rows = ledger.rows_after(connection, subscription, self._through)
            yield from rows
            self.behind = len(rows) == ledger.PAGE
            if not self.behind:
                return
