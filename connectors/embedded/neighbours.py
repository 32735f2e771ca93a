"""Objects that the threads of a process share for one broker: they wake each other, and take turns in writing."""

import os
import threading
from weakref import WeakValueDictionary

from correlator.processes import not_forking


class Neighbours:
    """The gate of the writers of this process, and a bell that rings when messages come."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self._bell = threading.Condition()
        self._rung = 0

    def ring(self) -> None:
        """Wake all threads that wait for messages."""
        with self._bell:
            self._rung += 1
            self._bell.notify_all()

    def rung(self) -> int:
        """How often the bell has rung; to be read before looking for messages."""
        return self._rung

    def wait(self, rung: int, timeout_s: float) -> bool:
        """Wait until the bell has rung more often than `rung`; false if it does not within `timeout_s`."""
        with self._bell:
            return self._bell.wait_for(lambda: self._rung != rung, timeout_s)


_neighbours: "WeakValueDictionary[tuple[int, str], Neighbours]" = WeakValueDictionary()
_neighbours_lock = threading.Lock()


def neighbours(store: str) -> Neighbours:
    """The object of this process for a broker. A forked child has its own, since its parent's may be locked."""
    key = os.getpid(), store
    with not_forking(), _neighbours_lock:
        found = _neighbours.get(key)
        if found is None:
            found = _neighbours[key] = Neighbours()
        return found
