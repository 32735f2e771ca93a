"""The contract of connectors as plain functions: each `check_*(world)` passes, or raises `AssertionError`.

A `ContractWorld` gives the checks a broker and its connector. `checks_for(world)` chooses the checks that apply to the
`Features` of the connector. If the connector does not do what a feature claims, a check fails. The author of a
connector runs the checks in this way (docs/connectors.md):

    class MyWorld(BrokerWorld):
        features = MyConnection.features

        def connection(self):
            return MyConnection("mine", ConnectionSettings(type="mine", options={"host": "localhost"}))

    @pytest.mark.parametrize("check", checks_for(MyWorld), ids=lambda check: check.__name__)
    def test_contract(check):
        check(MyWorld())
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, Protocol, Self

from correlator.connector import Chunk, Connection, Features, MessageService, Order, Sink, Source, order_of
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import Headers, Message, Outgoing, PropertyValue
from correlator.settings import ReceiverSettings, SenderSettings

PATIENCE_S = 60.0
"""How many seconds a check waits for messages that must come."""
EMPTY_S = 0.2
"""How many seconds a check waits for messages that must not come."""
LOOK_S = 0.01
"""Seconds between two counts of the open threads and file descriptors."""

HOSTILE_NAMES = (
    "Ünïcödé-訂單-🚚",
    'it\'s "quoted"; DROP TABLE x; --',
    "a%20b/c\\d?e=f&g#h",
    "${property.x} {0} %s :id",
)
HOSTILE_TEXTS = (*HOSTILE_NAMES, "zero \0 byte", "line\r\nend", " ")


class ContractWorld(Protocol):
    """A broker with one connector, as the checks use it. Make a new object for each check.

    Checks call the methods in the thread of the test. Some checks also call `connection` or `publish` in other threads,
    and `connection` in several at once.

    Attributes:
        features: the features that the connector claims.
        receives: whether the connector has sources.
        sends: whether the connector has sinks.
        topics: whether the connector accepts `topic:` destinations. If not, it must refuse them with `ConfigError`.
        ends: whether a source ends after the last message, as the source of a file does.
        selects_in_place: matters if `Features.selects` is true. True if messages that a selector does not match keep
            their place in the queue. False if the source takes them and gives them back, so that other consumers get
            them later, in any order.
        any_destination: whether a sink sends to each destination that a message names. If not, it sends only to the
            destination of its sender: it refuses other messages, and a sender without a destination is a `ConfigError`.
        whole_messages: whether the broker carries any body, properties, key and headers. If not, the checks send only
            bodies that `body` has made.
        is_service: whether the connection is a `MessageService`, to which `correlator.testing.service_contract`
            applies, too.
    """

    features: Features
    receives: bool
    sends: bool
    topics: bool
    ends: bool
    selects_in_place: bool
    any_destination: bool
    whole_messages: bool
    is_service: bool

    def connection(self) -> Connection:
        """Make a new connection, as another engine would make it."""
        ...

    def destination(self, kind: str = "queue", label: str = "") -> str:
        """Make an empty destination that no check has used, and return its name.

        Args:
            kind: `queue` or `topic`.
            label: becomes part of the name. It may hold any characters; raise `ConfigError` if the broker forbids one.
        """
        ...

    def body(self, text: str) -> bytes:
        """Return a body that contains the text, and that this broker carries unchanged."""
        ...

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        """Put messages into a destination, if possible with the broker's own client instead of the connector.

        If sink and source share a mistake in the format of a message, a message from the sink would not reveal it.
        """
        ...

    def collect(self, destination: str, at_least: int) -> list[Message]:
        """Return all messages that sinks put into the destination, in order. Waits until there are at
        least `at_least`.
        """
        ...

    def refused(self) -> Outgoing | None:
        """Return a message that the broker refuses, with sequence 0, or `None` if the broker accepts every message."""
        ...

    def restart(self) -> None:
        """Restart the broker. If the broker is not a process of its own, cut all its connections instead."""
        ...


class BrokerWorld:
    """A world that publishes and collects through the connector under test. A subclass adds `features` and
    `connection`.

    Destinations are numbered from 1, so each object needs a broker, or a part of a broker, that no other object uses.
    """

    features: Features
    receives = True
    sends = True
    topics = True
    ends = False
    selects_in_place = False
    any_destination = True
    whole_messages = True
    is_service = False

    def __init__(self) -> None:
        self._numbers = count(1)

    def connection(self) -> Connection:
        """Make a new connection, as another engine would make it."""
        raise NotImplementedError

    def destination(self, kind: str = "queue", label: str = "") -> str:
        """Return the name of the next destination. The first source or sink that uses the name creates
        the destination.
        """
        return f"{kind}:{label}{next(self._numbers)}"

    def body(self, text: str) -> bytes:
        """Encode a text as the body of a message, in UTF-8. A subclass overrides it if its broker limits the content of
        bodies.
        """
        return text.encode()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        """Send by a sink. Override this with the broker's own client if there is one."""
        with _Ends(self) as ends:
            _sent(ends.sink(destination, "publisher"), outgoing(destination, messages))

    def collect(self, destination: str, at_least: int) -> list[Message]:
        """Receive and acknowledge by a source. Override this with the broker's own client if there is one."""
        with _Ends(self) as ends:
            source = ends.source(destination, "collector", 100_000)
            chunks = take(source, at_least, 100_000)
            chunks.append(source.receive(100_000, 0.0))
            source.acknowledge(tokens([chunk for chunk in chunks if chunk.messages]))
        return [message for chunk in chunks for message in chunk.messages]

    def refused(self) -> Outgoing | None:
        """Return a message for an invalid destination. Override this if the broker refuses other messages."""
        return Outgoing(0, "", "nonsense", Message(b"x"))

    def restart(self) -> None:
        """Do nothing. Override this if the broker can be restarted."""


Check = Callable[[ContractWorld], None]
_checks: list[tuple[Check, tuple[str, ...], Collection[Order]]] = []


def checks_for(world: ContractWorld | type) -> list[Check]:
    """Return the checks that apply to a world or to its class.

    A check applies if the world and its features have every property that the check needs, such as `receives` and
    `durable`, and if the check is meant for the order of deliveries in `features`.
    """
    return [check for check, needs, orders in _checks if _applies(world, needs, orders)]


def _applies(world: Any, needs: Sequence[str], orders: Collection[Order]) -> bool:
    return world.features.order in orders and all(_has(world, need) for need in needs)


def _has(world: Any, need: str) -> bool:
    wanted = not need.startswith("not ")
    name = need.removeprefix("not ")
    holder = world.features if hasattr(world.features, name) else world
    return bool(getattr(holder, name)) is wanted


def _check(*needs: str, orders: Collection[Order] = tuple(Order)) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _checks.append((check, needs, orders))
        return check

    return register


# Helpers of the checks.


class _Ends:
    """The sources and sinks of one connection in a check. Leaving the block closes them and the connection."""

    def __init__(self, world: ContractWorld) -> None:
        self._world = world
        self._connection = world.connection()
        self._open: list[Source | Sink] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._open:
            end.close()
        self._connection.close()

    def source(self, destination: str, name: str = "taker", max_batch_size: int = 1000, **settings: Any) -> Source:
        """Make a source and connect it."""
        source = self._connection.source(receiver(destination, name, max_batch_size, **settings))
        self._open.append(source)
        source.connect()
        return source

    def sink(self, destination: str | None, name: str = "giver") -> Sink:
        """Make a sink and connect it."""
        sink = self._connection.sink(sender(destination, name))
        self._open.append(sink)
        sink.connect()
        return sink


def receiver(destination: str, name: str = "taker", max_batch_size: int = 1000, **settings: Any) -> ReceiverSettings:
    """Make the settings of a receiver for a source under test; `settings` are further fields of `ReceiverSettings`."""
    return ReceiverSettings(
        id=name, connection="contract", destination=destination, max_batch_size=max_batch_size, **settings
    )


def sender(destination: str | None, name: str = "giver") -> SenderSettings:
    """Make the settings of a sender for a sink under test; without a destination, each message names its own."""
    return SenderSettings(id=name, connection="contract", destination=destination)


def take(source: Source, wanted: int, max_messages: int = 1000) -> list[Chunk]:
    """Receive chunks until they hold `wanted` messages together.

    Returns fewer messages if the source ends, or after `PATIENCE_S` seconds. Raises `AssertionError` if a chunk is
    larger than asked for.

    Args:
        source: a connected source.
        wanted: how many messages to receive.
        max_messages: the most messages to ask for in one call of `receive`.
    """
    chunks: list[Chunk] = []
    deadline = time.monotonic() + PATIENCE_S
    while (missing := wanted - sum(len(chunk.messages) for chunk in chunks)) > 0 and time.monotonic() < deadline:
        chunk = source.receive(min(missing, max_messages), 1.0)
        assert len(chunk.messages) <= min(missing, max_messages), "more messages than asked for"
        if chunk.messages:
            chunks.append(chunk)
        if chunk.ended:
            break
    return chunks


def bodies(chunks: Sequence[Chunk]) -> list[bytes]:
    """Return the bodies of all messages of these chunks, in order."""
    return [message.body for chunk in chunks for message in chunk.messages]


def tokens(chunks: Sequence[Chunk]) -> list[Any]:
    """Return the tokens of these chunks, for `acknowledge` and `reject`."""
    return [token for chunk in chunks for token in chunk.tokens]


def _bodies(world: ContractWorld, number: int, label: str = "m") -> list[bytes]:
    return [world.body(f"{label}-{at:06d}") for at in range(number)]


def _publish(world: ContractWorld, number: int, destination: str = "") -> tuple[str, list[bytes]]:
    """Publish `number` messages to the destination, or to a new one; returns the destination and the bodies."""
    destination = destination or world.destination()
    published = _bodies(world, number)
    world.publish(destination, [Message(body) for body in published])
    return destination, published


def outgoing(destination: str, contents: Sequence[bytes | Message], source: str = "", first: int = 1) -> list[Outgoing]:
    """Make a batch for a sink.

    Args:
        destination: the destination of every message.
        contents: messages, or bodies of messages.
        source: the message source id; "" means that the broker cannot detect repeats.
        first: the sequence of the first message.
    """
    messages = [Message(content) if isinstance(content, bytes) else content for content in contents]
    return [Outgoing(number, source, destination, message) for number, message in zip(count(first), messages)]


def _sent(sink: Sink, batch: Sequence[Outgoing]) -> None:
    results = sink.send(batch)
    assert len(results) == len(batch), "not one result for each message"
    assert not any(results), f"refused: {next(filter(None, results))}"


def _nothing_comes(source: Source) -> None:
    chunk = source.receive(10, EMPTY_S)
    assert not chunk.messages, f"came unexpectedly: {chunk.messages[0].body!r}"


# Opening and closing.


@_check("receives")
def check_source_opens_and_closes(world: ContractWorld) -> None:
    """A source can be connected, connected again, closed, closed again, and then connected."""
    source = world.connection().source(receiver(world.destination()))
    source.close()
    for _ in range(2):
        source.connect()
        source.connect()
        source.close()
        source.close()


@_check("sends")
def check_sink_opens_and_closes(world: ContractWorld) -> None:
    """A sink can be connected, connected again, closed, closed again, and then connected."""
    sink = world.connection().sink(sender(world.destination()))
    sink.close()
    for _ in range(2):
        sink.connect()
        sink.connect()
        sink.close()
        sink.close()


@_check("receives")
def check_source_that_is_not_connected_says_so(world: ContractWorld) -> None:
    """Without a connection, `receive` raises `ConnectionLost`."""
    source = world.connection().source(receiver(world.destination()))
    _raises_connection_lost(lambda: source.receive(1, 0.0))


@_check("sends")
def check_sink_that_is_not_connected_says_so(world: ContractWorld) -> None:
    """Without a connection, `send` raises `ConnectionLost`."""
    destination = world.destination()
    sink = world.connection().sink(sender(destination))
    _raises_connection_lost(lambda: sink.send(outgoing(destination, [world.body("a")])))


def _raises_connection_lost(call: Callable[[], object]) -> None:
    try:
        call()
    except ConnectionLost:
        return
    raise AssertionError("no ConnectionLost")


@_check("sends")
def check_nothing_is_left_open(world: ContractWorld) -> None:
    """Closed sources and sinks leave neither threads nor file descriptors behind.

    A client library may close some of them on its own thread, a moment after `close` has returned; the check waits.
    """
    destination = world.destination()
    _use_and_close(world, destination)
    threads, descriptors = _threads_and_descriptors()
    for _ in range(3):
        _use_and_close(world, destination)
    deadline = time.monotonic() + PATIENCE_S / 4
    while True:
        threads_now, descriptors_now = _threads_and_descriptors()
        if threads_now <= threads and descriptors_now <= descriptors:
            return
        assert time.monotonic() < deadline, (
            f"{threads} threads and {descriptors} file descriptors before, {threads_now} and {descriptors_now} after"
        )
        time.sleep(LOOK_S)


def _use_and_close(world: ContractWorld, destination: str) -> None:
    with _Ends(world) as ends:
        _sent(ends.sink(destination), outgoing(destination, [world.body("a")]))
        if world.receives:
            take(ends.source(destination), 1)


def _threads_and_descriptors() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH208, PTH112


@_check()
def check_a_message_service_declares_itself(world: ContractWorld) -> None:
    """The connection is a `MessageService` if the world says so, and only then."""
    connection = world.connection()
    assert isinstance(connection, MessageService) is world.is_service
    connection.close()


# Receiving.


@_check("receives")
def check_messages_come_in_order(world: ContractWorld) -> None:
    """The messages of one publisher arrive complete and in order, whatever the size of the chunks."""
    destination, published = _publish(world, 250)
    with _Ends(world) as ends:
        source = ends.source(destination)
        chunks = take(source, 250, 37)
        source.acknowledge(tokens(chunks))
        assert bodies(chunks) == published


@_check("receives")
def check_received_messages_tell_their_destination(world: ContractWorld) -> None:
    """`Message.destination` is the destination of the message, or `None` for the receiver's destination."""
    destination, _ = _publish(world, 1)
    with _Ends(world) as ends:
        (chunk,) = take(ends.source(destination), 1)
        assert chunk.messages[0].destination in (destination, None)


@_check("receives")
def check_unacknowledged_messages_are_bounded(world: ContractWorld) -> None:
    """A source never holds more unacknowledged messages than `max_batch_size`; acknowledging makes room for others."""
    destination, published = _publish(world, 30)
    with _Ends(world) as ends:
        source = ends.source(destination, max_batch_size=10)
        held: list[Chunk] = []
        while (chunk := source.receive(100, EMPTY_S)).messages:
            held.append(chunk)
        assert 0 < len(bodies(held)) <= 10, f"holds {len(bodies(held))}"
        source.acknowledge(tokens(held))
        rest = 30 - len(bodies(held))
        while rest > 0:
            more = take(source, min(rest, 10))
            assert more, "nothing more comes"
            source.acknowledge(tokens(more))
            held += more
            rest -= len(bodies(more))
        assert bodies(held) == published


@_check("receives")
def check_an_empty_receive_returns_in_time(world: ContractWorld) -> None:
    """If no message waits, `receive` returns an empty chunk: at once if the time-out is 0, else about at its end."""
    with _Ends(world) as ends:
        source = ends.source(world.destination())
        for timeout_s in (0.0, EMPTY_S):
            begun = time.monotonic()
            assert not source.receive(10, timeout_s).messages
            assert time.monotonic() - begun < timeout_s + PATIENCE_S / 4


@_check("receives", "not ends")
def check_a_waiting_receive_wakes(world: ContractWorld) -> None:
    """If a message is published while `receive` waits, `receive` returns it before the time-out."""
    destination = world.destination()
    with _Ends(world) as ends:
        source = ends.source(destination)
        publisher = threading.Timer(EMPTY_S, _publish, (world, 1, destination))
        publisher.start()
        begun = time.monotonic()
        chunk = source.receive(10, PATIENCE_S)
        publisher.join()
        assert len(chunk.messages) == 1
        assert time.monotonic() - begun < PATIENCE_S / 2


@_check("receives", "redelivers")
def check_unacknowledged_come_again_to_the_next_consumer(world: ContractWorld) -> None:
    """The broker redelivers what a closed source has not acknowledged to the next consumer, in order,
    before later messages.
    """
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        assert bodies(take(ends.source(destination), 12)) == published[:12]
    with _Ends(world) as ends:
        assert bodies(take(ends.source(destination), 20)) == published


@_check("receives", "redelivers")
def check_unacknowledged_come_again_after_a_reconnect(world: ContractWorld) -> None:
    """If an open source connects again, the broker redelivers its unacknowledged messages to it, oldest first."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        source = ends.source(destination)
        first = take(source, 5)
        source.acknowledge(tokens(first))
        take(source, 7)
        source.connect()
        assert bodies(take(source, 15)) == published[5:]


@_check("receives", "redelivers", orders=(Order.POSITION,))
def check_a_second_consumer_overtakes_nobody(world: ContractWorld) -> None:
    """While one consumer holds messages, another consumer of the receiver gets none, or the same ones, oldest first."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        assert order_of(world.connection(), receiver(destination)) is Order.POSITION
        one = ends.source(destination, max_batch_size=5)
        assert bodies(take(one, 5)) == published[:5]
        other = world.connection().source(receiver(destination))
        try:
            other.connect()
            early = bodies([other.receive(20, EMPTY_S)])
        except ConnectionLost:
            early = []
        assert early == published[: len(early)]
        one.close()
        _connect_again(other)
        assert bodies(take(other, 20)) == published
        other.close()


@_check("receives", "redelivers", orders=(Order.PLACE,))
def check_what_is_given_back_waits_in_its_place(world: ContractWorld) -> None:
    """If a consumer closes or rejects, another consumer gets the returned messages before all later messages."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        assert order_of(world.connection(), receiver(destination)) is Order.PLACE
        one, other = ends.source(destination, "one", 5), ends.source(destination, "other")
        held = take(one, 5)
        assert bodies(held) == published[:5]
        passed = take(other, 5)
        assert bodies(passed) == published[5:10]
        one.close()
        first = take(other, 3)
        assert bodies(first) == published[:3]
        other.reject(tokens(first))
        assert bodies(take(other, 15)) == published[:5] + published[10:]


@_check("receives", "redelivers", "acknowledges_surely")
def check_exactly_these_are_acknowledged(world: ContractWorld) -> None:
    """If a source acknowledges the second of three chunks, the first and the third are redelivered, in order."""
    destination, published = _publish(world, 30)
    with _Ends(world) as ends:
        source = ends.source(destination)
        chunks = [take(source, 10) for _ in range(3)]
        source.acknowledge(tokens(chunks[1]))
    with _Ends(world) as ends:
        source = ends.source(destination)
        again = take(source, 20)
        assert bodies(again) == published[:10] + published[20:]
        source.acknowledge(tokens(again))
        _nothing_comes(source)


@_check("receives", "redelivers", "acknowledges_surely")
def check_messages_of_a_chunk_are_acknowledged_one_by_one(world: ContractWorld) -> None:
    """If every third received message is acknowledged, the newest first, the others are redelivered, in order."""
    destination, published = _publish(world, 30)
    with _Ends(world) as ends:
        source = ends.source(destination)
        acknowledged = tokens(take(source, 30))[::3]
        for token in reversed(acknowledged):
            source.acknowledge([token])
        source.acknowledge(acknowledged)  # a second time: none of them is left
    with _Ends(world) as ends:
        source = ends.source(destination)
        again = take(source, 20)
        assert bodies(again) == [body for at, body in enumerate(published) if at % 3]
        source.acknowledge(tokens(again))
        _nothing_comes(source)


@_check("receives", "acknowledges_surely")
def check_acknowledged_messages_never_come_again(world: ContractWorld) -> None:
    """An acknowledged message is not redelivered to this receiver, even after a restart of the broker."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        source = ends.source(destination)
        source.acknowledge(tokens(take(source, 10)))
    world.restart()
    with _Ends(world) as ends:
        source = ends.source(destination)
        rest = take(source, 10)
        assert bodies(rest) == published[10:]
        source.acknowledge(tokens(rest))
        _nothing_comes(source)


@_check("receives", "redelivers", "acknowledges_surely")
def check_a_token_ends_with_its_connection(world: ContractWorld) -> None:
    """A token from before a reconnect acknowledges nothing, and no chunk that was received afterwards."""
    destination, published = _publish(world, 10)
    with _Ends(world) as ends:
        source = ends.source(destination)
        stale = tokens(take(source, 10))
        source.connect()
        take(source, 5)
        try:
            source.acknowledge(stale)
        except ConnectionLost:
            source.connect()
    with _Ends(world) as ends:
        assert bodies(take(ends.source(destination), 10)) == published


@_check("receives", "redelivers")
def check_rejected_messages_come_again(world: ContractWorld) -> None:
    """`reject` gives back exactly the messages of its chunks; the broker redelivers them to any consumer."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        source = ends.source(destination)
        first, second = take(source, 10), take(source, 10)
        source.reject(tokens(first))
        again = take(source, 10)
        assert sorted(bodies(again)) == published[:10]
        source.acknowledge(tokens(second) + tokens(again))
        _nothing_comes(source)


@_check("receives", "redelivers")
def check_messages_of_a_chunk_are_rejected_one_by_one(world: ContractWorld) -> None:
    """Rejecting every third received message gives back these; the source keeps the others."""
    destination, published = _publish(world, 30)
    with _Ends(world) as ends:
        source = ends.source(destination)
        first = tokens(take(source, 30))
        source.reject(first[::3])
        again = take(source, 10)
        assert sorted(bodies(again)) == published[::3]
        source.acknowledge([*first, *tokens(again)])
        _nothing_comes(source)


@_check("receives", "flags_redelivery")
def check_redelivery_is_flagged(world: ContractWorld) -> None:
    """The first delivery of a message has `redelivered` false; the redelivery has true, and a higher delivery count."""
    destination, _ = _publish(world, 1)
    seen: list[Headers] = []
    for _ in range(3):
        with _Ends(world) as ends:
            (chunk,) = take(ends.source(destination), 1)
            seen.append(chunk.messages[0].headers or Headers())
    assert [headers.redelivered for headers in seen] == [False, True, True]
    assert [headers.delivery_count for headers in seen] == [1, 2, 3]


@_check("receives", "shares", "not ends", orders=(Order.PLACE, Order.ANY))
def check_consumers_of_a_queue_share_it(world: ContractWorld) -> None:
    """Two consumers of a queue get each message once between them; the broker delivers no message to both."""
    destination, published = _publish(world, 40)
    with _Ends(world) as ends:
        one, other = ends.source(destination, "one", 10), ends.source(destination, "other", 10)
        held_by_one, held_by_other = take(one, 10), take(other, 10)
        assert len(set(bodies(held_by_one + held_by_other))) == 20
        one.close()
        rest: list[Chunk] = []
        other.acknowledge(tokens(held_by_other))
        while len(bodies(rest)) < 30 and (more := take(other, 10)):
            other.acknowledge(tokens(more))
            rest += more
        assert sorted(bodies(rest + held_by_other)) == published


@_check("receives", "shares", "not ends", orders=(Order.POSITION,))
def check_consumers_of_a_queue_take_turns(world: ContractWorld) -> None:
    """If a queue admits one consumer at a time, the next consumer gets the unacknowledged messages, then the rest."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        one = ends.source(destination, "one", 10)
        first, _ = take(one, 5), take(one, 5)
        one.acknowledge(tokens(first))
        one.close()
        assert bodies(take(ends.source(destination, "other"), 15)) == published[5:]


@_check("receives", "selects", "whole_messages")
def check_what_is_not_selected_comes_to_others(world: ContractWorld) -> None:
    """Each source of a queue receives the messages that its selector matches; the queue keeps all others."""
    destination = world.destination()
    published = _bodies(world, 18)
    world.publish(destination, [Message(body, {"n": at % 3}) for at, body in enumerate(published)])
    with _Ends(world) as ends:
        sources = [ends.source(destination, f"wants {n}", 10, selector=f"n = {n}") for n in range(2)]
        taken: list[list[bytes]] = [[], []]
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, taken)) < 12 and time.monotonic() < deadline:
            for at, source in enumerate(sources):
                chunk = source.receive(10, EMPTY_S)
                taken[at] += bodies([chunk])
                source.acknowledge(tokens([chunk] if chunk.messages else []))
        assert [sorted(own) for own in taken] == [published[0::3], published[1::3]]
    with _Ends(world) as ends:
        everything = ends.source(destination, "everything")
        rest = take(everything, 6)
        assert sorted(bodies(rest)) == published[2::3]
        everything.acknowledge(tokens(rest))
        _nothing_comes(everything)


@_check("receives", "selects", "selects_in_place", "whole_messages")
def check_a_selector_leaves_the_rest_to_others(world: ContractWorld) -> None:
    """A source of a queue receives the messages that its selector matches, in order; others receive the rest."""
    destination = world.destination()
    published = _bodies(world, 60)
    regions = ("EU", "US", "ASIA")
    world.publish(
        destination, [Message(body, {"region": regions[at % 3], "at": at}) for at, body in enumerate(published)]
    )
    with _Ends(world) as ends:
        european = ends.source(destination, "european", 10, selector="region = 'EU'")
        american = ends.source(destination, "american", 10, selector="region = 'US' AND at < 30")
        held = take(european, 10)
        assert bodies(held) == published[0:30:3]
        assert bodies(take(american, 10, 7)) == published[1:30:3]
        _nothing_comes(american)
        european.acknowledge(tokens(held))
        assert bodies(take(european, 10)) == published[30:60:3]
    with _Ends(world) as ends:
        everything = ends.source(destination, "everything")
        assert bodies(take(everything, 50)) == [body for at, body in enumerate(published) if at % 3 or at >= 30]


@_check("receives", "selects", "selects_in_place", "whole_messages")
def check_what_others_gave_back_is_selected(world: ContractWorld) -> None:
    """A source with a selector also finds matching messages that another consumer gives back later."""
    destination = world.destination()
    published = _bodies(world, 9)
    world.publish(destination, [Message(body, {"odd": at % 2 == 1}) for at, body in enumerate(published)])
    with _Ends(world) as ends:
        other = ends.source(destination, "other")
        taken = take(other, 4, 2)
        odd = ends.source(destination, "odd", selector="odd = TRUE")
        first = take(odd, 2)
        assert bodies(first) == published[5::2]
        _nothing_comes(odd)
        other.reject(tokens(taken[1:]))
        assert bodies(take(odd, 1)) == published[3:4]
        other.acknowledge(tokens(taken[:1]))
        odd.reject(tokens(first))
        assert bodies(take(odd, 2)) == published[5::2]
        _nothing_comes(odd)
        assert bodies(take(other, 4)) == published[2::2]


@_check("receives", "ends")
def check_the_end_is_told(world: ContractWorld) -> None:
    """The chunk after the last message has `ended`; an empty source ends at once."""
    destination, published = _publish(world, 3)
    with _Ends(world) as ends:
        source = ends.source(destination)
        chunks = take(source, 4)
        assert bodies(chunks) == published
        assert source.receive(10, EMPTY_S).ended
        assert ends.source(world.destination(), "empty").receive(10, EMPTY_S).ended


@_check("receives", "not ends")
def check_a_source_without_an_end_never_ends(world: ContractWorld) -> None:
    """If the sources of the world do not end, no chunk has `ended`."""
    with _Ends(world) as ends:
        assert not ends.source(world.destination()).receive(10, 0.0).ended


@_check("receives", "durable", "redelivers")
def check_a_restart_loses_nothing(world: ContractWorld) -> None:
    """A restart of the broker loses no messages. A source whose connection is lost connects again."""
    destination, published = _publish(world, 20)
    with _Ends(world) as ends:
        source = ends.source(destination)
        take(source, 5)
        world.restart()
        received: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(set(received)) < 20 and time.monotonic() < deadline:
            try:
                received += bodies([source.receive(20, EMPTY_S)])
                if len(received) == 15 and received == published[5:]:
                    received = published[:5] + received  # the connection outlived the restart: it still holds them
            except ConnectionLost:
                received.clear()
                _connect_again(source)
        assert received == published


def _connect_again(end: Source | Sink) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return end.connect()
        except ConnectionLost:
            assert time.monotonic() < deadline, "no connection after the restart"


@_check("receives", "topics")
def check_every_subscriber_of_a_topic_gets_everything(world: ContractWorld) -> None:
    """Each receiver of a topic gets each message that was published after the receiver subscribed."""
    destination = world.destination("topic")
    with _Ends(world) as ends:
        one = ends.source(destination, "one")
        world.publish(destination, [Message(world.body("first"))])
        other = ends.source(destination, "other")
        _, published = _publish(world, 10, destination)
        assert bodies(take(one, 11)) == [world.body("first"), *published]
        assert bodies(take(other, 10)) == published
        _nothing_comes(other)


@_check("receives", "topics", "durable")
def check_a_subscription_lasts(world: ContractWorld) -> None:
    """While the subscriber is away, messages wait in its subscription, which is named after the receiver's id."""
    destination = world.destination("topic")
    with _Ends(world) as ends:
        ends.source(destination, "one")
    _, published = _publish(world, 10, destination)
    with _Ends(world) as ends:
        assert bodies(take(ends.source(destination, "one"), 10)) == published


@_check("receives", "topics", "durable")
def check_a_subscription_has_a_name(world: ContractWorld) -> None:
    """Receivers that give their subscription the same name share it, whatever their ids are."""
    destination = world.destination("topic")
    with _Ends(world) as ends:
        ends.source(destination, "one", durable_topic_subscription_name="orders")
    _, published = _publish(world, 10, destination)
    with _Ends(world) as ends:
        other = ends.source(destination, "other", durable_topic_subscription_name="orders")
        chunks = take(other, 10)
        assert bodies(chunks) == published
        other.acknowledge(tokens(chunks))
    with _Ends(world) as ends:
        _nothing_comes(ends.source(destination, "one", durable_topic_subscription_name="orders"))


@_check("receives", "not topics")
def check_topics_are_refused(world: ContractWorld) -> None:
    """A connector without topics raises `ConfigError` when a source of a topic is made."""
    _raises_config_error(lambda: world.connection().source(receiver("topic:anything")))


def _raises_config_error(call: Callable[[], object]) -> None:
    try:
        call()
    except ConfigError:
        return
    raise AssertionError("no ConfigError")


@_check("sends", "not receives")
def check_receivers_are_refused(world: ContractWorld) -> None:
    """A connector without sources raises `ConfigError` when a source is made."""
    destination = world.destination()
    _raises_config_error(lambda: world.connection().source(receiver(destination)))


@_check("sends", "not receives", "not topics")
def check_topics_are_refused_for_senders(world: ContractWorld) -> None:
    """A connector without sources and topics raises `ConfigError` when a sink of a topic is made."""
    _raises_config_error(lambda: world.connection().sink(sender("topic:anything")))


# Sending.


@_check("sends")
def check_what_is_confirmed_is_there(world: ContractWorld) -> None:
    """Confirmed messages are in the destination, in order; if the broker is durable, also after a restart."""
    destination = world.destination()
    wanted = _bodies(world, 50)
    with _Ends(world) as ends:
        sink = ends.sink(destination)
        _sent(sink, outgoing(destination, wanted[:30], "life"))
        _sent(sink, outgoing(destination, wanted[30:], "life", 31))
    if world.features.durable:
        world.restart()
    assert [message.body for message in world.collect(destination, 50)] == wanted


@_check("sends")
def check_an_empty_batch_is_confirmed(world: ContractWorld) -> None:
    """`send` of an empty batch returns no results and raises nothing."""
    destination = world.destination()
    with _Ends(world) as ends:
        assert list(ends.sink(destination).send([])) == []


@_check("sends")
def check_refused_messages_do_not_block_others(world: ContractWorld) -> None:
    """`send` returns `SendRejected` at the position of a refused message; the broker stores the other messages."""
    refused = world.refused()
    if refused is None:
        return
    destination = world.destination()
    wanted = _bodies(world, 4)
    batch = outgoing(destination, [*wanted[:2], b"", *wanted[2:]], "life")
    batch[2] = Outgoing(3, "life", refused.destination or destination, refused.message)
    with _Ends(world) as ends:
        sink = ends.sink(destination)
        results = sink.send(batch)
        assert [result is not None for result in results] == [False, False, True, False, False]
        assert sink.send([batch[2]])[0] is not None, "refused first, then taken for a repeat"
    assert [message.body for message in world.collect(destination, 4)] == wanted


@_check("sends", "any_destination")
def check_a_sink_needs_no_destination_of_its_own(world: ContractWorld) -> None:
    """A sink without a destination sends each message to the destination that the message names."""
    destination = world.destination()
    wanted = _bodies(world, 3)
    with _Ends(world) as ends:
        _sent(ends.sink(None), outgoing(destination, wanted, "life"))
    assert [message.body for message in world.collect(destination, 3)] == wanted


@_check("sends", "not any_destination")
def check_a_sink_keeps_to_the_destination_of_its_sender(world: ContractWorld) -> None:
    """A sender without a destination is a `ConfigError`; a sink refuses messages for other destinations."""
    _raises_config_error(lambda: world.connection().sink(sender(None)))
    usual, other = world.destination(), world.destination()
    wanted = _bodies(world, 3)
    batch = outgoing(usual, wanted, "life")
    batch[1] = Outgoing(2, "life", other, Message(wanted[1]))
    with _Ends(world) as ends:
        ends.sink(other)
        results = ends.sink(usual).send(batch)
        assert [result is not None for result in results] == [False, True, False]
    assert [message.body for message in world.collect(usual, 2)] == wanted[::2]
    assert world.collect(other, 0) == []


@_check("sends", "any_destination")
def check_a_message_goes_to_its_own_destination(world: ContractWorld) -> None:
    """A sink sends each message to the message's own `Outgoing.destination`."""
    usual, other = world.destination(), world.destination()
    wanted = _bodies(world, 6)
    batch = [Outgoing(n, "life", (usual, other)[n % 2], Message(body)) for n, body in enumerate(wanted, 1)]
    with _Ends(world) as ends:
        _sent(ends.sink(usual), batch)
    assert [message.body for message in world.collect(usual, 3)] == wanted[1::2]
    assert [message.body for message in world.collect(other, 3)] == wanted[0::2]


@_check("sends", "not ends")
def check_sinks_may_send_at_the_same_time(world: ContractWorld) -> None:
    """Four sinks in four threads lose no message, and the messages of each sink stay in order."""
    destination = world.destination()
    failures: list[BaseException] = []

    def send(name: str) -> None:
        try:
            with _Ends(world) as ends:
                sink = ends.sink(destination, name)
                for first in range(0, 50, 10):
                    _sent(sink, outgoing(destination, _bodies(world, 50, name)[first : first + 10], name, first + 1))
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            failures.append(error)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    stored = [message.body for message in world.collect(destination, 200)]
    for name in "abcd":
        own = set(_bodies(world, 50, name))
        assert [body for body in stored if body in own] == _bodies(world, 50, name)


@_check("sends", "deduplicates_sends")
def check_repeats_are_stored_once(world: ContractWorld) -> None:
    """A message with a known source and sequence is confirmed again but stored once.

    This holds if the same sink repeats a batch, and if another sink repeats a part of a batch.
    """
    destination = world.destination()
    wanted = _bodies(world, 15)
    with _Ends(world) as ends:
        sink = ends.sink(destination)
        _sent(sink, outgoing(destination, wanted[:10], "life"))
        _sent(sink, outgoing(destination, wanted[:10], "life"))
    with _Ends(world) as ends:
        sink = ends.sink(destination)
        _sent(sink, outgoing(destination, wanted[5:12], "life", 6))
        _sent(sink, outgoing(destination, wanted[12:13], "another life"))
        _sent(sink, outgoing(destination, wanted[13:14]))
        _sent(sink, outgoing(destination, wanted[14:]))
    assert [message.body for message in world.collect(destination, 15)] == wanted


@_check("sends", "receives")
def check_a_large_batch(world: ContractWorld) -> None:
    """5,000 messages in one batch are confirmed, stored and received in order."""
    destination = world.destination()
    wanted = _bodies(world, 5000)
    with _Ends(world) as ends:
        _sent(ends.sink(destination), outgoing(destination, wanted, "life"))
    with _Ends(world) as ends:
        source = ends.source(destination, max_batch_size=5000)
        chunks = take(source, 5000, 5000)
        source.acknowledge(tokens(chunks))
        assert bodies(chunks) == wanted


# The content of messages.


def _round_trip(
    world: ContractWorld, messages: Sequence[Message], destination: str = "", source: str = "life"
) -> list[Message]:
    """Send the messages by a sink, and return them as a source has received them."""
    destination = destination or world.destination()
    with _Ends(world) as ends:
        _sent(ends.sink(destination), outgoing(destination, messages, source))
        chunks = take(ends.source(destination), len(messages))
    return [message for chunk in chunks for message in chunk.messages]


@_check("sends", "receives", "whole_messages")
def check_bodies_of_every_size(world: ContractWorld) -> None:
    """Bodies of 0 bytes, of every byte value, and of 1 MB arrive unchanged."""
    wanted = [b"", b"\0", bytes(range(256)), os.urandom(1_000_000), b"end"]
    assert [message.body for message in _round_trip(world, [Message(body) for body in wanted])] == wanted


@_check("sends", "receives", "whole_messages")
def check_properties_of_every_type(world: ContractWorld) -> None:
    """The value of every property arrives with its type: a bool is not turned into a number, nor bytes into text."""
    wanted: dict[str, PropertyValue] = {
        "none": None,
        "true": True,
        "false": False,
        "zero": 0,
        "big": 2**63 - 1,
        "negative": -(2**63),
        "float": 0.1,
        "whole float": 1.0,
        "text": "Grüße 🚚",
        "empty": "",
        "bytes": b"\x00\xff",
    }
    (received,) = _round_trip(world, [Message(b"x", wanted)])
    assert {name: received.properties[name] for name in wanted} == wanted
    assert all(type(received.properties[name]) is type(value) for name, value in wanted.items())


@_check("sends", "receives", "whole_messages")
def check_key_and_headers(world: ContractWorld) -> None:
    """The key and the headers that a sender sets arrive with the message."""
    headers = Headers(correlation_id="c-1", reply_to="queue:answers", type="order", priority=7)
    (received,) = _round_trip(world, [Message(b"x", {}, "customer 7", None, headers)])
    arrived = received.headers or Headers()
    assert received.key == "customer 7"
    assert (arrived.correlation_id, arrived.reply_to, arrived.type) == ("c-1", "queue:answers", "order")
    assert arrived.priority == 7
    assert not arrived.redelivered


@_check("sends", "receives", "delays", "not ends", "whole_messages")
def check_a_delayed_message_comes_later(world: ContractWorld) -> None:
    """A message with `delivery_delay_ms` is delivered after that time, and later messages are delivered before it."""
    destination, delay_s = world.destination(), 1.5
    with _Ends(world) as ends:
        source, sink = ends.source(destination), ends.sink(destination)
        begin = time.monotonic()
        delayed = Message(b"later", headers=Headers(delivery_delay_ms=int(delay_s * 1000)))
        _sent(sink, outgoing(destination, [delayed, b"now"]))
        chunks = take(source, 2)
        assert bodies(chunks) == [b"now", b"later"]
        assert time.monotonic() - begin >= delay_s * 0.9, "it came too early"
        source.acknowledge(tokens(chunks))


@_check("sends", "receives", "whole_messages")
def check_hostile_texts(world: ContractWorld) -> None:
    """Quotes, semicolons, control characters and any script arrive unchanged in properties, keys and bodies."""
    wanted = [Message(text.encode(), {f"p{at}": text}, text) for at, text in enumerate(HOSTILE_TEXTS)]
    received = _round_trip(world, wanted)
    assert [(m.body, m.key) for m in received] == [(m.body, m.key) for m in wanted]
    assert all(m.properties.items() <= r.properties.items() for m, r in zip(wanted, received, strict=True))


@_check("sends", "not receives")
def check_hostile_names_of_senders(world: ContractWorld) -> None:
    """As `check_hostile_names`, for a connector that only sends."""
    for life, name in enumerate(HOSTILE_TEXTS):
        try:
            destination = world.destination(label=name)
        except ConfigError:
            continue
        with _Ends(world) as ends:
            _sent(ends.sink(destination), outgoing(destination, [world.body("a")], f"life {life}"))
        assert [message.body for message in world.collect(destination, 1)] == [world.body("a")], name


@_check("sends", "receives")
def check_hostile_names(world: ContractWorld) -> None:
    """A destination with a hostile name is either refused with `ConfigError`, or works like any other destination."""
    for life, name in enumerate(HOSTILE_TEXTS):  # each has its source, since sequences may belong to a source
        try:
            destination = world.destination(label=name)
            received = _round_trip(world, [Message(world.body("a"))], destination, f"life {life}")
        except ConfigError:
            continue
        assert [message.body for message in received] == [world.body("a")], name
