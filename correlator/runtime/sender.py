"""A sender's thread: hands released sends to its sink, in order, until each is settled.

The rules are in docs/rules.md, section A2.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from correlator.connector import TAKES_NOTHING, Sink
from correlator.core.backoff import Backoff
from correlator.core.faults import point
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import DeadLetter, Outgoing, PartStatus
from correlator.runtime.actor import Actor
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.logs import get_logger
from correlator.runtime.reconnection import Reconnection, Retrying
from correlator.runtime.status import SenderCounters
from correlator.runtime.statuses import Statuses
from correlator.settings import SenderSettings

Refusal = tuple[Outgoing, SendRejected]


class Refused(NamedTuple):
    """Sends that the broker refused together and that are tried again.

    Attributes:
        at: monotonic seconds of the next try.
        tries: so far.
        sends: in order.
    """

    at: float
    tries: int
    sends: Sequence[Outgoing]


class Sender(Actor):
    """One sender.

    Args:
        settings: as configured.
        outbox: its sends.
        sink: not yet connected.
        clock: monotonic seconds.
        engine_time: engine time.
        retrying: how attempts to connect follow one another.
        tries: of a message that the broker refuses.
        persistent: whether checkpoints take its dead letters; without them they are logged only.
        fail_fast: whether a broker that cannot be reached for the first time is an error instead of a wait.
        flushed: tells a context that a flush request is settled, with the number of sends that failed before it.
        settled: called after each settled batch: there may be room for more.
        statuses: is told how it is.
        breakdown: measures what the thread does.
    """

    def __init__(
        self,
        settings: SenderSettings,
        outbox: Outbox,
        sink: Sink,
        *,
        clock: Clock,
        engine_time: EngineTime,
        retrying: Retrying,
        tries: int,
        persistent: bool,
        fail_fast: bool,
        flushed: Callable[[str, FlushRequest, int], None],
        settled: Callable[[], None],
        statuses: Statuses,
        breakdown: NoBreakdown,
    ) -> None:
        super().__init__(f"sender-{settings.id}")
        self.settings = settings
        self.outbox = outbox
        self.counters = SenderCounters()
        self.open = False
        self.connected = False
        self._sink = sink
        self._clock = clock
        self._engine_time = engine_time
        self._backoff = Backoff(settings.retry_interval, settings.max_retry_interval)
        self._jitter = retrying.jitter
        self._tries = tries
        self._refused: list[Refused] = []
        self._persistent = persistent
        self._fail_fast = fail_fast
        self._flushed = flushed
        self._settled = settled
        self._statuses = statuses
        self._breakdown = breakdown
        self._begun = False
        self._opened_at: float | None = None
        self._failed_since_flush = 0
        self._told_of_flush = 0
        self._log = get_logger(sender=settings.id)
        self._reconnection = Reconnection(retrying, clock, self._log)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the broker: an orderly stop waits for it."""
        return not self.outbox.outstanding

    def tell(self, status: PartStatus, error: str = "") -> None:
        """It is in this status now."""
        self._statuses.tell(self.settings, status, error)

    def step(self) -> float | None:
        """Send one batch."""
        if not self.open:
            return None
        try:
            return self._act()
        except ConnectionLost as error:
            return self._lost(error)

    def finish(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _act(self) -> float | None:
        if not self.connected:
            if not self._begun:
                self._begun = True
                self.tell(PartStatus.CONNECTING)
            wait = self._reconnection.wait()
            if wait > 0:
                return wait
            point("tx.reconnect")
            self._sink.connect()
            self._reconnection.back()
            self.connected = True
            self._fail_fast = False
            self.tell(PartStatus.OK)
            self._breakdown.restart()
        return self._send_next()

    def _lost(self, error: ConnectionLost) -> float:
        if self._fail_fast:
            raise error
        self.connected = False
        self.counters.connection_errors += 1
        self.tell(PartStatus.BLOCKED if error.code == TAKES_NOTHING else PartStatus.ERROR, str(error))
        delay = self._reconnection.lost(error)
        self._note_flush()
        return delay

    def _note_flush(self) -> None:
        """Who waits for a flush is told once what it waits for (bad input 187)."""
        waiting = self.outbox.waiting_flush()
        if waiting is None or waiting[0].request_id == self._told_of_flush:
            return
        request, before = waiting
        self._told_of_flush = request.request_id
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.wall() - self._reconnection.away()))
        what = f"{before} messages not confirmed, broker down since {since}"
        self._log.info(f"I8201 flush {request.request_id} waits: {what}")

    def _send_next(self) -> float | None:
        flush = self.outbox.take_flush()
        if flush is not None:
            point("flush.notify")
            self._flushed(self.settings.id, flush, self._failed_since_flush)
            self._failed_since_flush = 0
            return 0
        self._breakdown.lap("WAITING" if self._opened_at is None else "BATCHING")
        until_retry = self._until_retry()
        if until_retry is not None and until_retry <= 0:
            self._try_again(min(self._refused, key=lambda one: one.at))
            self._breakdown.lap("SENDING")
            return 0
        batch = self.outbox.take(self.settings.max_batch_size)
        self._breakdown.lap("MAPPING")
        if not batch:
            self._opened_at = None
            return until_retry
        wait = self._fill_wait(batch)
        if wait > 0:
            return wait if until_retry is None else min(wait, until_retry)
        self._settle(batch)
        self._breakdown.lap("SENDING")
        self._breakdown.batch(len(batch))
        return 0

    def _fill_wait(self, batch: Sequence[Outgoing]) -> float:
        """How long the batch should wait for more (rule A2.15)."""
        interval = self.settings.max_batch_interval_ms / 1000
        if not interval or len(batch) >= self.settings.max_batch_size or self.stopping:
            return 0
        now = self._clock.monotonic()
        if self._opened_at is None:
            self._opened_at = now
        return max(0.0, self._opened_at + interval - now)

    def _until_retry(self) -> float | None:
        """Seconds until refused messages are tried again; `None` when there are none."""
        return min(one.at for one in self._refused) - self._clock.monotonic() if self._refused else None

    def _settle(self, batch: Sequence[Outgoing]) -> None:
        dead, again = self._judge(self._send(batch), 1)
        self._opened_at = None
        self.outbox.settle(batch, dead if self._persistent else (), again)
        self._count(batch, dead, again)

    def _try_again(self, refused: Refused) -> None:
        """Try refused messages again, behind those that were sent meanwhile (rule A2.11)."""
        point("tx.retry")
        results = self._send(refused.sends)
        self._refused.remove(refused)
        self.counters.retries += len(refused.sends)
        dead, again = self._judge(results, refused.tries + 1)
        left = {one.sequence for one in again}
        done = [one for one in refused.sends if one.sequence not in left]
        self.outbox.settle_refused(done, dead if self._persistent else ())
        self._count(refused.sends, dead, again)

    def _send(self, sends: Sequence[Outgoing]) -> list[Refusal]:
        """What the broker refused of these."""
        point("tx.publish.before")
        results = self._sink.send(sends)
        point("tx.publish.after")
        return [(one, result) for one, result in zip(sends, results, strict=True) if result is not None]

    def _judge(self, refused: Sequence[Refusal], tries: int) -> tuple[list[tuple[int, DeadLetter]], list[Outgoing]]:
        """Dead letters of refused messages that were tried often enough, and those that are tried again (rule Z7)."""
        if tries >= self._tries:
            return [(one.sequence, self._give_up(one, why)) for one, why in refused], []
        again = [one for one, _ in refused]
        if again:
            at = self._clock.monotonic() + self._backoff.delay(tries, self._jitter())
            self._refused.append(Refused(at, tries, again))
        return [], again

    def _count(self, sends: Sequence[Outgoing], dead: Sequence[Any], again: Sequence[Outgoing]) -> None:
        point("tx.confirm")
        self.counters.batches += 1
        self.counters.sent += len(sends) - len(dead) - len(again)
        self.counters.dead_letters += len(dead)
        self._failed_since_flush += len(dead)
        self._settled()

    def _give_up(self, outgoing: Outgoing, refusal: SendRejected) -> DeadLetter:
        self._log.error(
            "message refused; kept as a dead letter",
            destination=outgoing.destination,
            sequence=outgoing.sequence,
            error=refusal,
        )
        return DeadLetter(
            kind="send",
            origin=self.settings.id,
            reason=str(refusal),
            message=self.outbox.unplaced(outgoing),
            unique_id=f"{outgoing.sequence}:{outgoing.source}",
            time=self._engine_time.now(),
        )
