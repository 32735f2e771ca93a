"""Options and faults of RabbitMQ servers that are the same for both protocols, AMQP 0-9-1 and streams."""

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from correlator.errors import ConfigError, ConnectionLost, quoted
from correlator.options import flag_option, host_option, secret_option, text_option, whole_option
from correlator.serving import is_loopback

_HERE = "127.0.0.1"
_GUEST = "guest"
_NO_ADDRESSES = ("", "topic:")
_TLS_FILES = ("ca_file", "certificate_file", "key_file")
_PASSWORDS = ("password", "password_file")
SERVER_OPTIONS = ("host", "port", "virtual_host", "user", *_PASSWORDS, "tls", *_TLS_FILES, "heartbeat_s", "timeout_s")


class PasswordUnknown(OSError):
    """The file with the password cannot be read at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Address, credentials and time-outs of a server.

    Attributes:
        password_file: file with the password, instead of `password`; for a password that changes, such as a token.
        heartbeat_s: seconds of silence after which either side sends a heartbeat.
        timeout_s: longest wait in seconds for an answer to a connect or a declaration, and for the next confirm.
    """

    host: str = _HERE
    port: int
    virtual_host: str = "/"
    user: str = _GUEST
    password: str = field(default=_GUEST, repr=False)
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    heartbeat_s: int = 30
    timeout_s: int

    def current_password(self) -> str:
        """Return the present password. Reads its file each time; raises `PasswordUnknown`."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise PasswordUnknown(f"password_file {self.password_file} cannot be read: {reason(error)}") from error
        except UnicodeDecodeError:  # do not chain it: the error contains the content of the file
            raise PasswordUnknown(f"password_file {self.password_file} cannot be read: not UTF-8") from None

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the settings for TLS, `None` without TLS. Reads the files with certificates each time;
        raises `OSError`.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context


def public_secrets(options: Mapping[str, str]) -> Collection[str]:
    """The password of the user `guest`, which each new server has: it lets this user in over loopback only."""
    known = options.get("password") == _GUEST and is_loopback(options.get("host", _HERE))
    return ("password",) if known else ()


def server_fields(where: str, options: Mapping[str, Any], default: Server, tls_port: int) -> dict[str, Any]:
    """Return the fields of `Server` from the options of a connection. Raises `ConfigError` if one is wrong.

    A server on another machine gets an encrypted connection, unless the options say otherwise.
    """
    host = host_option(where, options, "host", default.host)
    tls = flag_option(where, options, "tls", default=not is_loopback(host))
    for name in _TLS_FILES:
        if name in options and not tls:
            raise ConfigError("E1022", f"{where}.{name}", "is of no use without TLS", "", "Set tls: true")
    if all(name in options for name in _PASSWORDS):
        raise ConfigError("E1022", f"{where}.password_file", "is of no use beside 'password'", "", "Set one of them")
    return {
        "host": host,
        "port": whole_option(where, options, "port", tls_port if tls else default.port, 65535),
        "virtual_host": text_option(where, options, "virtual_host", default.virtual_host),
        "user": text_option(where, options, "user", default.user),
        "password": secret_option(where, options, "password", default.password),
        "tls": tls,
        **{name: text_option(where, options, name) for name in ("password_file", *_TLS_FILES) if name in options},
        "heartbeat_s": whole_option(where, options, "heartbeat_s", default.heartbeat_s, 3600),
        "timeout_s": whole_option(where, options, "timeout_s", default.timeout_s, 3600),
    }


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """Why a connection or channel cannot be used any more, or why the server has refused a request."""

    code: str
    what: str
    allowed: str = ""
    todo: str = ""

    def error(self, where: str) -> ConnectionLost:
        """Return the fault as an error of the port."""
        return ConnectionLost(self.code, where, self.what, self.allowed, self.todo)


NOT_CONNECTED = ConnectionFault("E7001", "not connected")


def of_user(server: Server) -> ConnectionFault:
    """Make the fault for a user or password that the server has refused."""
    return ConnectionFault("E7002", f"user {quoted(server.user)} was refused", "", "Check user and password")


def of_virtual_host(server: Server) -> ConnectionFault:
    """Make the fault for a virtual host that does not exist, or that the user may not use."""
    host, user = quoted(server.virtual_host), quoted(server.user)
    return ConnectionFault("E7004", f"virtual host {host} does not exist, or user {user} may not use it")


def of_credentials(error: OSError, address: object) -> ConnectionFault:
    """Make the fault for an unusable file with password or certificates, or for a refused certificate of the server."""
    if isinstance(error, PasswordUnknown):
        return ConnectionFault("E7002", str(error))
    untrusted = isinstance(error, ssl.SSLCertVerificationError)
    todo = "" if untrusted else "If the server has no TLS at this port, set tls: false"
    return ConnectionFault("E7016", f"no TLS with {address}: {reason(error)}", "", todo)


def reason(error: BaseException) -> str:
    """Return the shortest text that says why a connection failed."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error) or type(error).__name__


def address_of(reply_to: str | None) -> str | None:
    """Return the `reply_to` of RabbitMQ's clients for a destination: NAME for `queue:NAME`.

    Raises `ValueError` without NAME.
    """
    if reply_to is None:
        return None
    address = reply_to.removeprefix("queue:")
    if address in _NO_ADDRESSES:
        raise ValueError(f"the reply_to '{reply_to}' has no name")
    return address


def destination_of(address: str | None) -> str | None:
    """Return the destination for a `reply_to` of RabbitMQ's clients; `None` if it has no name."""
    if address is None or address in _NO_ADDRESSES:
        return None
    return address if address.startswith("topic:") else f"queue:{address}"
