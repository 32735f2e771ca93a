"""A session: the consumers, producers and browsers of one thread, with their unacknowledged messages."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, Self

from connectors.messaging import traces
from connectors.messaging.browser import Browser
from connectors.messaging.completions import Completions
from connectors.messaging.consumer import Consumer
from connectors.messaging.deliveries import AcknowledgeMode, by_intake, settle
from connectors.messaging.failures import closed
from connectors.messaging.foreign import ForeignMessage
from connectors.messaging.holdings import Holdings
from connectors.messaging.housekeeping import Housekeeping
from connectors.messaging.intake import FLOW_LIMIT, SOURCE_ID, Flow, Intake
from connectors.messaging.link import Link
from connectors.messaging.listening import Listening
from connectors.messaging.producer import Producer
from connectors.messaging.requests import Requests
from connectors.messaging.selections import Selections
from connectors.messaging.send_options import check_flag, check_name, check_options, check_whole, outside
from connectors.messaging.temporaries import Temporaries
from connectors.messaging.traces import TracedDeliveries
from connectors.messaging.transaction import Transaction
from correlator import connector as port
from correlator.connector import IN_USE, Browsable, Order, Subscriber, Subscribing, Unsubscribable, Work, order_of
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError, printable, quoted, told_with
from correlator.events import Message
from correlator.options import check_destination, is_name
from correlator.selector import Selector
from correlator.settings import ReceiverSettings, SenderSettings

MOST_FLOW = 1_000_000
"""The largest flow limit, and the largest number of messages of a transaction."""
_NO_OPTIONS: Mapping[str, Any] = {}
_UNDONE = "The transaction was rolled back: nothing was sent, and received messages are redelivered"


class ConnectionOptions(NamedTuple):
    """The settings of a factory at the time when it makes a connection; see `ConnectionFactory`."""

    client_id: str | None
    queue_browser_read_max: int
    emulates_transactions: bool
    flow_limit: int | None
    prefetch: bool
    tx_producer_max_num_msgs: int
    ack_on_non_persistent: bool


class Shared(NamedTuple):
    """What the sessions of a connection share.

    Attributes:
        connection: the id of the connection.
        options: the options of the connection.
        housekeeping: the thread that settles what idle sessions leave unsettled.
        selections: the selectors of the consumers of subscriptions.
        temporaries: the temporary destinations of the connection.
    """

    connection: str
    options: ConnectionOptions
    housekeeping: Housekeeping
    selections: Selections
    temporaries: Temporaries


class Session:
    """Makes consumers, producers and browsers for one thread, and acknowledges the messages of its consumers.

    Made by `Connection.create_session`; closed by `close` or `with`. One thread at a time uses the session and the
    objects that it makes. While the connection is started, a session with listeners belongs to the thread that calls
    the listeners, and refuses other threads (E7505), except for `close` of the session and of its consumers and
    producers. In a forked child `close` does nothing, and every other method raises `UsageError` E2050.

    Args:
        broker: a connection of the port, for this session only; on a message service the part of this session.
        mode: who acknowledges received messages, and when.
        link: lets the session wait for messages and for room.
        listening: the thread that calls the listeners of the session.
        shared: what the sessions of its connection share.
    """

    def __init__(
        self,
        broker: port.Connection,
        mode: AcknowledgeMode,
        link: Link,
        listening: Listening,
        shared: Shared,
    ) -> None:
        self._broker = broker
        self._mode = mode
        self._link = link
        self._listening = listening
        self._shared = shared
        self._completions = Completions(listening.owner)
        self._holdings = Holdings(mode)
        is_real = mode is AcknowledgeMode.TRANSACTED and link.service is not None
        self._transaction = Transaction(shared.options.tx_producer_max_num_msgs) if is_real else None
        self._requests = Requests(self)
        self._ends: list[Consumer | Producer] = []
        self._closed = False
        shared.housekeeping.add(self._holdings, link)

    @property
    def acknowledge_mode(self) -> AcknowledgeMode:
        """The mode of this session; CLIENT also for CLIENT_CUMULATIVE and CLIENT_INDIVIDUAL."""
        return AcknowledgeMode.CLIENT if self._mode.is_client else self._mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called, for this session or for its connection."""
        return self._closed

    def create_consumer(
        self,
        destination: str,
        selector: str | None = None,
        *,
        subscription: str | None = None,
        no_local: bool = False,
        flow_limit: int | None = None,
        prefetch: bool | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> Consumer:
        """Make and connect a consumer. From a topic it gets messages that are sent from now on.

        A new durable subscription of Pulsar also gets earlier messages that the topic still holds, unless the options
        say otherwise.

        Args:
            destination: `queue:NAME` or `topic:NAME`.
            selector: receive only matching messages (docs/receiving.md); `None` for all messages.
            subscription: name of a subscription of a topic that is durable and shared, as for
                `create_shared_durable_consumer`. Without one, the subscription ends with the consumer. A stream or
                file, whose readers get every message each, needs one: the name of the position.
            no_local: leave out messages that sessions of this connection have sent to the topic. They are acknowledged,
                for all consumers of the subscription.
            flow_limit: largest number of messages that the consumer has fetched and that are not settled; `None` for
                that of the factory.
            prefetch: whether to fetch more messages than `receive` asks for; `None` as the factory says. An idle
                consumer gives back after a second the messages that it has fetched ahead.
            options: options of a receiver of the connector, as in a configuration file.

        Raises:
            ConfigError: E1215 for a wrong destination, E1220 for a selector on a queue if the broker cannot select, and
                for `no_local` on a queue, E1222 for a subscription of a queue whose consumers share messages, E6003 to
                E6007 for a selector that cannot be read, E7541 for `prefetch=False` if the connector reads ahead by
                itself, and errors of the connector for wrong options.
            UsageError: E7503 if the name of a subscription is missing, E7516 if the subscription does not allow this
                consumer, E7517 if it has another selector, E7521 for a temporary destination of another connection,
                E7540 for an argument of a wrong type or a flow limit out of its range, E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached. No consumer was made: call it again.
        """
        kind = Subscriber("", durable=False, shared=False) if subscription is None else _shared_durable(subscription)
        return self._consumer(destination, selector, kind, no_local, flow_limit, prefetch, options)

    def create_durable_consumer(
        self,
        topic: str,
        subscription: str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        flow_limit: int | None = None,
        prefetch: bool | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> Consumer:
        """Make and connect the only consumer of a durable subscription, which belongs to the client id if there is one.

        The broker keeps the messages of the subscription while there is no consumer. Files and streams have no such
        subscriptions. Arguments and errors are those of `create_consumer`.

        Raises:
            UsageError: E7546 if the connector has no such subscriptions, or if the connection to a message service has
                no client id; E7516 if the subscription has a consumer or is of another kind.
        """
        if self._link.service is not None and self._shared.options.client_id is None:
            what = "a durable subscription for one consumer belongs to a client id, and the connection has none"
            todo = "Give the factory a client_id, or use create_shared_durable_consumer"
            where = _named("consumer", topic)
            check_destination(where, topic)
            raise UsageError("E7546", where, what, "", todo)
        kind = Subscriber(subscription, durable=True, shared=False)
        return self._consumer(topic, selector, kind, no_local, flow_limit, prefetch, options)

    def create_shared_consumer(
        self,
        topic: str,
        subscription: str,
        selector: str | None = None,
        *,
        flow_limit: int | None = None,
        prefetch: bool | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> Consumer:
        """Make and connect one of several consumers of a subscription that ends with the last of them.

        Files and streams have no such subscriptions (E7546). Arguments and errors are those of `create_consumer`.
        """
        kind = Subscriber(subscription, durable=False, shared=True)
        return self._consumer(topic, selector, kind, False, flow_limit, prefetch, options)

    def create_shared_durable_consumer(
        self,
        topic: str,
        subscription: str,
        selector: str | None = None,
        *,
        flow_limit: int | None = None,
        prefetch: bool | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> Consumer:
        """Make and connect one of several consumers of a durable subscription; each message goes to one of them.

        The broker keeps the messages from the first use of the name until `unsubscribe`. Arguments and errors are those
        of `create_consumer`.
        """
        return self._consumer(topic, selector, _shared_durable(subscription), False, flow_limit, prefetch, options)

    def create_producer(self, destination: str, *, options: Mapping[str, Any] = _NO_OPTIONS) -> Producer:
        """Make and connect a producer.

        Args:
            destination: `queue:NAME` or `topic:NAME`.
            options: options of a sender of the connector, as in a configuration file.

        Raises:
            ConfigError: E1215 for a wrong destination, and errors of the connector for wrong options.
            UsageError: E7526 if the destination has as many producers as it may, E7540 for options that are not a
                mapping, E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached. No producer was made: call it again.
        """
        self._check()
        where = _named("producer", destination)
        check_destination(where, destination)
        check_options(f"{where}.options", options)
        sender = SenderSettings(id="producer", connection="", destination=destination, options=dict(options))
        producer = Producer(
            destination,
            self._broker.sink(sender),
            self._shared.connection,
            self._completions,
            self._listening,
            RLock() if self._link.service is None else self._link.lock,
            self._transaction,
            ack_on_non_persistent=self._shared.options.ack_on_non_persistent,
        )
        self._open(producer, producer.connect)
        return producer

    def create_browser(self, destination: str, selector: str | None = None) -> Browser:
        """Make a browser of a queue, without connecting. It works until this session is closed.

        Args:
            destination: `queue:NAME`.
            selector: show only matching messages; possible with every broker, since the browser itself applies it.

        Raises:
            UsageError: E2110 for a topic, E2014 if the connector cannot show messages, E7540 for a selector that is not
                a text, E7501 if the session is closed.
            ConfigError: E1215 for a wrong destination, E6003 to E6007 for a selector that cannot be read.
        """
        self._check()
        where = _named("browser", destination)
        if check_destination(where, destination).kind == "topic":
            raise UsageError("E2110", where, "only queues can be browsed", "", "Use a consumer with a subscription")
        if not isinstance(self._broker, Browsable):
            raise UsageError("E2014", where, "its connector cannot show messages")
        wanted = _selector(where, selector)
        most = self._shared.options.queue_browser_read_max
        sees_expired = self._link.service is None
        return Browser(self._broker, self._check, destination, wanted, most, self._link.lock, sees_expired=sees_expired)

    def create_temporary_queue(self) -> str:
        """Return the destination of a new queue, for replies for example. Only this connection consumes from it.

        It ends with the connection, or with `delete_temporary`. A message service deletes it also when the process has
        died, and RabbitMQ when it had no consumer for a day; Pulsar keeps it then. If a broker cannot delete it, the
        connection logs a warning.

        Raises:
            UsageError: E7511 if the connector cannot delete queues, E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached.
        """
        self._check()
        return self._shared.temporaries.create("queue", self._broker)

    def create_temporary_topic(self) -> str:
        """Return the destination of a new topic; otherwise as `create_temporary_queue`, with the same errors."""
        self._check()
        return self._shared.temporaries.create("topic", self._broker)

    def delete_temporary(self, destination: str) -> None:
        """Delete a temporary queue or topic of this connection, with its messages.

        Raises:
            UsageError: E7513 while it has a consumer, E7512 if this connection has no such temporary destination, E7501
                if the session is closed.
            ConnectionLost: the broker cannot be reached.
        """
        self._check()
        self._shared.temporaries.delete(destination)

    def request(self, destination: str, message: ForeignMessage, timeout_s: float | None = None) -> Message | None:
        """Send a question with a new correlation id, and return the answer; `None` if none comes in time.

        The answer arrives in a temporary queue of this session; the service that answers sends it to
        `headers.reply_to`, with the correlation id of the question. The session acknowledges it at once, in every mode.
        An answer that arrives later is dropped.

        Args:
            destination: where the question goes.
            message: the question; `correlation_id` and `reply_to` of its headers are replaced.
            timeout_s: longest wait in seconds; `None` waits for ever.

        Raises:
            UsageError: E7547 in mode TRANSACTED, in which the question would wait for the commit; E7511 if the
                connector has no temporary queues; and as `Producer.send`.
            SendRejected: as `Producer.send`.
            ConnectionLost: the question may have arrived, and an answer may be lost.
        """
        self._check()
        if self._mode is AcknowledgeMode.TRANSACTED:
            what = "the question would be sent at the commit, and no answer could arrive before"
            raise UsageError("E7547", "session", what, "", "Use a session in another mode")
        return self._requests.ask(destination, message, timeout_s)

    def unsubscribe(self, topic: str, subscription: str | None = None) -> None:
        """Delete a durable subscription of a topic, with the messages that the broker keeps for it.

        Before a durable consumer uses another selector or `no_local`, delete its subscription. Several topics may have
        subscriptions of the same name, so both arguments are needed.

        Args:
            topic: `topic:NAME`.
            subscription: name of the subscription.

        Raises:
            UsageError: E7510 if the topic or the name is missing, E7503 for what cannot be the name of a subscription,
                E7511 if the connector cannot delete subscriptions, E7512 if there is no such subscription, E7513 while
                it has a consumer, E7501 if the session is closed.
            ConfigError: E1215 for a wrong destination, E1222 for a queue, E1022 for a name that the connector refuses.
            ConnectionLost: the broker cannot be reached, or does not allow it.
        """
        self._check()
        where = f"unsubscribe {printable(topic)}" if isinstance(topic, str) else "unsubscribe"
        if subscription is None:
            what = "a topic and a subscription must be named: many topics may have a subscription of this name"
            raise UsageError("E7510", where, what, "", 'Call it as unsubscribe("topic:NAME", "SUBSCRIPTION")')
        if check_destination(where, topic).kind != "topic":
            raise ConfigError("E1222", where, "only topics have subscriptions")
        _check_subscription(where, subscription)
        if not isinstance(self._broker, Unsubscribable):
            what = "its connector cannot delete subscriptions"
            raise UsageError("E7511", where, what, "", "Delete it with the tools of the broker")
        with self._link.lock:
            self._broker.unsubscribe(topic, subscription)

    def acknowledge(self, message: Message | None = None) -> None:
        """Acknowledge a message: the broker may delete it.

        In mode CLIENT this acknowledges all messages that this session has received, from all its consumers; in mode
        CLIENT_CUMULATIVE the message and all that were received before it; in mode CLIENT_INDIVIDUAL only the message.
        In the other modes it does nothing.

        Args:
            message: the very object that `Consumer.receive` returned or a listener got, not a copy. A message that is
                acknowledged already, or was given back, is ignored: then nothing is acknowledged. `None` acknowledges
                all messages that the session has received.

        Raises:
            ConnectionLost: the broker cannot be reached. Messages of the consumer that has lost its connection may be
                redelivered; all others are acknowledged.
            UsageError: E7540 for what is not a message, E7501 if the session is closed.
        """
        self._check()
        if message is not None and not isinstance(message, Message):
            raise outside("session.acknowledge", message, "A message that was received, or None for all of them")
        if not self._mode.is_client:
            return
        held = self._holdings.unacknowledged
        with self._link.lock:
            if message is None or self._mode is AcknowledgeMode.CLIENT:
                settle(held.take_all(message), Intake.acknowledge)
            elif self._mode is AcknowledgeMode.CLIENT_CUMULATIVE:
                settle(held.take_through(message), Intake.acknowledge)
            else:
                settle(held.take(message), Intake.acknowledge)

    def recover(self) -> None:
        """Give all unacknowledged messages back: the broker redelivers them, and marks them as redelivered.

        Only the embedded broker, RabbitMQ and Pulsar mark them. Messages that the broker had sent ahead may come first,
        and another consumer of the queue may get the redelivered messages. The objects that were received before can no
        longer be acknowledged.

        Raises:
            ConnectionLost: the broker cannot be reached. It redelivers all messages nevertheless.
            UsageError: E7501 if the session is closed, E7508 in mode TRANSACTED (call `rollback`).
        """
        self._check()
        if self._mode is AcknowledgeMode.TRANSACTED:
            raise UsageError("E7508", "session", "a transaction is not recovered", "", "Roll it back")
        with self._link.lock:
            self._give_back()

    def commit(self) -> None:
        """Send the messages that the session sent, and acknowledge those that it received, since the last `commit` or
        `rollback`.

        On a message service this is one transaction of the broker: when it returns, all of it is on disk; if it fails,
        nothing has happened. Emulated transactions have sent the messages already; if acknowledging fails, the received
        messages are redelivered. Asynchronous sends have their completions when this returns.

        Raises:
            SendRejected: the broker refuses one of the messages. The transaction was rolled back: nothing was sent, and
                the received messages are redelivered.
            ConnectionLost: the broker cannot be reached, or was lost meanwhile (E7542). The transaction was rolled
                back, as above. Only with code E7518 the outcome is unknown.
            UsageError: E7501 if the session is closed, E7508 in any other mode than TRANSACTED.
        """
        self._check_transacted()
        with self._link.lock:
            if self._link.service is None:
                settle(self._holdings.unacknowledged.take_all(), Intake.acknowledge)
            else:
                self._end_transaction(self._link.service.settle)

    def prepare(self, name: str) -> None:
        """Let the broker keep the transaction durably under a name, without carrying it out; a new transaction begins.

        The prepared transaction ends with `resolve(name, commit=…)`, in any session or process, or by an administrator.
        Until then nobody sees its sends, and nobody gets its received messages.

        Raises:
            UsageError: E7519 if the broker has a transaction of this name, E7540 for what cannot be a name: the
                transaction stays open. E7543 if the connector is not a message service; and as `commit`.
            SendRejected: as `commit`.
            ConnectionLost: as `commit`.
        """
        self._check_transacted()
        service = self._message_service("prepared")
        check_name("prepare.name", name)
        with self._link.lock:
            self._end_transaction(partial(service.prepare, name))

    def resolve(self, name: str, *, commit: bool) -> None:
        """Carry out a prepared transaction, or undo it: the broker then redelivers its received messages, marked as
        redelivered.

        Repeating a call with the same outcome does nothing. Sessions of every mode may call this.

        Raises:
            UsageError: E7520 if there is no such transaction, or if it has the other outcome; E7540 for an argument of
                a wrong type; E7543 if the connector is no message service; E7501 if the session is closed.
            ConnectionLost: the broker cannot be reached. Call it again.
        """
        self._check()
        service = self._message_service("resolved")
        check_name("resolve.name", name)
        check_flag("resolve.commit", commit)
        with self._link.lock:
            service.resolve(name, commit=commit)

    def rollback(self) -> None:
        """Give back all messages that the session received since the last `commit` or `rollback`, as `recover` does.

        Messages that it sent since then are not sent; with emulated transactions they stay sent.

        Raises:
            ConnectionLost: the broker cannot be reached. The transaction is rolled back nevertheless.
            UsageError: as `commit`.
        """
        self._check_transacted()
        with self._link.lock:
            if self._transaction is not None:
                self._transaction.clear()
            self._give_back()

    def close(self) -> None:
        """Close consumers and producers; the broker redelivers unacknowledged messages. May be repeated.

        Any thread may call it. It waits until no listener runs and all asynchronous sends have their completions. If
        another thread waits in `Consumer.receive`, that call returns `None`. If one waits for room in a full
        destination, its message is refused (`SendRejected` E8108). A transaction is rolled back.

        Raises:
            UsageError: E7506 within a listener or completion of this session (the call would wait for itself: let
                another thread make it). Nothing else.
        """
        if self._listening.owner.maker.is_another_process:
            return
        self._listening.owner.check_may_await_listeners("session")
        self.refuse_to_wait()
        self._listening.stop()
        self._completions.close()
        with self._listening.paused():  # no other thread closes it, or one of its consumers, at the same time
            if self._closed:
                return
            self._closed = True
            for end in self._ends:
                if isinstance(end, Consumer) and not end.closed:
                    end.end()
            self._link.stop()
            for end in self._ends:
                if isinstance(end, Producer):
                    end.close()
            self._ends.clear()
            with self._link.lock:
                self._holdings.close()
                self._broker.close()
            self._shared.housekeeping.remove(self._holdings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refuse_to_wait(self) -> None:
        """Let no call wait for room in a full destination from now on. Any thread may call it."""
        self._link.refuse_to_wait()

    def interrupt(self) -> None:
        """End the waits for messages, and acknowledge the messages that mode DUPS_OK has not acknowledged yet.

        `Connection.stop` calls it.
        """
        self._link.stop()
        if self._mode is AcknowledgeMode.DUPS_OK:  # in other modes, a send that waits for room may keep the lock
            with self._link.lock:
                self._holdings.acknowledge_lazily()

    def _check(self) -> None:
        if self._closed:
            raise closed("session")
        self._listening.owner.check("session")

    def _check_transacted(self) -> None:
        self._check()
        if self._mode is not AcknowledgeMode.TRANSACTED:
            raise UsageError("E7508", "session", f"there is no transaction in mode {self._mode}", "Mode TRANSACTED")
        self._completions.flush()

    def _message_service(self, done: str) -> port.ServiceSession:
        if self._link.service is None:
            what = f"emulated transactions cannot be {done}"
            raise UsageError("E7543", "session", what, "Connectors that are message services can do so")
        return self._link.service

    def _give_back(self) -> None:
        for intake in self._holdings.intakes:
            with suppress(ConnectionLost):  # then the messages are redelivered without this
                intake.give_back_fetched()
        settle(self._holdings.unacknowledged.take_all(), Intake.reject)

    def _refuse_lost(self, transaction: Transaction) -> None:
        """Roll back and raise `ConnectionLost` E7542 if messages were lost that the transaction had received.

        The broker redelivers these messages, so the messages that answer them must not be sent.
        """
        if lost := self._holdings.unacknowledged.forgotten:
            transaction.clear()
            with suppress(ConnectionLost):
                self._give_back()
            what = f"the connection was lost, and with it {lost} messages that the transaction had received"
            raise ConnectionLost("E7542", "session", what, "", _UNDONE)

    def _end_transaction(self, how: Callable[[Work], None]) -> None:
        """Pass the transaction to the broker. Any failure rolls it back, except for a name that is in use."""
        assert self._transaction is not None
        self._refuse_lost(self._transaction)
        deliveries = self._holdings.unacknowledged.take_all()
        tokens = by_intake(deliveries)
        sends = self._transaction.sends()
        try:
            if deliveries or sends:
                with traces.settling(sends, [(intake.traced, own) for intake, own in tokens.items()]):
                    how(Work([(intake.source, own) for intake, own in tokens.items()], sends))
        except UsageError:
            self._holdings.unacknowledged.add(deliveries)
            raise
        except SendRejected as refused:
            self._transaction.clear()
            self._holdings.unacknowledged.add(deliveries)
            with suppress(ConnectionLost):
                self._give_back()
            raise told_with(refused, _UNDONE) from refused
        except ConnectionLost as error:
            self._transaction.clear()
            for intake in tokens:
                intake.let_go()
            self._holdings.unacknowledged.take_all()
            raise (error if error.code == "E7518" else told_with(error, _UNDONE)) from error
        except BaseException:  # such as an interrupt: it may be committed, so its messages must not be sent again
            self._transaction.clear()
            for intake in tokens:
                intake.let_go()
            raise
        self._transaction.clear()
        for intake, own in tokens.items():
            intake.settled(len(own))

    def _consumer(
        self,
        destination: str,
        selector: str | None,
        kind: Subscriber,
        no_local: bool,
        flow_limit: int | None,
        prefetch: bool | None,
        options: Mapping[str, Any],
    ) -> Consumer:
        self._check()
        where = _named("consumer", destination)
        is_topic = check_destination(where, destination).kind == "topic"
        wanted = _selector(where, selector)
        check_flag(f"{where}.no_local", no_local)
        check_options(f"{where}.options", options)
        subscribing = self._broker if is_topic and isinstance(self._broker, Subscribing) else None
        self._check_reader(where, is_topic, wanted, kind, subscribing)
        if no_local and not is_topic:
            what = "what this connection sends to a queue would be lost to the other consumers"
            raise ConfigError("E1220", f"{where}.no_local", what, "Topics have it")
        self._shared.temporaries.check(where, destination)
        flow = self._flow(where, flow_limit, prefetch)
        receiver = ReceiverSettings(
            id=SOURCE_ID,
            connection="",
            destination=destination,
            max_batch_size=flow.limit,
            selector=None if wanted is None else wanted.text,
            durable_topic_subscription_name=kind.name or None,
            options=dict(options),
        )
        if subscribing is None:
            source = self._broker.source(receiver)
            is_alone = not self._broker.features.shares
        else:
            source = subscribing.subscriber(receiver, kind)
            is_alone = not kind.shared and self._link.service is None
        order = order_of(self._broker, receiver, None if subscribing is None else kind)
        if is_alone or order is Order.POSITION:
            flow = flow._replace(lingers=False)
        selects_here = is_topic and self._link.service is None
        leave: Callable[[], None] = _nothing
        if selects_here and kind.name:
            text = None if wanted is None else wanted.text
            self._shared.selections.enter(where, destination, kind, text)
            leave = partial(self._shared.selections.leave, destination, kind)
        traced = TracedDeliveries(destination)
        intake = Intake(where, source, self._holdings.unacknowledged, self._mode, flow, traced)
        self._holdings.intakes.append(intake)
        consumer = Consumer(
            where,
            intake,
            self._holdings,
            self._link,
            self._shared.housekeeping,
            wanted if selects_here else None,
            self._shared.connection if no_local else None,
            self._listening,
            leave,
        )
        try:
            self._open(consumer, intake.connect)
        except ConnectionLost as error:
            if error.code != IN_USE or subscribing is None:
                raise
            todo = "Close the other consumer, or use another subscription"
            raise UsageError("E7516", where, error.what, "", todo) from error
        return consumer

    def _flow(self, where: str, flow_limit: int | None, prefetch: bool | None) -> Flow:
        if flow_limit is not None:
            check_whole(f"{where}.flow_limit", flow_limit, MOST_FLOW, least=1)
        if prefetch is not None:
            check_flag(f"{where}.prefetch", prefetch)
        limit = self._shared.options.flow_limit if flow_limit is None else flow_limit
        if limit is None:
            at_once = self._mode in (AcknowledgeMode.AUTO, AcknowledgeMode.NO_ACKNOWLEDGE)
            # Without a message service, an idle consumer cannot give back what the connector has read ahead.
            limit = 1 if at_once and self._link.service is None else FLOW_LIMIT
        return Flow(limit, self._shared.options.prefetch if prefetch is None else prefetch)

    def _check_reader(
        self, where: str, is_topic: bool, wanted: Selector | None, kind: Subscriber, subscribing: Subscribing | None
    ) -> None:
        features = self._broker.features
        if kind.durable or kind.shared:
            _check_subscription(where, kind.name)
        if wanted is not None and not is_topic and not features.selects:
            what = "this broker cannot leave unselected messages in a queue for other consumers"
            raise ConfigError("E1220", f"{where}.selector", what, "Only topics allow selectors")
        is_shared_out = features.shares and not is_topic
        if is_shared_out and kind.name:
            raise ConfigError("E1222", f"{where}.subscription", "only topics have subscriptions", "", "Leave it out")
        if subscribing is not None:
            return
        if kind.name and not (kind.durable and kind.shared):
            what = "its connector has no subscriptions of this kind"
            allowed = "create_shared_durable_consumer; RabbitMQ, Pulsar and message services have all kinds"
            raise UsageError("E7546", where, what, allowed)
        if not is_shared_out and not kind.name:
            what = "it needs the name of a subscription, under which the broker keeps messages for this reader"
            raise UsageError("E7503", where, what, "", "Give one as subscription=")

    def _open(self, end: Consumer | Producer, connect: Callable[[], None]) -> None:
        try:
            with self._link.lock:
                connect()
        except BaseException:
            end.close()
            raise
        self._ends = [one for one in self._ends if not one.closed]
        self._ends.append(end)


def _nothing() -> None:
    """Do nothing: nothing else changes when the consumer is closed."""


def _named(role: str, destination: object) -> str:
    """Name a consumer, producer or browser for errors."""
    return f"{role} of {printable(destination)}" if isinstance(destination, str) else role


def _selector(where: str, text: str | None) -> Selector | None:
    where = f"{where}.selector"
    if text is not None and not isinstance(text, str):
        raise outside(where, text, "A text, or None for all messages")
    return Selector.optional(text, where)


def _check_subscription(where: str, name: object) -> None:
    if not isinstance(name, str) or not is_name(name):
        what = f"{quoted(name)} cannot be the name of a subscription"
        raise UsageError("E7503", where, what, "1 to 500 characters without control characters")


def _shared_durable(subscription: str) -> Subscriber:
    return Subscriber(subscription, durable=True, shared=True)
