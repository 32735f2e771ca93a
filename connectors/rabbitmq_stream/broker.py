"""The options of a connection: address of the server, credentials, TLS, time-outs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from connectors.rabbitmq_server import SERVER_OPTIONS, Server, server_fields
from correlator.options import check_options, flag_option

OPTIONS = (*SERVER_OPTIONS, "declare")
_PORT, _TLS_PORT = 5552, 5551


class NodeAddress(NamedTuple):
    """Host and port at which a node listens for the stream protocol."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBroker(Server):
    """A server that speaks the stream protocol. It counts as lost after a silence of twice `heartbeat_s`.

    Attributes:
        declare: whether to make missing streams, unless receiver or sender say otherwise.
    """

    port: int = _PORT
    timeout_s: int = 10
    declare: bool = True

    @property
    def address(self) -> NodeAddress:
        """Address of the configured node. The other nodes of a cluster advertise their addresses."""
        return NodeAddress(self.host, self.port)


def broker(where: str, options: Mapping[str, Any]) -> StreamBroker:
    """Make a broker from the options of a connection. Raises `ConfigError` if one is wrong."""
    check_options(where, options, OPTIONS)
    default = StreamBroker()
    return StreamBroker(
        **server_fields(where, options, default, _TLS_PORT),
        declare=flag_option(where, options, "declare", default=default.declare),
    )
