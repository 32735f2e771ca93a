"""Reads the content of a topic with a reader of Pulsar's client, without the connector."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pulsar

from tests.connectors.campaign.board import Board, name_of

READ_TIMEOUT_MS = 60_000
LOOK_MS = 200
_NOWHERE = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


@dataclass(slots=True)
class Stored:
    """The content of a topic.

    Attributes:
        orders: how often the topic has each order.
        ids: how often the topic has each unique id.
    """

    orders: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)

    @property
    def repeats(self) -> int:
        """The number of messages beyond the first of each id."""
        return self.ids.total() - len(self.ids)

    def violations(self, *, may_repeat: bool) -> list[str]:
        """Ids that one sender cannot have stored, since it numbers from 1 on without gaps."""
        if len({one.partition(":")[2] for one in self.ids}) > 1:
            return [f"several sources of the messages of one sender: {sorted(self.ids)}"]
        numbers = {int(one.partition(":")[0]) for one in self.ids}
        missing = sorted(set(range(1, len(numbers) + 1)) - numbers)
        found = [f"the sender's messages {missing} are not stored"] if missing else []
        if self.repeats and not may_repeat:
            found.append(f"messages stored more than once: {[one for one, times in self.ids.items() if times > 1]}")
        return found


def stored_in(url: str, topic: str) -> Stored:
    """Read a topic from its first message to its last."""
    stored = Stored()
    with _reader(url, topic) as reader:
        while reader.has_message_available():
            message = reader.read_next(READ_TIMEOUT_MS)
            stored.orders[name_of(message.data())] += 1
            stored.ids[message.properties()["uniqueMessageId"]] += 1
    return stored


class Follower:
    """Follows a topic in a thread of its own, and notes each stored message on the board.

    It does not note again the messages that it reads a second time after a lost connection.
    """

    def __init__(self, url: str, topic: str, board: Board) -> None:
        self._url = url
        self._topic = topic
        self._board = board
        self._ending = threading.Event()

    def end(self) -> None:
        """End at once."""
        self._ending.set()

    def run(self) -> None:
        """Read until the end."""
        places = set()
        with _reader(self._url, self._topic) as reader:
            while not self._ending.is_set():
                with contextlib.suppress(pulsar.Timeout):
                    message = reader.read_next(LOOK_MS)
                    place = message.message_id().serialize()
                    if place not in places:
                        places.add(place)
                        self._board.note(counted=name_of(message.data()))


@contextlib.contextmanager
def _reader(url: str, topic: str) -> Iterator[pulsar.Reader]:
    client = pulsar.Client(url, logger=_NOWHERE)
    try:
        yield client.create_reader(topic, pulsar.MessageId.earliest)
    finally:
        client.close()
