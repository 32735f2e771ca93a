"""The store writer: the only thread that uses the store, the duplicate detectors and the state log.

Requests that wait at the same time share one transaction and one fsync (group commit). The writer plans each request,
commits the transaction, applies each plan to memory, and passes each result to the thread that has submitted the
request: nothing in memory changes before its commit (invariant E6). Requests, plans and results are values.

While the disk is full, received batches wait until all other requests are committed: a checkpoint deletes confirmed
sends, and so makes room (trap T67).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from correlator.core.backoff import Backoff
from correlator.core.commit import CheckpointCommit, ReceiveCommit, Write
from correlator.core.domains import Domains
from correlator.core.statelog import StateLog
from correlator.errors import CommitUnknown, StoreBusy, StoreError
from correlator.ports import Store
from correlator.runtime.actor import Actor
from correlator.runtime.intervals import STABLE_S, LogIntervals
from correlator.runtime.logs import get_logger
from correlator.runtime.requests import Planned, PlannedTransaction, ReceiveRequest, Request
from correlator.settings import DuplicateDetectionSettings

R = TypeVar("R")
RETRYING = Backoff(0.02, 2.0)
FIRST_SILENCE_S = 1.0
"""Seconds between the first two log lines about a store that accepts no transaction."""
LONGEST_DOUBT_S = 60.0
"""Seconds for which the writer looks up a commit whose answer was lost, before it stops the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class _Submitted(Generic[R]):
    """A request that waits, and the function that gets its result."""

    request: Request[R]
    done: Callable[[R], None]


class _InTransaction(NamedTuple):
    """A request in a transaction that was sent to the store, with its plan."""

    submitted: _Submitted[Any]
    planned: Planned[Any]


class Writer(Actor):
    """Commits requests. Any thread may call `submit`; only this thread uses the rest.

    Args:
        store: the store, after `read`; `take_over` follows before the first commit.
        number: number of the last committed transaction.
        engine_time: returns engine time, the time of receipt of ids.
        windows: the windows of all duplicate detectors.
        letters_stored: called after each commit of dead letters.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        engine_time: Callable[[], float],
        windows: DuplicateDetectionSettings,
        letters_stored: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("store-writer")
        self.store = store
        self.domains = Domains(windows.per_source_window_size, windows.expiry_time)
        self.state_log = StateLog()
        self.commits = 0
        self._number = number
        self._engine_time = engine_time
        self._letters_stored = letters_stored
        self._waiting: deque[_Submitted[Any]] = deque()
        self._failures = 0
        self._failing_since = 0.0
        self._worked_since = 0.0
        self._intervals = LogIntervals(FIRST_SILENCE_S)
        self._told = False
        self._doubt_began: float | None = None
        self._full = False
        self._unknown: Sequence[_InTransaction] | None = None
        self._log = get_logger(part="store")

    def submit(self, request: Request[R], done: Callable[[R], None]) -> None:
        """Let the writer commit a request, and return at once. Any thread may call it.

        Args:
            request: what to commit.
            done: called in the writer's thread with the result, once the request is committed.
        """
        self._waiting.append(_Submitted(request, done))
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether no request waits to be committed."""
        return not self._waiting

    @property
    def failing(self) -> bool:
        """Whether the last transaction has failed, and is tried again. Any thread may read it."""
        return self._failures > 0

    def step(self) -> float | None:
        """Commit all waiting requests in one transaction; if none waits, check the lock of the store if that is due."""
        if not self._waiting and self._unknown is None:
            return self._confirm_lock()
        try:
            committed = self._settle_unknown() or self._commit_waiting()
        except (StoreBusy, CommitUnknown) as error:
            return self._retry_later(error)
        if self._failures:
            self._note_end_of_outage()
        self._doubt_began = None
        for submitted, planned in committed:
            self._waiting.remove(submitted)  # nearly always the first
            submitted.done(planned.result)
        return 0

    def _retry_later(self, error: StoreError) -> float:
        now = self._engine_time()
        if not self._failures:
            self._failing_since = now
            if now - self._worked_since >= STABLE_S:
                self._intervals.begin_anew()
        self._failures += 1
        self._full = error.code == "E3101"
        delay = RETRYING.delay(self._failures, 0.0)
        if isinstance(error, CommitUnknown):
            self._doubt_began = now if self._doubt_began is None else self._doubt_began
            if now - self._doubt_began > LONGEST_DOUBT_S:
                raise error
        elif self._unknown is None:  # certainly rolled back: no commit is in doubt any more
            self._doubt_began = None
        if self._intervals.due(now):
            self._told = True
            self._log.warning(
                "the store cannot take a transaction now; trying again",
                error=error,
                delay_s=delay,
                away_s=round(now - self._failing_since, 3),
            )
        return delay

    def _note_end_of_outage(self) -> None:
        self._worked_since = self._engine_time()
        if self._told:
            away = round(self._worked_since - self._failing_since, 3)
            self._log.warning("the store takes transactions again", away_s=away, tries=self._failures)
        self._failures, self._told = 0, False

    def _confirm_lock(self) -> float | None:
        try:
            wait = self.store.confirm_lock()
        except (StoreBusy, CommitUnknown) as error:
            self._unknown = () if isinstance(error, CommitUnknown) else None
            return self._retry_later(error)
        if self._failures:
            self._note_end_of_outage()
        return wait

    def finish(self) -> None:
        """Close the store, which gives up its lock; called once in this thread, after its last step."""
        self.store.close()

    def _commit_waiting(self) -> Sequence[_InTransaction]:
        waiting = self._next()
        if not waiting:
            return ()
        for one in waiting:
            one.request.prepare(self.domains)
        group = PlannedTransaction(self._engine_time(), self.domains, self.state_log, self.store)
        try:
            self._unknown = ()  # nothing is sent yet: if planning loses the connection, `resolve` concludes no request
            planned = [_InTransaction(one, one.request.plan(group)) for one in waiting]
            self._unknown = planned
            self.store.commit(self._number + 1, [one.planned.write for one in planned])
        except StoreBusy:
            self._unknown = None
            raise
        return self._conclude(planned)

    def _next(self) -> Sequence[_Submitted[Any]]:
        """The requests of the next transaction: all requests; while the disk is full, only the requests that may make
        room, if there are any.
        """
        waiting = [self._waiting[at] for at in range(len(self._waiting))]
        others = [one for one in waiting if not isinstance(one.request, ReceiveRequest)] if self._full else []
        self._full = bool(others)
        return others or waiting

    def _settle_unknown(self) -> Sequence[_InTransaction]:
        """Look up a commit whose answer was lost. Return its requests if it was committed after all (trap T1)."""
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
        if any(_has_letters(one.planned.write) for one in requests):
            self._letters_stored()
        return requests


def _has_letters(write: Write) -> bool:
    return isinstance(write, ReceiveCommit | CheckpointCommit) and bool(write.dead_letters)
