"""The thread of a session that sends messages asynchronously and calls their completions."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from threading import Condition, Thread
from typing import NamedTuple

from connectors.messaging.failures import closed
from connectors.messaging.foreign import ForeignMessage
from connectors.messaging.owner import Owner
from correlator.errors import SendRejected
from correlator.events import Outgoing
from correlator.handlers import refuse_result

Completion = Callable[[ForeignMessage, Exception | None], object]
"""A function that a thread of the session calls with the object given to `Producer.send_async`, and with the error, or
`None` if the broker has confirmed the message."""

MOST_OUTSTANDING = 1000
"""How many messages of a session may wait for their completion; with more, the caller of `put` waits."""
_MOST_IN_BATCH = 100
"""Largest number of messages of one batch: the first message is completed together with the last one."""

_log = logging.getLogger("connectors.messaging")


class AsyncSend(NamedTuple):
    """A message that is sent asynchronously; `send` is the function of its producer that sends a batch."""

    send: Callable[[Sequence[Outgoing]], Sequence[SendRejected | None]]
    outgoing: Outgoing
    message: ForeignMessage
    on_completion: Completion


class Completions:
    """Sends the messages of a session's producers in order, and calls the completions in that order, one at a time.

    Every method may be called by any thread but its own. The thread begins with the first message and ends with the
    session. It is a daemon: if a process ends without closing the session, outstanding messages may be lost.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._changed = Condition()
        self._waiting: deque[AsyncSend] = deque()
        self._outstanding = 0
        self._ended = False

    def put(self, parcel: AsyncSend) -> None:
        """Send a message after all earlier ones; waits while `MOST_OUTSTANDING` messages are outstanding.

        Raises `UsageError` E7501 after `close`: the message gets no completion.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding < MOST_OUTSTANDING)
            if self._ended:
                raise closed("session")
            if self._owner.completing is None:
                thread = Thread(target=self._run, name="session completions", daemon=True)
                thread.start()  # the thread waits until the message is in the queue
                self._owner.completing = thread
            self._outstanding += 1
            self._waiting.append(parcel)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the completions of all messages have returned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outstanding)

    def close(self) -> None:
        """Wait as `flush`, then end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._owner.completing is not None:
            self._owner.completing.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                results: Sequence[SendRejected | None] = batch[0].send([parcel.outgoing for parcel in batch])
            except Exception as lost:  # noqa: BLE001  # after any error each message gets its completion
                # Later messages of this producer fail, too: otherwise they would arrive without the earlier ones.
                for parcel in [*batch, *self._take_those_behind(batch[0])]:
                    self._complete(parcel, lost)
            else:
                for parcel, rejected in zip(batch, results, strict=True):
                    self._complete(parcel, rejected)

    def _next_batch(self) -> list[AsyncSend]:
        """The oldest consecutive messages of one producer; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            first = self._waiting[0] if self._waiting else None
            batch = list(takewhile(lambda one: first is not None and one.send == first.send, self._waiting))
            batch = batch[:_MOST_IN_BATCH]
            for _ in batch:
                self._waiting.popleft()
            return batch

    def _take_those_behind(self, lost: AsyncSend) -> list[AsyncSend]:
        """Remove and return the waiting messages of the same producer."""
        with self._changed:
            behind = [parcel for parcel in self._waiting if parcel.send == lost.send]
            self._waiting = deque(parcel for parcel in self._waiting if parcel.send != lost.send)
            return behind

    def _complete(self, parcel: AsyncSend, error: Exception | None) -> None:
        try:
            refuse_result(parcel.on_completion(parcel.message, error), parcel.on_completion, "completion")
        except BaseException as failure:  # noqa: BLE001  # code of the application; later completions must follow
            _log.warning("A completion failed: %s", failure, exc_info=failure)
        with self._changed:
            self._outstanding -= 1
            self._changed.notify_all()
