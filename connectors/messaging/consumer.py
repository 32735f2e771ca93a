"""A consumer: the messages of one destination, asked for one by one or given to a listener."""

import copy
import time
from contextlib import suppress
from typing import Any

from connectors.messaging.deliveries import AcknowledgeMode, Delivery, ReconnectingSource, Unacknowledged
from connectors.messaging.failures import closed
from connectors.messaging.listening import Listener, Listening
from connectors.messaging.origin import read
from connectors.messaging.wanted import is_wanted
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message
from correlator.handlers import refuse_deferred, refuse_result
from correlator.selector import Selector

_LONGEST_WAIT_S = 3600.0
"""Of one call of a source; the operating system knows no endless ones."""


class Consumer:
    """Receives from one destination. Made by `Session.create_consumer`; used by the thread that owns its session.

    Args:
        where: how messages of errors call it.
        intake: where messages come from, connected.
        unacknowledged: of its session.
        mode: of its session.
        wanted: what is received of a topic; `None` for everything. Of a queue the broker selects.
        unwanted_origin: the id of a connection whose messages are not received; `None` where all are.
        listening: of its session.
    """

    def __init__(
        self,
        where: str,
        intake: ReconnectingSource,
        unacknowledged: Unacknowledged,
        mode: AcknowledgeMode,
        wanted: Selector | None,
        unwanted_origin: str | None,
        listening: Listening,
    ) -> None:
        self.where = where
        self._intake = intake
        self._unacknowledged = unacknowledged
        self._mode = mode
        self._wanted = wanted
        self._unwanted_origin = unwanted_origin
        self._listening = listening
        self._listener: Listener | None = None
        self._gives = False
        self._ended = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or for its session."""
        return self._closed

    @property
    def listens(self) -> bool:
        """Whether it has a listener that may still get something: it is open, and no file that was read to its end."""
        return self._listener is not None and not self._closed and not self._ended

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, waiting at most so long for it; `None` when none came, or none will (the end of a file).

        0 does not wait, and `math.inf` waits for ever. What does not match the selector of a topic, comes from the own
        connection and is not wanted for that, or has expired, is acknowledged and left out.

        In mode AUTO the message is acknowledged when this returns. When just that fails, the message is returned
        all the same and may come again.

        Raises `ConnectionLost` when the broker cannot be reached: what this consumer gave and was not acknowledged
        comes again. Call again, now or later, to connect anew. Raises `UsageError` E7501 when it is closed, E7502 when
        too many messages are not acknowledged, E7505 in a thread that does not own the session, E7507 when it has a
        listener.
        """
        self._check()
        if self._listener is not None:
            what = "it has a listener, which gets its messages"
            raise UsageError("E7507", self.where, what, "", "Take the listener away, or use another consumer")
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            chunk = self._intake.receive(min(remaining_s, _LONGEST_WAIT_S))
            for message in map(self._read, chunk.messages):
                if message is not None:
                    return self._delivered(message, chunk.token)
                self._intake.acknowledge([chunk.token])
            if chunk.ended or (time.monotonic() >= deadline and (timeout_s > 0 or not chunk.messages)):
                return None

    def set_listener(self, listener: Listener | None) -> None:
        """Call this with each message from now on, or as soon as the connection is started; `None` for no more.

        All listeners of a session are called by one thread that the session has for them, one at a time. It owns the
        session while the connection is started, so set all listeners before (E7505).

        In mode AUTO a message is acknowledged when the listener has returned. When the listener raises, the message
        comes again, as often as the broker gives it. In the other modes it stays unacknowledged and the next one
        follows; the listener acknowledges, recovers, commits or rolls back. What it raises is logged.

        Raises `UsageError` E7501 when it is closed, E7505 in a thread that does not own the session, E4117 for a
        listener that is `async def` or a generator.
        """
        self._check()
        if listener is not None:
            refuse_deferred(listener, f"listener of {self.where}")
        self._listener = listener
        if listener is not None:
            self._listening.add(self)

    def give(self, timeout_s: float) -> bool:
        """See `Listened`. Called by the thread of the listeners."""
        chunk = self._intake.receive(timeout_s)
        self._ended = chunk.ended
        for message in map(self._read, chunk.messages):
            if message is not None:
                self._give(message, chunk.token)
            else:
                self._intake.acknowledge([chunk.token])
        return bool(chunk.messages)

    def close(self) -> None:
        """Receive nothing more; what was received here and not acknowledged comes again, to whoever consumes next.

        Waits until no listener of the session runs, unless it is one of them that calls. May be repeated. Raises
        nothing but `UsageError` E7506, within a completion of the session.
        """
        if self._listening.owner.maker.is_another_process:
            return
        self._listening.owner.check_may_await_completions(self.where)
        with self._listening.paused():
            self._closed = True
            if not self._gives:
                self._intake.close()

    def _check(self) -> None:
        if self._closed:
            raise closed(self.where)
        self._listening.owner.check(self.where)

    def _read(self, taken: Message) -> Message | None:
        """What the program gets to see of it; `None` for nothing."""
        message, origin = read(taken)
        is_own = self._unwanted_origin is not None and origin == self._unwanted_origin
        return None if is_own or not is_wanted(message, self._wanted) else message

    def _delivered(self, message: Message, token: Any) -> Message:
        if self._mode is AcknowledgeMode.AUTO:
            with suppress(ConnectionLost):  # whether the broker knows is unknown: twice is better than never
                self._intake.acknowledge([token])
            return message
        return self._noted(message, token)

    def _noted(self, message: Message, token: Any) -> Message:
        own = copy.copy(message)  # it stands for this delivery alone, also where a broker gives one object twice
        self._unacknowledged.add(Delivery(own, self._intake, token))
        return own

    def _give(self, message: Message, token: Any) -> None:
        assert self._listener is not None
        if self._mode is not AcknowledgeMode.AUTO:
            refuse_result(self._listener(self._noted(message, token)), self._listener, f"listener of {self.where}")
            return
        self._gives = True
        try:
            refuse_result(self._listener(message), self._listener, f"listener of {self.where}")
        except BaseException:
            self._intake.reject([token])
            raise
        else:
            self._intake.acknowledge([token])
        finally:
            self._gives = False
            if self._closed:  # by its listener, whose message was still to be acknowledged
                self._intake.close()
