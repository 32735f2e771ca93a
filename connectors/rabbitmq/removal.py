"""Makes temporary queues, and deletes queues that nobody consumes from."""

from collections.abc import Iterator
from contextlib import contextmanager

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.destinations import EXPIRES, RabbitDestination
from connectors.rabbitmq.link import RabbitLink
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost, UsageError


def make_temporary(where: str, broker: RabbitBroker, queue: str) -> None:
    """Make a queue that the server deletes by itself, should nobody else do so. Raises `ConnectionLost`."""
    arguments = {"x-queue-type": "classic", **EXPIRES}
    with _linked(where, broker) as link:
        RabbitDestination(queue=queue, arguments=arguments).declare_on(link)


def delete_queue(where: str, broker: RabbitBroker, queue: str, destination: str) -> bool:
    """Delete a queue with its messages; returns whether it was there.

    Raises `UsageError` E7513 while it has a consumer, `ConnectionLost`.
    """
    with _linked(where, broker) as link:
        try:
            there = link.ask(RabbitDestination(queue=queue).queue_declaration(passive=True))
        except ConnectionLost as error:
            if error.code != NO_SUCH_DESTINATION:
                raise
            return False
        if there.method.consumer_count:
            raise UsageError("E7513", destination, "somebody consumes from it", "", "Close the consumer first")
        link.ask(lambda channel, reply: channel.queue_delete(queue, callback=reply))
        return True


@contextmanager
def _linked(where: str, broker: RabbitBroker) -> Iterator[RabbitLink]:
    link = RabbitLink(where, broker)
    try:
        link.open()
        yield link
    finally:
        link.close()
