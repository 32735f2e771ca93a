"""Clients that send orders to an engine by HTTP."""

import http.client
import itertools
import threading
import time
from collections.abc import Callable, Sequence

from tests.connectors.campaign.life import PATIENCE_S
from tests.connectors.web import post

NUMBER = 4
_PAUSE_S = 0.01
_TRY_AGAIN = (503, 404)


class Clients:
    """Send numbered orders from several threads, each again until it is answered 202.

    Args:
        port: where an engine listens, on this machine.
        body_of: makes the body of the order with a number.
        key_of: makes the key of a request from the number of its order and that of the try, both from 1; none if empty.
        pause_s: how long a client waits between two orders.

    Attributes:
        begun: number of orders that were begun.
        stored: the bodies of the orders that were answered 202.
        repeats: number of requests beyond the first of an order.
        failures: what no server should have answered.
    """

    def __init__(
        self, port: int, body_of: Callable[[int], bytes], key_of: Callable[[int, int], str], *, pause_s: float = 0.0
    ) -> None:
        self._address = "127.0.0.1", port
        self._body_of = body_of
        self._key_of = key_of
        self._pause_s = pause_s
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.begun = 0
        self.stored: list[bytes] = []
        self.repeats = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(NUMBER)]
        for thread in self._threads:
            thread.start()

    @property
    def names(self) -> Sequence[str]:
        """The bodies of the orders that were answered 202, as texts."""
        with self._lock:
            return [body.decode() for body in self.stored]

    @property
    def is_one_waiting(self) -> bool:
        """Whether an order is begun and not answered."""
        with self._lock:
            return self.begun > len(self.stored)

    def end(self) -> None:
        """Begin no further order, and wait until all are stored."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an order is not stored"

    def _send(self) -> None:
        while not self._ended.wait(self._pause_s):
            with self._lock:
                number = self.begun = next(self._numbers)
            body, tries = self._body_of(number), 1
            while not self._is_stored(body, self._key_of(number, tries)):
                tries += 1
                time.sleep(_PAUSE_S)
            with self._lock:
                self.stored.append(body)
                self.repeats += tries - 1

    def _is_stored(self, body: bytes, key: str) -> bool:
        try:
            got = post(self._address, "/orders", body, {"Idempotency-Key": key} if key else {})
        except (OSError, http.client.HTTPException):
            return False
        if got.status not in (202, *_TRY_AGAIN):
            self.failures.append(f"{body!r}: {got.status} {got.text}")
        return got.status == 202
