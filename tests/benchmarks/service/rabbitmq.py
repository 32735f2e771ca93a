"""RabbitMQ with pika as a peer: a durable classic queue, and confirms of the server."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.service.clients import python_client
from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.pika_client import PREFETCH
from tests.rabbit_server import RabbitServer


class Rabbit:
    """The server of the tests."""

    def __init__(self) -> None:
        self.settings = ""
        self._server = RabbitServer()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def start(self) -> None:
        """Start it."""
        self._server.start()
        server = self._server.control("version").strip()
        client = f"pika {version('pika')}, prefetch {PREFETCH}, acknowledgements are not answered"
        self.settings = f"RabbitMQ {server}, durable classic queue, confirms; {client}"

    def close(self) -> None:
        """End it."""
        self._server.close()

    def client(self) -> Sequence[str | Path]:
        """A client of it."""
        server = self._server
        return python_client("pika_client", str(server.port), server.user, server.password)


def rabbitmq() -> BrokerPeer:
    """RabbitMQ."""
    return BrokerPeer("rabbitmq", Rabbit)
