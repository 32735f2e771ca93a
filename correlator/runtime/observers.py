"""What watches an engine from its start to the end of its stop: the watchdog, the HTTP server, the control socket."""

from correlator.runtime.control.server import ControlServer
from correlator.runtime.http.server import serve
from correlator.runtime.http.shown import Shown
from correlator.runtime.watchdog import Watchdog
from correlator.serving import HttpServer
from correlator.settings import HttpSettings


class Observers:
    """Starts and stops them. The thread that starts and stops the engine uses the object.

    Args:
        watchdog: the watchdog.
        http: where the HTTP server listens; `None` for no server.
        shown: the engine, for the HTTP server.
        control: listens at the control socket.

    Attributes:
        server: the HTTP server; `None` before `start` and without one.
    """

    def __init__(self, watchdog: Watchdog, http: HttpSettings | None, shown: Shown, control: ControlServer) -> None:
        self._watchdog = watchdog
        self._http = http
        self._shown = shown
        self._control = control
        self._started = False
        self.server: HttpServer | None = None

    def start(self) -> None:
        """Start watchdog and HTTP server. Raises `ConfigError` E1603 and E1604; nothing runs then."""
        if self._http is not None:
            self.server = serve(self._http, self._shown)
        self._watchdog.start()
        self._started = True

    def control(self, *, owned: bool) -> None:
        """Open the control socket, unless this engine has no threads.

        Args:
            owned: whether the engine owns its store now, and so the place of the socket.
        """
        if self._started:
            self._control.open(displace=owned)

    def stop(self) -> None:
        """Stop all; returns when their threads have ended."""
        self._shown.timeline.close()
        self._control.close()
        self._watchdog.stop()
        self._watchdog.join()
        if self.server is not None:
            self.server.stop()
