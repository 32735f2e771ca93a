"""A receiver's thread: takes batches from its source and carries each through its mode's cycle.

The rules are in docs/rules.md, sections A3 and A4.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from correlator.connector import NO_SUCH_DESTINATION, Features, Source
from correlator.core.acknowledgements import Acknowledgements
from correlator.core.batch import Batch
from correlator.core.faults import point
from correlator.core.mapping import Mapped, ReceiveMapping
from correlator.core.queue import InputQueue, Run
from correlator.core.receiving import Input, ReceiverState, State, from_sources
from correlator.core.routes import Acknowledge, nothing_suspended
from correlator.errors import ConnectionLost, MappingError, UsageError, storable
from correlator.events import (
    UNREADABLE,
    DeadLetter,
    FlowControlMarker,
    Message,
    PartStatus,
    ReceivingSuspended,
    expired,
)
from correlator.reliability import RECEIVING
from correlator.runtime.actor import Actor
from correlator.runtime.breakdown import NoBreakdown
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.logs import get_logger
from correlator.runtime.mapper import Mapper
from correlator.runtime.reconnection import Reconnection, Retrying
from correlator.runtime.status import ReceiverCounters
from correlator.runtime.statuses import Statuses
from correlator.runtime.writer import ReceiveRequest, Writer
from correlator.selector import Selector
from correlator.settings import ReceiverSettings

LONGEST_WAIT_S = 0.2
"""Longest call of `Source.receive`: bounds how late a stop is noticed."""
BACK_PRESSURE_WAIT_S = 0.05
MOST_IN_DOUBT = 100_000
"""Messages that lost lines may leave in doubt, or ten batches, before a receiver waits until they are noticed."""


class Targets:
    """The contexts that a receiver delivers to.

    Args:
        queues: their queues and what wakes their threads.
    """

    def __init__(self, queues: Sequence[tuple[str, InputQueue, Callable[[], None]]]) -> None:
        self._queues = queues
        self.names = [name for name, _, _ in queues]

    def deliver(self, make_run: Callable[[], Run]) -> None:
        """Put a run into each queue."""
        for _, queue, wake in self._queues:
            queue.deliver(make_run())
            wake()

    def crowded(self, receiver: str, most: int) -> str | None:
        """A context in which so many messages of the receiver wait."""
        return next((name for name, queue, _ in self._queues if queue.backlog(receiver) >= most), None)


class Receiver(Actor):
    """One receiver.

    Attributes:
        waits_for: why it receives nothing now: `window` (flow control), `queue:CONTEXT`, `outbox:SENDER` or `doubt`
            (lost lines have left much in doubt, and the broker may not have noticed them yet); "" for none of these.
            Written by its own thread.

    Args:
        settings: as configured.
        source: not yet connected.
        features: of its connection.
        mapping: makes events of messages.
        selector: what is taken; `None` for everything.
        targets: where events go.
        writer: `None` without persistence.
        domain: duplicate detection domain; `None` in modes without.
        next_number: number of the next message.
        next_batch: count of the next batch.
        confirmed_batch: the last batch surely acknowledged.
        in_doubt: messages in later batches, at most: they may come again.
        beside: the other receivers of the same destination: what they had may come before what this one had.
        clock: monotonic seconds.
        engine_time: engine time.
        max_backlog: messages that may wait in one context before receiving pauses.
        full_outbox: names a sender that has so much to send that receiving must pause.
        statuses: is told how it is.
        own_sources: the sources of this engine's senders, by the property that carries them.
        breakdown: measures what the thread does.
        retrying: how attempts to connect follow one another.
        fail_fast: whether a broker that cannot be reached for the first time is an error instead of a wait.
        blocking: whether `Source.receive` may block; the simulation says no.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        source: Source,
        features: Features,
        mapping: ReceiveMapping,
        selector: Selector | None,
        targets: Targets,
        writer: Writer | None,
        *,
        domain: str | None,
        next_number: int,
        next_batch: int,
        confirmed_batch: int,
        in_doubt: int,
        beside: Callable[[], Sequence["Receiver"]],
        clock: Clock,
        engine_time: EngineTime,
        max_backlog: int,
        full_outbox: Callable[[], str | None],
        statuses: Statuses,
        own_sources: Callable[[], Mapping[str, frozenset[str]]],
        breakdown: NoBreakdown,
        retrying: Retrying,
        fail_fast: bool,
        blocking: bool,
    ) -> None:
        super().__init__(f"receiver-{settings.id}")
        self.settings = settings
        self.counters = ReceiverCounters()
        self.open = False
        self.draining = False
        self.waits_for = ""
        self.ended: Callable[[], None] = lambda: None
        self._source = source
        self.mapping = mapping
        self._selector = selector
        self.targets = targets
        self._writer = writer
        self._mode = RECEIVING[settings.reliability]
        self.domain = domain
        self._next_number = next_number
        self._next_batch = next_batch
        self._clock = clock
        self._engine_time = engine_time
        self._max_backlog = max_backlog
        self._full_outbox = full_outbox
        self._statuses = statuses
        self._own_sources = own_sources
        self._breakdown = breakdown
        self._fail_fast = fail_fast
        self._blocking = blocking
        self._state = ReceiverState(settings.reliability)
        self._mapper = Mapper(mapping, settings.max_extra_mapping_threads, self.name, engine_time.now)
        self._granted_through = next_number - 1
        self._begun = False
        self._batch = self._new_batch()
        self._expired: list[Message] = []
        self._ended = False
        self._request: ReceiveRequest | None = None
        self._resumed: Batch | None = None
        self._drained = False
        self._in_doubt = in_doubt
        self._acknowledgements = Acknowledgements(
            confirmed_batch,
            next_batch - 1,
            answered=features.acknowledges_surely,
            written_within_s=features.acknowledgements_written_within_s,
        )
        self._left_in_doubt = 0
        """Messages in doubt by losses of this life."""
        self._may_come_again: int | None = None
        """How many messages must come before nothing is in doubt; `None` while they do not count."""
        self._notices_loss_within_s = features.notices_loss_within_s
        self._noticed_at = 0.0
        """When the broker has noticed every line that was lost, by the clock."""
        self._holds_for_s = features.holds_for_s
        self._warn_at: float | None = None
        self._beside = beside
        self._notices: set[str] = set()
        self._log = get_logger(receiver=settings.id)
        self._reconnection = Reconnection(retrying, clock, self._log)

    @property
    def state(self) -> State:
        """Where it is in its cycle."""
        return self._state.now

    @property
    def quiet(self) -> bool:
        """Whether it has seen that it is to drain, and takes nothing more; said by its own thread.

        A suspended batch is the application's: unacknowledged, it comes again.
        """
        return self._drained or not self.open

    @property
    def may_give_back(self) -> int:
        """How many messages may come again because this receiver has or had them, at most; asked from any thread."""
        return self._in_doubt + self.settings.max_batch_size

    @property
    def window(self) -> int:
        """How many messages the application lets it deliver now; -1 without flow control."""
        return max(0, self._granted_through - self._next_number + 1) if self.settings.flow_control else -1

    def grant(self, through: int) -> None:
        """Let it deliver up to message `through` (rule A9.1); called from a context's thread."""
        self._granted_through = through
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
        batch = self._batch
        if self.state is not State.SUSPENDED or self._resumed is batch:
            raise nothing_suspended(self.settings.id)
        return lambda: self._resume(batch)

    def _resume(self, batch: Batch) -> None:
        self._resumed = batch
        self.wake()

    def step(self) -> float | None:
        """Go on as far as possible in the present state."""
        if not self.open:
            return None
        if self.draining and (self.state is State.SUSPENDED or not (self._batch.messages or self._request)):
            self._drained = True
        try:
            return self._act()
        except ConnectionLost as error:
            return self._lost(error)

    def finish(self) -> None:
        """Close the source."""
        self._state.receive(Input.CLOSE)
        self._source.close()
        self._mapper.close()

    def _act(self) -> float | None:
        state = self._state.now
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
        if self.draining:
            return None
        wait = self._reconnection.wait()
        if wait > 0:
            return wait
        point("rx.reconnect")
        self._source.connect()
        self._noticed_at = self._clock.monotonic() + self._notices_loss_within_s
        self._reconnection.back()
        self._fail_fast = False
        self._state.receive(Input.CONNECTED)
        self.tell(PartStatus.OK)
        self._breakdown.restart()
        return 0

    def _lost(self, error: ConnectionLost) -> float:
        if self._fail_fast:
            raise error
        self.counters.connection_errors += 1
        missing = error.code == NO_SUCH_DESTINATION
        self.tell(PartStatus.DESTINATION_NOT_FOUND if missing else PartStatus.ERROR, str(error))
        self._doubt()
        self._state.receive(Input.LOST)
        self._batch = self._new_batch()
        self._mapper.forget()
        self._expired = []
        self._ended = False
        return self._reconnection.lost(error)

    def _doubt(self) -> None:
        """Nobody knows whether the acknowledgement under way has arrived, nor those that have no answer."""
        under_way = len(self._batch.messages) if self.state is State.ACKNOWLEDGING else 0
        in_doubt = under_way + self._acknowledgements.lose(self._next_batch - 1)
        self._in_doubt += in_doubt
        self._left_in_doubt += in_doubt
        self._may_come_again = None

    def _expect_again(self) -> None:
        """What is in doubt may come again, and before it what others beside this one have or had.

        Until the broker has noticed every lost line, newer messages may come first, and so may those that were on their
        way then: they are not counted. A loss before this life began was one before this life's first connection.
        """
        counts = self._may_come_again is not None
        if not self._in_doubt or counts or self._clock.monotonic() < self._noticed_at:
            return
        on_their_way = self.settings.max_batch_size if self._notices_loss_within_s else 0
        self._may_come_again = self._in_doubt + on_their_way + sum(other.may_give_back for other in self._beside())

    # --- receiving ---

    def _receive(self) -> float | None:
        if self.draining and not self._batch.messages:
            return None
        if not self._room() and not self._batch.messages:
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
        now = self._clock.monotonic()
        complete = self._batch.closed(now) or not self._room() or self._ended or self.draining
        if self._batch.messages and complete:
            self._hand_over()
            return 0 if self.state is not State.COMMITTING else None
        if self._ended:
            self._state.receive(Input.ENDED)
            self.ended()
            return None
        return 0 if self._blocking else waited

    def _back_pressure(self) -> str:
        """What has so much to do that nothing may be received now; "" for nothing."""
        crowded = self.targets.crowded(self.settings.id, self._max_backlog)
        if crowded is not None:
            return f"queue:{crowded}"
        full = self._full_outbox()
        if full is not None:
            return f"outbox:{full}"
        most = max(MOST_IN_DOUBT, 10 * self.settings.max_batch_size)
        return "doubt" if self._left_in_doubt > most and self._clock.monotonic() < self._noticed_at else ""

    def _take_chunk(self) -> float:
        batch = self._batch
        if not batch.messages:
            self._expect_again()
        wait = batch.remaining(self._clock.monotonic()) if batch.messages else LONGEST_WAIT_S
        timeout = min(wait, LONGEST_WAIT_S) if self._blocking else 0.0
        chunk = self._source.receive(self._room(), timeout)
        self.counters.unselected += chunk.unselected
        if chunk.messages:
            batch.add(chunk.messages, chunk.token, self._clock.monotonic())
            self._mapper.add(self._wanted(chunk.messages))
        self._breakdown.lap("RECEIVING" if chunk.messages else "R_TIMEOUTS")
        self._ended = chunk.ended
        return wait

    def _room(self) -> int:
        """How many more messages the present batch may take."""
        if not self.settings.flow_control:
            return self._batch.room
        return min(self._batch.room, max(0, self.window - len(self._batch.messages)))

    def _wanted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Without those whose time is over, that are not selected, or are the engine's own and not asked for."""
        wall_ms = self._clock.wall() * 1000
        if late := [message for message in messages if message.headers is not None and expired(message, wall_ms)]:
            self._expired.extend(late)
            messages = [message for message in messages if not expired(message, wall_ms)]
        if self._selector is not None:
            selected = [message for message in messages if self._selector.matches(message)]
            self.counters.unselected += len(messages) - len(selected)
            messages = selected
        if own := from_sources(messages, self._own_sources()):
            self.counters.own += len(own)
            self._warn_once("W5406", "messages of this engine's own senders come back", count=len(own))
            if self.settings.no_local:
                messages = [message for at, message in enumerate(messages) if at not in own]
        return messages

    def _hand_over(self) -> None:
        batch = self._batch
        self.counters.received += len(batch.messages)
        self.counters.batches += 1
        self._note_redelivery(batch.messages)
        self._note_unreadable(batch.messages)
        self._note_expired()
        point("rx.map")
        mapped = self._mapper.finish()
        self._breakdown.lap("MAPPING")
        if mapped.dead_letters:
            self._judge(mapped)
        something = mapped.messages or mapped.dead_letters
        if self._writer is not None and something and (self._mode.stored or mapped.dead_letters):
            self._store(mapped, self._writer)
        else:
            self._report(mapped.dead_letters)
            self._deliver(mapped)

    def _note_expired(self) -> None:
        late, self._expired = self._expired, []
        if late:
            self.counters.expired += len(late)
            first = self.mapping.name_of(late[0])
            self._log.warning("W5405 messages whose time to live had passed were dropped", count=len(late), first=first)

    def _note_unreadable(self, messages: Sequence[Message]) -> None:
        unreadable = [message for message in messages if UNREADABLE in message.properties]
        self.counters.unreadable += len(unreadable)
        if unreadable:
            reason = storable(str(unreadable[0].properties[UNREADABLE]))
            self._warn_once("W5409", "messages that cannot be read come as they were sent", first=reason)

    def _note_redelivery(self, messages: Sequence[Message]) -> None:
        """How long redelivered messages had been under way: what `expiry_time` is chosen by (rule A8.19)."""
        again = [m.headers for m in messages if m.headers is not None and m.headers.redelivered]
        self.counters.redelivered += len(again)
        sent = [headers.timestamp for headers in again if headers.timestamp is not None and headers.timestamp > 0]
        if sent:
            age = self._clock.wall() - min(sent) / 1000
            self.counters.max_delivery_s = max(self.counters.max_delivery_s, age)

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
        self.counters.dead_letters += len(dead_letters)
        for letter in dead_letters:
            self._log.error("message cannot be mapped", reason=letter.reason, policy=self.settings.on_mapping_error)

    def _store(self, mapped: Mapped, writer: Writer) -> None:
        self._request = ReceiveRequest(
            mapped,
            self.settings.id,
            self._next_batch,
            self._next_number,
            self.domain,
            self._acknowledgements.sure,
            keep=self._mode.stored,
            done=self.wake,
        )
        self._state.receive(Input.BATCH_TO_STORE)
        point("rx.submit")
        writer.submit(self._request)

    def _committed(self) -> float | None:
        request = self._request
        if request is None or not request.committed:
            return None
        self._request = None
        self._next_batch += 1
        self._state.receive(Input.COMMITTED)
        self._report(request.dead_letters)
        if not self._mode.stored:
            self._breakdown.lap("MAPPING")  # keeping what could not be mapped
            self._deliver(request.mapped)
            return 0
        self._breakdown.lap_until("DB_WAIT", request.began)
        self._count(request)
        self._breakdown.lap("DB_COMMIT")
        try:
            self._acknowledge()  # first: a message that ends the process must not come again from the broker as well
        finally:
            if request.segment is not None:
                self._next_number += len(request.segment.messages)
                self._enqueue(request.segment.first, request.segment.messages, request.events)
                self._breakdown.lap("DB_COMMIT")
        return 0

    def _count(self, request: ReceiveRequest) -> None:
        self.counters.duplicates += len(request.duplicates)
        if self._mode.deduplicated and (without := request.mapped.ids.count("")):
            self.counters.without_id += without
            self._warn_once("W5401", "messages without unique id are not deduplicated", count=without)
        if request.conflicts:
            self._count_conflicts(len(request.conflicts), request.mapped.ids[request.conflicts[-1]])

    def _count_conflicts(self, more: int, unique_id: str) -> None:
        """Each may be a message that is lost: the first one is told, and then whenever the count has doubled."""
        before = self.counters.conflicts
        self.counters.conflicts += more
        if self.counters.conflicts.bit_length() > before.bit_length():
            self._log.warning(
                "W5402 repeated unique ids came with other bodies; digests differ; dropped",
                count=self.counters.conflicts,
                unique_id=unique_id,
            )

    def _warn_once(self, code: str, text: str, **values: Any) -> None:
        if code not in self._notices:
            self._notices.add(code)
            self._log.warning(f"{code} {text}", **values)

    # --- delivering and acknowledging ---

    def _deliver(self, mapped: Mapped) -> None:
        first = self._next_number
        self._next_number += len(mapped.messages)
        self._enqueue(first, mapped.messages, mapped.events)
        if not self._mode.stored:
            self._breakdown.lap("ENQUEUING")
        state = self._state.receive(Input.BATCH_DELIVERED)
        if state is State.SUSPENDED and not mapped.messages:  # all dead letters: the application never sees the batch
            state = self._state.receive(Input.RESUMED)
        if state is State.SUSPENDED:
            point("ac.suspend")
            if self._holds_for_s is not None:
                self._warn_at = self._clock.monotonic() + self._holds_for_s / 2
            notice = ReceivingSuspended(receiver=self.settings.id)
            self.targets.deliver(lambda: Run("", 0, (), (notice,), stored=False))
        else:
            self._acknowledge()

    def _enqueue(self, first: int, messages: Sequence[Any], events: Sequence[Any]) -> None:
        point("rx.enqueue")
        self.counters.delivered += len(messages)
        if messages:
            stored = self._mode.stored
            self.targets.deliver(lambda: Run(self.settings.id, first, messages, events, stored=stored))
            self._mark()

    def _mark(self) -> None:
        """Tell the contexts how far the queue goes now (rule A9.1)."""
        if self.settings.flow_control:
            marker = FlowControlMarker(receiver=self.settings.id, number=self._next_number - 1)
            self.targets.deliver(lambda: Run("", 0, (), (marker,), stored=False))

    def _acknowledge_suspended(self) -> float | None:
        if self._resumed is not self._batch:
            return self._held()
        self._resumed = None
        self._state.receive(Input.RESUMED)
        self._breakdown.lap("APP_CONTROLLED_BLOCKING")
        point("ac.ack")
        self._acknowledge()
        return 0

    def _held(self) -> float | None:
        """Half of the time after which the broker takes the batch back is told once (trap T40)."""
        if self._warn_at is None:
            return None
        left = self._warn_at - self._clock.monotonic()
        if left > 0:
            return left
        self._warn_at = None
        self._log.warning("W5408 a batch is held for long; the broker takes it back", after_s=self._holds_for_s)
        return None

    def _acknowledge(self) -> None:
        point("rx.ack.before")
        self._source.acknowledge(self._batch.tokens)
        point("rx.ack.after")
        self._confirm(len(self._batch.messages))
        self._breakdown.lap("ACK")
        self._breakdown.batch(len(self._batch.messages))
        self._batch = self._new_batch()
        self._mapper.forget()
        self._state.receive(Input.ACKNOWLEDGED)

    def _confirm(self, acknowledged: int) -> None:
        """Unpin what the broker surely knows: not before what may come again has had its turn (trap T42).

        Unacknowledged messages come again first, so as many messages as may come again have passed when they have.
        """
        if self._may_come_again is not None:
            self._may_come_again -= acknowledged
            if self._may_come_again <= 0:
                self._may_come_again = None
                self._in_doubt = self._left_in_doubt = 0
        now = self._clock.monotonic()
        self._acknowledgements.add(self._next_batch - 1, acknowledged, now, settles=not self._in_doubt)

    def _new_batch(self) -> Batch:
        settings = self.settings
        return Batch(settings.max_batch_size, settings.max_batch_bytes, settings.max_batch_interval_ms / 1000)
