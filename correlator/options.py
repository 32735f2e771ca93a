"""Checks of options and destinations, so that every connector refuses a wrong setting in the same words.

Each function takes `where`, the place that an error names: `connections.NAME`, `receivers.ID` or `senders.ID`. It adds
the name of the option. `lint` finds the line of the file by the place.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from correlator.configuration.units import seconds
from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, quoted

_LONGEST_NAME = 500
_IN_NO_HOST = re.compile(r"[/@\s]")
_IN_NO_NAME = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Destination(NamedTuple):
    """The two parts of a destination: `kind` is `queue` or `topic`."""

    kind: str
    name: str


def parse_destination(text: str) -> Destination | None:
    """The parts of `queue:NAME` or `topic:NAME`; `None` for any other text, and if `is_name` refuses NAME."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("queue", "topic") or not is_name(name):
        return None
    return Destination(kind, name)


def is_name(text: str) -> bool:
    """Whether every database and file system can hold the text: 1 to 500 characters without control characters."""
    return 0 < len(text) <= _LONGEST_NAME and _IN_NO_NAME.search(text) is None


def check_destination(where: str, text: str) -> Destination:
    """The parts of the destination of a receiver or sender. Raises `ConfigError` E1215 if `parse_destination` fails."""
    destination = parse_destination(text) if isinstance(text, str) else None  # a program may give a missing `reply_to`
    if destination is None:
        raise ConfigError(
            "E1215", f"{where}.destination", f"{quoted(text)} is not a destination", "Use queue:NAME or topic:NAME"
        )
    return destination


def check_options(where: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Refuse options that the connector does not know. Raises `ConfigError` E1020, which suggests a similar name."""
    for option in options:
        if option not in known:
            allowed = f"Known: {', '.join(sorted(known))}" if known else "There are no options here"
            raise ConfigError("E1020", f"{where}.{option}", "unknown key", allowed, did_you_mean(str(option), known))


def text_option(where: str, options: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text that is not empty. Raises `ConfigError` E1022, E1021 if it is missing and has no default."""
    value = options.get(name, default)
    if value is None:
        raise ConfigError("E1021", where, f"'{name}' is missing")
    if not isinstance(value, str) or not value:
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not a text", "A text, not empty")
    return value


def is_host(text: str) -> bool:
    """Whether a text can be the name or the address of a machine, without a scheme, a user or a path."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text) and _IN_NO_HOST.search(text) is None


def host_option(where: str, options: Mapping[str, Any], name: str, default: str) -> str:
    """The name or address of a machine. Raises `ConfigError` E1022, which does not repeat the value."""
    text = text_option(where, options, name, default)
    if not is_host(text):
        raise ConfigError(
            "E1022", f"{where}.{name}", "is not the name or address of a machine", "Without scheme and user"
        )
    return text


def secret_option(where: str, options: Mapping[str, Any], name: str, default: str) -> str:
    """A text that may be empty. Raises `ConfigError` E1022, which does not repeat the value."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise ConfigError("E1022", f"{where}.{name}", "is not a text", "A text; quote it")
    return value


def flag_option(where: str, options: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """True or false. Raises `ConfigError` E1022."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not true or false")
    return value


def choice_option(
    where: str, options: Mapping[str, Any], name: str, allowed: Sequence[str], default: str | None = None
) -> str:
    """One of the allowed texts. Raises `ConfigError` E1022, even if it is missing and has no default."""
    value = options.get(name, default)
    if value not in allowed:
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", ", ".join(allowed))
    return str(value)


def whole_option(where: str, options: Mapping[str, Any], name: str, default: int, most: int, *, least: int = 1) -> int:
    """A whole number from `least` to `most`, or a text with its digits. Raises `ConfigError` E1022."""
    value = options.get(name, default)
    if isinstance(value, str) and value.isdecimal():  # the value of a placeholder is always a text
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(
            "E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", f"A whole number from {least} to {most}"
        )
    return value


def duration_option(
    where: str, options: Mapping[str, Any], name: str, allowed: str, is_allowed: Callable[[float], bool]
) -> float | None:
    """The seconds of a duration such as `200ms` or `5s`; `None` if the option is missing. Raises `ConfigError` E1022.

    Args:
        where: the place of the options.
        options: may have the option.
        name: name of the option.
        allowed: names the allowed durations, for the error.
        is_allowed: returns whether a number of seconds is allowed.
    """
    value = options.get(name)
    if value is None:
        return None
    duration_s = seconds(str(value))
    if duration_s is None or not is_allowed(duration_s):
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", allowed)
    return duration_s
