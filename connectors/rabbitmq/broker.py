"""The options of a connection: address of the server, credentials, TLS, time-outs, defaults of declarations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pika

from connectors.rabbitmq_server import SERVER_OPTIONS, Server, server_fields
from correlator.errors import ConfigError, quoted
from correlator.options import check_options, flag_option, text_option, whole_option

QueueType = Literal["", "classic", "quorum"]
QUEUE_TYPES: tuple[QueueType, ...] = ("", "classic", "quorum")
"""The empty type stands for the default of the server."""
OPTIONS = (*SERVER_OPTIONS, "topic_exchange", "queue_type", "declare", "management_port", "consumer_timeout_s")
_PORT, _TLS_PORT = 5672, 5671
_MANAGEMENT_PORT, _MANAGEMENT_TLS_PORT = 15672, 15671


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitBroker(Server):
    """A server that speaks AMQP 0-9-1. It counts as lost after a silence of twice `heartbeat_s` plus 10 s.

    Attributes:
        topic_exchange: the exchange for `topic:NAME`, with the routing key NAME.
        queue_type: type of declared queues, unless receiver or sender name one.
        declare: whether to declare queues and exchanges, unless receiver or sender say otherwise.
        management_port: port of the management API, which uses TLS if AMQP does.
        consumer_timeout_s: the longest time for which the server lets a consumer hold messages.
    """

    port: int = _PORT
    timeout_s: int = 20
    topic_exchange: str = "amq.topic"
    queue_type: QueueType = ""
    declare: bool = True
    management_port: int = _MANAGEMENT_PORT
    consumer_timeout_s: int = 1800

    @property
    def address(self) -> str:
        """The server as HOST:PORT, for texts of errors."""
        return f"{self.host}:{self.port}"

    def parameters(self) -> pika.ConnectionParameters:
        """Return the parameters for pika. Reads the files with password and certificates each time;
        raises `OSError`.
        """
        context = self.tls_context()
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.virtual_host,
            credentials=pika.PlainCredentials(self.user, self.current_password()),
            heartbeat=self.heartbeat_s,
            ssl_options=None if context is None else pika.SSLOptions(context, self.host),
            socket_timeout=self.timeout_s,
            stack_timeout=self.timeout_s,
            tcp_options={"TCP_USER_TIMEOUT": 2000 * self.heartbeat_s},
            client_properties={"product": "correlator"},
        )


def broker(where: str, options: Mapping[str, Any]) -> RabbitBroker:
    """Make a broker from the options of a connection. Raises `ConfigError` if one is wrong."""
    check_options(where, options, OPTIONS)
    default = RabbitBroker()
    server = server_fields(where, options, default, _TLS_PORT)
    management_port = _MANAGEMENT_TLS_PORT if server["tls"] else default.management_port
    return RabbitBroker(
        **server,
        topic_exchange=text_option(where, options, "topic_exchange", default.topic_exchange),
        queue_type=queue_type_option(where, options, default.queue_type),
        declare=flag_option(where, options, "declare", default=default.declare),
        management_port=whole_option(where, options, "management_port", management_port, 65535),
        consumer_timeout_s=whole_option(where, options, "consumer_timeout_s", default.consumer_timeout_s, 2**31),
    )


def queue_type_option(where: str, options: Mapping[str, Any], default: QueueType) -> QueueType:
    """Return the option `queue_type`. Raises `ConfigError`."""
    value = options.get("queue_type", default)
    if value not in QUEUE_TYPES:
        raise ConfigError("E1022", f"{where}.queue_type", f"{quoted(value)} is not allowed", "classic or quorum")
    return QUEUE_TYPES[QUEUE_TYPES.index(value)]
