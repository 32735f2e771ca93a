"""What a server would do to the messages of receivers and senders that nobody expects (`correlator doctor`)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from connectors.rabbitmq import management
from connectors.rabbitmq.broker import Broker
from connectors.rabbitmq.failures import NO_SUCH_DESTINATION
from connectors.rabbitmq.link import Link
from connectors.rabbitmq.management import Queue
from connectors.rabbitmq.places import Place, place_of_receiver, place_of_sender
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.settings import ReceiverSettings, SenderSettings

_USUAL_TIMEOUT = "30 minutes, unless its consumer_timeout says otherwise"


class _Part(NamedTuple):
    """A receiver or a sender, and the queue that it takes from or publishes to."""

    where: str
    place: Place
    reliable: bool
    held_by_application: bool


def examine(
    where: str, broker: Broker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
) -> Iterator[CorrelatorError]:
    """Findings in the order of the parts; the first one alone when the server cannot be reached.

    Queues are looked for, never declared; of one that is not there and would be made, its configured arguments count.
    """
    link = Link(where, broker)
    try:
        link.open()
        for part in _parts(broker, receivers, senders):
            yield from _findings(part, broker, link)
    except ConnectionLost as error:
        yield error
    finally:
        link.close()


def _parts(broker: Broker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]) -> Iterator[_Part]:
    for receiver in receivers:
        yield _Part(
            f"receivers.{receiver.id}",
            place_of_receiver(receiver, broker),
            receiver.reliability != "BEST_EFFORT",
            receiver.reliability == "APP_CONTROLLED",
        )
    for sender in senders:
        place = place_of_sender(sender, broker)
        if place is not None and place.queue:
            reliable = sender.persistent or sender.reliability != "BEST_EFFORT"
            yield _Part(f"senders.{sender.id}", place, reliable, held_by_application=False)


def _findings(part: _Part, broker: Broker, link: Link) -> Iterator[CorrelatorError]:
    queue = Queue(part.place.durable, management.rules_of(part.place.arguments))
    missing = _missing(part, link)
    if missing is not None and not part.place.declare:
        yield missing
        return
    if missing is None:
        try:
            queue = management.queue_of(broker, part.place.queue)
        except OSError as error:
            what = f"arguments and policies of queue {quoted(part.place.queue)} cannot be seen: {error}"
            todo = "Enable the plugin rabbitmq_management, give the user the tag monitoring, set management_port"
            yield ConfigError("W7031", part.where, what, "", todo)
    yield from _losses(part, queue)


def _missing(part: _Part, link: Link) -> ConnectionLost | None:
    """Why the queue is not there."""
    try:
        link.ask(lambda channel, reply: channel.queue_declare(part.place.queue, passive=True, callback=reply))
    except ConnectionLost as error:
        if error.code != NO_SUCH_DESTINATION:
            raise
        link.open_channel()
        return ConnectionLost(error.code, part.where, error.what, error.allowed, error.todo)
    return None


def _losses(part: _Part, queue: Queue) -> Iterator[ConfigError]:
    """What takes messages away."""
    name, rules = quoted(part.place.queue), queue.rules
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
    for rule in ("message-ttl", "expires"):
        if rule in rules:
            what = f"queue {name} has {rule} {rules[rule]} ms: what waits longer is taken away; {fate}"
            yield ConfigError("W7034", part.where, what, "", "Take it off where every message counts")
    if "delivery-limit" in rules and dead is None:
        what = (
            f"queue {name} drops a message after {rules['delivery-limit']} deliveries, and has no dead-letter exchange"
        )
        yield ConfigError("W7035", part.where, what, "", "Set dead-letter-exchange, or take the limit off")
    if part.held_by_application:
        longest = f"{rules['consumer-timeout']} ms" if "consumer-timeout" in rules else _USUAL_TIMEOUT
        what = f"the server takes back what an APP_CONTROLLED receiver of queue {name} holds for longer than {longest}"
        yield ConfigError("W7036", part.where, what, "", "Let the application acknowledge well before")
