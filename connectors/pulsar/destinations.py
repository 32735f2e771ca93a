"""Maps destinations to topics and subscriptions of Pulsar, and checks the options of receivers and senders.

Pulsar has topics and subscriptions, but no queues. `queue:NAME` is a topic whose receivers share one subscription. Each
receiver of `topic:NAME` has a subscription of its own.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, NamedTuple

from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.redelivery import (
    DEAD_LETTERS,
    DELAY,
    DeadLetterPolicy,
    RedeliveryBackoff,
    backoff_of,
    dead_letter_policy_of,
)
from correlator.connector import Subscriber
from correlator.errors import ConfigError, quoted
from correlator.options import (
    check_destination,
    check_options,
    choice_option,
    duration_option,
    flag_option,
    parse_destination,
    text_option,
)
from correlator.settings import ReceiverSettings, SenderSettings

QUEUE_SUBSCRIPTION = "jms-queue"
"""The subscription that all receivers of a queue share, including JMS clients in Java."""
_OF_QUEUES = "queue_subscription"
_DISCOVERY = "pattern_auto_discovery_period"
_DELIVERY_DELAY = "delivery_delay"
_LONGEST_DELIVERY_DELAY_S = 8760 * 3600.0
_DROPS = "acknowledge_rejected_messages"
_OF_SHARED = (DELAY, DEAD_LETTERS, _DROPS)
_SCHEMA = "use_schema"
RECEIVER_OPTIONS = ("subscription_type", "initial_position", _OF_QUEUES, *_OF_SHARED, _DISCOVERY, _SCHEMA)
SENDER_OPTIONS = ("text", _DELIVERY_DELAY, _OF_QUEUES)
SHARED, EXCLUSIVE, FAILOVER, KEY_SHARED = "shared", "exclusive", "failover", "key_shared"
_TYPES = (SHARED, EXCLUSIVE, FAILOVER, KEY_SHARED)
_SHARING = (SHARED, KEY_SHARED)
_QUEUE_TYPE, _OWN_TYPE = SHARED, EXCLUSIVE
"""The subscription types of queues and topics, unless the options name others."""
_POSITIONS = ("earliest", "latest")
_EARLIEST, _LATEST = _POSITIONS
_PASSING = ":nondurable"
"""The names of subscriptions at the broker that end with their last consumer end so."""
_DISCOVERY_S, _LONGEST_DISCOVERY_S = 10, 3600
_VIRTUAL = re.compile(r"(regex|multi):(.*)", re.DOTALL)
_NAMES = "NAME without slashes or as persistent://TENANT/NAMESPACE/NAME"
_FULL_NAME = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/(.+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSubscription:
    """The subscription that a receiver consumes, and the topics to which it belongs.

    Attributes:
        topic: full name of the topic; if there are several, their name in messages.
        name: name of the subscription.
        subscription_type: how its consumers share messages.
        initial_position: where a new subscription begins.
        backoff: how long the broker waits before it redelivers a message that was given back.
        dead_letters: what to do with a message that is redelivered again and again; `None` for nothing.
        leaves_others: whether messages that the selector does not match are given back; otherwise they are
            acknowledged.
        topics: full names of several topics.
        pattern: a regular expression for the full names of several topics; "" for none.
        discovery_s: interval at which the client looks for new topics that match the pattern.
        use_schema: whether bodies are decoded by the schema of their topic.
        is_durable: whether the subscription stays when its last consumer is closed.
    """

    topic: str
    name: str
    subscription_type: str
    initial_position: str
    backoff: RedeliveryBackoff = field(default_factory=RedeliveryBackoff)
    dead_letters: DeadLetterPolicy | None = None
    leaves_others: bool = False
    topics: Sequence[str] = ()
    pattern: str = ""
    discovery_s: int = _DISCOVERY_S
    use_schema: bool = False
    is_durable: bool = True

    @property
    def is_shared(self) -> bool:
        """Return whether several consumers share the messages; the broker then counts deliveries."""
        return self.subscription_type in _SHARING


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarRoute:
    """How a sender sends its messages.

    Attributes:
        topic: full name of the topic of the sender's own destination; `None` without one.
        text: whether a body is text, unless the message names the kind of its body.
        queue_subscription: the subscription to make on each queue, so that it keeps messages without a consumer.
        delivery_delay: time before which shared subscriptions do not deliver a message; `None` for no delay.
    """

    topic: str | None
    text: bool
    queue_subscription: str
    delivery_delay: timedelta | None

    def subscription_of_queue(self, topic: str) -> PulsarSubscription:
        """Return the subscription that receivers of a queue share."""
        return PulsarSubscription(
            topic=topic,
            name=self.queue_subscription,
            subscription_type=_QUEUE_TYPE,
            initial_position=_EARLIEST,
        )


def subscription_of_subscriber(
    receiver: ReceiverSettings, subscriber: Subscriber, broker: PulsarBroker
) -> PulsarSubscription:
    """The subscription of a session's consumer of a topic. Raises `ConfigError` for a wrong destination or option.

    One that is not durable begins with the messages that are sent from now on.
    """
    defaults = {"subscription_type": SHARED, "initial_position": _EARLIEST if subscriber.durable else _LATEST}
    if not subscriber.shared:
        defaults["subscription_type"] = EXCLUSIVE
        if receiver.options.get("subscription_type", EXCLUSIVE) != EXCLUSIVE:
            where = f"receivers.{receiver.id}.subscription_type"
            raise ConfigError("E1022", where, "is for shared subscriptions: this one has one consumer at a time")
    chosen = replace(receiver, selector=None, options={**defaults, **receiver.options})
    made = subscription_of_receiver(chosen, broker)
    name = own_subscription(subscriber.name or uuid.uuid4().hex, broker)
    return replace(made, name=name if subscriber.durable else name + _PASSING, is_durable=subscriber.durable)


def subscription_of_receiver(receiver: ReceiverSettings, broker: PulsarBroker) -> PulsarSubscription:
    """Return the subscription of a receiver. Raises `ConfigError` for a wrong destination or option."""
    where = f"receivers.{receiver.id}"
    check_options(where, receiver.options, RECEIVER_OPTIONS)
    taken = _parts(where, receiver.destination, broker)
    queue = is_queue(receiver.destination)
    if taken.subscription:
        _refuse_embedded(where, receiver)
    if _DISCOVERY in receiver.options and not taken.pattern:
        raise ConfigError("E1022", f"{where}.{_DISCOVERY}", "is for destinations regex:PATTERN")
    if _OF_QUEUES in receiver.options and not queue:
        todo = "Set durable_topic_subscription_name"
        raise ConfigError("E1022", f"{where}.{_OF_QUEUES}", "is for queues", "", todo)
    type_ = choice_option(where, receiver.options, "subscription_type", _TYPES, _QUEUE_TYPE if queue else _OWN_TYPE)
    shared = type_ in _SHARING
    if not shared:
        _refuse_of_shared(where, receiver.options, type_)
    leaves_others = shared and not flag_option(where, receiver.options, _DROPS)
    if receiver.selector is not None and leaves_others and type_ == KEY_SHARED:
        what = "unselected messages would come back to this receiver for ever, because only it gets their key"
        raise ConfigError("E1220", f"{where}.selector", what, "", f"Set {_DROPS}, or subscription_type {SHARED}")
    own = queue_subscription(where, receiver.options) if queue else own_subscription(receiver.subscription, broker)
    return PulsarSubscription(
        topic=taken.topic,
        topics=taken.topics,
        pattern=taken.pattern,
        discovery_s=_discovery_s(where, receiver.options),
        name=taken.subscription or own,
        subscription_type=type_,
        initial_position=choice_option(where, receiver.options, "initial_position", _POSITIONS, _EARLIEST),
        backoff=backoff_of(where, receiver.options),
        dead_letters=_dead_letters(where, receiver.options, [taken.topic, *taken.topics], broker),
        leaves_others=leaves_others,
        use_schema=_uses_schema(where, receiver.options),
    )


def route_of_sender(sender: SenderSettings, broker: PulsarBroker) -> PulsarRoute:
    """Return how a sender sends. Raises `ConfigError` for a wrong destination or option."""
    where = f"senders.{sender.id}"
    check_options(where, sender.options, SENDER_OPTIONS)
    return PulsarRoute(
        topic=None if sender.destination is None else _checked_topic(where, sender.destination, broker),
        text=flag_option(where, sender.options, "text"),
        queue_subscription=queue_subscription(where, sender.options),
        delivery_delay=_delivery_delay(where, sender.options),
    )


def topic_of(destination: str, broker: PulsarBroker) -> str | None:
    """Return the full name of the topic of a destination; `None` if it names no topic.

    A name with a slash would belong to Pulsar's first version, in another namespace.
    """
    parsed = parse_destination(destination)
    if parsed is None:
        return None
    full = _FULL_NAME.fullmatch(parsed.name)
    name = full[1] if full else parsed.name
    if "/" in name or name != name.strip() or _VIRTUAL.fullmatch(name):
        return None
    return parsed.name if full else f"persistent://{broker.namespace}/{name}"


def is_queue(destination: str) -> bool:
    """Return whether receivers of this destination share one subscription."""
    return destination.startswith("queue:")


def own_subscription(name: str, broker: PulsarBroker) -> str:
    """Return the name of a receiver's subscription at the broker: `clientId_name` if there is a client
    id, as in JMS.
    """
    return f"{broker.client_id}_{name}" if broker.client_id else name


class _Parts(NamedTuple):
    """The parts of a receiver's destination; `subscription` is "" if it names none."""

    topic: str
    topics: Sequence[str] = ()
    pattern: str = ""
    subscription: str = ""


def _parts(where: str, text: str, broker: PulsarBroker) -> _Parts:
    destination = check_destination(where, text)
    virtual = _VIRTUAL.fullmatch(destination.name)
    if virtual is None:
        return _Parts(_checked_topic(where, text, broker))
    if virtual[1] == "regex":
        return _Parts(text, pattern=_pattern(where, text, virtual[2], broker))
    listed, subscription = _split(virtual[2])
    names = [f"{destination.kind}:{name}" for name in listed.split(",")]
    return _Parts(text, topics=[_checked_topic(where, name, broker) for name in names], subscription=subscription)


def _pattern(where: str, text: str, pattern: str, broker: PulsarBroker) -> str:
    if not pattern:
        raise ConfigError("E1215", f"{where}.destination", f"{quoted(text)} has no regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        what = f"{quoted(text)} has no regular expression: {error}"
        raise ConfigError("E1215", f"{where}.destination", what) from error
    return pattern if _FULL_NAME.fullmatch(pattern) else f"persistent://{broker.namespace}/{pattern}"


def _split(listed: str) -> tuple[str, str]:
    """Return the names, and the subscription after the last colon; the colon of `persistent://` does not count."""
    names, _, last = listed.rpartition(":")
    return (names, last) if names and not set(",/") & set(last) else (listed, "")


def _refuse_embedded(where: str, receiver: ReceiverSettings) -> None:
    if not is_queue(receiver.destination):
        what = f"{quoted(receiver.destination)} names a subscription, as only queues do"
        raise ConfigError("E1215", f"{where}.destination", what, "", "Set durable_topic_subscription_name")
    if _OF_QUEUES in receiver.options:
        raise ConfigError("E1022", f"{where}.{_OF_QUEUES}", "is of no use: the destination names the subscription")


def _delivery_delay(where: str, options: Mapping[str, Any]) -> timedelta | None:
    allowed = "A duration above 0s, up to 8760h"
    delay_s = duration_option(
        where, options, _DELIVERY_DELAY, allowed, lambda time_s: 0 < time_s <= _LONGEST_DELIVERY_DELAY_S
    )
    return None if delay_s is None else timedelta(seconds=delay_s)


def _discovery_s(where: str, options: Mapping[str, Any]) -> int:
    """Return the discovery interval. The client allows only whole seconds."""
    allowed = "A duration of whole seconds, from 1s to 1h"
    given = duration_option(
        where, options, _DISCOVERY, allowed, lambda time_s: time_s.is_integer() and 1 <= time_s <= _LONGEST_DISCOVERY_S
    )
    return _DISCOVERY_S if given is None else int(given)


def _checked_topic(where: str, destination: str, broker: PulsarBroker) -> str:
    check_destination(where, destination)
    topic = topic_of(destination, broker)
    if topic is None:
        allowed = f"Use queue:NAME or topic:NAME, {_NAMES}"
        raise ConfigError("E1215", f"{where}.destination", f"{quoted(destination)} is not a topic", allowed)
    return topic


def _dead_letters(
    where: str, options: Mapping[str, Any], own: Sequence[str], broker: PulsarBroker
) -> DeadLetterPolicy | None:
    """Return the dead letter policy with the full name of its topic: the client would look in another namespace."""
    policy = dead_letter_policy_of(where, options)
    if policy is None or policy.dead_letter_topic is None:
        return policy
    place, name = f"{where}.{DEAD_LETTERS}.dead_letter_topic", policy.dead_letter_topic
    topic = None if parse_destination(name) else topic_of(f"topic:{name}", broker)
    if topic is None:
        raise ConfigError("E1022", place, f"{quoted(name)} is not a topic", _NAMES)
    if topic in own:
        raise ConfigError("E1022", place, f"{quoted(name)} is its own topic: no message would ever leave it")
    return replace(policy, dead_letter_topic=topic)


def _refuse_of_shared(where: str, options: Mapping[str, Any], type_: str) -> None:
    """Refuse options of shared subscriptions: with other types the broker takes back no messages and counts nothing."""
    for name in _OF_SHARED:
        if name in options:
            what = f"is of no use with subscription_type {type_}: nothing is given back to the broker"
            raise ConfigError("E1022", f"{where}.{name}", what, f"It is for {' and '.join(_SHARING)}")


def _uses_schema(where: str, options: Mapping[str, Any]) -> bool:
    """Return the option `use_schema`. A missing package is an error here, since no record could be read without it."""
    uses = flag_option(where, options, _SCHEMA)
    if uses and find_spec("fastavro") is None:
        todo = "Install: pip install 'correlator[pulsar]'"
        raise ConfigError("E1213", f"{where}.{_SCHEMA}", "needs the package 'fastavro'", "", todo)
    return uses


def queue_subscription(where: str, options: Mapping[str, Any]) -> str:
    """Return the name of the subscription of a queue. Raises `ConfigError` E1022."""
    return text_option(where, options, _OF_QUEUES, QUEUE_SUBSCRIPTION)
