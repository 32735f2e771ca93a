"""The thread of a sender: its dispatcher (`core/dispatch.py`) decides what to send and when, and this thread calls the
sink.

The rules are in docs/rules.md, section A2.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from correlator.connector import TAKES_NOTHING, Sink
from correlator.core.dispatch import Dispatcher, SendBatch, SenderCounters
from correlator.core.faults import point
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import ConnectionLost
from correlator.events import PartStatus
from correlator.runtime.actor import Actor
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.latency import Latency
from correlator.runtime.logs import get_logger
from correlator.runtime.reconnection import Reconnection, ReconnectionPolicy
from correlator.runtime.statuses import Statuses
from correlator.settings import SenderSettings

if TYPE_CHECKING:
    from correlator.runtime.spans import Spans


class Sender(Actor):
    """The actor of one sender.

    Args:
        settings: the settings, as configured.
        dispatcher: decides which messages the sink gets, and when.
        sink: the producer, not yet connected.
        clock: monotonic seconds for time-outs and back-off, and the time of day for log lines.
        engine_time: the time that dead letters get.
        reconnecting: the times of the attempts to connect.
        flushed: gets the id of the sender, each settled flush request, and the number of sends before it that failed.
        settled: called after each settled batch, since the outbox may have room again.
        statuses: gets each new status of the sender.
        breakdown: measures how the thread spends its time.
        spans: makes spans of sampled messages; `None` for no spans.

    Attributes:
        settings: the settings, as configured.
        dispatcher: has the outbox, the counters, and the batches that are to be sent.
        latency: how long its messages took; empty for a BEST_EFFORT sender.
        connected: whether the sink has a connection. Written by this thread.
        paused: whether somebody has paused the sender. Written by `pause` and `go_on`.
    """

    def __init__(
        self,
        settings: SenderSettings,
        dispatcher: Dispatcher,
        sink: Sink,
        *,
        clock: Clock,
        engine_time: EngineTime,
        reconnecting: ReconnectionPolicy,
        flushed: Callable[[str, FlushRequest, int], None],
        settled: Callable[[], None],
        statuses: Statuses,
        breakdown: NoBreakdown,
        spans: "Spans | None" = None,
    ) -> None:
        super().__init__(f"sender-{settings.id}")
        self.settings = settings
        self.dispatcher = dispatcher
        self.latency = Latency()
        self._open = False
        self.connected = False
        self.paused = False
        self._sink = sink
        self._clock = clock
        self._engine_time = engine_time
        self._flushed = flushed
        self._settled = settled
        self._statuses = statuses
        self._breakdown = breakdown
        self._spans = spans
        self._begun = False
        self._log = get_logger(sender=settings.id)
        self._reconnection = Reconnection(reconnecting, clock, self._log)

    @property
    def outbox(self) -> Outbox:
        """The messages that this sender has yet to send, or whose confirm it awaits."""
        return self.dispatcher.outbox

    @property
    def counters(self) -> SenderCounters:
        """What this sender has done in this life. Its own thread writes the counters; any thread may read them."""
        return self.dispatcher.counters

    @property
    def idle(self) -> bool:
        """Whether no send waits for the broker; an orderly stop waits until this is so."""
        return not self.outbox.outstanding

    @property
    def is_open(self) -> bool:
        """Whether the sender may connect and send."""
        return self._open

    def open(self) -> None:
        """Let the sender connect and send. The thread that starts the engine or adds the sender calls it."""
        self._open = True

    def pause(self) -> None:
        """Let the sender send no further batch until `go_on`; it settles the batch that the broker has now, and keeps
        its connection. Any thread may call it.
        """
        self.paused = True

    def go_on(self) -> None:
        """End the pause, if there is one. Any thread may call it."""
        self.paused = False
        self.wake()

    def tell(self, status: PartStatus, error: str = "") -> None:
        """Report the status of this sender."""
        self._statuses.tell(self.settings, status, error)

    def step(self) -> float | None:
        """Connect, or settle a flush request, or send one batch; see `Actor.step`."""
        if not self._open:
            return None
        try:
            wait = 0.0 if self.connected else self._connect()
            return wait if wait > 0 else self._send_next()
        except ConnectionLost as error:
            return self._lost(error)

    def finish(self) -> None:
        """Close the sink; called once in this thread, after its last step."""
        self._sink.close()

    # --- the connection ---

    def _connect(self) -> float:
        """Connect if an attempt is due. Return the seconds until the next attempt; 0 if there is a connection."""
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
        self.tell(PartStatus.OK)
        self._breakdown.restart()
        return 0.0

    def _lost(self, error: ConnectionLost) -> float:
        delay = self._reconnection.lost(error)
        self.connected = False
        self.counters.connection_errors += 1
        self.tell(PartStatus.BLOCKED if error.code == TAKES_NOTHING else PartStatus.ERROR, str(error))
        self._log_waiting_flush()
        return delay

    def _log_waiting_flush(self) -> None:
        """Log, once for each flush request that waits, for how many messages it waits (bad input 187)."""
        waiting = self.dispatcher.waiting_flush()
        if waiting is None:
            return
        request, before = waiting
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.wall() - self._reconnection.away()))
        what = f"{before} messages not confirmed, broker down since {since}"
        self._log.info(f"I8201 flush {request.request_id} waits: {what}")

    # --- sending ---

    def _send_next(self) -> float | None:
        if (flush := self.dispatcher.take_flush()) is not None:
            point("flush.notify")
            self._flushed(self.settings.id, *flush)
            return 0
        if self.paused:
            return None
        self._breakdown.lap("BATCHING" if self.dispatcher.filling else "WAITING")
        now = self._clock.monotonic()
        batch = self.dispatcher.next_batch(now)
        self._breakdown.lap("MAPPING")
        if batch is None:
            return self.dispatcher.wait(now)
        self._send(batch)
        self._breakdown.lap("SENDING")
        if not batch.refusals:
            self._breakdown.batch(len(batch.sends))
        return 0

    def _send(self, batch: SendBatch) -> None:
        if batch.refusals:
            point("tx.retry")
        point("tx.publish.before")
        began = self._spans.now() if self._spans is not None else 0.0
        results = self._sink.send(batch.sends)
        point("tx.publish.after")
        if self._spans is not None:
            self._spans.sent(self.settings.id, batch.sends, results, batch.refusals + 1, began)
        now = self._engine_time.now()
        given_up = self.dispatcher.settle(batch, results, self._clock.monotonic(), now)
        if self.outbox.stored:
            self.latency.confirmed(batch.sends, results, again=batch.refusals > 0, now=now)
        for send, refusal in given_up:
            kept = "kept as a dead letter" if self.dispatcher.keeps_dead_letters else "dropped, since there is no store"
            self._log.error(
                f"message refused; {kept}",
                destination=send.destination,
                sequence=send.sequence,
                error=refusal,
            )
        if given_up:
            self.latency.forget([send for send, _ in given_up])
            self._statuses.dead_letters(self.settings, len(given_up), str(given_up[0][1]))
        point("tx.confirm")
        self._settled()
