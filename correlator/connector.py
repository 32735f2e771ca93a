"""The port of connectors: the classes through which the engine speaks to a broker (docs/connectors.md).

A connector only speaks to its broker. The engine retries, backs off, batches, maps, deduplicates, stores and measures.

Errors. Two errors cross the port while an engine runs. A source or sink raises `ConnectionLost` for everything that may
pass: the engine waits, calls `connect` again, and does so for ever. A sink returns `SendRejected` for one message that
the broker refuses. `ConfigError` tells what is wrong in the settings, before anything is opened. Any other exception
counts as a bug of the connector: the engine stops.

Places. An error names the settings that it is about as `connections.NAME`, `receivers.ID` or `senders.ID`, with the
option or `.destination` behind it, as in `receivers.orders.destination`: `lint` finds the line by that.

Threads. A source or sink belongs to one thread, which calls all of its methods from `connect` to `close`; another
thread may have made it. Sources and sinks of a connection work at the same time: what they share, they lock.

Forks. A child that the process forks must not use what its parent opened. There every method that would raises
`UsageError` E2050 (`correlator.processes.Maker`), and `close` leaves the connection of the parent as it is.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from correlator.errors import SendRejected, storable
from correlator.events import LONGEST_LIFE_MS, UNREADABLE, Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

NO_SUCH_DESTINATION = "E7010"
"""Code of a source's `ConnectionLost`: the broker answers, and does not have the destination. DESTINATION_NOT_FOUND is
the status of the receiver until it connects."""
TAKES_NOTHING = "E7026"
"""Code of a sink's `ConnectionLost`: the broker answers, and takes no messages at present, for want of disk space for
example. BLOCKED is the status of the sender until it connects."""
SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
"""Types that the value of a property may have as it is; their subclasses are something else."""
_LONGEST_REASON = 300
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[dict[str, Any], str | None, Headers | None]).decode


class Order(Enum):
    """In which order messages come when some of them come again: what a broker promises its consumers.

    POSITION: one consumer at a time, which begins with the oldest message that is not acknowledged. So messages come in
        their order, whatever dies; what comes again is followed by all that is behind it.
    PLACE: what a lost consumer held waits in its place, before what is behind it. Only what another consumer has taken
        meanwhile is ahead of it.
    ANY: what a lost consumer held may come later than what is behind it, since the broker may notice the loss late; how
        late, `Features.notices_loss_within_s` says.
    """

    POSITION = "position"
    PLACE = "place"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a broker can do. The engine relies on it, `lint` and `explain` tell it, and the contract suite checks it.

    Attributes:
        durable: a confirmed message survives a restart of the broker.
        redelivers: what was received and not acknowledged comes again after a lost connection.
        order: in which order messages come when some of them come again; that of the weakest receiver, where a
            connection is `Ordering`.
        flags_redelivery: a message that comes again has the header `redelivered`, and `delivery_count` counts from 1.
        acknowledges_surely: when `acknowledge` returns, the broker has it on disk. Otherwise the engine remembers the
            ids of the last batches for longer, since these may come again.
        acknowledgements_written_within_s: after so many seconds the broker has an acknowledgement, and one that comes
            so much later is written together with it; until then a broker that dies forgets it. Of no meaning where it
            acknowledges surely.
        deduplicates_sends: a repeat of (source, sequence) is stored once. What such a broker refuses it must refuse at
            every try, and the engine makes one only: a later try of a number below the last stored one would count as
            a repeat (trap T35).
        ends: a source may come to its end (a file).
        selects: a source of a queue takes only what the receiver's `selector` matches, and leaves the rest for other
            consumers. Where it is not so, a selector on a queue is refused (E1220); what a topic
            gives a receiver is its own, and the engine drops what does not match.
        selects_in_place: it does so without touching the rest. Otherwise the source takes the rest and gives it back:
            others get it later, and not in order.
        shares: receivers of one queue get each message once between them; otherwise each of them gets every message.
        queues: knows `queue:` destinations.
        topics: knows `topic:` destinations.
        holds_for_s: after so many seconds the broker takes back what a consumer has not acknowledged; `None` for never.
        notices_loss_within_s: so many seconds after a line was lost without a word, the broker has noticed it at the
            latest, and what its consumer held waits in its place again. Until then newer messages may come first.
    """

    durable: bool = True
    redelivers: bool = True
    order: Order = Order.ANY
    flags_redelivery: bool = False
    acknowledges_surely: bool = False
    acknowledgements_written_within_s: float = 0.0
    deduplicates_sends: bool = False
    ends: bool = False
    selects: bool = False
    selects_in_place: bool = False
    shares: bool = True
    queues: bool = True
    topics: bool = True
    holds_for_s: float | None = None
    notices_loss_within_s: float = 0.0


class Chunk(NamedTuple):
    """What one call of `Source.receive` took.

    Attributes:
        messages: in the order of the broker; none when nothing came in time.
        token: acknowledges exactly these messages, until the source connects again; opaque to the engine, which never
            gives back that of an empty chunk.
        ended: the source has come to its end and will give nothing more (only where `Features.ends`).
        unselected: how many more messages the source has left out, for the receiver's `selector`.
    """

    messages: Sequence[Message]
    token: Any
    ended: bool = False
    unselected: int = 0


class Source(Protocol):
    """Takes messages from one destination.

    A receiver calls `connect`; then again and again `receive` until it has a batch, and `acknowledge`. It calls
    `connect` after a `ConnectionLost` of any method, and `close` once, at the end. A session calls `reject`, too, and
    acknowledges in any order. Without a connection all methods but `connect` and `close` raise `ConnectionLost`.

    A message has the headers that the broker set, `expiration` among them: the engine drops what is too late. It has
    neither `receiver` nor `destination`. Whoever sent it may have written anything, so every source decodes through
    `readable`. Of a body larger than `max_message_bytes` the first `max_message_bytes + 1` bytes are enough, with the
    property `CUT_FROM`: it becomes a dead letter.
    """

    def connect(self) -> None:
        """Open, or let go of the old connection and open again. What was not acknowledged comes again, oldest first.

        A stop of the engine waits for this call: it has a time-out of its own, of some seconds.
        """
        ...

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take up to `max_messages` (1 or more), as soon as there are any; an empty chunk when none came in time.

        Waits at most `timeout_s` seconds for the first message, and for no other one; 0 does not wait. A receiver waits
        for 0.2 seconds at most, a session perhaps for an hour. Never holds more unacknowledged messages than the
        receiver's `max_batch_size`. A source that has them all at hand ends a chunk at `max_batch_bytes`.
        """
        ...

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Tell the broker that these chunks are done, all of them, nothing else.

        A token from before the last `connect` acknowledges nothing. When this raises `ConnectionLost`, the messages may
        come again.
        """
        ...

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give these chunks back: they come again, to this or another consumer."""
        ...

    def close(self) -> None:
        """Let go; never raises, may be repeated. Unacknowledged messages come again to the next consumer."""
        ...


class Sink(Protocol):
    """Sends messages to destinations.

    A sender calls `connect`, then `send` for one batch after the other. It calls `connect` after a `ConnectionLost`,
    and `close` once, at the end. Without a connection `send` raises `ConnectionLost`.
    """

    def connect(self) -> None:
        """Open, or let go of the old connection and open again; raises `ConnectionLost` as `Source.connect`."""
        ...

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send in order and wait until the broker has confirmed or refused each: one result per message, in order.

        `None` confirms: a durable broker has the message on disk. `SendRejected` refuses one message for its
        destination, size or content; the messages around it are sent nevertheless. The engine tries it again behind
        what was sent meanwhile, `max_tries` times in all, then makes a dead letter of it.

        What concerns the broker and not one message is a `ConnectionLost`: the engine connects and sends the messages
        again, with the same sequences and bytes, perhaps in other batches.

        The headers `message_id`, `timestamp`, `expiration`, `redelivered` and `delivery_count` are the broker's to set:
        those of the message come from elsewhere and are left out. Its `time_to_live_ms` begins now.
        """
        ...

    def close(self) -> None:
        """Let go; never raises, may be repeated. What is under way may arrive or not."""
        ...


class Connection(Protocol):
    """A broker as configured: makes sources and sinks.

    The engine makes one for each connection of its configuration, and commands such as `lint` make some that they never
    open. Its methods are called by one thread at a time, not always by the same.
    """

    features: Features

    def source(self, receiver: ReceiverSettings) -> Source:
        """A source for the receiver, not connected; it may never be. Logical destinations are resolved.

        Raises `ConfigError` for a destination or options of the receiver that cannot be.
        """
        ...

    def sink(self, sender: SenderSettings) -> Sink:
        """A sink for the sender, not connected; it may never be. It sends each message to `Outgoing.destination`.

        Raises `ConfigError` for a destination, if there is one, or options of the sender that cannot be.
        """
        ...

    def close(self) -> None:
        """Free what sources and sinks share; called once, after all of them are closed. Never raises."""
        ...


@runtime_checkable
class Ordering(Protocol):
    """A connection whose receivers differ in the order in which messages come again."""

    def order(self, receiver: ReceiverSettings) -> Order:
        """That of one receiver, for crash tests; raises `ConfigError` as `Connection.source`."""
        ...


def order_of(connection: Connection, receiver: ReceiverSettings) -> Order:
    """In which order messages come to a receiver when some of them come again. Raises as `Connection.source`."""
    return connection.order(receiver) if isinstance(connection, Ordering) else connection.features.order


@runtime_checkable
class Browsable(Protocol):
    """A connection whose broker can show a queue without giving its messages to anybody.

    `correlator browse` and browsers of sessions call it, without a source. A connection that can also tell which queues
    there are has `queues() -> Sequence[str]`: `browse` then refuses a name that is none of these.
    """

    def browse(self, destination: str, limit: int) -> Sequence[Message]:
        """Copies of the oldest messages, at most so many; what consumers hold at present may be missing.

        Raises `UsageError` E2110 for what is no queue, E2027 for a queue that is not there where the broker knows;
        `ConnectionLost` when the broker cannot be reached.
        """
        ...


@runtime_checkable
class Unsubscribable(Protocol):
    """A connection whose broker can delete the durable subscriptions of topics; sessions call it."""

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete the subscription, with all that it keeps. `topic` is a destination.

        Raises `UsageError` E7512 for one that is not there, E7513 while somebody consumes from it; `ConnectionLost`
        when the broker cannot be reached or does not allow it.
        """
        ...


@runtime_checkable
class Deletable(Protocol):
    """A connection whose broker can delete destinations; sessions call it for the temporary ones that they made."""

    def delete(self, destination: str) -> None:
        """Delete the destination, with all that is in it and all its subscriptions; one that is not there is no error.

        Raises `UsageError` E7513 while somebody consumes from it; `ConnectionLost` when the broker cannot be reached or
        does not allow it.
        """
        ...


class Advice(NamedTuple):
    """A warning about settings that work, and hardly as their author means them; told by `lint` and at the start.

    Attributes:
        code: of the warning, `W` and four digits.
        option: the name of the option that it is about, of the receiver or sender.
        what: what is wrong, without a full stop.
        allowed: what holds, or "".
        todo: what to do, or "".
    """

    code: str
    option: str
    what: str
    allowed: str = ""
    todo: str = ""


@runtime_checkable
class Advising(Protocol):
    """A connector that warns of settings that work, and hardly as their author means them.

    The entry point itself has these attributes, a class for example: it is asked before a connection is made.

    Attributes:
        redelivery_options: names of the options, of the connection or a receiver, after whose time the broker delivers
            again what was not acknowledged: ids should be remembered for longer.
    """

    redelivery_options: Collection[str]

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterable[Advice]:
        """What there is to say about the options of a receiver or sender. Raises nothing: they may be wrong as well."""
        ...


class ConnectionFactory(Protocol):
    """The entry point of a connector, in group `correlator.connectors`: a class, or a function."""

    def __call__(self, name: str, settings: ConnectionSettings) -> Connection:
        """Make the connection `name`; opens nothing, and raises `ConfigError` for what is wrong in `settings.options`.

        An option that the connector does not know is an error, too.
        """
        ...


def readable(read: Callable[[], Message], as_sent: Callable[[], Message], what: str) -> Message:
    """What `read` makes, if any store and any part of an engine can hold it; otherwise what `as_sent` makes, marked.

    So no message can end the thread that reads it, and none gets into a store that no later start could read.

    Args:
        read: decodes the message. May raise anything.
        as_sent: makes a message of the bytes alone, with headers and properties that do not come from its sender.
        what: what cannot be read where `read` fails.
    """
    try:
        message = read()
        _check(message)
    except Exception as error:  # noqa: BLE001  # whatever a decoder stumbles over, the messages behind it must come
        message = as_sent()
        mark(message, f"{what}: {type(error).__name__}: {error}")
    return message


def mark(message: Message, reason: str) -> None:
    """Say in the property `UNREADABLE` what could not be read of a message, after what was said before."""
    said = message.properties.get(UNREADABLE)
    reason = storable(reason)[:_LONGEST_REASON]
    message.properties[UNREADABLE] = f"{said}; {reason}" if isinstance(said, str) else reason


def _check(message: Message) -> None:
    _decode(_encode((message.properties, message.key, message.headers)))
    if type(message.body) is not bytes:
        raise TypeError(f"the body is a {type(message.body).__name__}")
    if not SIMPLE.issuperset(map(type, message.properties.values())):
        raise TypeError("a property is neither a text nor a number nor bytes")
    lives = None if message.headers is None else message.headers.time_to_live_ms
    if lives is not None and not 0 <= lives <= LONGEST_LIFE_MS:
        raise ValueError(f"a time to live of {lives} ms is not between 0 and {LONGEST_LIFE_MS}")
