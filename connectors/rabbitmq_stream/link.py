"""The link of a source or sink to a stream: one connection of the stream protocol, with an I/O thread and event loop.

Only the I/O thread uses objects of rstream. It answers heartbeats while the owner's thread is busy. The owner passes
requests to it and waits for the answers, at most `timeout_s` for each. After a fault the owner closes the link and
makes another one.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rstream import exceptions, schema
from rstream.client import Client

from connectors.rabbitmq_server import NOT_CONNECTED, ConnectionFault, of_credentials
from connectors.rabbitmq_stream.broker import NodeAddress, StreamBroker
from connectors.rabbitmq_stream.destinations import StreamDestination
from connectors.rabbitmq_stream.failures import (
    of_foreign,
    of_opening,
    of_refusal,
)
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import quoted
from correlator.processes import keep

CLOSE_TIMEOUT_S = 5.0
"""Seconds that an orderly close may take before the connection is cut."""
_LAST_ANSWERS_S = 0.05
"""Seconds from the end of a connection until outstanding requests fail: their answers may have arrived before it."""
_DELIVERIES = 0
"""The number of the queue of rstream that passes deliveries on."""
_LARGEST_FRAME = 2**31 - 1
"""The largest frame that the client asks for, so that the server's own limit applies."""
_T = TypeVar("_T")

logging.getLogger("rstream").addHandler(logging.NullHandler())  # errors report what rstream would print


class Utf8(str):
    """A text whose `len` counts bytes of UTF-8: rstream writes the length of a text in front of its bytes."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.encode())


class Wire(Client):
    """A connection of rstream that reports its end. Used by the I/O thread only.

    Args:
        broker: the options of the connection.
        address: the node to connect to.
        tls: `None` for no TLS.
        lost: called with the reason when the connection has ended.
    """

    def __init__(
        self,
        broker: StreamBroker,
        address: NodeAddress,
        tls: ssl.SSLContext | None,
        lost: Callable[[ConnectionFault], None],
    ) -> None:
        super().__init__(
            *address,
            ssl_context=tls,
            frame_max=_LARGEST_FRAME,
            heartbeat=broker.heartbeat_s,
            connection_name="correlator",
            connection_closed_handler=lambda _: None,
        )
        self._address = address
        self._heartbeat_s = broker.heartbeat_s
        self._timeout_s = broker.timeout_s
        self._lost = lost
        self._said = ""

    @property
    def is_foreign(self) -> bool:
        """Return whether the first bytes from the server were not a frame of the protocol."""
        return self.server_properties is None and self._conn is not None and bool(self._conn._buffer)  # noqa: SLF001

    @property
    def advertised(self) -> NodeAddress:
        """The address that the node advertises."""
        properties = self.server_properties or {}
        return NodeAddress(properties.get("advertised_host", ""), int(properties.get("advertised_port", 0)))

    def fileno(self) -> int:
        """The descriptor of the socket, -1 if there is none."""
        writer = None if self._conn is None else self._conn._writer  # noqa: SLF001
        sock = None if writer is None else writer.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    async def listen(self, handle: Callable[[schema.Deliver], Awaitable[None]]) -> None:
        """Call the handler with each delivery, one after another."""

        async def deliver(delivery: Any) -> None:
            if isinstance(delivery, asyncio.Event):
                delivery.set()
            else:
                await handle(delivery)

        await self.run_queue_listener_task(_DELIVERIES, deliver)
        self.add_handler(schema.Deliver, deliver, name=str(_DELIVERIES))

    async def settle(self) -> None:
        """Return when all received deliveries are handled."""
        settled = asyncio.Event()
        await self._frames[_DELIVERIES].put(settled)
        await settled.wait()

    def wait_frame(self, frame_cls: Any, corr_id: int | None = None, timeout: int | None = None) -> Any:
        """Wait as rstream does, with the time-out of the options."""
        return super().wait_frame(frame_cls, corr_id, timeout or self._timeout_s)

    async def cut(self) -> None:
        """End the connection without telling the server."""
        self._is_not_closed = False
        for name in list(self._tasks):
            with contextlib.suppress(Exception):  # a task may have ended with any error
                await self.stop_task(name)
        if self._conn is not None:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._conn.close(), CLOSE_TIMEOUT_S)

    async def _listener(self) -> None:
        reason = "it ended"
        try:
            await super()._listener()
        except Exception as error:  # noqa: BLE001  # the owner must learn of any error
            reason = str(error) or type(error).__name__
        await asyncio.sleep(_LAST_ANSWERS_S)
        self._lost(ConnectionFault("E7001", f"the connection to {self._address} was lost ({self._said or reason})"))

    async def _heartbeat_sender(self) -> None:
        while self._heartbeat_s and self.is_connection_alive():
            await self.send_frame(schema.Heartbeat())
            await asyncio.sleep(self._heartbeat_s)
            if time.monotonic() - self._last_heartbeat > 2 * self._heartbeat_s:
                what = f"nothing was heard from {self._address} for more than {2 * self._heartbeat_s} s"
                self._lost(ConnectionFault("E7022", what))

    def _on_close(self, close: schema.Close) -> None:
        self._said = f"the server closed it: {close.reason} ({close.code})"


class StreamLink:
    """A connection of the stream protocol. Owned by one thread, that of its source or sink.

    Args:
        where: the receiver or sender, for messages.
        broker: the server.
        changed: called in the I/O thread after a fault.

    Attributes:
        fault: the reason why the connection cannot be used; `None` while it can.
    """

    def __init__(self, where: str, broker: StreamBroker, changed: Callable[[], None] = lambda: None) -> None:
        self.fault: ConnectionFault | None = None
        self._where = where
        self._broker = broker
        self._changed = changed
        self._wire: Wire | None = None
        self._requests: set[asyncio.Task[Any]] = set()  # touched in the I/O thread only
        self._running = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        self._thread = threading.Thread(target=self._run, name=f"rabbitmq stream {where}", daemon=True)

    # --- the owner's side ---

    def open(self) -> None:
        """Connect. Raises `ConnectionLost`; the owner has to close the link in that case, too."""
        self._thread.start()
        self._running.wait()
        self.finish(self._submit(lambda: self._connect(self._broker.address), ""))

    def open_at(self, destination: StreamDestination) -> None:
        """Make the stream if the options say so, and connect to its leader node. Raises `ConnectionLost`."""
        if destination.declare:
            self.ask(lambda wire: _declare(wire, destination), destination.stream)
        self.ask(lambda wire: self._go_to_leader(wire, destination.stream), destination.stream)

    def exists(self, stream: str) -> bool:
        """Return whether the stream exists. Raises `ConnectionLost`."""
        return self.ask(lambda wire: wire.stream_exists(Utf8(stream)), stream)

    def ask(self, request: Callable[[Wire], Coroutine[Any, Any, _T]], stream: str) -> _T:
        """Make a request about a stream, and wait for its result.

        Raises `ConnectionLost`, also if the server refuses the request.
        """
        return self.finish(self.begin(request, stream))

    def begin(self, request: Callable[[Wire], Coroutine[Any, Any, _T]], stream: str) -> "Future[_T]":
        """Make a request about a stream; `finish` waits for its result."""
        return self._submit(lambda: request(self._connected()), stream)

    def finish(self, result: "Future[_T]") -> _T:
        """Wait for the result of a request. Raises `ConnectionLost`."""
        try:
            return result.result(self._broker.timeout_s + CLOSE_TIMEOUT_S)  # each frame has its own time-out
        except TimeoutError:
            result.cancel()
            raise self.silent().error(self._where) from None

    def silent(self) -> ConnectionFault:
        """The fault of a server that does not answer in time."""
        self.fault = self.fault or ConnectionFault(
            "E7023", f"{self._broker.address} did not answer within {self._broker.timeout_s} s"
        )
        return self.fault

    def check(self) -> None:
        """Raise `ConnectionLost` after a fault."""
        if self.fault is not None:
            raise self.fault.error(self._where)

    def close(self) -> None:
        """Close the connection after all earlier requests; cut it if that takes too long."""
        if self._thread.ident is None:
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _submit(self, work: Callable[[], Awaitable[_T]], stream: str) -> "Future[_T]":
        return asyncio.run_coroutine_threadsafe(self._perform(work, stream), self._loop)

    # --- the I/O thread's side ---

    def fail(self, fault: ConnectionFault) -> None:
        """Drop the connection: every outstanding request fails with the fault."""
        if self.fault is None:
            self.fault = fault
        for request in self._requests:
            request.cancel()
        self._changed()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._running.set()
        await self._closing.wait()
        await self._hang_up()

    async def _connect(self, address: NodeAddress) -> None:
        try:
            tls = self._broker.tls_context()
            password = self._broker.current_password()
        except OSError as error:
            raise of_credentials(error, address).error(self._where) from error
        self._wire = wire = Wire(self._broker, address, tls, self._on_lost)
        keep(wire)
        try:
            await wire.start()
            await wire.authenticate(Utf8(self._broker.virtual_host), self._broker.user, password)
        except (exceptions.ServerError, OSError, TimeoutError, ValueError, AssertionError) as error:
            fault = of_foreign(address) if wire.is_foreign else of_opening(error, self._broker, address)
            self.fail(fault)
            raise fault.error(self._where) from error
        wire.add_handler(schema.MetadataUpdate, self._on_stream_changed, name="changed")

    async def _go_to_leader(self, wire: Wire, stream: str) -> None:
        try:
            leader, _ = await wire.query_leader_and_replicas(Utf8(stream))
        except exceptions.LeaderNotAvailable:
            what = "the stream has no leader at present"
            raise ConnectionFault(NO_SUCH_DESTINATION, what).error(self._where) from None
        address = NodeAddress(leader.host, leader.port)
        if address != wire.advertised:
            await self._hang_up()
            await self._connect(address)

    def _connected(self) -> Wire:
        if self.fault is not None or self._wire is None:
            raise (self.fault or NOT_CONNECTED).error(self._where)
        return self._wire

    async def _perform(self, work: Callable[[], Awaitable[_T]], stream: str) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            return await work()
        except asyncio.CancelledError:
            raise (self.fault or NOT_CONNECTED).error(self._where) from None
        except TimeoutError:
            raise self.silent().error(self._where) from None
        except exceptions.ServerError as error:
            raise of_refusal(error, stream, self._broker).error(self._where) from error
        finally:
            self._requests.discard(task)

    async def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is None:
            return
        with contextlib.suppress(Exception):
            if self.fault is None:
                await asyncio.wait_for(wire.close(), CLOSE_TIMEOUT_S)
        await wire.cut()

    def _on_lost(self, fault: ConnectionFault) -> None:
        if self._wire is not None:
            self.fail(of_foreign(self._broker.address) if self._wire.is_foreign else fault)

    def _on_stream_changed(self, update: schema.MetadataUpdate) -> None:
        stream = update.metadata_info.stream
        self.fail(ConnectionFault("E7018", f"the stream {quoted(stream)} was deleted, or has moved to another node"))


async def _declare(wire: Wire, destination: StreamDestination) -> None:
    with contextlib.suppress(exceptions.StreamAlreadyExists):
        await wire.create_stream(Utf8(destination.stream), dict(destination.arguments))
