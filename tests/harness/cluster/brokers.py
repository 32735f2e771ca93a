"""The brokers from which the engine of the campaign receives and to which it sends: their settings, and
their contents.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.pulsar import PulsarConnection
from connectors.rabbitmq import RabbitConnection
from correlator import connector as port
from correlator.connector import Source
from correlator.errors import ConnectionLost, CorrelatorError
from correlator.events import Message
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.servers import PostgresServer, running
from tests.waiting import wait_until

ITEMS, LINKS = "queue:items", "queue:links"
EMBEDDED, RABBITMQ, PULSAR = "embedded", "rabbitmq", "pulsar"
_AGAIN_S = 0.2
"""Seconds between two attempts to reach a server that does not answer."""
_PATIENCE_S = 300.0


class Broker(Protocol):
    """A broker with the queues `ITEMS` and `LINKS`.

    Attributes:
        settings: settings of the connection in the engine's file.
    """

    settings: Mapping[str, Any]

    def publish(self, messages: Sequence[Message]) -> None:
        """Put messages into `ITEMS`. Raises `CorrelatorError` if it is unknown which of them were stored."""
        ...

    @property
    def come(self) -> int:
        """Return how many different messages are in `LINKS`; -1 if the broker does not answer."""
        ...

    def links(self) -> Sequence[bytes]:
        """Return the bodies in `LINKS` once all are there, without repeats if the broker does not drop them itself."""
        ...

    def close(self) -> None:
        """Close connections and end threads."""
        ...


class Server(Protocol):
    """The process of a broker, which can be killed and started again."""

    def start(self) -> None:
        """Start it, and wait until it answers."""
        ...

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        ...


class EmbeddedBroker:
    """The embedded broker over a database.

    Args:
        store: address of the database.
    """

    def __init__(self, store: str) -> None:
        self.settings: Mapping[str, Any] = {"type": EMBEDDED, "store": store}
        settings = ConnectionSettings(type=EMBEDDED, options={"store": store})
        self._connection = EmbeddedConnection("world", settings)
        self._connection.create(ITEMS, {"max_num_msgs": -1})
        self._connection.create(LINKS, {"max_num_msgs": -1})
        self._factory = ConnectionFactory(EmbeddedConnection, {"store": store})

    def publish(self, messages: Sequence[Message]) -> None:
        """Put messages into `ITEMS` in one transaction."""
        with self._factory.create_connection() as connection:
            session = connection.create_session(AcknowledgeMode.TRANSACTED)
            producer = session.create_producer(ITEMS)
            for message in messages:
                producer.send(message)
            session.commit()

    @property
    def come(self) -> int:
        """Return how many messages are in `LINKS`."""
        try:
            found = self._connection.administration().destinations()
        except CorrelatorError:
            return -1
        return next((one.messages for one in found if one.destination == LINKS), 0)

    def links(self) -> Sequence[bytes]:
        """Return the stored bodies: this broker drops repeats of an `EXACTLY_ONCE` sender."""
        return [message.body for message in self._connection.browse(LINKS, 10_000_000)]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ServerBroker:
    """A broker that is a server. A thread takes the messages of `LINKS`, even while the server is killed.

    Args:
        make: function that makes a connection.
        settings: settings of the connection in the engine's file.
        watching: options of the receiver that takes the messages meanwhile.
        untouched: whether another subscription keeps all messages until the end, so that repeats of the sender show.
    """

    def __init__(
        self,
        make: port.ConnectionFactory,
        settings: Mapping[str, Any],
        watching: Mapping[str, Any],
        *,
        untouched: bool,
    ) -> None:
        self.settings = settings
        options = {name: value for name, value in settings.items() if name != "type"}
        self._connection = make("world", ConnectionSettings(type=settings["type"], options=options))
        self._factory = ConnectionFactory(make, options)
        self._untouched = untouched
        self._found: dict[tuple[object, object], bytes] = {}
        self._rests = 0
        self._ended = threading.Event()
        for destination, more in ((ITEMS, {}), (LINKS, {}), (LINKS, watching)):
            with _connected(self._source(destination, more)):
                """Make the queue or subscription."""
        self._thread = threading.Thread(target=self._watch, args=(self._source(LINKS, watching),))
        self._thread.start()

    def publish(self, messages: Sequence[Message]) -> None:
        """Put messages into `ITEMS`, one after another."""
        with self._factory.create_connection() as connection:
            producer = connection.create_session().create_producer(ITEMS)
            for message in messages:
                producer.send(message)

    @property
    def come(self) -> int:
        """Return how many different messages were in `LINKS`."""
        return len(self._found)

    def links(self) -> Sequence[bytes]:
        """Return the bodies, without repeats unless the broker has to drop them."""
        if self._untouched:
            with _connected(self._source(LINKS, {})) as source:
                return [message.body for message in _all(source)]
        rests = self._rests
        wait_until(lambda: self._rests >= rests + 2, within_s=_PATIENCE_S, every_s=_AGAIN_S)  # nothing is under way
        return list(self._found.values())

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def _source(self, destination: str, options: Mapping[str, Any]) -> Source:
        settings = ReceiverSettings(id="world", connection="world", destination=destination, options=dict(options))
        return self._connection.source(settings)

    def _watch(self, source: Source) -> None:
        while not self._ended.is_set():
            try:
                source.connect()
                while not self._ended.is_set():
                    self._take(source)
            except ConnectionLost:
                self._ended.wait(_AGAIN_S)
        source.close()

    def _take(self, source: Source) -> None:
        chunk = source.receive(1000, _AGAIN_S)
        self._rests += not chunk.messages
        for message in chunk.messages:
            name = message.properties["messageSourceId"], message.properties["uniqueMessageId"]
            assert self._found.setdefault(name, message.body) == message.body, "a repeat has the same bytes"
        source.acknowledge(chunk.tokens)


@contextlib.contextmanager
def _connected(source: Source) -> Iterator[Source]:
    try:
        source.connect()
        yield source
    finally:
        source.close()


def _all(source: Source) -> Iterator[Message]:
    """Yield all messages of a subscription; the broker sends them without a pause."""
    while chunk := source.receive(1000, 5.0):
        if not chunk.messages:
            return
        yield from chunk.messages
        source.acknowledge(chunk.tokens)


def on_rabbitmq(server: RabbitServer) -> ServerBroker:
    """Make the broker on a RabbitMQ server, which stores repeats of a sender."""
    settings = {"type": RABBITMQ, **server.options, "queue_type": "quorum"}
    return ServerBroker(RabbitConnection, settings, {}, untouched=False)


def on_pulsar(server: PulsarServer) -> ServerBroker:
    """Make the broker on a Pulsar server, in a namespace of its own that drops repeats of a sender."""
    namespace = server.namespace(deduplication=True)
    settings = {"type": PULSAR, **server.options, "namespace": namespace, "deduplication": True}
    return ServerBroker(PulsarConnection, settings, {"queue_subscription": "watch"}, untouched=True)


@contextlib.contextmanager
def broker_of(kind: str, database: PostgresServer) -> Iterator[tuple[Broker, Server]]:
    """Yield a broker, and the server to kill when the broker is to be killed."""
    with contextlib.ExitStack() as stack:
        broker: Broker
        server: Server = database
        if kind == RABBITMQ:
            server = rabbit = stack.enter_context(running(RabbitServer()))
            broker = on_rabbitmq(rabbit)
        elif kind == PULSAR:
            server = pulsar = stack.enter_context(running(PulsarServer()))
            broker = on_pulsar(pulsar)
        else:
            broker = EmbeddedBroker(database.fresh_database())
        stack.callback(broker.close)
        yield broker, server
