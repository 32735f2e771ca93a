"""Makes temporary queues, and deletes queues that nobody consumes from."""

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.destinations import EXPIRES, RabbitDestination
from connectors.rabbitmq.failures import ServerFault
from connectors.rabbitmq.link import opened
from correlator.connector import IN_USE, NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost, UsageError

_NOT_IMPLEMENTED = 540


def make_temporary(where: str, broker: RabbitBroker, queue: str) -> None:
    """Make a queue that the server deletes by itself, should nobody else do so. Raises `ConnectionLost`."""
    arguments = {"x-queue-type": "classic", **EXPIRES}
    with opened(where, broker) as link:
        RabbitDestination(queue=queue, arguments=arguments).declare_on(link)


def delete_queue(where: str, broker: RabbitBroker, queue: str, destination: str) -> bool:
    """Delete a queue with its messages; returns whether it was there.

    Raises `UsageError` E7513 while it has a consumer, `ConnectionLost`. A quorum queue may get a consumer between the
    look at its consumers and the deletion: then it is deleted nevertheless.
    """
    try:
        if not _delete(where, broker, queue, if_unused=True):
            _delete(where, broker, queue, if_unused=False)
    except ConnectionLost as error:
        if error.code == IN_USE:
            what = "somebody consumes from it"
            raise UsageError("E7513", destination, what, "", "Close the consumer first") from error
        if error.code != NO_SUCH_DESTINATION:
            raise
        return False
    return True


def _delete(where: str, broker: RabbitBroker, queue: str, *, if_unused: bool) -> bool:
    """Delete a queue that has no consumer; returns whether the server accepts the condition `if_unused`.

    Quorum queues do not have it. Raises `ConnectionLost`, with code `IN_USE` or `NO_SUCH_DESTINATION` in these cases.
    """
    with opened(where, broker) as link:
        there = link.ask(RabbitDestination(queue=queue).queue_declaration(passive=True))
        if there.method.consumer_count:
            raise ConnectionLost(IN_USE, where, f"queue '{queue}' has a consumer")
        try:
            link.ask(lambda channel, reply: channel.queue_delete(queue, if_unused=if_unused, callback=reply))
        except ConnectionLost:
            if isinstance(link.fault, ServerFault) and link.fault.reply_code == _NOT_IMPLEMENTED:
                return False
            raise
        return True
