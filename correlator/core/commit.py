"""The values that one transaction of the store writes, and that a start reads back; no SQL.

The store keeps *segments*: one row for a batch of messages, of ids, of state entries or of sends, so that a message
costs the database almost nothing. The engine assigns the numbers: they are contiguous, and no number is used twice.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from correlator.core.tracecontext import TraceContext
from correlator.events import DeadLetter, Message


class IdRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Ids accepted at one engine time; the lists are parallel. A source of "" stands for no source.

    Attributes:
        time: engine time of receipt in seconds (rule A8.17).
        ids: unique message ids.
        sources: the source of each id.
        digests: CRC-32 of each body, to distinguish a repeat from a conflict (trap T19).
        held: whether the ids have left the windows, and are kept only until the broker certainly has the
            acknowledgement.
    """

    time: float
    ids: list[str]
    sources: list[str]
    digests: list[int]
    held: bool = False


class IdSegment(msgspec.Struct, frozen=True, gc=False):
    """The ids that one transaction accepted in a domain. A compaction replaces its content with the ids that are still
    remembered; a later transaction deletes it.

    Attributes:
        domain: the duplicate detection domain.
        number: order of acceptance within the domain, never used again.
        receiver: the receiver of the batch.
        batch: number of the batch among those of its receiver; by this number a start decides which ids to pin.
        runs: the ids by time of receipt.
    """

    domain: str
    number: int
    receiver: str
    batch: int
    runs: list[IdRun]


class ReceiveSegment(msgspec.Struct, frozen=True, gc=False):
    """Messages of one batch, numbered from `first`. The receive log has them until every context has handled them."""

    receiver: str
    first: int
    messages: Sequence[Message]


class ReceiveCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One received batch: it becomes durable, then the receiver acknowledges it at the broker (rule A3.2).

    Attributes:
        segment: the messages to deliver; `None` when all were duplicates or dead letters.
        ids: the new id segment; `None` when the batch has no ids.
        rewritten: earlier id segments, reduced to their surviving entries.
        forgotten: (domain, number) of id segments without a surviving entry.
        dead_letters: messages of the batch that could not be mapped.
        confirmed_batch: the receiver's last batch whose acknowledgement the broker certainly has.
        receiver: the receiver of the batch.
        returned: numbers of dead letters to delete, since `segment` has their messages.
    """

    receiver: str
    segment: ReceiveSegment | None
    ids: IdSegment | None
    rewritten: Sequence[IdSegment] = ()
    forgotten: Sequence[tuple[str, int]] = ()
    dead_letters: Sequence[DeadLetter] = ()
    confirmed_batch: int = 0
    returned: Sequence[int] = ()


class StateEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One key of state with its new value; `None` deletes it. `owner` is `monitor:NAME#0`, `table:…` or `step:…`."""

    owner: str
    key: bytes
    value: bytes | None


class StateSegment(msgspec.Struct, frozen=True, gc=False):
    """State entries in the order of their numbers: a later entry of a key replaces an earlier one."""

    number: int
    entries: list[StateEntry]


class OutboundSegment(msgspec.Struct, frozen=True, gc=False):
    """Sends of one sender that one checkpoint released, numbered from `first`.

    Attributes:
        sender: id of the sender.
        first: number of the first message.
        messages: the messages, each of which may name its physical destination.
        destination: physical destination of the messages that name none: the destination of the sender when they were
            stored. "" in stores of versions that did not record it; in this case the present destination of the sender
            applies.
    """

    sender: str
    first: int
    messages: list[Message]
    destination: str = ""


class QueueRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stretch of a context's input queue that waits to be handled.

    Attributes:
        receiver: id of the receiver whose messages wait; the messages are in the receive log. "" for events that are
            stored here by value.
        first: number of the first message.
        count: how many events wait.
        events: for `receiver == ""`: (event type name, encoded event).
        trace: for `receiver == ""`: the trace context of the events.
    """

    receiver: str
    first: int
    count: int
    events: list[tuple[str, bytes]] = []
    trace: TraceContext | None = None


class ContextCut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One context at the cut.

    Attributes:
        context: name of the context.
        entered: for each receiver, the last number that has entered this context's queue.
        queue: the events that wait, in order.
        spawned: number of the next instance that the context spawns, by class of monitor.
    """

    context: str
    entered: dict[str, int]
    queue: list[QueueRun]
    spawned: dict[str, int] = {}


class SenderCut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One reliable sender at the cut.

    Attributes:
        sender: id of the sender.
        source: its messageSourceId.
        next_sequence: number of its next send.
        confirmed_through: the last number up to which all sends are settled.
    """

    sender: str
    source: str
    next_sequence: int
    confirmed_through: int


class Suspect(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A note about messages that a start is about to handle. If the next start finds the note, the process has died
    while it handled these messages.

    Attributes:
        context: name of the context that handles them.
        receiver: id of the receiver of the messages `first` to `last`; "" for an event from inside the engine, whose
            digest is the value of both numbers.
        first: number of the first message.
        last: number of the last message.
        deaths: how many processes are known to have died while they handled these messages.
    """

    context: str
    receiver: str
    first: int
    last: int
    deaths: int


class CheckpointCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One checkpoint: state, queues, sends and progress of one moment.

    Attributes:
        number: number of the checkpoint, which grows by one from checkpoint to checkpoint over all lives.
        engine_time: engine time at the cut, seconds.
        digest: chained digest of all checkpoints so far; recovery reports it.
        contexts: every context.
        senders: every reliable sender.
        state: new state segments.
        state_dropped: numbers of state segments to delete, since later segments hold all values that they held.
        outbound: sends that this checkpoint releases.
        consumed: for each receiver, the last number of the receive log up to which no context needs a message.
        dead_letters: messages that could not be handled or sent.
        absolved: suspects whose notes end, since they are among the dead letters.
        returned: numbers of dead letters to delete, since `outbound` has their messages.
    """

    number: int
    engine_time: float
    digest: bytes
    contexts: Sequence[ContextCut]
    senders: Sequence[SenderCut]
    state: Sequence[StateSegment] = ()
    state_dropped: Sequence[int] = ()
    outbound: Sequence[OutboundSegment] = ()
    consumed: dict[str, int] = {}
    dead_letters: Sequence[DeadLetter] = ()
    absolved: Sequence[Suspect] = ()
    returned: Sequence[int] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A receiver or sender in the registry (rule A1.4).

    Attributes:
        id: id of the receiver or sender.
        kind: `receiver` or `sender`.
        origin: `static` for a part of the configuration, `dynamic` for a part that code has added.
        reliability: its reliability mode.
        connection: name of its connection.
        destination: its destination, as configured.
        domain: duplicate detection domain of a receiver, "" otherwise.
        source: messageSourceId of a reliable sender, "" otherwise.
        delivers_to: contexts of a receiver whose messages are stored, each with the number of the last message that the
            context does not get (`correlator.core.delivery`).
        unhandled_after: number of the last message received before `unhandled` became `dead_letter`, 0 otherwise.
        subscription: name of the subscription or queue that a receiver reads, if options of its connector can name it
            (`correlator.connector.Grouping`), "" otherwise and in entries of earlier versions.
        settings: its settings as JSON; those of a static part without secrets. A start makes dynamic parts from them.
    """

    id: str
    kind: Literal["receiver", "sender"]
    origin: Literal["static", "dynamic"]
    reliability: str
    connection: str
    destination: str
    domain: str = ""
    source: str = ""
    delivers_to: dict[str, int] = {}
    unhandled_after: int = 0
    subscription: str = ""
    settings: bytes = b"{}"


class RegistryCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Endpoints added or changed (`put`, by id) and removed together with all that the store holds for them."""

    put: Sequence[Endpoint] = ()
    removed: Sequence[str] = ()


class SuspectCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Notes about the messages that some contexts are about to handle (trap T26). They replace earlier notes of these
    contexts.
    """

    contexts: Sequence[str]
    suspects: Sequence[Suspect] = ()


class DiscardCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Numbers of dead letters to delete; a number that the store does not hold has no effect."""

    numbers: Sequence[int]


Write = ReceiveCommit | CheckpointCommit | RegistryCommit | SuspectCommit | DiscardCommit


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What the store holds at a start.

    Attributes:
        epoch: the epoch that this start will take, and that every later transaction checks.
        commit: number of the last committed transaction.
        checkpoint: number of the last checkpoint, 0 before the first.
        engine_time: engine time of that checkpoint.
        digest: chained digest of that checkpoint.
        contexts: contexts at that checkpoint.
        senders: senders at that checkpoint.
        state: state segments in the order of their numbers.
        ids: id segments of all domains, in the order of their numbers within each domain.
        confirmed_batches: for each receiver, the last batch that is certainly acknowledged.
        consumed: for each receiver, the last number deleted from the receive log.
        receive_log: segments in the order of their numbers for each receiver.
        outbound: segments in the order of their numbers for each sender.
        endpoints: the registry.
        suspects: the messages that the last start was handling when it died; `deaths` includes this death.
    """

    epoch: int
    commit: int
    checkpoint: int
    engine_time: float
    digest: bytes
    contexts: Sequence[ContextCut]
    senders: Sequence[SenderCut]
    state: Iterable[StateSegment]
    ids: Iterable[IdSegment]
    confirmed_batches: dict[str, int]
    consumed: dict[str, int]
    receive_log: Sequence[ReceiveSegment]
    outbound: Sequence[OutboundSegment]
    endpoints: Sequence[Endpoint]
    suspects: Sequence[Suspect] = ()
