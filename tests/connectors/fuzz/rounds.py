"""A round: an engine, a feed of hostile messages, and the check that every message is accounted for."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol
from unittest import mock

import msgspec

from connectors.embedded import content as embedded
from connectors.pulsar import content as pulsar
from connectors.rabbitmq import content as rabbitmq
from connectors.rabbitmq_stream import content as stream
from correlator import Engine, Message, Monitor, Reliability, event, on
from correlator.connector import Connection, Features, Source
from correlator.errors import SendRejected
from correlator.events import Outgoing
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.storage import inspect
from tests.connectors.fuzz.feeds import FEEDS

ROUND = 20_000
"""Messages of a round, unless told otherwise."""
SELECTOR = (
    "last = TRUE OR a > 5 OR x LIKE 'a%' OR JMSType = 'text' OR JMSPriority BETWEEN 1 AND 9 OR uniqueMessageId <> ''"
)
PATIENCE_S = 120.0
_NO_HOSTILE_NUMBER = 987_654_321
_MODE = Reliability.EXACTLY_ONCE


@event
class Last:
    """The event of the last message, whose fields hardly any hostile body has."""

    last: int


class Passes(Monitor, persistent=True):
    """Sends on every message that it gets."""

    handled: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.handled += 1
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
        assert msgspec.msgpack.encode(stored) == msgspec.msgpack.encode(message)
        self.send(message, to="out", key=message.key)

    @on(Last)
    def event(self, last: Last) -> None:
        self.handled += 1
        self.send(last, to="out")


class Feed(Protocol):
    """A connector, and the hostile messages that its broker holds for it."""

    destination: str
    patched: tuple[Any, str] | None
    connection: Connection
    left: int

    def feed(self, hostile: int, last: bytes) -> int:
        """Provide hostile messages and the last message after them; returns how many messages the source should get."""
        ...


class Everywhere:
    """The connection that the engine sends to: it encodes each message as every connector would, and keeps none.

    Args:
        last: body of the valid message, which comes last.

    Attributes:
        arrived: set when the valid message has arrived.
        sent: number of messages that have arrived.
        refused: number of messages that a connector could not carry, by connector.
    """

    features = Features()

    def __init__(self, last: bytes) -> None:
        self._last = last
        self.arrived = threading.Event()
        self.sent = 0
        self.refused: dict[str, int] = dict.fromkeys(_ENCODERS, 0)

    def source(self, _: ReceiverSettings) -> Source:
        """Refuse: nothing can be received."""
        raise NotImplementedError

    def sink(self, _: SenderSettings) -> "Everywhere":
        """Return itself: it is its own sink."""
        return self

    def connect(self) -> None:
        """Do nothing: there is no connection."""

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Encode the messages, and confirm them."""
        for outgoing in batch:
            for name, encode in _ENCODERS.items():
                try:
                    encode(outgoing)
                except (ValueError, TypeError, AttributeError):  # what sinks refuse a message for
                    self.refused[name] += 1
            if outgoing.message.body == self._last:
                self.arrived.set()
        self.sent += len(batch)
        return [None] * len(batch)

    def close(self) -> None:
        """Do nothing: there is no connection."""


_ENCODERS: dict[str, Callable[[Outgoing], object]] = {
    "rabbitmq": lambda one: rabbitmq.encode(one, "ID:1", 1, text=False, durable=True),
    "rabbitmq_stream": lambda one: stream.encode(one, "ID:1", 1),
    "pulsar": lambda one: pulsar.encode(one, "ID:1", "c", 1, text=False, durable=True, namespace="public/default"),
    "embedded": lambda one: embedded.encode(one.message),
}


class Figures(NamedTuple):
    """Numbers of the messages of a round, by their fate."""

    fed: int
    handled: int
    dead_letters: int
    unreadable: int
    duplicates: int
    expired: int
    unselected: int

    def __add__(self, other: "Figures") -> "Figures":  # type: ignore[override]
        return Figures(*map(sum, zip(self, other, strict=True)))


def campaign(
    connector: str, messages: int, seed: int, say: Callable[[str], None] = lambda _: None, of_round: int = ROUND
) -> Figures:
    """Run rounds until `messages` messages were fed. Raises the error of the first round that fails."""
    total = Figures(0, 0, 0, 0, 0, 0, 0)
    number = 0
    while total.fed < messages:
        number += 1
        try:
            total += one_round(connector, min(of_round, messages - total.fed), f"{seed}/{number}", number)
        except BaseException as error:
            error.add_note(f"round {number} of connector {connector}, seed {seed}")
            raise
        say(f"{number} rounds: {total}")
    return total


def one_round(connector: str, messages: int, seed: str, number: int) -> Figures:
    """Run one engine on a new store, and a second time on the store that the first life left."""
    with tempfile.TemporaryDirectory() as directory:
        feed = FEEDS[connector](Random(seed), Path(directory))
        settings = _settings(connector, feed.destination, Path(directory), number)
        figures = Figures(0, 0, 0, 0, 0, 0, 0)
        with _patched(feed):
            for life, part in enumerate((messages // 2, messages - messages // 2)):
                figures += _life(settings, feed, part, life)
        assert sum(figures[1:]) - figures.unreadable == figures.fed, f"not all are accounted for: {figures}"
        assert feed.left == 0, f"{feed.left} are not acknowledged"
        assert len(inspect.dead_letters(settings.store or "")) == figures.dead_letters
        return figures


@contextlib.contextmanager
def _patched(feed: Any) -> Iterator[None]:
    if feed.patched is None:
        yield
    else:
        owner, name = feed.patched
        with mock.patch.object(owner, name, feed.link):
            yield


def _life(settings: EngineSettings, feed: Feed, messages: int, number: int) -> Figures:
    last = b'{"last":%d}' % (_NO_HOSTILE_NUMBER + number)
    fed = feed.feed(max(0, messages - 1), last)
    sent_to = Everywhere(last)
    engine = Engine(settings, connections={"c": feed.connection, "everywhere": sent_to})
    with engine:
        deadline = time.monotonic() + PATIENCE_S
        while not sent_to.arrived.wait(0.2):
            engine.raise_failure()
            assert time.monotonic() < deadline, "the message behind them is not handled"
        counters = engine.receivers["in"].counters
    assert sent_to.sent == counters.delivered, "not all that were delivered are handled"
    return Figures(
        fed,
        counters.delivered,
        counters.dead_letters,
        counters.unreadable,
        counters.duplicates,
        counters.expired,
        counters.unselected,
    )


def _settings(connector: str, destination: str, directory: Path, number: int) -> EngineSettings:
    """The settings of a round: every fourth has a selector if the engine applies it, every fifth an event type."""
    return EngineSettings(
        name="fuzz",
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.05),
        status_interval=0,
        receivers=(
            ReceiverSettings(
                id="in",
                connection="c",
                destination=destination,
                reliability=_MODE,
                selector=SELECTOR if destination.startswith("topic:") and number % 4 == 0 else None,
                event=f"{__name__}:Last" if number % 5 == 0 else None,
                unique_message_id="${row.id}" if connector in ("file", "csv") else "${property.uniqueMessageId}",
                options=FEEDS[connector].options,
            ),
        ),
        senders=(SenderSettings(id="out", connection="everywhere", destination="queue:out", reliability=_MODE),),
        monitors=(MonitorSettings(type=f"{__name__}:Passes"),),
    )
