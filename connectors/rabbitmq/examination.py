"""Finds settings of queues at the server that delete or requeue messages unexpectedly (`correlator doctor`)."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from connectors.rabbitmq import management
from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.destinations import RabbitDestination, destination_of_receiver, destination_of_sender
from connectors.rabbitmq.link import RabbitLink, opened
from connectors.rabbitmq.management import Queue
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.settings import ReceiverSettings, SenderSettings


class _Examined(NamedTuple):
    """A receiver or a sender, and its queue."""

    where: str
    destination: RabbitDestination
    reliable: bool
    held_by_application: bool


def examine(
    where: str, broker: RabbitBroker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
) -> Iterator[CorrelatorError]:
    """Yield findings in the order of the parts. If the server cannot be reached, the error is the last finding.

    Declares no queue. If a queue does not exist yet, examines its configured arguments.
    """
    deadline = time.monotonic() + management.COLLECTING_S
    try:
        with opened(where, broker) as link:
            for part in _parts(broker, receivers, senders):
                yield from _findings(part, broker, link, deadline)
    except ConnectionLost as error:
        yield error


def _parts(
    broker: RabbitBroker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
) -> Iterator[_Examined]:
    for receiver in receivers:
        yield _Examined(
            f"receivers.{receiver.id}",
            destination_of_receiver(receiver, broker),
            receiver.reliability != "BEST_EFFORT",
            receiver.reliability == "APP_CONTROLLED",
        )
    for sender in senders:
        destination = destination_of_sender(sender, broker)
        if destination is not None and destination.queue:
            reliable = sender.persistent or sender.reliability != "BEST_EFFORT"
            yield _Examined(f"senders.{sender.id}", destination, reliable, held_by_application=False)


def _findings(part: _Examined, broker: RabbitBroker, link: RabbitLink, deadline: float) -> Iterator[CorrelatorError]:
    destination = part.destination
    missing = _refused(part, link, passive=True)
    if missing is not None and (missing.code != NO_SUCH_DESTINATION or not destination.declare):
        yield missing
        return
    if missing is not None:
        yield from _losses(part, Queue(destination.durable, management.rules_of(destination.arguments)), broker)
        return
    unlike = _refused(part, link, passive=False) if destination.declare else None
    if unlike is not None:
        yield unlike
    try:
        queue = management.queue_of(broker, destination.queue, deadline)
    except OSError as error:
        what = f"the arguments and policies of queue {quoted(destination.queue)} cannot be read: {error}"
        todo = "Enable the plugin rabbitmq_management, give the user the tag monitoring, set management_port"
        yield ConfigError("W7031", part.where, what, "", todo)
        return
    if not queue.policy_known:
        what = f"the policy of queue {quoted(destination.queue)} cannot be read: the server collects no statistics"
        yield ConfigError("W7031", part.where, what)
    yield from _losses(part, queue, broker)


def _refused(part: _Examined, link: RabbitLink, *, passive: bool) -> ConnectionLost | None:
    """Return the error if the queue does not exist, or exists with other arguments; `None` otherwise.
    Changes nothing.
    """
    try:
        link.ask(part.destination.queue_declaration(passive=passive))
    except ConnectionLost as error:
        if not link.connected:
            raise
        link.open_channel()
        return ConnectionLost(error.code, part.where, error.what, error.allowed, error.todo)
    return None


def _losses(part: _Examined, queue: Queue, broker: RabbitBroker) -> Iterator[ConfigError]:
    """Yield findings about settings of the queue that delete or requeue messages."""
    name, rules = quoted(part.destination.queue), queue.rules
    dead = rules.get("dead-letter-exchange")
    fate = "they are lost" if dead is None else f"they go to exchange {quoted(dead)}"
    if part.reliable and not queue.durable:
        what = f"queue {name} is not durable: a restart of the server loses it with its messages"
        yield ConfigError("W7032", part.where, what, "", "Declare it as durable under another name, or delete it first")
    for rule in ("max-length", "max-length-bytes"):
        if rule in rules and rules.get("overflow", "drop-head") == "drop-head":
            what = f"queue {name} drops its oldest messages beyond {rule} {rules[rule]}; {fate}"
            yield ConfigError(
                "W7033", part.where, what, "", "Set overflow to reject-publish: then senders wait or fail"
            )
    remedy = "Remove this setting from queues whose messages must not be lost"
    if "message-ttl" in rules:
        waited = f"{rules['message-ttl']} ms: the server removes messages that wait longer"
        yield ConfigError("W7034", part.where, f"queue {name} has message-ttl {waited}; {fate}", "", remedy)
    if "expires" in rules:
        unused = f"{rules['expires']} ms: if nobody uses it for so long, the server deletes it with its messages"
        yield ConfigError("W7034", part.where, f"queue {name} has expires {unused}", "", remedy)
    limit = rules.get("delivery-limit")
    if isinstance(limit, int) and limit >= 0 and dead is None:
        what = f"queue {name} drops a message after {limit} deliveries, and has no dead-letter exchange"
        yield ConfigError("W7035", part.where, what, "", "Set dead-letter-exchange, or remove the limit")
    if part.held_by_application:
        told = f"{broker.consumer_timeout_s} s, if consumer_timeout_s is the server's own consumer_timeout"
        longest = f"{rules['consumer-timeout']} ms" if "consumer-timeout" in rules else told
        what = f"queue {name} gets back messages that an APP_CONTROLLED receiver holds for longer than {longest}"
        yield ConfigError("W7036", part.where, what, "", "Let the application acknowledge earlier")
