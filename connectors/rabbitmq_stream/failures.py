"""Turns errors of rstream and of the server into faults: one code for each remedy that the user has."""

import ssl

from rstream import exceptions

from connectors.rabbitmq_server import ConnectionFault, of_credentials, of_user, of_virtual_host, reason
from connectors.rabbitmq_stream.broker import NodeAddress, StreamBroker
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import quoted

NOT_PERMITTED = "E7007"


def of_foreign(address: NodeAddress) -> ConnectionFault:
    """Make the fault for a server that does not speak the stream protocol."""
    todo = "Look whether host and port are those of the stream plugin, and whether it needs tls: true"
    return ConnectionFault("E7005", f"{address} does not speak the stream protocol", "", todo)


def of_opening(error: BaseException, broker: StreamBroker, address: NodeAddress) -> ConnectionFault:
    """Return why a connection could not be made."""
    if isinstance(error, exceptions.AuthenticationFailure | exceptions.SASLAuthenticationFailureLoopback):
        return of_user(broker)
    if isinstance(error, exceptions.VirtualHostAccessFailure):
        return of_virtual_host(broker)
    if isinstance(error, ssl.SSLError):
        return of_credentials(error, address)
    todo = "" if address == broker.address else "The server names this address: set its advertised_host"
    return ConnectionFault("E7001", f"cannot connect to {address} ({reason(error)})", "", todo)


def of_refusal(error: exceptions.ServerError, stream: str, broker: StreamBroker) -> ConnectionFault:
    """Return why the server has refused a request about a stream."""
    name = f"the stream {quoted(stream)}"
    if isinstance(error, exceptions.StreamDoesNotExist):
        return ConnectionFault(NO_SUCH_DESTINATION, f"{name} does not exist")
    if isinstance(error, exceptions.StreamNotAvailable | exceptions.InternalError):  # the latter while a node starts
        return ConnectionFault(NO_SUCH_DESTINATION, f"{name} is not available at present")
    if isinstance(error, exceptions.AccessRefused):
        return ConnectionFault(NOT_PERMITTED, f"user {quoted(broker.user)} may not use {name} for this")
    if isinstance(error, exceptions.PreconditionFailed):
        what = f"{name} exists with other arguments than are configured, or is a queue of another type"
        return ConnectionFault("E7008", what, "", "Configure what it has, or set declare: false")
    return ConnectionFault("E7025", f"the server refused the request about {name} ({type(error).__name__})")
