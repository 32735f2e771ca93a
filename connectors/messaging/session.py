"""A session: the consumers, producers and browsers of one thread, with their unacknowledged messages."""

import logging
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from connectors.messaging.browser import Browser
from connectors.messaging.completions import Completions
from connectors.messaging.consumer import Consumer
from connectors.messaging.deliveries import (
    MOST_UNACKNOWLEDGED,
    SOURCE_ID,
    AcknowledgeMode,
    Delivery,
    ReconnectingSource,
    Unacknowledged,
)
from connectors.messaging.failures import closed
from connectors.messaging.listening import Listening
from connectors.messaging.producer import Producer
from correlator import connector as port
from correlator.connector import Browsable, Deletable, Features, Unsubscribable
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.events import Message
from correlator.options import check_destination
from correlator.selector import Selector
from correlator.settings import ReceiverSettings, SenderSettings

_log = logging.getLogger("connectors.messaging")


class Session:
    """Makes consumers, producers and browsers for one thread, and acknowledges the messages of its consumers.

    Made by `Connection.create_session`; closed by `close` or `with`. One thread at a time uses the session and the
    objects that it makes. While the connection is started, a session with listeners belongs to the thread that calls
    the listeners, and refuses other threads (E7505), except for `close` of the session and of its consumers and
    producers. In a forked child `close` does nothing, and every other method raises `UsageError` E2050.

    Args:
        broker: a connection of the port, for this session only.
        connection: the id of its connection.
        mode: who acknowledges received messages, and when.
        queue_browser_read_max: largest number of messages that a snapshot of a browser examines; 0 or less for no
            limit.
        listening: the thread of its listeners.
    """

    def __init__(
        self,
        broker: port.Connection,
        connection: str,
        mode: AcknowledgeMode,
        queue_browser_read_max: int,
        listening: Listening,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._mode = mode
        self._queue_browser_read_max = queue_browser_read_max
        self._listening = listening
        self._completions = Completions(listening.owner)
        self._unacknowledged = Unacknowledged()
        self._ends: list[Consumer | Producer] = []
        self._temporaries: list[str] = []
        self._closed = False

    @property
    def acknowledge_mode(self) -> AcknowledgeMode:
        """The mode of this session; CLIENT also for CLIENT_INDIVIDUAL."""
        return AcknowledgeMode.CLIENT if self._mode is AcknowledgeMode.CLIENT_INDIVIDUAL else self._mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or for its connection."""
        return self._closed

    def create_consumer(
        self,
        destination: str,
        selector: str | None = None,
        *,
        subscription: str | None = None,
        no_local: bool = False,
    ) -> Consumer:
        """Make and connect a consumer. From a topic it gets messages that are sent from now on.

        Args:
            destination: `queue:NAME` or `topic:NAME`.
            selector: receive only matching messages (docs/receiving.md); `None` for all messages.
            subscription: name of the durable subscription of a topic: the broker keeps its messages from the first use
                of the name until the subscription is deleted. For a stream, whose readers get every message each, the
                name of the position. Consumers with the same name share the messages.
            no_local: leave out messages that sessions of this connection have sent to the topic. They are acknowledged,
                for all consumers of the subscription.

        Raises:
            ConfigError: E1215 for a wrong destination, E1220 for a selector on a queue if the broker cannot select, and
                for `no_local` on a queue, E1222 for a subscription of a queue whose consumers share messages, E6003 to
                E6007 for a selector that cannot be read.
            UsageError: E7503 if the name of a subscription is missing, E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached. No consumer was made: call it again.
        """
        self._check()
        where = f"consumer of {destination}"
        is_topic = check_destination(where, destination).kind == "topic"
        wanted = Selector.optional(selector, f"{where}.selector")
        _check_reader(where, is_topic, wanted, subscription, self._broker.features)
        if no_local and not is_topic:
            what = "what this connection sends to a queue would be lost to the other consumers"
            raise ConfigError("E1220", f"{where}.no_local", what, "Topics have it")
        most_held = 1 if self._mode is AcknowledgeMode.AUTO else MOST_UNACKNOWLEDGED
        receiver = ReceiverSettings(
            id=SOURCE_ID,
            connection="",
            destination=destination,
            max_batch_size=most_held,
            selector=None if wanted is None else wanted.text,
            durable_topic_subscription_name=subscription,
        )
        intake = ReconnectingSource(where, self._broker.source(receiver), self._unacknowledged, most_held)
        consumer = Consumer(
            where,
            intake,
            self._unacknowledged,
            self._mode,
            wanted if is_topic else None,
            self._connection if no_local else None,
            self._listening,
        )
        self._open(consumer, intake.connect)
        return consumer

    def create_producer(self, destination: str) -> Producer:
        """Make and connect a producer.

        Args:
            destination: `queue:NAME` or `topic:NAME`.

        Raises:
            ConfigError: E1215 for a wrong destination.
            UsageError: E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached. No producer was made: call it again.
        """
        self._check()
        check_destination(f"producer of {destination}", destination)
        sink = self._broker.sink(SenderSettings(id="producer", connection="", destination=destination))
        producer = Producer(destination, sink, self._connection, self._completions, self._listening)
        self._open(producer, producer.connect)
        return producer

    def create_browser(self, destination: str, selector: str | None = None) -> Browser:
        """Make a browser of a queue, without connecting. It works until this session is closed.

        Args:
            destination: `queue:NAME`.
            selector: show only matching messages; possible with every broker, since the browser itself applies it.

        Raises:
            UsageError: E2110 for a topic, E2014 if the connector cannot show messages, E7501 if the session is closed.
            ConfigError: E1215 for a wrong destination, E6003 to E6007 for a selector that cannot be read.
        """
        self._check()
        where = f"browser of {destination}"
        if check_destination(where, destination).kind == "topic":
            raise UsageError("E2110", where, "only queues can be browsed", "", "Use a consumer with a subscription")
        if not isinstance(self._broker, Browsable):
            raise UsageError("E2014", where, "its connector cannot show messages")
        wanted = Selector.optional(selector, f"{where}.selector")
        return Browser(self._broker, self._check, destination, wanted, self._queue_browser_read_max)

    def create_temporary_queue(self) -> str:
        """Return the destination of a new queue, for replies for example. The broker makes the queue at its first use.

        Closing this session deletes the queue. If the broker cannot do so, the session logs a warning and the queue
        stays. A process that ends without closing the session leaves the queue at the broker.

        Raises:
            UsageError: E7511 if the connector cannot delete queues, E7501 if the session is closed.
        """
        return self._temporary("queue")

    def create_temporary_topic(self) -> str:
        """Return the destination of a new topic; otherwise as `create_temporary_queue`, with the same errors."""
        return self._temporary("topic")

    def unsubscribe(self, topic: str, subscription: str | None = None) -> None:
        """Delete a durable subscription of a topic, with the messages that the broker keeps for it.

        Before a durable consumer uses another selector or `no_local`, delete its subscription. Several topics may have
        subscriptions of the same name, so both arguments are needed.

        Args:
            topic: `topic:NAME`.
            subscription: name of the subscription.

        Raises:
            UsageError: E7510 if the topic or the name is missing, E7511 if the connector cannot delete subscriptions,
                E7512 if there is no such subscription, E7513 while it has a consumer, E7501 if the session is closed.
            ConfigError: E1215 for a wrong destination, E1222 for a queue.
            ConnectionLost: the broker cannot be reached, or does not allow it.
        """
        self._check()
        where = f"unsubscribe {topic}"
        if subscription is None:
            what = "a topic and a subscription must be named: a name alone may be a subscription of many topics"
            raise UsageError("E7510", where, what, "", 'Call it as unsubscribe("topic:NAME", "SUBSCRIPTION")')
        if check_destination(where, topic).kind != "topic":
            raise ConfigError("E1222", where, "only topics have subscriptions")
        if not isinstance(self._broker, Unsubscribable):
            what = "its connector cannot delete subscriptions"
            raise UsageError("E7511", where, what, "", "Delete it with the tools of the broker")
        self._broker.unsubscribe(topic, subscription)

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message: the broker may delete it.

        In mode CLIENT this also acknowledges all messages that this session has received before, from all its
        consumers. In mode CLIENT_INDIVIDUAL it acknowledges this message only. In modes AUTO and TRANSACTED it does
        nothing.

        Args:
            message: the very object that `Consumer.receive` returned or a listener got, not a copy. A message that is
                acknowledged already, or was given back, is ignored.

        Raises:
            ConnectionLost: the broker cannot be reached. Messages of the consumer that has lost its connection may come
                again; all others are acknowledged.
            UsageError: E7501 if the session is closed.
        """
        self._check()
        if self._mode is AcknowledgeMode.TRANSACTED:
            return
        individually = self._mode is AcknowledgeMode.CLIENT_INDIVIDUAL
        take = self._unacknowledged.take if individually else self._unacknowledged.take_through
        _settle(take(message), ReconnectingSource.acknowledge)

    def recover(self) -> None:
        """Give all unacknowledged messages back: the broker redelivers them, marked as redelivered.

        Files and streams do not mark them. Messages that the broker had sent ahead may come first, and another consumer
        of the queue may get the redelivered messages. The objects that were received before cannot be acknowledged any
        more.

        Raises:
            ConnectionLost: the broker cannot be reached. All messages come again nevertheless.
            UsageError: E7501 if the session is closed, E7508 in mode TRANSACTED (call `rollback`).
        """
        self._check()
        if self._mode is AcknowledgeMode.TRANSACTED:
            raise UsageError("E7508", "session", "a transaction is not recovered", "", "Roll it back")
        _settle(self._unacknowledged.take_all(), ReconnectingSource.reject)

    def commit(self) -> None:
        """Acknowledge all messages that the session received since the last `commit` or `rollback`.

        Messages were sent at once; asynchronous sends have their completions when this returns. The transaction is not
        atomic: if this fails, or the process ends before, the sent messages stay sent, and the received messages come
        again.

        Raises:
            ConnectionLost: as `acknowledge`.
            UsageError: E7501 if the session is closed, E7508 in any other mode than TRANSACTED.
        """
        self._end_transaction(ReconnectingSource.acknowledge)

    def rollback(self) -> None:
        """Give back all messages that the session received since the last `commit` or `rollback`, as `recover` does.

        Sent messages stay sent. Errors are those of `commit`; all received messages come again nevertheless.
        """
        self._end_transaction(ReconnectingSource.reject)

    def close(self) -> None:
        """Close consumers and producers; unacknowledged messages come again. May be repeated.

        Any thread may call it. It waits until no listener runs and all asynchronous sends have their completions. It
        deletes the temporary destinations of this session.

        Raises:
            UsageError: E7506 within a listener or completion of this session (the call would wait for itself: let
                another thread make it). Nothing else.
        """
        self._listening.owner.check_may_await_listeners("session")
        if self._closed or self._listening.owner.maker.is_another_process:
            return
        self._listening.ask_to_stop()
        self._listening.wait()
        self._completions.close()
        self._closed = True
        for end in self._ends:
            end.close()
        self._ends.clear()
        for destination in self._temporaries:
            self._delete(destination)
        self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise closed("session")
        self._listening.owner.check("session")

    def _temporary(self, kind: str) -> str:
        self._check()
        if not isinstance(self._broker, Deletable):
            what = "its connector cannot delete destinations, so that temporary ones would stay"
            raise UsageError("E7511", f"temporary {kind}", what, "", "Use one of your own, and delete it yourself")
        self._temporaries.append(f"{kind}:temporary-{uuid.uuid4().hex}")
        return self._temporaries[-1]

    def _delete(self, destination: str) -> None:
        assert isinstance(self._broker, Deletable)
        try:
            self._broker.delete(destination)
        except (ConnectionLost, UsageError) as error:
            _log.warning("%s stays: %s", destination, error)

    def _end_transaction(self, settle: Callable[[ReconnectingSource, Sequence[Any]], None]) -> None:
        self._check()
        if self._mode is not AcknowledgeMode.TRANSACTED:
            raise UsageError("E7508", "session", f"there is no transaction in mode {self._mode}", "Mode TRANSACTED")
        self._completions.flush()
        _settle(self._unacknowledged.take_all(), settle)

    def _open(self, end: Consumer | Producer, connect: Callable[[], None]) -> None:
        try:
            connect()
        except BaseException:
            end.close()
            raise
        self._ends = [one for one in self._ends if not one.closed]
        self._ends.append(end)


def _check_reader(
    where: str, is_topic: bool, wanted: Selector | None, subscription: str | None, features: Features
) -> None:
    if wanted is not None and not is_topic and not features.selects:
        what = "this broker cannot leave what is not selected on a queue for other consumers"
        raise ConfigError("E1220", f"{where}.selector", what, "Topics can be selected from")
    is_shared_out = features.shares and not is_topic
    if is_shared_out and subscription is not None:
        raise ConfigError("E1222", f"{where}.subscription", "only topics have subscriptions", "", "Leave it out")
    if not is_shared_out and subscription is None:
        what = "it needs the name of a subscription, under which the broker keeps what is for this reader"
        raise UsageError("E7503", where, what, "", "Give one as subscription=")


def _settle(deliveries: Sequence[Delivery], settle: Callable[[ReconnectingSource, Sequence[Any]], None]) -> None:
    """Acknowledge or reject deliveries; those of other consumers also if one consumer has lost its connection."""
    tokens: dict[ReconnectingSource, list[Any]] = {}
    for delivery in deliveries:
        tokens.setdefault(delivery.intake, []).append(delivery.token)
    lost: ConnectionLost | None = None
    for intake, own in tokens.items():
        try:
            settle(intake, own)
        except ConnectionLost as error:
            lost = error
    if lost is not None:
        raise lost
