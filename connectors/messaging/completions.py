"""The thread of a session that sends without being waited for."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from threading import Condition, Thread
from typing import NamedTuple

from connectors.messaging.foreign import ForeignMessage
from connectors.messaging.owner import Owner
from correlator.errors import SendRejected
from correlator.events import Outgoing
from correlator.handlers import refuse_result

Completion = Callable[[ForeignMessage, Exception | None], object]
"""What is called with a message that `Producer.send_async` was given, and what went wrong with it."""

MOST_OUTSTANDING = 1000
"""Messages of a session that may be without a completion; for one more the caller waits."""
_MOST_IN_BATCH = 100
"""So many go at once: the first of them is completed together with the last."""

_log = logging.getLogger("connectors.messaging")


class AsyncSend(NamedTuple):
    """A message under way; `send` is its producer's, and sends several."""

    send: Callable[[Sequence[Outgoing]], Sequence[SendRejected | None]]
    outgoing: Outgoing
    message: ForeignMessage
    on_completion: Completion


class Completions:
    """Sends the messages of a session's producers in order, and calls the completions in that order, one at a time.

    `put`, `flush` and `close` are called by the owner of the session. The thread is started by the first message and
    ends with the session; it is a daemon: what is outstanding when a process ends without closing may be lost.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._changed = Condition()
        self._waiting: deque[AsyncSend] = deque()
        self._outstanding = 0
        self._ended = False

    def put(self, parcel: AsyncSend) -> None:
        """Send this after all that was put before; waits while as many are outstanding as may be."""
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding < MOST_OUTSTANDING)
            self._outstanding += 1
            self._waiting.append(parcel)
            self._changed.notify_all()
        if self._owner.completing is None:
            self._owner.completing = Thread(target=self._run, name="session completions", daemon=True)
            self._owner.completing.start()

    def flush(self) -> None:
        """Wait until everything is completed, and the completions have returned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outstanding)

    def close(self) -> None:
        """As `flush`; then the thread has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._owner.completing is not None:
            self._owner.completing.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                results: Sequence[SendRejected | None] = batch[0].send([parcel.outgoing for parcel in batch])
            except Exception as lost:  # noqa: BLE001  # `ConnectionLost`; and whatever it is, each has its completion
                # Those behind it are lost with it: sent all the same, they would arrive without those before them.
                for parcel in [*batch, *self._take_those_behind(batch[0])]:
                    self._complete(parcel, lost)
            else:
                for parcel, rejected in zip(batch, results, strict=True):
                    self._complete(parcel, rejected)

    def _next_batch(self) -> list[AsyncSend]:
        """The oldest messages of one producer that stand in a row; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            first = self._waiting[0] if self._waiting else None
            batch = list(takewhile(lambda one: first is not None and one.send == first.send, self._waiting))
            batch = batch[:_MOST_IN_BATCH]
            for _ in batch:
                self._waiting.popleft()
            return batch

    def _take_those_behind(self, lost: AsyncSend) -> list[AsyncSend]:
        """All others of its producer that wait."""
        with self._changed:
            behind = [parcel for parcel in self._waiting if parcel.send == lost.send]
            self._waiting = deque(parcel for parcel in self._waiting if parcel.send != lost.send)
            return behind

    def _complete(self, parcel: AsyncSend, error: Exception | None) -> None:
        try:
            refuse_result(parcel.on_completion(parcel.message, error), parcel.on_completion, "completion")
        except BaseException as failure:  # noqa: BLE001  # code of others; whoever flushes waits for those behind it
            _log.warning("A completion failed: %s", failure, exc_info=failure)
        with self._changed:
            self._outstanding -= 1
            self._changed.notify_all()
