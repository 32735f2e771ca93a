"""The cut: everything that one checkpoint writes, taken at one moment, and the sends that it releases.

The order is cut, commit, release: no send of a cut leaves the engine before the commit.
"""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from correlator.core.commit import CheckpointCommit, ContextCut, OutboundSegment, SenderCut, StateEntry, Suspect
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue
from correlator.core.staging import Staging
from correlator.core.unmapped import Unmapped
from correlator.events import DeadLetter, Message

LONGEST_UNSTORED_S = 10.0
"""Seconds of engine time after which a checkpoint is taken only to store engine time, while a persistent monitor waits
for a time."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Cuttable(Protocol):
    """A context of any kind whose thread is stopped between two events."""

    name: str
    queue: InputQueue
    staging: Staging

    def cut(self) -> ContextCut:
        """Return what a checkpoint stores of this context beside its state: the queue, and the counters of
        `ContextCut`.

        The checkpointer calls it in its own thread while it holds the lock of the context. It changes nothing.
        """
        ...

    def take_state(self) -> list[StateEntry]:
        """Return the entries of state that have changed since the last cut."""
        ...

    def awaits_time(self) -> bool:
        """Whether a persistent monitor waits for a time."""
        ...


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one checkpoint, before the store writer has planned where state goes.

    Attributes:
        commit: everything but the state segments.
        changes: changed state.
        settled: the progress of every outbox, which the outbox may forget after the commit.
    """

    commit: CheckpointCommit
    changes: list[StateEntry]
    settled: list[tuple[Outbox, SenderCut]]

    def release(self) -> None:
        """Let the sends of this checkpoint leave, and let outboxes forget settled sends. Called after the commit."""
        outboxes = {outbox.sender: outbox for outbox, _ in self.settled}
        for segment in self.commit.outbound:
            outboxes[segment.sender].release(segment)
        for outbox, cut in self.settled:
            outbox.forget_settled(cut)


class Checkpoint:
    """Makes the cuts, and knows the number and the chained digest of the last checkpoint. Owner: the checkpointer's
    thread.

    Args:
        number: number of the last checkpoint.
        digest: chained digest of the last checkpoint.
        changes: state that the start has changed, which the first cut writes.
        engine_time: engine time of the last checkpoint.
        unmapped: stored messages that the start could not map.
    """

    def __init__(
        self,
        number: int,
        digest: bytes,
        changes: Sequence[StateEntry] = (),
        engine_time: float = 0.0,
        unmapped: Unmapped | None = None,
    ) -> None:
        self.number = number
        self.digest = digest
        self._stored_time = engine_time
        self._begun_with = changes
        self._unmapped = unmapped or Unmapped({})
        self._progress: object = None

    def cut(
        self,
        contexts: Sequence[Cuttable],
        outboxes: Sequence[Outbox],
        routes: Mapping[str, Sequence[str]],
        engine_time: float,
        *,
        forced: bool = False,
        absolved: Sequence[Suspect] = (),
    ) -> Cut | None:
        """Take the cut; return `None` if the last checkpoint holds everything already.

        Args:
            contexts: all contexts, stopped between two events.
            outboxes: the outboxes of all senders.
            routes: for each receiver with stored messages, the names of the contexts to which it delivers.
            engine_time: engine time in seconds.
            forced: take the cut even when only engine time has changed.
            absolved: suspects whose dead letters the contexts hold.
        """
        context_cuts = [context.cut() for context in contexts]
        queues = {context.name: context.queue for context in contexts}
        done = consumed(queues, routes)
        dead, told = self._unmapped.cut(queues, done)
        changes = [*self._take_state(contexts), *told]
        dead += [letter for context in contexts for letter in context.staging.take_dead_letters()]
        returned = [number for context in contexts for number in context.staging.take_returned()]
        settled, outbound = self._cut_outboxes(contexts, outboxes, dead)
        senders = [cut for outbox, cut in settled if outbox.stored]
        progress = (context_cuts, senders)
        overdue = engine_time - self._stored_time >= LONGEST_UNSTORED_S and any(one.awaits_time() for one in contexts)
        if not (changes or dead or outbound or forced or overdue) and progress == self._progress:
            return None
        self._progress = progress
        self._stored_time = engine_time
        self.number += 1
        self.digest = _chain(self.digest, self.number, progress, changes)
        commit = CheckpointCommit(
            number=self.number,
            engine_time=engine_time,
            digest=self.digest,
            contexts=context_cuts,
            senders=senders,
            outbound=outbound,
            consumed=done,
            dead_letters=dead,
            absolved=absolved,
            returned=returned,
        )
        return Cut(commit=commit, changes=changes, settled=settled)

    def _take_state(self, contexts: Sequence[Cuttable]) -> list[StateEntry]:
        """Return the changed state, with at most one entry for each key: a change of a context replaces a change of the
        start.
        """
        begun_with, self._begun_with = self._begun_with, ()
        changes = [entry for context in contexts for entry in context.take_state()]
        newer = {(entry.owner, entry.key) for entry in changes}
        return [*(entry for entry in begun_with if (entry.owner, entry.key) not in newer), *changes]

    @staticmethod
    def _cut_outboxes(
        contexts: Sequence[Cuttable], outboxes: Sequence[Outbox], dead: list[DeadLetter]
    ) -> tuple[list[tuple[Outbox, SenderCut]], list[OutboundSegment]]:
        staged: dict[str, list[Message]] = {}
        for context in contexts:
            for sender, messages in context.staging.take_sends().items():
                staged.setdefault(sender, []).extend(messages)
        settled: list[tuple[Outbox, SenderCut]] = []
        outbound: list[OutboundSegment] = []
        for outbox in outboxes:
            progress, segments, letters = outbox.cut(staged.get(outbox.sender, []))
            dead.extend(letters)
            settled.append((outbox, progress))
            outbound.extend(segments)
        return settled, outbound


def consumed(queues: Mapping[str, InputQueue], routes: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return for each receiver the last number up to which all its contexts have handled every message."""
    needed = {name: queue.needed_from() for name, queue in queues.items()}
    done: dict[str, int] = {}
    for receiver, names in routes.items():
        entered = [queues[name].entered.get(receiver, 0) for name in names]
        waiting = [first[receiver] - 1 for first in needed.values() if receiver in first]
        if entered:
            done[receiver] = min([*entered, *waiting])
    return done


def _chain(before: bytes, number: int, progress: object, changes: Sequence[StateEntry]) -> bytes:
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(_encoder.encode((number, progress)))
    crc = 0
    for entry in changes:
        crc = zlib.crc32(entry.value or b"", zlib.crc32(entry.key, crc))
    digest.update(crc.to_bytes(4, "big"))
    return digest.digest()
