"""An HTTP server in a thread of its own, and what its applications share. Needs the package `uvicorn`.

The server of an engine shows what the engine does (docs/http.md); the server of a connection receives messages
(docs/web.md).
"""

import asyncio
import contextlib
import hmac
import importlib.util
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from correlator.errors import ConfigError, quoted
from correlator.processes import keep, not_forking

if TYPE_CHECKING:
    from uvicorn import Server

IDLE_S = 5
"""Seconds that a connection without a request stays open."""
STOP_S = 1
"""Seconds that requests get to end when the server stops."""
_TEXT = "text/plain; charset=utf-8"
_SAFETY = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:]+\]|[^:\[\]]+)(:\d{1,5})?")

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An application of the interface ASGI."""
RequestHeaders = Sequence[tuple[bytes, bytes]]
"""The headers of a request, with names in lower case."""


class Response(NamedTuple):
    """The answer to a request.

    Attributes:
        status: the status code of HTTP.
        body: the whole content; without meaning if the caller streams it.
        kind: the media type of the body.
        headers: further headers; they replace those that each answer has.
    """

    status: int
    body: bytes
    kind: str = _TEXT
    headers: Mapping[str, str] = {}


def told(status: int, what: str, headers: Mapping[str, str] = {}) -> Response:
    """An answer that is a line of text."""
    return Response(status, f"{what}\n".encode(), headers=headers)


async def begin(send: Send, answer: Response, *, streamed: bool = False) -> None:
    """Send the head of an answer; without its length if the body is `streamed`."""
    length = {} if streamed else {"content-length": str(len(answer.body))}
    headers = {"content-type": answer.kind, **length, **_SAFETY, **answer.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})


async def respond(send: Send, answer: Response, method: str) -> None:
    """Send a whole answer; for the method HEAD without its body."""
    await begin(send, answer)
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


def values_of(headers: RequestHeaders, wanted: bytes) -> list[bytes]:
    """The values of all headers with this name."""
    return [value for name, value in headers if name == wanted]


def is_loopback(host: str) -> bool:
    """Whether an address or a name can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_for_this_machine(headers: RequestHeaders) -> bool:
    """Whether a request names this machine as its host.

    A page of the web that makes its own name mean 127.0.0.1 in a browser cannot send such a request.
    """
    hosts = values_of(headers, b"host")
    found = _HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
    return found is not None and is_loopback(found["name"])


def bears(headers: RequestHeaders, tokens: Collection[str]) -> bool:
    """Whether a request has one of these tokens, as `Authorization: Bearer TOKEN`."""
    given = values_of(headers, b"authorization")
    return len(given) == 1 and any(hmac.compare_digest(given[0], f"Bearer {token}".encode()) for token in tokens)


class HttpServer:
    """Listens from the construction on, and answers from `start` to `stop`.

    One thread at a time calls its methods. A forked child has no copy of the socket.

    Attributes:
        address: host and port at which it listens, or has listened until it was stopped.

    Args:
        where: the place of the setting that demands the server.
        host: the address of this machine at which it listens.
        port: the TCP port; 0 for any free one.

    Raises:
        ConfigError: E1604, the server cannot listen at the address, for example because another program uses it.
    """

    def __init__(self, where: str, host: str, port: int) -> None:
        self._socket = _listen(where, host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def answers(self) -> bool:
        """Whether it was started, and its thread has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self,
        application: Application,
        *,
        name: str,
        most_connections: int,
        longest_header_bytes: int,
        protocol: type[asyncio.Protocol] | Literal["h11"] = "h11",
    ) -> None:
        """Start the thread. It answers clients that have connected before.

        Args:
            application: answers the requests, in the thread of the server.
            name: name of the thread.
            most_connections: requests of further connections get 503.
            longest_header_bytes: a request with a longer head gets 400.
            protocol: reads and writes what goes through a connection.
        """
        import uvicorn  # noqa: PLC0415  # 0.2 s that engines without the server do not pay

        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                http=protocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",  # no line for each request that is not HTTP
                access_log=False,
                server_header=False,
                limit_concurrency=most_connections,
                h11_max_incomplete_event_size=longest_header_bytes,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and end the thread within about `STOP_S`. May be called without `start`, and more than
        once.
        """
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(2 * STOP_S)
        with contextlib.suppress(OSError):
            self._socket.close()


def require(where: str, packages: Collection[str]) -> None:
    """Raise `ConfigError` E1603 if a package is missing that the server needs."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        what = f"needs the packages {', '.join(missing)}"
        raise ConfigError("E1603", where, what, "", "pip install 'correlator[http]'")


def _listen(where: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with not_forking():
            listening = socket.create_server((host, port), family=family)
            # Connections inherit it. Without it the body of an answer waits 40 ms for the acknowledgement of its head.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep(listening)
    except (OSError, UnicodeError) as error:  # a name that is none cannot be encoded
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        what = f"cannot listen at {quoted(host)[1:-1]} port {port}: {reason}"
        raise ConfigError("E1604", where, what, "", "Choose another port, or end the program that uses it") from error
    return listening
