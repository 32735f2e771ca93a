"""The address of a server and how it is spoken to, from the options of a connection."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from connectors.options import check_options, flag_option, secret_option, text_option, whole_option
from correlator.errors import ConfigError

OPTIONS = (
    "host",
    "port",
    "virtual_host",
    "user",
    "password",
    "tls",
    "ca_file",
    "certificate_file",
    "key_file",
    "heartbeat_s",
    "timeout_s",
    "declare",
)
_PORT, _TLS_PORT = 5552, 5551
_TLS_FILES = ("ca_file", "certificate_file", "key_file")


class Address(NamedTuple):
    """Where a node listens for the stream protocol."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A server.

    Attributes:
        heartbeat_s: silence after which either side asks whether the other is still there; it is given up after twice
            that.
        timeout_s: longest wait for any answer: to connect, to declare, for the next confirm.
        declare: whether streams are made where they are missing, where receiver or sender say nothing.
    """

    host: str = "127.0.0.1"
    port: int = _PORT
    virtual_host: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    heartbeat_s: int = 30
    timeout_s: int = 10
    declare: bool = True

    @property
    def address(self) -> Address:
        """The configured node; others of its cluster tell theirs."""
        return Address(self.host, self.port)

    def tls_context(self) -> ssl.SSLContext | None:
        """`None` without TLS. Reads the files of certificates anew, so that renewed ones count; raises `OSError`."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context


def broker(where: str, options: Mapping[str, Any]) -> Broker:
    """The server that the options of a connection describe. Raises `ConfigError`."""
    check_options(where, options, OPTIONS)
    tls = flag_option(where, options, "tls")
    for name in _TLS_FILES:
        if name in options and not tls:
            raise ConfigError("E1022", f"{where}.{name}", "is of no use without TLS", "", "Set tls: true")
    default = Broker()
    return Broker(
        host=text_option(where, options, "host", default.host),
        port=whole_option(where, options, "port", _TLS_PORT if tls else _PORT, 65535),
        virtual_host=text_option(where, options, "virtual_host", default.virtual_host),
        user=text_option(where, options, "user", default.user),
        password=secret_option(where, options, "password", default.password),
        tls=tls,
        **{name: text_option(where, options, name) for name in _TLS_FILES if name in options},
        heartbeat_s=whole_option(where, options, "heartbeat_s", default.heartbeat_s, 3600),
        timeout_s=whole_option(where, options, "timeout_s", default.timeout_s, 3600),
        declare=flag_option(where, options, "declare", default=default.declare),
    )
