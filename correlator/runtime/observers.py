"""What watches an engine from its start to the end of its stop: the watchdog, the HTTP server, the control socket, and
the spans of OpenTelemetry.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from correlator.errors import ConfigError
from correlator.runtime.clock import Clock
from correlator.runtime.control.server import ControlServer
from correlator.runtime.http.server import serve
from correlator.runtime.http.shown import Shown
from correlator.runtime.watchdog import Watchdog
from correlator.serving import HttpServer
from correlator.settings import EngineSettings

if TYPE_CHECKING:
    from correlator.runtime.spans import Spans

_OTEL = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class Observers:
    """Starts and stops the observers. The thread that starts and stops the engine uses the object.

    Args:
        watchdog: the watchdog.
        settings: specify where the HTTP server listens, and where spans go.
        clock: the time of day.
        shown: the engine, for the HTTP server.
        control: listens at the control socket.

    Attributes:
        server: the HTTP server; `None` before `start` and without one.
        spans: makes the spans of this engine; `None` before `start`, and if there are none.
    """

    def __init__(
        self, watchdog: Watchdog, settings: EngineSettings, clock: Clock, shown: Shown, control: ControlServer
    ) -> None:
        self._watchdog = watchdog
        self._settings = settings
        self._clock = clock
        self._shown = shown
        self._control = control
        self._started = False
        self.server: HttpServer | None = None
        self.spans: Spans | None = None

    def start(self) -> None:
        """Start all but the control socket. Raises `ConfigError` E1603, E1604, E1611 and E1612; after an error nothing
        runs.
        """
        self.spans = self._make_spans()
        try:
            if self._settings.http is not None:
                self.server = serve(self._settings.http, self._shown)
            self._watchdog.start()
        except BaseException:
            self._end()
            raise
        self._started = True

    def _make_spans(self) -> "Spans | None":
        settings = self._settings.opentelemetry
        if settings is None:
            return None
        missing = [package for package in _OTEL if not _is_installed(package)]
        if missing:
            what = f"needs the packages {', '.join(missing)}"
            raise ConfigError("E1612", "opentelemetry", what, "", "pip install 'correlator[otel]'")
        spans = importlib.import_module("correlator.runtime.spans")  # half a second that other engines save
        try:
            made: Spans = spans.Spans(settings, self._settings.name, self._clock.wall)
        except ValueError as error:
            todo = "Check the environment variables OTEL_…"
            raise ConfigError("E1611", "opentelemetry", f"cannot be used: {error}", "", todo) from error
        return made

    def control(self, *, owned: bool) -> None:
        """Open the control socket, unless this engine has no threads.

        Args:
            owned: whether the engine owns its store now, and so the place of the socket.
        """
        if self._started:
            self._control.open(displace=owned)

    def stop(self) -> None:
        """Stop all observers; returns when their threads have ended."""
        self._shown.timeline.close()
        self._control.close()
        self._watchdog.stop()
        self._watchdog.join()
        self._end()

    def _end(self) -> None:
        if self.server is not None:
            self.server.stop()
        if self.spans is not None:
            self.spans.close()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package above it
        return False
