"""A producer: sends messages to one destination, one by one or asynchronously."""

import logging
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from connectors.messaging import traces
from connectors.messaging.completions import AsyncSend, Completion, Completions
from connectors.messaging.failures import closed
from connectors.messaging.foreign import ForeignMessage, converted
from connectors.messaging.listening import Listening
from connectors.messaging.origin import stamped
from connectors.messaging.send_options import SendOptions, check_flag, check_function, outside
from connectors.messaging.transaction import Transaction
from correlator import tracing
from correlator.connector import Sink
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Headers, Message, Outgoing

_NO_HEADERS = Headers()
_log = logging.getLogger("connectors.messaging")


class Producer:
    """Sends to one destination. Made by `Session.create_producer`.

    Only the thread that owns its session may use it (otherwise E7505), except for `close`.

    Args:
        destination: `queue:NAME` or `topic:NAME`.
        sink: the sink of the producer.
        connection: the id of its connection, with which messages to topics are marked.
        completions: the thread of its session that sends asynchronously.
        listening: the listener thread of its session.
        using: held while a thread uses the sink.
        transaction: takes the messages until the session commits; `None` to send them at once.
        ack_on_non_persistent: whether `send` waits for the broker even if a message is not persistent.
    """

    def __init__(
        self,
        destination: str,
        sink: Sink,
        connection: str,
        completions: Completions,
        listening: Listening,
        using: AbstractContextManager[Any],
        transaction: Transaction | None,
        *,
        ack_on_non_persistent: bool,
    ) -> None:
        self._defaults = SendOptions()
        self._where = f"producer of {destination}"
        self._destination = destination
        self._sink = sink
        self._connection = connection
        self._completions = completions
        self._listening = listening
        self._using = using
        self._transaction = transaction
        self._ack_on_non_persistent = ack_on_non_persistent
        self._is_connected = False
        self._closed = False
        self._life = uuid.uuid4().hex
        self._sequence = 0
        self._in_doubt: tuple[ForeignMessage, Outgoing] | None = None
        """The message of a `send` during which the connection was lost: the broker may have it."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called, for this producer or for its session."""
        return self._closed

    @property
    def defaults(self) -> SendOptions:
        """Priority, time to live, persistence and delivery delay of messages that do not name their own.

        Setting them raises `UsageError` E7540 for anything but `SendOptions`, and E7540 or E7548 for a value out of its
        range.
        """
        return self._defaults

    @defaults.setter
    def defaults(self, options: SendOptions) -> None:
        """Set the defaults. Raises `UsageError` E7540 or E7548; nothing has changed then."""
        if not isinstance(options, SendOptions):
            raise outside(f"{self._where}.defaults", options, "SendOptions(…)")
        options.check(self._where)
        self._defaults = options

    def connect(self) -> None:
        """Connect the sink if it is not connected; `send` does so, too.

        Raises:
            ConnectionLost: the broker cannot be reached. Call it again.
        """
        if not self._is_connected:
            self._sink.connect()
            self._is_connected = True

    def send(
        self,
        message: ForeignMessage,
        *,
        priority: int | None = None,
        time_to_live_ms: int | None = None,
        persistent: bool | None = None,
        delivery_delay_ms: int | None = None,
        trace: bool = False,
    ) -> str:
        """Send a message, wait until the broker has confirmed it, and return its message id.

        Unless the factory has `ack_on_non_persistent`, a message that is not persistent leaves in the background, in
        its order, and a failure is only logged. The call waits only while 1,000 messages of the session are
        outstanding.

        For any other message, the call first waits for all outstanding messages of the session. In mode TRANSACTED on a
        message service, the message leaves with `Session.commit`; emulated transactions send it at once.

        Args:
            message: a `Message`, which is sent as it is, to its own `destination` if it names one; a message to a topic
                is copied and marked with its connection. Any other object with body and properties is converted.
            priority: 0 to 9; `None` for that of the message, or else of `defaults`. The same holds for the other
                arguments.
            time_to_live_ms: milliseconds after which nobody gets the message any more; 0 for no limit.
            persistent: whether the broker keeps the message on disk.
            delivery_delay_ms: milliseconds before which nobody gets the message.
            trace: whether each process that handles the message logs its steps (docs/tracing.md).

        Returns:
            The header `message_id` that consumers see, as far as the broker carries it.

        Raises:
            SendRejected: the broker refuses the message. It was not stored, and the producer stays usable.
            ConnectionLost: the broker cannot be reached. The message may have arrived. Sending it again reconnects, and
                may store it twice.
            UsageError: E7504 for an object that is not a message, E7540 and E7548 for a value out of its range, E7544
                if the transaction has too many messages, E7501 if this producer is closed, E7505 in a thread that does
                not own the session.
        """
        self._check()
        given = SendOptions(priority, time_to_live_ms, persistent, delivery_delay_ms)
        given.check(self._where)
        check_flag(f"{self._where}.trace", trace)
        outgoing = self._outgoing(message, given, trace=trace)
        if self._transaction is not None:
            self._transaction.add(outgoing)
            return outgoing.message_id
        if not self._ack_on_non_persistent and _is_passing(outgoing):
            self._in_doubt = None
            self._completions.put(AsyncSend(self._send, outgoing, message, self._tell_lost))
            return outgoing.message_id
        self._completions.flush()
        self._in_doubt = (message, outgoing)
        (rejected,) = self._send([outgoing])
        self._in_doubt = None
        if rejected is not None:
            raise rejected
        return outgoing.message_id

    def send_async(
        self,
        message: ForeignMessage,
        on_completion: Completion,
        *,
        priority: int | None = None,
        time_to_live_ms: int | None = None,
        persistent: bool | None = None,
        delivery_delay_ms: int | None = None,
        trace: bool = False,
    ) -> str:
        """Send as `send` does, without waiting for the broker; a completion gets the result. Returns the message id.

        After a lost connection all outstanding messages of this producer fail, and the next message reconnects. So
        messages arrive in order and without gaps.

        A thread of the session calls the completions one at a time, in the order of the messages. It does not own the
        session: completions may neither use the session (E7505) nor wait for its end (E7506). Their exceptions are
        logged. Each message gets its completion before `close` returns.

        If 1,000 messages of the session are outstanding, the call waits. In mode TRANSACTED on a message service, a
        completion says that the transaction has the message; `commit` says that it was sent.

        Args:
            message: as for `send`.
            on_completion: called as `on_completion(message, error)`. `error` is the exception that `send` would have
                raised; `None` if the broker has confirmed the message.
            priority: as for `send`, like the arguments that follow.
            time_to_live_ms: as for `send`.
            persistent: as for `send`.
            delivery_delay_ms: as for `send`.
            trace: as for `send`.

        Raises:
            UsageError: as `send`, and E4117 for a completion that is `async def` or a generator, E7540 for what is
                no function.
        """
        self._check()
        check_function(on_completion, f"completion of {self._where}")
        given = SendOptions(priority, time_to_live_ms, persistent, delivery_delay_ms)
        given.check(self._where)
        check_flag(f"{self._where}.trace", trace)
        outgoing = self._outgoing(message, given, trace=trace)
        self._in_doubt = None
        if self._transaction is not None:
            self._transaction.add(outgoing)
            self._completions.put(AsyncSend(_done, outgoing, message, on_completion))
        else:
            self._completions.put(AsyncSend(self._send, outgoing, message, on_completion))
        return outgoing.message_id

    def close(self) -> None:
        """Wait for outstanding completions, and close the sink. May be repeated.

        Any thread may call it. It also waits until no listener of the session runs, unless a listener makes the call.
        If another thread uses the session, no message waits for room in a full destination meanwhile: it is refused
        (`SendRejected` E8108).

        Raises:
            UsageError: E7506 within a completion of the session. Nothing else.
        """
        if self._listening.owner.maker.is_another_process:
            return
        self._listening.owner.check_may_await_completions(self._where)
        with self._listening.paused():
            self._closed = True
            self._completions.flush()
            with self._using:
                self._sink.close()

    def _check(self) -> None:
        if self._closed:
            raise closed(self._where)
        self._listening.owner.check(self._where)

    def _tell_lost(self, _message: ForeignMessage, error: Exception | None) -> None:
        if error is not None:
            _log.warning("%s: a message that is not persistent was lost: %s", self._where, error)

    def _outgoing(self, message: ForeignMessage, given: SendOptions, *, trace: bool) -> Outgoing:
        native = self._filled(converted(message, self._where), given)
        if trace:
            native = tracing.marked(native)
        destination = native.destination or self._destination
        marked = stamped(native, self._connection) if destination.startswith("topic:") else native
        if self._in_doubt is not None:
            before, outgoing = self._in_doubt
            if before is message and outgoing.message == marked:
                return outgoing  # the repeat keeps its number: the sink may still have the message in flight
        self._sequence += 1
        # No source: a broker that deduplicates must not treat a new message as a repeat of an unconfirmed one.
        message_id = f"ID:{self._life}-{self._sequence}"
        return Outgoing(self._sequence, "", destination, marked, message_id, self._ack_on_non_persistent)

    def _filled(self, native: Message, given: SendOptions) -> Message:
        """Return the message with the values of the call; where these are open, with its own values;
        then with the producer's.
        """
        headers = native.headers or _NO_HEADERS
        filled = given.over(SendOptions.of(headers)).over(self._defaults)
        filled.check_delay(self._where)
        if filled == SendOptions.of(headers):
            return native
        return msgspec.structs.replace(native, headers=msgspec.structs.replace(headers, **filled._asdict()))

    def _send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        traced = traces.sent(batch)
        with self._using:
            try:
                self.connect()
                results = self._sink.send(batch)
            except ConnectionLost as error:
                self._is_connected = False
                traces.failed(traced, error)
                raise
        traces.answered(traced, batch, results)
        return results


def _is_passing(outgoing: Outgoing) -> bool:
    headers = outgoing.message.headers
    return headers is not None and headers.persistent is False


def _done(batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
    return [None] * len(batch)
