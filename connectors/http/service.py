"""The service to which a connection sends: its address, and how to connect to it."""

import http.client
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from correlator.connector import TAKES_NOTHING
from correlator.errors import ConfigError, ConnectionLost
from correlator.options import is_host, text_option
from correlator.processes import keep

_PLAIN = re.compile(r"[!-~]+")
_ALLOWED = "Use https://HOST/PATH or http://HOST:PORT/PATH, without user, query and fragment"


@dataclass(slots=True)
class Service:
    """The address of a service, and the time until which it wants no requests. All senders of a connection share the
    object.

    Attributes:
        host: host name or address.
        port: its TCP port.
        is_encrypted: whether it speaks TLS.
        base: the path before the path of a destination, encoded, without a slash at its end.
        ca_file: file with the trusted certificates; "" for those of the system.
        busy_until: the time, in seconds of the monotonic clock, before which no sender sends anything. Any thread may
            set it.
    """

    host: str
    port: int
    is_encrypted: bool
    base: str
    ca_file: str
    busy_until: float = 0.0

    @property
    def name(self) -> str:
        """The address of the service in texts of errors, as `HOST:PORT`."""
        return f"{self.host}:{self.port}"

    def check_free(self, where: str) -> None:
        """Raise `ConnectionLost` E7026 if the service wants no requests at present."""
        left_s = self.busy_until - time.monotonic()
        if left_s > 0:
            what = f"{self.name} wants no request for another {ceil(left_s)} s (Retry-After)"
            raise ConnectionLost(TAKES_NOTHING, where, what)

    def open(self, where: str, timeout_s: float) -> http.client.HTTPConnection:
        """Connect. Raises `ConnectionLost` E7016 if TLS fails, E7001 for any other reason."""
        made = self._made(where, timeout_s)
        try:
            made.connect()
        except ssl.SSLError as error:
            raise ConnectionLost("E7016", where, f"no TLS with {self.name}: {error.reason or error}") from error
        except OSError as error:
            reason = error.strerror or error
            raise ConnectionLost("E7001", where, f"cannot connect to {self.name} ({reason})") from error
        keep(made.sock)
        return made

    def _made(self, where: str, timeout_s: float) -> http.client.HTTPConnection:
        if not self.is_encrypted:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise ConnectionLost("E7016", where, f"ca_file {self.ca_file} cannot be read: {error}") from error
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)


def service(where: str, options: Mapping[str, Any]) -> Service:
    """Read the options of a connection. Raises `ConfigError` E1022, E1214."""
    url = text_option(where, options, "url")
    place = f"{where}.url"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError("E1214", place, "is not the address of a service", _ALLOWED) from error
    if parts.scheme not in ("http", "https") or not is_host(host) or "@" in parts.netloc or port == 0:
        raise ConfigError("E1214", place, "is not the address of a service", _ALLOWED)
    if parts.query or parts.fragment or not _PLAIN.fullmatch(url):
        raise ConfigError("E1214", place, "has a query, a fragment, a blank or a character that is not ASCII", _ALLOWED)
    is_encrypted = parts.scheme == "https"
    ca_file = text_option(where, options, "ca_file") if "ca_file" in options else ""
    if ca_file and not is_encrypted:
        todo = "Set a url that begins with https://"
        raise ConfigError("E1022", f"{where}.ca_file", "is of no use without TLS", "", todo)
    return Service(host, port or (443 if is_encrypted else 80), is_encrypted, parts.path.rstrip("/"), ca_file)
