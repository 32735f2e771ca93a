"""What happened, told from outside the engine: by the broker, by the disk, and by the application's own statements.

The history is the only input of the invariants. It grows, it is never changed, and equal seeds make equal histories.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from correlator.connector import Order
from correlator.reliability import Reliability

Kind = Literal[
    "published",  # who: destination, data: tuple of Published
    "delivered",  # who: receiver, data: tuple of pids, in order
    "acknowledged",  # who: receiver, data: tuple of pids
    "returned",  # who: receiver, data: tuple of pids
    "accepted",  # who: sender, data: tuple of Sent, stored by the broker
    "refused",  # who: sender, data: tuple of Sent
    "commit",  # data: (epoch, number), one transaction took place
    "received",  # who: receiver, data: Received, a part of the transaction
    "checkpoint",  # data: Checkpointed, a part of the transaction
    "noted",  # data: (contexts, suspects), a transaction that notes what is handled next
    "condemned",  # who: context, data: Condemned, a part of a checkpoint
    "unmapped",  # who: receiver, data: Unmapped, a stored message became a dead letter, a part of a checkpoint
    "configured",  # data: Configured, what the engine is started with
    "declined",  # who: code, data: Declined, the start was refused
    "heard",  # data: id, by a monitor without lasting state that is not always there
    "began",  # data: (epoch, checkpoint, digest, engine time) as the engine knows them after recovery
    "died",  # who: where it was killed, data: Death
    "forgotten",  # data: tuple of (receiver, pid, uid) that a broker may give again, and no pin keeps
    "uncounted",  # data: tuple of (receiver, awaited, lost), messages that a doubt waits for, and that may come
    "unlocked",  # data: contexts that were not locked while a cut was taken
    "snapshot",  # data: (number, fingerprint, engine time), parked contexts before the cut of checkpoint `number`
    "restored",  # data: (number, fingerprint), contexts as rebuilt from checkpoint `number`
    "hooks",  # who: name of the life-cycle method, data: receivers that are open
    "handled",  # who: monitor, data: id, by a monitor whose state does not last
    "sent",  # who: sender, data: (context, body), by a monitor to a BEST_EFFORT sender
    "derived",  # who: receiver, data: (id, body), an output that an APP_CONTROLLED input caused
    "suspended",  # who: receiver, told to the application
    "resumed",  # who: receiver, the application acknowledges
    "granted",  # who: receiver, data: number of the last message that it may deliver
    "flush",  # who: sender, data: (context, request id)
    "flushed",  # who: sender, data: (context, request id, failed)
    "attempt",  # who: forbidden call, data: error code, "" when it was allowed
    "ticked",  # who: monitor whose state does not last, data: (period, engine time)
    "fault",  # who: kind of fault
    "warned",  # who: part, data: text of a WARN or ERROR line
    "rest",  # data: Rest
]


OPTIONAL = "optional"
POISONED = "handling "
"""What the place of death begins with when a message ended the process."""


class Published(NamedTuple):
    """A message of the workload.

    Attributes:
        pid: unique for each message, whatever it repeats.
        uid: unique message id, "" for none.
        source: message source id.
        id: what application code sees; equal in repeats of one message.
        flaw: "mapping" (it cannot be mapped), "handler" (its handler fails for ever), "once" (it fails once), "kills"
            (it ends the process), "optional" (its receivers may leave it out, by their settings) or "".
        unselected: receivers that must leave it out.
    """

    pid: str
    uid: str
    source: str
    id: str
    flaw: str = ""
    unselected: tuple[str, ...] = ()

    def given_up_by(self, receiver: str) -> bool:
        """Whether this receiver takes it and cannot map it."""
        return self.flaw == "mapping" and receiver not in self.unselected

    def left_out_by(self, receiver: str) -> bool:
        """Whether this receiver may leave it out, or must."""
        return self.flaw == OPTIONAL or receiver in self.unselected


class Sent(NamedTuple):
    """A message as the broker got it from a sender."""

    source: str
    sequence: int
    destination: str
    body: bytes
    unique_id: str = ""


class Received(NamedTuple):
    """A committed batch: messages numbered from `first`, ids written, dead letters, engine time of receipt.

    `clocked` is the engine time of the commit as the world around counts it, where it does; `reason` that of the first
    dead letter, for people.
    """

    first: int
    pids: tuple[str, ...]
    ids: tuple[str, ...]
    dead: tuple[str, ...] = ()
    time: float = 0.0
    clocked: float | None = None
    reason: str = ""

    @property
    def taken(self) -> tuple[str, ...]:
        """All messages that it accepted: to be handled, or as dead letters."""
        return (*self.pids, *self.dead)


class Death(NamedTuple):
    """An engine died: engine time as the world counts it, where it does; whether a lasting timer was set."""

    engine_time: float | None
    awaits_time: bool


class Condemned(NamedTuple):
    """What became a dead letter since processes died of it; for an event from inside `number` is a digest."""

    receiver: str
    number: int
    body: bytes


class Unmapped(NamedTuple):
    """A stored message that a start could not map: its number, and the checkpoint that holds its dead letter."""

    number: int
    checkpoint: int


class Checkpointed(NamedTuple):
    """A committed checkpoint.

    Attributes:
        number: of the lineage.
        digest: chained.
        outbound: for each sender the first number and the bodies that it releases.
        confirmed: for each sender the last number that it deletes.
        next_sequence: for each sender its source and the next number.
        dead: (kind, origin, unique id, body) of each dead letter.
        engine_time: seconds.
        reason: of the first dead letter, for people.
    """

    number: int
    digest: bytes
    outbound: dict[str, tuple[int, tuple[bytes, ...]]]
    confirmed: dict[str, int]
    next_sequence: dict[str, tuple[str, int]]
    dead: tuple[tuple[str, str, str, bytes], ...] = ()
    engine_time: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What one life was started with, where that changes. A subclass holds what invariants of one application ask.

    Attributes:
        pipelines: the names of all.
    """

    pipelines: tuple[str, ...]


class Declined(NamedTuple):
    """A refused start: whether the store is as it was, whether it had been accepted before, what was said."""

    unchanged: bool
    again: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What there was when the run came to rest, or to the end of its patience.

    Attributes:
        reached: whether it came to rest in time.
        unacknowledged: messages that consumers hold, or that wait, by destination.
        outbox_rows: rows of the outbox.
        receive_rows: rows of the receive log.
        ids: for each domain (ids remembered, bound that E7 allows, ids stored).
        state: attributes and tables of the persistent monitors, read back from the disk by a fresh engine, by class.
        memory: for each domain the ids that the last engine remembered, and those that a fresh one reads back.
        seconds: virtual time that it took.
    """

    reached: bool = True
    unacknowledged: Mapping[str, int] = field(default_factory=dict)
    outbox_rows: int = 0
    receive_rows: int = 0
    ids: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    state: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    memory: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverFacts:
    """A receiver as configured.

    Attributes:
        order: in which its broker gives out what comes again.
        alone: what its destination holds is its own, and not shared out among receivers.
    """

    reliability: Reliability
    destination: str
    domain: str = ""
    max_batch_size: int = 1000
    flow_control: bool = False
    order: Order = Order.PLACE
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the run consisted of, as far as invariants ask.

    Attributes:
        receivers: by id.
        senders: mode by id.
        window: ids per source that the duplicate detector keeps.
        expiry: seconds that it keeps ids.
        checkpoint_interval: seconds.
        renamed: senders that stamp the unique id into a property with a name of its own.
        tries: refusals after which a sender gives a send up, where that is not the default.
        deduplicating: whether the broker stores a repeat of (source, sequence) once.
        on_error: what the engine does with a message whose handler fails.
        told: whether monitors tell all that they do, to invariants of their application.
    """

    receivers: Mapping[str, ReceiverFacts] = field(default_factory=dict)
    senders: Mapping[str, Reliability] = field(default_factory=dict)
    window: int = 2000
    expiry: float = 120.0
    checkpoint_interval: float = 0.0
    renamed: frozenset[str] = frozenset()
    tries: Mapping[str, int] = field(default_factory=dict)
    deduplicating: bool = False
    on_error: str = "stop"
    told: bool = True

    def of_mode(self, *modes: Reliability) -> list[str]:
        """Ids of the receivers with one of these modes."""
        return [name for name, facts in self.receivers.items() if facts.reliability in modes]


class Record(NamedTuple):
    """One thing that happened; `life` counts the engines of the run from 1, 0 stands for the world around them."""

    life: int
    kind: Kind
    who: str
    data: Any


class History:
    """All records of a run, in order.

    Args:
        setup: what the run consists of.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.records: list[Record] = []
        self._of_kind: dict[str, list[tuple[int, Record]]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def add(self, life: int, kind: Kind, who: str = "", data: Any = None) -> None:
        """Append a record; the order of the calls is the order of the history.

        Args:
            life: the engine that it concerns, counted from 1; 0 for what no engine did.
            kind: what happened.
            who: the part or the monitor that it concerns, or "".
            data: what the kind of record says about it; see `Kind`.
        """
        record = Record(life, kind, who, data)
        self._of_kind.setdefault(kind, []).append((len(self.records), record))
        self.records.append(record)

    def of(self, kind: Kind) -> list[tuple[int, Record]]:
        """The records of a kind with their places in the history."""
        return self._of_kind.get(kind, [])

    def digest(self) -> str:
        """A hash of everything: equal for equal histories."""
        digest = hashlib.blake2b(digest_size=16)
        for record in self.records:
            digest.update(repr(tuple(record)).encode())
        return digest.hexdigest()

    def last(self, count: int) -> Iterator[str]:
        """The last records as lines."""
        for at, record in list(enumerate(self.records))[-count:]:
            text = f"{at:5} life {record.life} {record.kind} {record.who} {record.data!r}"
            yield text if len(text) <= 160 else text[:157] + "..."
