"""The requests to the store writer. Each request plans what a transaction writes for it.

The store writer plans all requests of one transaction as a group. A plan depends on what is committed, and on the plans
of the requests before it in the group.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from correlator.core.acknowledgements import Sure
from correlator.core.checkpoint import Cut
from correlator.core.commit import DiscardCommit, ReceiveCommit, ReceiveSegment, RegistryCommit, SuspectCommit, Write
from correlator.core.deadletters import Letter
from correlator.core.dedup import Candidates, DetectionPlan
from correlator.core.domains import Domains
from correlator.core.faults import point
from correlator.core.mapping import Mapped
from correlator.core.statelog import StateLog
from correlator.events import DeadLetter, Message
from correlator.ports import Store

R = TypeVar("R")


class Planned(NamedTuple, Generic[R]):
    """The plan of one request of a transaction.

    Attributes:
        write: what the transaction writes for the request.
        apply: makes the same change in memory; called once the transaction is committed.
        result: the result of the request, which is valid once the transaction is committed.
    """

    write: Write
    apply: Callable[[], None]
    result: R


class PlannedTransaction:
    """The requests of one transaction that are planned so far, and the facts that plans depend on.

    Args:
        engine_time: seconds of engine time at which the transaction begins.
        domains: the duplicate detectors.
        state_log: knows which segments of the store have the state of the contexts.
        store: reads state segments whose content must move.
    """

    def __init__(self, engine_time: float, domains: Domains, state_log: StateLog, store: Store) -> None:
        self.engine_time = engine_time
        self.domains = domains
        self.state_log = state_log
        self.store = store
        self.detections: dict[str, list[DetectionPlan]] = {}


class Request(Generic[R]):
    """Something to be committed. A request is a value: nobody changes it."""

    __slots__ = ()

    def prepare(self, domains: Domains) -> None:
        """Give the duplicate detectors facts that need no commit; called before any request of the transaction is
        planned.
        """

    def plan(self, group: PlannedTransaction) -> Planned[R]:
        """Plan what to write. Changes nothing but the group. May raise the errors of `Store.read_state`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of a request to store a received batch.

    Attributes:
        segment: the messages that are in the receive log now; `None` if there are none.
        events: the events of these messages, in the same order.
        dead_letters: messages that could not be mapped and are no duplicates.
        duplicates: positions of the duplicates among the ids of the batch.
        conflicts: positions of duplicates whose body differs from the body of the first message with this id.
        began: engine time at which the transaction began.
    """

    segment: ReceiveSegment | None
    events: Sequence[Any]
    dead_letters: Sequence[DeadLetter]
    duplicates: Sequence[int]
    conflicts: Sequence[int]
    began: float


@dataclass(frozen=True, slots=True)
class ReceiveRequest(Request[Accepted]):
    """Stores a received batch.

    Attributes:
        mapped: the batch.
        receiver: id of its receiver.
        batch: number of the batch within the receiver.
        first: number of its first message that is no duplicate.
        domain: duplicate detection domain; `None` keeps duplicates.
        sure: the batches of the receiver that are certainly acknowledged.
        keep: whether the messages go to the receive log; `False` for a batch that has only dead letters to store.
    """

    mapped: Mapped
    receiver: str
    batch: int
    first: int
    domain: str | None
    sure: Sure
    keep: bool

    def prepare(self, domains: Domains) -> None:
        """Unpin ids whose messages are certainly not redelivered, so that this transaction already removes them."""
        if self.domain is not None:
            detector = domains.detector(self.domain)
            detector.confirm(self.receiver, self.sure.through)
            detector.doubt(self.receiver, self.sure.doubtful_through)
            if self.sure.beyond > self.sure.doubtful_through:
                detector.confirm(self.receiver, self.sure.beyond, after=self.sure.doubtful_through)

    def plan(self, group: PlannedTransaction) -> Planned[Accepted]:
        """Recognise duplicates, and number the other messages."""
        if self.domain is None:
            mapped = self.mapped
            return self._planned(group, mapped.messages, mapped.events, mapped.dead_letters)
        return self._deduplicated(self.domain, group)

    def _deduplicated(self, domain: str, group: PlannedTransaction) -> Planned[Accepted]:
        point("rx.dedup.lookup")
        mapped, earlier, domains = self.mapped, group.detections.setdefault(domain, []), group.domains
        candidates = Candidates(self.receiver, self.batch, mapped.ids, mapped.sources, mapped.digests)
        plan = domains.detector(domain).plan(candidates, group.engine_time, earlier)
        earlier.append(plan)
        kept = mapped.messages, mapped.events, mapped.dead_letters
        if plan.duplicates:
            kept = mapped.without(set(plan.duplicates))
        planned = self._planned(group, *kept, plan.duplicates, plan.conflicts)
        write = msgspec.structs.replace(
            planned.write,
            ids=plan.segment,
            rewritten=plan.rewritten,
            forgotten=[(domain, number) for number in plan.forgotten],
        )
        return planned._replace(write=write, apply=lambda: domains.detector(domain).apply(plan))

    def _planned(
        self,
        group: PlannedTransaction,
        messages: Sequence[Message],
        events: Sequence[Any],
        letters: Sequence[DeadLetter],
        duplicates: Sequence[int] = (),
        conflicts: Sequence[int] = (),
    ) -> Planned[Accepted]:
        segment = ReceiveSegment(self.receiver, self.first, messages) if messages and self.keep else None
        write = ReceiveCommit(
            receiver=self.receiver,
            segment=segment,
            ids=None,
            dead_letters=letters,
            confirmed_batch=self.sure.through,
        )
        accepted = Accepted(segment, events, letters, duplicates, conflicts, group.engine_time)
        return Planned(write, _nothing_to_apply, accepted)


@dataclass(frozen=True, slots=True)
class CheckpointRequest(Request[None]):
    """Stores the cut of a checkpoint: its rows, and its changed state as segments of the state log."""

    cut: Cut

    def plan(self, group: PlannedTransaction) -> Planned[None]:
        """Plan the rows of the cut, and place its changed state in segments of the state log.

        May read state segments from the store, and then raises the errors of `Store.read_state`.
        """
        log = group.state_log
        numbers = log.to_clean(len(self.cut.changes))
        cleaned = group.store.read_state(numbers) if numbers else ()
        plan = log.plan(self.cut.changes, cleaned)
        write = msgspec.structs.replace(self.cut.commit, state=plan.segments, state_dropped=plan.dropped)
        return Planned(write, lambda: log.apply(plan), None)


@dataclass(frozen=True, slots=True)
class SuspectRequest(Request[None]):
    """Stores a note about the messages that a start is about to handle."""

    commit: SuspectCommit

    def plan(self, group: PlannedTransaction) -> Planned[None]:
        """Plan to write the note unchanged: it depends on nothing else in the group."""
        del group
        return Planned(self.commit, _nothing_to_apply, None)


@dataclass(frozen=True, slots=True)
class RegistryRequest(Request[None]):
    """Records or removes receivers and senders."""

    registry: RegistryCommit

    def plan(self, group: PlannedTransaction) -> Planned[None]:
        """Plan to write the change unchanged; afterwards the duplicate detectors know the receivers of each domain."""
        domains = group.domains

        def follow() -> None:
            domains.note_receivers(self.registry.put)
            for part in self.registry.removed:
                domains.forget_receiver(part)

        return Planned(self.registry, follow, None)


@dataclass(frozen=True, slots=True)
class ReturnRequest(Request[None]):
    """Stores the messages of dead letters as received messages, without duplicate detection, and deletes the
    letters.
    """

    commit: ReceiveCommit

    def plan(self, group: PlannedTransaction) -> Planned[None]:
        """Plan to write the messages unchanged: they depend on nothing else in the group."""
        del group
        return Planned(self.commit, _nothing_to_apply, None)


@dataclass(frozen=True, slots=True)
class DiscardRequest(Request[None]):
    """Deletes dead letters by number; a number that the store does not hold has no effect."""

    commit: DiscardCommit

    def plan(self, group: PlannedTransaction) -> Planned[None]:
        """Plan to write the deletion unchanged: it depends on nothing else in the group."""
        del group
        return Planned(self.commit, _nothing_to_apply, None)


@dataclass(frozen=True, slots=True)
class LettersRequest(Request[Sequence[Letter]]):
    """Reads dead letters with larger numbers than `above`, by number, at most `most`; writes nothing."""

    above: int
    most: int

    def plan(self, group: PlannedTransaction) -> Planned[Sequence[Letter]]:
        """Read them. Raises the errors of `Store.read_letters`."""
        return Planned(DiscardCommit(numbers=()), _nothing_to_apply, group.store.read_letters(self.above, self.most))


def _nothing_to_apply() -> None:
    """Do nothing: there is nothing in memory that corresponds to the write."""
