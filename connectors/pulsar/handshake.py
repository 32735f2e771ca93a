"""Checks whether a broker accepts a connection, before Pulsar's client is made.

After any problem (nothing listens, a web server answers, the token is refused) Pulsar's client retries, and reports
only a time-out. So this module exchanges the first two frames of the protocol: `CONNECT`, and `CONNECTED` or `ERROR`.
They are messages of protocol buffers, after their length and the length of the frame.
"""

import socket
import ssl
import struct
from collections.abc import Iterator

from connectors.pulsar.broker import BrokerAddress, PulsarBroker
from correlator.errors import ConnectionLost

_CONNECT, _CONNECTED, _ERROR = 2, 3, 14
"""Kinds of commands; also the numbers of their fields."""
_TYPE = 1
_CLIENT_VERSION, _PROTOCOL_VERSION, _AUTH_METHOD, _AUTH_DATA = 1, 4, 5, 3
_ERROR_MESSAGE = 3
_PROTOCOL = 15
_VARINT, _BYTES = 0, 2
_LARGEST_ANSWER = 64 * 1024
_FRAME = struct.Struct(">II")


class _Foreign(Exception):
    """The server does not speak Pulsar's protocol."""


def shake_hands(where: str, broker: PulsarBroker) -> None:
    """Return when one of the addresses accepts a connection.

    Raises `ConnectionLost` with the problem of the last address.
    """
    failure: ConnectionLost | None = None
    token = _token(where, broker)
    for address in broker.addresses:
        failure = _ask(where, broker, address, token)
        if failure is None:
            return
    assert failure is not None
    raise failure


def _token(where: str, broker: PulsarBroker) -> str:
    try:
        return broker.current_token()
    except (OSError, ValueError) as error:
        raise ConnectionLost(
            "E7002", where, f"token_file {broker.token_file} cannot be read: {_reason(error)}"
        ) from error


def _ask(where: str, broker: PulsarBroker, address: BrokerAddress, token: str) -> ConnectionLost | None:
    try:
        refusal = _exchange(broker, address, token)
    except _Foreign:
        todo = "Look whether service_url has the port of the binary protocol, and whether it needs pulsar+ssl://"
        return ConnectionLost("E7005", where, f"{address} does not speak Pulsar's protocol", "", todo)
    except ssl.SSLError as error:
        return ConnectionLost("E7016", where, f"no TLS with {address}: {_reason(error)}")
    except FileNotFoundError as error:
        return ConnectionLost("E7016", where, f"tls_trust_certs_file {broker.trusted} cannot be read: {_reason(error)}")
    except (OSError, ValueError) as error:  # `ValueError` for an impossible host name
        return ConnectionLost("E7001", where, f"cannot connect to {address} ({_reason(error)})")
    if refusal is None:
        return None
    return ConnectionLost(
        "E7002", where, f"{address} refused the connection: {refusal}", "", "Check token or token_file"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


def _exchange(broker: PulsarBroker, address: BrokerAddress, token: str) -> str | None:
    """Return the broker's reason for refusing the connection; `None` if it accepts."""
    with socket.create_connection(address, timeout=broker.timeout_s) as connection:
        context = broker.tls_context()
        if context is None:
            return _speak(connection, token)
        with context.wrap_socket(connection, server_hostname=address.host) as encrypted:
            return _speak(encrypted, token)


def _speak(connection: socket.socket, token: str) -> str | None:
    connection.sendall(_connect(token))
    size, command_size = _FRAME.unpack(_exactly(connection, _FRAME.size))
    if size != command_size + 4 or command_size > _LARGEST_ANSWER:
        raise _Foreign
    fields = dict(_fields(_exactly(connection, command_size)))
    if fields.get(_TYPE) == _CONNECTED:
        return None
    error = fields.get(_ERROR)
    if fields.get(_TYPE) != _ERROR or not isinstance(error, bytes):
        return None  # it asks for more than a token, which the client handles
    message = dict(_fields(error)).get(_ERROR_MESSAGE)
    return message.decode(errors="replace") if isinstance(message, bytes) else "without a reason"


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes.

    Raises `_Foreign` if the server closes the connection, as a server without the protocol does.
    """
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise _Foreign
        received += more
    return received


# --- protocol buffers, as far as this module needs them ---


def _connect(token: str) -> bytes:
    content = _field(_CLIENT_VERSION, b"correlator") + _varint(_PROTOCOL_VERSION << 3 | _VARINT) + _varint(_PROTOCOL)
    if token:
        content += _field(_AUTH_METHOD, b"token") + _field(_AUTH_DATA, token.encode())
    command = _varint(_TYPE << 3 | _VARINT) + _varint(_CONNECT) + _field(_CONNECT, content)
    return _FRAME.pack(len(command) + 4, len(command)) + command


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and values of fields up to the first value that is neither a number nor bytes.
    Raises `_Foreign`.
    """
    at = 0
    while at < len(content):
        tag, at = _read_varint(content, at)
        if tag & 7 not in (_VARINT, _BYTES):
            return
        number, at = _read_varint(content, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, number
        else:
            yield tag >> 3, content[at : at + number]
            at += number


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        number |= (content[at] & 0x7F) << shift
        at += 1
        if content[at - 1] < 0x80:
            return number, at
    raise _Foreign
