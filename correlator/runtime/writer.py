"""The store writer: the one thread that owns the store, its detectors and its state log.

Requests that wait at the same time share one transaction and one fsync (group commit). Each request plans, the
transaction commits, each request applies: nothing in memory changes before its commit (invariant E6).

While the disk is full, received batches wait behind all else: a checkpoint deletes what was sent and so makes room for
them (trap T67).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from correlator.core.acknowledgements import Sure
from correlator.core.backoff import Backoff
from correlator.core.checkpoint import Cut
from correlator.core.commit import (
    CheckpointCommit,
    Endpoint,
    ReceiveCommit,
    ReceiveSegment,
    RegistryCommit,
    Write,
)
from correlator.core.dedup import Candidates, DuplicateDetector, Plan
from correlator.core.faults import point
from correlator.core.mapping import Mapped
from correlator.core.statelog import StateLog, StatePlan
from correlator.errors import CommitUnknown, StoreBusy, StoreError
from correlator.events import DeadLetter
from correlator.ports import Store
from correlator.runtime.actor import Actor
from correlator.runtime.logs import get_logger
from correlator.settings import DuplicateDetectionSettings

RETRYING = Backoff(0.02, 2.0)
LONGEST_DOUBT_S = 60.0
"""Seconds for which a lost answer is looked up before the engine stops and leaves it to recovery."""


class Request:
    """Something to commit.

    Args:
        done: called in the writer's thread when it is committed and applied.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.committed = False

    def prepare(self, writer: "Writer") -> None:
        """Make known what is true without a commit, before anything is planned."""

    def plan(self, writer: "Writer", group: "Group") -> Write:
        """What to write; changes nothing."""
        raise NotImplementedError

    def apply(self, writer: "Writer") -> None:
        """It is committed."""
        raise NotImplementedError


class Group:
    """The requests of one transaction as far as they are planned."""

    def __init__(self, engine_time: float) -> None:
        self.engine_time = engine_time
        self.plans: dict[str, list[Plan]] = {}


class ReceiveRequest(Request):
    """A received batch.

    Args:
        mapped: the batch.
        receiver: its receiver.
        batch: the receiver's count of batches.
        first: number that its first new message gets.
        domain: duplicate detection domain; `None` keeps duplicates.
        sure: which of the receiver's batches are surely acknowledged.
        keep: whether the messages go to the receive log (not for dead letters alone).
        done: called when it is committed.

    After the commit `segment`, `events`, `dead_letters`, `duplicates` and `conflicts` tell what came of it, and `began`
    when its transaction did (engine time).
    """

    def __init__(
        self,
        mapped: Mapped,
        receiver: str,
        batch: int,
        first: int,
        domain: str | None,
        sure: Sure,
        *,
        keep: bool,
        done: Callable[[], None],
    ) -> None:
        super().__init__(done)
        self.mapped = mapped
        self.receiver = receiver
        self.batch = batch
        self.first = first
        self.domain = domain
        self.sure = sure
        self.keep = keep
        self.segment: ReceiveSegment | None = None
        self.events: list[Any] = []
        self.dead_letters: Sequence[DeadLetter] = ()
        self.duplicates: list[int] = []
        self.conflicts: list[int] = []
        self.began = 0.0
        self._plan: Plan | None = None

    def prepare(self, writer: "Writer") -> None:
        """Let go of what surely does not come again, so that this very transaction removes it."""
        if self.domain is not None:
            detector = writer.detector(self.domain)
            detector.confirm(self.receiver, self.sure.through)
            detector.doubt(self.receiver, self.sure.doubtful_through)
            if self.sure.beyond > self.sure.doubtful_through:
                detector.confirm(self.receiver, self.sure.beyond, after=self.sure.doubtful_through)

    def plan(self, writer: "Writer", group: Group) -> Write:
        """Tell duplicates, number the rest."""
        self.began = group.engine_time
        mapped = self.mapped
        messages, events, letters, plan = mapped.messages, mapped.events, mapped.dead_letters, None
        if self.domain is not None:
            point("rx.dedup.lookup")
            earlier = group.plans.setdefault(self.domain, [])
            candidates = Candidates(self.receiver, self.batch, mapped.ids, mapped.sources, mapped.digests)
            plan = writer.detector(self.domain).plan(candidates, group.engine_time, earlier)
            earlier.append(plan)
            if plan.duplicates:
                messages, events, letters = mapped.without(set(plan.duplicates))
        self._plan = plan
        self.events = events
        self.dead_letters = letters
        self.segment = ReceiveSegment(self.receiver, self.first, messages) if messages and self.keep else None
        return ReceiveCommit(
            receiver=self.receiver,
            segment=self.segment,
            ids=plan.segment if plan else None,
            rewritten=plan.rewritten if plan else (),
            forgotten=[(self.domain or "", number) for number in plan.forgotten] if plan else (),
            dead_letters=letters,
            confirmed_batch=self.sure.through,
        )

    def apply(self, writer: "Writer") -> None:
        """Remember the ids."""
        if self._plan is not None and self.domain is not None:
            detector = writer.detector(self.domain)
            detector.apply(self._plan)
            self.duplicates = self._plan.duplicates
            self.conflicts = self._plan.conflicts


class CheckpointRequest(Request):
    """A cut to commit."""

    def __init__(self, cut: Cut, done: Callable[[], None]) -> None:
        super().__init__(done)
        self.cut = cut
        self._plan: StatePlan | None = None

    def plan(self, writer: "Writer", group: Group) -> Write:
        """Place the changed state."""
        del group
        log = writer.state_log
        numbers = log.to_clean(len(self.cut.changes))
        cleaned = writer.store.read_state(numbers) if numbers else ()
        self._plan = log.plan(self.cut.changes, cleaned)
        commit = self.cut.commit
        return CheckpointCommit(
            number=commit.number,
            engine_time=commit.engine_time,
            digest=commit.digest,
            contexts=commit.contexts,
            senders=commit.senders,
            state=self._plan.segments,
            state_dropped=self._plan.dropped,
            outbound=commit.outbound,
            consumed=commit.consumed,
            dead_letters=commit.dead_letters,
            absolved=commit.absolved,
        )

    def apply(self, writer: "Writer") -> None:
        """Remember where the state lies."""
        assert self._plan is not None
        writer.state_log.apply(self._plan)


class PlainRequest(Request):
    """Something to write as it is.

    Args:
        write: what.
        done: called when it is committed.
    """

    def __init__(self, write: Write, done: Callable[[], None]) -> None:
        super().__init__(done)
        self._write = write

    def plan(self, writer: "Writer", group: Group) -> Write:
        """Nothing to plan."""
        del writer, group
        return self._write

    def apply(self, writer: "Writer") -> None:
        """Nothing to remember."""


class RegistryRequest(PlainRequest):
    """Endpoints to add or remove.

    Args:
        commit: what to write.
        done: called when it is committed.
    """

    def __init__(self, commit: RegistryCommit, done: Callable[[], None]) -> None:
        super().__init__(commit, done)
        self.registry = commit

    def apply(self, writer: "Writer") -> None:
        """Follow the receivers of each domain."""
        writer.note_receivers(self.registry.put)
        for part in self.registry.removed:
            writer.forget_receiver(part)


class Writer(Actor):
    """Commits requests. Any thread may `submit`; everything else is its own.

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
        self._waiting: deque[Request] = deque()
        self._failures = 0
        self._doubt_began: float | None = None
        self._full = False
        self._unknown: Sequence[Request] | None = None
        self._log = get_logger(part="store")

    def detector(self, domain: str) -> DuplicateDetector:
        """The duplicate detector of a domain, made when it does not exist."""
        detector = self.detectors.get(domain)
        if detector is None:
            windows = self._windows
            detector = DuplicateDetector(domain, windows.per_source_window_size, windows.expiry_time)
            self.detectors[domain] = detector
        return detector

    def note_receivers(self, endpoints: Iterable[Endpoint]) -> None:
        """These are in the registry now."""
        self._domains.update({endpoint.id: endpoint.domain for endpoint in endpoints if endpoint.domain})

    def forget_receiver(self, name: str) -> None:
        """It is in the registry no more: its domain ends with its last receiver, else nothing is held for it."""
        domain = self._domains.pop(name, None)
        if domain is None:
            return
        if domain not in self._domains.values():
            self.detectors.pop(domain, None)
        elif domain in self.detectors:
            detector = self.detectors[domain]
            detector.confirm(name, detector.last_batch(name))

    def submit(self, request: Request) -> None:
        """Have a request committed; its `done` is called afterwards, in this thread."""
        self._waiting.append(request)
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not self._waiting

    def step(self) -> float | None:
        """Commit all that waits in one transaction; while nothing does, see that the store is still this engine's."""
        if not self._waiting and self._unknown is None:
            return self._confirm_lock()
        try:
            committed = self._settle_unknown() or self._commit_waiting()
        except (StoreBusy, CommitUnknown) as error:
            return self._retry_later(error)
        self._failures, self._doubt_began = 0, None
        for request in committed:
            self._waiting.remove(request)  # nearly always the first
            request.committed = True
            request.done()
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

    def _commit_waiting(self) -> Sequence[Request]:
        requests = self._next()
        if not requests:
            return ()
        for request in requests:
            request.prepare(self)
        group = Group(self._engine_time())
        self._unknown = ()  # a connection lost while planning: look where the store stands, nothing was sent
        writes = [request.plan(self, group) for request in requests]
        self._unknown = requests
        try:
            self.store.commit(self._number + 1, writes)
        except StoreBusy:
            self._unknown = None
            raise
        return self._conclude(requests)

    def _next(self) -> Sequence[Request]:
        """What to commit together: all that waits, or on a full disk what makes room, as long as there is any."""
        requests = [self._waiting[at] for at in range(len(self._waiting))]
        others = [request for request in requests if not isinstance(request, ReceiveRequest)] if self._full else []
        self._full = bool(others)
        return others or requests

    def _settle_unknown(self) -> Sequence[Request]:
        """After a lost answer: the requests that were committed all the same (trap T1)."""
        if self._unknown is None:
            return ()
        requests = self._unknown
        if not self.store.resolve(self._number + 1):
            self._unknown = None
            return ()
        return self._conclude(requests)

    def _conclude(self, requests: Sequence[Request]) -> Sequence[Request]:
        self._unknown = None
        self._number += 1
        self.commits += 1
        for request in requests:
            request.apply(self)
        return requests
