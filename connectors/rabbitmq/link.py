"""The link of a source or sink to RabbitMQ: one AMQP connection with one channel, and an I/O thread of its own.

Only the I/O thread uses objects of pika. It answers heartbeats while the owner's thread is busy. The owner passes
requests to it and waits for the answers, at most `timeout_s`. After a fault the owner closes the link and makes another
one. There is one exception: if the server has closed only the channel, `open_channel` opens another one on the same
connection. Delivery tags then begin at 1 again.
"""

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from pika import SelectConnection, exceptions, frame, spec
from pika.adapters.select_connection import IOLoop

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.failures import of_channel, of_closing, of_opening
from connectors.rabbitmq.frames import FRAME_OVERHEAD, RabbitDelivery, largest_properties, small_deliveries
from connectors.rabbitmq_server import NOT_CONNECTED, ConnectionFault, of_credentials
from correlator.processes import keep

CLOSE_TIMEOUT_S = 5.0
"""Seconds that an orderly close may take before the connection is cut."""
_FRAME_START = struct.Struct(">BHI")
_BODY_SIZE = struct.Struct(">Q")
_BEFORE_BODY_SIZE, _BEFORE_PROPERTIES, _BEHIND = 11, 19, 1

Request = Callable[[Any, Callable[..., None]], object]
"""Called in the I/O thread with the channel, and with the function to call with the answer."""


class _Wire(SelectConnection):  # type: ignore[misc]  # pika has no types
    """A connection of pika that decodes deliveries and sends publications by `frames`, without pika.

    It leaves the properties of messages encoded.

    Attributes:
        deliver: called with each delivery of the only consumer.
        answer: first bytes from a server that does not speak AMQP.
    """

    deliver: Callable[[RabbitDelivery], None]
    answer = b""

    def cut(self) -> None:
        """End the connection without telling the server."""
        self._terminate_stream(exceptions.StreamLostError("given up"))

    def fileno(self) -> int:
        """The descriptor of the socket, -1 if there is none."""
        sock = None if self._transport is None else self._transport._sock  # noqa: SLF001
        return -1 if sock is None else int(sock.fileno())

    def write(self, frames: bytes) -> None:
        """Send encoded frames."""
        self._output_marshaled_frames([frames])

    def _on_data_available(self, data_in: bytes) -> None:
        self._frame_buffer += data_in
        while self._frame_buffer:
            deliveries, end, is_waiting = small_deliveries(self._frame_buffer)
            self._trim_frame_buffer(end)
            for delivery in deliveries:
                self.deliver(delivery)
            size, read = (0, None) if is_waiting or not self._frame_buffer else self._read_frame()
            if read is None:
                self._check_waiting()
                return
            self._trim_frame_buffer(size)
            self._process_frame(read)

    def _check_waiting(self) -> None:
        """Limit the buffer: a delivery that is decoded here has three frames of at most the agreed size."""
        most = 3 * (self.params.frame_max + FRAME_OVERHEAD)
        if len(self._frame_buffer) > most:
            raise exceptions.InvalidFrameError(f"a frame of more than {self.params.frame_max} bytes")

    def _read_frame(self) -> tuple[int, Any]:
        buffer = self._frame_buffer
        if self.connection_state == self.CONNECTION_PROTOCOL and buffer[0] != spec.FRAME_METHOD:
            self.answer = buffer[:40]
            raise exceptions.InvalidFrameError("not AMQP")
        if buffer[0] != spec.FRAME_HEADER or len(buffer) < _FRAME_START.size:
            return frame.decode_frame(buffer)  # type: ignore[no-any-return]
        _, channel, size = _FRAME_START.unpack_from(buffer)
        end = _FRAME_START.size + size + _BEHIND
        if end > len(buffer):
            return 0, None
        (body_size,) = _BODY_SIZE.unpack_from(buffer, _BEFORE_BODY_SIZE)
        return end, frame.Header(channel, body_size, buffer[_BEFORE_PROPERTIES : end - _BEHIND])


class RabbitLink:
    """An AMQP connection and its channel. Owned by one thread, that of its source or sink.

    Args:
        where: the receiver or sender, for messages.
        broker: the server.
        changed: called in the I/O thread after a fault, and when `blocked` has changed.
        deliver: called in the I/O thread with each delivery, after `consume`.

    Attributes:
        fault: the reason why the channel cannot be used; `None` while it can.
        connected: whether the connection is open; its channel may be closed nevertheless.
        blocked: the reason why the server accepts no messages at present; "" while it does.
    """

    def __init__(
        self,
        where: str,
        broker: RabbitBroker,
        changed: Callable[[], None] = lambda: None,
        deliver: Callable[[RabbitDelivery], None] = lambda _: None,
    ) -> None:
        self.fault: ConnectionFault | None = NOT_CONNECTED
        self.connected = False
        self.blocked = ""
        self._where = where
        self._broker = broker
        self._changed = changed
        self._deliver = deliver
        self._wire: _Wire | None = None
        self._channel: Any = None
        self._lock = threading.Lock()  # guards the next two attributes
        self._answers: set[Future[Any]] = set()
        self._ended = False
        self._loop = IOLoop()
        self._thread = threading.Thread(target=self._run, name=f"rabbitmq {where}", daemon=True)

    # --- the owner's side ---

    def open(self) -> None:
        """Connect and open the channel. Raises `ConnectionLost`; the owner has to close the link in that case, too."""
        opened = self._awaited()
        self._opened = opened
        self._thread.start()
        self.finish(opened)
        self.open_channel()

    def open_channel(self) -> None:
        """Open the first channel, or a new one after the server has closed it. Raises `ConnectionLost`."""
        opened = self._awaited()
        self._post(lambda: self._open_channel(opened))
        self.finish(opened)

    def ask(self, request: Request) -> Any:
        """Make a request and wait for its answer. Raises `ConnectionLost`, also if the server refuses the request."""
        return self.finish(self.begin(request))

    def begin(self, request: Request) -> Future[Any]:
        """Make a request; `finish` waits for its answer. Raises `ConnectionLost` if there is no connection."""
        answer = self._awaited()
        self._post(lambda: self._perform(request, answer))
        return answer

    def finish(self, answer: "Future[Any]") -> Any:
        """Wait for the answer to a request. Raises `ConnectionLost`."""
        try:
            return answer.result(self._broker.timeout_s + 1)  # pika's own time-out for connecting ends earlier
        except TimeoutError:
            what = f"{self._broker.address} did not answer within {self._broker.timeout_s:g} s"
            self.fault = ConnectionFault("E7023", what)
            raise self.fault.error(self._where) from None
        finally:
            with self._lock:
                self._answers.discard(answer)

    def consume(self, queue: str, prefetch: int, *, exclusive: bool = False) -> None:
        """Begin to consume with this prefetch count. Raises `ConnectionLost`.

        An `exclusive` consumer is the only one of its queue: the server refuses it beside others, and others beside it.
        """
        self.ask(lambda channel, reply: channel.basic_qos(prefetch_count=prefetch, callback=reply))
        self.ask(
            lambda channel, reply: channel.basic_consume(
                queue, self._on_large_delivery, exclusive=exclusive, callback=reply
            )
        )

    def tell(self, action: Callable[[Any], object]) -> None:
        """Make a request without an answer; a failure becomes a fault later. Raises `ConnectionLost` after a fault."""
        self.check()
        self._post(lambda: self._perform(lambda channel, _: action(channel), None))

    @property
    def largest_properties(self) -> int:
        """The most bytes that the encoded properties of a message may have: the server limits the size of a frame."""
        assert self._wire is not None
        return largest_properties(self._wire.params.frame_max)

    def check(self) -> None:
        """Raise `ConnectionLost` after a fault."""
        fault = self.fault
        if fault is not None:
            raise fault.error(self._where)

    def close(self) -> None:
        """Close channel and connection after all earlier requests; cut the connection if that takes too long."""
        if self._thread.ident is None:
            self._loop.close()
            return
        self._post_if_alive(self._close)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._post_if_alive(self._cut)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _awaited(self) -> "Future[Any]":
        answer: Future[Any] = Future()
        with self._lock:
            if not self._ended:
                self._answers.add(answer)
                return answer
        raise (self.fault or NOT_CONNECTED).error(self._where)

    def _post(self, action: Callable[[], None]) -> None:
        if not self._post_if_alive(action):
            self.check()

    def _post_if_alive(self, action: Callable[[], None]) -> bool:
        with self._lock:
            if not self._ended:
                self._loop.add_callback_threadsafe(action)
            return not self._ended

    # --- the I/O thread's side ---

    def _run(self) -> None:
        try:
            self._start(self._broker.parameters())
            self._loop.start()
        except OSError as error:
            self._fail(
                of_credentials(error, self._broker.address) if self._wire is None else of_closing(error, self._broker)
            )
        except Exception as error:  # noqa: BLE001  # the owner must learn of any error
            self._fail(of_closing(error, self._broker))
        finally:
            with self._lock:
                self._ended = True
            self._fail(self.fault or NOT_CONNECTED)
            self._loop.close()

    def _start(self, parameters: Any) -> None:
        self._wire = _Wire(parameters, self._on_open, self._on_open_error, self._on_close, custom_ioloop=self._loop)
        self._wire.deliver = self._deliver
        keep(self._wire)
        self._wire.add_on_connection_blocked_callback(self._on_blocked)
        self._wire.add_on_connection_unblocked_callback(self._on_unblocked)

    def _on_open(self, _: Any) -> None:
        self.connected = True
        self._opened.set_result(None)

    def _on_open_error(self, wire: Any, error: BaseException) -> None:
        self._end(of_opening(error, self._broker, wire.answer))

    def _on_close(self, _: Any, error: BaseException) -> None:
        self._end(of_closing(error, self._broker))

    def _on_large_delivery(self, _: Any, method: Any, properties: bytes, body: bytes) -> None:
        self._deliver(RabbitDelivery(method.delivery_tag, method.redelivered, properties, body))

    def _end(self, fault: ConnectionFault) -> None:
        self.connected = False
        self._fail(fault)
        self._loop.stop()

    def _on_blocked(self, _: Any, notice: Any) -> None:
        self.blocked = notice.method.reason or "no reason given"
        self._changed()

    def _on_unblocked(self, _: Any, __: Any) -> None:
        self.blocked = ""
        self._changed()

    def _fail(self, fault: ConnectionFault) -> None:
        """Drop the channel: every outstanding request fails with this fault."""
        self.fault = fault
        self._channel = None
        with self._lock:
            waiting, self._answers = self._answers, set()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(fault.error(self._where))
        self._changed()

    def _open_channel(self, opened: "Future[Any]") -> None:
        def ready(channel: Any) -> None:
            self._channel = channel
            self.fault = None
            opened.set_result(None)

        if self._wire is not None and self._wire.is_open:
            channel = self._wire.channel(on_open_callback=ready)
            channel.add_on_close_callback(self._on_channel_closed)
            channel.add_on_cancel_callback(self._on_cancelled)

    def _on_channel_closed(self, _: Any, error: BaseException) -> None:
        """Note that the server has closed the channel. If the whole connection ends, `_on_close` handles it."""
        if isinstance(error, exceptions.ChannelClosedByBroker):
            self._fail(of_channel(error))

    def _on_cancelled(self, _: Any) -> None:
        self._fail(ConnectionFault("E7018", "the server ended the consumer: its queue was deleted, or has moved"))

    def _perform(self, request: Request, answer: "Future[Any] | None") -> None:
        def reply(result: Any = None) -> None:
            if answer is not None and not answer.done():
                answer.set_result(result)

        if self._channel is None:
            if answer is not None and not answer.done():
                answer.set_exception((self.fault or NOT_CONNECTED).error(self._where))
            return
        try:
            request(self._channel, reply)
        except Exception as error:  # noqa: BLE001  # it must not end the thread unnoticed
            self._fail(of_closing(error, self._broker))

    def _close(self) -> None:
        if self._wire is None or self._wire.is_closed:
            self._loop.stop()
        elif not self._wire.is_closing:
            self._wire.close()

    def _cut(self) -> None:
        if self._wire is None or self._wire.is_closed:
            self._loop.stop()
        else:
            self._wire.cut()


@contextmanager
def opened(where: str, broker: RabbitBroker) -> Iterator[RabbitLink]:
    """Open a link for some requests, and close it at the end. Raises `ConnectionLost`."""
    link = RabbitLink(where, broker)
    try:
        link.open()
        yield link
    finally:
        link.close()
