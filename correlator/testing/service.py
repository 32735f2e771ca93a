"""A message service in memory for tests: transactions, client ids, kinds of subscriptions, priorities and delays.

It is the smallest broker that does all that `correlator.connector.MessageService` promises, except for durability: it
ends with the process. `MemoryBroker` is the broker for engines: it delivers batches without looking at each message.
"""

import threading
import time
import uuid
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from correlator.connector import (
    NOTHING,
    Chunk,
    Features,
    FlowTerms,
    Held,
    Order,
    ServiceClient,
    Source,
    Subscriber,
    Work,
)
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError, quoted
from correlator.events import LONGEST_LIFE_MS, Headers, Message, Outgoing, expired
from correlator.options import check_destination, parse_destination
from correlator.selector import Selector
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

SERVICE_FEATURES = Features(
    order=Order.PLACE, flags_redelivery=True, acknowledges_surely=True, delays=True, selects=True
)
_QUEUE = Subscriber("", durable=True, shared=True)
_NORMAL_PRIORITY = 4
_HIGHEST_PRIORITY = 9


def _now_ms() -> float:
    return time.time() * 1000


def _nothing(_work: Work) -> None:
    """Let a transaction pass: the default of `ServiceBroker.before_settle` and `after_settle`."""


@dataclass(slots=True, order=True)
class _Copy:
    """A message on its way to the consumers of one subscription; ordered by priority, then by number."""

    rank: int
    number: int
    message: Message = field(compare=False)
    due_ms: float = field(compare=False)
    deliveries: int = field(compare=False, default=0)

    @property
    def shown(self) -> Message:
        """Return the message as the next consumer gets it."""
        headers = self.message.headers
        assert headers is not None
        counted = msgspec.structs.replace(
            headers, redelivered=self.deliveries > 0, delivery_count=self.deliveries + 1, delivery_delay_ms=None
        )
        return msgspec.structs.replace(self.message, destination=None, headers=counted)


class _Subscription:
    """The messages that one subscription of a topic, or a queue, has for its consumers."""

    def __init__(self, kind: Subscriber, selector: str | None) -> None:
        self.kind = kind
        self.selector = selector
        self._wanted = Selector.optional(selector, "subscription")
        self.waiting: list[_Copy] = []
        self.consumers: list[ServiceSource] = []

    def take(self, most: int, selector: Selector | None, now_ms: float) -> list[_Copy]:
        """Remove and return at most `most` messages that are due; drop messages that have expired."""
        self.waiting = [one for one in self.waiting if not expired(one.message, now_ms)]
        due = (one for one in self.waiting if one.due_ms <= now_ms)
        taken = [one for one in due if selector is None or selector.matches(one.message)][:most]
        numbers = {one.number for one in taken}
        self.waiting = [one for one in self.waiting if one.number not in numbers]
        return taken

    def wants(self, message: Message) -> bool:
        """Return whether the selector of its consumers matches a message."""
        return self._wanted is None or self._wanted.matches(message)

    def give_back(self, copies: Sequence[_Copy]) -> None:
        """Put messages back to their places."""
        for one in copies:
            insort(self.waiting, one)


class ServiceBroker:
    """The broker. `connection` is a `ConnectionFactory`; any thread may call its methods.

    Attributes:
        before_settle: called with the work of each transaction before it is done. What it raises is what `settle`
            raises, and nothing happens.
        after_settle: called when the work is done; what it raises is what `settle` raises.
        flow: how far all destinations let their consumers fetch ahead.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.before_settle: Callable[[Work], None] = _nothing
        self.after_settle: Callable[[Work], None] = _nothing
        self.flow = FlowTerms()
        self.clients: dict[str, ServiceAttachment] = {}
        self.temporaries: dict[str, ServiceAttachment] = {}
        self.prepared: dict[str, tuple[list[tuple[_Subscription, _Copy]], Sequence[Outgoing], float]] = {}
        self.resolved: dict[str, bool] = {}
        self._destinations: dict[str, dict[str, _Subscription]] = {}
        self._ends: list[ServiceSource | ServiceSink] = []
        self._number = 0
        self._down = False

    def connection(self, name: str = "service", settings: ConnectionSettings | None = None) -> "ServiceConnection":
        """Make a connection. There are no options: raises `ConfigError` E1020 for any."""
        for option in settings.options if settings else ():
            raise ConfigError("E1020", f"connections.{name}.{option}", "unknown key", "There are no options")
        return ServiceConnection(self)

    @property
    def down(self) -> bool:
        """Whether the broker is out of reach. Setting it to `True` cuts every source and sink."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        """Cut every source and sink if `down` is true; let sources and sinks connect again if it is false."""
        with self.changed:
            self._down = down
            if down:
                self.drop_connections()

    def drop_connections(self) -> None:
        """Cut every source and sink. The messages that sources hold are redelivered."""
        with self.changed:
            for end in list(self._ends):
                end.cut()
            self.stir()

    def waiting(self, destination: str) -> int:
        """Return how many messages nobody holds; for a topic, the sum over its subscriptions."""
        with self.changed:
            return sum(len(one.waiting) for one in self.subscriptions(destination).values())

    def held(self, destination: str) -> int:
        """Return how many messages the consumers of a destination hold."""
        with self.changed:
            sources = [end for end in self._ends if isinstance(end, ServiceSource)]
            return sum(len(source.holds) for source in sources if source.destination == destination)

    # The following methods are called by connections, under the lock of the broker.

    def stir(self) -> None:
        """Wake all threads that wait for messages."""
        self.version += 1
        self.changed.notify_all()

    def check_up(self, where: str) -> None:
        """Raise `ConnectionLost` E7001 while the broker is down."""
        if self._down:
            raise _lost(where, "the broker is down")

    def join(self, end: "ServiceSource | ServiceSink") -> None:
        """Note a source or sink, so that `drop_connections` cuts it."""
        if end not in self._ends:
            self._ends.append(end)

    def leave(self, end: "ServiceSource | ServiceSink") -> None:
        """Forget a source or sink."""
        if end in self._ends:
            self._ends.remove(end)

    def subscriptions(self, destination: str) -> dict[str, _Subscription]:
        """Return the subscriptions of a destination by key; a queue has one, named ""."""
        there = self._destinations.get(destination)
        if there is None:
            there = self._destinations[destination] = {}
            if destination.startswith("queue:"):
                there[""] = _Subscription(_QUEUE, None)
        return there

    def delete(self, destination: str) -> None:
        """Delete a destination with its messages. Raises `UsageError` E7513 while it has a consumer."""
        if any(one.consumers for one in self._destinations.get(destination, {}).values()):
            raise UsageError("E7513", destination, "somebody consumes from it", "", "Close the consumer first")
        self._destinations.pop(destination, None)

    def refusal(self, out: Outgoing) -> SendRejected | None:
        """Return why the broker does not store a message; `None` if it does."""
        where = f"message {out.sequence}"
        headers = out.message.headers or Headers()
        name = out.destination
        if parse_destination(name) is None:
            return SendRejected("E8104", where, f"{quoted(name)} is not a destination", "queue:NAME or topic:NAME")
        if ":temporary-" in name and name not in self.temporaries:
            return SendRejected("E8103", where, f"the temporary {quoted(name)} has ended with its connection")
        if headers.priority is not None and not 0 <= headers.priority <= _HIGHEST_PRIORITY:
            return SendRejected("E8102", where, f"the priority {headers.priority} is not between 0 and 9")
        for lasts in (headers.time_to_live_ms, headers.delivery_delay_ms):
            if lasts is not None and not 0 <= lasts <= LONGEST_LIFE_MS:
                return SendRejected("E8102", where, f"{lasts} ms is not between 0 and {LONGEST_LIFE_MS}")
        return None

    def store(self, out: Outgoing, sent_ms: float | None = None) -> None:
        """Store a message for each subscription that wants it. It was sent now, or at `sent_ms`."""
        now_ms = _now_ms() if sent_ms is None else sent_ms
        self._number += 1
        given = out.message.headers or Headers()
        delay_ms = given.delivery_delay_ms or 0
        headers = msgspec.structs.replace(
            given,
            message_id=out.message_id or f"ID:memory-{self._number}",
            priority=_NORMAL_PRIORITY if given.priority is None else given.priority,
            timestamp=int(now_ms),
            expiration=int(now_ms) + given.time_to_live_ms if given.time_to_live_ms else None,
            delivery_time=int(now_ms) + delay_ms if delay_ms else None,
        )
        message = msgspec.structs.replace(out.message, headers=headers)
        assert headers.priority is not None
        for subscription in self.subscriptions(out.destination).values():
            if subscription.wants(message):
                rank = _HIGHEST_PRIORITY - headers.priority
                insort(subscription.waiting, _Copy(rank, self._number, message, now_ms + delay_ms))
        self.stir()

    def next_due_s(self) -> float:
        """Return the seconds until the next delayed message is due; infinity if there is none."""
        every = [copy for there in self._destinations.values() for one in there.values() for copy in one.waiting]
        now_ms = _now_ms()
        return min((one.due_ms - now_ms for one in every if one.due_ms > now_ms), default=float("inf")) / 1000


def _lost(where: str, what: str) -> ConnectionLost:
    return ConnectionLost("E7001", where, what)


class ServiceConnection:
    """A connection of a program or engine to the broker."""

    features = SERVICE_FEATURES

    def __init__(self, broker: ServiceBroker) -> None:
        self._broker = broker
        self._own = ServicePart(broker, ServiceAttachment(broker, None))

    def attach(self, client_id: str | None) -> ServiceClient:
        """Register a connection of a program; see `connector.MessageService`."""
        with self._broker.changed:
            self._broker.check_up("attach")
            client = ServiceAttachment(self._broker, client_id)
            if client_id is not None and self._broker.clients.setdefault(client_id, client) is not client:
                what = f"the client id {quoted(client_id)} is in use by another connection of this process"
                raise UsageError("E7515", "client id", what, "", "Close that connection, or use another client id")
            return client

    def source(self, receiver: ReceiverSettings) -> Source:
        """Make a source of an engine; its subscription of a topic is durable and shared."""
        return self._own.source(receiver)

    def sink(self, sender: SenderSettings) -> "ServiceSink":
        """Make a sink, without connecting. Raises `ConfigError` if the destination has no correct name."""
        return self._own.sink(sender)

    def close(self) -> None:
        """Close all sources and sinks that this connection made itself."""
        self._own.close()


class ServiceAttachment:
    """A client of the broker; see `connector.ServiceClient`."""

    def __init__(self, broker: ServiceBroker, client_id: str | None) -> None:
        self.client_id = client_id
        self._broker = broker
        self._closed = False

    def session(self) -> "ServicePart":
        """Make the part of a session."""
        return ServicePart(self._broker, self)

    def create_temporary(self, kind: str) -> str:
        """Make a temporary destination of this client."""
        with self._broker.changed:
            self._broker.check_up("temporary destination")
            name = f"{kind}:temporary-{uuid.uuid4().hex}"
            self._broker.temporaries[name] = self
            return name

    def delete_temporary(self, destination: str) -> None:
        """Delete a temporary destination of this client."""
        with self._broker.changed:
            self._broker.check_up(destination)
            self._broker.delete(destination)
            self._broker.temporaries.pop(destination, None)

    def close(self) -> None:
        """End the registration, with the temporary destinations of this client."""
        with self._broker.changed:
            for name in [one for one, client in self._broker.temporaries.items() if client is self]:
                self._broker.delete(name)
                del self._broker.temporaries[name]
            if self.client_id is not None and self._broker.clients.get(self.client_id) is self:
                del self._broker.clients[self.client_id]


class ServicePart:
    """The part of a session; see `connector.ServiceSession`."""

    features = SERVICE_FEATURES

    def __init__(self, broker: ServiceBroker, client: ServiceAttachment) -> None:
        self._broker = broker
        self._client = client
        self._ends: list[ServiceSource | ServiceSink] = []
        self._woken = False

    def source(self, receiver: ReceiverSettings) -> "ServiceSource":
        """Make a source; for a topic it becomes a consumer of a durable, shared subscription."""
        if receiver.destination.startswith("topic:"):
            return self.subscriber(receiver, Subscriber(receiver.subscription, durable=True, shared=True))
        return self.subscriber(receiver, _QUEUE)

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> "ServiceSource":
        """Make a source for a topic, as a consumer of the subscription that `subscriber` describes."""
        check_destination(f"receivers.{receiver.id}.destination", receiver.destination)
        source = ServiceSource(self._broker, receiver, subscriber, self._client)
        self._ends.append(source)
        return source

    def sink(self, sender: SenderSettings) -> "ServiceSink":
        """Make a sink, without connecting. Raises `ConfigError` if the destination has no correct name."""
        if sender.destination is not None:
            check_destination(f"senders.{sender.id}.destination", sender.destination)
        sink = ServiceSink(self._broker, sender.id)
        self._ends.append(sink)
        return sink

    def settle(self, work: Work) -> None:
        """Do all of the work, or nothing. Raises `ConnectionLost` and `SendRejected` as `ServiceSession.settle`."""
        with self._transaction(work) as acknowledged:
            del acknowledged
            for out in work.sends:
                self._broker.store(out)

    def prepare(self, name: str, work: Work) -> None:
        """Keep the work under a name."""
        broker = self._broker
        with broker.changed:
            if name in broker.prepared or name in broker.resolved:
                raise UsageError("E7519", f"transaction {quoted(name)}", "there is one of this name")
        with self._transaction(work) as acknowledged:
            broker.prepared[name] = (acknowledged, list(work.sends), _now_ms())

    def resolve(self, name: str, *, commit: bool) -> None:
        """Carry out or undo a prepared transaction, as `ServiceSession.resolve`. Never raises `SendRejected`: nothing
        is full.
        """
        broker = self._broker
        with broker.changed:
            broker.check_up("resolve")
            if broker.resolved.get(name) is commit:
                return
            if name not in broker.prepared:
                what = "it has the other outcome" if name in broker.resolved else "there is no such transaction"
                raise UsageError("E7520", f"transaction {quoted(name)}", what)
            acknowledged, sends, prepared_ms = broker.prepared.pop(name)
            broker.resolved[name] = commit
            for out in sends if commit else ():
                broker.store(out, prepared_ms)
            for subscription, copy in () if commit else acknowledged:
                copy.deliveries += 1
                subscription.give_back([copy])
            broker.stir()

    def look(self) -> int:
        """Return the number of changes of the broker so far."""
        with self._broker.changed:
            return self._broker.version

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until the broker has changed, until a delayed message is due, or until `wake`."""
        broker = self._broker
        with broker.changed:
            longest_s = max(0.0, min(timeout_s, broker.next_due_s(), threading.TIMEOUT_MAX))
            broker.changed.wait_for(lambda: broker.version != seen or self._woken, longest_s)
            self._woken = False

    def wake(self) -> None:
        """End the present and the next wait."""
        with self._broker.changed:
            self._woken = True
            self._broker.changed.notify_all()

    def refuse_to_wait(self) -> None:
        """Do nothing: no destination of this broker is ever full."""

    def allow_to_wait(self) -> None:
        """Do nothing: no call of this service waits for room, since its destinations have no limits."""

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return the oldest messages of a queue that nobody holds; see `connector.Browsable`."""
        with self._broker.changed:
            self._broker.check_up(f"browser of {destination}")
            if destination.startswith("topic:"):
                raise UsageError("E2110", destination, "only queues can be browsed")
            waiting = self._broker.subscriptions(destination)[""].waiting
            return [one.shown for one in waiting if not expired(one.message, _now_ms())][:limit]

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a durable subscription of this client; see `connector.Unsubscribable`."""
        with self._broker.changed:
            self._broker.check_up(topic)
            there = self._broker.subscriptions(topic)
            key = _key(self._client, subscription)
            if key not in there:
                raise UsageError("E7512", topic, f"it has no subscription {quoted(subscription)}")
            if there[key].consumers:
                raise UsageError("E7513", topic, "somebody consumes from it", "", "Close the consumer first")
            del there[key]

    def close(self) -> None:
        """Close all sources and sinks of the session."""
        for end in self._ends:
            end.close()
        self._ends.clear()

    @contextmanager
    def _transaction(self, work: Work) -> Iterator[list[tuple[_Subscription, _Copy]]]:
        """Check all of the work; take the acknowledged messages from their sources, and yield them."""
        broker = self._broker
        with broker.changed:
            broker.before_settle(work)
            broker.check_up("transaction")
            for refusal in filter(None, map(broker.refusal, work.sends)):
                raise refusal
            for source, tokens in work.acknowledged:
                assert isinstance(source, ServiceSource)
                source.check_holds(tokens)
            acknowledged = [pair for source, tokens in work.acknowledged for pair in _released(source, tokens)]
            yield acknowledged
            broker.stir()
            broker.after_settle(work)


def _released(source: Source, tokens: Sequence[Any]) -> list[tuple[_Subscription, _Copy]]:
    assert isinstance(source, ServiceSource)
    subscription = source.check_connected()
    return [(subscription, copy) for copy in source.holds.release(tokens)]


def _key(client: ServiceAttachment, name: str) -> str:
    return f"{client.client_id or ''}/{name}"


class ServiceSource:
    """A consumer; see `connector.Source` and `connector.Prefetching`."""

    def __init__(
        self, broker: ServiceBroker, receiver: ReceiverSettings, kind: Subscriber, client: ServiceAttachment
    ) -> None:
        self.destination = receiver.destination
        self.holds: Held[_Copy] = Held()
        self._broker = broker
        self._where = f"consumer of {receiver.destination}"
        self._kind = kind
        self._client = client
        self._is_topic = receiver.destination.startswith("topic:")
        self._key = _key(client, kind.name or uuid.uuid4().hex) if self._is_topic else ""
        self._selector = Selector.optional(receiver.selector, receiver.id)
        self._most = receiver.max_batch_size
        self._subscription: _Subscription | None = None
        self._cancelled = False

    @property
    def flow(self) -> FlowTerms:
        """How far the consumer may fetch ahead, as the broker says at this moment."""
        return self._broker.flow

    def connect(self) -> None:
        """Subscribe. Raises `UsageError` E7516 and E7517; see `connector.ServiceSession.subscriber`."""
        with self._broker.changed:
            self.cut()
            self._broker.check_up(self._where)
            if self._broker.temporaries.get(self.destination, self._client) is not self._client:
                what = "it is a temporary destination of another connection"
                raise UsageError("E7521", self._where, what, "Only that connection consumes from it")
            there = self._broker.subscriptions(self.destination)
            selector = None if self._selector is None or not self._is_topic else self._selector.text
            self._check_kind(there.get(self._key), selector)
            if self._key not in there:
                there[self._key] = _Subscription(self._kind, selector)
            self._subscription = there[self._key]
            self._subscription.consumers.append(self)
            self._cancelled = False
            self._broker.join(self)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take messages by priority, and by the order of sending if the priority is equal."""
        broker = self._broker
        deadline = time.monotonic() + timeout_s
        with broker.changed:
            while True:
                subscription = self.check_connected()
                room = 0 if self._cancelled else min(max_messages, self._most - len(self.holds))
                selector = None if self._is_topic else self._selector
                taken = subscription.take(room, selector, _now_ms()) if room > 0 else []
                if taken:
                    tokens = self.holds.hold(taken)
                    return Chunk([one.shown for one in taken], tokens)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return NOTHING
                broker.changed.wait(min(remaining_s, broker.next_due_s()))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Acknowledge these messages: the broker forgets them. Raises `ConnectionLost` E7001 if the source is not
        connected.
        """
        with self._broker.changed:
            self.check_connected()
            self.holds.release(tokens)
            self._broker.stir()

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give back these messages after the program has seen them, so that they count as delivered."""
        with self._broker.changed:
            self.check_connected()
            self._give_back(self.holds.release(tokens), seen=True)

    def release(self, tokens: Sequence[Any]) -> None:
        """Give back these messages before the program has seen them, so that they do not count as delivered."""
        with self._broker.changed:
            self.check_connected()
            self._give_back(self.holds.release(tokens), seen=False)

    def cancel(self) -> None:
        """Take no more messages, and keep the held ones."""
        with self._broker.changed:
            self._leave(self.check_connected())
            self._cancelled = True
            self._broker.stir()

    def close(self) -> None:
        """Give back all messages, and disconnect. A subscription that is not durable ends with its last consumer."""
        with self._broker.changed:
            self.cut()
            self._broker.leave(self)

    def cut(self) -> None:
        """Lose the connection. Called under the lock of the broker."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        for copy in self.holds:
            copy.deliveries += 1
        subscription.give_back(list(self.holds))
        self.holds.clear()
        self._leave(subscription)
        self._broker.stir()

    def _leave(self, subscription: _Subscription) -> None:
        """Stop being a consumer; the last consumer of a subscription that is not durable ends it."""
        if self in subscription.consumers:
            subscription.consumers.remove(self)
        there = self._broker.subscriptions(self.destination)
        if not subscription.kind.durable and not subscription.consumers and there.get(self._key) is subscription:
            del there[self._key]

    def check_connected(self) -> _Subscription:
        """Return the subscription. Raises `ConnectionLost` without a connection. Called under the lock
        of the broker.
        """
        if self._subscription is None:
            raise _lost(self._where, "the connection was cut")
        return self._subscription

    def check_holds(self, tokens: Sequence[Any]) -> None:
        """Raise `ConnectionLost` unless all these messages are held. Called under the lock of the broker."""
        self.check_connected()
        if not self.holds.has_all(tokens):
            raise _lost(self._where, "the connection was cut, and its messages are redelivered")

    def _check_kind(self, there: _Subscription | None, selector: str | None) -> None:
        if there is None:
            return
        if there.kind != self._kind:
            what = f"the subscription {quoted(self._kind.name)} is of another kind"
            raise UsageError("E7516", self._where, what, "", "Use another name, or unsubscribe first")
        if there.consumers and not there.kind.shared:
            what = f"the subscription {quoted(self._kind.name)} has a consumer, and is not shared"
            raise UsageError("E7516", self._where, what, "", "Close that consumer, or share the subscription")
        if self._is_topic and there.selector != selector:
            what = f"the subscription {quoted(self._kind.name)} has another selector"
            raise UsageError("E7517", self._where, what, "", "Use the same, or unsubscribe first")

    def _give_back(self, copies: Sequence[_Copy], *, seen: bool) -> None:
        for copy in copies:
            copy.deliveries += seen
        self.check_connected().give_back(copies)
        self._broker.stir()


class ServiceSink:
    """A producer for any destination; see `connector.Sink`.

    Args:
        broker: stores the messages.
        where: names the sender in the texts of errors.
    """

    def __init__(self, broker: ServiceBroker, where: str) -> None:
        self._broker = broker
        self._where = where
        self._connected = False

    def connect(self) -> None:
        """Connect. Raises `ConnectionLost` E7001 while the broker is down."""
        with self._broker.changed:
            self._broker.check_up(self._where)
            self._connected = True
            self._broker.join(self)

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Store the messages that the broker does not refuse."""
        with self._broker.changed:
            if not self._connected:
                raise _lost(self._where, "the connection was cut")
            results = [self._broker.refusal(out) for out in batch]
            for out, refusal in zip(batch, results, strict=True):
                if refusal is None:
                    self._broker.store(out)
            return results

    def close(self) -> None:
        """Disconnect from the broker. Never raises; may be called again."""
        with self._broker.changed:
            self.cut()
            self._broker.leave(self)

    def cut(self) -> None:
        """Lose the connection. Called under the lock of the broker."""
        self._connected = False
