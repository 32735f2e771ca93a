"""Adds the commits of the disk to the history, and decides about the faults of the broker."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from correlator.connector import Features
from correlator.core.commit import CheckpointCommit, ReceiveCommit, SuspectCommit, Write
from correlator.errors import ConnectionLost
from correlator.events import DeadLetter, Message, Outgoing
from correlator.testing.invariants.history import Checkpointed, Condemned, Kind, ReceivedBatch, UnmappedMessage
from correlator.testing.memory import Faults
from correlator.testing.schedule import AWAY_BESIDE, CUT_AGAIN, LATE, LOST_BESIDE, PART, Schedule

LATEST = 5
"""Number of parts into which the longest time is divided; the broker notices a loss after a random number of parts."""


class DiskRecorder:
    """Adds committed writes to the history.

    Args:
        record: adds a record to the history.
        engine_time: returns engine time of the acting engine by the simulated clock; `None` if there is none.
    """

    def __init__(
        self, record: Callable[[Kind, str, object], None], engine_time: Callable[[], float | None] = lambda: None
    ) -> None:
        self._record = record
        self._engine_time = engine_time

    def committed(self, epoch: int, number: int, writes: Sequence[Write]) -> None:
        """Record a transaction at the moment of its commit."""
        self._record("commit", "", (epoch, number))
        for write in writes:
            if isinstance(write, ReceiveCommit):
                self._record("received", write.receiver, _received(write, self._engine_time()))
            elif isinstance(write, CheckpointCommit):
                self._record("checkpoint", "", _checkpointed(write))
                for context, condemned in _condemned(write):
                    self._record("condemned", context, condemned)
                for letter in write.dead_letters:
                    if letter.kind == "mapping":
                        self._record("unmapped", letter.receiver, UnmappedMessage(letter.number, write.number))
            elif isinstance(write, SuspectCommit):
                self._record("noted", "", (tuple(write.contexts), tuple(write.suspects)))


def _received(write: ReceiveCommit, clocked: float | None) -> ReceivedBatch:
    segment, ids = write.segment, write.ids
    return ReceivedBatch(
        segment.first if segment else 0,
        tuple(pid(message) for message in segment.messages) if segment else (),
        tuple(one for run in ids.runs for one in run.ids) if ids else (),
        tuple(pid(letter.message) for letter in write.dead_letters),
        ids.runs[0].time if ids else 0.0,
        clocked if ids else None,
        _reason(write.dead_letters),
    )


def _checkpointed(write: CheckpointCommit) -> Checkpointed:
    return Checkpointed(
        write.number,
        write.digest,
        {one.sender: (one.first, tuple(message.body for message in one.messages)) for one in write.outbound},
        {one.sender: one.confirmed_through for one in write.senders},
        {one.sender: (one.source, one.next_sequence) for one in write.senders},
        tuple(_dead(letter) for letter in write.dead_letters),
        write.engine_time,
        _reason(write.dead_letters),
    )


def _condemned(write: CheckpointCommit) -> Iterator[tuple[str, Condemned]]:
    """Yield the dead letters of a checkpoint; those of each context are in the order in which it
    absolved its suspects.
    """
    letters = [letter for letter in write.dead_letters if letter.kind == "poison"]
    letters.sort(key=lambda letter: letter.origin)
    for suspect, letter in zip(sorted(write.absolved, key=lambda one: one.context), letters, strict=False):
        yield suspect.context, Condemned(suspect.receiver, suspect.first, letter.message.body)


def _dead(letter: DeadLetter) -> tuple[str, str, str, bytes]:
    return letter.kind, letter.origin, letter.unique_id or "", letter.message.body


def _reason(letters: Sequence[DeadLetter]) -> str:
    return letters[0].reason if letters else ""


def pid(message: Message) -> str:
    """Return the pid of a message, its name in the history: the broker's id."""
    assert message.headers is not None
    return str(message.headers.message_id)


class BrokerFaults(Faults):
    """The faults of a broker, as the schedule chooses them.

    Args:
        strikes: returns whether a kind of fault strikes now.
        schedule: decides about details of faults.
        features: features of the broker. An acknowledgement whose call returned may be lost unless the broker confirms
            acknowledgements. A broker that deduplicates never refuses a message temporarily.
        owes: returns whether a receiver has lost messages with its line and not acknowledged all of them since.
        beside: returns the receivers that share the queue of a receiver, including itself.
        refused_for_ever: the broker refuses bodies that contain one of these at each try.
    """

    def __init__(
        self,
        strikes: Callable[[str], bool],
        schedule: Schedule,
        features: Features,
        owes: Callable[[str], bool],
        beside: Callable[[str], Collection[str]],
        refused_for_ever: Collection[bytes] = (),
    ) -> None:
        self._strikes = strikes
        self._schedule = schedule
        self._surely = features.acknowledges_surely
        self._notices_within_s = features.notices_loss_within_s
        self._deduplicates = features.deduplicates_sends
        self._owes = owes
        self._beside = beside
        self._refused_for_ever = refused_for_ever
        self._unheard: set[str] = set()
        """Receivers whose last acknowledgement over their present connection was lost without an error."""

    def before_connect(self, receiver: str) -> None:
        """Raise `ConnectionLost` if the schedule lets the broker be out of reach for this receiver now."""
        if self._owes(receiver) and len(self._beside(receiver)) > 1 and self._strikes(AWAY_BESIDE):
            raise ConnectionLost("E7001", receiver, "cannot be reached")
        self._unheard.discard(receiver)

    def before_receive(self, receiver: str) -> None:
        """Raise `ConnectionLost` if the schedule lets the connection of this receiver be cut now."""
        if self._strikes("receive.cut") or self._cut_again(receiver):
            raise ConnectionLost("E7001", receiver, "cut before receive")

    def _cut_again(self, receiver: str) -> bool:
        return self._owes(receiver) and self._strikes(CUT_AGAIN)

    def at_most(self, receiver: str, messages: int) -> int:
        """Return how many of the available messages the broker delivers now: all, or a random number of at least 1."""
        del receiver
        return 1 + self._schedule.detail(PART, messages - 1) if self._strikes(PART) else messages

    def repeated(self, receiver: str, messages: Sequence[Message]) -> Sequence[int]:
        """Return the position of a message that comes twice in a chunk, if the schedule chooses one."""
        del receiver
        if self._strikes("receive.repeat"):
            return (self._schedule.detail("receive.repeat", len(messages) - 1),)
        return ()

    def noticed_after(self, receiver: str, messages: Sequence[Message]) -> float:
        """Return after how many seconds the broker notices the loss of a connection.

        If the schedule chooses such a delay, the messages of the lost consumer are redelivered after others.
        """
        del receiver, messages
        if not self._notices_within_s or not self._strikes(LATE):
            return 0.0
        return self._notices_within_s * (1 + self._schedule.detail(LATE, LATEST - 1)) / LATEST

    def before_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        """Raise `ConnectionLost` if the acknowledgement is lost on its way to the broker, which then redelivers the
        messages.

        It is always lost if the previous acknowledgement over this connection was lost without an error.
        """
        del messages
        if receiver in self._unheard:
            raise ConnectionLost("E7001", receiver, "was cut before the last acknowledgement")
        fresh = not self._owes(receiver) and self._owes_beside(receiver)
        if (fresh and self._strikes(LOST_BESIDE)) or self._strikes("ack.lost") or self._cut_again(receiver):
            raise ConnectionLost("E7001", receiver, "cut before the acknowledgement")

    def _owes_beside(self, receiver: str) -> bool:
        return any(self._owes(one) for one in self._beside(receiver) if one != receiver)

    def loses_acknowledgement(self, receiver: str, messages: Sequence[Message]) -> bool:
        """Return whether the acknowledgement is lost although the call returns without an error.

        The connection is lost, too, and the next acknowledgement over it raises `ConnectionLost`.
        """
        del messages
        if self._surely or not self._strikes("ack.silent"):
            return False
        self._unheard.add(receiver)
        return True

    def after_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        """Raise `ConnectionLost` if the broker has taken an acknowledgement, but its answer is lost."""
        del messages
        if self._strikes("ack.answer_lost"):
            raise ConnectionLost("E7001", receiver, "cut after the acknowledgement")

    def before_accept(self, sender: str, batch: Sequence[Outgoing]) -> None:
        """Raise `ConnectionLost` if the connection is cut before the broker has stored anything of the batch."""
        del batch
        if self._strikes("send.lost"):
            raise ConnectionLost("E7001", sender, "cut before the broker took anything")

    def refused(self, sender: str, batch: Sequence[Outgoing]) -> Mapping[int, str]:
        """Return the messages that the broker refuses: some bodies always, and perhaps one message this time only."""
        del sender
        refused = {
            at: "not wanted"
            for at, one in enumerate(batch)
            if any(marker in one.message.body for marker in self._refused_for_ever)
        }
        if not self._deduplicates and self._strikes("send.refused"):
            refused[self._schedule.detail("send.refused", len(batch) - 1)] = "not now"
        return refused

    def accepted_before_loss(self, sender: str, batch: Sequence[Outgoing]) -> int | None:
        """Return how many messages of a batch the broker stores before the connection is cut; `None` if it is not cut.

        The number may be that of the whole batch: then only the confirm is lost.
        """
        del sender
        if self._strikes("send.partial"):
            return self._schedule.detail("send.partial", len(batch))
        return None
