"""What watches an engine from the beginning of its start to the end of its stop: the watchdog and the HTTP server."""

from collections.abc import Callable

from correlator.runtime.http.server import HttpServer
from correlator.runtime.status import Status
from correlator.runtime.watchdog import Watchdog
from correlator.settings import HttpSettings


class Observers:
    """Starts and stops them. The thread that starts and stops the engine uses the object.

    Args:
        watchdog: the watchdog.
        http: where the HTTP server listens; `None` for no server.
        status: returns the status of the engine.

    Attributes:
        server: the HTTP server; `None` before `start` and without one.
    """

    def __init__(self, watchdog: Watchdog, http: HttpSettings | None, status: Callable[[], Status]) -> None:
        self._watchdog = watchdog
        self._http = http
        self._status = status
        self.server: HttpServer | None = None

    def start(self) -> None:
        """Start both. Raises `ConfigError` E1603 and E1604; nothing runs then."""
        if self._http is not None:
            self.server = HttpServer(self._http, self._status)
            self.server.start()
        self._watchdog.start()

    def stop(self) -> None:
        """Stop both; returns when their threads have ended."""
        self._watchdog.stop()
        self._watchdog.join()
        if self.server is not None:
            self.server.stop()
