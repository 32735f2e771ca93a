"""A connection of a client, with a time limit for each request."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from correlator.processes import keep

REQUEST_S = 30.0
"""Seconds in which a request must arrive, and in which the first byte must arrive after the connection; otherwise the
connection is closed. So slow clients cannot occupy all connections for ever.
"""


class BoundedProtocol(H11Protocol):
    """The protocol of uvicorn with further time limits: uvicorn checks the time only while a connection is idle.

    A forked child has no copy of the socket: clients of a parent that was killed need not wait for the child.
    """

    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        """Begin to watch the time; close the connection at once if there are far too many."""
        super().connection_made(transport)
        keep(self)
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()  # answering 503 is no defence against clients that never send a request
        else:
            self._begin()

    def data_received(self, data: bytes) -> None:
        """Watch the time until the request has arrived."""
        if self._watch is None:
            self._begin()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end()

    def on_response_complete(self) -> None:
        """Watch the time of a request that arrived, in part, before the answer to the previous one."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._watch is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the time: the connection has ended. Called by the event loop."""
        self._end()
        super().connection_lost(exc)

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when it is closed."""
        return int(self.transport.get_extra_info("socket").fileno())

    def _begin(self) -> None:
        self._watch = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
