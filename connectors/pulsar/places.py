"""Which topic a destination is, and under which subscription a receiver takes from it.

Pulsar knows topics only, and subscriptions of them. `queue:NAME` is a topic of which all receivers share one
subscription; of `topic:NAME` each receiver has a subscription of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.options import check_destination, check_options, flag_option, parse_destination, text_option
from connectors.pulsar.broker import Broker
from correlator.errors import ConfigError, quoted
from correlator.settings import ReceiverSettings, SenderSettings

QUEUE_SUBSCRIPTION = "jms-queue"
"""What all receivers of a queue share, also those that are JMS clients in Java."""
_OF_QUEUES = "queue_subscription"
RECEIVER_OPTIONS = ("subscription_type", "initial_position", _OF_QUEUES)
SENDER_OPTIONS = ("text", _OF_QUEUES)
SHARED, EXCLUSIVE, FAILOVER, KEY_SHARED = "shared", "exclusive", "failover", "key_shared"
_TYPES = (SHARED, EXCLUSIVE, FAILOVER, KEY_SHARED)
_QUEUE_TYPE, _OWN_TYPE = SHARED, EXCLUSIVE
"""Where nothing else is configured."""
_POSITIONS = ("earliest", "latest")
_FULL_NAME = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/(.+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a receiver takes from.

    Attributes:
        topic: its full name.
        subscription_type: how consumers of the subscription stand to one another.
        initial_position: where a subscription begins that is not there yet.
    """

    topic: str
    subscription: str
    subscription_type: str
    initial_position: str

    @property
    def is_shared(self) -> bool:
        """Whether several consumers take from it at the same time; the broker then counts deliveries."""
        return self.subscription_type in (SHARED, KEY_SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a sender sends.

    Attributes:
        topic: the full name of that of its own destination; `None` without one.
        text: whether a body is text, where the message does not say of which kind it is.
        queue_subscription: is made on each queue that is sent to, so that what nobody takes yet is kept.
    """

    topic: str | None
    text: bool
    queue_subscription: str

    def place_of_queue(self, topic: str) -> Place:
        """Where receivers of a queue take from."""
        return Place(
            topic=topic,
            subscription=self.queue_subscription,
            subscription_type=_QUEUE_TYPE,
            initial_position=_POSITIONS[0],
        )


def place_of_receiver(receiver: ReceiverSettings, broker: Broker) -> Place:
    """Raises `ConfigError`."""
    where = f"receivers.{receiver.id}"
    check_options(where, receiver.options, RECEIVER_OPTIONS)
    topic = _checked_topic(where, receiver.destination, broker)
    shared = is_queue(receiver.destination)
    if _OF_QUEUES in receiver.options and not shared:
        todo = "Set durable_topic_subscription_name"
        raise ConfigError("E1022", f"{where}.{_OF_QUEUES}", "is for queues", "", todo)
    return Place(
        topic=topic,
        subscription=_queue_subscription(where, receiver.options) if shared else _own_subscription(receiver, broker),
        subscription_type=_choice(
            where, receiver.options, "subscription_type", _TYPES, _QUEUE_TYPE if shared else _OWN_TYPE
        ),
        initial_position=_choice(where, receiver.options, "initial_position", _POSITIONS, _POSITIONS[0]),
    )


def way_of_sender(sender: SenderSettings, broker: Broker) -> Way:
    """Raises `ConfigError`."""
    where = f"senders.{sender.id}"
    check_options(where, sender.options, SENDER_OPTIONS)
    return Way(
        topic=None if sender.destination is None else _checked_topic(where, sender.destination, broker),
        text=flag_option(where, sender.options, "text"),
        queue_subscription=_queue_subscription(where, sender.options),
    )


def topic_of(destination: str, broker: Broker) -> str | None:
    """The full name of its topic; `None` for anything that is none.

    A name with a slash would be one of Pulsar's first version, in another namespace.
    """
    parsed = parse_destination(destination)
    if parsed is None:
        return None
    full = _FULL_NAME.fullmatch(parsed.name)
    name = full[1] if full else parsed.name
    if "/" in name or name != name.strip():
        return None
    return parsed.name if full else f"persistent://{broker.namespace}/{name}"


def is_queue(destination: str) -> bool:
    """Whether receivers of it share one subscription."""
    return destination.startswith("queue:")


def _checked_topic(where: str, destination: str, broker: Broker) -> str:
    check_destination(where, destination)
    topic = topic_of(destination, broker)
    if topic is None:
        allowed = "Use queue:NAME or topic:NAME, NAME without slashes or as persistent://TENANT/NAMESPACE/NAME"
        raise ConfigError("E1215", f"{where}.destination", f"{quoted(destination)} is no topic", allowed)
    return topic


def _queue_subscription(where: str, options: Mapping[str, Any]) -> str:
    return text_option(where, options, _OF_QUEUES, QUEUE_SUBSCRIPTION)


def _own_subscription(receiver: ReceiverSettings, broker: Broker) -> str:
    return f"{broker.client_id}_{receiver.subscription}" if broker.client_id else receiver.subscription


def _choice(where: str, options: Mapping[str, Any], name: str, allowed: Sequence[str], default: str) -> str:
    value = options.get(name, default)
    if value not in allowed:
        raise ConfigError("E1022", f"{where}.{name}", f"{quoted(value)} is not allowed", ", ".join(allowed))
    return str(value)
