"""Which receivers an engine refuses, because of their own settings, a pipeline or other receivers; which senders with
a `call` it refuses; and which sender of dead letters it warns of.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from correlator.connector import Connection, Features, carries
from correlator.core.deadletters import REASON
from correlator.errors import ConfigError
from correlator.reliability import RECEIVING, Reliability
from correlator.selector import Selector
from correlator.settings import ReceiverSettings, SenderSettings


def selection(receiver: ReceiverSettings, where: str, *, selects: bool, shares: bool = True) -> Selector | None:
    """Return the selector of a receiver; `None` if the receiver takes every message.

    Args:
        receiver: settings of the receiver, with a physical destination.
        where: names the receiver in errors.
        selects: whether the broker keeps messages that are not selected for other consumers (`Features.selects`).
        shares: whether the messages of a queue are shared out among its receivers (`Features.shares`).

    Raises `ConfigError`: E6003 to E6007 for a selector that cannot be read, E1220 for a selector on a queue whose
    broker would lose messages that are not selected, E1222 for the name of a subscription on a queue whose messages are
    shared out.
    """
    queue = receiver.destination.startswith("queue:")
    if queue and shares and receiver.durable_topic_subscription_name is not None:
        what = "only topics have subscriptions"
        raise ConfigError("E1222", f"{where}.durable_topic_subscription_name", what, "", "Leave it out")
    selector = Selector.optional(receiver.selector, f"{where}.selector")
    if selector is not None and queue and not selects:
        what = "this broker cannot leave unselected messages in a queue for other consumers"
        raise ConfigError("E1220", f"{where}.selector", what, "Only topics allow selectors", "Or select in a monitor")
    return selector


def refuse_for_pipelines(receiver: ReceiverSettings, where: str) -> None:
    """Refuse settings that need a monitor for a receiver that a pipeline names: `ConfigError` E1207, E1068, E1069."""
    if RECEIVING[receiver.reliability].acknowledged_by_application:
        what = "APP_CONTROLLED needs a monitor; a pipeline acknowledges nothing"
        raise ConfigError("E1207", f"{where}.reliability", what, "", "Choose another one")
    if receiver.flow_control:
        what = "needs a monitor; a pipeline updates no window"
        raise ConfigError("E1068", f"{where}.flow_control", what, "", "Leave it out")
    if receiver.unhandled == "dead_letter":
        what = "dead_letter needs a monitor; a pipeline handles every message"
        raise ConfigError("E1069", f"{where}.unhandled", what, "", "Leave it out")


def refuse_call(sender: SenderSettings, where: str, features: Features) -> None:
    """Raise `ConfigError` E1532 for a call whose connection needs a message for each number."""
    if sender.call is not None and features.misses_numbers:
        what = "a call may lead to no message, and this connection counts a missing message as lost"
        todo = "Let this sender write into a queue, and a bridge send on from there"
        raise ConfigError("E1532", f"{where}.call", what, "", todo)


def leaves_out_reasons(sender: SenderSettings, connection: Connection) -> ConfigError | None:
    """Return the warning W1543 if a sender of dead letters (`dead_letter_sender`) does not tell why messages failed.

    A sender with a call is not warned of: the call may put the reason into the body. Raises `ConfigError` as
    `Connection.sink`.
    """
    if carries(connection, sender, REASON) or sender.call is not None:
        return None
    what = f"sender '{sender.id}' leaves out the properties of messages, so nobody sees there why a message failed"
    allowed = "Senders to brokers carry properties"
    todo = "Choose one of them, name the property in an option of this sender if it has one, or give it a 'call'"
    return ConfigError("W1543", "dead_letter_sender", what, allowed, todo)


def refuse_beside(
    receiver: ReceiverSettings,
    others: Iterable[ReceiverSettings],
    where: str,
    destinations: Mapping[str, str],
    *,
    shares: bool,
    group: Callable[[ReceiverSettings], str],
) -> None:
    """Refuse a receiver that does not fit other receivers of the same destination.

    Receivers that share the subscription of a topic must select the same messages, since the subscription gives each
    message to one of them, and must share a duplicate detection domain. Where each receiver of a queue gets every
    message, two of them must not share a domain: each would treat the messages of the other one as repeats.

    Args:
        receiver: settings of the receiver, as configured.
        others: settings of the other receivers of the engine.
        where: names the receiver in errors.
        destinations: physical destinations by logical name.
        shares: whether the messages of a queue are shared out among its receivers (`Features.shares`).
        group: returns the subscription that a receiver with a physical destination reads (`connector.group_of`).

    Raises `ConfigError` E1224, E1225.
    """
    _, destination = _place(receiver, destinations)
    for other in at_same_place(receiver, others, destinations):
        name, theirs = (group(replace(one, destination=destination)) for one in (receiver, other))
        if destination.startswith("topic:"):
            if name == theirs:
                _refuse_unlike(receiver, other, where, name)
        elif not shares or name != theirs:
            _refuse_common_ids(receiver, other, where)


def at_same_place(
    receiver: ReceiverSettings, others: Iterable[ReceiverSettings], destinations: Mapping[str, str]
) -> list[ReceiverSettings]:
    """Return the settings of the other receivers of the same destination of the same connection.

    The arguments are those of `refuse_beside`.
    """
    place = _place(receiver, destinations)
    return [other for other in others if other.id != receiver.id and _place(other, destinations) == place]


def _refuse_unlike(receiver: ReceiverSettings, other: ReceiverSettings, where: str, name: str) -> None:
    shares = f"shares the subscription '{name}' with receiver '{other.id}'"
    if _taken(receiver) != _taken(other):
        what = f"{shares}, which takes other messages: what one leaves out is lost to both"
        raise ConfigError("E1224", where, what, "", "Give both the same selector and no_local, or names of their own")
    twice = Reliability.EXACTLY_ONCE in (receiver.reliability, other.reliability)
    same = receiver.dup_detection_domain_id == other.dup_detection_domain_id
    if twice and not (same and receiver.dup_detection_domain_id):
        what = f"{shares}, and does not know which ids that one has accepted"
        raise ConfigError("E1224", where, what, "", "Give both the same dup_detection_domain_id")


def _refuse_common_ids(receiver: ReceiverSettings, other: ReceiverSettings, where: str) -> None:
    same = receiver.dup_detection_domain_id == other.dup_detection_domain_id
    if same and receiver.reliability is other.reliability is Reliability.EXACTLY_ONCE:
        what = f"shares its ids with receiver '{other.id}', and would take what that one has accepted for a repeat"
        raise ConfigError("E1225", where, what, "", "Give each a dup_detection_domain_id of its own")


def _place(receiver: ReceiverSettings, destinations: Mapping[str, str]) -> tuple[str, str]:
    return receiver.connection, destinations.get(receiver.destination, receiver.destination)


def _taken(receiver: ReceiverSettings) -> tuple[str, bool]:
    return (receiver.selector or "").strip(), receiver.no_local
