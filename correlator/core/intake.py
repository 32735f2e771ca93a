"""How a receiver takes messages in: its cycle, its batch, its filters, its window. Its thread tells what happens.

DISCONNECTED → RECEIVING → (stored modes) COMMITTING → ACKNOWLEDGING → RECEIVING
                         → (BEST_EFFORT) ACKNOWLEDGING → RECEIVING
                         → (APP_CONTROLLED) SUSPENDED → ACKNOWLEDGING → RECEIVING
From every state: LOST → DISCONNECTED, but for COMMITTING, whose answer is awaited first; CLOSE → CLOSED.
The rules are in docs/rules.md, sections A3 and A4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from correlator.connector import Chunk, Features
from correlator.core.batch import Batch
from correlator.core.redeliveries import Redeliveries
from correlator.errors import storable
from correlator.events import UNREADABLE, Message, expired
from correlator.reliability import RECEIVING, Receiving
from correlator.selector import Selector
from correlator.settings import ReceiverSettings


class State(StrEnum):
    """Where a receiver is in its cycle."""

    DISCONNECTED = "disconnected"
    RECEIVING = "receiving"
    COMMITTING = "committing"
    SUSPENDED = "suspended"
    ACKNOWLEDGING = "acknowledging"
    ENDED = "ended"
    CLOSED = "closed"


class Input(StrEnum):
    """What happens to a receiver."""

    CONNECTED = "connected"
    BATCH_TO_STORE = "batch to store"
    BATCH_DELIVERED = "batch delivered"
    COMMITTED = "committed"
    RESUMED = "resumed"
    ACKNOWLEDGED = "acknowledged"
    ENDED = "ended"
    LOST = "lost"
    CLOSE = "close"


def transitions(mode: Receiving) -> Mapping[tuple[State, Input], State]:
    """What follows from which input in which state, in a mode; nothing else is possible."""
    delivered = State.SUSPENDED if mode.acknowledged_by_application else State.ACKNOWLEDGING
    return {
        (State.DISCONNECTED, Input.CONNECTED): State.RECEIVING,
        (State.DISCONNECTED, Input.LOST): State.DISCONNECTED,
        (State.RECEIVING, Input.BATCH_TO_STORE): State.COMMITTING,
        (State.RECEIVING, Input.BATCH_DELIVERED): delivered,
        (State.RECEIVING, Input.ENDED): State.ENDED,
        (State.RECEIVING, Input.LOST): State.DISCONNECTED,
        (State.COMMITTING, Input.COMMITTED): State.ACKNOWLEDGING,
        (State.SUSPENDED, Input.RESUMED): State.ACKNOWLEDGING,
        (State.SUSPENDED, Input.LOST): State.DISCONNECTED,
        (State.ACKNOWLEDGING, Input.BATCH_DELIVERED): delivered,
        (State.ACKNOWLEDGING, Input.ACKNOWLEDGED): State.RECEIVING,
        (State.ACKNOWLEDGING, Input.LOST): State.DISCONNECTED,
        **{(state, Input.CLOSE): State.CLOSED for state in State},
    }


class Cycle:
    """The state of one receiver. Owner: its thread."""

    def __init__(self, mode: Receiving) -> None:
        self.now = State.DISCONNECTED
        self._transitions = transitions(mode)

    def receive(self, event: Input) -> State:
        """Go on; raises `ValueError` for what cannot happen here."""
        target = self._transitions.get((self.now, event))
        if target is None:
            raise ValueError(f"a receiver that is {self.now} cannot be told: {event}")
        self.now = target
        return target


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Where a receiver goes on.

    Attributes:
        next_number: of its next message.
        next_batch: count of its next batch.
        confirmed_batch: the last one surely acknowledged.
        in_doubt: messages in batches that may come again, at most.
    """

    next_number: int = 1
    next_batch: int = 1
    confirmed_batch: int = 0
    in_doubt: int = 0


@dataclass(slots=True)
class ReceiverCounters:
    """What a receiver did: `received` counts what the broker gave, duplicates included.

    `max_delivery_s` is the longest time from sending to redelivery, where the broker tells both. `expired` had
    outlived their time to live, `own` came from this engine's own senders, `unselected` did not match the selector,
    `unreadable` could not be read by the connector, wholly or in part.
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


class Warn(NamedTuple):
    """A line for the log."""

    text: str
    values: Mapping[str, Any]


class Intake:
    """What one receiver takes in, and how far it is with it. Owner: the receiver's thread.

    Other threads call `allow`, `suspended` and `resume`, set `draining`, and read `state`, `window`, `counters` and
    `redeliveries.may_give_back`. Times are seconds of a clock that does not go back; `wall_s` is the time of day.

    Args:
        settings: as configured.
        features: of its connection.
        selector: what is taken; `None` for everything.
        numbers: where it goes on.
        domain: duplicate detection domain, for modes that have one.
        own_sources: the sources of this engine's senders, by the property that carries them.
        beside: how many messages the other receivers of the destination may give back, at most.

    Attributes:
        mode: what its reliability means.
        domain: duplicate detection domain; `None` in modes without.
        counters: what it did.
        redeliveries: what the broker may deliver again.
        batch: what is taken in now.
        next_number: of the next message that it delivers.
        next_batch: count of the next batch that it stores.
        draining: whether it takes in nothing more, but finishes what it has begun; any thread may set it.
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
        self.draining = False
        self._settings = settings
        self._selector = selector
        self._own_sources = own_sources
        self._cycle = Cycle(self.mode)
        self._allowed_through = numbers.next_number - 1
        self._resumed: Batch | None = None
        self._source_ended = False
        self._expired: list[Message] = []
        self._holds_for_s = features.holds_for_s
        self._warn_at: float | None = None
        self._warned: set[str] = set()
        self._warnings: list[Warn] = []
        self.batch = self._new_batch()

    # --- where it is ---

    @property
    def state(self) -> State:
        """Where it is in its cycle."""
        return self._cycle.now

    @property
    def idle(self) -> bool:
        """Whether it has begun nothing that it must finish; a suspended batch is the application's, and comes again."""
        return self.state is State.SUSPENDED or not self.batch.messages

    @property
    def window(self) -> int:
        """How many messages the application lets it deliver now; -1 without flow control."""
        return max(0, self._allowed_through - self.next_number + 1) if self._settings.flow_control else -1

    def allow(self, through: int) -> None:
        """Let it deliver up to message `through` (rule A9.1); from a context's thread."""
        self._allowed_through = through

    def warnings(self) -> Sequence[Warn]:
        """Lines for the log since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    # --- the connection ---

    def connected(self, now: float) -> None:
        """There is a connection."""
        self.redeliveries.connected(now)
        self._cycle.receive(Input.CONNECTED)

    def lost(self) -> None:
        """The connection is lost: the broker delivers again what it has no acknowledgement of."""
        self.counters.connection_errors += 1
        under_way = len(self.batch.messages) if self.state is State.ACKNOWLEDGING else 0
        self.redeliveries.lost(under_way, self.next_batch - 1)
        self._cycle.receive(Input.LOST)
        self._expired = []
        self._source_ended = False
        self.batch = self._new_batch()

    def close(self) -> None:
        """Nothing follows."""
        self._cycle.receive(Input.CLOSE)

    # --- a batch ---

    @property
    def room(self) -> int:
        """How many more messages the present batch may take."""
        if not self._settings.flow_control:
            return self.batch.room
        return min(self.batch.room, max(0, self.window - len(self.batch.messages)))

    def take(self, chunk: Chunk, now: float, wall_s: float) -> Sequence[Message]:
        """Take in a chunk; returns those of its messages that are to be mapped."""
        self.counters.unselected += chunk.unselected
        self._source_ended = chunk.ended
        if not chunk.messages:
            return ()
        self.batch.add(chunk.messages, chunk.token, now)
        return self._wanted(chunk.messages, wall_s * 1000)

    def complete(self, now: float) -> bool:
        """Whether the present batch is to be handed on."""
        closed = self.batch.closed(now) or not self.room or self._source_ended or self.draining
        return bool(self.batch.messages) and closed

    def hand_on(self, wall_s: float, name_of: Callable[[Message], str]) -> None:
        """The batch is handed on: count what is in it.

        Args:
            wall_s: the time of day.
            name_of: how a message is called in the log.
        """
        messages = self.batch.messages
        self.counters.received += len(messages)
        self.counters.batches += 1
        self._note_redelivery(messages, wall_s)
        self._note_unreadable(messages)
        self._note_expired(name_of)

    def to_store(self) -> None:
        """The writer is asked to store the batch."""
        self._cycle.receive(Input.BATCH_TO_STORE)

    def committed(self) -> None:
        """The store has the batch."""
        self.next_batch += 1
        self._cycle.receive(Input.COMMITTED)

    def note_stored(self, duplicates: int, without_id: int, conflicts: Sequence[str]) -> None:
        """What duplicate detection said of the batch: how many of each, and the ids of repeats with another body."""
        self.counters.duplicates += duplicates
        if self.mode.deduplicated and without_id:
            self.counters.without_id += without_id
            self._warn_once("W5401", "messages without unique id are not deduplicated", count=without_id)
        if conflicts:
            self._note_conflicts(len(conflicts), conflicts[-1])

    def note_dead_letters(self, count: int) -> None:
        """So many messages of the batch cannot be mapped."""
        self.counters.dead_letters += count

    def number(self, count: int) -> int:
        """Number so many messages that are to be delivered; returns the first number."""
        first = self.next_number
        self.next_number += count
        self.counters.delivered += count
        return first

    def delivered(self, count: int, now: float) -> State:
        """The contexts have the batch, with so many messages; returns whether it is now suspended or acknowledged."""
        state = self._cycle.receive(Input.BATCH_DELIVERED)
        if state is State.SUSPENDED and not count:  # all dead letters: the application never sees the batch
            state = self._cycle.receive(Input.RESUMED)
        if state is State.SUSPENDED and self._holds_for_s is not None:
            self._warn_at = now + self._holds_for_s / 2
        return state

    def acknowledged(self, now: float) -> None:
        """The source has taken the acknowledgement of the batch."""
        self.redeliveries.acknowledged(self.next_batch - 1, len(self.batch.messages), now)
        self.batch = self._new_batch()
        self._cycle.receive(Input.ACKNOWLEDGED)

    def end(self) -> bool:
        """Go on to ENDED if the source has come to its end, with nothing left to hand on; says whether it has."""
        if self._source_ended:
            self._cycle.receive(Input.ENDED)
        return self._source_ended

    # --- a suspended batch ---

    def suspended(self) -> Batch | None:
        """The batch that waits for the application's word, which has not been given; from a context's thread."""
        batch = self.batch
        return batch if self.state is State.SUSPENDED and self._resumed is not batch else None

    def resume(self, batch: Batch) -> None:
        """The application acknowledges a batch, which may be suspended no more. From a context's thread."""
        self._resumed = batch

    def resumed(self) -> bool:
        """Go on to ACKNOWLEDGING if the application has acknowledged the suspended batch; says whether it has."""
        if self._resumed is not self.batch:
            return False
        self._cycle.receive(Input.RESUMED)
        self._resumed = None
        return True

    def held(self, now: float) -> float | None:
        """Half of the time after which the broker takes the batch back is told once (trap T40).

        Returns the seconds until then, `None` when there is nothing to wait for.
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
        """Without those whose time is over, that are not selected, or are the engine's own and not asked for."""
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
        """How long redelivered messages had been under way: what `expiry_time` is chosen by (rule A8.19)."""
        again = [m.headers for m in messages if m.headers is not None and m.headers.redelivered]
        self.counters.redelivered += len(again)
        sent = [headers.timestamp for headers in again if headers.timestamp is not None and headers.timestamp > 0]
        if sent:
            self.counters.max_delivery_s = max(self.counters.max_delivery_s, wall_s - min(sent) / 1000)

    def _note_conflicts(self, more: int, unique_id: str) -> None:
        """Each may be a message that is lost: the first one is told, and then whenever the count has doubled."""
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
        self._warnings.append(Warn(text, values))

    def _new_batch(self) -> Batch:
        settings = self._settings
        return Batch(settings.max_batch_size, settings.max_batch_bytes, settings.max_batch_interval_ms / 1000)


def from_sources(messages: Sequence[Message], sources: Mapping[str, frozenset[str]]) -> set[int]:
    """Positions of the messages that come from these sources, by the property that carries a source."""
    return {
        at
        for name, known in sources.items()
        for at, message in enumerate(messages)
        if message.properties.get(name) in known
    }
