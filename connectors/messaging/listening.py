"""The thread of a session that has listeners."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread
from typing import Protocol

from connectors.messaging.owner import Owner
from correlator.events import Message

Listener = Callable[[Message], object]
"""What is called with each message, by the thread of its session; what it returns is ignored, but for a coroutine."""

_LONGEST_WAIT_S = 0.05
"""For a message, before looking at whether to stop: no source can be woken."""
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 5.0

_log = logging.getLogger("connectors.messaging")


class Listened(Protocol):
    """A consumer as the thread sees it."""

    @property
    def where(self) -> str:
        """How messages of errors call it."""
        ...

    @property
    def listens(self) -> bool:
        """Whether it has a listener that may still get something."""
        ...

    def give(self, timeout_s: float) -> bool:
        """Give its listener at most one message, waiting so long for it; whether any came.

        Raises what went wrong, in the listener or at the broker.
        """
        ...


class _Turn:
    """A consumer and its pause: after a failure it is left alone for a while, longer each time."""

    def __init__(self, consumer: Listened) -> None:
        self.consumer = consumer
        self._pause_s = 0.0
        self._resting_until = 0.0

    @property
    def rests(self) -> bool:
        return time.monotonic() < self._resting_until

    def give(self, timeout_s: float) -> bool:
        try:
            found = self.consumer.give(timeout_s)
        except Exception as error:  # noqa: BLE001  # the code of a listener may raise anything
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._resting_until = time.monotonic() + self._pause_s
            _log.warning("%s, goes on in %g s: %s", self.consumer.where, self._pause_s, error, exc_info=error)
            return False
        if found:
            self._pause_s = 0.0
        return found


class Listening:
    """Gives a session's listeners their messages, one at a time, while the connection is started.

    It asks the consumers in turn. What a listener raises, and what is lost, is logged; then that consumer has a pause,
    longer each time, at most 5 s. There is one thread from start to stop, a daemon: a process that ends without
    closing its sessions ends as if it had been killed.

    Args:
        owner: of the session.
        started: whether the connection is.
    """

    def __init__(self, owner: Owner, *, started: bool) -> None:
        self.owner = owner
        self._is_started = started
        self._turns: list[_Turn] = []
        self._asked_to_stop = Event()
        self._lock = RLock()
        """Held by whoever starts the thread or asks it to stop; never by the thread itself, which others wait for."""

    def add(self, consumer: Listened) -> None:
        """A consumer that has a listener now. Called by the owner of the session."""
        if all(turn.consumer is not consumer for turn in self._turns):
            self._turns.append(_Turn(consumer))
        if not self.owner.is_listening:
            with self._lock:
                self._go_on()

    def start(self) -> None:
        """Begin to call listeners; without effect when it has begun."""
        if not self.owner.is_listening:
            with self._lock:
                self._is_started = True
                self._go_on()

    def ask_to_stop(self) -> None:
        """Call no listener any more once the one that is running has returned. Called by no thread of the session."""
        with self._lock:
            self._is_started = False
            self._asked_to_stop.set()

    def wait(self) -> None:
        """Until no listener runs, after `ask_to_stop`."""
        if self.owner.listening is not None:
            self.owner.listening.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No listener of another thread runs meanwhile, and the caller may use what the thread uses."""
        if self.owner.is_listening:
            yield
            return
        with self._lock:
            self._asked_to_stop.set()
            self.wait()
            yield
            self._go_on()

    def _go_on(self) -> None:
        running = self.owner.listening is not None and self.owner.listening.is_alive()
        if not self._is_started or running or not any(turn.consumer.listens for turn in self._turns):
            return
        self._asked_to_stop = Event()
        self.owner.listening = Thread(target=self._run, name="session listeners", daemon=True)
        self.owner.listening.start()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._asked_to_stop.is_set():
            self._turns = [turn for turn in self._turns if turn.consumer.listens]
            if not self._turns:
                return
            found = [self._take(turn, wait_s) for turn in self._turns]
            wait_s = 0.0 if any(found) else _LONGEST_WAIT_S / len(found)

    def _take(self, turn: _Turn, wait_s: float) -> bool:
        if turn.rests:
            self._asked_to_stop.wait(wait_s)
        elif turn.consumer.listens and not self._asked_to_stop.is_set():
            return turn.give(wait_s)
        return False
