"""A channel in confirm mode that publishes one batch after another. Only the I/O thread of its link uses it."""

from collections.abc import Callable
from typing import Any

from pika import spec

from connectors.rabbitmq.confirms import BatchInFlight
from connectors.rabbitmq.frames import publication
from connectors.rabbitmq.wire import decode_fields


class ConfirmChannel:
    """Publishes batches on a channel.

    Args:
        channel: an open channel.
        over: called when every message of a batch is confirmed or refused.
        ready: called when the channel is in confirm mode.
    """

    def __init__(self, channel: Any, over: Callable[[], None], ready: Callable[..., None]) -> None:
        self._channel = channel
        self._over = over
        self._published = 0
        self._flight: BatchInFlight | None = None
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=ready)

    def publish(self, flight: BatchInFlight) -> None:
        """Publish the unsettled messages of a batch. The previous batch must be settled."""
        self._flight = flight
        flight.begin_channel(self._published)
        self._go_on(flight)

    def _go_on(self, flight: BatchInFlight) -> None:
        number, frame_max = self._channel.channel_number, self._channel.connection.params.frame_max
        pieces = [
            publication(
                number,
                one.route.exchange,
                one.route.routing_key,
                one.properties,
                one.body,
                frame_max,
                mandatory=one.route.mandatory or one.route.watched,
            )
            for one in flight.next()
        ]
        if pieces:
            self._published += len(pieces)
            self._channel.connection.write(b"".join(pieces))
        if flight.over:
            self._over()

    def _on_confirm(self, notice: Any) -> None:
        method, flight = notice.method, self._flight
        assert flight is not None
        settle = flight.confirmed if isinstance(method, spec.Basic.Ack) else flight.refused
        settle(method.delivery_tag, multiple=method.multiple)
        self._go_on(flight)

    def _on_return(self, _: Any, method: Any, properties: bytes, __: bytes) -> None:
        assert self._flight is not None
        self._flight.returned(decode_fields(properties).message_id, f"{method.reply_code} {method.reply_text}")
