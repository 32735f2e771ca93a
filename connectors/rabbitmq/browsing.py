"""Copies of what is in a queue: consumers take it, and give it back to its place.

AMQP knows no way to look. `basic.get` would do without consumers, and leaves a quorum queue in another order.
"""

import time
from collections.abc import Sequence

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.destinations import RabbitDestination
from connectors.rabbitmq.link import RabbitLink
from connectors.rabbitmq.source import RabbitSource
from correlator.events import Message
from correlator.settings import ReceiverSettings

MOST_HELD = 10_000
"""Messages that one consumer holds, while another takes what lies behind them: a quorum queue is silent for seconds
before it gives 20,000 to one. Each has room for its share and no more, or it would get what the others give back."""
_QUIET_S = 2.0
"""Silence after which what is still missing is taken to be with other consumers."""
_LOOK_AGAIN_S = 0.05
_PIECE = 1000


def copies(where: str, broker: RabbitBroker, queue: str, limit: int) -> Sequence[Message]:
    """The oldest messages that no consumer holds. Raises `ConnectionLost`, E7010 for a queue that is not there."""
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
    """A quorum queue hears of closed connections a little later. Others may have taken something: not for long."""
    deadline = time.monotonic() + _QUIET_S
    while _ready(where, broker, destination) < ready and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _ready(where: str, broker: RabbitBroker, destination: RabbitDestination) -> int:
    """How many messages no consumer holds."""
    link = RabbitLink(where, broker)
    try:
        link.open()
        return int(link.ask(destination.queue_declaration(passive=True)).method.message_count)
    finally:
        link.close()


def _holding(queue: str, share: int) -> ReceiverSettings:
    return ReceiverSettings(id="browser", connection="", destination=f"queue:{queue}", max_batch_size=share)


def _taken(source: RabbitSource, share: int, first_s: float) -> list[Message]:
    """What comes, the first message within `first_s`: a large one takes its time."""
    messages: list[Message] = []
    while len(messages) < share:
        chunk = source.receive(min(_PIECE, share - len(messages)), _QUIET_S if messages else first_s)
        if not chunk.messages:
            break
        messages += chunk.messages
    return messages
