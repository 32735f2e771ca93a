"""Decides which sends a broker gets next, and what happens to each send; has no sink, clock or log.

New sends leave in batches, in the order of their numbers. If the broker refuses sends of a batch, the sender tries
these again together after a back-off, and sends on meanwhile. A send that was refused `max_tries` times becomes a dead
letter (rule A2.11). A lost connection is not a refusal: the batch stays the next one (rule A2.12).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from correlator.connector import Features
from correlator.core.backoff import Backoff
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import SendRejected
from correlator.events import DeadLetter, Outgoing
from correlator.settings import SenderSettings

Refusal = tuple[Outgoing, SendRejected]


@dataclass(slots=True)
class SenderCounters:
    """What a sender has done: `sent` counts confirmed messages, `dead_letters` counts messages that were given up."""

    sent: int = 0
    retries: int = 0
    dead_letters: int = 0
    batches: int = 0
    connection_errors: int = 0

    @property
    def settled(self) -> int:
        """Messages that were confirmed or given up."""
        return self.sent + self.dead_letters


class SendBatch(msgspec.Struct, frozen=True, gc=False):
    """Sends that the broker gets in one call.

    Attributes:
        sends: the messages, in the order of their numbers.
        refusals: how often the broker has refused all of them; 0 for new sends.
        due: time of the next attempt, in seconds; meaningless for new sends.
    """

    sends: Sequence[Outgoing]
    refusals: int = 0
    due: float = 0.0


class Dispatcher:
    """Decides which sends of one outbox leave when, and settles them. Owner: the thread of the sender.

    Times are seconds of a clock that does not go back.

    Args:
        settings: settings of the sender.
        features: features of its connection. If the broker drops repeats, a refused send is not tried again (trap T35).
        outbox: its sends.
        jitter: draws a number from 0 to 1 for each back-off.
        keeps_dead_letters: whether checkpoints store the dead letters.

    Attributes:
        keeps_dead_letters: as above.
        outbox: its sends.
        counters: what the sender has done; any thread may read them.
    """

    def __init__(
        self,
        settings: SenderSettings,
        features: Features,
        outbox: Outbox,
        *,
        jitter: Callable[[], float],
        keeps_dead_letters: bool,
    ) -> None:
        self.outbox = outbox
        self.counters = SenderCounters()
        self._settings = settings
        # The sink of a sender with `call` counts the attempts at each call itself, and so sends every message in order.
        self._max_tries = 1 if features.deduplicates_sends or settings.call else settings.max_tries
        self._interval_s = settings.max_batch_interval_ms / 1000
        self._backoff = Backoff(settings.retry_interval, settings.max_retry_interval)
        self._jitter = jitter
        self.keeps_dead_letters = keeps_dead_letters
        self._retries: list[SendBatch] = []
        self._opened_at: float | None = None
        self._failed_since_flush = 0
        self._reported_flush = 0

    # --- what leaves next ---

    @property
    def filling(self) -> bool:
        """Whether an incomplete batch waits for more sends."""
        return self._opened_at is not None

    def next_batch(self, now: float) -> SendBatch | None:
        """Return the batch to send now, if there is one. It stays the next batch until `settle`."""
        if self._retries and (retry := self._first_retry()).due <= now:
            return retry
        sends = self.outbox.take(self._settings.max_batch_size)
        if not sends:
            self._opened_at = None
            return None
        return SendBatch(sends) if not self._interval_s or self._complete(sends, now) else None

    def wait(self, now: float) -> float | None:
        """After `next_batch` returned none: seconds until it may return one; `None` to wait for new sends."""
        times = [] if self._opened_at is None else [self._opened_at + self._interval_s]
        if self._retries:
            times.append(self._first_retry().due)
        return min(times) - now if times else None

    def _first_retry(self) -> SendBatch:
        return min(self._retries, key=lambda batch: batch.due)

    def _complete(self, sends: Sequence[Outgoing], now: float) -> bool:
        """Whether a batch is full, or has waited for its interval (rule A2.15)."""
        if len(sends) >= self._settings.max_batch_size:
            return True
        if self._opened_at is None:
            self._opened_at = now
        return now >= self._opened_at + self._interval_s

    # --- what became of it ---

    def settle(
        self, batch: SendBatch, results: Sequence[SendRejected | None], now: float, engine_time: float
    ) -> Sequence[Refusal]:
        """Note the broker's answer to a batch; returns the refused sends that are given up.

        Args:
            batch: the batch that `next_batch` has returned.
            results: one result for each send of the batch, in order; `None` for a confirmed send.
            now: the present time, at which the back-off of refused sends begins.
            engine_time: the time that dead letters get.

        Raises `ValueError` if there are fewer or more results than sends.
        """
        refused = [(send, result) for send, result in zip(batch.sends, results, strict=True) if result is not None]
        given_up: Sequence[Refusal] = ()
        again: Sequence[Outgoing] = ()
        if batch.refusals + 1 >= self._max_tries:
            given_up = refused
        elif refused:
            again = [send for send, _ in refused]
        dead = self._dead_letters(given_up, engine_time) if given_up and self.keeps_dead_letters else ()
        if batch.refusals:
            self._settle_retry(batch, dead, again)
        else:
            self._opened_at = None
            self.outbox.settle(batch.sends, dead, again)
        if again:
            self._retry(again, batch.refusals + 1, now)
        counters = self.counters
        counters.batches += 1
        counters.sent += len(batch.sends) - len(refused)
        counters.dead_letters += len(given_up)
        self._failed_since_flush += len(given_up)
        return given_up

    def _settle_retry(
        self, batch: SendBatch, dead: Sequence[tuple[int, DeadLetter]], again: Sequence[Outgoing]
    ) -> None:
        self._retries.remove(batch)
        self.counters.retries += len(batch.sends)
        left = {send.sequence for send in again}
        self.outbox.settle_refused([send for send in batch.sends if send.sequence not in left], dead)

    def _retry(self, sends: Sequence[Outgoing], refusals: int, now: float) -> None:
        self._retries.append(SendBatch(sends, refusals, now + self._backoff.delay(refusals, self._jitter())))

    def _dead_letters(self, refused: Sequence[Refusal], engine_time: float) -> list[tuple[int, DeadLetter]]:
        """Make dead letters of refused sends; return each with the number of its send."""
        return [
            (
                send.sequence,
                DeadLetter(
                    kind="send",
                    origin=self._settings.id,
                    reason=str(refusal),
                    message=self.outbox.unplaced(send),
                    unique_id=f"{send.sequence}:{send.source}",
                    time=engine_time,
                ),
            )
            for send, refusal in refused
        ]

    # --- flushes ---

    def take_flush(self) -> tuple[FlushRequest, int] | None:
        """Return the flush request that is settled now, if there is one, and how many sends were given up since the
        previous request.
        """
        request = self.outbox.take_flush()
        if request is None:
            return None
        failed, self._failed_since_flush = self._failed_since_flush, 0
        return request, failed

    def waiting_flush(self) -> tuple[FlushRequest, int] | None:
        """The first flush request, if it was not returned before, with the number of unsettled sends before it."""
        waiting = self.outbox.waiting_flush()
        if waiting is None or waiting[0].request_id == self._reported_flush:
            return None
        self._reported_flush = waiting[0].request_id
        return waiting
