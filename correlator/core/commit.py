"""What one transaction of the store writes, and what a start reads back: values only, no SQL.

The store keeps *segments*: one row for a batch of messages, of ids, of state entries or of sends, so that a message
costs the database almost nothing. Numbers are given by the engine, contiguous, and never used again.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from correlator.events import DeadLetter, Message


class IdRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Ids accepted at one engine time; the lists are parallel. A source of "" means: no source.

    Attributes:
        time: engine time of receipt in seconds (rule A8.17).
        ids: unique message ids.
        sources: the source of each id.
        digests: CRC-32 of each body, to tell a repeat from a conflict (trap T19).
        held: whether the ids have left the windows, and are kept only until the broker surely has the acknowledgement.
    """

    time: float
    ids: list[str]
    sources: list[str]
    digests: list[int]
    held: bool = False


class IdSegment(msgspec.Struct, frozen=True, gc=False):
    """The ids that one transaction accepted in a domain. Cleaning replaces it by its survivors, later it is deleted.

    Attributes:
        domain: the duplicate detection domain.
        number: order of acceptance within the domain, never used again.
        receiver: the receiver of the batch.
        batch: number of the batch among those of its receiver; a start pins ids by it.
        runs: the ids by time of receipt.
    """

    domain: str
    number: int
    receiver: str
    batch: int
    runs: list[IdRun]


class ReceiveSegment(msgspec.Struct, frozen=True, gc=False):
    """Messages of one batch, numbered from `first`, in the receive log until every context has handled them."""

    receiver: str
    first: int
    messages: list[Message]


class ReceiveCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One received batch: it becomes durable, then the broker is acknowledged (rule A3.2).

    Attributes:
        segment: the messages to deliver; `None` when all were duplicates or dead letters.
        ids: the new id segment; `None` when the batch has no ids.
        rewritten: earlier id segments, reduced to their surviving entries.
        forgotten: (domain, number) of id segments without a surviving entry.
        dead_letters: messages of the batch that could not be mapped.
        confirmed_batch: the receiver's last batch whose acknowledgement the broker surely has.
        receiver: the receiver of the batch.
    """

    receiver: str
    segment: ReceiveSegment | None
    ids: IdSegment | None
    rewritten: Sequence[IdSegment] = ()
    forgotten: Sequence[tuple[str, int]] = ()
    dead_letters: Sequence[DeadLetter] = ()
    confirmed_batch: int = 0


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
        sender: its id.
        first: number of the first message.
        messages: a message may name its destination at the broker.
        destination: at the broker, for messages that name none: where the sender sent to when they were stored. "" in
            stores of versions that did not record it: then the destination is where the sender sends to now.
    """

    sender: str
    first: int
    messages: list[Message]
    destination: str = ""


class QueueRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stretch of a context's input queue that waits to be handled.

    Attributes:
        receiver: where the messages lie in the receive log, or "" for events kept here by value.
        first: first message number.
        count: how many.
        events: for `receiver == ""`: (event type name, encoded event).
    """

    receiver: str
    first: int
    count: int
    events: list[tuple[str, bytes]] = []


class ContextCut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One context at the cut.

    Attributes:
        context: its name.
        entered: for each receiver, the last number that has entered this context's queue.
        queue: the events that wait, in order.
        spawned: next instance number of each monitor class.
    """

    context: str
    entered: dict[str, int]
    queue: list[QueueRun]
    spawned: dict[str, int] = {}


class SenderCut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One reliable sender at the cut: source, the next number to give, the last one confirmed with all before it."""

    sender: str
    source: str
    next_sequence: int
    confirmed_through: int


class Suspect(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Messages that a start is about to handle. If the next start finds the note, this start died of them.

    Attributes:
        context: name of the context that handles them.
        receiver: of messages `first` to `last`; "" for an event from inside the engine, whose digest is both numbers.
        first: first message number.
        last: last message number.
        deaths: how many processes died while they handled these messages, as far as it was noted.
    """

    context: str
    receiver: str
    first: int
    last: int
    deaths: int


class CheckpointCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One checkpoint: state, queues, sends and progress of one moment.

    Attributes:
        number: grows by one with each checkpoint of the lineage.
        engine_time: engine time at the cut, seconds.
        digest: chained digest of all checkpoints so far; recovery reports it.
        contexts: every context.
        senders: every reliable sender.
        state: new state segments.
        state_dropped: numbers of state segments whose living entries are all in later ones.
        outbound: sends that this checkpoint releases.
        consumed: for each receiver, the last number of the receive log up to which no context needs a message.
        dead_letters: messages that could not be handled or sent.
        absolved: suspects whose notes end, since they are among the dead letters.
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


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A receiver or sender in the registry (rule A1.4).

    Attributes:
        id: its id.
        kind: receiver or sender.
        origin: from the configuration file, or added by code.
        reliability: its mode.
        connection: name of its connection.
        destination: as configured.
        domain: duplicate detection domain of a receiver, "" otherwise.
        source: messageSourceId of a reliable sender, "" otherwise.
        delivers_to: contexts of a receiver whose messages are stored, each with the number of the last message that
            the context does not get (`correlator.core.delivery`).
        unhandled_after: number of the last message received before `unhandled` became `dead_letter`, 0 otherwise.
        settings: its settings as JSON without secrets; a start makes dynamic parts from them.
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
    settings: bytes = b"{}"


class RegistryCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Endpoints added or changed (`put`, by id) and removed with all that the store holds for them."""

    put: Sequence[Endpoint] = ()
    removed: Sequence[str] = ()


class SuspectCommit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Notes about what some contexts are about to handle (trap T26); they replace earlier notes about them."""

    contexts: Sequence[str]
    suspects: Sequence[Suspect] = ()


Write = ReceiveCommit | CheckpointCommit | RegistryCommit | SuspectCommit


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What the store holds at a start.

    Attributes:
        epoch: the epoch that this start will take; every later transaction checks it.
        commit: number of the last committed transaction.
        checkpoint: number of the last checkpoint, 0 before the first.
        engine_time: engine time of that checkpoint.
        digest: its chained digest.
        contexts: contexts at that checkpoint.
        senders: senders at that checkpoint.
        state: state segments in the order of their numbers.
        ids: id segments of all domains, in the order of their numbers within each domain.
        confirmed_batches: for each receiver, the last batch surely acknowledged.
        consumed: for each receiver, the last number deleted from the receive log.
        receive_log: segments in the order of their numbers for each receiver.
        outbound: segments in the order of their numbers for each sender.
        endpoints: the registry.
        suspects: what the last start was handling when it died, with that death counted.
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
