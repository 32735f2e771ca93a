"""The sends of one sender between the handler that made them and the broker's confirm.

Theory of operation. A reliable send is *staged* by a context, gets its number at the *cut* of a checkpoint, is
*released* when that checkpoint is committed, *sent* in the order of the numbers, and *settled* when the broker has
confirmed it or it has become a dead letter. A send that the broker refused is tried again later and lets those behind
it go on. The next checkpoint deletes what is settled together with all before it. Numbers are contiguous from 1 for
the life of the store and are never used again (rule A2.6); number and source make the unique id. A BEST_EFFORT
send skips cut and release, and its source is new in each life, so that an id is never used for another body
(invariant B2).

Threads: `cut`, `release` and `forget_settled` are the checkpointer's; `enqueue` is the contexts'; the others are the
sender's. Between them only deques and one integer pass, each written by one side.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from correlator.core.commit import OutboundSegment, SenderCut
from correlator.core.fields import SendMapping
from correlator.core.pieces import pieces, size_of
from correlator.events import DeadLetter, Headers, Message, Outgoing, PropertyValue
from correlator.reliability import SENDING, Reliability


class FlushRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for a notice to `context` when everything enqueued before it is settled (rule A5.1)."""

    request_id: int
    context: str


class Outbox:
    """All sends of one sender.

    Args:
        sender: id of the sender.
        reliability: its mode.
        source: its messageSourceId.
        destination: where messages go that name no other; empty when each message names its own.
        physical: the destination behind a logical name, and any other one as it is (rule A1.14).
        id_property: property that carries the unique id.
        source_property: property that carries the source.
        persistent: whether messages that say nothing themselves are, of a BEST_EFFORT sender too.
        time_to_live_ms: of messages that say nothing themselves.
        mapping: makes messages of events; without it they become JSON.
    """

    def __init__(
        self,
        sender: str,
        reliability: Reliability,
        source: str,
        destination: str,
        id_property: str,
        source_property: str,
        physical: Callable[[str], str] = str,
        *,
        persistent: bool = False,
        time_to_live_ms: int | None = None,
        mapping: SendMapping | None = None,
    ) -> None:
        self.mapping = mapping
        self.sender = sender
        self.source = source
        self.stored = SENDING[reliability].stored
        self._stamps_id = SENDING[reliability].stamps_id
        self._headers = Headers(persistent=self.stored or persistent, time_to_live_ms=time_to_live_ms)
        self.destination = destination
        self._physical = physical
        self._id_property = id_property
        self._source_property = source_property
        self._next_sequence = 1
        self._waiting: deque[tuple[OutboundSegment, int]] = deque()  # each with what is settled of it
        self._live: deque[Message | FlushRequest] = deque()
        self._taken_through = 0
        self._settled_through = 0
        self._refused: dict[int, Outgoing] = {}
        self._given_up: dict[int, DeadLetter] = {}
        self._dead: deque[tuple[int, DeadLetter]] = deque()

    # --- the checkpointer's side ---

    def restore(self, cut: SenderCut, segments: Sequence[OutboundSegment]) -> None:
        """Take up numbers and unsettled sends as the last checkpoint left them."""
        self.source = cut.source
        self._next_sequence = cut.next_sequence
        self._taken_through = self._settled_through = cut.confirmed_through
        for segment in segments:
            skip = max(0, cut.confirmed_through + 1 - segment.first)
            if skip < len(segment.messages):
                self._waiting.append((self._placed_segment(segment), skip))

    def cut(self, staged: list[Message]) -> tuple[SenderCut, list[OutboundSegment], list[DeadLetter]]:
        """Give numbers to what was staged; returns progress, the segments to store, and dead letters to store."""
        settled = self._settled_through
        segments: list[OutboundSegment] = []
        staged = [self._placed(message) for message in staged]
        for piece in pieces(staged, [size_of(one) if one.properties else len(one.body) for one in staged], len(staged)):
            segments.append(OutboundSegment(self.sender, self._next_sequence, list(piece), self.destination))
            self._next_sequence += len(piece)
        dead = [letter for sequence, letter in list(self._dead) if sequence <= settled]
        return SenderCut(self.sender, self.source, self._next_sequence, settled), segments, dead

    def release(self, segment: OutboundSegment) -> None:
        """The checkpoint that holds these sends is committed: they may leave."""
        self._waiting.append((segment, 0))

    def forget_settled(self, cut: SenderCut) -> None:
        """The checkpoint with this progress is committed: its dead letters are stored."""
        while self._dead and self._dead[0][0] <= cut.confirmed_through:
            self._dead.popleft()

    # --- the contexts' side ---

    def enqueue(self, item: Message | FlushRequest) -> None:
        """A BEST_EFFORT send, or a flush request behind the sends before it."""
        self._live.append(item)

    @property
    def outstanding(self) -> int:
        """Sends that wait for the broker, without those still staged (rule A2.17)."""
        if self.stored:
            return self._next_sequence - 1 - self._taken_through + len(self._refused)
        return len(self._live) + len(self._refused)

    # --- the sender's side ---

    def take(self, most: int) -> list[Outgoing]:
        """The next sends in order, at most `most`; they stay the next until `settle`."""
        if not self.stored:
            return self._take_live(most)
        batch: list[Outgoing] = []
        for index in range(len(self._waiting)):  # by index: the checkpointer may append meanwhile
            segment, skip = self._waiting[index]
            messages, destination = segment.messages, segment.destination
            for position in range(skip, min(len(messages), skip + most - len(batch))):
                batch.append(self._outgoing(segment.first + position, messages[position], destination))  # noqa: PERF401
            if len(batch) == most:
                break
        return batch

    def take_flush(self) -> FlushRequest | None:
        """The flush request that everything before has been settled for, if that is what comes next."""
        if not self._refused and self._live and isinstance(self._live[0], FlushRequest):
            request = self._live.popleft()
            assert isinstance(request, FlushRequest)
            return request
        return None

    def waiting_flush(self) -> tuple[FlushRequest, int] | None:
        """The first flush request that sends are before, and how many."""
        for position in range(len(self._live)):  # by index: contexts may append meanwhile
            item = self._live[position]
            if isinstance(item, FlushRequest):
                return item, position + len(self._refused)
        return None

    def settle(
        self, batch: Sequence[Outgoing], dead: Sequence[tuple[int, DeadLetter]], refused: Sequence[Outgoing] = ()
    ) -> None:
        """Every send of the batch (as taken, from the beginning) is confirmed, in `dead` by number, or in `refused`.

        What is refused is not taken again, and counts as settled when `settle_refused` says so.
        """
        self._refused.update((one.sequence, one) for one in refused)
        last = batch[-1].sequence
        if not self.stored:
            for _ in batch:
                self._live.popleft()
            self._next_sequence = last + 1
        while self._waiting:
            segment, _ = self._waiting[0]
            if segment.first + len(segment.messages) - 1 > last:
                self._waiting[0] = (segment, max(0, last + 1 - segment.first))
                break
            self._waiting.popleft()
        self._taken_through = last
        self._advance(dead)

    def settle_refused(self, sends: Sequence[Outgoing], dead: Sequence[tuple[int, DeadLetter]]) -> None:
        """Sends that were refused before are confirmed now, or in `dead` by number."""
        for one in sends:
            del self._refused[one.sequence]
        self._advance(dead)

    def _advance(self, dead: Sequence[tuple[int, DeadLetter]]) -> None:
        """Sends are settled up to the first one that is to be tried again; dead letters in the order of numbers."""
        self._given_up.update(dead)
        through = min(self._refused) - 1 if self._refused else self._taken_through
        for sequence in sorted(self._given_up):
            if sequence <= through:
                self._dead.append((sequence, self._given_up.pop(sequence)))
        self._settled_through = through

    def unplaced(self, outgoing: Outgoing) -> Message:
        """A taken message as a handler could send it again: with its destination where that is not the sender's."""
        if outgoing.destination == self.destination:
            return outgoing.message
        return msgspec.structs.replace(outgoing.message, destination=outgoing.destination)

    def _take_live(self, most: int) -> list[Outgoing]:
        batch: list[Outgoing] = []
        for position in range(min(most, len(self._live))):
            item = self._live[position]
            if isinstance(item, FlushRequest):
                break
            batch.append(self._outgoing(self._next_sequence + position, self._placed(item), self.destination))
        return batch

    def _placed(self, message: Message) -> Message:
        """With the destination at the broker: what a logical name leads to may change before the message leaves."""
        if message.destination is None:
            return message
        return msgspec.structs.replace(message, destination=self._physical(message.destination))

    def _placed_segment(self, segment: OutboundSegment) -> OutboundSegment:
        """What names no destination at the broker, since it is older or a dead letter that was sent back, gets one."""
        if segment.destination:
            return segment
        messages = [self._placed(message) for message in segment.messages]
        return OutboundSegment(segment.sender, segment.first, messages, self.destination)

    def _outgoing(self, sequence: int, message: Message, destination: str) -> Outgoing:
        properties = message.properties
        if self._stamps_id:
            stamp: dict[str, PropertyValue] = {
                self._id_property: f"{sequence}:{self.source}",
                self._source_property: self.source,
            }
            properties = {**properties, **stamp} if properties else stamp
        headers = self._headers if message.headers is None else self._completed(message.headers)
        stamped = Message(message.body, properties, message.key, None, headers)
        named = message.destination
        return Outgoing(sequence, self.source, destination if named is None else named, stamped)

    def _completed(self, headers: Headers) -> Headers:
        """Reliable sends are persistent, BEST_EFFORT ones if configured so, unless the message says it (rule A2.3)."""
        ours = self._headers
        persistent = ours.persistent if headers.persistent is None else headers.persistent
        lives = ours.time_to_live_ms if headers.time_to_live_ms is None else headers.time_to_live_ms
        return msgspec.structs.replace(headers, persistent=persistent, time_to_live_ms=lives)
