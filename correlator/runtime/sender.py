"""A sender's thread: hands released sends to its sink, in order, until each is settled (FEATURES A2)."""

import time
from collections.abc import Callable, Sequence

from correlator.core.faults import point
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import DeadLetter, Outgoing, PartStatus
from correlator.ports import Sink
from correlator.runtime.actor import Actor
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.logs import get_logger
from correlator.runtime.status import SenderCounters
from correlator.runtime.statuses import Statuses
from correlator.settings import SenderSettings

TAKES_NOTHING = "E7026"
"""Code of a `ConnectionLost` that means: the broker is there, and takes no messages at present."""


class Sender(Actor):
    """One sender.

    Args:
        settings: as configured.
        outbox: its sends.
        sink: not yet connected.
        clock: monotonic seconds.
        engine_time: engine time.
        retry_interval: seconds between two attempts to connect.
        persistent: whether checkpoints take its dead letters; without them they are logged only.
        fail_fast: whether a broker that cannot be reached for the first time is an error instead of a wait.
        flushed: tells a context that a flush request is settled, with the number of sends that failed before it.
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
        retry_interval: float,
        persistent: bool,
        fail_fast: bool,
        flushed: Callable[[str, FlushRequest, int], None],
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
        self._retry_interval = retry_interval
        self._persistent = persistent
        self._fail_fast = fail_fast
        self._flushed = flushed
        self._statuses = statuses
        self._breakdown = breakdown
        self._retry_at = 0.0
        self._begun = False
        self._opened_at: float | None = None
        self._failed_since_flush = 0
        self._down_since: float | None = None
        self._told_of_flush = 0
        self._log = get_logger(sender=settings.id)

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
            wait = self._retry_at - self._clock.monotonic()
            if wait > 0:
                return wait
            point("tx.reconnect")
            self._sink.connect()
            self.connected = True
            self._down_since = None
            self._fail_fast = False
            self.tell(PartStatus.OK)
            self._breakdown.restart()
        return self._send_next()

    def _lost(self, error: ConnectionLost) -> float:
        if self._fail_fast:
            raise error
        self.connected = False
        self.counters.connection_errors += 1
        self._log.warning("connection lost; trying again", error=error, retry_s=self._retry_interval)
        self.tell(PartStatus.BLOCKED if error.code == TAKES_NOTHING else PartStatus.ERROR, str(error))
        if self._down_since is None:
            self._down_since = self._clock.wall()
        self._note_flush(self._down_since)
        self._retry_at = self._clock.monotonic() + self._retry_interval
        return self._retry_interval

    def _note_flush(self, down_since: float) -> None:
        """Who waits for a flush is told once what it waits for (RELIABILITY F 187)."""
        waiting = self.outbox.waiting_flush()
        if waiting is None or waiting[0].request_id == self._told_of_flush:
            return
        request, before = waiting
        self._told_of_flush = request.request_id
        since = time.strftime("%H:%M:%S", time.localtime(down_since))
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
        batch = self.outbox.take(self.settings.max_batch_size)
        self._breakdown.lap("MAPPING")
        if not batch:
            self._opened_at = None
            return None
        wait = self._fill_wait(batch)
        if wait > 0:
            return wait
        self._settle(batch)
        self._breakdown.lap("SENDING")
        self._breakdown.batch(len(batch))
        return 0

    def _fill_wait(self, batch: Sequence[Outgoing]) -> float:
        """How long the batch should wait for more (FEATURES A2.15)."""
        interval = self.settings.max_batch_interval_ms / 1000
        if not interval or len(batch) >= self.settings.max_batch_size or self.stopping:
            return 0
        now = self._clock.monotonic()
        if self._opened_at is None:
            self._opened_at = now
        return max(0.0, self._opened_at + interval - now)

    def _settle(self, batch: Sequence[Outgoing]) -> None:
        point("tx.publish.before")
        results = self._sink.send(batch)
        point("tx.publish.after")
        refused = [(one, result) for one, result in zip(batch, results, strict=True) if result is not None]
        dead = [letter for one, result in refused if (letter := self._retry(one, result)) is not None]
        self._opened_at = None
        self.outbox.settle(batch, dead if self._persistent else ())
        point("tx.confirm")
        self.counters.batches += 1
        self.counters.sent += len(batch) - len(dead)
        self.counters.dead_letters += len(dead)
        self._failed_since_flush += len(dead)

    def _retry(self, outgoing: Outgoing, result: SendRejected) -> tuple[int, DeadLetter] | None:
        """Try a refused message again, a few times; the dead letter when that fails (FEATURES A2.11, Z7)."""
        refusal: SendRejected | None = result
        for _ in range(self.settings.max_tries - 1):
            point("tx.retry")
            self.counters.retries += 1
            refusal = self._sink.send([outgoing])[0]
            if refusal is None:
                return None
        self._log.error(
            "message refused; kept as a dead letter",
            destination=outgoing.destination,
            sequence=outgoing.sequence,
            error=refusal,
        )
        letter = DeadLetter(
            kind="send",
            origin=self.settings.id,
            reason=str(refusal),
            message=self.outbox.unplaced(outgoing),
            unique_id=f"{outgoing.sequence}:{outgoing.source}",
            time=self._engine_time.now(),
        )
        return outgoing.sequence, letter
