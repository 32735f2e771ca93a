"""Registers a consumer on a queue or subscription, as the kind of the subscription allows."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from connectors.embedded import consumers, destinations
from connectors.embedded.claiming import Holder
from connectors.embedded.consumers import Consumer, Lives
from connectors.embedded.destinations import HOW_TO_CREATE, Destination, Subscription
from connectors.embedded.properties import UNLIMITED
from correlator.connector import NO_SUCH_DESTINATION, FlowTerms
from correlator.errors import ConnectionLost, UsageError, quoted


class Wanted(NamedTuple):
    """What a consumer requests.

    Attributes:
        name: name of the subscription; "" for a queue.
        client_id: the client id that owns the name; "" if the name belongs to the topic.
        durable: 1 if the subscription outlasts its consumers.
        shared: 1 if it may have several consumers.
        selector: selects the messages that the broker keeps for a topic's subscription; `None` for all messages.
        keeps_selector: whether an existing subscription keeps its own selector.
        client: id of the row of the client; 0 if there is none.
        suspects_alone: see `claiming.Holder`.
        makes: whether to make a destination that does not exist.
    """

    name: str
    client_id: str = ""
    durable: int = 1
    shared: int = 1
    selector: str | None = None
    keeps_selector: bool = True
    client: int = 0
    suspects_alone: bool = False
    makes: bool = True


def subscribe(connection: Connection, name: str, wanted: Wanted, lives: Lives) -> Holder:
    """Register a consumer; make destination and subscription if they are new.

    Raises:
        ConnectionLost: `NO_SUCH_DESTINATION`, a temporary destination is gone, or the destination does not exist and is
            not to be made; E7514, as below, for an engine.
        UsageError: E7514, the queue has as many active and backup consumers as it may; E7516, E7517 as
            `ServiceSession.subscriber`; E7521, a temporary destination of another client; E7522, a reserved name of a
            destination that the broker does not have.
    """
    destinations.lock_registry(connection)
    there = destinations.find(connection, name)
    if there is None:
        if destinations.is_temporary(name):
            raise ConnectionLost(NO_SUCH_DESTINATION, name, "this temporary destination has ended")
        if destinations.is_reserved(name):
            raise UsageError("E7522", name, "the broker has no such destination", "", "Use another name")
        if not wanted.makes:
            raise ConnectionLost(NO_SUCH_DESTINATION, name, "there is no such destination", "", HOW_TO_CREATE)
        there = destinations.make(connection, name)
    elif there.client is not None and there.client != wanted.client:
        raise UsageError(
            "E7521",
            name,
            "another connection has made this temporary destination",
            "Only consumers of that connection may use it",
        )
    subscription = _subscription(connection, name, there, wanted, lives)
    if there.max_num_active_consumers > 0:
        _check_number(connection, there, subscription.id, wanted, lives)
    consumer = consumers.register(connection, subscription.id, wanted.client, lives.boot)
    return Holder(
        there.id,
        subscription.id,
        consumer,
        there.is_queue,
        subscription.suspect_through,
        wanted.suspects_alone,
        there.lets_wait,
        there.max_num_active_consumers,
        _flow(there),
    )


def _flow(there: Destination) -> FlowTerms:
    limit = there.consumer_flow_limit
    return FlowTerms(None if limit == UNLIMITED else limit, there.consumer_flow_threshold_percent)


def _check_number(connection: Connection, there: Destination, subscription: int, wanted: Wanted, lives: Lives) -> None:
    """Refuse a consumer for which there is no place. Raises as `subscribe`."""
    living = consumers.living(connection, subscription, lives)
    active, backup = there.max_num_active_consumers, there.max_num_backup_consumers
    if backup == UNLIMITED or len(living) < active + backup:
        return
    # An engine tries again: there may be a place later.
    raise (UsageError if wanted.suspects_alone else ConnectionLost)(
        "E7514",
        there.name,
        f"it has {len(living)} consumers, the first in {living[0]}",
        f"max_num_active_consumers is {active}, max_num_backup_consumers is {backup}",
        "Close one of them first, or allow more",
    )


def _subscription(connection: Connection, name: str, there: Destination, wanted: Wanted, lives: Lives) -> Subscription:
    new = Subscription(0, wanted.client_id, wanted.name, wanted.durable, wanted.shared, wanted.selector, 0)
    if wanted.client_id and wanted.durable:
        _move_here(connection, new, there, lives)
    own = (wanted.client_id, wanted.name)
    found = next((one for one in there.subscriptions if (one.client_id, one.name) == own), None)
    if found is None:
        return destinations.make_subscription(connection, there.id, new)
    living = consumers.living(connection, found.id, lives)
    # removing dead consumers may have marked ready messages
    found = next(one for one in destinations.subscriptions(connection, there.id) if one.id == found.id)
    if not found.durable and not living:
        destinations.delete_subscription(connection, found.id)
        return destinations.make_subscription(connection, there.id, new)
    _check_kind(name, found, wanted, [one for one in living if not one.cancelled])
    if wanted.keeps_selector or found.selector == wanted.selector:
        return found
    has = "no selector" if found.selector is None else f"the selector {quoted(found.selector)}"
    user = f", and {living[0]} consumes from it" if living else ""
    raise UsageError(
        "E7517",
        name,
        f"the subscription {quoted(found.name)} has {has}{user}",
        "All its consumers use one selector",
        "Use the same selector, or unsubscribe first, which deletes the messages that it keeps",
    )


def _check_kind(name: str, found: Subscription, wanted: Wanted, living: Sequence[Consumer]) -> None:
    if (found.durable, found.shared) != (wanted.durable, wanted.shared):
        raise UsageError(
            "E7516",
            name,
            f"the subscription {quoted(found.name)} is {_kind(found.durable, found.shared)},"
            f" not {_kind(wanted.durable, wanted.shared)}",
            "Kinds of subscriptions do not share names",
            "Use another name, or unsubscribe first",
        )
    if living and not found.shared:
        raise UsageError(
            "E7516",
            name,
            f"{living[0]} consumes from the subscription {quoted(found.name)}",
            "A subscription that is not shared has one consumer",
            "Close that consumer first, or share the subscription",
        )


def _kind(durable: int, shared: int) -> str:
    return f"{'shared' if shared else 'unshared'} {'durable' if durable else 'non-durable'}"


def _move_here(connection: Connection, wanted: Subscription, there: Destination, lives: Lives) -> None:
    """Delete the subscription of this name that the client has to another topic.

    Raises `UsageError` E7516 if somebody consumes from it.
    """
    found = destinations.elsewhere(connection, wanted, there.id)
    if found is None:
        return
    subscription, topic = found
    for consumer in consumers.living(connection, subscription, lives):
        raise UsageError(
            "E7516",
            topic,
            f"{consumer} consumes from the subscription {quoted(wanted.name)} of this topic",
            "A durable subscription of a client has one topic",
            "Close that consumer first, or use another name",
        )
    destinations.delete_subscription(connection, subscription)
