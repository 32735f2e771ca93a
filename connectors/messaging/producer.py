"""A producer: messages to one destination, each confirmed before the next."""

from connectors.messaging.failures import closed
from connectors.messaging.foreign import ForeignMessage, converted
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.ports import Sink


class Producer:
    """Sends to one destination. Made by `Session.create_producer`; used by the thread of its session.

    Args:
        destination: `queue:NAME` or `topic:NAME`.
        sink: of the connector.
    """

    def __init__(self, destination: str, sink: Sink) -> None:
        self._destination = destination
        self._sink = sink
        self._is_connected = False
        self._closed = False
        self._sequence = 0
        self._in_doubt: Message | None = None

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

        A `Message` goes as it is, without a copy; to its own `destination` if it names one. Anything else that has a
        body and properties is converted (R13).

        Raises `SendRejected` when the broker refuses the message: it was not stored, and this producer goes on.
        Raises `ConnectionLost` when the broker cannot be reached: the message may have arrived or not; sending it once
        more connects anew and may store it twice. Raises `UsageError` E7504 for an object that is no message, E7501
        when this producer is closed.
        """
        if self._closed:
            raise closed(f"producer of {self._destination}")
        native = converted(message)
        if native is not self._in_doubt:  # which keeps its number: it is waited for if it is still under way
            self._sequence += 1
        self._in_doubt = native
        # No source: a broker that deduplicates must not take another message for a repeat of one in doubt.
        outgoing = Outgoing(self._sequence, "", native.destination or self._destination, native)
        try:
            self.connect()
            (rejected,) = self._sink.send([outgoing])
        except ConnectionLost:
            self._is_connected = False
            raise
        self._in_doubt = None
        if rejected is not None:
            raise rejected

    def close(self) -> None:
        """Let go. Never raises; may be repeated."""
        self._closed = True
        self._sink.close()
