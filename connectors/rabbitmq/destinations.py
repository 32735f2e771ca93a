"""Maps destinations to queues and exchanges of RabbitMQ, and declares them.

`queue:NAME` is the queue NAME; senders reach it through the default exchange. `topic:NAME` is the routing key NAME of a
topic exchange; each receiver of the topic has a durable queue of its own, bound by this key.
"""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from connectors.rabbitmq.broker import RabbitBroker, queue_type_option
from connectors.rabbitmq.link import RabbitLink, Request
from connectors.rabbitmq.wire import SHORTEST_UNUSABLE
from correlator.connector import Subscriber, is_temporary
from correlator.errors import ConfigError, quoted
from correlator.options import Destination, check_destination, check_options, flag_option, is_name, text_option
from correlator.settings import ReceiverSettings, SenderSettings

_OF_QUEUES = ("queue_type", "arguments")
_OF_EXCHANGES = ("exchange_type", "routing_key")
_BOTH = ("declare", "durable", "exchange", *_OF_QUEUES, *_OF_EXCHANGES)
RECEIVER_OPTIONS = (*_BOTH, "queue")
SENDER_OPTIONS = (*_BOTH, "mandatory", "text")
_EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")
_PASSING = ":nondurable"
"""The names of queues of subscriptions that end with their last consumer end so."""
EXPIRES = {"x-expires": 24 * 3600 * 1000}
"""The argument by which the server deletes a queue after a day without a consumer."""
_PREDECLARED = "amq."
"""Beginning of the names of exchanges that every server has, and that nobody may declare."""


class Route(NamedTuple):
    """Exchange and routing key with which a message is published.

    Attributes:
        mandatory: whether the message is refused if no queue gets it.
        watched: whether the sink logs a warning if no queue gets a message that is not mandatory.
    """

    exchange: str
    routing_key: str
    mandatory: bool
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitDestination:
    """The queue and the exchange of a receiver's or sender's destination.

    Attributes:
        queue: name of the queue; "" for a sender that publishes to an exchange.
        exchange: name of the exchange; "" for the default exchange.
        declare: whether missing queue, exchange and binding are made; otherwise they must exist.
        arguments: of the queue, its type included.
        exclusive: whether the queue belongs to the AMQP connection that declares it, and ends with it.
        auto_delete: whether the queue ends with its last consumer.
        is_alone: whether its consumer refuses others.
    """

    queue: str = ""
    exchange: str = ""
    exchange_type: str = "direct"
    routing_key: str = ""
    declare: bool = True
    durable: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    exclusive: bool = False
    auto_delete: bool = False
    is_alone: bool = False

    def declare_on(self, link: RabbitLink) -> None:
        """Make queue, exchange and binding, or check that they exist.

        Raises `ConnectionLost`, E7010 if one is missing.
        """
        if self.exchange:
            self._declare_exchange(link)
        if self.queue:
            link.ask(self.queue_declaration(passive=not self.declare))
        if self.queue and self.exchange and self.declare:
            link.ask(
                lambda channel, reply: channel.queue_bind(self.queue, self.exchange, self.routing_key, callback=reply)
            )

    def queue_declaration(self, *, passive: bool) -> Request:
        """Return the request that declares the queue, or, if `passive`, asks for it; the answer has its
        number of messages.
        """
        return lambda channel, reply: channel.queue_declare(
            self.queue,
            passive=passive,
            durable=self.durable,
            exclusive=self.exclusive,
            auto_delete=self.auto_delete,
            arguments=dict(self.arguments),
            callback=reply,
        )

    def _declare_exchange(self, link: RabbitLink) -> None:
        link.ask(
            lambda channel, reply: channel.exchange_declare(
                self.exchange,
                self.exchange_type,
                passive=not self.declare or self.exchange.startswith(_PREDECLARED),
                durable=self.durable,
                callback=reply,
            )
        )


def destination_of_receiver(receiver: ReceiverSettings, broker: RabbitBroker) -> RabbitDestination:
    """Return the queue that a receiver consumes from. Raises `ConfigError` for a wrong destination or option."""
    where = f"receivers.{receiver.id}"
    options = receiver.options
    check_options(where, options, RECEIVER_OPTIONS)
    destination = _destination(where, receiver.destination)
    is_queue = destination.kind == "queue"
    own = destination.name if is_queue else subscription_queue(destination.name, receiver.subscription)
    if "queue" in options and is_queue:
        raise ConfigError("E1022", f"{where}.queue", "is for topics", "", "Name the queue in destination")
    made = _made(where, options, destination, broker, queue=text_option(where, options, "queue", own))
    return replace(made, declare=False) if is_queue and is_temporary(receiver.destination) else made


def subscription_queue(topic: str, subscription: str) -> str:
    """The name of the queue of a subscription."""
    return f"{topic}:{subscription}"


def check_subscription(where: str, name: str) -> None:
    """Raise `ConfigError` E1022 for a name that could make one queue of two topics' subscriptions.

    Sessions check it. Receivers of engines may have such names.
    """
    if ":" in name:
        what = f"{quoted(name)} is not the name of a subscription: its queue could be that of another topic"
        raise ConfigError("E1022", where, what, "A name without ':'")


def destination_of_subscriber(
    receiver: ReceiverSettings, subscriber: Subscriber, broker: RabbitBroker
) -> RabbitDestination:
    """The queue of a session's consumer of a topic. Raises `ConfigError` for a wrong destination, name or option."""
    check_subscription(f"receivers.{receiver.id}.subscription", subscriber.name)
    if subscriber.durable:
        made = destination_of_receiver(receiver, broker)
        expires = EXPIRES if is_temporary(receiver.destination) else {}
        return replace(made, is_alone=not subscriber.shared, arguments={**made.arguments, **expires})
    # Quorum queues are for messages that must not be lost: they cannot be exclusive.
    passing = replace(receiver, durable_topic_subscription_name=f"{subscriber.name or uuid.uuid4().hex}{_PASSING}")
    made = destination_of_receiver(passing, replace(broker, queue_type="classic"))
    if not subscriber.shared:
        return replace(made, exclusive=True)
    # The server deletes an `auto_delete` queue after its last consumer, so it keeps one that never had a consumer.
    return replace(made, auto_delete=True, arguments={**made.arguments, **EXPIRES})


def destination_of_sender(sender: SenderSettings, broker: RabbitBroker) -> RabbitDestination | None:
    """Return the queue or exchange of a sender, `None` if it has no destination. Raises `ConfigError`
    as for a receiver.
    """
    where = f"senders.{sender.id}"
    check_options(where, sender.options, SENDER_OPTIONS)
    if sender.destination is None:
        _refuse_useless(where, sender.options, _BOTH, "is about the sender's destination, and it has none")
        return None
    destination = _destination(where, sender.destination)
    to_queue = destination.kind == "queue" and "exchange" not in sender.options
    return _made(where, sender.options, destination, broker, queue=destination.name if to_queue else "")


def route_to(destination: Destination, broker: RabbitBroker) -> Route | None:
    """Return the route to a destination that a single message names; `None` if RabbitMQ cannot have such a name."""
    if not _is_short(destination.name):
        return None
    if destination.kind == "queue":
        return Route("", destination.name, mandatory=True)
    return Route(broker.topic_exchange, destination.name, mandatory=False)


def _made(
    where: str, options: Mapping[str, Any], destination: Destination, broker: RabbitBroker, *, queue: str
) -> RabbitDestination:
    topic = destination.kind == "topic"
    own_exchange = broker.topic_exchange if topic else ""
    exchange = text_option(where, options, "exchange") if "exchange" in options else own_exchange
    _refuse_useless(where, options, () if exchange else _OF_EXCHANGES, "has no meaning without an exchange")
    _refuse_useless(where, options, () if queue else _OF_QUEUES, "is about a queue, and the sender goes to an exchange")
    routing_key = text_option(where, options, "routing_key", destination.name) if exchange else queue
    return RabbitDestination(
        queue=_short(f"{where}.queue", queue),
        exchange=_short(f"{where}.exchange", exchange),
        exchange_type=_exchange_type(where, options, "topic" if topic else "direct"),
        routing_key=_short(f"{where}.routing_key", routing_key),
        declare=flag_option(where, options, "declare", default=broker.declare),
        durable=flag_option(where, options, "durable", default=True),
        arguments=_arguments(where, options, broker),
    )


def _refuse_useless(where: str, options: Mapping[str, Any], names: Collection[str], why: str) -> None:
    for name in names:
        if name in options:
            raise ConfigError("E1022", f"{where}.{name}", why)


def _exchange_type(where: str, options: Mapping[str, Any], default: str) -> str:
    value = text_option(where, options, "exchange_type", default)
    if value not in _EXCHANGE_TYPES:
        raise ConfigError(
            "E1022", f"{where}.exchange_type", f"{quoted(value)} is not allowed", ", ".join(_EXCHANGE_TYPES)
        )
    return value


def _arguments(where: str, options: Mapping[str, Any], broker: RabbitBroker) -> Mapping[str, Any]:
    """Return the arguments of the queue, with names and values as RabbitMQ documents them."""
    given = options.get("arguments", {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError("E1022", f"{where}.arguments", "is not a mapping", "As in {x-max-length: 1000}")
    for name, value in given.items():
        if not isinstance(value, str | int):
            what = f"{quoted(value)} cannot be an argument"
            raise ConfigError("E1022", f"{where}.arguments.{name}", what, "A text, a whole number, true or false")
    queue_type = queue_type_option(where, options, broker.queue_type)
    if queue_type == "quorum" and not flag_option(where, options, "durable", default=True):
        raise ConfigError("E1022", f"{where}.durable", "a quorum queue is always durable")
    return {**({"x-queue-type": queue_type} if queue_type else {}), **given}


def _destination(where: str, text: str) -> Destination:
    destination = check_destination(where, text)
    _short(f"{where}.destination", destination.name)
    return destination


def _short(where: str, name: str) -> str:
    if not _is_short(name):
        raise ConfigError("E1215", where, f"{quoted(name)} is not a name for RabbitMQ", "At most 255 bytes of UTF-8")
    return name


def _is_short(name: str) -> bool:
    return not name or (is_name(name) and len(name.encode()) < SHORTEST_UNUSABLE)
