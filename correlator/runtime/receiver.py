"""The thread of a receiver: takes batches from its source and does what its intake decides (`core/intake.py`).

The way of a batch is the order of the methods: `_receive`, `_hand_on`, `_store`, `_committed`, `_deliver`,
`_acknowledge`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from correlator.connector import NO_SUCH_DESTINATION, Source, TakesFromProgram, TellsSenders
from correlator.core.batch import ReceiveBatch
from correlator.core.faults import point
from correlator.core.intake import Intake, ReceiverCounters, ReceiverState
from correlator.core.mapping import Mapped
from correlator.core.routes import Acknowledge, nothing_suspended
from correlator.errors import ConnectionLost, MappingError, UsageError
from correlator.events import DeadLetter, PartStatus, ReceivingSuspended
from correlator.runtime.actor import Actor
from correlator.runtime.backlog import BacklogLook
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger
from correlator.runtime.mapper import Mapper
from correlator.runtime.reconnection import Reconnection, ReconnectionPolicy
from correlator.runtime.requests import Accepted, ReceiveRequest
from correlator.runtime.returning import Returning, Returns
from correlator.runtime.statuses import Statuses
from correlator.runtime.targets import Delivery, Targets
from correlator.runtime.writer import Writer
from correlator.settings import ReceiverSettings

if TYPE_CHECKING:
    from correlator.runtime.spans import Spans

LONGEST_WAIT_S = 0.2
"""The longest time in seconds that a call of `Source.receive` waits: a stop is noticed after it at the latest."""
BACK_PRESSURE_WAIT_S = 0.05
"""Seconds between two checks of a limit that makes the receiver wait."""


class Receiver(Actor):
    """The actor of one receiver.

    Args:
        settings: the settings, as configured.
        intake: decides what the receiver does with its messages.
        source: the consumer, not yet connected.
        mapper: makes events of messages.
        targets: the contexts that get the events; its `ended` tells the engine of the end of the source.
        writer: stores batches; `None` for an engine without a store.
        clock: monotonic seconds for time-outs and back-off, and the time of day for the expiry of messages.
        statuses: gets each new status of the receiver.
        breakdown: measures what the thread spends its time on.
        reconnecting: says how attempts to connect follow one another.
        blocking: whether `Source.receive` may block; `False` in the simulation.
        spans: makes spans of sampled messages; `None` for no spans.

    Attributes:
        settings: the settings, as configured.
        intake: holds the state and the present batch of the receiver.
        mapper: makes events of messages.
        targets: the contexts that get the events.
        program: the source, if the program gives its messages; `None` for messages of a broker.
        waits_for: why the receiver takes no messages now: `pause` (somebody has paused it), `window` (flow control),
            `queue:CONTEXT`, `outbox:SENDER` or `doubt` (lost connections have left many messages in doubt, and the
            broker may not have noticed the losses yet); "" for none of these. Written by this thread.
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
        spans: "Spans | None" = None,
    ) -> None:
        super().__init__(f"receiver-{settings.id}")
        self.settings = settings
        self.intake = intake
        self.mapper = mapper
        self.targets = targets
        self.waits_for = ""
        self.program = source if isinstance(source, TakesFromProgram) else None
        self._source = source
        self._backlog = BacklogLook(source, intake.counters, clock)
        self._writer = writer
        self._clock = clock
        self._statuses = statuses
        self._breakdown = breakdown
        self._blocking = blocking
        self._spans = spans
        self._begun = False
        self._stored: tuple[Mapped, Accepted] | None = None
        self._delivery = Delivery(settings, intake, targets)
        self._returns = Returns(settings.id, intake, mapper, self._delivery, writer, lambda: self.stopping)
        self._log = get_logger(receiver=settings.id)
        self._reconnection = Reconnection(reconnecting, clock, self._log)

    @property
    def state(self) -> ReceiverState:
        """The present state of the cycle of this receiver (`core/intake.py`). Any thread may read it."""
        return self.intake.state

    @property
    def counters(self) -> ReceiverCounters:
        """What this receiver has done in this life. Its own thread writes the counters; any thread may read them."""
        return self.intake.counters

    @property
    def window(self) -> int:
        """How many messages flow control lets the receiver deliver now; -1 without flow control."""
        return self.intake.window

    @property
    def quiet(self) -> bool:
        """Whether the receiver takes no further messages and holds none, because it has finished draining, is paused or
        is not open.
        """
        return self.intake.gate.quiet

    @property
    def paused(self) -> bool:
        """Whether somebody has paused the receiver. It may still have a batch to finish; see `quiet`."""
        return self.intake.gate.paused

    @property
    def is_open(self) -> bool:
        """Whether the receiver may connect and receive."""
        return self.intake.gate.is_open

    def open(self) -> None:
        """Let the receiver connect and receive. The thread that starts the engine or adds the receiver calls it."""
        self.intake.gate.open()

    def drain(self) -> None:
        """Let the receiver finish the present batch and begin no other one. Any thread may call it."""
        self.intake.gate.drain()
        self.wake()

    def pause(self) -> None:
        """Let the receiver finish the present batch and begin no other one, until `go_on`. It keeps its connection.

        One thread at a time may call it and `go_on`.
        """
        if not self.paused:
            self.intake.gate.pause()
            self.wake()

    def go_on(self) -> None:
        """End the pause, if there is one."""
        self.intake.gate.go_on()
        self.wake()

    def bring_back(self, returning: Returning) -> None:
        """Let the receiver store and deliver messages again, between two batches, while it is not paused.

        Any thread may call it, for a receiver whose messages are stored.
        """
        self._returns.add(returning)
        self.wake()

    def withdraw(self, returning: Returning) -> bool:
        """Take back what `bring_back` was given, unless the receiver has begun with it; return whether it was so."""
        return self._returns.withdraw(returning)

    def grant(self, through: int) -> None:
        """Let the receiver deliver messages up to number `through` (rule A9.1). The thread of a context calls it."""
        self.intake.allow(through)
        self.wake()

    def tell(self, status: PartStatus, error: str = "") -> None:
        """Report the status of this receiver."""
        self._statuses.tell(self.settings, status, error)

    def resume(self, context: str) -> Acknowledge:
        """Return a call that acknowledges the suspended batch and lets the receiver go on.

        The thread of a context calls `resume` in a handler, and makes the returned call after the handler. If the
        connection is lost in between, the returned call does nothing: the broker delivers the batch again. Raises
        `UsageError` E7101 if no batch is suspended, E7102 if `context` does not handle the receiver's messages.
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

    def _resume(self, batch: ReceiveBatch) -> None:
        self.intake.resume(batch)
        self.wake()

    def step(self) -> float | None:
        """Do what the present state of the cycle allows: connect, receive, store or acknowledge; see `Actor.step`."""
        gate = self.intake.gate
        if not gate.is_open:
            return None
        gate.note(idle=self.intake.idle, empty=not self.intake.batch.messages)
        try:
            return self._act()
        except ConnectionLost as error:
            return self._lost(error)
        finally:
            self._warn()

    def _act(self) -> float | None:
        state = self.intake.state
        if self._returns.due:
            self._returns.carry_out()
            return 0
        if state is ReceiverState.DISCONNECTED:
            return self._connect()
        if state is ReceiverState.RECEIVING:
            return self._receive()
        if state is ReceiverState.COMMITTING:
            return self._committed()
        if state is ReceiverState.SUSPENDED:
            return self._acknowledge_suspended()
        return None

    def _warn(self) -> None:
        for text, values in self.intake.warnings():
            self._log.warning(text, **values)

    def finish(self) -> None:
        """Close the intake, the source and the mapping threads; called once in this thread, after its last step."""
        self.intake.close()
        self._source.close()
        self.mapper.close()
        self._returns.close()

    # --- the connection ---

    def _connect(self) -> float | None:
        if not self._begun:
            self._begun = True
            self.tell(PartStatus.CONNECTING)
            self._delivery.mark()
        if self.intake.gate.draining:
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
        if intake.gate.draining and not intake.batch.messages:
            return None
        self._backlog.look()
        if not intake.batch.messages and (intake.gate.paused or not intake.room):
            return self._rest()
        self.waits_for = self._back_pressure()
        if self.waits_for:
            point("rx.flow.wait")
            return BACK_PRESSURE_WAIT_S
        self._breakdown.lap("FLOW_CONTROL")
        point("rx.poll")
        waited = self._take_chunk()
        if intake.complete(self._clock.monotonic()):
            self._hand_on()
            return 0 if intake.state is not ReceiverState.COMMITTING else None
        if intake.end():
            self._backlog.end()
            self.targets.ended()
            return None
        return 0 if self._blocking else waited

    def _rest(self) -> float | None:
        """Begin no batch, because of a pause or flow control. In a pause, go on to look at the backlog."""
        if self.intake.gate.paused:
            self.waits_for = "pause"
            return self._backlog.interval
        self.waits_for = "window"
        point("rx.flow.window")
        return None

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
        wall_s = self._clock.wall()
        self.mapper.add(intake.take(chunk, self._clock.monotonic(), wall_s))
        self._breakdown.lap("RECEIVING" if chunk.messages else "R_TIMEOUTS")
        return wait

    # --- mapping ---

    def _hand_on(self) -> None:
        """Map the complete batch; then store it if there is something to store, or else deliver it."""
        intake = self.intake
        intake.hand_on(self._clock.wall(), self.mapper.mapping.name_of)
        self._warn()  # at once: messages that are acknowledged and dropped get a log line even if the process ends
        point("rx.map")
        mapped = self.mapper.finish()
        self._breakdown.lap("MAPPING")
        if mapped.dead_letters:
            mapped = self._apply_policy(mapped)
        something = mapped.messages or mapped.dead_letters
        if self._writer is not None and something and (intake.mode.stored or mapped.dead_letters):
            self._store(mapped, self._writer)
        else:
            self._report(mapped.dead_letters)
            self._deliver(mapped)

    def _apply_policy(self, mapped: Mapped) -> Mapped:
        """Treat the messages that could not be mapped as the setting of the receiver says; return what is left."""
        point("rx.map.error")
        policy, letters = self.settings.on_mapping_error, mapped.dead_letters
        if policy == "dead_letter":
            return mapped
        self._report(letters)
        if policy == "stop":
            reason = letters[0].reason
            raise MappingError(reason.split(" ", 1)[0], f"receiver {self.settings.id}", reason.split(": ", 1)[-1])
        return mapped.without_failed()

    def _report(self, dead_letters: Sequence[DeadLetter]) -> None:
        if self.settings.on_mapping_error != "dead_letter":
            self.intake.note_unmapped(len(dead_letters))
        elif dead_letters:
            self.intake.note_dead_letters(len(dead_letters))
            self._statuses.dead_letters(self.settings, len(dead_letters), dead_letters[0].reason)
        for letter in dead_letters:
            headers = letter.message.headers
            self._log.error(
                "message cannot be mapped",
                unique_id=letter.unique_id,
                message_id=None if headers is None else headers.message_id,
                reason=letter.reason,
                policy=self.settings.on_mapping_error,
            )

    # --- storing ---

    def _store(self, mapped: Mapped, writer: Writer) -> None:
        intake = self.intake
        request = ReceiveRequest(
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
        writer.submit(request, lambda accepted: self._accept(mapped, accepted))

    def _accept(self, mapped: Mapped, accepted: Accepted) -> None:
        """Take the answer of the writer: the batch is committed. Called in the writer's thread."""
        self._stored = mapped, accepted
        self.wake()

    def _committed(self) -> float | None:
        if self._stored is None:
            return None
        (mapped, accepted), self._stored = self._stored, None
        self.intake.committed()
        self._report(accepted.dead_letters)
        if not self.intake.mode.stored:
            self._breakdown.lap("MAPPING")  # storing dead letters
            self._deliver(mapped)
            return 0
        self._breakdown.lap_until("DB_WAIT", accepted.began)
        ids = mapped.ids
        conflicts = [ids[at] for at in accepted.conflicts]
        self.intake.note_stored(len(accepted.duplicates), ids.count(""), conflicts)
        self._warn()
        self._breakdown.lap("DB_COMMIT")
        try:
            if conflicts and isinstance(self._source, TellsSenders):
                self._source.dropped(conflicts)
            self._acknowledge()  # before the delivery: the broker must not redeliver a message that ends the process
        finally:
            if accepted.segment is not None:
                self._delivery.deliver(accepted.segment.messages, accepted.events)
                self._breakdown.lap("DB_COMMIT")
        return 0

    # --- delivering what is not stored ---

    def _deliver(self, mapped: Mapped) -> None:
        self._delivery.deliver(mapped.messages, mapped.events)
        if not self.intake.mode.stored:
            self._breakdown.lap("ENQUEUING")
        if self.intake.delivered(len(mapped.messages), self._clock.monotonic()) is ReceiverState.SUSPENDED:
            point("ac.suspend")
            self._delivery.notify(ReceivingSuspended(receiver=self.settings.id))
        else:
            self._acknowledge()

    def _acknowledge_suspended(self) -> float | None:
        if not self.intake.resumed():
            return self.intake.held(self._clock.monotonic())
        self._breakdown.lap("APP_CONTROLLED_BLOCKING")
        point("ac.ack")
        self._acknowledge()
        return 0

    # --- acknowledging ---

    def _acknowledge(self) -> None:
        batch = self.intake.batch
        point("rx.ack.before")
        self._source.acknowledge(batch.tokens)
        point("rx.ack.after")
        if self._spans is not None:
            self._spans.received(self.settings, batch.messages, batch.began)
        self._breakdown.lap("ACK")
        self._breakdown.batch(len(batch.messages))
        self.mapper.forget()
        self.intake.acknowledged(self._clock.monotonic())
