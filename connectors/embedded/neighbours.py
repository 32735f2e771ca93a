"""What the threads of this process share about one broker, so that they neither collide nor poll for each other."""

import os
import threading
from weakref import WeakValueDictionary

from correlator.processes import not_forking


class Neighbours:
    """What the threads of this process share about one broker: the gate, and a bell that rings when messages come."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self._bell = threading.Condition()
        self._rung = 0

    def ring(self) -> None:
        """Wake everybody who waits for messages."""
        with self._bell:
            self._rung += 1
            self._bell.notify_all()

    def rung(self) -> int:
        """How often it has rung: to be read before looking for messages."""
        return self._rung

    def wait(self, rung: int, timeout_s: float) -> bool:
        """Wait until it has rung more often than `rung`; whether it did in time."""
        with self._bell:
            return self._bell.wait_for(lambda: self._rung != rung, timeout_s)


_neighbours: "WeakValueDictionary[tuple[int, str], Neighbours]" = WeakValueDictionary()
_neighbours_lock = threading.Lock()


def neighbours(store: str) -> Neighbours:
    """The one object of this process for the broker; a forked child has its own, since its parent's may be locked."""
    key = os.getpid(), store
    with not_forking(), _neighbours_lock:
        found = _neighbours.get(key)
        if found is None:
            found = _neighbours[key] = Neighbours()
        return found
