"""How the thread of a session waits for messages and for room, and how another thread ends these waits."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

from correlator.connector import ServiceSession

_LONGEST_WAIT_S = 3600.0
"""The longest wait of one call; the operating system limits it."""


class Link:
    """How a session reaches its broker: over one link to a message service, otherwise over one for each source and
    sink.

    Attributes:
        service: the part of the session in a message service; `None` for other brokers.
        lock: held while a thread uses the sources of the session, and with a message service also its sinks.
        slice_s: the longest wait of one call of a source. The sources of a message service do not wait: `wait` does.
        stops: the number of calls of `stop`, each of which ends all waits for messages.
    """

    def __init__(self, service: ServiceSession | None) -> None:
        self.service = service
        self.lock = RLock()
        self.slice_s = 0.05 if service is None else 0.0
        self.stops = 0
        self._turn = Lock()
        self._refusals = 0
        """Number of callers that have asked that no call waits for room."""

    def look(self) -> int:
        """Return the first argument of `wait`. Call it before asking the sources, so that no message is missed."""
        return 0 if self.service is None else self.service.look()

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until messages may have come since `look`, or until `wake`. Without a message service, return at once.

        The caller does not hold the lock.
        """
        if self.service is not None:
            self.service.wait(seen, min(timeout_s, _LONGEST_WAIT_S))

    def stop(self) -> None:
        """End all waits for messages, within 50 ms without a message service. Any thread may call it."""
        self.stops += 1
        self.wake()

    def refuse_to_wait(self) -> None:
        """Let no call wait for room in a full destination from now on. Any thread may call it."""
        with self._turn:
            self._refusals += 1
            if self.service is not None:
                self.service.refuse_to_wait()

    @contextmanager
    def refusing_to_wait(self) -> Iterator[None]:
        """Let no call wait for room in a full destination within the block. Any thread may call it."""
        self.refuse_to_wait()
        try:
            yield
        finally:
            with self._turn:
                self._refusals -= 1
                if self.service is not None and not self._refusals:
                    self.service.allow_to_wait()

    def wake(self) -> None:
        """Let a waiting thread check whether its wait was ended. Any thread may call it."""
        if self.service is not None:
            self.service.wake()
