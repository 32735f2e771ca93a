"""The store writer: the one thread that owns the store, its detectors and its state log.

Requests that wait at the same time share one transaction and one fsync (group commit). The writer plans each request,
commits the transaction, applies each plan, and hands each result to whoever has submitted the request: nothing in
memory changes before its commit (invariant E6). Requests, plans and results are values.

While the disk is full, received batches wait behind all other requests: a checkpoint deletes what was sent, and so
makes room (trap T67).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from correlator.core.acknowledgements import Sure
from correlator.core.backoff import Backoff
from correlator.core.checkpoint import Cut
from correlator.core.commit import (
    Endpoint,
    ReceiveCommit,
    ReceiveSegment,
    RegistryCommit,
    SuspectCommit,
    Write,
)
from correlator.core.dedup import Candidates, DetectionPlan, DuplicateDetector
from correlator.core.faults import point
from correlator.core.mapping import Mapped
from correlator.core.statelog import StateLog
from correlator.errors import CommitUnknown, StoreBusy, StoreError
from correlator.events import DeadLetter, Message
from correlator.ports import Store
from correlator.runtime.actor import Actor
from correlator.runtime.logs import get_logger
from correlator.settings import DuplicateDetectionSettings

R = TypeVar("R")
RETRYING = Backoff(0.02, 2.0)
LONGEST_DOUBT_S = 60.0
"""Seconds for which the writer looks up a commit whose answer was lost, before it stops the engine."""


class Planned(NamedTuple, Generic[R]):
    """A request as it goes into a transaction.

    Attributes:
        write: what the transaction writes for it.
        apply: lets memory follow; called once the transaction is committed.
        result: what has become of the request, true once the transaction is committed.
    """

    write: Write
    apply: Callable[[], None]
    result: R


class Group:
    """The requests of one transaction as far as they are planned."""

    def __init__(self, engine_time: float) -> None:
        self.engine_time = engine_time
        self.plans: dict[str, list[DetectionPlan]] = {}


class Request(Generic[R]):
    """What is to be committed: a value that nobody changes."""

    __slots__ = ()

    def prepare(self, writer: "Writer") -> None:
        """Tell the detectors facts that need no commit, before any request of the transaction is planned."""

    def plan(self, writer: "Writer", group: Group) -> Planned[R]:
        """What to write; changes nothing."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Accepted:
    """What has become of a received batch.

    Attributes:
        segment: the messages that are in the receive log now; `None` when there are none.
        events: parallel to its messages.
        dead_letters: what could not be mapped and is no duplicate.
        duplicates: places of duplicates among the ids of the batch.
        conflicts: places of duplicates whose body is another one than before.
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
    """A received batch to be committed.

    Attributes:
        mapped: the batch; not changed any more.
        receiver: its receiver.
        batch: the receiver's count of batches.
        first: number that its first new message gets.
        domain: duplicate detection domain; `None` keeps duplicates.
        sure: which of the receiver's batches are surely acknowledged.
        keep: whether the messages go to the receive log (not for dead letters alone).
    """

    mapped: Mapped
    receiver: str
    batch: int
    first: int
    domain: str | None
    sure: Sure
    keep: bool

    def prepare(self, writer: "Writer") -> None:
        """Release ids that surely do not come again, so that this very transaction removes them."""
        if self.domain is not None:
            detector = writer.detector(self.domain)
            detector.confirm(self.receiver, self.sure.through)
            detector.doubt(self.receiver, self.sure.doubtful_through)
            if self.sure.beyond > self.sure.doubtful_through:
                detector.confirm(self.receiver, self.sure.beyond, after=self.sure.doubtful_through)

    def plan(self, writer: "Writer", group: Group) -> Planned[Accepted]:
        """Recognise duplicates, number the other messages."""
        if self.domain is None:
            mapped = self.mapped
            return self._planned(group, mapped.messages, mapped.events, mapped.dead_letters)
        return self._deduplicated(self.domain, writer, group)

    def _deduplicated(self, domain: str, writer: "Writer", group: Group) -> Planned[Accepted]:
        point("rx.dedup.lookup")
        mapped, earlier = self.mapped, group.plans.setdefault(domain, [])
        candidates = Candidates(self.receiver, self.batch, mapped.ids, mapped.sources, mapped.digests)
        plan = writer.detector(domain).plan(candidates, group.engine_time, earlier)
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
        return planned._replace(write=write, apply=lambda: writer.detector(domain).apply(plan))

    def _planned(
        self,
        group: Group,
        messages: list[Message],
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
    """A cut to be committed."""

    cut: Cut

    def plan(self, writer: "Writer", group: Group) -> Planned[None]:
        """Place the changed state."""
        del group
        log = writer.state_log
        numbers = log.to_clean(len(self.cut.changes))
        cleaned = writer.store.read_state(numbers) if numbers else ()
        plan = log.plan(self.cut.changes, cleaned)
        write = msgspec.structs.replace(self.cut.commit, state=plan.segments, state_dropped=plan.dropped)
        return Planned(write, lambda: log.apply(plan), None)


@dataclass(frozen=True, slots=True)
class SuspectRequest(Request[None]):
    """A note about what a start is about to handle."""

    commit: SuspectCommit

    def plan(self, writer: "Writer", group: Group) -> Planned[None]:
        """Written as it is."""
        del writer, group
        return Planned(self.commit, _nothing_to_apply, None)


@dataclass(frozen=True, slots=True)
class RegistryRequest(Request[None]):
    """Receivers and senders to be recorded or removed."""

    registry: RegistryCommit

    def plan(self, writer: "Writer", group: Group) -> Planned[None]:
        """Written as it is; then the duplicate detectors follow the receivers of each domain."""
        del group

        def follow() -> None:
            writer.note_receivers(self.registry.put)
            for part in self.registry.removed:
                writer.forget_receiver(part)

        return Planned(self.registry, follow, None)


def _nothing_to_apply() -> None:
    """For a write that memory does not follow."""


@dataclass(frozen=True, slots=True, eq=False)
class _Submitted(Generic[R]):
    """A request that waits, and the call that gets its result."""

    request: Request[R]
    done: Callable[[R], None]


class _InTransaction(NamedTuple):
    """A request whose transaction was sent to the store."""

    submitted: _Submitted[Any]
    planned: Planned[Any]


class Writer(Actor):
    """Commits requests. Any thread may call `submit`; only this thread uses the rest.

    Args:
        store: opened.
        number: the last committed transaction.
        engine_time: gives the time of receipt of ids.
        windows: of all duplicate detectors.
    """

    def __init__(
        self, store: Store, number: int, engine_time: Callable[[], float], windows: DuplicateDetectionSettings
    ) -> None:
        super().__init__("store-writer")
        self.store = store
        self.detectors: dict[str, DuplicateDetector] = {}
        self._windows = windows
        self._domains: dict[str, str] = {}
        self.state_log = StateLog()
        self.commits = 0
        self._number = number
        self._engine_time = engine_time
        self._waiting: deque[_Submitted[Any]] = deque()
        self._failures = 0
        self._doubt_began: float | None = None
        self._full = False
        self._unknown: Sequence[_InTransaction] | None = None
        self._log = get_logger(part="store")

    def detector(self, domain: str) -> DuplicateDetector:
        """The duplicate detector of a domain, made at the first call."""
        detector = self.detectors.get(domain)
        if detector is None:
            windows = self._windows
            detector = DuplicateDetector(domain, windows.per_source_window_size, windows.expiry_time)
            self.detectors[domain] = detector
        return detector

    def note_receivers(self, endpoints: Iterable[Endpoint]) -> None:
        """Note the domains of receivers that the registry has now."""
        self._domains.update({endpoint.id: endpoint.domain for endpoint in endpoints if endpoint.domain})

    def forget_receiver(self, name: str) -> None:
        """Note that the registry no longer has a receiver.

        A domain without receivers ends. In any other domain the batches of the receiver count as acknowledged.
        """
        domain = self._domains.pop(name, None)
        if domain is None:
            return
        if domain not in self._domains.values():
            self.detectors.pop(domain, None)
        elif domain in self.detectors:
            detector = self.detectors[domain]
            detector.confirm(name, detector.last_batch(name))

    def submit(self, request: Request[R], done: Callable[[R], None]) -> None:
        """Have a request committed; any thread may call it.

        Args:
            request: what to commit.
            done: called in the writer's thread once the request is committed, with what has become of it.
        """
        self._waiting.append(_Submitted(request, done))
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not self._waiting

    def step(self) -> float | None:
        """Commit all waiting requests in one transaction; while none waits, check the lock if that is due."""
        if not self._waiting and self._unknown is None:
            return self._confirm_lock()
        try:
            committed = self._settle_unknown() or self._commit_waiting()
        except (StoreBusy, CommitUnknown) as error:
            return self._retry_later(error)
        self._failures, self._doubt_began = 0, None
        for submitted, planned in committed:
            self._waiting.remove(submitted)  # nearly always the first
            submitted.done(planned.result)
        return 0

    def _retry_later(self, error: StoreError) -> float:
        self._failures += 1
        self._full = error.code == "E3101"
        delay = RETRYING.delay(self._failures, 0.0)
        if isinstance(error, CommitUnknown):
            now = self._engine_time()
            self._doubt_began = now if self._doubt_began is None else self._doubt_began
            if now - self._doubt_began > LONGEST_DOUBT_S:
                raise error
        elif self._unknown is None:  # rolled back for sure: what was in doubt before is settled
            self._doubt_began = None
        self._log.warning("the store cannot take a transaction now; trying again", error=error, delay_s=delay)
        return delay

    def _confirm_lock(self) -> float | None:
        try:
            return self.store.confirm_lock()
        except (StoreBusy, CommitUnknown) as error:
            self._unknown = () if isinstance(error, CommitUnknown) else None
            return self._retry_later(error)

    def finish(self) -> None:
        """Close the store."""
        self.store.close()

    def _commit_waiting(self) -> Sequence[_InTransaction]:
        waiting = self._next()
        if not waiting:
            return ()
        for one in waiting:
            one.request.prepare(self)
        group = Group(self._engine_time())
        try:
            self._unknown = ()  # a connection lost while planning: look where the store stands, nothing was sent
            planned = [_InTransaction(one, one.request.plan(self, group)) for one in waiting]
            self._unknown = planned
            self.store.commit(self._number + 1, [one.planned.write for one in planned])
        except StoreBusy:
            self._unknown = None
            raise
        return self._conclude(planned)

    def _next(self) -> Sequence[_Submitted[Any]]:
        """The requests of the next transaction: all, or on a full disk those that may make room, if there are any."""
        waiting = [self._waiting[at] for at in range(len(self._waiting))]
        others = [one for one in waiting if not isinstance(one.request, ReceiveRequest)] if self._full else []
        self._full = bool(others)
        return others or waiting

    def _settle_unknown(self) -> Sequence[_InTransaction]:
        """Look up a commit whose answer was lost: the requests that it has committed after all (trap T1)."""
        if self._unknown is None:
            return ()
        requests = self._unknown
        if not self.store.resolve(self._number + 1):
            self._unknown = None
            return ()
        return self._conclude(requests)

    def _conclude(self, requests: Sequence[_InTransaction]) -> Sequence[_InTransaction]:
        self._unknown = None
        self._number += 1
        self.commits += 1
        for one in requests:
            one.planned.apply()
        return requests
