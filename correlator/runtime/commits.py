"""Lets the store writer commit a request, and waits until that is durable."""

import threading
from collections.abc import Callable

from correlator.errors import StoreError
from correlator.runtime.clock import Clock
from correlator.runtime.life import Life
from correlator.runtime.requests import Request
from correlator.runtime.supervisor import Supervisor
from correlator.runtime.writer import Writer

COMMIT_PATIENCE_S = 60.0
"""Seconds that a caller waits until the store has confirmed a change."""
_LOOK_S = 0.2
"""Seconds between two looks whether the engine fails meanwhile."""


class Commits:
    """Commits requests for threads that wait. Any thread may use it, except that of the writer.

    Args:
        life: the life of the engine: before its threads run, the calling thread does the work of the writer.
        supervisor: knows whether the engine has failed or is to stop.
        clock: monotonic seconds.
        writer: returns the writer; `None` without a store, so that nothing is committed.
    """

    def __init__(self, life: Life, supervisor: Supervisor, clock: Clock, writer: Callable[[], Writer | None]) -> None:
        self._life = life
        self._supervisor = supervisor
        self._clock = clock
        self._writer = writer

    def commit(self, request: Request[None]) -> None:
        """Commit a request, and return when it is durable.

        Raises `StoreError` E3110 if the store has not confirmed it within `COMMIT_PATIENCE_S`, or before the engine
        stopped; the failure of the engine if there is one.
        """
        writer = self._writer()
        if writer is None:
            return
        committed = threading.Event()
        writer.submit(request, lambda _: committed.set())
        if not self._life.threads_running:
            self.commit_waiting()
            return
        deadline = self._clock.monotonic() + COMMIT_PATIENCE_S
        while not committed.wait(_LOOK_S):
            self._life.refuse_child()
            self._supervisor.raise_failure()
            if writer.stopping or self._clock.monotonic() > deadline:
                raise _unconfirmed()

    def commit_waiting(self) -> None:
        """Commit all requests that wait, in the calling thread, before the threads run. Raises `StoreError` E3110."""
        writer = self._writer()
        while writer is not None and not writer.idle:
            delay = writer.step()
            if delay and self._supervisor.stop_asked.wait(delay):
                raise _unconfirmed()


def _unconfirmed() -> StoreError:
    what = (
        f"has not confirmed a change within {COMMIT_PATIENCE_S:g} s, or before the engine stopped; it may be committed"
    )
    return StoreError("E3110", "store", what, "", "The next start reads whether it is")
