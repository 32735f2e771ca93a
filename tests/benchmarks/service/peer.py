"""What the benchmark compares: a broker with one process that produces and one that consumes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.benchmarks.service.clients import Client, Span
from tests.benchmarks.service.processor import processor_s


class Result(NamedTuple):
    """Messages a second, and microseconds of processor time for each, of the clients and of the server."""

    rate: float
    client_us: float
    server_us: float


class Peer(Protocol):
    """A broker, ours or another. A batch of 1 is singly (`clients` says what that means)."""

    name: str
    settings: str
    """Version and settings, for the reader of the figures; complete after `start`."""

    def start(self) -> None:
        """Start server and clients."""

    def stop(self) -> None:
        """End all, and remove the data."""

    def produce(self, count: int, batch: int) -> Result:
        """Send so many messages to a queue that nobody reads."""

    def consume(self, count: int, batch: int) -> Result:
        """Receive so many messages that wait."""

    def both(self, count: int, batch: int) -> Result:
        """Send and receive at the same time."""

    def delays(self, count: int, gap_ms: int) -> Sequence[float]:
        """Milliseconds from send to receipt of so many messages, when the receiver waits for each."""


class BrokerServer(Protocol):
    """The server of a peer; a broker without one has a directory."""

    settings: str

    @property
    def pid(self) -> int | None:
        """Its process; its descendants belong to it."""

    def start(self) -> None:
        """Start, and wait until it can be used."""

    def close(self) -> None:
        """End it, and remove its data."""

    def client(self) -> Sequence[str | Path]:
        """The command of a client of it."""


class BrokerPeer:
    """The peer of a server and its clients."""

    def __init__(self, name: str, make: Callable[[], BrokerServer]) -> None:
        self.name = name
        self.settings = ""
        self._make = make
        self._server: BrokerServer | None = None
        self._clients: list[Client] = []

    def start(self) -> None:
        """Start server and clients."""
        self._server = self._make()
        self._server.start()
        self.settings = self._server.settings
        self._clients = [self.client(), self.client()]

    def client(self) -> Client:
        """Start one more client, which the caller closes."""
        assert self._server is not None
        return Client(self._server.client())

    def server_s(self) -> float:
        """Processor time of the server so far, in seconds."""
        assert self._server is not None
        return 0.0 if self._server.pid is None else processor_s(self._server.pid)

    def stop(self) -> None:
        """End all."""
        for client in self._clients:
            client.close()
        self._clients = []
        if self._server is not None:
            self._server.close()
        self._server = None

    def produce(self, count: int, batch: int) -> Result:
        """Fill the queue."""
        return self._measured(count, self._clients[:1], [("produce", count, batch)])

    def consume(self, count: int, batch: int) -> Result:
        """Drain the queue."""
        return self._measured(count, self._clients[1:], [("consume", count, batch)])

    def both(self, count: int, batch: int) -> Result:
        """Together."""
        return self._measured(count, self._clients, [("produce", count, batch), ("consume", count, batch)])

    def delays(self, count: int, gap_ms: int) -> Sequence[float]:
        """The receiver waits; the sender pauses before each message."""
        producer, consumer = self._clients
        consumer.ask("delays", count, 0)
        producer.call("pace", count, gap_ms)
        return consumer.answer()

    def call(self, *words: object) -> Sequence[float]:
        """A further command of our own clients, to the producer."""
        return self._clients[0].call(*words)

    def span(self, *words: object) -> Span:
        """One that answers when it began and ended."""
        return self._clients[0].span(*words)

    def _measured(self, count: int, clients: Sequence[Client], commands: Sequence[tuple[object, ...]]) -> Result:
        client_s, server_s = sum(processor_s(client.pid) for client in clients), self.server_s()
        for client, command in zip(clients, commands, strict=True):
            client.ask(*command)
        spans = [Span(*client.answer()) for client in clients]
        whole = Span(min(span.begin_ns for span in spans), max(span.end_ns for span in spans))
        client_s = sum(processor_s(client.pid) for client in clients) - client_s
        return Result(count / whole.seconds, client_s / count * 1e6, (self.server_s() - server_s) / count * 1e6)
