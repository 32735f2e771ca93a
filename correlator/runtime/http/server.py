"""Serves the HTTP routes in a thread of its own.

Needs the packages of the extra `http`, which are imported only if the settings ask for the server.
"""

from correlator.runtime.http.routes import Router
from correlator.runtime.http.shown import Shown
from correlator.runtime.logs import get_logger
from correlator.serving import HttpServer, require
from correlator.settings import HttpSettings

WHERE = "http"
MOST_CONNECTIONS = 64
LONGEST_HEADER_BYTES = 16_384
_PACKAGES = ("uvicorn", "prometheus_client")


def serve(settings: HttpSettings, shown: Shown) -> HttpServer:
    """Start the server.

    Args:
        settings: where it listens.
        shown: the engine.

    Raises:
        ConfigError: E1603, a package of the extra `http` is not installed; E1604, the address cannot be listened at.
    """
    require(WHERE, _PACKAGES)
    server = HttpServer(WHERE, settings.host, settings.port)
    routes = Router(shown, settings.token)
    server.start(routes, name="http", most_connections=MOST_CONNECTIONS, longest_header_bytes=LONGEST_HEADER_BYTES)
    host, port = server.address
    get_logger().info("serving HTTP", host=host, port=port)
    return server
