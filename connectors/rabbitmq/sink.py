"""The sink of RabbitMQ: publishes batches with publisher confirms."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq.confirms import BatchInFlight, RabbitPublication
from connectors.rabbitmq.content import encode
from connectors.rabbitmq.destinations import RabbitDestination, Route, route_to
from connectors.rabbitmq.failures import ServerFault
from connectors.rabbitmq.link import RabbitLink
from connectors.rabbitmq.publisher import ConfirmChannel
from connectors.rabbitmq_server import ConnectionFault
from correlator.connector import TAKES_NOTHING
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing
from correlator.options import parse_destination
from correlator.settings import SenderSettings

_MOST_UNHEARD = 1000
"""Largest number of topics without subscribers about which one sink warns."""
_log = logging.getLogger("connectors.rabbitmq")
_REFUSED_BY_CLOSING = {404: "E8103", 403: "E8107"}
"""Codes of a message for which the server closes the channel, by the server's reply code; E8106 for
other reply codes.
"""


class RabbitSink:
    """Publishes with publisher confirms, and with the flag `mandatory` where a message must reach a queue.

    For a reliable sender, it also logs a warning about messages to topics that reach no queue, once for each topic.

    While the server blocks publishers (a memory or disk alarm), `send` raises `ConnectionLost` after the time-out, so
    that the engine can report it and can stop. The batch stays in flight meanwhile, and is not published twice.
    """

    def __init__(
        self,
        where: str,
        broker: RabbitBroker,
        destination: RabbitDestination | None,
        sender: SenderSettings,
        *,
        text: bool,
        mandatory: bool,
    ) -> None:
        self._where = where
        self._broker = broker
        self._destination = destination
        self._own_name = sender.destination
        self._text = text
        self._mandatory = mandatory
        self._durable = sender.reliability != "BEST_EFFORT"
        self._life = uuid.uuid4().hex
        self._route = lru_cache(maxsize=256)(self._find_route)
        self._link: RabbitLink | None = None
        self._largest_properties = 0
        self._publisher: ConfirmChannel | None = None
        self._stirred = threading.Event()
        self._flight: BatchInFlight | None = None
        self._batch: Sequence[Outgoing] = ()
        self._unheard: set[Route] = set()

    def connect(self) -> None:
        """Connect and declare; or, if a batch is still in flight, wait until the server accepts messages."""
        if self._flight is not None and self._link is not None and self._link.fault is None:
            self._await_unblocked(self._link, self._flight)
            return
        self.close()
        self._link = link = RabbitLink(self._where, self._broker, self._stirred.set)
        try:
            link.open()
            self._largest_properties = link.largest_properties
            if self._destination is not None:
                self._destination.declare_on(link)
            self._confirm_on(link)
        except BaseException:
            self.close()
            raise

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Publish the batch and wait for the last confirm. Raises `ConnectionLost`."""
        if self._flight is None:
            return self._send(batch)
        under_way = self._batch
        if list(batch[: len(under_way)]) == list(under_way):
            return [*self._arrived(self._connected(), self._flight), *self._send(batch[len(under_way) :])]
        self.close()  # this is another batch: the outcome of the one in flight can no longer be reported
        self.connect()
        return self._send(batch)

    def close(self) -> None:
        """Close the connection. Unconfirmed messages may still have arrived."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._flight = None

    def _connected(self) -> RabbitLink:
        if self._link is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        return self._link

    def _send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        link = self._connected()
        link.check()
        now_ms = time.time_ns() // 1_000_000
        flight = BatchInFlight(len(batch), lambda index: self._publication(batch[index], now_ms), self._tell_unheard)
        self._flight, self._batch = flight, batch
        self._publish(link, flight)
        return self._arrived(link, flight)

    def _publish(self, link: RabbitLink, flight: BatchInFlight) -> None:
        publisher = self._publisher
        assert publisher is not None
        link.tell(lambda _: publisher.publish(flight))

    def _arrived(self, link: RabbitLink, flight: BatchInFlight) -> Sequence[SendRejected | None]:
        """Return the results, once there is one for each message."""
        try:
            self._await(link, flight)
        except ConnectionLost:
            if not link.blocked:
                self.close()
            raise
        self._flight = None
        return flight.results

    def _await(self, link: RabbitLink, flight: BatchInFlight) -> None:
        settled = flight.settled
        while not flight.over:
            moved = self._stirred.wait(self._broker.timeout_s)
            self._stirred.clear()
            if flight.over:
                return
            if link.fault is not None:
                self._go_on_after(link.fault, link, flight)
            elif link.blocked:
                self._await_unblocked(link, flight)
            elif not moved and flight.settled == settled:
                what = f"{self._broker.address} confirmed nothing for {self._broker.timeout_s:g} s"
                raise ConnectionLost("E7023", self._where, what)
            settled = flight.settled

    def _await_unblocked(self, link: RabbitLink, flight: BatchInFlight) -> None:
        deadline = time.monotonic() + self._broker.timeout_s
        while link.blocked and link.fault is None and not flight.over:
            left = deadline - time.monotonic()
            if left <= 0:
                what = f"{self._broker.address} takes no messages at present ({link.blocked})"
                raise ConnectionLost(TAKES_NOTHING, self._where, what, "", "The batch is under way and is waited for")
            self._stirred.wait(left)
            self._stirred.clear()
        self._stirred.set()  # the caller must check its own condition again

    def _go_on_after(self, fault: ConnectionFault, link: RabbitLink, flight: BatchInFlight) -> None:
        """Continue after the server has closed the channel because of one message; raise any other fault."""
        if not (isinstance(fault, ServerFault) and link.connected):
            raise fault.error(self._where)
        what = f"the broker refused it: {fault.reply_text} ({fault.reply_code})"
        flight.channel_closed(_REFUSED_BY_CLOSING.get(fault.reply_code, "E8106"), what)
        link.open_channel()
        self._confirm_on(link)
        self._publish(link, flight)

    def _confirm_on(self, link: RabbitLink) -> None:
        def begin(channel: Any, ready: Callable[..., None]) -> None:
            self._publisher = ConfirmChannel(channel, self._stirred.set, ready)

        link.ask(begin)

    # --- messages, in the I/O thread ---

    def _publication(self, outgoing: Outgoing, now_ms: int) -> RabbitPublication | SendRejected:
        where = f"message {outgoing.sequence}:{outgoing.source}"
        route = self._route(outgoing.destination)
        if route is None:
            what = f"{quoted(outgoing.destination)} is not a destination"
            return SendRejected("E8104", where, what, "Use queue:NAME or topic:NAME, NAME of at most 255 bytes")
        message_id = outgoing.message_id or f"ID:{outgoing.sequence}:{outgoing.source or self._life}"
        try:
            properties = encode(outgoing, message_id, now_ms, text=self._text, durable=self._durable)
        except (ValueError, TypeError, AttributeError) as error:  # application code may put any value into a message
            return SendRejected("E8110", where, f"RabbitMQ cannot carry the message: {error}")
        if len(properties) > self._largest_properties:
            left = self._largest_properties
            what = f"its properties have {len(properties)} bytes, and the server's frame_max leaves {left}"
            return SendRejected("E8106", where, what)
        return RabbitPublication(route, properties, outgoing.message.body, message_id, where)

    def _find_route(self, destination: str) -> Route | None:
        own = self._destination
        if own is not None and destination == self._own_name:
            return Route(own.exchange, own.routing_key, self._mandatory, self._durable)
        parsed = parse_destination(destination)
        route = None if parsed is None else route_to(parsed, self._broker)
        return None if route is None else route._replace(watched=self._durable)

    def _tell_unheard(self, route: Route) -> None:
        """Warn of a topic without subscribers, once."""
        if route not in self._unheard and len(self._unheard) < _MOST_UNHEARD:
            self._unheard.add(route)
            told = "%s: nobody gets messages: no queue is bound to exchange %r for %r. Option mandatory refuses them."
            _log.warning(told, self._where, route.exchange, route.routing_key)
