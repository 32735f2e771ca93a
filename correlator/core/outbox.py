"""The sends of one sender between the handler that made them and the broker's confirm.

A reliable send passes these stages:

1. A context *stages* it.
2. The *cut* of a checkpoint gives it a number. Numbers are contiguous from 1 for the life of the store and are never
   used again (rule A2.6). Number and source make the unique id.
3. The commit of that checkpoint *releases* it.
4. The sender sends it, in the order of the numbers. If the broker refuses a send, the sender tries it again later, and
   the sends after it go on.
5. It is *settled* when the broker has confirmed it or it has become a dead letter. The next checkpoint deletes it, if
   all sends with lower numbers are settled, too.

A BEST_EFFORT send skips cut and release. Its source is new in each life, so no id is used for two bodies (invariant
B2).

Threads: the checkpointer calls `cut`, `release` and `forget_settled`; contexts call `enqueue`; the sender calls the
other methods. Only deques and one integer pass between them, and one side writes each of these.
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
    """A request for a notice to `context` when all sends that were enqueued before it are settled (rule A5.1)."""

    request_id: int
    context: str


class Outbox:
    """All sends of one sender.

    Args:
        sender: id of the sender.
        reliability: reliability mode of the sender.
        source: messageSourceId of its messages.
        destination: destination of the messages that name no destination; "" if each message names one.
        id_property: name of the property that carries the unique id.
        source_property: name of the property that carries the source id.
        physical: translates a logical destination and returns any other destination unchanged (rule A1.14).
        persistent: whether messages of a BEST_EFFORT sender are persistent if their headers do not specify it.
        time_to_live_ms: time to live of messages whose headers specify none.
        mapping: makes messages of events; without it events become JSON.
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
        self._waiting: deque[tuple[OutboundSegment, int]] = deque()  # each segment with the number of its settled sends
        self._live: deque[Message | FlushRequest] = deque()
        self._taken_through = 0
        self._settled_through = 0
        self._refused: dict[int, Outgoing] = {}
        self._given_up: dict[int, DeadLetter] = {}
        self._dead: deque[tuple[int, DeadLetter]] = deque()

    # --- the checkpointer's side ---

    def restore(self, cut: SenderCut, segments: Sequence[OutboundSegment]) -> None:
        """Continue with the numbers and the unsettled sends of the last checkpoint."""
        self.source = cut.source
        self._next_sequence = cut.next_sequence
        self._taken_through = self._settled_through = cut.confirmed_through
        for segment in segments:
            skip = max(0, cut.confirmed_through + 1 - segment.first)
            if skip < len(segment.messages):
                self._waiting.append((self._placed_segment(segment), skip))

    def cut(self, staged: list[Message]) -> tuple[SenderCut, list[OutboundSegment], list[DeadLetter]]:
        """Number the staged sends; returns the progress, the segments and the dead letters for the checkpoint."""
        settled = self._settled_through
        segments: list[OutboundSegment] = []
        staged = [self._placed(message) for message in staged]
        for piece in pieces(staged, [size_of(one) if one.properties else len(one.body) for one in staged], len(staged)):
            segments.append(OutboundSegment(self.sender, self._next_sequence, list(piece), self.destination))
            self._next_sequence += len(piece)
        dead = [letter for sequence, letter in list(self._dead) if sequence <= settled]
        return SenderCut(self.sender, self.source, self._next_sequence, settled), segments, dead

    def release(self, segment: OutboundSegment) -> None:
        """Let the sends of a segment leave: the checkpoint that holds them is committed."""
        self._waiting.append((segment, 0))

    def forget_settled(self, cut: SenderCut) -> None:
        """Drop the dead letters of a checkpoint, which is committed now."""
        while self._dead and self._dead[0][0] <= cut.confirmed_through:
            self._dead.popleft()

    # --- the contexts' side ---

    def enqueue(self, item: Message | FlushRequest) -> None:
        """Append a BEST_EFFORT send, or a flush request, which waits for the sends before it."""
        self._live.append(item)

    @property
    def outstanding(self) -> int:
        """How many sends wait to be sent or confirmed, not counting staged sends (rule A2.17)."""
        if self.stored:
            return self._next_sequence - 1 - self._taken_through + len(self._refused)
        return len(self._live) + len(self._refused)

    @property
    def numbers(self) -> tuple[int, int]:
        """The number up to which all sends are settled, and the number of the last send that is not only staged."""
        last = self._next_sequence - 1
        return self._settled_through, last if self.stored else last + len(self._live)

    # --- the sender's side ---

    def take(self, most: int) -> list[Outgoing]:
        """Return the next sends in order, at most `most`. They stay the next sends until `settle`."""
        if not self.stored:
            return self._take_live(most)
        batch: list[Outgoing] = []
        for index in range(len(self._waiting)):  # by index: the checkpointer may append meanwhile
            segment, skip = self._waiting[index]
            messages = segment.messages[skip : skip + most - len(batch)]
            batch.extend(self._outgoing(segment.first + skip, messages, segment.destination))
            if len(batch) == most:
                break
        return batch

    def take_flush(self) -> FlushRequest | None:
        """Remove and return the first flush request if all sends before it are settled."""
        if not self._refused and self._live and isinstance(self._live[0], FlushRequest):
            request = self._live.popleft()
            assert isinstance(request, FlushRequest)
            return request
        return None

    def waiting_flush(self) -> tuple[FlushRequest, int] | None:
        """The first flush request and the number of unsettled sends before it; `None` without a request."""
        for position in range(len(self._live)):  # by index: contexts may append meanwhile
            item = self._live[position]
            if isinstance(item, FlushRequest):
                return item, position + len(self._refused)
        return None

    def settle(
        self, batch: Sequence[Outgoing], dead: Sequence[tuple[int, DeadLetter]], refused: Sequence[Outgoing] = ()
    ) -> None:
        """Note the result of the batch that `take` returned.

        Args:
            batch: the sends of the batch, or a part from its first send on. A send in neither `dead` nor `refused` is
                confirmed.
            dead: dead letters, with the numbers of their sends.
            refused: sends that are to be tried again. `take` does not return them again; `settle_refused` settles them.
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
        """Settle sends that were refused before: each is confirmed, or `dead` has its dead letter by its number."""
        for one in sends:
            del self._refused[one.sequence]
        self._advance(dead)

    def _advance(self, dead: Sequence[tuple[int, DeadLetter]]) -> None:
        """Advance to the first send that is to be tried again; dead letters come in the order of their numbers."""
        self._given_up.update(dead)
        through = min(self._refused) - 1 if self._refused else self._taken_through
        for sequence in sorted(self._given_up):
            if sequence <= through:
                self._dead.append((sequence, self._given_up.pop(sequence)))
        self._settled_through = through

    def unplaced(self, outgoing: Outgoing) -> Message:
        """Return a message in the form in which a handler could send it again.

        The message names its destination only if it differs from the destination of the sender.
        """
        if outgoing.destination == self.destination:
            return outgoing.message
        return msgspec.structs.replace(outgoing.message, destination=outgoing.destination)

    def _take_live(self, most: int) -> list[Outgoing]:
        messages: list[Message] = []
        for position in range(min(most, len(self._live))):
            item = self._live[position]
            if isinstance(item, FlushRequest):
                break
            messages.append(self._placed(item))
        return self._outgoing(self._next_sequence, messages, self.destination)

    def _placed(self, message: Message) -> Message:
        """Return a message with its physical destination.

        A logical destination is resolved at once, since it may lead elsewhere before the message leaves.
        """
        if message.destination is None:
            return message
        return msgspec.structs.replace(message, destination=self._physical(message.destination))

    def _placed_segment(self, segment: OutboundSegment) -> OutboundSegment:
        """Complete a segment that names no destination.

        An older version has stored it, or the replay of a dead letter.
        """
        if segment.destination:
            return segment
        messages = [self._placed(message) for message in segment.messages]
        return OutboundSegment(segment.sender, segment.first, messages, self.destination)

    def _outgoing(self, first: int, messages: Sequence[Message], destination: str) -> list[Outgoing]:
        """Return sends in the form for the sink, numbered from `first`. Messages that name no destination get
        `destination`.
        """
        source, stamps_id, ours = self.source, self._stamps_id, self._headers
        id_property, source_property = self._id_property, self._source_property
        batch: list[Outgoing] = []
        for sequence, message in enumerate(messages, first):
            properties = message.properties
            if stamps_id:
                stamp: dict[str, PropertyValue] = {id_property: f"{sequence}:{source}", source_property: source}
                properties = {**properties, **stamp} if properties else stamp
            headers = ours if message.headers is None else self._completed(message.headers)
            stamped = Message(message.body, properties, message.key, None, headers)
            named = message.destination
            batch.append(Outgoing(sequence, source, destination if named is None else named, stamped))
        return batch

    def _completed(self, headers: Headers) -> Headers:
        """Fill in `persistent` and `time_to_live_ms` if the headers do not contain them (rule A2.3)."""
        ours = self._headers
        persistent = ours.persistent if headers.persistent is None else headers.persistent
        lives = ours.time_to_live_ms if headers.time_to_live_ms is None else headers.time_to_live_ms
        return msgspec.structs.replace(headers, persistent=persistent, time_to_live_ms=lives)
