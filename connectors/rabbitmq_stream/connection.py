"""The entry point of the connector `rabbitmq_stream`: checks options; makes sources and sinks."""

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.rabbitmq_server import public_secrets
from connectors.rabbitmq_stream.broker import broker
from connectors.rabbitmq_stream.destinations import destination_of_receiver, destination_of_sender, stream_of
from connectors.rabbitmq_stream.link import StreamLink
from connectors.rabbitmq_stream.sink import StreamSink
from connectors.rabbitmq_stream.source import StreamSource
from correlator.connector import NO_SUCH_DESTINATION, Features, Order
from correlator.errors import ConnectionLost, CorrelatorError, UsageError, quoted
from correlator.events import Message
from correlator.options import check_destination
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class StreamConnection:
    """A RabbitMQ server with the stream plugin. docs/rabbitmq-streams.md lists the options.

    Each source and each sink has a link of its own, to the node that leads its stream.
    """

    features = Features(order=Order.POSITION, deduplicates_sends=True, shares=False)

    public_secrets = staticmethod(public_secrets)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = f"connections.{name}"
        self._broker = broker(self._where, settings.options)

    def source(self, receiver: ReceiverSettings) -> StreamSource:
        """Make a reader of the stream. Readers do not share messages: each gets all of them. Raises `ConfigError`."""
        destination = destination_of_receiver(receiver, self._broker)
        return StreamSource(f"receivers.{receiver.id}", self._broker, destination, receiver)

    def sink(self, sender: SenderSettings) -> StreamSink:
        """Make a publisher for the stream of the sender, or for the streams of its messages; does not connect.

        Raises `ConfigError` if the destination or an option of the sender is wrong.
        """
        return StreamSink(f"senders.{sender.id}", self._broker, destination_of_sender(sender, self._broker))

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the oldest messages that the stream still contains. Changes nothing.

        Raises `UsageError` E2110 if the destination is not a queue, E2027 if there is no such stream; `ConnectionLost`
        if the server cannot be reached.
        """
        check_destination(self._where, destination)
        stream = stream_of(destination)
        if stream is None:
            raise UsageError("E2110", destination, "only queues can be browsed")
        receiver = ReceiverSettings(
            id="browse", connection="", destination=destination, max_batch_size=limit, options={"declare": False}
        )
        source = self.source(receiver)
        try:
            return source.peek(limit)
        except ConnectionLost as error:
            if error.code != NO_SUCH_DESTINATION:
                raise ConnectionLost(error.code, self._where, error.what, error.allowed, error.todo) from error
            raise UsageError("E2027", quoted(destination), "the broker has no such queue") from error
        finally:
            source.close()

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Find for `correlator doctor` what would stop receivers and senders: no connection, or missing streams."""
        parts = {f"receivers.{one.id}": destination_of_receiver(one, self._broker) for one in receivers}
        for one in senders:
            if (destination := destination_of_sender(one, self._broker)) is not None:
                parts[f"senders.{one.id}"] = destination
        link = StreamLink(self._where, self._broker)
        try:
            link.open()
            needed = {where: one.stream for where, one in parts.items() if not one.declare}
            return [_missing(where, stream) for where, stream in needed.items() if not link.exists(stream)]
        except ConnectionLost as error:
            return [error]
        finally:
            link.close()

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""


def _missing(where: str, stream: str) -> ConnectionLost:
    what = f"there is no stream {quoted(stream)}, and 'declare' is false"
    return ConnectionLost(NO_SUCH_DESTINATION, where, what, "", "Make it, or let the engine make it (declare: true)")
