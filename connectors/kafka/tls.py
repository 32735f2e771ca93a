"""TLS with brokers: whether a connection uses it, and why it fails."""

import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from correlator.errors import ConfigError
from correlator.serving import is_loopback

PROTOCOL = "security.protocol"
_ENCRYPTED = frozenset({"ssl", "sasl_ssl"})
_LOGS_IN = "sasl_"
"""Begins the protocols with a login."""
LOGIN = "sasl."
"""Begins the names of settings for users."""
SETTINGS = "ssl."
"""Begins the names of settings for TLS."""
_CA = "ssl.ca.location"
_CERTIFICATE = ("ssl.certificate.location", "ssl.certificate.pem")
_KEY = ("ssl.key.location", "ssl.key.pem")
IDENTITY = frozenset({*_CERTIFICATE, *_KEY})
"""Settings with the certificate by which brokers recognise a client, and with its key."""
_ADDRESS = re.compile(r"(?:sasl_)?ssl://\[?([^/\]]+)\]?:([0-9]+)/")
"""The broker with which TLS has failed, in the text of an error."""
REFUSED = "SSL alert number"
"""In the text of an error: a broker has ended the connection because of TLS."""


def with_protocol(client: Mapping[str, Any], servers: str) -> Mapping[str, Any]:
    """Add a protocol to the settings of a client that name none.

    It has TLS if a broker is on another machine, and a login if there are settings for one: without the protocol the
    library ignores them.
    """
    if PROTOCOL in client:
        return client
    has_login = any(name.startswith(LOGIN) for name in client)
    if all(is_loopback(_host(one)) for one in servers.split(",")):
        return {**client, PROTOCOL: "SASL_PLAINTEXT"} if has_login else client
    return {**client, PROTOCOL: "SASL_SSL" if has_login else "SSL"}


def is_encrypted(client: Mapping[str, Any]) -> bool:
    """Return whether a client with these settings uses TLS."""
    return str(client.get(PROTOCOL)).lower() in _ENCRYPTED


def logs_in(client: Mapping[str, Any]) -> bool:
    """Return whether a client with these settings logs in."""
    return str(client.get(PROTOCOL)).lower().startswith(_LOGS_IN)


def check_identity(where: str, client: Mapping[str, Any]) -> None:
    """Raise `ConfigError` E1021 if a client has a certificate without its key, or a key without its certificate."""
    has_certificate, has_key = (any(name in client for name in names) for names in (_CERTIFICATE, _KEY))
    if has_certificate is not has_key:
        missing, _ = _KEY if has_certificate else _CERTIFICATE
        what = f"'{missing}' is missing"
        raise ConfigError("E1021", where, what, "A client has a certificate together with its key, or neither of them")


def refusal(told: str, client: Mapping[str, Any], timeout_s: float) -> tuple[str, str]:
    """Return with which broker TLS has failed and why, and what to do.

    The library gives one reason for all certificates that it refuses. So this function begins another connection, whose
    only purpose is to learn the reason, and waits at most `timeout_s` for each answer.

    Args:
        told: the text of the error of the library.
        client: the settings of the client.
        timeout_s: in seconds.
    """
    if (found := _ADDRESS.search(told)) is None:
        return f"the files for TLS cannot be used: {told}", ""
    host, port = found[1], int(found[2])
    if reason := _of_certificate(host, port, client, timeout_s):
        return f"no TLS with {host}:{port}: {reason}", ""
    if REFUSED in told:
        todo = f"If the brokers want a certificate of the client, set {_CERTIFICATE[0]} and {_KEY[0]} below 'client'"
    else:
        todo = f"If the brokers have no TLS, set {PROTOCOL} below 'client'"
    return f"no TLS with {host}:{port}: {told}", todo


def _of_certificate(host: str, port: int, client: Mapping[str, Any], timeout_s: float) -> str:
    """Return why the certificate of a broker is refused; "" if it is not, or if the broker does not send one."""
    trusted = Path(client[_CA]) if _CA in client else None
    file, folder = (None, trusted) if trusted is not None and trusted.is_dir() else (trusted, None)
    try:
        context = ssl.create_default_context(cafile=file, capath=folder)
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError:
        return ""


def _host(server: str) -> str:
    """Return the host of `HOST:PORT`, which may have a protocol before it, and no port."""
    address = server.strip().rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() else address
