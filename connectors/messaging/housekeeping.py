"""The thread of a connection that settles what idle sessions leave unsettled, and calls the exception listener."""

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread, current_thread

from connectors.messaging.holdings import Holdings
from connectors.messaging.link import Link
from correlator.handlers import refuse_result

ExceptionListener = Callable[[Exception], object]
"""A function that a thread of the connection calls with each error that no call of the program can raise."""
_TICK_S = 0.25
_MOST_REPORTS = 100

_log = logging.getLogger("connectors.messaging")


class Housekeeping:
    """Looks after the sessions of one connection. Any thread may call its methods.

    The thread begins when there is something to look after, sleeps while there is nothing, and ends with the
    connection. It is a daemon.
    """

    def __init__(self) -> None:
        self.listener: ExceptionListener | None = None
        self._changed = Condition()
        self._sessions: dict[Holdings, Link] = {}
        self._reports: deque[Exception] = deque(maxlen=_MOST_REPORTS)
        self._is_busy = False
        self._ended = False
        self._thread: Thread | None = None

    def add(self, holdings: Holdings, link: Link) -> None:
        """Look after a session from now on."""
        with self._changed:
            self._sessions[holdings] = link

    def remove(self, holdings: Holdings) -> None:
        """Look after a session no longer."""
        with self._changed:
            self._sessions.pop(holdings, None)

    def watch(self, holdings: Holdings) -> None:
        """Look after a session that may have something to settle. Called by the thread that uses the session."""
        if holdings.is_idle_work:
            with self._changed:
                if not self._is_busy:  # otherwise the thread checks at its next tick
                    self._is_busy = self._go_on()

    def report(self, error: Exception) -> None:
        """Call the exception listener, if there is one, from the thread. At most 100 errors wait for it."""
        with self._changed:
            if self.listener is not None:
                self._reports.append(error)
                self._go_on()

    def close(self) -> None:
        """End the thread; waits for the exception listener unless it makes the call."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _go_on(self) -> bool:
        """Wake the thread, or start it; return `False` if it cannot be started.

        It does not raise then, since the caller may have a message that must not be lost.
        """
        if self._thread is None and not self._ended:
            thread = Thread(target=self._run, name="session housekeeping", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                _log.warning("Messages of idle sessions are not settled at present: %s", error)
                return False
            self._thread = thread
        self._changed.notify_all()
        return True

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                if not self._is_busy:
                    self._changed.wait_for(lambda: self._ended or self._reports or self._is_busy)
                if not self._reports and not self._ended:
                    self._changed.wait(_TICK_S)
                reports = list(self._reports)
                self._reports.clear()
                sessions = list(self._sessions.items())
            for error in reports:
                self._tell(error)
            for holdings, link in sessions:
                self._tidy(holdings, link)
            with self._changed:
                self._is_busy = any(holdings.is_idle_work for holdings in self._sessions)

    def _tell(self, error: Exception) -> None:
        listener = self.listener
        if listener is None:
            return
        try:
            refuse_result(listener(error), listener, "exception listener")
        except BaseException as failure:  # noqa: BLE001  # code of the application; later errors must still be reported
            _log.warning("An exception listener failed: %s", failure, exc_info=failure)

    def _tidy(self, holdings: Holdings, link: Link) -> None:
        if not link.lock.acquire(blocking=False):
            return  # the lock is held: a call is under way, so the session is not idle
        try:
            holdings.tidy(time.monotonic())
        except Exception as error:  # noqa: BLE001  # an error of one connector must not affect other sessions
            _log.warning("Housekeeping failed: %s", error, exc_info=error)
        finally:
            link.lock.release()
