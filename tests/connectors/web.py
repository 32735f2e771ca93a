"""Clients and services that speak HTTP with the connector, by means of the standard library alone."""

import http.client
import json
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from connectors.http import HttpConnection
from connectors.http.source import HttpSource
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.waiting import answer_to

PATIENCE_S = 60.0
_AT_ONCE_S = 0.2
TOKEN = "t" * 32


class Got(NamedTuple):
    """What a client has got."""

    status: int
    text: str
    headers: Mapping[str, str]


def post(
    address: tuple[str, int], path: str, body: Any, headers: Mapping[str, Any] | None = None, method: str = "POST"
) -> Got:
    """Send a request, on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        chunked = not isinstance(body, bytes | str | None)
        connection.request(method, quote(path), body, dict(headers or {}), encode_chunked=chunked)
        answer = connection.getresponse()
        return Got(answer.status, answer.read().decode(), dict(answer.getheaders()))
    finally:
        connection.close()


def raw(address: tuple[str, int], sent: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        return answer_to(sent, connection)


class Posting(threading.Thread):
    """A request in a thread of its own."""

    def __init__(
        self, address: tuple[str, int], path: str, body: Any, headers: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._request = address, path, body, headers
        self._got: Got | None = None
        self.start()

    def run(self) -> None:
        """Send it."""
        self._got = post(*self._request)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer, or comes at once: one that is too early needs a moment to arrive."""
        self.join(_AT_ONCE_S)
        return self._got is not None

    def got(self) -> Got:
        """The answer."""
        self.join(PATIENCE_S)
        assert self._got is not None, "no answer"
        return self._got


class Web:
    """A connection that listens at a free port, and its sources."""

    def __init__(self, **options: Any) -> None:
        self.connection = HttpConnection("web", ConnectionSettings(type="http", options={"port": 0, **options}))
        self._sources: list[HttpSource] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        address = self.connection.address
        assert address is not None
        return address

    def source(self, name: str = "orders", *, options: Mapping[str, Any] | None = None, **settings: Any) -> HttpSource:
        """A connected source of a path."""
        receiver = ReceiverSettings(
            id=name, connection="web", destination=f"queue:{name}", options=options or {}, **settings
        )
        source = self.connection.source(receiver)
        self._sources.append(source)
        source.connect()
        return source

    def post(self, body: Any = b"{}", key: str | None = "k", path: str = "/orders", **headers: Any) -> Got:
        """Send a request and wait for the answer; `_` in names of headers is `-`."""
        return post(self.address, path, body, self._headers(key, headers))

    def posting(self, body: Any = b"{}", key: str | None = "k", path: str = "/orders", **headers: Any) -> Posting:
        """Send a request, and go on."""
        return Posting(self.address, path, body, self._headers(key, headers))

    def close(self) -> None:
        """Close all."""
        for source in self._sources:
            source.close()
        self.connection.close()

    def _headers(self, key: str | None, headers: Mapping[str, Any]) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return named if key is None else {"Idempotency-Key": key, **named}


class Call(NamedTuple):
    """A request that a service has got."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        """Its `Idempotency-Key`."""
        return self.headers.get("Idempotency-Key")


Reply = tuple[int, Mapping[str, str], bytes]
Behaviour = Callable[[Call], "Reply | str"]
"""What the service does with a call: an answer; or `silent`, `closed`, `half`, `half a body` or `drip`, after it has stored it."""
FINE: Reply = (200, {}, b"fine")


class WebService(ThreadingHTTPServer):
    """A service that stores what it gets; if it `deduplicates`, once for each key and path."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, deduplicates: bool = False, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._deduplicates = deduplicates
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        """All that came, in the order in which it came."""
        self.stored: list[Call] = []
        self.keys: Counter[tuple[str, str]] = Counter()
        self.behaviour: Behaviour = lambda _: FINE
        self.released = threading.Event()
        """Ends the silence."""
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.scheme = "http" if tls is None else "https"

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://localhost:{self.server_port}"

    def come(self, call: Call) -> "Reply | str":
        """Take note of a call; returns what to do."""
        with self._lock:
            self.calls.append(call)
        reply = self.behaviour(call)
        with self._lock:
            if isinstance(reply, str) or reply[0] < 300:
                place = call.path, call.key or ""
                if not (self._deduplicates and call.key and self.keys[place]):
                    self.stored.append(call)
                self.keys[place] += 1
        return reply

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: WebService

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # the sender has died
            self.close_connection = True
            return
        reply = self.server.come(Call(unquote(self.path), dict(self.headers.items()), body))
        if isinstance(reply, str):
            self.close_connection = True
            if reply == "half":
                self.wfile.write(b"HTTP/1.1 20")
            elif reply == "half a body":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfine")
            elif reply == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Never-Ending: ")
                while not self.server.released.wait(0.01):
                    self.wfile.write(b"x")
            elif reply == "silent":
                self.server.released.wait(PATIENCE_S)
            return
        status, headers, content = reply
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**options: Any) -> Iterator[WebService]:
    """A service that runs."""
    service = WebService(**options)
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.released.set()
        service.shutdown()
        service.server_close()
        thread.join()


def lines(*texts: str) -> bytes:
    """A body with a JSON text in each line."""
    return b"".join(json.dumps(text).encode() + b"\n" for text in texts)


def certified(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """The side of a service of TLS for the name `localhost`, and the file of the certificate that clients trust."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
