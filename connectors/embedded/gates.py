"""The gate of a SQLite file: threads and processes write one after another."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from connectors.embedded.grouping import Group
from correlator.processes import LockFile, not_forking

TIMEOUT_S = 10.0
"""Seconds for which a link waits for its turn."""


class Gate:
    """The gate for the threads of this process.

    Attributes:
        lock: the lock; the thread that holds it may write.
        group: lets the threads that wait for the gate share a transaction.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group = Group()


class Turn:
    """The turn of one link to write: it locks the gate among threads, and a file among processes.

    Entering the turn raises `TimeoutError` after `TIMEOUT_S`. One thread at a time uses the object.

    Args:
        gate: the gate that all links of this process to the database share.
        file: a file that all processes lock, opened by this link.
    """

    def __init__(self, gate: Gate, file: LockFile) -> None:
        self._gate = gate
        self._file = file
        self._is_kept = False

    def __enter__(self) -> None:
        if self._is_kept:
            return
        deadline = time.monotonic() + TIMEOUT_S
        if not self._gate.lock.acquire(timeout=TIMEOUT_S):
            raise _overdue()
        locked = False
        try:
            locked = self._file.try_lock(deadline - time.monotonic())
        finally:
            if not locked:  # `locked` may be outdated: an interrupt can come just after the lock
                self.__exit__()
        if not locked:
            raise _overdue()

    def __exit__(self, *_: object) -> None:
        if self._is_kept:
            return
        try:
            self._file.unlock()
        finally:
            self._gate.lock.release()

    @contextmanager
    def over_transactions(self) -> Iterator[None]:
        """Keep the turn while the block runs several transactions."""
        with self:
            self._is_kept = True
            try:
                yield
            finally:
                self._is_kept = False


def _overdue() -> TimeoutError:
    return TimeoutError(f"no turn to write within {TIMEOUT_S:g} s")


_gates: "WeakValueDictionary[tuple[int, str], Gate]" = WeakValueDictionary()
_gates_lock = threading.Lock()


def gate(store: str) -> Gate:
    """Return the gate of this process for a broker. A forked child gets a new one: its parent's gate may be locked."""
    key = os.getpid(), store
    with not_forking(), _gates_lock:
        found = _gates.get(key)
        if found is None:
            found = _gates[key] = Gate()
        return found
