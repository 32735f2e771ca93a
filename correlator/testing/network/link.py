"""One connection through the proxy: its two streams of bytes, the faults that act on them, and its end.

The thread of the proxy's event loop runs everything here. So all connections see events in one order: the proxy settles
the place of a fault before it passes on the bytes on which that place depends.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from correlator.errors import UsageError
from correlator.testing.network.faults import AtByte, AtRequest, CutConnection, Delay, Direction, NetworkFault, Stall

HOST = "127.0.0.1"
LARGEST_PIECE = 65536
LONGEST_SPLIT = 64
"""How many bytes of a request that arrives in several pieces may be in the earlier pieces."""


class Injection:
    """A fault that a proxy carries. Any thread may read the attributes and call `wait` and `withdraw`.

    Attributes:
        fault: the injected fault.
        fired: how often the fault has acted.
        hits: how many matching requests its place has recognised, up to the request at which it acts.
    """

    def __init__(self, fault: NetworkFault, do: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.fault = fault
        self.fired = 0
        self.hits = 0
        self._do = do
        self._acted = threading.Event()
        self._over = asyncio.Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until the fault has acted; return whether it has."""
        return self._acted.wait(timeout_s)

    def withdraw(self) -> None:
        """End the fault. Bytes that it held or delayed pass on; bytes that it swallowed, and connections that it cut,
        stay lost.

        Raises:
            UsageError: E2412, the proxy is closed.
        """
        self._do(self.end())

    async def end(self) -> None:
        """Mark the fault as withdrawn."""
        self._over.set()

    @property
    def over(self) -> bool:
        """Whether the fault is withdrawn."""
        return self._over.is_set()

    async def hold(self, seconds: float | None) -> None:
        """Wait `seconds`, or without limit if that is `None`; return early if the fault is withdrawn."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    def fire(self) -> None:
        """Record that the fault has acted."""
        self.fired += 1
        self._acted.set()

    def meets(self, place: AtRequest) -> bool:
        """Count a matching request; return whether it is the request at which the fault acts."""
        self.hits += 1
        return self.hits == place.hit


class ProxySocket:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until the kernel has all, so that it arrives

    async def read(self) -> bytes:
        """Read the next piece, empty at the end of the stream."""
        return await self._reader.read(LARGEST_PIECE)

    async def write(self, data: bytes) -> None:
        """Hand all bytes to the kernel."""
        self._writer.write(data)
        await self._writer.drain()

    def write_end(self) -> None:
        """Send the end of the stream."""
        self._writer.write_eof()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


class LinkLostError(Exception):
    """The connection ends here.

    Attributes:
        upstream: whether the upstream's end is closed, too.
    """

    def __init__(self, *, upstream: bool = True) -> None:
        super().__init__()
        self.upstream = upstream


class NetworkStream:
    """One direction of a connection.

    Attributes:
        passed: how many bytes were passed on.
        swallows: whether all further bytes are lost.
    """

    def __init__(self) -> None:
        self.passed = 0
        self.swallows = False
        self._delays: list[Injection] = []
        self._marks: list[tuple[int, Injection]] = []

    def mark(self, position: int, injection: Injection) -> None:
        """Let a fault act when `position` bytes have passed."""
        self._marks.append((position, injection))
        self._marks.sort(key=lambda mark: mark[0])

    def room(self, size: int) -> int:
        """How many of `size` bytes pass before the next fault acts."""
        return min(size, self._marks[0][0] - self.passed) if self._marks else size

    async def meet_faults(self) -> None:
        """Let the faults act whose place has been reached.

        Raises:
            LinkLostError: a fault cuts the connection.
        """
        while self._marks and self._marks[0][0] <= self.passed:
            _, injection = self._marks.pop(0)
            if not injection.over:
                await self._meet(injection)

    async def _meet(self, injection: Injection) -> None:
        injection.fire()
        match injection.fault.action:
            case CutConnection(upstream=upstream):
                raise LinkLostError(upstream=upstream)
            case Stall(seconds=seconds):
                await injection.hold(seconds)
            case Delay():
                self._delays.append(injection)
            case _:
                self.swallows = True

    async def delay(self) -> None:
        """Wait as long as the faults of this direction delay each piece."""
        for injection in self._delays:
            if isinstance(injection.fault.action, Delay):
                await injection.hold(injection.fault.action.seconds)


class ProxiedConnection:
    """A connection of a client, and the connection to the upstream that belongs to it.

    Args:
        number: the number among the proxy's connections, counted from 1.
        client: the client's end.
        injections: the faults of the proxy; a fault that has found its request is removed.
        count: called with the direction and the number of bytes before bytes are passed on.
    """

    def __init__(
        self, number: int, client: ProxySocket, injections: list[Injection], count: Callable[[Direction, int], None]
    ) -> None:
        self._number = number
        self._client = client
        self._injections = injections
        self._count = count
        self._streams = {direction: NetworkStream() for direction in Direction}
        self._earlier = b""
        self._orphaned = False
        for injection in injections:
            self.mark(injection)

    @property
    def lossy(self) -> bool:
        """Return whether bytes of the connection were lost, or its client is gone while the upstream
        keeps its session.
        """
        return self._orphaned or any(stream.swallows for stream in self._streams.values())

    def mark(self, injection: Injection, *, late: bool = False) -> None:
        """Take over a fault whose place is a byte of this connection; ignore others.

        Args:
            injection: the fault.
            late: whether the connection exists already.

        Raises:
            UsageError: E2411, the fault is `late` and names this connection, but its byte has passed.
        """
        place = injection.fault.place
        if not isinstance(place, AtByte) or place.connection not in (None, self._number):
            return
        stream = self._streams[place.direction]
        if place.after >= stream.passed:
            stream.mark(place.after, injection)
        elif late and place.connection:
            what = f"byte {place.after} of connection {self._number} has passed already"
            raise UsageError("E2411", "fault, after", what, f"{stream.passed} or more")

    async def run(self, port: int) -> None:
        """Pass bytes on until both streams have ended or the connection is cut."""
        ends = [self._client]
        try:
            with contextlib.suppress(OSError):
                ends.append(ProxySocket(*await asyncio.open_connection(HOST, port)))
                await self._pass_both_ways(ends[1])
        finally:
            for end in ends:
                end.abort()

    async def _pass_both_ways(self, upstream: ProxySocket) -> None:
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass(Direction.REQUEST, self._client, upstream))
                ways.create_task(self._pass(Direction.REPLY, upstream, self._client))
        except* LinkLostError as lost:
            self._orphaned = not all(isinstance(one, LinkLostError) and one.upstream for one in lost.exceptions)
        if self._orphaned:
            self._client.abort()
            while await upstream.read():
                continue

    async def _pass(self, direction: Direction, source: ProxySocket, target: ProxySocket) -> None:
        stream = self._streams[direction]
        try:
            while data := await source.read():
                if direction is Direction.REQUEST:
                    self._recognise(data)
                await self._pass_piece(direction, data, target)
            if not stream.swallows:
                target.write_end()
        except OSError as error:
            raise LinkLostError from error

    async def _pass_piece(self, direction: Direction, data: bytes, target: ProxySocket) -> None:
        stream = self._streams[direction]
        await stream.meet_faults()
        while data and not stream.swallows:
            part = data[: stream.room(len(data))]
            data = data[len(part) :]
            await stream.delay()
            stream.passed += len(part)
            self._count(direction, len(part))
            await target.write(part)
            await stream.meet_faults()

    def _recognise(self, data: bytes) -> None:
        """Find requests, and set the places of the faults that wait for them, before a byte of this piece passes."""
        window = self._earlier + data
        for injection in list(self._injections):
            place = injection.fault.place
            if isinstance(place, AtRequest):
                for found in place.matcher.finditer(window):
                    if found.end() > len(self._earlier) and injection.meets(place):
                        self._injections.remove(injection)
                        self._mark_request(place, injection, found.start() - len(self._earlier))
        self._earlier = window[-LONGEST_SPLIT:]

    def _mark_request(self, place: AtRequest, injection: Injection, begin: int) -> None:
        """Set the place of a fault; its request begins `begin` bytes ahead, or earlier if its first bytes came in
        another piece.
        """
        stream = self._streams[place.direction]
        stream.mark(stream.passed + place.after + (begin if place.direction is Direction.REQUEST else 0), injection)
