"""A broker in memory for tests and simulations. It belongs to the test, so it survives the engines that crash.

The broker keeps all messages of a destination in one list. A queue, and each subscription of a topic, has a position in
that list, and ranges of messages that it has delivered and that nobody has acknowledged. So a chunk costs one slice of
the list, whatever its size. The broker decides nothing at random: a `Faults` object decides which faults occur. The
broker reports to `on_event` what happens, so that an oracle outside the engine can check it.
"""

# ruff: noqa: ARG002 - the hooks of `Faults` ignore their arguments

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from correlator.connector import NOTHING, Chunk, Features, Order
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError, quoted
from correlator.events import Headers, Message, Outgoing
from correlator.selector import Selector
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

OnEvent = Callable[[str, str, str, Sequence[Any]], None]
"""Called with (kind, id of the receiver or sender, destination, messages).

The messages of the kinds `published`, `delivered`, `acknowledged` and `returned` are `Message`s, those of `accepted`
and `refused` are `Outgoing`s. The thread that changes the broker calls it at that moment, under the lock of the broker.
What the function raises reaches the caller of the broker.
"""

MEMORY_FEATURES = Features(order=Order.PLACE, flags_redelivery=True, acknowledges_surely=True, selects=True)


class Faults:
    """Decides which faults occur. This class causes none: override single methods.

    A method may raise `ConnectionLost`: the source or sink raises it in turn, as if the connection were lost. The
    thread that uses the source or sink calls the methods, under the lock of the broker. So a schedule of faults is
    deterministic if the calls are.
    """

    def before_connect(self, receiver: str) -> None:
        """Called before a source connects; the source has closed its old connection."""

    def before_receive(self, receiver: str) -> None:
        """Called before the source takes messages."""

    def at_most(self, receiver: str, messages: int) -> int:
        """Return how many messages one `receive` takes at most, from 1 to `messages`, which is what it could take."""
        return messages

    def repeated(self, receiver: str, messages: Sequence[Message]) -> Sequence[int]:
        """Return the positions of messages that the chunk repeats at its end. Called only for the order `ANY`."""
        return ()

    def noticed_after(self, receiver: str, messages: Sequence[Message]) -> float:
        """Return the seconds until the broker notices a lost connection and redelivers. Called only for
        the order `ANY`.
        """
        return 0.0

    def before_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        """Called before the broker takes an acknowledgement: if it raises, the acknowledgement never arrived."""

    def loses_acknowledgement(self, receiver: str, messages: Sequence[Message]) -> bool:
        """Return whether the acknowledgement is lost though the call returns; the broker redelivers
        after a reconnect.
        """
        return False

    def after_acknowledge(self, receiver: str, messages: Sequence[Message]) -> None:
        """Called after the broker has taken an acknowledgement: if it raises, only the answer was lost."""

    def before_accept(self, sender: str, batch: Sequence[Outgoing]) -> None:
        """Called before the broker takes a batch: if it raises, nothing of the batch arrived."""

    def refused(self, sender: str, batch: Sequence[Outgoing]) -> Mapping[int, str]:
        """Return the positions of the messages in the batch that the broker refuses, each with the reason."""
        return {}

    def accepted_before_loss(self, sender: str, batch: Sequence[Outgoing]) -> int | None:
        """Return how many messages of the batch the broker stores before it cuts the connection; `None` for no cut.

        If it is the whole batch, only the confirm is lost.
        """
        return None


class _Range(NamedTuple):
    """The messages from `start` to before `stop` of a destination, delivered `deliveries` times so far."""

    start: int
    stop: int
    deliveries: int


class _Subscription:
    """A position in the list of a destination, and ranges before it that consumers gave back or that no selector
    matched.

    Attributes:
        consumer: the connected source, if the order `POSITION` allows one source at a time.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.returned: list[_Range] = []
        self.consumer: MemorySource | None = None
        self._unnoticed: list[tuple[float, _Range]] = []

    def notice(self, now: float) -> float:
        """Make the ranges of lost connections available again that the broker has noticed by `now`.

        Returns the seconds until the broker notices the next lost connection, infinity if there is none.
        """
        noticed = [one for due, one in self._unnoticed if due <= now]
        if noticed:
            self._unnoticed = [(due, one) for due, one in self._unnoticed if due > now]
            self.returned = sorted([*self.returned, *noticed])
        return min((due - now for due, _ in self._unnoticed), default=float("inf"))

    def take(self, limit: int, log: Sequence[Message], selector: Selector | None) -> _Range | None:
        """Take the oldest contiguous messages that no source holds and that the selector matches, at most `limit`."""
        for at, waiting in enumerate(self._within_reach(len(log))):
            start, stop = _selected(waiting, limit, log, selector)
            if start == stop:
                continue
            around = [_Range(waiting.start, start, waiting.deliveries), _Range(stop, waiting.stop, waiting.deliveries)]
            if at == len(self.returned):
                self.position = stop
                del around[1:]
            self.returned[at : at + 1] = [one for one in around if one.start < one.stop]
            return _Range(start, stop, waiting.deliveries + 1)
        return None

    def waiting(self, available: int) -> list[_Range]:
        """Return the ranges that no source holds: those before the position, and the rest of the list after it."""
        return [*(one for _, one in self._unnoticed), *self._within_reach(available)]

    def _within_reach(self, available: int) -> list[_Range]:
        return [*self.returned, _Range(self.position, available, 0)]

    def give_back(self, ranges: Sequence[_Range], due: float, now: float) -> None:
        """Make these ranges available again at the time `due`."""
        self._unnoticed += [(due, one) for one in ranges]
        self.notice(now)


def _selected(waiting: _Range, limit: int, log: Sequence[Message], selector: Selector | None) -> tuple[int, int]:
    """Return the first contiguous messages of a range that match the selector as (first, end); equal if
    there are none.
    """
    start = stop = waiting.start
    if selector is None:
        return start, min(waiting.stop, start + limit)
    while start < waiting.stop and not selector.matches(log[start]):
        start = stop = start + 1
    while stop < min(waiting.stop, start + limit) and selector.matches(log[stop]):
        stop += 1
    return start, stop


class _Destination:
    """All messages that ever arrived, and the subscriptions. A shared queue has one subscription, named ""."""

    def __init__(self, name: str, *, shares: bool) -> None:
        self.log: list[Message] = []
        self.subscriptions: dict[str, _Subscription] = {}
        self.sequences: dict[str, int] = {}
        self.is_topic = name.startswith("topic:")
        self.is_shared = shares and not self.is_topic
        if self.is_shared:
            self.subscriptions[""] = _Subscription(0)

    def subscription(self, name: str) -> _Subscription:
        """Return the one subscription of a shared queue, or the subscription of this name; make it if it is new.

        A new subscription of a topic begins at the end of the list, that of a queue without sharing with the first
        message.
        """
        first = len(self.log) if self.is_topic else 0
        return self.subscriptions.setdefault("" if self.is_shared else name, _Subscription(first))


def _ignore(kind: str, endpoint: str, destination: str, messages: Sequence[Any]) -> None:
    """Ignore the event: the default of `MemoryBroker.on_event`."""


class MemoryBroker:
    """The broker. Engines connect to it, publish and crash; the broker survives them.

    `connection` is a `ConnectionFactory`. Every method may be called by any thread. The broker delivers the message
    objects that it was given: `Message.destination` stays `None` if the sender has left it so.

    Args:
        features: the features that connections claim. The broker obeys `order`, `flags_redelivery`,
            `deduplicates_sends` and `shares`; give all others as in `MEMORY_FEATURES`.
        orders: the order of deliveries to single receivers, by receiver id, in place of the order in `features`.
        faults: decides which faults occur.
        on_event: is called for every change of the broker; see `OnEvent`.
        names: whether the broker gives each message from a sink a `message_id`, as most brokers do.
        clock: the seconds by which the broker notices lost connections.
    """

    def __init__(
        self,
        *,
        features: Features = MEMORY_FEATURES,
        orders: Mapping[str, Order] = MappingProxyType({}),
        faults: Faults | None = None,
        on_event: OnEvent = _ignore,
        names: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.clock = clock
        self.features = features
        self.orders = orders
        self.faults = faults or Faults()
        self.on_event = on_event
        self.names = names
        self.changed = threading.Condition()
        self._destinations: dict[str, _Destination] = {}
        self._ends: list[MemorySource | MemorySink] = []
        self._down = False

    def connection(self, name: str = "memory", settings: ConnectionSettings | None = None) -> "MemoryConnection":
        """Make a connection to this broker. There are no options: raises `ConfigError` E1020 for any."""
        for option in settings.options if settings else ():
            raise ConfigError("E1020", f"connections.{name}.{option}", "unknown key", "There are no options")
        return MemoryConnection(self, name)

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        """Put messages into a destination, as another program would, even if the broker is down; meets no faults."""
        with self.changed:
            self.destination(destination).log.extend(messages)
            self.on_event("published", "", destination, messages)
            self.changed.notify_all()

    def received(self, destination: str) -> list[Message]:
        """Return all messages that ever arrived at the destination, from sinks and by `publish`, in order."""
        with self.changed:
            return list(self.destination(destination).log)

    def unacknowledged(self, destination: str) -> int:
        """Return how many messages the sources of the destination hold unacknowledged."""
        with self.changed:
            sources = [end for end in self._ends if isinstance(end, MemorySource)]
            return sum(source.held_count for source in sources if source.destination == destination)

    def waiting(self, destination: str, selectors: Sequence[Selector] = ()) -> int:
        """Return how many messages no source holds; for a topic, the sum over all its subscriptions.

        With selectors, only messages count that at least one of them matches.
        """
        with self.changed:
            there = self.destination(destination)
            waiting = [r for s in there.subscriptions.values() for r in s.waiting(len(there.log))]
            if not selectors:
                return sum(r.stop - r.start for r in waiting)
            messages = [message for r in waiting for message in there.log[r.start : r.stop]]
            return sum(any(selector.matches(message) for selector in selectors) for message in messages)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds; returns whether it did within `timeout_s` seconds.

        Evaluates the condition after each change of the broker, under its lock.
        """
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    @property
    def down(self) -> bool:
        """Whether the broker is out of reach. Setting it to `True` cuts every connection; messages stay."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        """Cut every source and sink if `down` is true; let sources and sinks connect again if it is false."""
        with self.changed:
            self._down = down
            if down:
                self.drop_connections()

    def drop_connections(self) -> None:
        """Cut every source and sink, as a failing network does. Messages that sources hold are returned at once."""
        with self.changed:
            for end in self._ends:
                end.cut()
            self.changed.notify_all()

    def join(self, end: "MemorySource | MemorySink") -> None:
        """Called by a source or sink that has connected, so that `drop_connections` cuts it."""
        if end not in self._ends:
            self._ends.append(end)

    def leave(self, end: "MemorySource | MemorySink") -> None:
        """Called by a source or sink that is closed: `drop_connections` no longer cuts it."""
        if end in self._ends:
            self._ends.remove(end)

    def destination(self, name: str) -> _Destination:
        """Return the destination of this name; make it if it is new. Called by sources and sinks, under the lock."""
        there = self._destinations.get(name)
        if there is None:
            there = self._destinations[name] = _Destination(name, shares=self.features.shares)
        return there

    def check_up(self, where: str) -> None:
        """Called by sources and sinks that connect. Raises `ConnectionLost` E7001 while the broker is down."""
        if self._down:
            raise _lost(where, "the broker is down")


def _lost(where: str, what: str) -> ConnectionLost:
    return ConnectionLost("E7001", where, what)


class MemoryConnection:
    """The connection of one engine. For the broker, `close` looks the same as a crash of the engine."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.features = broker.features
        self._broker = broker
        self._name = name
        self._ends: list[MemorySource | MemorySink] = []

    def source(self, receiver: ReceiverSettings) -> "MemorySource":
        """Make a source of the receiver's destination, without connecting. See `connector.Connection`."""
        source = MemorySource(self._broker, receiver)
        self._ends.append(source)
        return source

    def sink(self, sender: SenderSettings) -> "MemorySink":
        """Make a sink, without connecting. See `connector.Connection`."""
        sink = MemorySink(self._broker, sender)
        self._ends.append(sink)
        return sink

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return the oldest messages of a queue that no consumer holds; see `connector.Browsable`.

        Raises `UsageError` E2110 for a topic, `ConnectionLost` E7001 while the broker is down.
        """
        with self._broker.changed:
            self._broker.check_up(f"connections.{self._name}")
            queue = self._broker.destination(destination)
            if queue.is_topic:
                raise UsageError("E2110", destination, "only queues can be browsed")
            if not queue.is_shared:
                return queue.log[:limit]
            waiting = queue.subscription("").waiting(len(queue.log))
            return [message for one in waiting for message in queue.log[one.start : one.stop]][:limit]

    def close(self) -> None:
        """Close all sources and sinks of this connection. The broker redelivers their unacknowledged messages."""
        for end in self._ends:
            end.close()
        self._ends.clear()


class MemorySource:
    """A consumer; see `connector.Source`. `receive` with `timeout_s == 0` never blocks."""

    def __init__(self, broker: MemoryBroker, receiver: ReceiverSettings) -> None:
        self.destination = receiver.destination
        self._broker = broker
        self._id = receiver.id
        self._name = receiver.subscription
        self._order = broker.orders.get(receiver.id, broker.features.order)
        shared = receiver.destination.startswith("queue:")
        self._selector = Selector.optional(receiver.selector, receiver.id) if shared else None
        self._max_held = receiver.max_batch_size
        self._subscription: _Subscription | None = None
        self._held: dict[int, _Delivery] = {}
        self._next_token = 1

    @property
    def held_count(self) -> int:
        """Number of unacknowledged messages that this source holds."""
        return len(self._held)

    def connect(self) -> None:
        """Subscribe; messages that this source held are redelivered.

        Raises `ConnectionLost` E7001 while the broker is down, and for the order `POSITION` while another consumer is
        connected.
        """
        with self._broker.changed:
            self.cut()
            self._broker.check_up(self._id)
            self._broker.faults.before_connect(self._id)
            subscription = self._there().subscription(self._name)
            if self._order is Order.POSITION:
                if subscription.consumer is not None:
                    raise _lost(self._id, "another consumer takes from it, and only one may at a time")
                subscription.consumer = self
            self._subscription = subscription
            self._broker.join(self)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take contiguous messages. Raises `ConnectionLost` without a connection; see `connector.Source`."""
        broker = self._broker
        deadline = monotonic() + timeout_s if timeout_s else 0.0
        with broker.changed:
            broker.faults.before_receive(self._id)
            limit = min(max_messages, self._max_held - self.held_count)
            limit = broker.faults.at_most(self._id, limit) if limit > 0 else 0
            while True:
                subscription = self._connected()
                next_notice = subscription.notice(broker.clock())
                taken = subscription.take(limit, self._there().log, self._selector) if limit > 0 else None
                if taken is not None:
                    return self._deliver(taken, max_messages)
                remaining = deadline - monotonic() if timeout_s else 0.0
                if remaining <= 0:
                    return NOTHING
                broker.changed.wait(min(remaining, next_notice))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Acknowledge these messages. A token from before a reconnect acknowledges nothing."""
        broker = self._broker
        with broker.changed:
            self._connected()
            messages = self._messages(tokens)
            broker.faults.before_acknowledge(self._id, messages)
            if broker.faults.loses_acknowledgement(self._id, messages):
                return
            for token in tokens:
                self._held.pop(token, None)
            broker.on_event("acknowledged", self._id, self.destination, messages)
            broker.changed.notify_all()
            broker.faults.after_acknowledge(self._id, messages)

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give these messages back to the broker, which redelivers them. Raises `ConnectionLost` E7001 if not
        connected.
        """
        with self._broker.changed:
            self._connected()
            self._give_back(tokens)

    def close(self) -> None:
        """Give back all messages that this source holds, and disconnect."""
        with self._broker.changed:
            self.cut()
            self._broker.leave(self)

    def cut(self) -> None:
        """Lose the connection: the messages are given back, and the next call raises `ConnectionLost`."""
        self._give_back(list(self._held))
        if self._subscription is not None and self._subscription.consumer is self:
            self._subscription.consumer = None
        self._subscription = None

    def _there(self) -> _Destination:
        return self._broker.destination(self.destination)

    def _connected(self) -> _Subscription:
        if self._subscription is None:
            raise _lost(self._id, "the connection was cut")
        return self._subscription

    def _deliver(self, taken: _Range, most: int) -> Chunk:
        tokens = list(range(self._next_token, self._next_token + taken.stop - taken.start))
        self._next_token += len(tokens)
        self._held.update(dict.fromkeys(tokens, _Delivery(taken.start - tokens[0], taken)))
        messages = self._there().log[taken.start : taken.stop]
        if taken.deliveries > 1 and self._broker.features.flags_redelivery:
            messages = [_redelivered(message, taken.deliveries) for message in messages]
        if self._order is Order.ANY:
            repeated = self._broker.faults.repeated(self._id, messages)[: most - len(messages)]
            messages.extend([messages[position] for position in repeated])
            tokens.extend([tokens[position] for position in repeated])
        self._broker.on_event("delivered", self._id, self.destination, messages)
        self._broker.changed.notify_all()
        return Chunk(messages, tokens)

    def _messages(self, tokens: Sequence[Any]) -> list[Message]:
        """Return the held messages of these tokens, each once: a duplicate has the token of its original."""
        log, held = self._there().log, self._held
        return [log[token + held[token].offset] for token in dict.fromkeys(tokens) if token in held]

    def _give_back(self, tokens: Sequence[Any]) -> None:
        messages = self._messages(tokens)
        distinct = [token for token in dict.fromkeys(tokens) if token in self._held]
        held = [_HeldMessage(token + self._held[token].offset, self._held[token].taken) for token in distinct]
        ranges = _ranges(held)
        for token in tokens:
            self._held.pop(token, None)
        if ranges and self._subscription is not None:
            late = self._broker.faults.noticed_after(self._id, messages) if self._order is Order.ANY else 0.0
            now = self._broker.clock()
            self._subscription.give_back(ranges, now + late, now)
            self._broker.on_event("returned", self._id, self.destination, messages)
            self._broker.changed.notify_all()


class _HeldMessage(NamedTuple):
    """A message that a source holds, and the range with which it got the message."""

    position: int
    taken: _Range


class _Delivery(NamedTuple):
    """The messages of one chunk; their tokens are consecutive. One object for all of them: a token costs little.

    Attributes:
        offset: a token plus this is the position of its message in the list of the destination.
        taken: the range of the chunk.
    """

    offset: int
    taken: _Range


def _ranges(held: Iterable[_HeldMessage]) -> list[_Range]:
    """Return the messages as ranges; consecutive messages of a chunk form one range."""
    ranges: list[_Range] = []
    last: _HeldMessage | None = None
    for one in sorted(held):
        if last is not None and one.taken is last.taken and one.position == last.position + 1:
            ranges[-1] = ranges[-1]._replace(stop=one.position + 1)
        else:
            ranges.append(_Range(one.position, one.position + 1, one.taken.deliveries))
        last = one
    return ranges


def _redelivered(message: Message, deliveries: int) -> Message:
    headers = msgspec.structs.replace(message.headers or Headers(), redelivered=True, delivery_count=deliveries)
    return msgspec.structs.replace(message, headers=headers)


class MemorySink:
    """A producer; see `connector.Sink`. When `send` confirms messages, they are in the list of their destination."""

    def __init__(self, broker: MemoryBroker, sender: SenderSettings) -> None:
        self._broker = broker
        self._id = sender.id
        self._connected = False

    def connect(self) -> None:
        """Connect. Raises `ConnectionLost` E7001 while the broker is down."""
        with self._broker.changed:
            self._broker.check_up(self._id)
            self._connected = True
            self._broker.join(self)

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Store the messages that no fault refuses; return `None` or `SendRejected` E8102 for each message.

        Raises `ConnectionLost` without a connection; see `connector.Sink`.
        """
        broker = self._broker
        with broker.changed:
            if not self._connected:
                raise _lost(self._id, "the connection was cut")
            broker.faults.before_accept(self._id, batch)
            refused = {**_delayed(batch), **broker.faults.refused(self._id, batch)}
            lost_after = broker.faults.accepted_before_loss(self._id, batch)
            arrived = batch[:lost_after]
            self._store([out for at, out in enumerate(arrived) if at not in refused] if refused else arrived)
            if refused:
                broker.on_event("refused", self._id, "", [out for at, out in enumerate(arrived) if at in refused])
            if lost_after is not None:
                self._connected = False
                raise _lost(self._id, f"the connection was cut after {lost_after} messages")
            return self._results(batch, refused)

    def close(self) -> None:
        """Disconnect from the broker. Never raises; may be called again."""
        with self._broker.changed:
            self.cut()
            self._broker.leave(self)

    def cut(self) -> None:
        """Lose the connection: the next call raises `ConnectionLost`."""
        self._connected = False

    def _store(self, batch: Sequence[Outgoing]) -> None:
        destinations = dict.fromkeys([out.destination for out in batch])
        for destination in destinations:
            there = self._broker.destination(destination)
            part = batch if len(destinations) == 1 else [out for out in batch if out.destination == destination]
            if self._broker.features.deduplicates_sends:
                part = _first_time(part, there.sequences)
            if self._broker.names:
                part = [
                    _named(out, out.message_id or f"{destination}#{len(there.log) + at}")
                    for at, out in enumerate(part, 1)
                ]
            there.log.extend([out.message for out in part])
            self._broker.on_event("accepted", self._id, destination, part)
        self._broker.changed.notify_all()

    def _results(self, batch: Sequence[Outgoing], refused: Mapping[int, str]) -> list[SendRejected | None]:
        results: list[SendRejected | None] = [None] * len(batch)
        for position, reason in refused.items():
            results[position] = SendRejected("E8102", f"{self._id} message {batch[position].sequence}", quoted(reason))
        return results


def _delayed(batch: Sequence[Outgoing]) -> dict[int, str]:
    """Return the positions of messages that ask for a delay, with the reason why this broker refuses them."""
    headers = [out.message.headers for out in batch]
    return {at: "it cannot delay a message" for at, one in enumerate(headers) if one and one.delivery_delay_ms}


def _named(out: Outgoing, message_id: str) -> Outgoing:
    headers = msgspec.structs.replace(out.message.headers or Headers(), message_id=message_id)
    return msgspec.structs.replace(out, message=msgspec.structs.replace(out.message, headers=headers))


def _first_time(batch: Sequence[Outgoing], sequences: dict[str, int]) -> list[Outgoing]:
    """Return the messages of a batch that were not stored before, by source and sequence, and update `sequences`."""
    fresh = []
    for out in batch:
        if not out.source or out.sequence > sequences.get(out.source, 0):
            fresh.append(out)
            if out.source:
                sequences[out.source] = out.sequence
    return fresh
