"""The source of Pulsar: one consumer of a subscription, which acknowledges each message."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import pulsar

from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.content import DEFAULT_PRIORITY
from connectors.pulsar.destinations import PulsarSubscription
from connectors.pulsar.failures import lost, not_connected, of_name
from connectors.pulsar.link import PulsarLink
from connectors.pulsar.priorities import PriorityBuffer
from connectors.pulsar.received import decoded, position_of
from connectors.pulsar.schemas import Schemas
from connectors.pulsar.unsettled import Arrival, PulsarPosition, Unsettled
from correlator.connector import Chunk, Held
from correlator.errors import ConnectionLost
from correlator.events import Headers, Message
from correlator.selector import Selector
from correlator.settings import ReceiverSettings

LONGEST_WAIT_S = 1.0
"""Longest call into the client in seconds, since signals are not handled during the call."""
MOST_LEFT_OUT = 1000
"""Most messages that one call of `receive` skips, so that it returns even if no message matches the selector."""
_MOST_AHEAD = 1000
_CLOSE_TIMEOUT_S = 5
"""Longest wait in seconds for each answer of the broker when `close` has to connect."""


class _Unacknowledged(msgspec.Struct, frozen=True, gc=False):
    """An unacknowledged message; `number` gives the order in which messages are returned."""

    number: int
    at: PulsarPosition
    redeliveries: int
    message: Message


class PulsarSource:
    """Consumes a subscription.

    The client reconnects by itself, and the broker then redelivers all unacknowledged messages. So the source checks at
    each call whether the client is connected, and for each message whether it holds that message already. Both cases
    are a `ConnectionLost`, after which the source subscribes anew.

    The broker does not confirm acknowledgements. The client sends them after a tenth of a second, and a broker that is
    killed loses those of about its last second. It redelivers their messages.

    At most `max_batch_size` returned messages are unacknowledged. A tenth of this number, but at least one message,
    waits in the client: it requests more as soon as it has returned a message, and stops only when nothing is taken
    from it. If a producer has packed messages into one entry, the broker sends the whole entry.

    Pulsar has no selectors. If other consumers share the subscription, the source gives messages back that do not
    match, with a growing delay; otherwise, and if the options say so, it acknowledges them.

    If priorities have an effect, further messages wait in the source, and those of the highest priority are returned
    first. They are unacknowledged, so they are redelivered after a lost connection.

    Args:
        where: the receiver, for messages.
        broker: the options of the connection.
        subscription: the subscription to consume.
        receiver: settings of the receiver, with its limits.
        selector: selects the messages to return; `None` for all messages.
    """

    def __init__(
        self,
        where: str,
        broker: PulsarBroker,
        subscription: PulsarSubscription,
        receiver: ReceiverSettings,
        selector: Selector | None,
    ) -> None:
        self._where = where
        self._broker = broker
        self._subscription = subscription
        self._selector = selector
        self._most = receiver.max_batch_size
        self._most_bytes = receiver.max_batch_bytes
        self._ahead = max(1, min(self._most // 10, _MOST_AHEAD))
        self._link: PulsarLink | None = None
        self._consumer: pulsar.Consumer | None = None
        self._schemas: Schemas | None = None
        self._waiting: PriorityBuffer[_Unacknowledged] | None = None
        self._has_subscribed = False
        """Whether the broker may have the subscription because of this source."""
        self._has_failed = False
        """Whether a call has raised `ConnectionLost` since the last `close`, so that `connect` may follow."""
        self._forget()

    def connect(self) -> None:
        """Subscribe again: the broker redelivers unacknowledged messages, oldest first."""
        self._disconnect()
        link = PulsarLink(self._where, self._broker)
        try:
            self._subscribe(link)
            if self._subscription.use_schema:
                self._schemas = Schemas(self._where, self._broker, link)
            if self._broker.priority_mapping:
                self._waiting = PriorityBuffer(self._most + self._ahead * self._parts(link))
        except BaseException as error:
            self._has_failed = isinstance(error, ConnectionLost)
            self._disconnect()
            raise
        self._has_failed = False

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the next messages; messages that were given back come first. See `connector.Source`."""
        self._unselected = 0
        room = min(max_messages, self._most - len(self._held))
        with self._speaking() as consumer:
            taken = self._again(room) or self._foremost(consumer, room, timeout_s)
        if not taken:
            return Chunk((), (), unselected=self._unselected)
        tokens = self._held.hold(taken)
        return Chunk([one.message for one in taken], tokens, unselected=self._unselected)

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Acknowledge these messages; the client sends the acknowledgements a moment later."""
        with self._speaking() as consumer:
            for taken in self._held.release(tokens):
                consumer.acknowledge(self._unsettled.acknowledged(taken.at))
            self._give_back(consumer)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these messages back.

        If the subscription is not shared, the source itself returns them again, before others: the broker would
        redeliver all unacknowledged messages.
        """
        with self._speaking() as consumer:
            released = self._held.release(tokens)
            if not self._subscription.is_shared:
                self._returned += [_delivered_again(taken) for taken in released]
                self._returned.sort(key=lambda taken: taken.number)
                return
            for taken in released:
                self._return(taken)
            self._give_back(consumer)

    def close(self) -> None:
        """Close the consumer after its acknowledgements; the next consumer gets the unacknowledged messages.

        The last consumer of a subscription that is not durable deletes it, except in the first call after
        `ConnectionLost`: then `connect` finds the messages that have come meanwhile. If `close` is called again
        instead, the source connects to delete the subscription, and waits at most some seconds for the broker.
        """
        if self._has_failed:
            self._has_failed = False
        elif self._has_subscribed and not self._subscription.is_durable:
            self._unsubscribe()
            self._has_subscribed = False
        self._disconnect()

    def _subscribe(self, link: PulsarLink) -> pulsar.Consumer:
        self._link = link
        link.open()
        self._consumer = link.subscribe(self._subscription, self._ahead)
        self._has_subscribed = True
        return self._consumer

    def _unsubscribe(self) -> None:
        hasty = replace(self._broker, timeout_s=min(self._broker.timeout_s, _CLOSE_TIMEOUT_S))
        consumer = self._consumer
        with suppress(ConnectionLost, pulsar.Timeout):
            for _ in range(2):  # the client may notice only by the first failure that the connection is lost
                if consumer is None or not consumer.is_connected():
                    self._disconnect()
                    consumer = self._subscribe(PulsarLink(self._where, hasty))
                try:
                    consumer.unsubscribe()
                except pulsar.Timeout:
                    raise
                except pulsar.PulsarException:  # the broker refuses it while there are other consumers
                    continue
                return

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._consumer = self._schemas = None
        self._forget()

    def _forget(self) -> None:
        self._numbers = itertools.count()
        self._held: Held[_Unacknowledged] = Held()
        self._returned: list[_Unacknowledged] = []
        self._waiting = None
        self._unsettled: Unsettled[object] = Unsettled(taken_back=self._broker.ack_timeout_s is not None)
        self._unselected = 0

    def _connected(self) -> pulsar.Consumer:
        if self._consumer is None:
            raise not_connected(self._where)
        if not self._consumer.is_connected():
            raise self._lost("the connection was lost")
        return self._consumer

    def _lost(self, what: str) -> ConnectionLost:
        self._has_failed = True
        return ConnectionLost("E7001", self._where, f"{self._broker.service_url}: {what}")

    @contextmanager
    def _speaking(self) -> Iterator[pulsar.Consumer]:
        """Yield the connected consumer; within the block, an error of the client becomes `ConnectionLost`."""
        try:
            yield self._connected()
        except pulsar.PulsarException as error:
            self._has_failed = True
            raise lost(self._where, of_name(error), self._subscription.topic, self._broker) from error

    def _again(self, room: int) -> list[_Unacknowledged]:
        again = self._returned[: max(0, room)]
        del self._returned[: len(again)]
        return again

    def _parts(self, link: PulsarLink) -> int:
        """Return the number of topics and partitions for which messages wait in the client; 1 for a
        pattern: it is unknown.
        """
        if self._subscription.pattern:
            return 1
        return sum(len(link.partitions(topic)) for topic in self._subscription.topics or [self._subscription.topic])

    def _foremost(self, consumer: pulsar.Consumer, room: int, timeout_s: float) -> list[_Unacknowledged]:
        """Return the next messages: by priority if that has an effect, otherwise in the order of the broker."""
        waiting = self._waiting
        if waiting is None:
            return list(self._next(consumer, room, timeout_s))
        if room > 0:
            places = waiting.room - len(self._held)
            for taken in self._next(consumer, places, 0.0 if len(waiting) else timeout_s, waiting.size):
                waiting.add(taken, _priority(taken.message), len(taken.message.body))
        foremost = waiting.take(room, self._most_bytes)
        return [msgspec.structs.replace(one, number=next(self._numbers)) for one in foremost]

    def _next(self, consumer: pulsar.Consumer, room: int, timeout_s: float, size: int = 0) -> Iterator[_Unacknowledged]:
        """Yield matching messages: wait for the first one, then take the available ones, up to the limit for bytes."""
        deadline = time.monotonic() + timeout_s
        found = False
        left_out = 0
        while room > 0 and size < self._most_bytes and left_out < MOST_LEFT_OUT:
            message = _received(consumer, 0) if found else self._awaited(consumer, deadline)
            if message is None:
                return
            taken = self._taken(consumer, message)
            if taken is None or not self._is_selected(consumer, taken):
                left_out += 1
                continue
            yield taken
            found = True
            room -= 1
            size += len(taken.message.body)

    def _awaited(self, consumer: pulsar.Consumer, deadline: float) -> pulsar.Message | None:
        """Return the next message; `None` if none comes until the deadline. Gives due messages back meanwhile."""
        while True:
            self._give_back(self._connected())
            now = time.monotonic()
            left_s = max(0.0, deadline - now)
            due = self._unsettled.next_due()
            wait_s = min(left_s, LONGEST_WAIT_S, left_s if due is None else due - now)
            message = _received(consumer, round(max(0.0, wait_s) * 1000))
            if message is not None or left_s <= wait_s:
                return message

    def _taken(self, consumer: pulsar.Consumer, message: pulsar.Message) -> _Unacknowledged | None:
        """Return the message with its position; `None` if it was received before and redelivered with
        others of its entry.
        """
        name = message.message_id()
        at = position_of(name)
        arrival = self._unsettled.arrived(at, name)
        if arrival is Arrival.UNEXPECTED:
            raise self._lost("the connection was lost and made again; unacknowledged messages are redelivered")
        if arrival is Arrival.DONE:
            consumer.acknowledge(name)
        if arrival is not Arrival.NEW:
            return None
        its_content = decoded(message, at, self._broker.namespace, self._schemas)
        return _Unacknowledged(next(self._numbers), at, message.redelivery_count(), its_content)

    def _is_selected(self, consumer: pulsar.Consumer, taken: _Unacknowledged) -> bool:
        if self._selector is None or self._selector.matches(taken.message):
            return True
        self._unselected += 1
        if self._subscription.leaves_others:
            self._return(taken)
        else:
            consumer.acknowledge(self._unsettled.acknowledged(taken.at))
        return False

    def _return(self, taken: _Unacknowledged) -> None:
        """Give a message back after its delay. The client itself adds the shortest delay."""
        backoff = self._subscription.backoff
        further_s = backoff.delay_s(taken.redeliveries) - backoff.min_delay_s
        self._unsettled.given_back(taken.at, time.monotonic() + further_s)

    def _give_back(self, consumer: pulsar.Consumer) -> None:
        for name in self._unsettled.leaving(time.monotonic()):
            consumer.negative_acknowledge(name)


def _received(consumer: pulsar.Consumer, wait_ms: int) -> pulsar.Message | None:
    try:
        return consumer.receive(wait_ms)
    except pulsar.exceptions.Timeout:
        return None


def _priority(message: Message) -> int:
    headers = message.headers
    return DEFAULT_PRIORITY if headers is None or headers.priority is None else headers.priority


def _delivered_again(taken: _Unacknowledged) -> _Unacknowledged:
    """Return the message with the headers that the broker would give it at a redelivery."""
    headers = taken.message.headers or Headers()
    again = msgspec.structs.replace(headers, redelivered=True, delivery_count=headers.delivery_count + 1)
    return msgspec.structs.replace(taken, message=msgspec.structs.replace(taken.message, headers=again))
