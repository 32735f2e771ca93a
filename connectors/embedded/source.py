"""The source of the embedded broker: one consumer on one queue or durable subscription."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection

from connectors.embedded import ledger
from connectors.embedded.content import decode
from connectors.embedded.link import DatabaseLink, open_link, translated
from connectors.embedded.neighbours import neighbours
from connectors.embedded.scan import Scan
from correlator.connector import Chunk
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.selector import Selector
from correlator.settings import ReceiverSettings

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
_DEAD_CONSUMER_CHECK_S = 0.2


class EmbeddedSource:
    """Claims waiting messages in order. Acknowledging deletes them; giving them back lets them wait again.

    The source polls for messages of other processes, at least every 50 ms. Senders of this process wake it.
    """

    def __init__(self, where: str, store: str, receiver: ReceiverSettings, selector: Selector | None) -> None:
        self._where = where
        self._store = store
        self._receiver = receiver
        self._neighbours = neighbours(store)
        self._link: DatabaseLink | None = None
        self._subscription = 0
        self._consumer = 0
        self._claims: dict[int, ledger.Claim] = {}
        self._selector = selector
        self._scan: Scan | None = None
        self._next_token = 1
        self._next_check = 0.0

    def connect(self) -> None:
        """Register as a consumer, and remove consumers whose process is gone: their messages come again."""
        self.close()
        self._scan = Scan(self._is_wanted) if self._selector is not None else None
        with translated(self._where):
            self._link = open_link(self._store)
        with self._transaction() as (link, connection):
            name = self._receiver.subscription if self._receiver.destination.startswith("topic:") else ""
            self._subscription = ledger.subscribe(connection, self._receiver.destination, name)
            self._consumer = ledger.register(connection, self._subscription)
            link.announce(self._consumer)
            self._strike_off_the_dead(link, connection)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Claim the oldest messages that nobody holds."""
        limit = min(max_messages, self._receiver.max_batch_size - sum(claim.total for claim in self._claims.values()))
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            rung = self._neighbours.rung()
            chunk = self._claim(limit) if limit > 0 else None
            if chunk is not None:
                return chunk
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return Chunk((), None)
            if limit <= 0 or self._scan is None or not self._scan.behind:
                self._neighbours.wait(rung, min(pause_s, remaining_s))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Delete the messages of these claims in one transaction.

        A token from before a reconnect acknowledges nothing.
        """
        claims = [self._claims[token] for token in tokens if token in self._claims]
        with self._transaction() as (_, connection):
            held = [ledger.settle(connection, claim) for claim in claims]
        self._forget(tokens)
        if not all(held):
            self._disconnect()
            raise ConnectionLost(
                "E7021", self._where, "messages that were to be acknowledged had been given to another consumer"
            )

    def reject(self, tokens: Sequence[Any]) -> None:
        """Let the messages of these claims wait again, in their old order."""
        claims = [self._claims[token] for token in tokens if token in self._claims]
        with self._transaction() as (_, connection):
            ledger.lock_subscription(connection, self._subscription)
            for claim in claims:
                ledger.give_back(connection, claim)
        if self._scan is not None:
            self._scan.start_again()
        self._forget(tokens)
        self._neighbours.ring()

    def close(self) -> None:
        """Remove this consumer; the messages that it holds wait again."""
        if self._link is None or self._link.maker.is_another_process:
            return
        with suppress(ConnectionLost), self._transaction() as (_, connection):
            ledger.lock_subscription(connection, self._subscription)
            ledger.retire(connection, self._subscription, self._consumer)
        self._disconnect()
        self._neighbours.ring()

    @contextmanager
    def _transaction(self) -> Iterator[tuple[DatabaseLink, Connection]]:
        """A transaction of the open link. If it fails, the link is closed, and all claims are void."""
        if self._link is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        self._link.maker.check(self._where)
        try:
            with translated(self._where), self._link.transaction() as connection:
                yield self._link, connection
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._claims.clear()

    def _claim(self, limit: int) -> Chunk | None:
        with self._transaction() as (link, connection):
            ledger.lock_subscription(connection, self._subscription)
            claimed = self._claim_in(connection, limit)
            if claimed is None and time.monotonic() >= self._next_check:
                self._strike_off_the_dead(link, connection)
                claimed = self._claim_in(connection, limit)
        if claimed is None:
            return None
        claim, rows = claimed
        token = self._next_token
        self._next_token += 1
        self._claims[token] = claim
        return Chunk([message_of(row, self._receiver.destination) for row in rows], token)

    def _claim_in(
        self, connection: Connection, limit: int
    ) -> tuple[ledger.Claim, Sequence[ledger.StoredMessage]] | None:
        bounds = ledger.Bounds(limit, self._receiver.max_batch_bytes)
        if self._scan is None:
            return ledger.claim(connection, self._subscription, self._consumer, self._next_token, bounds)
        chosen = self._scan.choose(connection, self._subscription, bounds)
        if not chosen:
            return None
        return ledger.claim_chosen(connection, self._subscription, self._consumer, self._next_token, chosen)

    def _is_wanted(self, row: ledger.StoredMessage) -> bool:
        assert self._selector is not None
        return self._selector.matches(message_of(row, self._receiver.destination))

    def _strike_off_the_dead(self, link: DatabaseLink, connection: Connection) -> None:
        ledger.lock_subscription(connection, self._subscription)
        for consumer in ledger.other_consumers(connection, self._subscription, self._consumer):
            if link.is_dead(consumer):
                ledger.retire(connection, self._subscription, consumer)
        self._next_check = time.monotonic() + _DEAD_CONSUMER_CHECK_S

    def _forget(self, tokens: Sequence[Any]) -> None:
        for token in tokens:
            self._claims.pop(token, None)


def message_of(row: ledger.StoredMessage, destination: str) -> Message:
    """Decode a stored message."""
    return decode(
        row.content, destination=destination, number=row.number, sent_at=row.sent_at, deliveries=row.deliveries
    )
