"""Helpers for the tests of the RabbitMQ connector."""

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import pytest

from correlator import Reliability
from correlator.connector import Source
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies
from correlator.testing.network import FaultProxy

LONG_S = 120.0


class End(Protocol):
    """A source or a sink."""

    def connect(self) -> None:
        """Connect."""

    def close(self) -> None:
        """Close."""


AnEnd = TypeVar("AnEnd", bound=End)


def receiver(queue: str, **options: Any) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="rabbit", destination=f"queue:{queue}", options=options)


def sender(queue: str | None, **options: Any) -> SenderSettings:
    destination = None if queue is None else f"queue:{queue}"
    return SenderSettings(id="s", connection="rabbit", destination=destination, options=options)


def outgoing(queue: str, *contents: Message | bytes) -> list[Outgoing]:
    return [
        Outgoing(number, "life", f"queue:{queue}", content if isinstance(content, Message) else Message(content))
        for number, content in enumerate(contents, 1)
    ]


@contextlib.contextmanager
def opened(end: AnEnd) -> Generator[AnEnd]:
    try:
        end.connect()
        yield end
    finally:
        end.close()


def lost(call: Callable[[], object]) -> ConnectionLost:
    """The `ConnectionLost` that the call raises."""
    with pytest.raises(ConnectionLost) as raised:
        call()
    return raised.value


def lost_by(source: Source) -> ConnectionLost:
    """The `ConnectionLost` that ends receiving."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            source.receive(1, 0.2)
        except ConnectionLost as error:
            return error
    raise AssertionError("nothing ends")


def drained(source: Source, different: int) -> list[bytes]:
    """All bodies, repeats included, until `different` bodies have come and no further message does."""
    received: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        chunk = source.receive(1000, 0.2)
        if not chunk.messages and len(set(received)) >= different:
            break
        received += bodies([chunk])
        source.acknowledge(chunk.tokens)
    return received


class Seen:
    """Counts how often each body was handled. These engines never crash, so the counts need not be state."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self._changed = threading.Condition()
        self._most = math.inf

    def add(self, body: bytes) -> None:
        """Count a message; waits while there are as many as `hold_at` allows."""
        with self._changed:
            self.counts[body] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.counts) < self._most, LONG_S)

    def hold_at(self, most: float) -> None:
        """Let the handler wait when it has seen so many different messages; `math.inf` lets it go on."""
        with self._changed:
            self._most = most
            self._changed.notify_all()

    def wait_for(self, different: int) -> None:
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.counts) >= different, LONG_S)
            assert enough, f"{len(self.counts)} of {different}"


def forwarding(
    name: str,
    store: str | None,
    monitor: str,
    source: str,
    target: str,
    *,
    receiver_id: str = "in",
    batch: int = 20,
    sent: int = 20,
    **settings: Any,
) -> EngineSettings:
    """An engine whose monitor sends to the sender `out`, EXACTLY_ONCE on both sides."""
    mode = Reliability.EXACTLY_ONCE
    return EngineSettings(
        name=name,
        store=store,
        receivers=(
            ReceiverSettings(
                id=receiver_id,
                connection="rabbit",
                destination=f"queue:{source}",
                reliability=mode,
                max_batch_size=batch,
            ),
        ),
        senders=(
            SenderSettings(
                id="out", connection="rabbit", destination=f"queue:{target}", reliability=mode, max_batch_size=sent
            ),
        ),
        monitors=(MonitorSettings(type=monitor),),
        **settings,
    )


def lose_again_and_again(
    port: int, source_at: Callable[[int], Source], times: int, hold: Callable[[Source], object] = lambda _: None
) -> None:
    """Let a source lose its connection, and be refused, through a proxy; checks that no thread is left.

    Where the client connects again by itself, only a message that is held shows it: `hold` takes one.
    """
    before = threading.active_count()
    with FaultProxy(port) as proxy:
        source = source_at(proxy.port)
        for _ in range(times):
            source.connect()
            hold(source)
            proxy.cut()
            lost_by(source)
        proxy.refuse()
        for _ in range(times):
            assert lost(source.connect).code == "E7001"
        source.close()
    assert threading.active_count() <= before


def codes(results: Sequence[SendRejected | None]) -> list[str | None]:
    return [None if result is None else result.code for result in results]
