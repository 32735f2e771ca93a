"""The port of connectors: the interface between the engine and a broker (docs/connectors.md).

A connector only speaks to its broker. The engine retries, backs off, batches, maps, deduplicates, stores and measures.

Errors. While an engine runs, a source or sink raises `ConnectionLost` for every problem that may pass: the engine waits
and calls `connect` again, for ever. A sink returns `SendRejected` for a message that the broker refuses. Before
anything is opened, `ConfigError` reports a wrong setting (`correlator.options` has the checks). Any other exception
counts as a bug of the connector: the engine stops.

Places. An error names the settings that it concerns as `connections.NAME`, `receivers.ID` or `senders.ID`, followed by
the option or `.destination`, as in `receivers.orders.destination`. From this place `lint` finds the line of the file.

Threads. One thread calls all methods of a source or sink from `connect` to `close`; another thread may have made the
object. Sources and sinks of a connection work at the same time, so they lock the objects that they share.

Forks. A forked child must not use a connection that its parent has opened. In the child every method that would use it
raises `UsageError` E2050 (`correlator.processes.Maker`), and `close` leaves the connection of the parent open.
"""

import itertools
import re
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from correlator.errors import CorrelatorError, SendRejected, storable
from correlator.events import LONGEST_LIFE_MS, UNREADABLE, Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

NO_SUCH_DESTINATION = "E7010"
"""Code of `ConnectionLost` if the broker answers and does not have the destination of a source. The receiver has the
status DESTINATION_NOT_FOUND until `connect` succeeds."""
IN_USE = "E7009"
"""Code of `ConnectionLost` if the broker answers and lets nobody else use the place of a source, or the name of a sink,
because another consumer or producer has it."""
DEAD_MESSAGES = "queue:mq.sys.dmq"
"""The queue of a message service for messages that could not be delivered."""
TAKES_NOTHING = "E7026"
"""Code of `ConnectionLost` if the broker answers and accepts no messages from a sink at present, because its disk is
full for example. The sender has the status BLOCKED until `connect` succeeds."""
SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
"""The types that the value of a property may have. Subclasses of these types are not allowed."""
_LONGEST_REASON = 300
_TEMPORARY = re.compile("(?:queue|topic):temporary-[0-9a-f]{32}")
_next_token = itertools.count(1)
T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[dict[str, Any], str | None, Headers | None]]).decode


class Order(Enum):
    """The order in which a broker delivers messages when it redelivers some of them.

    POSITION: there is one consumer at a time. It begins with the oldest unacknowledged message, and every later message
    follows in order, even after a crash.
    PLACE: unacknowledged messages of a lost consumer come before the later messages of the queue. Only messages that
        another consumer has taken meanwhile have overtaken them.
    ANY: later messages may overtake the unacknowledged messages of a lost consumer, since the broker may notice the
        loss late; `Features.notices_loss_within_s` bounds that time.
    """

    POSITION = "position"
    PLACE = "place"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a broker guarantees and can do. The engine relies on it, and the contract suite checks it.

    Attributes:
        durable: a confirmed message survives a restart of the broker.
        redelivers: after a lost connection the broker redelivers unacknowledged messages.
        answers: each message is a request whose sender waits for the acknowledgement, and sends the message again if it
            does not come. So nothing is lost although no broker redelivers. This concerns receivers only, and requires
            that the senders behave in this way.
        order: the order of deliveries when some messages are redelivered; if the connection is `Ordering`, the weakest
            order of its receivers.
        flags_redelivery: a redelivered message has the header `redelivered`, and `delivery_count` counts from 1.
        acknowledges_surely: when `acknowledge` returns, the broker has the acknowledgement on disk. If this is false,
            the engine remembers the ids of the last batches for longer, since their messages may be redelivered.
        acknowledgements_written_within_s: the number of seconds within which the broker writes an acknowledgement to
            disk, together with later ones; a broker that dies earlier forgets it. Has no meaning if
            `acknowledges_surely` is true.
        deduplicates_sends: the broker stores a pair of (source, sequence) only once. If it refuses a message, it has to
            refuse it at every attempt. The engine makes only one attempt: if a later attempt has a sequence below the
            last stored one, the broker counts it as a repeat, and confirms it without storing it.
        misses_numbers: the sink raises `ConnectionLost` if a number is missing between two messages, since somebody may
            have removed what held it. So its senders must send each message: they may have no `call`, which may lead to
            no message (E1532).
        carries_properties: a sink sends all properties of a message with it. If this is false, it leaves them out,
            except for those that its options name (`Carrying`).
        delays: a sink honours the header `delivery_delay_ms`. If this is false, it refuses a message with such a
            header.
        selects: a source of a queue takes only messages that match the receiver's `selector`, and leaves the others to
            other consumers. If this is false, a selector on a queue is an error (E1220). A selector on a topic is
            always allowed: the subscription belongs to the receiver, and the engine drops the messages that do not
            match.
        shares: receivers of one queue share its messages: each message goes to one of them. If this is false, each
            receiver gets every message.
        holds_for_s: the number of seconds after which the broker takes back messages that a consumer has not
            acknowledged; `None` for never.
        notices_loss_within_s: the longest time until the broker notices that a connection was lost without being
            closed, and redelivers the unacknowledged messages of its consumer. Before that, the broker may deliver
            newer messages.
    """

    durable: bool = True
    redelivers: bool = True
    answers: bool = False
    order: Order = Order.ANY
    flags_redelivery: bool = False
    acknowledges_surely: bool = False
    acknowledgements_written_within_s: float = 0.0
    deduplicates_sends: bool = False
    misses_numbers: bool = False
    carries_properties: bool = True
    delays: bool = False
    selects: bool = False
    shares: bool = True
    holds_for_s: float | None = None
    notices_loss_within_s: float = 0.0


class Chunk(NamedTuple):
    """The result of one call of `Source.receive`.

    Attributes:
        messages: the messages in the order of the broker; empty if none came in time.
        tokens: one for each message, in the same order. A token stands for its message in `acknowledge` and `reject`,
            until the source connects again. It may be any object: only the source uses its content. `Held` makes
            tokens.
        ended: no further message will come, as after the end of a file. The receiver then ends.
        unselected: number of messages that the source has skipped because the receiver's `selector` does not match.
        clock_ms: the time of the broker when it handed out the messages, in milliseconds since the epoch; set by the
            sources of a message service that knows it. A session uses this clock, or without it the clock of the host,
            to find out which of the messages have expired before the program asks for them.
    """

    messages: Sequence[Message]
    tokens: Sequence[Any]
    ended: bool = False
    unselected: int = 0
    clock_ms: int | None = None


NOTHING = Chunk((), ())
"""The chunk of a source that got no message in time."""


class Held(Generic[T]):
    """For sources: keeps, by token, an item for each message that a source has returned and that is not settled.

    A token is never used twice in a process, so a token from before a reconnect stands for no message. One thread at a
    time uses the object.
    """

    def __init__(self) -> None:
        self._of: dict[int, T] = {}

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._of)

    def __iter__(self) -> Iterator[T]:
        """The items, in the order in which they were added."""
        return iter(self._of.values())

    def hold(self, items: Sequence[T]) -> Sequence[int]:
        """Hold an item for each message of a chunk; returns their tokens in the same order."""
        tokens = list(itertools.islice(_next_token, len(items)))
        self._of.update(zip(tokens, items, strict=True))
        return tokens

    def of(self, tokens: Iterable[int]) -> list[T]:
        """The items of these tokens, in the order of the tokens; unknown tokens are ignored."""
        return [self._of[token] for token in tokens if token in self._of]

    def has_all(self, tokens: Iterable[int]) -> bool:
        """Whether the messages of all these tokens are held."""
        return all(token in self._of for token in tokens)

    def release(self, tokens: Iterable[int]) -> list[T]:
        """Remove the items of these tokens; returns them in the order of the tokens, and ignores unknown tokens."""
        return [self._of.pop(token) for token in tokens if token in self._of]

    def clear(self) -> None:
        """Remove all items, as at a reconnect."""
        self._of.clear()


class Source(Protocol):
    """A consumer of one destination, for one receiver or one consumer of a session.

    A receiver calls `connect`. Then it calls `receive` until a batch is full, `acknowledge`, and so on. After a
    `ConnectionLost` of any method it calls `connect` again. It calls `close` once, at the end. A session also calls
    `reject`, and acknowledges in any order. After each `ConnectionLost` it calls `close`, and later `connect` again or,
    at the end, `close` again. Without a connection all methods except `connect` and `close` raise `ConnectionLost`.

    A message has the headers that the broker has set. The engine drops a message whose header `expiration` has passed.
    `receiver` and `destination` of a message are `None`. So is its header `delivery_delay_ms`: the delay does not begin
    anew when the message is sent on. A message may have any content, since any program can send it: so every source
    decodes through `readable`. If a body is larger than `max_message_bytes`, its first
    `max_message_bytes + 1` bytes are enough, with the property `CUT_FROM`: the message becomes a dead letter.
    """

    def connect(self) -> None:
        """Connect; close the old connection first. The broker then redelivers unacknowledged messages, oldest first.

        Raises `ConnectionLost` if the broker cannot be reached, with code `NO_SUCH_DESTINATION` if the broker has no
        such destination. A stop of the engine waits for this call, so it must give up after some seconds.
        """
        ...

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take up to `max_messages` (1 or more) messages; return an empty chunk if none comes in time.

        Waits at most `timeout_s` seconds for the first message, and does not wait for further ones; 0 does not wait at
        all. A receiver waits at most 0.2 seconds, a session 0.05. The source never holds more unacknowledged
        messages than the receiver's `max_batch_size`. If all messages are at hand, it ends a chunk at
        `max_batch_bytes` of bodies. Raises `ConnectionLost`.
        """
        ...

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Acknowledge exactly these messages, of one or more chunks, in any order.

        Ignores the token of a message that is settled already, and a token from before the last `connect`. If the call
        raises `ConnectionLost`, the broker may redeliver the messages.
        """
        ...

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give exactly these messages back: the broker redelivers them to this or another consumer.

        Ignores tokens as `acknowledge` does. Raises `ConnectionLost`; the broker then redelivers the messages, too.
        """
        ...

    def close(self) -> None:
        """Close the connection. Never raises; may be called again. The next consumer gets unacknowledged messages."""
        ...


class Backlog(NamedTuple):
    """The messages that a destination still holds for a receiver, after those that the source has returned.

    Attributes:
        messages: number of messages; `None` if the source does not know it.
        size: number of bytes; `None` if the source does not know it.
    """

    messages: int | None = None
    size: int | None = None


@runtime_checkable
class TellsBacklog(Protocol):
    """A source that knows which messages its destination still holds. A receiver asks it about once a second, for the
    status.
    """

    def backlog(self) -> Backlog | None:
        """Return what the destination holds at present; `None` if the source does not know.

        Must take much less time than `receive`; it must not count messages one by one. Raises `ConnectionLost`.
        """
        ...


@runtime_checkable
class TakesFromProgram(Protocol):
    """A source whose messages the program of the engine gives to `Engine.publish`. Any thread calls these methods."""

    def offer(self, message: Message) -> Future[None] | None:
        """Take a message; return `None` if the largest allowed number of messages waits.

        The future ends when the receiver acknowledges the message, or with `NotDone` E8315 when the source is closed
        first. It cannot be cancelled. Raises `NotDone` E8315 after `close`.
        """
        ...

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until `offer` may take a message or the source is closed; returns whether
        this happened.
        """
        ...


@runtime_checkable
class TellsSenders(Protocol):
    """A source that can tell its senders that duplicate detection has dropped one of their messages."""

    def dropped(self, ids: Collection[str]) -> None:
        """Take note that the messages with these unique ids are not stored, since the ids belong to messages with other
        bodies. The receiver calls it before it acknowledges them.
        """
        ...


class Sink(Protocol):
    """A producer for one or more destinations.

    A sender calls `connect`, then `send` for one batch after the other. After a `ConnectionLost` it calls `connect`
    again. It calls `close` once, at the end. Without a connection `send` raises `ConnectionLost`.
    """

    def connect(self) -> None:
        """Connect; close the old connection first.

        Raises `ConnectionLost` if the broker cannot be reached, with code `TAKES_NOTHING` if it accepts no messages at
        present. A stop of the engine waits for this call, so it must give up after some seconds.
        """
        ...

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send the messages in order and wait until the broker has confirmed or refused all of them.

        Returns one result for each message, in order. `None` confirms a message: if the broker is durable, the message
        is on disk. `SendRejected` says that the broker refuses this one message because of its destination, size or
        content; the sink sends the other messages nevertheless. The engine tries a refused message again, after
        messages that were sent meanwhile, `max_tries` times in all; then the message becomes a dead letter.

        Raises `ConnectionLost` for a problem that does not concern a single message: the engine connects again and
        sends the unconfirmed messages again, with the same sequences and bytes, perhaps in other batches.

        The broker sets the headers `message_id`, `timestamp`, `expiration`, `redelivered`, `delivery_count` and
        `delivery_time`. The sink ignores the values that a message has, since an earlier broker set them. If
        `Outgoing.message_id` is not empty, the consumer gets it as `message_id`, as far as the broker can carry it.
        `time_to_live_ms` and `delivery_delay_ms` begin at this call.
        """
        ...

    def close(self) -> None:
        """Close the connection. Never raises; may be called again. Unconfirmed messages may still be stored."""
        ...


def lane_of(out: Outgoing, lanes: int) -> int:
    """The lane of a message, from 0, in a sink that sends messages with different keys at the same time.

    Messages with the same key have the same lane. Messages without a key have no order among one another.
    """
    key = out.message.key
    return (out.sequence if key is None else zlib.crc32(key.encode(errors="surrogatepass"))) % lanes


class Connection(Protocol):
    """An entry below `connections`: checks settings, and makes sources and sinks.

    The engine makes one object for each connection of its configuration; each session makes one for itself. Commands
    such as `lint` make connections, sources and sinks only to check settings, and never open them. One thread at a time
    calls the methods, but not always the same thread.

    Attributes:
        features: the guarantees and abilities of the broker with these settings.
    """

    features: Features

    def source(self, receiver: ReceiverSettings) -> Source:
        """Make a source for a receiver, without connecting. `receiver.destination` is never a logical destination.

        Raises `ConfigError` if the destination or an option of the receiver is wrong.
        """
        ...

    def sink(self, sender: SenderSettings) -> Sink:
        """Make a sink for a sender, without connecting. The sink sends each message to its `Outgoing.destination`.

        Raises `ConfigError` if the destination, which may be `None`, or an option of the sender is wrong.
        """
        ...

    def close(self) -> None:
        """Free the resources that sources and sinks share. Called once, after all of them are closed. Never raises."""
        ...


@runtime_checkable
class Listening(Protocol):
    """A connection that listens for other programs, instead of connecting to a broker."""

    def listen(self) -> None:
        """Begin to listen. Until a source is connected, answer that the service is not available yet.

        A start calls it before the engine changes anything. Raises `ConfigError` if the connection cannot listen at the
        address.
        """
        ...


@runtime_checkable
class Ordering(Protocol):
    """A connection whose receivers may have different orders of deliveries. Crash tests and sessions call it."""

    def order(self, receiver: ReceiverSettings, subscriber: "Subscriber | None" = None) -> Order:
        """The order of deliveries to a receiver. Raises `ConfigError` as `Connection.source`.

        Args:
            receiver: the receiver.
            subscriber: how it reads its topic, if the connection is `Subscribing` and it is a consumer of a session.
        """
        ...


def order_of(connection: Connection, receiver: ReceiverSettings, subscriber: "Subscriber | None" = None) -> Order:
    """The order of deliveries to a receiver when some are redelivered; see `Ordering.order`."""
    return connection.order(receiver, subscriber) if isinstance(connection, Ordering) else connection.features.order


@runtime_checkable
class Grouping(Protocol):
    """A connection with options that say which subscription of its destination a receiver reads."""

    def group(self, receiver: ReceiverSettings) -> str:
        """The name of the subscription. Receivers of a destination with one name share its messages; receivers with
        different names get every message each.

        Depends on settings alone; the destination is a physical one. Raises `ConfigError` as `Connection.source`.
        """
        ...


def group_of(connection: Connection, receiver: ReceiverSettings) -> str:
    """The name of the subscription that a receiver reads, "" for a queue that has only one; see `Grouping.group`."""
    if isinstance(connection, Grouping):
        return connection.group(receiver)
    return receiver.subscription if receiver.destination.startswith("topic:") else ""


@runtime_checkable
class Routing(Protocol):
    """A connector with options of senders that say, besides the destination, where messages go.

    The entry point itself, a class for example, has this attribute, since the engine uses it before it makes a
    connection.

    Attributes:
        routing_options: names of these options. A start refuses to change them, because messages may wait that were
            sent to the earlier place.
    """

    routing_options: Collection[str]


def routing_options(connector: object) -> Collection[str]:
    """The options of senders that say where messages go; see `Routing`."""
    return connector.routing_options if isinstance(connector, Routing) else ()


@runtime_checkable
class Placing(Protocol):
    """A connection with options of which different values can name the same place, a default that is written out for
    example.
    """

    def is_same_place(
        self, before: ReceiverSettings | SenderSettings, after: ReceiverSettings | SenderSettings
    ) -> bool:
        """Whether a receiver or sender takes from, or sends to, the same place with these settings, which differ in
        options only.

        A start that finds other options than in the store calls it. It may ask the broker, and returns false if the
        broker cannot tell. Raises `ConfigError` as `Connection.source` and `Connection.sink`.
        """
        ...


@runtime_checkable
class Carrying(Protocol):
    """A connection whose senders leave out properties, except for those that their options name."""

    def carries(self, sender: SenderSettings, name: str) -> bool:
        """Whether a sender carries the property `name`. Depends on settings alone.

        Raises `ConfigError` as `Connection.sink`.
        """
        ...


def carries(connection: Connection, sender: SenderSettings, name: str) -> bool:
    """Whether a sender carries the property `name` of messages; see `Carrying.carries`."""
    if isinstance(connection, Carrying):
        return connection.carries(sender, name)
    return connection.features.carries_properties


@runtime_checkable
class Browsable(Protocol):
    """A connection that can show the messages of a queue without consuming them.

    `correlator browse` and browsers of sessions call it.
    """

    def browse(self, destination: str, limit: int, options: Mapping[str, Any] = {}, /) -> Sequence[Message]:
        """Return copies of the oldest messages; messages that consumers hold at present may be missing.

        Args:
            destination: `queue:NAME`.
            limit: largest number of messages to return, 1 or more.
            options: options of a receiver or sender of the queue, as configured; they may determine where its messages
                are.

        Raises `UsageError` E2110 if the destination is not a queue, E2027 if the broker knows that there is no such
        queue; `ConnectionLost` if the broker cannot be reached.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A connection that can examine its broker for `correlator doctor`, before an engine runs."""

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return findings about receivers and senders: a code with E if they could not work, with W if messages may be
        lost.
        """
        ...


@runtime_checkable
class ListsQueues(Protocol):
    """A connection that knows all queues of its broker.

    `correlator browse` calls it if a queue shows no message, so that a mistyped name is not taken for an empty queue.
    """

    def queues(self) -> Sequence[str]:
        """Return all queues, each as `queue:NAME`. Raises `ConnectionLost` if the broker cannot be reached."""
        ...


@runtime_checkable
class Unsubscribable(Protocol):
    """A connection that can delete durable subscriptions of topics. Sessions call it."""

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete the subscription of a topic, `topic:NAME`, with the messages that the broker keeps for it.

        Raises `UsageError` E7512 if there is no such subscription, E7513 while it has a consumer; `ConnectionLost` if
        the broker cannot be reached or does not allow it.
        """
        ...


@runtime_checkable
class Deletable(Protocol):
    """A connection that can delete destinations. Sessions call it for the temporary destinations that they made."""

    def delete(self, destination: str) -> None:
        """Delete the destination with its messages and subscriptions; do nothing if there is no such destination.

        Raises `UsageError` E7513 while it has a consumer, and perhaps while it has a producer; `ConnectionLost` if the
        broker cannot be reached or does not allow it.
        """
        ...


@runtime_checkable
class MakesTemporaries(Protocol):
    """A `Deletable` connection whose broker does not make a destination at its first use. Sessions call it."""

    def make_temporary(self, destination: str) -> None:
        """Make a temporary destination; `is_temporary` recognises its name. Raises `ConnectionLost`."""
        ...


def temporary(kind: str) -> str:
    """A new name of a temporary destination, for brokers that are no message service; `kind`: `queue` or `topic`."""
    return f"{kind}:temporary-{uuid.uuid4().hex}"


def is_temporary(destination: str) -> bool:
    """Whether `temporary` has made this name, in whatever process."""
    return _TEMPORARY.fullmatch(destination) is not None


class Subscriber(NamedTuple):
    """How a consumer of a session reads a topic: one of the four kinds of subscriptions of JMS 2.0.

    Attributes:
        name: name of the subscription; "" for a subscription that is neither durable nor shared.
        durable: the broker keeps messages while the subscription has no consumer. If this is false, the subscription
            ends with its last consumer.
        shared: several consumers share the messages of the subscription. If this is false, the broker refuses a second
            consumer (`UsageError` E7516).
    """

    name: str
    durable: bool
    shared: bool


@runtime_checkable
class Subscribing(Protocol):
    """A connection whose topics have the four kinds of subscriptions of JMS 2.0. Sessions call it."""

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> Source:
        """Make a source for a topic, without connecting.

        A new subscription gets the messages that are sent after `Source.connect`; a durable one may also get earlier
        messages that the broker still has. When the source of a subscription that is not durable is closed, and no
        other one reads it, the broker deletes the subscription. Raises `ConfigError` as `Connection.source`.

        `Source.connect` raises `ConnectionLost` with code `IN_USE` if the consumers that are there do not allow this
        one. A message service, which knows all consumers, raises errors that say more; see `ServiceSession`.
        """
        ...


class Work(NamedTuple):
    """The work of one transaction of a session.

    Attributes:
        acknowledged: sources with the tokens of messages to acknowledge.
        sends: messages to send, in order.
    """

    acknowledged: Sequence[tuple[Source, Sequence[Any]]]
    sends: Sequence[Outgoing]


class FlowTerms(NamedTuple):
    """How far a destination of a message service lets a consumer fetch ahead.

    Attributes:
        limit: largest number of messages that the consumer has fetched and the program has not received; `None` for as
            many as the consumer itself allows.
        threshold_percent: the consumer fetches the next messages when it has fewer than this percentage of the largest
            number at hand, and whenever it has none. 0 to 100.
    """

    limit: int | None = None
    threshold_percent: int = 50


@runtime_checkable
class Prefetching(Protocol):
    """A source that knows which messages its consumer has only fetched ahead, and which the program has seen."""

    @property
    def flow(self) -> FlowTerms:
        """How far the destination lets its consumers fetch ahead; valid after `connect`, until the next one."""
        ...

    def release(self, tokens: Sequence[Any]) -> None:
        """Give back messages that the program has not seen. In contrast to `reject`, their delivery count does not
        rise.

        Raises `ConnectionLost`; the broker then redelivers the messages, too.
        """
        ...

    def cancel(self) -> None:
        """Take no more messages. The source keeps the messages that it holds until they are settled or `close` is
        called.

        It is no consumer of its destination or subscription any more, so that another consumer may take its place.

        Afterwards `receive` returns an empty chunk. Raises `ConnectionLost`.
        """
        ...


class ServiceSession(Connection, Subscribing, Protocol):
    """The part of a session in a message service: a connection for one thread, whose sources and sinks share a link.

    If the link is lost, all of its sources and sinks have lost their connection, and each connects again as usual. If
    the connection is `Browsable` or `Unsubscribable`, so is this. `browse` leaves out messages that have expired.

    Threads. One thread at a time calls the methods of this object and of its sources and sinks, but not always the same
    thread. `look`, `wait`, `wake`, `refuse_to_wait` and `allow_to_wait` are exceptions: another thread may call
    something else meanwhile.
    """

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> Source:
        """Make a source for a topic, without connecting.

        Raises `ConfigError` as `Connection.source`. `Source.connect` raises `UsageError` E7516 if the kind of the
        subscription does not allow this consumer, and E7517 if the subscription has another selector and is durable or
        has consumers.
        """
        ...

    def settle(self, work: Work) -> None:
        """Acknowledge and send in one transaction of the broker. When the call returns, the transaction is on disk.

        Raises `SendRejected` if the broker refuses one of the messages, and `ConnectionLost`; in both cases nothing of
        the work has happened. The held messages stay held after `SendRejected`; after `ConnectionLost` the broker
        redelivers them.

        If the answer to the commit is lost, the call looks up the outcome of the commit. Only if this fails, too, it
        raises `ConnectionLost` E7518: the work may have happened.
        """
        ...

    def prepare(self, name: str, work: Work) -> None:
        """Store the work durably under a name without carrying it out: the first phase of a commit in two phases.

        The sends stay invisible; their time to live and delivery delay have begun. The acknowledged messages belong to
        the prepared transaction, whatever happens to their consumers, until `resolve`, or an administrator, ends it.
        Raises as `settle`, and `UsageError` E7519 if a transaction of this name is prepared or was resolved within the
        last day.
        """
        ...

    def resolve(self, name: str, *, commit: bool) -> None:
        """Carry out a prepared transaction, or undo it. After an undo the broker redelivers its messages, marked as
        redelivered.

        A second call with the same outcome does nothing. Raises `UsageError` E7520 if there is no such transaction, or
        if it has the other outcome; `SendRejected` if the broker refuses one of its messages, for example because a
        destination is full (the transaction then stays prepared); `ConnectionLost`.
        """
        ...

    def look(self) -> int:
        """Return a number for `wait`. Call it before the `Source.receive` that returns at once without a message."""
        ...

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until one of the sources may have messages that came after `look` returned `seen`, or until `wake`.

        May return earlier.
        """
        ...

    def wake(self) -> None:
        """End the present and the next `wait`. Any thread may call it."""
        ...

    def refuse_to_wait(self) -> None:
        """Let no `settle`, `resolve` or `Sink.send` wait for room in a full destination until `allow_to_wait`.

        They refuse a message instead, and so do calls that are waiting now. Any thread may call it.
        """
        ...

    def allow_to_wait(self) -> None:
        """Let calls wait for room again. Any thread may call it."""
        ...


class ServiceClient(Protocol):
    """The registration of one connection of a program with a message service. Any thread may call its methods."""

    def session(self) -> ServiceSession:
        """Make the part of a session, without connecting."""
        ...

    def create_temporary(self, kind: str) -> str:
        """Make a temporary destination, and return its name. Only sources of this client may consume from it.

        It ends with the client: `close` deletes it, and the service deletes it when the process has died. Raises
        `ConnectionLost`.

        Args:
            kind: `queue` or `topic`.
        """
        ...

    def delete_temporary(self, destination: str) -> None:
        """Delete a temporary destination of this client with its messages.

        Raises `UsageError` E7513 while it has a consumer, `ConnectionLost`.
        """
        ...

    def close(self) -> None:
        """End the registration, after all sessions are closed. Never raises; may be called again."""
        ...


@runtime_checkable
class MessageService(Protocol):
    """A connection to a broker that has all features of sessions: transactions, client ids, kinds of subscriptions.

    Sessions use it instead of `source` and `sink` of the connection.
    """

    def attach(self, client_id: str | None) -> ServiceClient:
        """Register a connection of a program. Without a client id the call opens nothing until something is needed.

        Raises `UsageError` E7515 if another living client has this client id, `ConnectionLost` if the broker cannot be
        reached.
        """
        ...


class DestinationState(NamedTuple):
    """A destination of a message service: what it holds, who uses it, and how it is set up.

    A message of a topic counts once in `messages` and `bytes`, and once for each subscription in the four numbers
    before these two.

    Attributes:
        destination: `queue:NAME` or `topic:NAME`.
        ready: messages that nobody holds, and that may be delivered now.
        held: messages that consumers hold.
        delayed: messages whose delivery time has not come.
        in_tx: messages that prepared transactions have acknowledged.
        messages, bytes: number and size of all messages that it holds.
        oldest_ms: how long ago the oldest message was sent; `None` without messages.
        consumers: living consumers.
        producers: producers of sessions; producers of a killed process count until somebody has noticed its end.
        dropped: messages that were not persistent and were dropped because the destination was full, counted since the
            destination was made.
        paused: `PRODUCERS`, `CONSUMERS`, `ALL`, or `None`.
        created: whether an administrator has created it; if not, its first use has made it.
        properties: each property with its effective value.
    """

    destination: str
    ready: int
    held: int
    delayed: int
    in_tx: int
    messages: int
    bytes: int
    oldest_ms: int | None
    consumers: int
    producers: int
    dropped: int
    paused: str | None
    created: bool
    properties: Mapping[str, Any]


class ConsumerState(NamedTuple):
    """A consumer of a message service.

    Attributes:
        destination, subscription, client_id: the place from which it consumes; the last two are "" for a queue.
        consumer: a number that no other consumer has; the order of registration.
        role: `active`, `backup`, `closing` if it takes no more messages and settles what it holds, or `dead` if its
            process has ended and nobody has noticed it yet.
        pid, host: its process; 0 and "" if the process is not known.
        held: messages that it holds.
        oldest_ms: how long ago the oldest of them was sent; `None` if it holds none.
    """

    destination: str
    subscription: str
    client_id: str
    consumer: int
    role: str
    pid: int
    host: str
    held: int
    oldest_ms: int | None


class SubscriptionState(NamedTuple):
    """A subscription of a topic; the numbers have the same meaning as in `DestinationState`.

    Attributes:
        topic, subscription, client_id: its names. `client_id` is "" if it belongs to no client id.
        durable, shared: its kind; see `Subscriber`.
        selector: the condition on its messages; `None` for all messages.
    """

    topic: str
    subscription: str
    client_id: str
    durable: bool
    shared: bool
    selector: str | None
    ready: int
    held: int
    delayed: int
    in_tx: int
    oldest_ms: int | None
    consumers: int


class TransactionState(NamedTuple):
    """A transaction that was prepared.

    Attributes:
        name: the name with which it was prepared.
        state: `PREPARED`; or `COMMITTED` or `ROLLEDBACK`, within a day after its end.
        age_ms: how long ago it came into this state.
        acknowledged: messages that it has acknowledged.
        sends: messages that it will send.
    """

    name: str
    state: str
    age_ms: int
    acknowledged: int
    sends: int


class Place(NamedTuple):
    """What an administrator names: a queue, a topic, or one subscription of a topic.

    Attributes:
        destination: `queue:NAME` or `topic:NAME`.
        subscription: name of the subscription; "" for all of them.
        client_id: the client id to which the subscription belongs, or "".
    """

    destination: str
    subscription: str = ""
    client_id: str = ""


class Taken(NamedTuple):
    """How many messages were removed or moved, and how many stayed because consumers or prepared transactions hold
    them.

    `skipped` is the number of other messages that stayed: the selector did not match, the message had expired, or (for
    `retry`) the message does not say where it came from.
    """

    done: int
    left: int
    skipped: int = 0


class Administration(Protocol):
    """What an administrator can do with a message service. One thread at a time calls the methods.

    All of them raise `ConnectionLost` if the service cannot be reached or was never used, and `UsageError` for a
    request that cannot be carried out. Methods that only show something change nothing.
    """

    def destinations(self) -> Sequence[DestinationState]:
        """All destinations, sorted by name."""
        ...

    def consumers(self, destination: str | None) -> Sequence[ConsumerState]:
        """The consumers of a destination, or of all, in the order of destination and registration."""
        ...

    def subscriptions(self, topic: str | None) -> Sequence[SubscriptionState]:
        """The subscriptions of a topic, or of all, sorted."""
        ...

    def create(self, destination: str, properties: Mapping[str, str]) -> None:
        """Create a destination. The values of properties are texts, as on a command line."""
        ...

    def update(self, destination: str, properties: Mapping[str, str]) -> None:
        """Change properties of a destination; the value `default` restores a default.

        Afterwards the destination counts as created by an administrator.
        """
        ...

    def subscribe(self, place: Place, *, shared: bool, selector: str | None) -> None:
        """Create a durable subscription of a topic. Raises `ConfigError` if the selector is wrong."""
        ...

    def delete(self, place: Place, *, force: bool) -> int:
        """Delete a destination, or a subscription. Returns how many messages were deleted with it.

        Raises `UsageError` E7513 while it takes part in a prepared transaction, has consumers, or is a destination
        that has producers of sessions; E7565 if it holds messages and `force` does not allow it.
        """
        ...

    def purge(self, place: Place) -> Taken:
        """Remove all messages that are in the place now, except those that a consumer or a prepared transaction
        holds.
        """
        ...

    def pause(self, destination: str, paused: str | None) -> None:
        """Let `PRODUCERS` wait, or give `CONSUMERS` no more messages, or both (`ALL`); `None` lets both go on.

        The pause lasts until it is changed, even over restarts.
        """
        ...

    def move(self, source: str, target: str, selector: str | None, limit: int | None) -> Taken:
        """Move messages of a queue to another destination, in order, as new messages with their ids.

        At each moment each message is in exactly one of the two places, even if the process dies.

        Args:
            source: a queue.
            target: a queue or topic.
            selector: chooses messages; `None` for all that are there now.
            limit: most messages to move; `None` for no limit.
        """
        ...

    def retry(self, selector: str | None, limit: int | None) -> Taken:
        """Move dead messages back to where they came from, without the properties that describe their death."""
        ...

    def transactions(self) -> Sequence[TransactionState]:
        """The prepared transactions, oldest first, then those that ended within a day."""
        ...

    def resolve(self, name: str, *, commit: bool) -> None:
        """End a prepared transaction; see `ServiceSession.resolve`."""
        ...


@runtime_checkable
class Administered(Protocol):
    """A connection to a message service that `correlator broker` can administer."""

    def administration(self) -> Administration:
        """What an administrator can do, without connecting."""
        ...


class Advice(NamedTuple):
    """A warning about settings that are allowed, but probably a mistake. `lint` and the start of an engine print it.

    Attributes:
        code: code of the warning: `W` and four digits.
        option: the option of the receiver or sender that the warning concerns; "" if it concerns its settings.
        what: the problem, without a full stop.
        allowed: the rule that applies, or "".
        todo: the advice, or "".
    """

    code: str
    option: str
    what: str
    allowed: str = ""
    todo: str = ""


@runtime_checkable
class Advising(Protocol):
    """A connector that warns of settings that are allowed, but probably a mistake.

    The entry point itself, a class for example, has these attributes, since the engine uses them before it makes a
    connection.

    Attributes:
        redelivery_options: names of options of the connection or of a receiver which hold a time after which the broker
            redelivers unacknowledged messages. The engine warns if it would remember ids for a shorter time.
    """

    redelivery_options: Collection[str]

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterable[Advice]:
        """Return warnings about the options of a receiver or sender. Never raises, even if an option is wrong."""
        ...


@runtime_checkable
class TellsPublicSecrets(Protocol):
    """A connector with options that are named like secrets, and whose values everybody may know.

    The entry point itself, a class for example, has this method, since it is called before a connection is made.
    """

    @staticmethod
    def public_secrets(options: Mapping[str, str]) -> Collection[str]:
        """Return the names of the options whose values may stand in a configuration file that every user can read.

        Args:
            options: those of a connection that are no lists or maps, as the file has them: with variables by name.
        """
        ...


@runtime_checkable
class OwnsDatabase(Protocol):
    """A connector whose broker keeps its messages in a database that no store can use.

    The entry point itself, a class for example, has this method, since it is called before a connection is made.
    """

    @staticmethod
    def own_database(options: Mapping[str, Any]) -> str:
        """Return the URL of the database, in the form of the setting `store`. Raises `ConfigError` for wrong options.

        Args:
            options: those of a connection.
        """
        ...


@runtime_checkable
class Noting(Protocol):
    """A connection that knows exceptions from the guarantees of its receivers."""

    def notes(self, receiver: ReceiverSettings) -> Iterable[str]:
        """Return a sentence for each exception, without a full stop, for `correlator explain`. Never raises."""
        ...


def notes_of(connection: Connection, receiver: ReceiverSettings) -> Sequence[str]:
    """The exceptions from the guarantees of a receiver."""
    return tuple(connection.notes(receiver)) if isinstance(connection, Noting) else ()


class ConnectionFactory(Protocol):
    """The entry point of a connector, in group `correlator.connectors` of a package: a class, or a function."""

    def __call__(self, name: str, settings: ConnectionSettings) -> Connection:
        """Make the connection that the configuration calls `name`, without opening anything.

        Raises `ConfigError` if an option in `settings.options` is wrong or unknown.
        """
        ...


def readable(read: Callable[[], Message], as_sent: Callable[[], Message], what: str) -> Message:
    """Decode a received message with any content; for sources.

    Returns the message that `read` makes. If `read` raises, or if the store could not hold its message, returns the
    message that `as_sent` makes, marked with the reason (`mark`). So no message can end the thread that reads it, and
    no store gets a message that a later start cannot read.

    Args:
        read: decodes the message. May raise any exception.
        as_sent: makes a message of the received bytes, without properties and headers that come from the sender. Must
            not raise.
        what: names the part of the message that cannot be read, for the reason.
    """
    try:
        message = read()
        _check([message])
    except Exception as error:  # noqa: BLE001  # if a decoder fails on a message, the later ones must still come
        message = as_sent()
        mark(message, f"{what}: {type(error).__name__}: {error}")
    return message


def readable_all(
    records: Sequence[T], read: Callable[[T], Message], as_sent: Callable[[T], Message], what: str
) -> list[Message]:
    """Decode several received records in the way of `readable`; faster for each record if all of them can be read."""
    try:
        messages = [read(one) for one in records]
        _check(messages)
    except Exception:  # noqa: BLE001  # as in `readable`
        return [readable(partial(read, one), partial(as_sent, one), what) for one in records]
    return messages


def mark(message: Message, reason: str) -> None:
    """Add a reason to the property `UNREADABLE` of a message that could not be read as a whole.

    Changes `message.properties` in place. Cuts the reason after 300 characters.
    """
    said = message.properties.get(UNREADABLE)
    reason = storable(reason)[:_LONGEST_REASON]
    message.properties[UNREADABLE] = f"{said}; {reason}" if isinstance(said, str) else reason


def _check(messages: Sequence[Message]) -> None:
    _decode(_encode([(one.properties, one.key, one.headers) for one in messages]))
    for message in messages:
        if type(message.body) is not bytes:
            raise TypeError(f"the body is a {type(message.body).__name__}")
        if not SIMPLE.issuperset(map(type, message.properties.values())):
            raise TypeError("a property is neither a text nor a number nor bytes")
        lives = None if message.headers is None else message.headers.time_to_live_ms
        if lives is not None and not 0 <= lives <= LONGEST_LIFE_MS:
            raise ValueError(f"a time to live of {lives} ms is not between 0 and {LONGEST_LIFE_MS}")
