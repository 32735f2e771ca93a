"""How a message is to be delivered, and the ranges of the values that sessions take."""

import math
import sys
from collections.abc import Mapping
from typing import NamedTuple, Self

from correlator.errors import UsageError, quoted
from correlator.events import LONGEST_LIFE_MS, Headers
from correlator.handlers import refuse_deferred
from correlator.options import is_name

HIGHEST_PRIORITY = 9


class SendOptions(NamedTuple):
    """Values that a producer gives to messages; `None` leaves a value open.

    Attributes:
        priority: 0 to 9.
        time_to_live_ms: milliseconds after which nobody gets the message any more; 0 for no limit.
        persistent: whether the broker keeps the message on disk.
        delivery_delay_ms: milliseconds before which nobody gets the message.
    """

    priority: int | None = None
    time_to_live_ms: int | None = None
    persistent: bool | None = None
    delivery_delay_ms: int | None = None

    @classmethod
    def of(cls, headers: Headers) -> Self:
        """Return the values that the headers of a message have."""
        return cls(headers.priority, headers.time_to_live_ms, headers.persistent, headers.delivery_delay_ms)

    def over(self, others: "SendOptions") -> "SendOptions":
        """Return these values; where one of them is open, take the value of `others`."""
        return SendOptions(
            others.priority if self.priority is None else self.priority,
            others.time_to_live_ms if self.time_to_live_ms is None else self.time_to_live_ms,
            others.persistent if self.persistent is None else self.persistent,
            others.delivery_delay_ms if self.delivery_delay_ms is None else self.delivery_delay_ms,
        )

    def check(self, where: str) -> None:
        """Raise `UsageError` E7540 for a value out of its range."""
        if self.priority is not None:
            check_whole(f"{where}.priority", self.priority, HIGHEST_PRIORITY)
        if self.time_to_live_ms is not None:
            check_whole(f"{where}.time_to_live_ms", self.time_to_live_ms, LONGEST_LIFE_MS)
        if self.delivery_delay_ms is not None:
            check_whole(f"{where}.delivery_delay_ms", self.delivery_delay_ms, LONGEST_LIFE_MS)
        if self.persistent is not None:
            check_flag(f"{where}.persistent", self.persistent)
        self.check_delay(where)

    def check_delay(self, where: str) -> None:
        """Raise `UsageError` E7548 if the message would expire before anybody gets it."""
        lives_ms, delay_ms = self.time_to_live_ms, self.delivery_delay_ms
        if type(lives_ms) is int and type(delay_ms) is int and 0 < lives_ms <= delay_ms:
            what = f"it lives {lives_ms} ms, and nobody gets it before {delay_ms} ms have passed"
            raise UsageError("E7548", where, what, "A delay shorter than the time to live", "Let it live longer")


def check_whole(where: str, value: object, most: int, least: int = 0) -> None:
    """Raise `UsageError` E7540 unless the value is a whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise outside(where, value, f"A whole number from {least} to {most}")


def check_flag(where: str, value: object) -> None:
    """Raise `UsageError` E7540 unless the value is `True` or `False`: a text such as "false" would count as true."""
    if type(value) is not bool:
        raise outside(where, value, "True or False")


def check_name(where: str, value: object) -> None:
    """Raise `UsageError` E7540 unless the value is a text that every broker can take as a name."""
    if not isinstance(value, str) or not is_name(value):
        raise outside(where, value, "A text of 1 to 500 characters without control characters")


def check_options(where: str, value: object) -> None:
    """Raise `UsageError` E7540 unless the value is a mapping, without repeating it: it may contain a password."""
    if not isinstance(value, Mapping):
        raise UsageError("E7540", where, f"a {type(value).__name__} is not allowed", "A mapping of options by name")


def check_function(function: object, where: str) -> None:
    """Raise `UsageError` for what a session cannot call: E7540, and E4117 for what is `async def` or a generator."""
    if not callable(function):
        raise outside(where, function, "A function")
    refuse_deferred(function, where)


def seconds(where: str, timeout_s: object) -> float:
    """Return the longest wait in seconds: infinity for `None`, and 0 for less than 0.

    Raises:
        UsageError: E7540 for a value that is not a duration.
    """
    if timeout_s is None:
        return math.inf
    is_bool = isinstance(timeout_s, bool)
    if not isinstance(timeout_s, int | float) or is_bool or not -math.inf <= timeout_s <= math.inf:  # or NaN
        raise outside(f"{where}.timeout_s", timeout_s, "A number of seconds, or None to wait for ever")
    return math.inf if timeout_s > sys.float_info.max else max(0.0, timeout_s)


def outside(where: str, value: object, allowed: str) -> UsageError:
    """Make the error E7540 for a value that is not allowed."""
    return UsageError("E7540", where, f"{quoted(value)} is not allowed", allowed)
