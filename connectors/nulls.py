"""Properties without a value, for brokers that cannot carry one: the message carries a list of their names instead."""

from collections.abc import Mapping
from typing import Any

from correlator.connector import mark
from correlator.errors import quoted
from correlator.events import Message, PropertyValue

NULLS = "correlator_nulls"
"""Name of the list of properties without a value in a sent message. An application cannot use this name."""


def check_names(properties: Mapping[str, PropertyValue]) -> None:
    """Raise `ValueError` if the application uses the reserved name."""
    if NULLS in properties:
        raise ValueError(f"the name '{NULLS}' is reserved")


def add_nulls(message: Message, listed: Any) -> None:
    """Add the listed properties without a value, unless one has a value. If the list is malformed, mark the message."""
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        for name in listed:
            message.properties.setdefault(name, None)
    else:
        mark(message, f"{NULLS}: {quoted(listed)} is not a list of names")
