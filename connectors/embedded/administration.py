"""Creates destinations with properties, and changes the properties."""

from collections.abc import Mapping
from typing import Any

from connectors.embedded import consumers, destinations, properties
from connectors.embedded.access import Access
from connectors.embedded.destinations import DEAD_MESSAGES
from connectors.embedded.properties import FLOW_CONTROL, ONLY_QUEUES
from connectors.embedded.rooms import room_of
from correlator.errors import UsageError
from correlator.options import check_destination


def create(where: str, access: Access, name: str, given: Mapping[str, Any]) -> None:
    """Make a destination; see `EmbeddedConnection.create`."""
    check_destination(where, name)
    values = properties.checked(name, given)
    if destinations.is_reserved(name) or destinations.is_temporary(name):
        raise reserved(name)
    link = access.connect(where)
    try:
        with access.transaction(where, link) as connection:
            destinations.lock_registry(connection)
            if destinations.find(connection, name) is not None:
                what = "there is such a destination already"
                raise UsageError("E7524", name, what, "", "Update its properties, or use another name")
            destinations.make(connection, name, values, auto_created=False)
    finally:
        access.leave()


def update(where: str, access: Access, name: str, given: Mapping[str, Any]) -> None:
    """Change properties of a destination; see `EmbeddedConnection.update`."""
    check_destination(where, name)
    values = properties.checked(name, given)
    if name == DEAD_MESSAGES and values.get("limit_behavior") == FLOW_CONTROL:
        what = "the dead message queue never lets senders wait"
        raise UsageError("E7523", f"{name} limit_behavior", what, "Use another limit behavior")
    link = access.connect(where)
    try:
        with access.transaction(where, link) as connection:
            destinations.lock_registry(connection)
            there = destinations.find(connection, name)
            if there is None:
                raise UsageError("E7512", name, "there is no such destination", "", "Create it first")
            destinations.lock_against_sends(connection, name)
            if any(one in values for one in ONLY_QUEUES):
                for subscription in there.subscriptions:
                    for consumer in consumers.living(connection, subscription.id, link):
                        what = f"{consumer} consumes from it, and has its place already"
                        allowed = f"{' and '.join(ONLY_QUEUES)} change while there is no consumer"
                        raise UsageError("E7525", name, what, allowed, "Close the consumers first")
            destinations.set_properties(connection, there.id, values)
        access.ring((room_of(name),))
    finally:
        access.leave()


def reserved(name: str) -> UsageError:
    """Make the error for a name that belongs to the broker."""
    allowed = "Names that begin with mq. belong to the broker"
    return UsageError("E7522", name, "this destination is not made, deleted or changed so", allowed, "Use another name")
