"""Serves the HTTP routes in a thread of its own.

Needs the packages of the extra `http`, which are imported only if the settings ask for the server.
"""

from collections.abc import Callable

from correlator.runtime.http.routes import Routes
from correlator.runtime.logs import get_logger
from correlator.runtime.status import Status
from correlator.runtime.timeline import Timeline
from correlator.serving import HttpServer, require
from correlator.settings import HttpSettings

WHERE = "http"
MOST_CONNECTIONS = 64
LONGEST_HEADER_BYTES = 16_384
_PACKAGES = ("uvicorn", "prometheus_client")


def serve(settings: HttpSettings, status: Callable[[], Status], timeline: Timeline) -> HttpServer:
    """Start the server.

    Args:
        settings: where it listens.
        status: returns the status of the engine; the thread of the server calls it.
        timeline: the changes of state that `/events` shows.

    Raises:
        ConfigError: E1603, a package of the extra `http` is not installed; E1604, the address cannot be listened at.
    """
    require(WHERE, _PACKAGES)
    server = HttpServer(WHERE, settings.host, settings.port)
    routes = Routes(status, settings.token, timeline)
    server.start(routes, name="http", most_connections=MOST_CONNECTIONS, longest_header_bytes=LONGEST_HEADER_BYTES)
    host, port = server.address
    get_logger().info("serving HTTP", host=host, port=port)
    return server
