"""A producer: messages to one destination, each confirmed before the next, or many under way."""

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
    """Sends to one destination. Made by `Session.create_producer`; used by the thread that owns its session.

    Args:
        destination: `queue:NAME` or `topic:NAME`.
        sink: of the connector.
        connection: the id of its connection, which messages to topics tell.
        completions: of its session.
        listening: of its session.
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
        """Whether the thread of the completions may have the sink."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or for its session."""
        return self._closed

    def connect(self) -> None:
        """Open the way to the broker if it is not open. Raises `ConnectionLost`."""
        if not self._is_connected:
            self._sink.connect()
            self._is_connected = True

    def send(self, message: ForeignMessage) -> None:
        """Send, and wait until the broker has confirmed it.

        A `Message` goes as it is, to its own `destination` if it names one; without a copy, but for a topic, where it
        also tells from which connection it comes. Anything else that has a body and properties is converted. It
        goes behind all that `send_async` was given before, and waits for their completions.

        Raises `SendRejected` when the broker refuses the message: it was not stored, and this producer goes on.
        Raises `ConnectionLost` when the broker cannot be reached: the message may have arrived or not; sending it once
        more connects anew and may store it twice. Raises `UsageError` E7504 for an object that is no message, E7501
        when this producer is closed, E7505 in a thread that does not own the session.
        """
        self._check()
        if self._may_be_sending:
            self._flush()
        native = converted(message)
        if native is not self._in_doubt:  # which keeps its number: it is waited for if it is still under way
            self._sequence += 1
        self._in_doubt = native
        (rejected,) = self._send([self._outgoing(native)])
        self._in_doubt = None
        if rejected is not None:
            raise rejected

    def send_async(self, message: ForeignMessage, on_completion: Completion) -> None:
        """Send as `send` does, and do not wait: `on_completion(message, error)` is called when it is known what became.

        `error` is what `send` would have raised, `None` when the broker has confirmed the message. When the connection
        is lost, all outstanding messages of this producer fail with it, and the next message connects anew; so what
        arrives is in order and without gaps.

        Completions are called one at a time, in the order of the messages, by a thread of the session that does not own
        it: they may not use the session (E7505), nor wait for its end (E7506). What they raise is logged. Each message
        gets its completion before `close` returns.

        At most 1,000 messages of a session are outstanding; with so many the call waits.

        Raises `UsageError` as `send`, and E4117 for a completion that is `async def` or a generator.
        """
        self._check()
        refuse_deferred(on_completion, f"completion of {self._where}")
        native = converted(message)
        self._sequence += 1
        self._in_doubt = None
        self._may_be_sending = True
        self._completions.put(AsyncSend(self._send, self._outgoing(native), message, on_completion))

    def close(self) -> None:
        """Wait for the completions that are outstanding, and let go. May be repeated.

        Waits until no listener of the session runs, unless it is one of them that calls. Raises nothing but
        `UsageError` E7506, within a completion of the session.
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
        # No source: a broker that deduplicates must not take another message for a repeat of one in doubt.
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
