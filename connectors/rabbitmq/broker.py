"""The address of a server and how it is spoken to, from the options of a connection."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pika

from connectors.options import check_options, flag_option, secret_option, text_option, whole_option
from correlator.errors import ConfigError, quoted

QueueType = Literal["", "classic", "quorum"]
QUEUE_TYPES: tuple[QueueType, ...] = ("", "classic", "quorum")
"""The empty one is the default of the server."""
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
    "topic_exchange",
    "queue_type",
    "declare",
)
_PORT, _TLS_PORT = 5672, 5671
_TLS_FILES = ("ca_file", "certificate_file", "key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A server.

    Attributes:
        heartbeat_s: silence after which either side asks whether the other is still there; it is given up after twice
            that, plus 5 s.
        timeout_s: longest wait for any answer: to connect, to declare, for the next confirm.
        topic_exchange: where `topic:NAME` is published, under the routing key NAME.
        queue_type: of queues that are declared, where receiver or sender say nothing.
        declare: whether queues and exchanges are declared, where receiver or sender say nothing.
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
    timeout_s: float = 20.0
    topic_exchange: str = "amq.topic"
    queue_type: QueueType = ""
    declare: bool = True

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        return f"{self.host}:{self.port}"

    def parameters(self) -> pika.ConnectionParameters:
        """For pika. Reads the files of certificates anew, so that renewed ones count; raises `OSError` (`SSLError`)."""
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.virtual_host,
            credentials=pika.PlainCredentials(self.user, self.password),
            heartbeat=self.heartbeat_s,
            ssl_options=pika.SSLOptions(self._tls_context(), self.host) if self.tls else None,
            socket_timeout=self.timeout_s,
            stack_timeout=self.timeout_s,
            tcp_options={"TCP_USER_TIMEOUT": 2000 * self.heartbeat_s},
            client_properties={"product": "correlator"},
        )

    def _tls_context(self) -> ssl.SSLContext:
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
        timeout_s=whole_option(where, options, "timeout_s", int(default.timeout_s), 3600),
        topic_exchange=text_option(where, options, "topic_exchange", default.topic_exchange),
        queue_type=queue_type_option(where, options, default.queue_type),
        declare=flag_option(where, options, "declare", default=default.declare),
    )


def queue_type_option(where: str, options: Mapping[str, Any], default: QueueType) -> QueueType:
    """The option `queue_type`. Raises `ConfigError`."""
    value = options.get("queue_type", default)
    if value not in QUEUE_TYPES:
        raise ConfigError("E1022", f"{where}.queue_type", f"{quoted(value)} is not allowed", "classic or quorum")
    return QUEUE_TYPES[QUEUE_TYPES.index(value)]
