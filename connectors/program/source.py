"""A source of messages that the program itself publishes: a bounded queue, and a future for each message."""

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from correlator.connector import NOTHING, Backlog, Chunk, Held
from correlator.errors import ConnectionLost, NotDone
from correlator.events import Message


class _Offered(NamedTuple):
    number: int
    message: Message
    done: "Future[None]"


class ProgramSource:
    """Delivers what `offer` has taken, in order; see `connector.Source` and `connector.TakesFromProgram`.

    The thread of the receiver calls the methods of a source; any thread calls `offer` and `wait_for_room`.

    Args:
        where: name of the receiver for errors.
        max_waiting: largest number of messages that wait until the receiver takes them.
        max_held: largest number of messages that are taken and not acknowledged.
        max_bytes: number of bytes of bodies after which a chunk ends.
    """

    def __init__(self, where: str, max_waiting: int, max_held: int, max_bytes: int) -> None:
        self._where = where
        self._max_waiting = max_waiting
        self._max_held = max_held
        self._max_bytes = max_bytes
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._waiting: deque[_Offered] = deque()
        self._held: Held[_Offered] = Held()
        self._connected = False
        self._closed = False

    def offer(self, message: Message) -> "Future[None] | None":
        """Take a message of the program; see `connector.TakesFromProgram`."""
        with self._changed:
            if self._closed:
                raise self._stopped("it did not take the message")
            if len(self._waiting) >= self._max_waiting:
                return None
            offered = _Offered(next(self._numbers), message, Future())
            offered.done.set_running_or_notify_cancel()  # cancelling the future must not withdraw the message
            self._waiting.append(offered)
            self._changed.notify_all()
            return offered.done

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until `offer` may take a message; see `connector.TakesFromProgram`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._max_waiting, timeout_s)

    def connect(self) -> None:
        """Begin to deliver messages; first redeliver those that were taken and not acknowledged."""
        with self._changed:
            self._take_back(list(self._held))
            self._held.clear()
            self._connected = True

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take messages that wait; see `connector.Source`."""
        with self._changed:
            self._check()
            room = min(max_messages, self._max_held - len(self._held))
            if room < 1 or not self._changed.wait_for(lambda: self._waiting or self._closed, timeout_s):
                return NOTHING
            taken: list[_Offered] = []
            size = 0
            while self._waiting and len(taken) < room and size < self._max_bytes:
                taken.append(self._waiting.popleft())
                size += len(taken[-1].message.body)
            self._changed.notify_all()
            return Chunk([one.message for one in taken], self._held.hold(taken))

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Tell the program that these messages are stored."""
        with self._changed:
            self._check()
            done = self._held.release(tokens)
        for one in done:
            one.done.set_result(None)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these messages back: they are redelivered before all others."""
        with self._changed:
            self._check()
            self._take_back(self._held.release(tokens))

    def backlog(self) -> Backlog:
        """Return how many messages wait."""
        with self._changed:
            return Backlog(len(self._waiting))

    def close(self) -> None:
        """Tell the program for each unacknowledged message that it must publish the message again."""
        with self._changed:
            self._closed, self._connected = True, False
            held, waiting = list(self._held), list(self._waiting)
            self._held.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for one in waiting:
            one.done.set_exception(self._stopped("it did not take the message"))
        for one in held:
            one.done.set_exception(self._stopped("it may have stored the message or not"))

    def _take_back(self, some: list[_Offered]) -> None:
        self._waiting = deque(sorted([*some, *self._waiting]))  # by number

    def _check(self) -> None:
        if not self._connected:
            raise ConnectionLost("E7055", self._where, "does not take messages now")

    def _stopped(self, what: str) -> NotDone:
        todo = "Publish it again, with the same id, when the engine has the receiver again"
        return NotDone("E8315", self._where, f"the receiver has ended, and {what}", "", todo)
