"""The server of a connection: listens at its port, and knows the path of each receiver."""

import threading

from connectors.http.application import Application, Rules
from connectors.http.endpoint import Endpoint
from connectors.http.protocol import BoundedProtocol
from correlator.errors import ConfigError, ConnectionLost
from correlator.serving import HttpServer

MOST_CONNECTIONS = 500
LONGEST_HEADER_BYTES = 65_536


class WebServer:
    """Listens from the first call of `listen` or `open` to `close`. Any thread may call the methods.

    Args:
        where: the place of the connection.
        host: the address of this machine at which it listens.
        port: the TCP port.
    """

    def __init__(self, where: str, host: str, port: int) -> None:
        self.where = where
        self.host = host
        self.port = port
        self._lock = threading.Lock()
        self._places: dict[str, tuple[Rules, Endpoint] | None] = {}
        self._server: HttpServer | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port at which it listens; `None` if it does not listen."""
        server = self._server
        return None if server is None else server.address

    @property
    def answers(self) -> bool:
        """Whether it listens and answers."""
        server = self._server
        return server is not None and server.answers

    def declare(self, path: str) -> None:
        """Answer that the receiver of this path does not work yet, instead of that the path does not exist."""
        with self._lock:
            self._places.setdefault(path, None)

    def listen(self) -> None:
        """Begin to listen and to answer, unless it does already. Raises `ConfigError` E1604."""
        with self._lock:
            if self._server is not None and self._server.answers:
                return
            self._stop()
            server = HttpServer(f"{self.where}.port", self.host, self.port)
            server.start(
                Application(self._places),
                name="http-connection",
                most_connections=MOST_CONNECTIONS,
                longest_header_bytes=LONGEST_HEADER_BYTES,
                protocol=BoundedProtocol,
            )
            self._server = server

    def open(self, where: str, path: str, rules: Rules, endpoint: Endpoint) -> None:
        """Route requests for a path to an endpoint, and open it.

        Raises `ConnectionLost` E7009 if another receiver has the path, E7001 if the server cannot listen at the port.
        """
        try:
            self.listen()
        except ConfigError as error:
            raise ConnectionLost("E7001", where, error.what, error.allowed, error.todo) from error
        with self._lock:
            place = self._places.get(path)
            if place is not None and place[1] is not endpoint and place[1].is_open:
                what = f"another receiver takes the requests of {path}"
                raise ConnectionLost("E7009", where, what, "A path has one receiver", "Give one of them another path")
            endpoint.open()
            self._places[path] = rules, endpoint

    def close(self) -> None:
        """Stop listening. Receivers have closed their endpoints before."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
