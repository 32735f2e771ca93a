"""The publisher, which sends the orders of a campaign."""

import random
import threading
from typing import Any

from correlator import Message
from correlator.connector import Sink
from correlator.errors import ConnectionLost
from correlator.events import Outgoing
from tests.connectors.campaign.board import LOOK_S, Board, body_of

RETRY_S = 0.1
MOST_UNDER_WAY = 300
LARGEST_PUBLICATION = 40


class Publisher:
    """Publishes orders with fixed ids, in its own thread, and repeats orders that the broker has not confirmed.

    Attributes:
        repeated: number of orders that were sent again.
        connection_errors: number of lost and refused connections.
    """

    def __init__(self, sink: Sink, queue: str, rng: random.Random, board: Board) -> None:
        self.repeated = 0
        self.connection_errors = 0
        self._sink = sink
        self._queue = queue
        self._rng = rng
        self._board = board
        self._connected = False
        self._finishing = threading.Event()
        self._given_up = threading.Event()

    def finish(self) -> None:
        """Wait until all orders are counted, send one more order after them, and end."""
        self._finishing.set()

    def give_up(self) -> None:
        """End at once."""
        self._given_up.set()

    def run(self) -> None:
        """Publish orders; raises the error of an order that the server refuses."""
        board = self._board
        try:
            while not (self._finishing.is_set() or self._given_up.is_set()):
                if board.wait(lambda: board.under_way < MOST_UNDER_WAY, LOOK_S):
                    self._publish(self._rng.randint(1, LARGEST_PUBLICATION))
            while not (self._given_up.is_set() or board.wait(lambda: board.under_way <= 0, LOOK_S)):
                continue
            if not self._given_up.is_set():
                self._publish(1)
        finally:
            self._sink.close()

    def _publish(self, count: int) -> None:
        first = self._board.begun
        batch = [self._outgoing(number) for number in range(first, first + count)]
        self._board.note(begun=count)
        tried = False
        while not self._given_up.is_set():
            try:
                self._connect()
                self.repeated += count if tried else 0
                tried = True
                for refused in filter(None, self._sink.send(batch)):
                    raise refused
            except ConnectionLost:
                self._connected = False
                self.connection_errors += 1
                self._given_up.wait(RETRY_S)
            else:
                self._board.note(confirmed=count)
                return

    def _connect(self) -> None:
        if not self._connected:
            self._sink.connect()
            self._connected = True

    def _outgoing(self, number: int) -> Outgoing:
        properties: dict[str, Any] = {"uniqueMessageId": f"{number}:publisher", "messageSourceId": "publisher"}
        return Outgoing(number + 1, "publisher", f"queue:{self._queue}", Message(body_of(number), properties))
