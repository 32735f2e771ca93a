"""How a consumer with a selector finds its messages among those of others.

Content and selector never change, so what did not match once never will: each message is looked at once, however many
of them stay for other consumers. What another consumer held at that moment may wait again, so it is remembered by its
number; there are never more of these than other consumers may hold.
"""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection

from connectors.embedded import ledger
from connectors.embedded.ledger import Bounds, QueuedMessage, StoredMessage

_PAGES = 10
"""How many pages one transaction looks at: others wait for it."""


class Scan:
    """What one consumer has looked at of its subscription. Owner: its thread, under the lock on the subscription.

    Args:
        wanted: whether a message is to be taken.

    Attributes:
        behind: whether there was more to look at than one transaction may.
    """

    def __init__(self, wanted: Callable[[StoredMessage], bool]) -> None:
        self.behind = False
        self._wanted = wanted
        self._through = 0
        self._held: set[int] = set()

    def choose(self, connection: Connection, subscription: int, bounds: Bounds) -> list[int]:
        """The numbers of the oldest wanted messages that nobody holds, within the bounds; looks on from last time."""
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
        """Look at everything once more: something that was chosen was given back."""
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
