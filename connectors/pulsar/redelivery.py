"""The options of receivers about redelivery and dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from correlator.errors import ConfigError, quoted
from correlator.options import check_options, duration_option, text_option, whole_option

SHORTEST_DELAY_S = 0.1
"""Shortest delay in seconds that the client allows."""
_LONGEST_DELAY_S = 24 * 3600.0
_MOST_REDELIVERIES = 1_000_000
_HIGHEST_POWER = 100
_MULTIPLIERS = 1.0, 100.0
DELAY, DEAD_LETTERS = "negative_ack_delay", "dead_letter_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryBackoff:
    """The delay before the broker redelivers a message that was given back; it grows with each redelivery."""

    min_delay_s: float = SHORTEST_DELAY_S
    max_delay_s: float = 60.0
    multiplier: float = 2.0

    def delay_s(self, redeliveries: int) -> float:
        """Return the delay in seconds for a message that was redelivered this number of times."""
        return float(min(self.max_delay_s, self.min_delay_s * self.multiplier ** min(redeliveries, _HIGHEST_POWER)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """When the client moves a message to a dead letter topic.

    Attributes:
        max_redeliver_count: number of redeliveries after which it moves the message.
        dead_letter_topic: name of the topic; `None` for TOPIC-SUBSCRIPTION-DLQ.
        initial_subscription_name: subscription to make on that topic, so that it keeps messages; `None` for none.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    initial_subscription_name: str | None = None


def backoff_of(where: str, options: Mapping[str, Any]) -> RedeliveryBackoff:
    """Return the option `negative_ack_delay`: one duration, or how the delay grows. Raises `ConfigError`."""
    given = options.get(DELAY)
    if given is None:
        return RedeliveryBackoff()
    place = f"{where}.{DELAY}"
    if not isinstance(given, Mapping):
        delay_s = _delay_s(where, options, DELAY, 0.0)
        return RedeliveryBackoff(min_delay_s=delay_s, max_delay_s=delay_s, multiplier=1.0)
    check_options(place, given, ("min_delay", "max_delay", "multiplier"))
    default = RedeliveryBackoff()
    made = RedeliveryBackoff(
        min_delay_s=_delay_s(place, given, "min_delay", default.min_delay_s),
        max_delay_s=_delay_s(place, given, "max_delay", default.max_delay_s),
        multiplier=_multiplier(f"{place}.multiplier", given.get("multiplier", default.multiplier)),
    )
    if made.max_delay_s < made.min_delay_s:
        what = f"{made.max_delay_s:g}s is shorter than min_delay ({made.min_delay_s:g}s)"
        raise ConfigError("E1022", f"{place}.max_delay", what)
    return made


def dead_letter_policy_of(where: str, options: Mapping[str, Any]) -> DeadLetterPolicy | None:
    """Return the option `dead_letter_policy`; `None` if it is missing. Raises `ConfigError`."""
    given = options.get(DEAD_LETTERS)
    if given is None:
        return None
    place = f"{where}.{DEAD_LETTERS}"
    names = ("dead_letter_topic", "initial_subscription_name")
    if not isinstance(given, Mapping):
        raise ConfigError("E1022", place, f"{quoted(given)} is not a mapping", "", "Set max_redeliver_count in it")
    check_options(place, given, ("max_redeliver_count", *names))
    if "max_redeliver_count" not in given:
        raise ConfigError("E1021", place, "'max_redeliver_count' is missing")
    return DeadLetterPolicy(
        max_redeliver_count=whole_option(place, given, "max_redeliver_count", 1, _MOST_REDELIVERIES),
        **{name: text_option(place, given, name) for name in names if name in given},
    )


def _delay_s(where: str, options: Mapping[str, Any], name: str, default: float) -> float:
    allowed = "A duration from 100ms to 24h"
    delay_s = duration_option(where, options, name, allowed, lambda one: SHORTEST_DELAY_S <= one <= _LONGEST_DELAY_S)
    return default if delay_s is None else delay_s


def _multiplier(place: str, given: object) -> float:
    least, most = _MULTIPLIERS
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        what = f"{quoted(given)} is not allowed"
        raise ConfigError("E1022", place, what, f"A number from {least:g} to {most:g}")
    return float(given)
