"""Maps destinations to streams, and checks the options for making a stream and for the place where reading begins."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from connectors.rabbitmq_stream.broker import StreamBroker
from correlator.errors import ConfigError, quoted
from correlator.options import check_destination, check_options, flag_option, parse_destination
from correlator.settings import ReceiverSettings, SenderSettings

SENDER_OPTIONS = ("declare", "arguments")
RECEIVER_OPTIONS = (*SENDER_OPTIONS, "offset")
LONGEST_NAME = 255
"""Most bytes of the name of a stream, publisher or subscription."""
_LEADER_LOCATORS = ("client-local", "balanced", "least-leaders", "random")
_LARGEST_OFFSET = 2**64 - 2
_OFFSETS = "first, last, next, a number from 0 on, or a time such as 2026-01-31T12:00:00Z"


class StartOffset(NamedTuple):
    """Where a receiver begins if it has not acknowledged anything yet.

    Attributes:
        kind: the unit of `number`, or a place that needs no number.
        number: the offset, or the time in milliseconds since the epoch.
    """

    kind: Literal["first", "last", "next", "offset", "timestamp"] = "first"
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDestination:
    """The stream of a receiver's or sender's destination.

    Attributes:
        declare: whether to make a missing stream; otherwise it must exist.
        arguments: arguments for making the stream.
        start: where a receiver begins.
    """

    stream: str
    declare: bool = True
    arguments: Mapping[str, str] = field(default_factory=dict)
    start: StartOffset = field(default_factory=StartOffset)


def destination_of_receiver(receiver: ReceiverSettings, broker: StreamBroker) -> StreamDestination:
    """Return the stream that a receiver reads. Raises `ConfigError` for a wrong destination or option."""
    where = f"receivers.{receiver.id}"
    check_options(where, receiver.options, RECEIVER_OPTIONS)
    if len(receiver.subscription.encode()) > LONGEST_NAME:
        what = f"{quoted(receiver.subscription)} cannot be the name of stored offsets"
        todo = "Set durable_topic_subscription_name"
        raise ConfigError("E1022", where, what, f"At most {LONGEST_NAME} bytes of UTF-8", todo)
    return _made(where, receiver.destination, receiver.options, broker, _start(where, receiver.options))


def destination_of_sender(sender: SenderSettings, broker: StreamBroker) -> StreamDestination | None:
    """Return the stream of a sender, `None` if it has no destination. Raises `ConfigError` as for a receiver."""
    where = f"senders.{sender.id}"
    check_options(where, sender.options, SENDER_OPTIONS)
    if sender.destination is not None:
        return _made(where, sender.destination, sender.options, broker, StartOffset())
    for name in sender.options:
        what = "is about the sender's destination, and it has none"
        raise ConfigError("E1022", f"{where}.{name}", what)
    return None


def stream_of(destination: str) -> str | None:
    """Return the stream of `queue:NAME`; `None` for a topic, and for a name that no stream can have."""
    parsed = parse_destination(destination)
    return parsed.name if parsed is not None and parsed.kind == "queue" and _is_short(parsed.name) else None


def _made(
    where: str, destination: str, options: Mapping[str, Any], broker: StreamBroker, start: StartOffset
) -> StreamDestination:
    check_destination(where, destination)
    stream = stream_of(destination)
    if stream is None:
        allowed = f"Use queue:NAME, NAME of at most {LONGEST_NAME} bytes of UTF-8"
        raise ConfigError("E1215", f"{where}.destination", f"{quoted(destination)} is not a stream", allowed)
    return StreamDestination(
        stream=stream,
        declare=flag_option(where, options, "declare", default=broker.declare),
        arguments=_arguments(where, options),
        start=start,
    )


def _is_short(name: str) -> bool:
    return bool(name.strip()) and len(name.encode()) <= LONGEST_NAME


def _start(where: str, options: Mapping[str, Any]) -> StartOffset:
    value = options.get("offset", "first")
    if value in ("first", "last", "next"):
        return StartOffset(value)
    if isinstance(value, str) and value.isdecimal():  # the value of a placeholder is always a text
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_OFFSET:
        return StartOffset("offset", value)
    moment = _moment(value)
    if moment is None:
        raise ConfigError("E1022", f"{where}.offset", f"{quoted(value)} is not allowed", f"Use {_OFFSETS}")
    return StartOffset("timestamp", int(moment.timestamp() * 1000))


def _moment(value: object) -> datetime | None:
    """Return the time that the value names, with a time zone; `None` if it names none."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return moment if isinstance(moment, datetime) and moment.tzinfo is not None else None


def _arguments(where: str, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the arguments of the stream. They are checked here, since the server does not answer if one is wrong."""
    given = options.get("arguments", {})
    where = f"{where}.arguments"
    if not isinstance(given, Mapping):
        raise ConfigError("E1022", where, "is not a mapping", "As in {max-age: 7D}")
    check_options(where, given, _ARGUMENTS)
    for name, value in given.items():
        allowed, pattern = _ARGUMENTS[name]
        if isinstance(value, bool) or not isinstance(value, str | int) or not re.fullmatch(pattern, str(value)):
            raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", allowed)
    return {name: str(value) for name, value in given.items()}


_WHOLE = ("A whole number", r"[1-9]\d*")
_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "max-age": ("A number and one of Y, M, D, h, m, s, as in 7D", r"\d+[YMDhms]"),
    "max-length-bytes": _WHOLE,
    "stream-max-segment-size-bytes": _WHOLE,
    "initial-cluster-size": _WHOLE,
    "queue-leader-locator": (", ".join(_LEADER_LOCATORS), "|".join(_LEADER_LOCATORS)),
}
"""The allowed values of each argument, in words and as a pattern."""
