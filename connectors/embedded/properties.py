"""The properties of destinations: their names, ranges and defaults."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from correlator.errors import UsageError, quoted

UNLIMITED = -1
REJECT_NEWEST, FLOW_CONTROL, REMOVE_OLDEST, REMOVE_LOW_PRIORITY = (
    "REJECT_NEWEST",
    "FLOW_CONTROL",
    "REMOVE_OLDEST",
    "REMOVE_LOW_PRIORITY",
)
MOST_PRODUCERS = 100
"""The default of `max_num_producers`."""
FLOW_LIMIT = 1000
"""The default of `consumer_flow_limit`."""
FLOW_THRESHOLD_PERCENT = 50
"""The default of `consumer_flow_threshold_percent`."""
AUTO_CREATED: Mapping[str, Any] = {"max_num_msgs": 100_000}
"""The properties of a destination that is made by its first use."""
_MOST = 2**53
_SIZE = re.compile(r"(\d{1,15})([bkm]?)", re.ASCII)
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024 * 1024}


class _Number(NamedTuple):
    """A whole number.

    Attributes:
        least, most: the range; -1, for no limit, is allowed in addition if `unlimited`.
        unlimited: whether -1 is allowed.
        bytes: whether a text such as `10m` is allowed.
    """

    least: int
    most: int = _MOST
    unlimited: bool = True
    bytes: bool = False

    def read(self, value: Any) -> int | None:
        if self.bytes and isinstance(value, str) and (size := _SIZE.fullmatch(value)):
            value = int(size[1]) * _UNITS[size[2]]
        if type(value) is not int or value > self.most:
            return None
        return value if value >= self.least or (self.unlimited and value == UNLIMITED) else None

    def __str__(self) -> str:
        size = ", also as text with the unit b, k or m" if self.bytes else ""
        unlimited = ", or -1 for no limit" if self.unlimited else ""
        return f"A whole number from {self.least} to {self.most}{size}{unlimited}"


class _Choice(NamedTuple):
    values: Mapping[Any, Any]

    def read(self, value: Any) -> Any:
        return self.values.get(value) if type(value) in {str, bool} else None

    def __str__(self) -> str:
        return f"One of {', '.join(map(str, self.values))}"


_PROPERTIES: Mapping[str, _Number | _Choice] = {
    "max_num_msgs": _Number(1),
    "max_total_msg_bytes": _Number(1, bytes=True),
    "max_per_msg_bytes": _Number(1, bytes=True),
    "limit_behavior": _Choice({one: one for one in (REJECT_NEWEST, FLOW_CONTROL, REMOVE_OLDEST, REMOVE_LOW_PRIORITY)}),
    "use_dmq": _Choice({True: 1, False: 0}),
    "max_num_deliveries": _Number(1),
    "redelivery_delay_ms": _Number(0, unlimited=False),
    "max_num_producers": _Number(1),
    "max_num_active_consumers": _Number(1),
    "max_num_backup_consumers": _Number(0),
    "consumer_flow_limit": _Number(1),
    "consumer_flow_threshold_percent": _Number(0, 100, unlimited=False),
}
NAMES = tuple(_PROPERTIES)
ONLY_QUEUES = ("max_num_active_consumers", "max_num_backup_consumers")


def checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of properties in their stored form.

    Args:
        name: the destination.
        given: values by name.

    Raises:
        UsageError: E7523, a property does not exist, or its value is not allowed.
    """
    values = {}
    for key, value in given.items():
        known = _PROPERTIES.get(key)
        if known is None or (key in ONLY_QUEUES and not name.startswith("queue:")):
            names = [one for one in _PROPERTIES if name.startswith("queue:") or one not in ONLY_QUEUES]
            what = f"there is no property {quoted(key)}"
            near = get_close_matches(str(key), names, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else ""
            raise UsageError("E7523", name, what, f"Known: {', '.join(names)}", hint)
        values[key] = known.read(value)
        if values[key] is None:
            raise UsageError("E7523", f"{name} {key}", f"{quoted(value)} is not allowed", str(known))
    return values
