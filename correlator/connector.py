"""What a connector is: the two small classes that speak to a broker, and what they tell about it.

A connector only speaks to its broker. Retry, back-off, batching, metrics and order are the engine's. Exactly two
errors cross the port: `ConnectionLost` (raised; the engine connects again for ever) and `SendRejected` (returned for
one message). Each object is used by one thread at a time, its owner's; `close` comes from the same thread.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from correlator.errors import SendRejected
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


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
    """What a broker can do; decides which checks of the contract suite apply, and what `lint` warns about.

    Attributes:
        durable: a confirmed message survives a restart of the broker.
        redelivers: what was received and not acknowledged comes again after a lost connection.
        order: in which order messages come when some of them come again; that of the weakest receiver, where a
            connection is `Ordering`.
        flags_redelivery: it says so in the headers.
        acknowledges_surely: when `acknowledge` returns, the broker has it on disk.
        acknowledgements_written_within_s: after so many seconds the broker has an acknowledgement, and one that comes
            so much later is written together with it; until then a broker that dies forgets it. Of no meaning where it
            acknowledges surely.
        deduplicates_sends: a repeat of (source, sequence) is stored once. What such a broker refuses it must refuse at
            every try: a later try of a number below the last stored one would count as a repeat (trap T35).
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
        messages: in the order of the broker; may be empty.
        token: what acknowledges exactly these messages; opaque to the engine.
        ended: the source has come to its end and will give nothing more (only where `Features.ends`).
        unselected: so many more messages the source has left out, for the receiver's `selector`.
    """

    messages: Sequence[Message]
    token: Any
    ended: bool = False
    unselected: int = 0


class Source(Protocol):
    """Takes messages from one destination."""

    def connect(self) -> None:
        """Open, or open again after `ConnectionLost`. What was not acknowledged will come again, oldest first."""
        ...

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take up to `max_messages`, waiting at most `timeout_s` for the first one; empty when there was none.

        Never holds more unacknowledged messages from the broker than the receiver's `max_batch_size`.
        """
        ...

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Tell the broker that these chunks are done, all of them, nothing else."""
        ...

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give these chunks back: they come again, to this or another consumer."""
        ...

    def close(self) -> None:
        """Let go; never raises. Unacknowledged messages come again to the next consumer."""
        ...


class Sink(Protocol):
    """Sends messages to destinations."""

    def connect(self) -> None:
        """Open, or open again after `ConnectionLost`."""
        ...

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send in order and wait until the broker has confirmed or refused each: one result per message.

        When the connection is lost in between, raises `ConnectionLost`; the engine sends the whole batch again.
        """
        ...

    def close(self) -> None:
        """Let go; never raises."""
        ...


class Connection(Protocol):
    """A broker as configured: makes sources and sinks. Made once per connection, from the engine's thread.

    The entry point names a callable `(name: str, settings: ConnectionSettings) -> Connection` that checks the
    options without opening anything and raises `ConfigError` for what is wrong.
    """

    features: Features

    def source(self, receiver: ReceiverSettings) -> Source:
        """A source for the receiver, not yet connected."""
        ...

    def sink(self, sender: SenderSettings) -> Sink:
        """A sink for the sender, not yet connected."""
        ...

    def close(self) -> None:
        """Free what sources and sinks share; called after all of them are closed."""
        ...


@runtime_checkable
class Ordering(Protocol):
    """A connection whose receivers differ in the order in which messages come again."""

    def order(self, receiver: ReceiverSettings) -> Order:
        """That of a receiver; raises `ConfigError` as `Connection.source`."""
        ...


def order_of(connection: Connection, receiver: ReceiverSettings) -> Order:
    """In which order messages come to a receiver when some of them come again. Raises as `Connection.source`."""
    return connection.order(receiver) if isinstance(connection, Ordering) else connection.features.order


@runtime_checkable
class Browsable(Protocol):
    """A connection whose broker can show a queue without giving its messages to anybody."""

    def browse(self, destination: str, limit: int) -> Sequence[Message]:
        """Copies of the oldest messages, at most so many; what consumers hold at present may be missing.

        Raises `UsageError` E2110 for what is no queue, E2027 for a queue that is not there where the broker knows;
        `ConnectionLost` when the broker cannot be reached.
        """
        ...


@runtime_checkable
class Unsubscribable(Protocol):
    """A connection whose broker can delete the durable subscriptions of topics."""

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete the subscription, with all that it keeps. `topic` is a destination.

        Raises `UsageError` E7512 for one that is not there, E7513 while somebody consumes from it; `ConnectionLost`
        when the broker cannot be reached or does not allow it.
        """
        ...


@runtime_checkable
class Deletable(Protocol):
    """A connection whose broker can delete destinations."""

    def delete(self, destination: str) -> None:
        """Delete the destination, with all that is in it and all its subscriptions; one that is not there is no error.

        Raises `UsageError` E7513 while somebody consumes from it; `ConnectionLost` when the broker cannot be reached or
        does not allow it.
        """
        ...


class Advice(NamedTuple):
    """What works, and hardly as its author means it; told by `lint` and at the start.

    Attributes:
        code: of the warning.
        option: the name of the option that it is about, of the receiver or sender.
        what: is wrong.
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
    """A connector that knows what will work, but hardly as meant. Asked before a connection is made.

    Attributes:
        redelivery_options: names of the options, of the connection or a receiver, after whose time the broker delivers
            again what was not acknowledged: ids should be remembered for longer.
    """

    redelivery_options: Collection[str]

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterable[Advice]:
        """What there is to say about the options of a receiver or sender, which may be wrong as well."""
        ...


class ConnectionFactory(Protocol):
    """What the entry point of a connector is."""

    def __call__(self, name: str, settings: ConnectionSettings) -> Connection:
        """Make the connection; opens nothing."""
        ...
