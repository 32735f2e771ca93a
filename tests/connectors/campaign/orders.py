"""The orders of a campaign whose broker, the embedded one, outlives the kills."""

from pathlib import Path
from typing import Any

from connectors.embedded import EmbeddedConnection
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings


class Orders:
    """Puts orders into a queue while an engine runs, and knows how many there are.

    Args:
        directory: has the database of the broker.
        queue: the name of the queue.
    """

    def __init__(self, directory: Path, queue: str) -> None:
        self._destination = f"queue:{queue}"
        options = {"store": f"sqlite:///{directory}/broker.db"}
        connection = EmbeddedConnection("local", ConnectionSettings(type="embedded", options=options))
        self._sink = connection.sink(SenderSettings(id="p", connection="local", destination=self._destination))
        self._sink.connect()
        self.orders = 0

    def publish(self, number: int) -> None:
        """Publish so many orders."""
        batch = [self._order(n) for n in range(self.orders + 1, self.orders + number + 1)]
        for refused in filter(None, self._sink.send(batch)):
            raise refused
        self.orders += number

    def close(self) -> None:
        """Close the connection."""
        self._sink.close()

    def _order(self, number: int) -> Outgoing:
        properties: dict[str, Any] = {"uniqueMessageId": f"{number}:publisher", "messageSourceId": "publisher"}
        return Outgoing(number, "publisher", self._destination, Message(b"%d" % number, properties))
