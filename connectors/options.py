"""What every connector checks in its options and destinations, so that they all refuse in the same words."""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from correlator.configuration.units import seconds
from correlator.errors import ConfigError, quoted

_LONGEST_NAME = 500


class Destination(NamedTuple):
    """A destination taken apart: `kind` is `queue` or `topic`."""

    kind: str
    name: str


def parse_destination(text: str) -> Destination | None:
    """`queue:NAME` or `topic:NAME`; `None` for anything else, also for names with control characters."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("queue", "topic") or not is_name(name):
        return None
    return Destination(kind, name)


def is_name(text: str) -> bool:
    """Whether every database and file system can hold the text: 1 to 500 characters, none of them a control one."""
    return 0 < len(text) <= _LONGEST_NAME and not any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in text)


def check_destination(where: str, text: str) -> Destination:
    """The destination of a receiver or sender. Raises `ConfigError`."""
    destination = parse_destination(text)
    if destination is None:
        raise ConfigError(
            "E1215", f"{where}.destination", f"{quoted(text)} is not a destination", "Use queue:NAME or topic:NAME"
        )
    return destination


def check_options(where: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse options that the connector does not know, naming the nearest one that it does. Raises `ConfigError`."""
    for option in options:
        if option in known:
            continue
        allowed = f"Known: {', '.join(sorted(known))}" if known else "There are no options here"
        nearest = get_close_matches(str(option), known, n=1)
        todo = f"Did you mean '{nearest[0]}'?" if nearest else ""
        raise ConfigError("E1020", f"{where}.{option}", "unknown key", allowed, todo)


def text_option(where: str, options: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """An option that is a text and not empty. Raises `ConfigError`."""
    value = options.get(name, default)
    if value is None:
        raise ConfigError("E1021", where, f"'{name}' is missing")
    if not isinstance(value, str) or not value:
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not a text", "A text, not empty")
    return value


def flag_option(where: str, options: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """An option that is true or false. Raises `ConfigError`."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not true or false")
    return value


def choice_option(
    where: str, options: Mapping[str, Any], name: str, allowed: Sequence[str], default: str | None = None
) -> str:
    """An option that is one of these texts. Raises `ConfigError`."""
    value = options.get(name, default)
    if value not in allowed:
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", ", ".join(allowed))
    return str(value)


def whole_option(where: str, options: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """An option that is a whole number from 1 to `most`. Raises `ConfigError`."""
    value = options.get(name, default)
    if isinstance(value, str) and value.isdecimal():  # a placeholder is always a text
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(
            "E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", f"A whole number from 1 to {most}"
        )
    return value


def duration(place: str, given: object, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    """The seconds of an option such as `200ms` or `5s`. Raises `ConfigError`.

    Args:
        place: of the option, for messages.
        given: what stands there.
        allowed: in words, which durations may.
        is_allowed: the same of seconds.
    """
    duration_s = seconds(str(given))
    if duration_s is None or not is_allowed(duration_s):
        raise ConfigError("E1022", place, f"{quoted(given)} is not allowed", allowed)
    return duration_s


def secret_option(where: str, options: Mapping[str, Any], name: str, default: str) -> str:
    """An option that is a text, and that no message repeats. Raises `ConfigError`."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise ConfigError("E1022", f"{where}.{name}", "is not a text", "A text; quote it")
    return value
