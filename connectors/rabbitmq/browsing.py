"""Copies of the messages of a queue: consumers take the messages, and closing their connections gives them back.

AMQP cannot show the content of a queue. `basic.get` needs no consumer, but changes the order of a quorum queue.
"""

import time
from collections.abc import Sequence

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.destinations import RabbitDestination
from connectors.rabbitmq.link import opened
from connectors.rabbitmq.source import RabbitSource
from correlator.events import Message
from correlator.settings import ReceiverSettings

MOST_HELD = 10_000
"""Number of messages that one consumer takes; the next consumer takes the messages after them. A quorum queue would
need seconds to deliver 20,000 messages to one consumer. The prefetch of each consumer is only its share; otherwise it
would get messages that others give back.
"""
_QUIET_S = 2.0
"""If no message arrives for this number of seconds, other consumers are assumed to hold the missing messages."""
_LOOK_AGAIN_S = 0.05
_PIECE = 1000


def copies(where: str, broker: RabbitBroker, queue: str, limit: int) -> Sequence[Message]:
    """Return the oldest messages that no consumer holds. Raises `ConnectionLost`, E7010 if there is no such queue."""
    destination = RabbitDestination(queue=queue, declare=False)
    ready = _ready(where, broker, destination)
    left = min(limit, ready)
    messages: list[Message] = []
    sources: list[RabbitSource] = []
    try:
        while left:
            share = min(left, MOST_HELD)
            source = RabbitSource(where, broker, destination, _holding(queue, share))
            sources.append(source)
            source.connect()
            taken = _taken(source, share, broker.timeout_s)
            messages += taken
            left = left - share if len(taken) == share else 0
    finally:
        for source in sources:
            source.close()
    _wait_until_given_back(where, broker, destination, ready)
    return messages


def _wait_until_given_back(where: str, broker: RabbitBroker, destination: RabbitDestination, ready: int) -> None:
    """Wait until the messages are back in the queue, but not long: other consumers may take messages meanwhile.

    A quorum queue notices closed connections a little later.
    """
    deadline = time.monotonic() + _QUIET_S
    while _ready(where, broker, destination) < ready and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _ready(where: str, broker: RabbitBroker, destination: RabbitDestination) -> int:
    """Return the number of messages that no consumer holds."""
    with opened(where, broker) as link:
        return int(link.ask(destination.queue_declaration(passive=True)).method.message_count)


def _holding(queue: str, share: int) -> ReceiverSettings:
    return ReceiverSettings(id="browser", connection="", destination=f"queue:{queue}", max_batch_size=share)


def _taken(source: RabbitSource, share: int, first_s: float) -> list[Message]:
    """Return at most `share` messages; wait `first_s` seconds for the first one, since a large message takes time."""
    messages: list[Message] = []
    while len(messages) < share:
        chunk = source.receive(min(_PIECE, share - len(messages)), _QUIET_S if messages else first_s)
        if not chunk.messages:
            break
        messages += chunk.messages
    return messages
