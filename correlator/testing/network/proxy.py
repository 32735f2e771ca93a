"""The proxy: listens on loopback in front of one upstream, and lets injected faults act on the connections."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from correlator.errors import UsageError
from correlator.testing.network.faults import Direction, NetworkFault
from correlator.testing.network.link import HOST, Injection, ProxiedConnection, ProxySocket

T = TypeVar("T")
PATIENCE_S = 60.0


class FaultProxy:
    """Passes TCP connections on to a port of loopback, and lets faults act on them.

    If the upstream does not listen, a client is connected and its connection ends at once. Any thread may call any
    method; a call returns after the proxy's thread has carried it out. Use the proxy as a context manager, or call
    `close`.

    Args:
        upstream: the port to which connections are passed on.

    Attributes:
        port: the port on which the proxy listens; it stays the same after `refuse` and `accept`.
        connections: how many connections the proxy has accepted.
        open_connections: how many of them are open.
    """

    def __init__(self, upstream: int) -> None:
        self.connections = 0
        self.open_connections = 0
        self._upstream = upstream
        self._passed = dict.fromkeys(Direction, 0)
        self._changed = threading.Condition()
        self._injections: list[Injection] = []
        self._links: dict[asyncio.Task[None], ProxiedConnection] = {}
        self._server: asyncio.Server | None = None
        self._reserved = _reserve()
        self.port: int = self._reserved.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def inject(self, fault: NetworkFault) -> Injection:
        """Let a fault act once from this call on; once on each connection if its place says so.

        Raises:
            UsageError: E2411, the byte of its place has passed; E2412, the proxy is closed.
        """
        return self._do(self._inject(fault))

    def cut(self) -> int:
        """End all connections, at both ends; return how many. Bytes that were passed on arrive.

        Raises:
            UsageError: E2412, the proxy is closed.
        """
        return self._do(self._cut(lambda _: True))

    def refuse(self) -> None:
        """Refuse new connections; open ones stay. Raises as `cut`."""
        self._do(self._stop_listening())

    def accept(self) -> None:
        """Accept connections again. Raises as `cut`."""
        self._do(self._listen())

    def heal(self) -> None:
        """Withdraw every fault, accept connections, and end the connections that have lost bytes or their client.

        Raises as `cut`.
        """
        self._do(self._heal())

    def passed(self, direction: Direction) -> int:
        """Return how many bytes were passed on in this direction, over all connections."""
        return self._passed[direction]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition on the proxy's counts holds; return whether it does within `timeout_s` seconds.

        The condition may read `connections`, `open_connections` and `passed`. It is evaluated after each change of
        them.
        """
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def close(self) -> None:
        """Stop listening, end all connections, and wait until they have ended. May be called again."""
        if self._loop.is_closed():
            return
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the loop, and wait for its result."""
        if self._loop.is_closed():
            work.close()
            raise UsageError("E2412", f"proxy of port {self._upstream}", "is closed", "", "Make another one")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # --- in the thread of the loop ---

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, HOST, self.port, reuse_port=True)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _inject(self, fault: NetworkFault) -> Injection:
        injection = Injection(fault, self._do)
        for link in self._links.values():
            link.mark(injection, late=True)
        self._injections[:] = [*(one for one in self._injections if not one.over), injection]
        return injection

    async def _heal(self) -> None:
        for injection in self._injections:
            await injection.end()
        await self._cut(lambda link: link.lossy)
        await self._listen()

    async def _stop(self) -> None:
        await self._stop_listening()
        await self._cut(lambda _: True)

    async def _cut(self, which: Callable[[ProxiedConnection], bool]) -> int:
        tasks = [task for task, link in self._links.items() if which(link)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = ProxiedConnection(self.connections, ProxySocket(reader, writer), self._injections, self._count)
        task = self._loop.create_task(link.run(self._upstream))
        self._links[task] = link
        self._count_links()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._links[task]
        self._count_links()

    def _count(self, direction: Direction, size: int) -> None:
        with self._changed:
            self._passed[direction] += size
            self._changed.notify_all()

    def _count_links(self) -> None:
        with self._changed:
            self.open_connections = len(self._links)
            self._changed.notify_all()


def _reserve() -> socket.socket:
    """Bind a port without listening: no other program gets it while the proxy refuses connections."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((HOST, 0))
    return reserved
