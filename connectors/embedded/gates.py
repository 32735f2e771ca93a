"""The gate of a SQLite file among the threads of a process: they take turns in writing."""

import os
import threading
from weakref import WeakValueDictionary

from connectors.embedded.grouping import Group
from correlator.processes import not_forking


class Gate:
    """A lock that threads share. It can be referred to weakly, as a bare lock cannot.

    Attributes:
        group: those of the threads whose writes may share a transaction.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.group = Group()

    def acquire(self, timeout_s: float) -> bool:
        """Take the turn; false if it does not come within `timeout_s`."""
        return self._lock.acquire(timeout=timeout_s)

    def release(self) -> None:
        """Let another thread have its turn."""
        self._lock.release()


_gates: "WeakValueDictionary[tuple[int, str], Gate]" = WeakValueDictionary()
_gates_lock = threading.Lock()


def gate(store: str) -> Gate:
    """The gate of this process for a broker. A forked child has its own, since its parent's may be locked."""
    key = os.getpid(), store
    with not_forking(), _gates_lock:
        found = _gates.get(key)
        if found is None:
            found = _gates[key] = Gate()
        return found
