"""A producer: sends messages to one destination, one by one or asynchronously."""

from collections.abc import Sequence

from connectors.messaging.completions import AsyncSend, Completion, Completions
from connectors.messaging.failures import closed
from connectors.messaging.foreign import ForeignMessage, converted
from connectors.messaging.listening import Listening
from connectors.messaging.origin import stamped
from correlator.connector import Sink
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.handlers import refuse_deferred


class Producer:
    """Sends to one destination. Made by `Session.create_producer`.

    Only the thread that owns its session may use it (otherwise E7505), except for `close`.

    Args:
        destination: `queue:NAME` or `topic:NAME`.
        sink: its sink.
        connection: the id of its connection, with which messages to topics are marked.
        completions: the thread of its session that sends asynchronously.
        listening: the listener thread of its session.
    """

    def __init__(
        self, destination: str, sink: Sink, connection: str, completions: Completions, listening: Listening
    ) -> None:
        self._where = f"producer of {destination}"
        self._destination = destination
        self._sink = sink
        self._connection = connection
        self._completions = completions
        self._listening = listening
        self._is_connected = False
        self._closed = False
        self._sequence = 0
        self._in_doubt: Message | None = None
        self._may_be_sending = False
        """Whether the thread of the completions may be using the sink."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or for its session."""
        return self._closed

    def connect(self) -> None:
        """Connect the sink if it is not connected; `send` does so, too.

        Raises:
            ConnectionLost: the broker cannot be reached. Call it again.
        """
        if not self._is_connected:
            self._sink.connect()
            self._is_connected = True

    def send(self, message: ForeignMessage) -> None:
        """Send a message, and wait until the broker has confirmed it.

        The call first waits for the completions of messages that were given to `send_async` before. In mode TRANSACTED,
        too, the message leaves at once.

        Args:
            message: a `Message`, which is sent as it is, to its own `destination` if it names one; a message to a topic
                is copied and marked with its connection. Any other object with body and properties is converted.

        Raises:
            SendRejected: the broker refuses the message. It was not stored, and the producer can go on.
            ConnectionLost: the broker cannot be reached. The message may have arrived. Sending it again reconnects, and
                may store it twice.
            UsageError: E7504 for an object that is no message, E7501 if this producer is closed, E7505 in a thread that
                does not own the session.
        """
        self._check()
        if self._may_be_sending:
            self._flush()
        native = converted(message)
        if native is not self._in_doubt:  # a repeat keeps its number: the sink may still have it in flight
            self._sequence += 1
        self._in_doubt = native
        (rejected,) = self._send([self._outgoing(native)])
        self._in_doubt = None
        if rejected is not None:
            raise rejected

    def send_async(self, message: ForeignMessage, on_completion: Completion) -> None:
        """Send as `send` does, without waiting for the broker; a completion gets the result.

        After a lost connection all outstanding messages of this producer fail, and the next message reconnects. So
        messages arrive in order and without gaps.

        A thread of the session calls the completions one at a time, in the order of the messages. It does not own the
        session: completions may neither use the session (E7505) nor wait for its end (E7506). Their exceptions are
        logged. Each message gets its completion before `close` returns.

        If 1,000 messages of the session are outstanding, the call waits.

        Args:
            message: as for `send`.
            on_completion: called as `on_completion(message, error)`. `error` is the exception that `send` would have
                raised; `None` if the broker has confirmed the message.

        Raises:
            UsageError: as `send`, and E4117 for a completion that is `async def` or a generator.
        """
        self._check()
        refuse_deferred(on_completion, f"completion of {self._where}")
        native = converted(message)
        self._sequence += 1
        self._in_doubt = None
        self._may_be_sending = True
        self._completions.put(AsyncSend(self._send, self._outgoing(native), message, on_completion))

    def close(self) -> None:
        """Wait for outstanding completions, and close the sink. May be repeated.

        Any thread may call it. It also waits until no listener of the session runs, unless a listener makes the call.

        Raises:
            UsageError: E7506 within a completion of the session. Nothing else.
        """
        if self._listening.owner.maker.is_another_process:
            return
        self._listening.owner.check_may_await_completions(self._where)
        with self._listening.paused():
            self._closed = True
            if self._may_be_sending:
                self._flush()
            self._sink.close()

    def _check(self) -> None:
        if self._closed:
            raise closed(self._where)
        self._listening.owner.check(self._where)

    def _flush(self) -> None:
        self._completions.flush()
        self._may_be_sending = False

    def _outgoing(self, native: Message) -> Outgoing:
        # No source: a broker that deduplicates must not take a new message for a repeat of an unconfirmed one.
        destination = native.destination or self._destination
        message = stamped(native, self._connection) if destination.startswith("topic:") else native
        return Outgoing(self._sequence, "", destination, message)

    def _send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        try:
            self.connect()
            return self._sink.send(batch)
        except ConnectionLost:
            self._is_connected = False
            raise
