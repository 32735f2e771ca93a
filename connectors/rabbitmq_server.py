"""A RabbitMQ server, whichever protocol is spoken with it: its options, and what can be wrong with reaching it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from correlator.errors import ConfigError, ConnectionLost, quoted
from correlator.options import flag_option, secret_option, text_option, whole_option

_NO_ADDRESSES = ("", "topic:")
_TLS_FILES = ("ca_file", "certificate_file", "key_file")
_PASSWORDS = ("password", "password_file")
SERVER_OPTIONS = ("host", "port", "virtual_host", "user", *_PASSWORDS, "tls", *_TLS_FILES, "heartbeat_s", "timeout_s")


class PasswordUnknown(OSError):
    """The file with the password cannot be read at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it is and how it is spoken to.

    Attributes:
        password_file: holds the password, in the place of `password`, where it may change: a token that expires.
        heartbeat_s: silence after which either side asks whether the other is still there.
        timeout_s: longest wait for any answer: to connect, to declare, for the next confirm.
    """

    host: str = "127.0.0.1"
    port: int
    virtual_host: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    heartbeat_s: int = 30
    timeout_s: int

    def current_password(self) -> str:
        """The password as it is now. Reads its file anew; raises `PasswordUnknown`."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordUnknown(f"password_file {self.password_file} cannot be read: {reason(error)}") from error

    def tls_context(self) -> ssl.SSLContext | None:
        """`None` without TLS. Reads the files of certificates anew, so that renewed ones count; raises `OSError`."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context


def server_fields(where: str, options: Mapping[str, Any], default: Server, tls_port: int) -> dict[str, Any]:
    """The fields of `Server` that the options of a connection describe. Raises `ConfigError`."""
    tls = flag_option(where, options, "tls")
    for name in _TLS_FILES:
        if name in options and not tls:
            raise ConfigError("E1022", f"{where}.{name}", "is of no use without TLS", "", "Set tls: true")
    if all(name in options for name in _PASSWORDS):
        raise ConfigError("E1022", f"{where}.password_file", "is of no use beside 'password'", "", "Set one of them")
    return {
        "host": text_option(where, options, "host", default.host),
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
    """Why a connection or channel cannot be used any more, or a request was refused."""

    code: str
    what: str
    allowed: str = ""
    todo: str = ""

    def error(self, where: str) -> ConnectionLost:
        """A new error of the port."""
        return ConnectionLost(self.code, where, self.what, self.allowed, self.todo)


NOT_CONNECTED = ConnectionFault("E7001", "not connected")


def of_user(server: Server) -> ConnectionFault:
    """Name and password are not those of a user."""
    return ConnectionFault("E7002", f"user {quoted(server.user)} was refused", "", "Check user and password")


def of_virtual_host(server: Server) -> ConnectionFault:
    """It is not there for this user."""
    host, user = quoted(server.virtual_host), quoted(server.user)
    return ConnectionFault("E7004", f"virtual host {host} does not exist, or user {user} may not use it")


def of_credentials(error: OSError, address: object) -> ConnectionFault:
    """A file of ours that cannot be used, or a certificate that the server shows."""
    if isinstance(error, PasswordUnknown):
        return ConnectionFault("E7002", str(error))
    return ConnectionFault("E7016", f"no TLS with {address}: {reason(error)}")


def reason(error: BaseException) -> str:
    """The shortest that says why a connection failed."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error) or type(error).__name__


def address_of(reply_to: str | None) -> str | None:
    """A destination as the address that clients of RabbitMQ reply to: `queue:NAME` is NAME. Raises `ValueError`."""
    if reply_to is None:
        return None
    address = reply_to.removeprefix("queue:")
    if address in _NO_ADDRESSES:
        raise ValueError(f"the reply_to '{reply_to}' has no name")
    return address


def destination_of(address: str | None) -> str | None:
    """The other way round; an address without a name is none."""
    if address is None or address in _NO_ADDRESSES:
        return None
    return address if address.startswith("topic:") else f"queue:{address}"
