"""Serves the HTTP routes in a thread of its own.

Needs the packages of the extra `http`, which are imported only if the settings ask for the server.
"""

import contextlib
import importlib.util
import socket
import threading
from typing import TYPE_CHECKING

from correlator.errors import ConfigError
from correlator.processes import keep, not_forking
from correlator.runtime.http.routes import Routes
from correlator.runtime.http.shown import Shown
from correlator.runtime.logs import get_logger
from correlator.settings import HttpSettings

if TYPE_CHECKING:
    from uvicorn import Server

WHERE = "http"
MOST_CONNECTIONS = 64
LONGEST_HEADER_BYTES = 16_384
IDLE_S = 5
STOP_S = 1
_PACKAGES = ("uvicorn", "prometheus_client")


class HttpServer:
    """Listens from the construction on, and answers from `start` to `stop`.

    One thread calls its methods. A forked child has no copy of the socket.

    Args:
        settings: where it listens.
        shown: the engine.

    Raises:
        ConfigError: E1603, a package of the extra `http` is not installed; E1604, the address cannot be listened at,
            because another program uses it for example.
    """

    def __init__(self, settings: HttpSettings, shown: Shown) -> None:
        missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
        if missing:
            what = f"needs the packages {', '.join(missing)}"
            raise ConfigError("E1603", WHERE, what, "", "pip install 'correlator[http]'")
        self._settings = settings
        self._shown = shown
        self._socket = self._listen()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with not_forking():
                listening = socket.create_server((host, port), family=family)
                keep(listening)
        except OSError as error:
            what = f"cannot listen at {host} port {port}: {error.strerror or error}"
            raise ConfigError(
                "E1604", WHERE, what, "", "Choose another port, or end the program that uses it"
            ) from error
        return listening

    def start(self) -> None:
        """Start the thread. It answers clients that have connected before."""
        import uvicorn  # noqa: PLC0415  # 0.2 s that engines without the server do not pay

        self._server = uvicorn.Server(
            uvicorn.Config(
                Routes(self._shown, self._settings.token),
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=LONGEST_HEADER_BYTES,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        self._thread.start()
        host, port = self.address
        get_logger().info("serving HTTP", host=host, port=port)

    def stop(self) -> None:
        """Stop listening, and end the thread within about `STOP_S`. May be called without `start`, and again."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(2 * STOP_S)
        with contextlib.suppress(OSError):
            self._socket.close()
