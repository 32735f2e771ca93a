"""What ends an engine: the first failure of a thread, or a request to stop."""

import threading

from correlator.core.instances import OnError
from correlator.errors import CorrelatorError, HandlerFailed
from correlator.runtime.logs import get_logger


class Supervisor:
    """Records what ends the engine, and wakes the threads that wait for a change. Any thread may use it.

    The supervisor is made before all parts of the engine, since they report to its methods.

    Args:
        name: name of the engine.

    Attributes:
        failure: the first error that ended a thread; `None` while there is none.
        handler_failures: number of events that were left out because a handler failed on them.
        handler_skips: how many of these events were dropped, and are no dead letters.
        changed: notified when a part has made progress, was removed, or has failed.
        stop_asked: set as soon as the engine must stop.
    """

    def __init__(self, name: str) -> None:
        self.failure: BaseException | None = None
        self.handler_failures = 0
        self.handler_skips = 0
        self.changed = threading.Condition()
        self.stop_asked = threading.Event()
        self._name = name
        self._log = get_logger(engine=name)

    def notify(self) -> None:
        """Wake the threads that wait for a change."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Wait until `changed` is notified, at most `timeout` seconds."""
        with self.changed:
            self.changed.wait(timeout)

    def request_stop(self) -> None:
        """Set `stop_asked`, and wake the thread that waits for the end of the engine. Returns at once."""
        self.stop_asked.set()
        self.notify()

    def fail(self, error: BaseException) -> bool:
        """Note the error that has ended a thread; return whether it is the first failure."""
        with self.changed:
            first = self.failure is None
            if first:
                self.failure = error
        return first

    def raise_failure(self) -> None:
        """Raise the failure, if there is one.

        An error that would end the process without a message, such as `SystemExit`, becomes `HandlerFailed` E5500.
        """
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            raise self.ended_by("a thread", self.failure) from self.failure

    def ended_by(self, what: str, error: BaseException) -> HandlerFailed:
        """Return the `HandlerFailed` E5500 for an error that would end the process without a message.

        Args:
            what: the thing that the error has ended, such as a thread.
            error: the error, such as the `SystemExit` that `sys.exit` in a handler raises.
        """
        text = f"{what} was ended by {type(error).__name__}: {error}"
        return HandlerFailed("E5500", f"engine {self._name}", text)

    def handler_failed(self, policy: OnError, error: CorrelatorError, about: str) -> None:
        """Count and log a failure of a handler that does not end the engine."""
        self.handler_failures += 1
        self.handler_skips += policy == "skip"
        self._log.error(
            "a handler failed; the engine goes on without its effects", policy=policy, error=error, event_of=about
        )
