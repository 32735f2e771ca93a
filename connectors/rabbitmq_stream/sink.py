"""The sink of streams: publishes under the source id and number of each message, so that a repeat is stored once."""

import time
import uuid
from collections.abc import Sequence

from connectors.rabbitmq_stream.broker import StreamBroker
from connectors.rabbitmq_stream.content import encode
from connectors.rabbitmq_stream.destinations import LONGEST_NAME, StreamDestination, stream_of
from connectors.rabbitmq_stream.link import StreamLink, Wire
from connectors.rabbitmq_stream.publisher import (
    FRAME_OVERHEAD,
    MESSAGE_OVERHEAD,
    BatchInFlight,
    Publishing,
    StreamPublication,
)
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing

_NUMBERS = range(2**64)


class StreamSink:
    """Publishes to streams, and waits for the confirm of each message.

    The sink refuses a message before sending it, and at every attempt: the server would treat a number that follows
    higher ones as a repeat. For the same reason the allowed size never grows during the life of a sink.
    """

    def __init__(self, where: str, broker: StreamBroker, destination: StreamDestination | None) -> None:
        self._where = where
        self._broker = broker
        self._destination = destination
        self._largest = 0
        self._life = uuid.uuid4().hex
        self._link: StreamLink | None = None
        self._publishing: Publishing | None = None

    def connect(self) -> None:
        """Connect, and make the sender's stream if the options say so. Raises `ConnectionLost`."""
        self.close()
        self._link = link = StreamLink(self._where, self._broker)
        try:
            link.open()
            if self._destination is not None:
                link.open_at(self._destination)
            link.ask(self._begin, "")
        except BaseException:
            self.close()
            raise

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Publish the batch and wait for the last confirm. Raises `ConnectionLost`."""
        link, publishing = self._link, self._publishing
        if link is None or publishing is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        link.check()
        now_ms = time.time_ns() // 1_000_000
        flight = BatchInFlight(len(batch), lambda index: self._publication(batch[index], now_ms))
        over = link.begin(lambda _: publishing.publish(flight), "")
        settled = -1
        while settled < flight.settled:
            settled = flight.settled
            try:
                over.result(self._broker.timeout_s)
            except TimeoutError:
                continue
            return flight.results
        over.cancel()
        what = f"{self._broker.address} confirmed nothing for {self._broker.timeout_s} s"
        self.close()
        raise ConnectionLost("E7023", self._where, what)

    def close(self) -> None:
        """Close the connection. Unconfirmed messages may still have arrived."""
        if self._link is not None:
            self._link.close()
        self._link = self._publishing = None

    async def _begin(self, wire: Wire) -> None:
        assert self._link is not None
        self._publishing = Publishing(wire, self._link.fail)
        if wire.frame_max:
            largest = wire.frame_max - FRAME_OVERHEAD - MESSAGE_OVERHEAD
            self._largest = min(self._largest, largest) if self._largest else largest

    # --- messages, in the I/O thread ---

    def _publication(self, outgoing: Outgoing, now_ms: int) -> StreamPublication | SendRejected:
        where = f"message {outgoing.sequence}:{outgoing.source}"
        stream = stream_of(outgoing.destination)
        if stream is None:
            what = f"{quoted(outgoing.destination)} is not a stream"
            return SendRejected("E8104", where, what, f"Use queue:NAME, NAME of at most {LONGEST_NAME} bytes")
        if len(outgoing.source.encode()) > LONGEST_NAME or outgoing.sequence not in _NUMBERS:
            what = f"{quoted(outgoing.source)} cannot be the name of a publisher"
            return SendRejected("E8105", where, what, f"At most {LONGEST_NAME} bytes, numbers from 0 on")
        try:
            message_id = outgoing.message_id or f"ID:{outgoing.sequence}:{outgoing.source or self._life}"
            content = encode(outgoing, message_id, now_ms)
        except (ValueError, TypeError, AttributeError) as error:  # application code may put any value into a message
            return SendRejected("E8110", where, f"AMQP 1.0 cannot carry the message: {error}")
        if self._largest and len(content) > self._largest:
            what = f"the message has {len(content)} bytes, and the server's stream.frame_max leaves {self._largest}"
            return SendRejected("E8106", where, what)
        return StreamPublication(stream, outgoing.source, outgoing.sequence, content, where)
