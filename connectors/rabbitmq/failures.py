"""Turns errors of pika and of the server into faults: one code for each remedy that the user has."""

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from pika import exceptions

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq_server import ConnectionFault, of_credentials, of_user, of_virtual_host, reason
from correlator.connector import IN_USE, NO_SUCH_DESTINATION
from correlator.errors import quoted

_UNEQUAL = re.compile(r"inequivalent arg '([^']+)' for (\w+) '(.*)' in vhost '.*?': (.*)", re.DOTALL)
_VALUES = re.compile(r"received (.+?) but current is (.+)", re.DOTALL)
_MISSING = 404
_REFUSED = 403
_LOCKED = 405
_PRECONDITION = 406


@dataclass(frozen=True, slots=True)
class ServerFault(ConnectionFault):
    """The reason for which the server closed a channel or connection, with its reply code and reply text."""

    reply_code: int = 0
    reply_text: str = ""


def of_opening(error: BaseException, broker: RabbitBroker, answer: bytes) -> ConnectionFault:
    """Return why a connection could not be made; `answer`: the first bytes of a server that does not speak AMQP."""
    if answer:
        return ConnectionFault(
            "E7005",
            f"{broker.address} does not speak AMQP 0-9-1 (answered {quoted(answer.decode('latin-1'))})",
            "",
            "Look whether host and port are those of RabbitMQ, and whether it needs tls: true",
        )
    if isinstance(error, exceptions.ProbableAuthenticationError):
        return of_user(broker)
    if isinstance(error, exceptions.ProbableAccessDeniedError):
        return of_virtual_host(broker)
    cause = _cause(error)
    if isinstance(cause, ssl.SSLError):
        return of_credentials(cause, broker.address)
    return ConnectionFault("E7001", f"cannot connect to {broker.address} ({_reason(cause)})")


def of_closing(error: BaseException, broker: RabbitBroker) -> ConnectionFault:
    """Return why an open connection has ended."""
    if isinstance(error, exceptions.AMQPHeartbeatTimeout):
        what = f"nothing was heard from {broker.address} for more than {broker.heartbeat_s} s"
        return ConnectionFault("E7022", what)
    if isinstance(error, exceptions.ConnectionClosed):
        code, text = error.reply_code, error.reply_text
        return ServerFault("E7001", f"{broker.address} closed the connection ({code} {text})", "", "", code, text)
    return ConnectionFault("E7001", f"the connection to {broker.address} was lost ({_reason(_cause(error))})")


def of_channel(error: exceptions.ChannelClosed) -> ServerFault:
    """Return why the server has closed a channel."""
    code, text = error.reply_code, error.reply_text
    code_of_ours, what, todo = _of_reply(code, text)
    return ServerFault(code_of_ours, what, "", todo, code, text)


def _of_reply(code: int, text: str) -> tuple[str, str, str]:
    """Return the code of this product, what is wrong, and what to do."""
    said = f"{text} ({code})"
    if code == _MISSING:
        return NO_SUCH_DESTINATION, said, ""
    if _is_in_use(code, text):
        return IN_USE, said, ""
    if code == _REFUSED:
        return "E7007", said, ""
    if code == _PRECONDITION and (unequal := _UNEQUAL.search(text)):
        return "E7008", *_of_unequal(unequal)
    if code == _PRECONDITION and "timed out" in text:
        todo = "Acknowledge sooner, or raise the server's consumer_timeout"
        return "E7019", f"a batch was held longer than the server allows: {said}", todo
    return "E7025", f"the server closed the channel: {said}", ""


def _is_in_use(code: int, text: str) -> bool:
    """Return whether another consumer stands against consuming, or against the deletion of an unused queue."""
    refused = (code == _REFUSED and "exclusive use" in text) or (code == _PRECONDITION and text.endswith("in use"))
    return code == _LOCKED or refused


def _of_unequal(unequal: re.Match[str]) -> tuple[str, str]:
    argument, kind, name, difference = unequal.groups()
    values = _VALUES.match(difference)
    told = f"configured is {_value(values[1])}, it has {_value(values[2])}" if values else difference
    todo = "Configure what it has, or set declare: false"
    return f"the {kind} {quoted(name)} exists with another '{argument}': {told}", todo


def _value(text: str) -> str:
    """Return `10` for `the value '10' of type 'signedint'`; return `none` unchanged."""
    quoted_value = re.search(r"'([^']*)'", text)
    return quoted(quoted_value[1]) if quoted_value else text.strip()


def _cause(error: BaseException) -> BaseException:
    """Return the innermost error: pika wraps the error of the system several times."""
    *_, innermost = _wrapped(error)
    return innermost


def _wrapped(error: BaseException) -> Iterator[BaseException]:
    inner: object = error
    while isinstance(inner, BaseException):
        yield inner
        nested = getattr(inner, "exceptions", None) or (getattr(inner, "exception", None), *inner.args)
        inner = next((one for one in reversed(nested) if isinstance(one, BaseException)), None)


def _reason(error: BaseException) -> str:
    if isinstance(error, exceptions.ConnectionOpenAborted):  # by pika's own time-out
        return "timed out"
    return reason(error)
