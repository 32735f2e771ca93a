"""A consumer: receives the messages of one destination one by one, or passes them to a listener."""

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
"""The longest wait of one call of a source; the operating system limits it."""


class Consumer:
    """Receives from one destination. Made by `Session.create_consumer`.

    Only the thread that owns its session may use it (otherwise E7505), except for `close`.

    Args:
        where: names the consumer in errors.
        intake: its source, which connects when it is used.
        unacknowledged: the unacknowledged messages of its session.
        mode: the mode of its session.
        wanted: the selector for a topic; `None` for all messages. For a queue the broker selects.
        unwanted_origin: id of the connection whose messages are left out; `None` for none.
        listening: the listener thread of its session.
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
        """Whether it has a listener that may get further messages: it is open, and not at the end of a file."""
        return self._listener is not None and not self._closed and not self._ended

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; `None` if none comes in time, or at the end of a file.

        The consumer acknowledges and skips messages that have expired, messages that do not match the selector of a
        topic, and with `no_local` messages that its own connection has sent.

        In mode AUTO the message is acknowledged before this returns. If the acknowledgement fails, the message is
        returned nevertheless and may come again. In the other modes keep the returned object: `Session.acknowledge`
        needs it.

        Args:
            timeout_s: longest wait in seconds; 0 does not wait, `math.inf` waits for ever.

        Raises:
            ConnectionLost: the broker cannot be reached. The unacknowledged messages of this consumer come again. Call
                `receive` again to reconnect.
            UsageError: E7501 if the consumer is closed, E7502 if 1,000 messages are unacknowledged (acknowledge or
                recover), E7505 in a thread that does not own the session, E7507 if the consumer has a listener.
        """
        self._check()
        if self._listener is not None:
            what = "it has a listener, which gets its messages"
            raise UsageError("E7507", self.where, what, "", "Take the listener away, or use another consumer")
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            chunk = self._intake.receive(min(remaining_s, _LONGEST_WAIT_S))
            for message, token in zip(map(self._read, chunk.messages), chunk.tokens, strict=True):
                if message is not None:
                    return self._delivered(message, token)
                self._intake.acknowledge([token])
            if chunk.ended or (time.monotonic() >= deadline and (timeout_s > 0 or not chunk.messages)):
                return None

    def set_listener(self, listener: Listener | None) -> None:
        """Call a function with each message from now on, once the connection is started; `None` removes the listener.

        One thread of the session calls all its listeners, one at a time. This thread owns the session while the
        connection is started, so set all listeners before (E7505).

        In mode AUTO a message is acknowledged when the listener has returned. If the listener raises, the message comes
        again, as often as the broker redelivers it. In the other modes the message stays unacknowledged and the next
        one follows; the listener acknowledges, recovers, commits or rolls back. Exceptions of listeners are logged.

        Raises:
            UsageError: E7501 if the consumer is closed, E7505 in a thread that does not own the session, E4117 for a
                listener that is `async def` or a generator.
        """
        self._check()
        if listener is not None:
            refuse_deferred(listener, f"listener of {self.where}")
        self._listener = listener
        if listener is not None:
            self._listening.add(self)

    def give(self, timeout_s: float) -> bool:
        """Pass at most one message to the listener; see `Listened`. Called by the thread of the listeners."""
        chunk = self._intake.receive(timeout_s)
        self._ended = chunk.ended
        for message, token in zip(map(self._read, chunk.messages), chunk.tokens, strict=True):
            if message is not None:
                self._give(message, token)
            else:
                self._intake.acknowledge([token])
        return bool(chunk.messages)

    def close(self) -> None:
        """Close the consumer: its unacknowledged messages come again, to the next consumer. May be repeated.

        Any thread may call it. It waits until no listener of the session runs, unless a listener makes the call.

        Raises:
            UsageError: E7506 within a completion of the session. Nothing else.
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
        """The message as the program gets it; `None` if it is left out."""
        message, origin = read(taken)
        is_own = self._unwanted_origin is not None and origin == self._unwanted_origin
        return None if is_own or not is_wanted(message, self._wanted) else message

    def _delivered(self, message: Message, token: Any) -> Message:
        if self._mode is AcknowledgeMode.AUTO:
            with suppress(ConnectionLost):  # nobody knows whether the broker has it: twice is better than never
                self._intake.acknowledge([token])
            return message
        return self._noted(message, token)

    def _noted(self, message: Message, token: Any) -> Message:
        own = copy.copy(message)  # it stands for this delivery alone, even if a source returns one object twice
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
