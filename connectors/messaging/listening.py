"""The thread of a session that has listeners."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, RLock, Thread
from typing import Protocol

from connectors.messaging.link import Link
from connectors.messaging.owner import Owner
from correlator.errors import ConnectionLost
from correlator.events import Message

Listener = Callable[[Message], object]
"""A function that the listener thread of its session calls with each message. The session ignores its result, but a
coroutine or generator counts as a failure of the listener (E4117)."""

_LONGEST_WAIT_S = 1.0
"""Longest wait in seconds with a message service, which wakes the thread earlier."""
_RESTING_WAIT_S = 0.05
"""The longest wait in seconds while a consumer pauses after a failure."""
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 5.0

_log = logging.getLogger("connectors.messaging")


class Listened(Protocol):
    """The interface of a consumer for the thread of the listeners."""

    @property
    def where(self) -> str:
        """The name of the consumer in errors."""
        ...

    @property
    def listens(self) -> bool:
        """Whether it has a listener that may get further messages."""
        ...

    def give(self, timeout_s: float) -> bool:
        """Wait `timeout_s` for a message and pass it to the listener; returns whether one came.

        Raises exceptions of the listener, and `ConnectionLost`.
        """
        ...


class _Turn:
    """A consumer and its pause after a failure, which becomes longer with each failure."""

    def __init__(self, consumer: Listened, on_lost: Callable[[Exception], None]) -> None:
        self.consumer = consumer
        self._on_lost = on_lost
        self._pause_s = 0.0
        self._resting_until = 0.0

    @property
    def rests(self) -> bool:
        return time.monotonic() < self._resting_until

    def give(self, timeout_s: float) -> bool:
        try:
            found = self.consumer.give(timeout_s)
        except BaseException as error:  # noqa: BLE001  # the code of a listener may raise anything, even SystemExit
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._resting_until = time.monotonic() + self._pause_s
            _log.warning("%s, continues in %g s: %s", self.consumer.where, self._pause_s, error, exc_info=error)
            if isinstance(error, ConnectionLost):
                self._on_lost(error)
            return False
        if found:
            self._pause_s = 0.0
        return found


class Listening:
    """Passes messages to the listeners of a session, one at a time, while the connection is started.

    The thread asks the consumers in turn. It logs exceptions of listeners and lost connections; after each, that
    consumer has a pause, longer each time, at most 5 s. There is one thread from start to stop. It is a daemon: a
    process that ends without closing its sessions ends as if it had been killed.

    Args:
        owner: the owner of the session.
        link: lets the session wait for messages.
        on_lost: called with each `ConnectionLost`.
        started: whether the connection is started.
    """

    def __init__(self, owner: Owner, link: Link, on_lost: Callable[[Exception], None], *, started: bool) -> None:
        self.owner = owner
        self._link = link
        self._on_lost = on_lost
        self._is_started = started
        self._turns: list[_Turn] = []
        self._asked_to_stop = Event()
        self._lock = RLock()
        """Held while the thread is started or stopped; never by the thread itself, since others wait for its end."""

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the thread is to end as soon as it can."""
        return self._asked_to_stop.is_set()

    def add(self, consumer: Listened) -> None:
        """Add a consumer that has got a listener. Called by the owner of the session."""
        if all(turn.consumer is not consumer for turn in self._turns):
            self._turns.append(_Turn(consumer, self._on_lost))
        if not self.owner.is_listening:
            with self._lock:
                self._go_on()

    def start(self) -> None:
        """Begin to call listeners; has no effect if the thread runs."""
        if not self.owner.is_listening:
            with self._lock:
                self._is_started = True
                self._go_on()

    def ask_to_stop(self) -> None:
        """Ask the thread to end when the running listener has returned. Not called by threads of the session."""
        with self._lock:
            self._is_started = False
            self._asked_to_stop.set()
            self._link.wake()

    def stop(self) -> None:
        """Call no listener until the next `start`; returns when none runs. Not called by threads of the session."""
        with self._lock:
            self._is_started = False
            self._halt()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep listeners from running within the block, so that the caller may close what their thread uses.

        If another thread uses the session, its calls do not wait for room in a full destination meanwhile.
        """
        if self.owner.is_listening:
            yield
            return
        refusing = self._link.refusing_to_wait() if self.owner.is_another_thread else nullcontext()
        with refusing, self._lock:
            self._halt()
            try:
                yield
            finally:
                self._go_on()

    def _halt(self) -> None:
        self._asked_to_stop.set()
        self._link.wake()
        if self.owner.listening is not None:
            self.owner.listening.join()

    def _go_on(self) -> None:
        running = self.owner.listening is not None and self.owner.listening.is_alive()
        if not self._is_started or running or not any(turn.consumer.listens for turn in self._turns):
            return
        self._asked_to_stop = Event()
        self.owner.listening = Thread(target=self._run, name="session listeners", daemon=True)
        try:
            self.owner.listening.start()
        except RuntimeError:  # the system cannot start another thread
            self.owner.listening = None
            raise

    def _run(self) -> None:
        wait_s = 0.0
        while not self._asked_to_stop.is_set():
            self._turns = [turn for turn in self._turns if turn.consumer.listens]
            if not self._turns:
                return
            seen = self._link.look()
            found = [self._take(turn, wait_s) for turn in self._turns]
            wait_s = 0.0 if any(found) else self._link.slice_s / len(found)
            if not any(found) and not self._asked_to_stop.is_set():
                self._link.wait(seen, _RESTING_WAIT_S if any(turn.rests for turn in self._turns) else _LONGEST_WAIT_S)

    def _take(self, turn: _Turn, wait_s: float) -> bool:
        if turn.rests:
            self._asked_to_stop.wait(wait_s)
        elif turn.consumer.listens and not self._asked_to_stop.is_set():
            return turn.give(wait_s)
        return False
