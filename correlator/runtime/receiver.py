"""A receiver's thread: takes batches from its source and carries each through its mode's cycle (`core/intake.py`)."""

from collections.abc import Callable, Sequence
from typing import Any

from correlator.connector import NO_SUCH_DESTINATION, Source
from correlator.core.batch import Batch
from correlator.core.faults import point
from correlator.core.intake import Intake, ReceiverCounters, State
from correlator.core.mapping import Mapped
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Acknowledge, nothing_suspended
from correlator.errors import ConnectionLost, MappingError, UsageError
from correlator.events import DeadLetter, FlowControlMarker, PartStatus, ReceivingSuspended
from correlator.runtime.actor import Actor
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger
from correlator.runtime.mapper import Mapper
from correlator.runtime.reconnection import Reconnection, ReconnectionPolicy
from correlator.runtime.statuses import Statuses
from correlator.runtime.writer import Accepted, ReceiveRequest, Writer
from correlator.settings import ReceiverSettings

LONGEST_WAIT_S = 0.2
"""Longest call of `Source.receive`: bounds how late a stop is noticed."""
BACK_PRESSURE_WAIT_S = 0.05


class Targets:
    """The contexts that a receiver delivers to, and what makes it wait.

    Args:
        queues: their queues and what wakes their threads.
        max_backlog: messages of the receiver that may wait in one context before it pauses.
        full_outbox: names a sender that has so much to send that receiving must pause.
    """

    def __init__(
        self,
        queues: Sequence[tuple[str, InputQueue, Callable[[], None]]],
        max_backlog: int,
        full_outbox: Callable[[], str | None],
    ) -> None:
        self._queues = queues
        self._max_backlog = max_backlog
        self._full_outbox = full_outbox
        self.names = [name for name, _, _ in queues]

    def deliver(self, make_run: Callable[[], Run]) -> None:
        """Put a run into each queue."""
        for _, queue, wake in self._queues:
            queue.deliver(make_run())
            wake()

    def back_pressure(self, receiver: str) -> str:
        """What has so much to do that the receiver must wait: `queue:CONTEXT`, `outbox:SENDER`, "" for nothing."""
        for name, queue, _ in self._queues:
            if queue.backlog(receiver) >= self._max_backlog:
                return f"queue:{name}"
        full = self._full_outbox()
        return f"outbox:{full}" if full is not None else ""


class Receiver(Actor):
    """One receiver.

    Attributes:
        waits_for: why it receives nothing now: `window` (flow control), `queue:CONTEXT`, `outbox:SENDER` or `doubt`
            (lost connections have left much in doubt, and the broker may not have noticed them yet); "" for none of
            these. Written by its own thread.

    Args:
        settings: as configured.
        intake: its decisions.
        source: not yet connected.
        mapper: makes events of messages.
        targets: where events go.
        writer: `None` without persistence.
        clock: monotonic seconds.
        statuses: is told how it is.
        breakdown: measures what the thread does.
        reconnecting: how attempts to connect follow one another.
        blocking: whether `Source.receive` may block; the simulation says no.
        ended: called when the source has come to its end.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        intake: Intake,
        source: Source,
        mapper: Mapper,
        targets: Targets,
        writer: Writer | None,
        *,
        clock: Clock,
        statuses: Statuses,
        breakdown: NoBreakdown,
        reconnecting: ReconnectionPolicy,
        blocking: bool,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(f"receiver-{settings.id}")
        self.settings = settings
        self.intake = intake
        self.mapper = mapper
        self.targets = targets
        self.waits_for = ""
        self._source = source
        self._writer = writer
        self._clock = clock
        self._statuses = statuses
        self._breakdown = breakdown
        self._blocking = blocking
        self._ended = ended
        self._open = False
        self._begun = False
        self._drained = False
        self._request: ReceiveRequest | None = None
        self._accepted: Accepted | None = None
        self._log = get_logger(receiver=settings.id)
        self._reconnection = Reconnection(reconnecting, clock, self._log)

    @property
    def state(self) -> State:
        """Where it is in its cycle."""
        return self.intake.state

    @property
    def counters(self) -> ReceiverCounters:
        """What it did."""
        return self.intake.counters

    @property
    def window(self) -> int:
        """How many messages the application lets it deliver now; -1 without flow control."""
        return self.intake.window

    @property
    def quiet(self) -> bool:
        """Whether it has seen that it is to drain, and takes nothing more; said by its own thread."""
        return self._drained or not self._open

    @property
    def is_open(self) -> bool:
        """Whether it may connect and receive."""
        return self._open

    def open(self) -> None:
        """Let it connect and receive; for the thread that starts the engine or adds the receiver."""
        self._open = True

    def drain(self) -> None:
        """Take in nothing more, but finish what is begun; any thread may call it."""
        self.intake.draining = True
        self.wake()

    def grant(self, through: int) -> None:
        """Let it deliver up to message `through` (rule A9.1); called from a context's thread."""
        self.intake.allow(through)
        self.wake()

    def tell(self, status: PartStatus, error: str = "") -> None:
        """It is in this status now."""
        self._statuses.tell(self.settings, status, error)

    def resume(self, context: str) -> Acknowledge:
        """What acknowledges the suspended batch and receives on; asked and called from a context's thread.

        Called when that batch is suspended no more it does nothing: its connection was lost, so it comes again. Raises
        `UsageError` E7101 when no batch is suspended, E7102 from a context that does not handle it.
        """
        if context not in self.targets.names:
            raise UsageError(
                "E7102",
                f"receiver {self.settings.id}",
                f"context '{context}' cannot acknowledge",
                f"Only '{self.targets.names[0]}', which handles its messages",
            )
        batch = self.intake.suspended()
        if batch is None:
            raise nothing_suspended(self.settings.id)
        return lambda: self._resume(batch)

    def _resume(self, batch: Batch) -> None:
        self.intake.resume(batch)
        self.wake()

    def step(self) -> float | None:
        """Go on as far as possible in the present state."""
        if not self._open:
            return None
        if self.intake.draining and self.intake.idle:
            self._drained = True
        try:
            return self._act()
        except ConnectionLost as error:
            return self._lost(error)
        finally:
            self._warn()

    def _warn(self) -> None:
        for text, values in self.intake.warnings():
            self._log.warning(text, **values)

    def finish(self) -> None:
        """Close the source."""
        self.intake.close()
        self._source.close()
        self.mapper.close()

    def _act(self) -> float | None:
        state = self.intake.state
        if state is State.DISCONNECTED:
            return self._connect()
        if state is State.RECEIVING:
            return self._receive()
        if state is State.COMMITTING:
            return self._committed()
        if state is State.SUSPENDED:
            return self._acknowledge_suspended()
        return None

    def _connect(self) -> float | None:
        if not self._begun:
            self._begun = True
            self.tell(PartStatus.CONNECTING)
            self._mark()
        if self.intake.draining:
            return None
        wait = self._reconnection.wait()
        if wait > 0:
            return wait
        point("rx.reconnect")
        self._source.connect()
        self.intake.connected(self._clock.monotonic())
        self._reconnection.back()
        self.tell(PartStatus.OK)
        self._breakdown.restart()
        return 0

    def _lost(self, error: ConnectionLost) -> float:
        delay = self._reconnection.lost(error)
        missing = error.code == NO_SUCH_DESTINATION
        self.tell(PartStatus.DESTINATION_NOT_FOUND if missing else PartStatus.ERROR, str(error))
        self.intake.lost()
        self.mapper.forget()
        return delay

    # --- receiving ---

    def _receive(self) -> float | None:
        intake = self.intake
        if intake.draining and not intake.batch.messages:
            return None
        if not intake.room and not intake.batch.messages:
            self.waits_for = "window"
            point("rx.flow.window")
            return None
        self.waits_for = self._back_pressure()
        if self.waits_for:
            point("rx.flow.wait")
            return BACK_PRESSURE_WAIT_S
        self._breakdown.lap("FLOW_CONTROL")
        point("rx.poll")
        waited = self._take_chunk()
        if intake.complete(self._clock.monotonic()):
            self._hand_on()
            return 0 if intake.state is not State.COMMITTING else None
        if intake.end():
            self._ended()
            return None
        return 0 if self._blocking else waited

    def _back_pressure(self) -> str:
        if pressure := self.targets.back_pressure(self.settings.id):
            return pressure
        return "doubt" if self.intake.redeliveries.too_many(self._clock.monotonic()) else ""

    def _take_chunk(self) -> float:
        intake, now = self.intake, self._clock.monotonic()
        if intake.batch.messages:
            wait = intake.batch.remaining(now)
        else:
            wait = LONGEST_WAIT_S
            intake.redeliveries.expect(now)
        chunk = self._source.receive(intake.room, min(wait, LONGEST_WAIT_S) if self._blocking else 0.0)
        self.mapper.add(intake.take(chunk, self._clock.monotonic(), self._clock.wall()))
        self._breakdown.lap("RECEIVING" if chunk.messages else "R_TIMEOUTS")
        return wait

    def _hand_on(self) -> None:
        intake = self.intake
        intake.hand_on(self._clock.wall(), self.mapper.mapping.name_of)
        self._warn()  # now: what is acknowledged and dropped has a line in the log, whatever ends the process
        point("rx.map")
        mapped = self.mapper.finish()
        self._breakdown.lap("MAPPING")
        if mapped.dead_letters:
            self._judge(mapped)
        something = mapped.messages or mapped.dead_letters
        if self._writer is not None and something and (intake.mode.stored or mapped.dead_letters):
            self._store(mapped, self._writer)
        else:
            self._report(mapped.dead_letters)
            self._deliver(mapped)

    def _judge(self, mapped: Mapped) -> None:
        """What becomes of messages that cannot be mapped."""
        point("rx.map.error")
        policy, letters = self.settings.on_mapping_error, mapped.dead_letters
        if policy == "dead_letter":
            return
        self._report(letters)
        if policy == "stop":
            reason = letters[0].reason
            raise MappingError(reason.split(" ", 1)[0], f"receiver {self.settings.id}", reason.split(": ", 1)[-1])
        mapped.forget_failed()

    def _report(self, dead_letters: Sequence[DeadLetter]) -> None:
        self.intake.note_dead_letters(len(dead_letters))
        for letter in dead_letters:
            self._log.error("message cannot be mapped", reason=letter.reason, policy=self.settings.on_mapping_error)

    def _store(self, mapped: Mapped, writer: Writer) -> None:
        intake = self.intake
        self._request = ReceiveRequest(
            mapped,
            self.settings.id,
            intake.next_batch,
            intake.next_number,
            intake.domain,
            intake.redeliveries.sure,
            keep=intake.mode.stored,
        )
        intake.to_store()
        point("rx.submit")
        writer.submit(self._request, self._accept)

    def _accept(self, accepted: Accepted) -> None:
        """The batch is durable; called in the writer's thread."""
        self._accepted = accepted
        self.wake()

    def _committed(self) -> float | None:
        request, accepted = self._request, self._accepted
        if request is None or accepted is None:
            return None
        self._request = self._accepted = None
        self.intake.committed()
        self._report(accepted.dead_letters)
        if not self.intake.mode.stored:
            self._breakdown.lap("MAPPING")  # keeping what could not be mapped
            self._deliver(request.mapped)
            return 0
        self._breakdown.lap_until("DB_WAIT", accepted.began)
        ids = request.mapped.ids
        self.intake.note_stored(len(accepted.duplicates), ids.count(""), [ids[at] for at in accepted.conflicts])
        self._warn()
        self._breakdown.lap("DB_COMMIT")
        try:
            self._acknowledge()  # first: a message that ends the process must not come again from the broker as well
        finally:
            if accepted.segment is not None:
                self._enqueue(accepted.segment.messages, accepted.events)
                self._breakdown.lap("DB_COMMIT")
        return 0

    # --- delivering and acknowledging ---

    def _deliver(self, mapped: Mapped) -> None:
        self._enqueue(mapped.messages, mapped.events)
        if not self.intake.mode.stored:
            self._breakdown.lap("ENQUEUING")
        if self.intake.delivered(len(mapped.messages), self._clock.monotonic()) is State.SUSPENDED:
            point("ac.suspend")
            notice = ReceivingSuspended(receiver=self.settings.id)
            self.targets.deliver(lambda: Run("", 0, (), (notice,), stored=False))
        else:
            self._acknowledge()

    def _enqueue(self, messages: Sequence[Any], events: Sequence[Any]) -> None:
        first = self.intake.number(len(messages))
        point("rx.enqueue")
        if messages:
            stored = self.intake.mode.stored
            self.targets.deliver(lambda: Run(self.settings.id, first, messages, events, stored=stored))
            self._mark()

    def _mark(self) -> None:
        """Tell the contexts how far the queue goes now (rule A9.1)."""
        if self.settings.flow_control:
            marker = FlowControlMarker(receiver=self.settings.id, number=self.intake.next_number - 1)
            self.targets.deliver(lambda: Run("", 0, (), (marker,), stored=False))

    def _acknowledge_suspended(self) -> float | None:
        if not self.intake.resumed():
            return self.intake.held(self._clock.monotonic())
        self._breakdown.lap("APP_CONTROLLED_BLOCKING")
        point("ac.ack")
        self._acknowledge()
        return 0

    def _acknowledge(self) -> None:
        batch = self.intake.batch
        point("rx.ack.before")
        self._source.acknowledge(batch.tokens)
        point("rx.ack.after")
        self._breakdown.lap("ACK")
        self._breakdown.batch(len(batch.messages))
        self.mapper.forget()
        self.intake.acknowledged(self._clock.monotonic())
