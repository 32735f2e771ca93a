"""Properties of destinations as texts, as an administrator writes and reads them."""

import re
from collections.abc import Mapping
from typing import Any

from connectors.embedded.properties import (
    FLOW_LIMIT,
    FLOW_THRESHOLD_PERCENT,
    MOST_PRODUCERS,
    NAMES,
    ONLY_QUEUES,
    REJECT_NEWEST,
    UNLIMITED,
)

RESTORE = "default"
"""The value with which an administrator restores a default."""
_WHOLE = re.compile(r"-?[0-9]{1,16}")
_FLAGS = {"true": True, "false": False}
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(NAMES, UNLIMITED),
    "max_num_producers": MOST_PRODUCERS,
    "limit_behavior": REJECT_NEWEST,
    "use_dmq": True,
    "redelivery_delay_ms": 0,
    "max_num_backup_consumers": 0,
    "consumer_flow_limit": FLOW_LIMIT,
    "consumer_flow_threshold_percent": FLOW_THRESHOLD_PERCENT,
}


def read(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of texts, as `properties.checked` takes them. A text that is not a value stays a text."""
    return {name: _read(name, text) for name, text in given.items()}


def _read(name: str, text: str) -> Any:
    if text == RESTORE and name in _DEFAULTS:
        return _DEFAULTS[name]
    if _WHOLE.fullmatch(text):
        return int(text)
    return _FLAGS.get(text.lower(), text)


def shown(destination: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a destination, from its row."""
    names = [name for name in NAMES if destination.startswith("queue:") or name not in ONLY_QUEUES]
    return {name: bool(stored[name]) if name == "use_dmq" else stored[name] for name in names}
