"""Decides how a receiver takes messages in: cycle, batch, filters, window of flow control. Has no source, clock or log.

The states that follow one another, for each kind of batch and for what interrupts the cycle:

- all modes, a connection: DISCONNECTED → RECEIVING
- AT_LEAST_ONCE, EXACTLY_ONCE, a batch: RECEIVING → COMMITTING → ACKNOWLEDGING → RECEIVING
- AT_LEAST_ONCE, EXACTLY_ONCE, a batch of which nothing is to be stored: RECEIVING → ACKNOWLEDGING → RECEIVING
- BEST_EFFORT, a batch: RECEIVING → ACKNOWLEDGING → RECEIVING
- BEST_EFFORT, a batch with dead letters: RECEIVING → COMMITTING → ACKNOWLEDGING → ACKNOWLEDGING → RECEIVING
- APP_CONTROLLED, a batch: RECEIVING → SUSPENDED → ACKNOWLEDGING → RECEIVING
- APP_CONTROLLED, dead letters: RECEIVING → COMMITTING → ACKNOWLEDGING → SUSPENDED → ACKNOWLEDGING → RECEIVING
- all modes, the end of the source: RECEIVING → ENDED
- all modes, a lost connection: DISCONNECTED, RECEIVING, SUSPENDED, ACKNOWLEDGING → DISCONNECTED
- all modes, the end of the thread: every state → CLOSED

Dead letters are stored in every mode, if the engine has a store; then the rest of the batch is delivered. A receiver in
COMMITTING does not use its connection: it awaits the answer of the writer, and notices a loss when it acknowledges.
The rules are in docs/rules.md, sections A3 and A4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from correlator.connector import Backlog, Chunk, Features
from correlator.core.batch import ReceiveBatch
from correlator.core.gate import Gate
from correlator.core.redeliveries import Redeliveries
from correlator.errors import storable
from correlator.events import UNREADABLE, Message, expired
from correlator.reliability import RECEIVING, Receiving
from correlator.selector import Selector
from correlator.settings import ReceiverSettings


class ReceiverState(StrEnum):
    """Where a receiver is in its cycle."""

    DISCONNECTED = "disconnected"
    RECEIVING = "receiving"
    COMMITTING = "committing"
    SUSPENDED = "suspended"
    ACKNOWLEDGING = "acknowledging"
    ENDED = "ended"
    CLOSED = "closed"


class ReceiverInput(StrEnum):
    """What happens to a receiver; an input of its state machine."""

    CONNECTED = "connected"
    BATCH_TO_STORE = "batch to store"
    BATCH_DELIVERED = "batch delivered"
    COMMITTED = "committed"
    RESUMED = "resumed"
    ACKNOWLEDGED = "acknowledged"
    ENDED = "ended"
    LOST = "lost"
    CLOSE = "close"


def transitions(mode: Receiving) -> Mapping[tuple[ReceiverState, ReceiverInput], ReceiverState]:
    """Return the next state of a receiver in a mode, for each state and each input that is possible in this state."""
    delivered = ReceiverState.SUSPENDED if mode.acknowledged_by_application else ReceiverState.ACKNOWLEDGING
    return {
        (ReceiverState.DISCONNECTED, ReceiverInput.CONNECTED): ReceiverState.RECEIVING,
        (ReceiverState.DISCONNECTED, ReceiverInput.LOST): ReceiverState.DISCONNECTED,
        (ReceiverState.RECEIVING, ReceiverInput.BATCH_TO_STORE): ReceiverState.COMMITTING,
        (ReceiverState.RECEIVING, ReceiverInput.BATCH_DELIVERED): delivered,
        (ReceiverState.RECEIVING, ReceiverInput.ENDED): ReceiverState.ENDED,
        (ReceiverState.RECEIVING, ReceiverInput.LOST): ReceiverState.DISCONNECTED,
        (ReceiverState.COMMITTING, ReceiverInput.COMMITTED): ReceiverState.ACKNOWLEDGING,
        (ReceiverState.SUSPENDED, ReceiverInput.RESUMED): ReceiverState.ACKNOWLEDGING,
        (ReceiverState.SUSPENDED, ReceiverInput.LOST): ReceiverState.DISCONNECTED,
        (ReceiverState.ACKNOWLEDGING, ReceiverInput.BATCH_DELIVERED): delivered,
        (ReceiverState.ACKNOWLEDGING, ReceiverInput.ACKNOWLEDGED): ReceiverState.RECEIVING,
        (ReceiverState.ACKNOWLEDGING, ReceiverInput.LOST): ReceiverState.DISCONNECTED,
        **{(state, ReceiverInput.CLOSE): ReceiverState.CLOSED for state in ReceiverState},
    }


class ReceiverCycle:
    """The state machine of one receiver. Owner: the thread of the receiver."""

    def __init__(self, mode: Receiving) -> None:
        self.now = ReceiverState.DISCONNECTED
        self._transitions = transitions(mode)

    def receive(self, event: ReceiverInput) -> ReceiverState:
        """Change to the next state and return it. Raises `ValueError` for an input that this state cannot have."""
        target = self._transitions.get((self.now, event))
        if target is None:
            raise ValueError(f"a receiver that is {self.now} cannot take the input: {event}")
        self.now = target
        return target


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers with which a receiver begins; the store has the numbers of the previous life.

    Attributes:
        next_number: number of its next message.
        next_batch: number of its next batch.
        confirmed_batch: number of the last batch whose acknowledgement the broker certainly has.
        in_doubt: largest number of messages in the later batches, which may be redelivered.
    """

    next_number: int = 1
    next_batch: int = 1
    confirmed_batch: int = 0
    in_doubt: int = 0


@dataclass(slots=True)
class ReceiverCounters:
    """What a receiver has done. Each attribute counts messages, unless its description says otherwise.

    Attributes:
        received: messages from the broker, including duplicates.
        duplicates: messages that duplicate detection dropped.
        without_id: messages without a unique id, in a mode that deduplicates.
        conflicts: duplicates whose body differs from the body of the first message with the same id.
        dead_letters: messages that could not be mapped, and became dead letters.
        delivered: messages that were given to contexts.
        batches: number of batches that were handed on.
        connection_errors: number of losses of the connection and of failed attempts to connect.
        max_delivery_s: longest time from sending to redelivery, in seconds, if the broker reports both.
        redelivered: messages that the broker marked as redelivered.
        expired: messages that were dropped because their time to live had passed.
        own: messages from senders of this engine.
        unselected: messages that the selector did not match.
        unreadable: messages that the connector could not read, wholly or in part.
        unmapped: messages that could not be mapped, and did not become dead letters.
        backlog: the messages that the destination still held about a second ago; `None` if the source does not know.
    """

    received: int = 0
    duplicates: int = 0
    without_id: int = 0
    conflicts: int = 0
    dead_letters: int = 0
    delivered: int = 0
    batches: int = 0
    connection_errors: int = 0
    max_delivery_s: float = 0.0
    redelivered: int = 0
    expired: int = 0
    own: int = 0
    unselected: int = 0
    unreadable: int = 0
    unmapped: int = 0
    backlog: Backlog | None = None


class LogLine(NamedTuple):
    """A line for the log: its text and further values."""

    text: str
    values: Mapping[str, Any]


class Intake:
    """The present batch and the state of one receiver. Owner: the thread of the receiver.

    Other threads call `allow`, `suspended` and `resume`, use `gate`, and read `state`, `window`, `counters` and
    `redeliveries.may_give_back`. Times are seconds of a clock that does not go back; `wall_s` is the time of day.

    Args:
        settings: settings of the receiver, as configured.
        features: features of its connection.
        selector: chooses messages; `None` for all messages.
        numbers: the numbers with which the receiver begins.
        domain: duplicate detection domain; ignored in modes that do not deduplicate.
        own_sources: returns the source ids of the senders of this engine, by the property that carries a source id.
        beside: returns the largest number of messages that other receivers of the destination may return to the broker.

    Attributes:
        mode: the properties of its reliability mode.
        domain: duplicate detection domain; `None` in modes that do not deduplicate.
        counters: what the receiver has done.
        redeliveries: counts the messages that the broker may redeliver.
        batch: the present batch.
        next_number: number of the next message that it delivers.
        next_batch: number of the next batch that it stores.
        gate: the orders whether to begin batches.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        features: Features,
        selector: Selector | None,
        numbers: Numbers,
        *,
        domain: str,
        own_sources: Callable[[], Mapping[str, frozenset[str]]],
        beside: Callable[[], int],
    ) -> None:
        self.mode = RECEIVING[settings.reliability]
        self.domain = domain if self.mode.deduplicated else None
        self.counters = ReceiverCounters()
        self.redeliveries = Redeliveries(
            features,
            confirmed_batch=numbers.confirmed_batch,
            last_batch=numbers.next_batch - 1,
            in_doubt=numbers.in_doubt,
            max_batch_size=settings.max_batch_size,
            beside=beside,
        )
        self.next_number = numbers.next_number
        self.next_batch = numbers.next_batch
        self.gate = Gate()
        self._settings = settings
        self._selector = selector
        self._own_sources = own_sources
        self._cycle = ReceiverCycle(self.mode)
        self._allowed_through = numbers.next_number - 1
        self._resumed: ReceiveBatch | None = None
        self._source_ended = False
        self._expired: list[Message] = []
        self._holds_for_s = features.holds_for_s
        self._warn_at: float | None = None
        self._warned: set[str] = set()
        self._warnings: list[LogLine] = []
        self.batch = self._new_batch()

    # --- the state ---

    @property
    def state(self) -> ReceiverState:
        """The present state of the cycle. Any thread may read it."""
        return self._cycle.now

    @property
    def idle(self) -> bool:
        """Whether there is no batch to finish. A suspended batch does not count, since the broker redelivers it."""
        return self.state is ReceiverState.SUSPENDED or not self.batch.messages

    @property
    def window(self) -> int:
        """How many messages flow control lets the receiver deliver now; -1 without flow control."""
        return max(0, self._allowed_through - self.next_number + 1) if self._settings.flow_control else -1

    def allow(self, through: int) -> None:
        """Let the receiver deliver messages up to number `through` (rule A9.1). The thread of a context calls it."""
        self._allowed_through = through

    def warnings(self) -> Sequence[LogLine]:
        """Return the lines for the log since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    # --- the connection ---

    def connected(self, now: float) -> None:
        """Note that there is a connection."""
        self.redeliveries.connected(now)
        self._cycle.receive(ReceiverInput.CONNECTED)

    def lost(self) -> None:
        """Drop the present batch, since the connection is lost: the broker redelivers its messages."""
        self.counters.connection_errors += 1
        under_way = len(self.batch.messages) if self.state is ReceiverState.ACKNOWLEDGING else 0
        self.redeliveries.lost(under_way, self.next_batch - 1)
        self._cycle.receive(ReceiverInput.LOST)
        self._expired = []
        self._source_ended = False
        self.batch = self._new_batch()

    def close(self) -> None:
        """Change the state to CLOSED, from any state; the receiver calls it once, when its thread ends."""
        self._cycle.receive(ReceiverInput.CLOSE)

    # --- a batch ---

    @property
    def room(self) -> int:
        """How many more messages the present batch may take."""
        if not self._settings.flow_control:
            return self.batch.room
        return min(self.batch.room, max(0, self.window - len(self.batch.messages)))

    def take(self, chunk: Chunk, now: float, wall_s: float) -> Sequence[Message]:
        """Add a chunk to the batch; returns the messages of the chunk that are to be mapped."""
        self.counters.unselected += chunk.unselected
        self._source_ended = chunk.ended
        if not chunk.messages:
            return ()
        self.batch.add(chunk.messages, chunk.tokens, now, wall_s)
        return self._wanted(chunk.messages, wall_s * 1000)

    def complete(self, now: float) -> bool:
        """Whether the present batch holds messages and takes no more, so that the receiver must hand it on."""
        closed = self.batch.closed(now) or not self.room or self._source_ended or self.gate.shut
        return bool(self.batch.messages) and closed

    def hand_on(self, wall_s: float, name_of: Callable[[Message], str]) -> None:
        """Count what is in the complete batch.

        Args:
            wall_s: the time of day.
            name_of: returns the name of a message for the log.
        """
        messages = self.batch.messages
        self.counters.received += len(messages)
        self.counters.batches += 1
        self._note_redelivery(messages, wall_s)
        self._note_unreadable(messages)
        self._note_expired(name_of)

    def to_store(self) -> None:
        """Change to COMMITTING: the writer has the request to store the batch."""
        self._cycle.receive(ReceiverInput.BATCH_TO_STORE)

    def committed(self) -> None:
        """Leave COMMITTING: the batch is committed."""
        self.next_batch += 1
        self._cycle.receive(ReceiverInput.COMMITTED)

    def note_stored(self, duplicates: int, without_id: int, conflicts: Sequence[str]) -> None:
        """Count the results of duplicate detection; `conflicts` are the ids of duplicates with another body."""
        self.counters.duplicates += duplicates
        if self.mode.deduplicated and without_id:
            self.counters.without_id += without_id
            self._warn_once("W5401", "messages without unique id are not deduplicated", count=without_id)
        if conflicts:
            self._note_conflicts(len(conflicts), conflicts[-1])

    def note_dead_letters(self, count: int) -> None:
        """Count messages of the batch that cannot be mapped and become dead letters."""
        self.counters.dead_letters += count

    def note_unmapped(self, count: int) -> None:
        """Count messages of the batch that cannot be mapped and do not become dead letters."""
        self.counters.unmapped += count

    def number(self, count: int) -> int:
        """Give numbers to `count` messages that are to be delivered; returns the first number."""
        first = self.next_number
        self.next_number += count
        self.counters.delivered += count
        return first

    def delivered(self, count: int, now: float) -> ReceiverState:
        """Note that contexts have `count` messages of the batch; returns SUSPENDED or ACKNOWLEDGING."""
        state = self._cycle.receive(ReceiverInput.BATCH_DELIVERED)
        if state is ReceiverState.SUSPENDED and not count:  # all are dead letters: the application never sees the batch
            state = self._cycle.receive(ReceiverInput.RESUMED)
        if state is ReceiverState.SUSPENDED and self._holds_for_s is not None:
            self._warn_at = now + self._holds_for_s / 2
        return state

    def acknowledged(self, now: float) -> None:
        """Begin a new batch: the source has taken the acknowledgement of the present one."""
        self.redeliveries.acknowledged(self.next_batch - 1, len(self.batch.messages), now)
        self.batch = self._new_batch()
        self._cycle.receive(ReceiverInput.ACKNOWLEDGED)

    def end(self) -> bool:
        """Change to ENDED if the source has come to its end; return whether it has. The batch must be empty."""
        if self._source_ended:
            self._cycle.receive(ReceiverInput.ENDED)
        return self._source_ended

    # --- a suspended batch ---

    def suspended(self) -> ReceiveBatch | None:
        """The batch that the application has yet to acknowledge; `None` if there is none. The thread of a context calls
        it.
        """
        batch = self.batch
        return batch if self.state is ReceiverState.SUSPENDED and self._resumed is not batch else None

    def resume(self, batch: ReceiveBatch) -> None:
        """Let the receiver acknowledge a batch, if the batch is still suspended. The thread of a context calls it."""
        self._resumed = batch

    def resumed(self) -> bool:
        """Change to ACKNOWLEDGING if the application has acknowledged the suspended batch; return whether it has."""
        if self._resumed is not self.batch:
            return False
        self._cycle.receive(ReceiverInput.RESUMED)
        self._resumed = None
        return True

    def held(self, now: float) -> float | None:
        """Warn, once for each suspended batch, when half of the time has passed after which the broker takes the batch
        back (trap T40).

        Returns the seconds until the warning; `None` if no warning is to come.
        """
        if self._warn_at is None:
            return None
        left = self._warn_at - now
        if left > 0:
            return left
        self._warn_at = None
        self._warn("W5408 a batch is held for long; the broker takes it back", after_s=self._holds_for_s)
        return None

    # --- what is in a batch ---

    def _wanted(self, messages: Sequence[Message], wall_ms: float) -> Sequence[Message]:
        """Leave out messages that have expired, messages that the selector does not match, and with `no_local` messages
        of this engine.
        """
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
            if self._settings.no_local:
                messages = [message for at, message in enumerate(messages) if at not in own]
        return messages

    def _note_expired(self, name_of: Callable[[Message], str]) -> None:
        late, self._expired = self._expired, []
        if late:
            self.counters.expired += len(late)
            first = name_of(late[0])
            self._warn("W5405 messages whose time to live had passed were dropped", count=len(late), first=first)

    def _note_unreadable(self, messages: Sequence[Message]) -> None:
        unreadable = [message for message in messages if UNREADABLE in message.properties]
        self.counters.unreadable += len(unreadable)
        if unreadable:
            reason = storable(str(unreadable[0].properties[UNREADABLE]))
            self._warn_once("W5409", "messages that cannot be read come as they were sent", first=reason)

    def _note_redelivery(self, messages: Sequence[Message], wall_s: float) -> None:
        """Count redelivered messages, and note the longest time from sending to redelivery.

        The time helps to choose `expiry_time` (rule A8.19).
        """
        again = [m.headers for m in messages if m.headers is not None and m.headers.redelivered]
        self.counters.redelivered += len(again)
        sent = [headers.timestamp for headers in again if headers.timestamp is not None and headers.timestamp > 0]
        if sent:
            self.counters.max_delivery_s = max(self.counters.max_delivery_s, wall_s - min(sent) / 1000)

    def _note_conflicts(self, more: int, unique_id: str) -> None:
        """Warn of the first conflict, and whenever the number of conflicts has doubled: each may be a lost message."""
        before = self.counters.conflicts
        self.counters.conflicts += more
        if self.counters.conflicts.bit_length() > before.bit_length():
            self._warn(
                "W5402 repeated unique ids came with other bodies; digests differ; dropped",
                count=self.counters.conflicts,
                unique_id=unique_id,
            )

    def _warn_once(self, code: str, text: str, **values: Any) -> None:
        if code not in self._warned:
            self._warned.add(code)
            self._warn(f"{code} {text}", **values)

    def _warn(self, text: str, **values: Any) -> None:
        self._warnings.append(LogLine(text, values))

    def _new_batch(self) -> ReceiveBatch:
        settings = self._settings
        return ReceiveBatch(settings.max_batch_size, settings.max_batch_bytes, settings.max_batch_interval_ms / 1000)


def from_sources(messages: Sequence[Message], sources: Mapping[str, frozenset[str]]) -> set[int]:
    """Return the positions of the messages that come from these sources.

    Args:
        messages: the messages.
        sources: source ids, by the property that carries a source id.
    """
    return {
        at
        for name, known in sources.items()
        for at, message in enumerate(messages)
        if message.properties.get(name) in known
    }
