"""A consumer: receives the messages of one destination one by one, or passes them to a listener."""

import copy
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from connectors.messaging.deliveries import AcknowledgeMode, settle
from connectors.messaging.failures import closed
from connectors.messaging.holdings import Holdings
from connectors.messaging.housekeeping import Housekeeping
from connectors.messaging.intake import Intake
from connectors.messaging.link import Link
from connectors.messaging.listening import Listener, Listening
from connectors.messaging.origin import read
from connectors.messaging.send_options import check_function, seconds
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message
from correlator.handlers import refuse_result
from correlator.selector import Selector

T = TypeVar("T")


class Fetched(NamedTuple):
    """A message that was fetched and that the program does not have yet, with its token."""

    message: Message
    token: Any


class Consumer:
    """Receives from one destination. Made by `Session.create_consumer`.

    Only the thread that owns its session may use it (otherwise E7505), except for `close`.

    Args:
        where: names the consumer in errors.
        intake: the source of the consumer, which connects at its first use.
        holdings: the sources and unsettled messages of its session.
        link: lets the session wait for messages.
        housekeeping: the thread that settles what an idle program leaves unsettled.
        wanted: the selector, if the broker does not apply it; `None` for all messages.
        unwanted_origin: id of the connection whose messages the consumer skips; `None` for none.
        listening: the listener thread of its session.
        on_close: called once, when the consumer is closed.
    """

    def __init__(
        self,
        where: str,
        intake: Intake,
        holdings: Holdings,
        link: Link,
        housekeeping: Housekeeping,
        wanted: Selector | None,
        unwanted_origin: str | None,
        listening: Listening,
        on_close: Callable[[], None],
    ) -> None:
        self.where = where
        self._intake = intake
        self._holdings = holdings
        self._link = link
        self._housekeeping = housekeeping
        self._wanted = wanted
        self._unwanted_origin = unwanted_origin
        self._listening = listening
        self._on_close = on_close
        self._listener: Listener | None = None
        self._fetched: Fetched | None = None
        """The message that `fetch` has returned and that is not confirmed."""
        self._gives = False
        """Whether the listener has a message that the session settles when the listener returns."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called, for this consumer or for its session."""
        return self._closed

    @property
    def ended(self) -> bool:
        """Whether no further message will come, as after the end of a file."""
        return self._intake.ended

    @property
    def listens(self) -> bool:
        """Whether the consumer has a listener that may get messages: it is open, and not at the end of a file."""
        return self._listener is not None and not self._closed and not self._intake.ended

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message; `None` if none comes in time, at the end of a file, or if the wait is ended.

        Another thread ends the wait with `Connection.stop`, or with `close` of consumer, session or connection.

        The consumer skips messages that have expired. It acknowledges and skips messages that do not match the selector
        of a topic, and with `no_local` messages that its own connection has sent.

        In mode AUTO the message is acknowledged before this returns. If the acknowledgement fails, the message is
        returned nevertheless and may be redelivered. In the other modes keep the returned object: `Session.acknowledge`
        needs it.

        Args:
            timeout_s: longest wait in seconds; 0 or less does not wait, `None` and `math.inf` wait for ever.

        Raises:
            ConnectionLost: the broker cannot be reached. It redelivers the unacknowledged messages of this consumer.
                Call `receive` again to reconnect.
            UsageError: E7501 if the consumer is closed, E7502 if as many messages are unacknowledged as `flow_limit`
                allows (acknowledge or recover), E7505 in a thread that does not own the session, E7507 if the consumer
                has a listener, E7540 for a timeout that is not a number.
        """
        return self._receive(timeout_s, self._holdings.hand, self._link.stops)

    @property
    def stops(self) -> int:
        """How often the waits of the session for messages have been ended."""
        return self._link.stops

    def end_waits(self) -> None:
        """End all waits of the session for messages. Any thread may call it."""
        self._link.stop()

    def fetch(self, timeout_s: float | None, stops: int) -> Message | None:
        """Receive a message that the program does not have before `confirm`; for asynchronous sessions.

        Without `confirm`, the next call returns the same message, and closing gives it back.

        Args:
            timeout_s: longest wait in seconds, as in `receive`.
            stops: the value of `stops` when the program began to wait.
        """
        if self._fetched is None or self._closed:
            self._fetched = self._receive(timeout_s, lambda one, _, token: Fetched(copy.copy(one), token), stops)
        return None if self._fetched is None else self._fetched.message

    def confirm(self) -> None:
        """Note that the program has the message that `fetch` returned, and acknowledge it if the mode says so.

        Does nothing if the session was closed meanwhile: the broker redelivers the message.
        """
        with self._link.lock:
            if self._fetched is not None and not self._closed:
                self._holdings.keep(self._fetched.message, self._intake, self._fetched.token)
                self._fetched = None
        self._housekeeping.watch(self._holdings)

    def set_listener(self, listener: Listener | None) -> None:
        """Call a function with each message from now on, once the connection is started; `None` removes the listener.

        One thread of the session calls all its listeners, one at a time. This thread owns the session while the
        connection is started, so set all listeners before (E7505).

        In modes AUTO and DUPS_OK a message is acknowledged when the listener has returned, or some time later. If the
        listener raises, the message is redelivered, as often as the broker does so. In the other modes the message
        stays unacknowledged and the next one follows; the listener acknowledges, recovers, commits or rolls back.
        Exceptions of listeners are logged.

        Raises:
            UsageError: E7501 if the consumer is closed, E7505 in a thread that does not own the session, E4117 for a
                listener that is `async def` or a generator, E7540 for what is no function.
        """
        self._check()
        if listener is not None:
            check_function(listener, f"listener of {self.where}")
        self._listener = listener
        if listener is not None:
            self._listening.add(self)

    def give(self, timeout_s: float) -> bool:
        """Pass at most one message to the listener; see `Listened`. Called by the thread of the listeners."""
        with self._link.lock:
            taken = self._take(timeout_s, lambda: self._listening.is_asked_to_stop)
        if taken is not None:
            self._housekeeping.watch(self._holdings)  # the listener may run for a long time
            self._give(*taken)
            self._housekeeping.watch(self._holdings)
        return taken is not None

    def settle(self, message: Message) -> None:
        """Acknowledge one message that `receive` returned, whatever the mode. Raises `ConnectionLost`."""
        with self._link.lock:
            settle(self._holdings.unacknowledged.take(message), Intake.acknowledge)

    def close(self) -> None:
        """Close the consumer. The session can still acknowledge the messages that the program has received.

        Messages that the program has not received go back to the broker. If a destination has one reader at a time,
        such as a file or a stream, its unacknowledged messages are redelivered to the next consumer. On RabbitMQ and
        Pulsar the subscription of `create_consumer(topic)` ends with the consumer: its unacknowledged messages are
        lost, also those of an emulated transaction, whose `commit` then does not report it.

        Any thread may call it. It waits until no listener of the session runs, unless a listener makes the call. If
        another thread waits in `receive`, that call returns `None`; if it waits for room in a full destination, its
        message is refused (`SendRejected` E8108). May be repeated.

        Raises:
            UsageError: E7506 within a completion of the session. Nothing else.
        """
        if self._listening.owner.maker.is_another_process:
            return
        self._listening.owner.check_may_await_completions(self.where)
        with self._listening.paused():
            if self._closed:
                return
            self.end()
            self._link.wake()
            with self._link.lock:
                self._holdings.acknowledge_lazily()
                self._holdings.intakes.remove(self._intake)
                if self._fetched is not None:
                    with suppress(ConnectionLost):
                        self._intake.reject([self._fetched.token])
                if not self._gives:
                    self._intake.retire()

    def end(self) -> None:
        """Take no more messages. Called when the consumer or its session is closed."""
        self._closed = True
        self._on_close()

    def _check(self) -> None:
        if self._closed:
            raise closed(self.where)
        self._listening.owner.check(self.where)

    def _receive(self, timeout_s: float | None, hand: Callable[[Message, Intake, Any], T], stops: int) -> T | None:
        self._check()
        if self._listener is not None:
            what = "it has a listener, which gets its messages"
            raise UsageError("E7507", self.where, what, "", "Remove the listener, or use another consumer")
        wait_s = seconds(self.where, timeout_s)
        deadline = time.monotonic() + wait_s
        # With no time to wait, this skips all unwanted messages that are there now.
        last = math.inf if wait_s == 0 else deadline

        def is_over() -> bool:
            return self._link.stops != stops or time.monotonic() >= last

        while True:
            seen = self._link.look()
            slice_s = min(max(0.0, deadline - time.monotonic()), self._link.slice_s)
            message = self._next(slice_s, is_over, hand)
            remaining_s = deadline - time.monotonic()
            if message is not None or self._intake.ended or remaining_s <= 0 or self._closed:
                return message
            if self._link.stops != stops:
                return None
            self._link.wait(seen, remaining_s)

    def _next(self, wait_s: float, is_over: Callable[[], bool], hand: Callable[[Message, Intake, Any], T]) -> T | None:
        with self._link.lock:
            taken = self._take(wait_s, is_over)
            if taken is None:
                return None
            handed = hand(taken[0], self._intake, taken[1])
            self._intake.traced.delivered(taken[0])
            self._housekeeping.watch(self._holdings)
            return handed

    def _take(self, wait_s: float, is_over: Callable[[], bool]) -> tuple[Message, Any] | None:
        """Return the next wanted message with its token. The caller holds the lock.

        `is_over` is asked after each unwanted message, since these may arrive without end, and says whether to give up.
        """
        while not self._closed and (taken := self._intake.take(wait_s)) is not None:
            given, token = taken
            wait_s = 0.0
            if self._intake.has_expired(given):
                self._intake.end_expired(token)
            elif (message := self._read(given)) is not None:
                return message, token
            else:
                self._intake.acknowledge([token])
            if is_over():
                break
        if self._link.service is None:  # then the lock is hardly ever free for the housekeeping thread
            self._holdings.tidy(time.monotonic())
        return None

    def _read(self, taken: Message) -> Message | None:
        """Return the message in the form for the program; `None` if the consumer skips it."""
        message, origin = read(taken)
        is_own = self._unwanted_origin is not None and origin == self._unwanted_origin
        is_selected = self._wanted is None or self._wanted.matches(message)
        return message if is_selected and not is_own else None

    def _give(self, message: Message, token: Any) -> None:
        listener = self._listener  # the listener may set another one
        assert listener is not None
        mode = self._holdings.mode
        if not mode.is_automatic:
            with self._link.lock:
                own = self._holdings.hand(message, self._intake, token)
            self._intake.traced.delivered(message)
            refuse_result(listener(own), listener, f"listener of {self.where}")
            return
        self._gives = True
        self._intake.traced.delivered(message)
        try:
            refuse_result(listener(message), listener, f"listener of {self.where}")
        except BaseException:
            with self._link.lock:
                self._intake.reject([token])
            raise
        else:
            with self._link.lock:
                if mode is AcknowledgeMode.AUTO:
                    self._intake.acknowledge([token])
                else:
                    self._holdings.hand(message, self._intake, token)
        finally:
            self._gives = False
            if self._closed:  # its listener has closed it before the message was acknowledged
                with self._link.lock:
                    self._intake.retire()
