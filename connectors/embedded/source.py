"""The source of the embedded broker: one consumer on one queue or durable subscription."""

import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sqlalchemy import Connection

from connectors.embedded import ledger
from connectors.embedded.content import decode
from connectors.embedded.link import DatabaseLink, open_link, translated
from connectors.embedded.neighbours import neighbours
from connectors.embedded.scan import Scan
from correlator.connector import NOTHING, Chunk, Held
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
        self._holder = ledger.Holder(0, 0)
        self._held: Held[int] = Held()
        self._selector = selector
        self._scan: Scan | None = None
        self._next_check = 0.0

    def connect(self) -> None:
        """Register as a consumer, and remove consumers whose process is gone: their messages come again."""
        self.close()
        self._scan = Scan(self._is_wanted) if self._selector is not None else None
        with translated(self._where):
            self._link = open_link(self._store)
        with self._transaction() as (link, connection):
            name = self._receiver.subscription if self._receiver.destination.startswith("topic:") else ""
            subscription = ledger.subscribe(connection, self._receiver.destination, name)
            self._holder = ledger.Holder(subscription, ledger.register(connection, subscription))
            link.announce(self._holder.consumer)
            self._strike_off_the_dead(link, connection)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Claim the oldest messages that nobody holds."""
        limit = min(max_messages, self._receiver.max_batch_size - len(self._held))
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            rung = self._neighbours.rung()
            chunk = self._claim(limit) if limit > 0 else None
            if chunk is not None:
                return chunk
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return NOTHING
            if limit <= 0 or self._scan is None or not self._scan.behind:
                self._neighbours.wait(rung, min(pause_s, remaining_s))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Delete these messages in one transaction. A token from before a reconnect acknowledges nothing."""
        runs = self._released(tokens)
        with self._transaction() as (_, connection):
            held = [ledger.settle(connection, self._holder, run) for run in runs]
        if not all(held):
            self._disconnect()
            raise ConnectionLost(
                "E7021", self._where, "messages that were to be acknowledged had been given to another consumer"
            )

    def reject(self, tokens: Sequence[int]) -> None:
        """Let these messages wait again, in their old order."""
        runs = self._released(tokens)
        with self._transaction() as (_, connection):
            ledger.lock_subscription(connection, self._holder.subscription)
            for run in runs:
                ledger.give_back(connection, self._holder, run)
        if self._scan is not None:
            self._scan.start_again()
        self._neighbours.ring()

    def close(self) -> None:
        """Remove this consumer; the messages that it holds wait again."""
        if self._link is None or self._link.maker.is_another_process:
            return
        with suppress(ConnectionLost), self._transaction() as (_, connection):
            ledger.lock_subscription(connection, self._holder.subscription)
            ledger.retire(connection, *self._holder)
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
        self._held.clear()

    def _claim(self, limit: int) -> Chunk | None:
        with self._transaction() as (link, connection):
            ledger.lock_subscription(connection, self._holder.subscription)
            claimed = self._claim_in(connection, limit)
            if not claimed and time.monotonic() >= self._next_check:
                self._strike_off_the_dead(link, connection)
                claimed = self._claim_in(connection, limit)
        if not claimed:
            return None
        tokens = self._held.hold([row.number for row in claimed])
        return Chunk([message_of(row, self._receiver.destination) for row in claimed], tokens)

    def _claim_in(self, connection: Connection, limit: int) -> Sequence[ledger.StoredMessage]:
        bounds = ledger.Bounds(limit, self._receiver.max_batch_bytes)
        if self._scan is None:
            return ledger.claim(connection, self._holder, bounds)
        chosen = self._scan.choose(connection, self._holder.subscription, bounds)
        return ledger.claim_chosen(connection, self._holder, chosen) if chosen else ()

    def _is_wanted(self, row: ledger.StoredMessage) -> bool:
        assert self._selector is not None
        return self._selector.matches(message_of(row, self._receiver.destination))

    def _strike_off_the_dead(self, link: DatabaseLink, connection: Connection) -> None:
        subscription = self._holder.subscription
        ledger.lock_subscription(connection, subscription)
        for consumer in ledger.other_consumers(connection, *self._holder):
            if link.is_dead(consumer):
                ledger.retire(connection, subscription, consumer)
        self._next_check = time.monotonic() + _DEAD_CONSUMER_CHECK_S

    def _released(self, tokens: Sequence[int]) -> list[ledger.HeldRun]:
        """Let go of these messages: runs of numbers between which this consumer holds nothing else."""
        released = self._held.release(tokens)
        runs: list[ledger.HeldRun] = []
        kept = sorted(self._held) if len(released) > 1 else []
        for number in sorted(released):
            if runs and bisect(kept, runs[-1].last) == bisect(kept, number):
                runs[-1] = ledger.HeldRun(runs[-1].first, number, runs[-1].total + 1)
            else:
                runs.append(ledger.HeldRun(number, number, 1))
        return runs


def message_of(row: ledger.StoredMessage, destination: str) -> Message:
    """Decode a stored message."""
    return decode(
        row.content, destination=destination, number=row.number, sent_at=row.sent_at, deliveries=row.deliveries
    )
