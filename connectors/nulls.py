"""Properties without a value, for brokers that have no place for one: a list of their names travels in their stead."""

from collections.abc import Mapping
from typing import Any

from correlator.connector import mark
from correlator.errors import quoted
from correlator.events import Message, PropertyValue

NULLS = "correlator_nulls"
"""What a message on its way calls the list of the properties that have no value.

No application's property may have this name.
"""


def check_names(properties: Mapping[str, PropertyValue]) -> None:
    """Raises `ValueError` for properties of an application that has taken a name that is not free."""
    if NULLS in properties:
        raise ValueError(f"the name '{NULLS}' is not free")


def add_nulls(message: Message, listed: Any) -> None:
    """Add the properties that have no value, in the place of none that has one; a list that is none is marked."""
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        for name in listed:
            message.properties.setdefault(name, None)
    else:
        mark(message, f"{NULLS}: {quoted(listed)} is no list of names")
