"""The feed of RabbitMQ: frames of deliveries at the link of the source; the connector splits and decodes them."""

import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from connectors.rabbitmq import RabbitConnection, source
from connectors.rabbitmq.frames import small_deliveries
from connectors.rabbitmq.wire import Fields, encode_fields
from correlator.settings import ConnectionSettings
from tests.connectors.fuzz import mutations
from tests.connectors.fuzz.mutations import NAMES, damaged, maybe, number, text

_DELIVER = b"\0\x3c\0\x3c\4ctag"
_DEEPEST = 600
_FIXED = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "U": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "l": 8,
    "L": 8,
    "f": 4,
    "d": 8,
    "T": 8,
    "D": 5,
}
_KINDS: tuple[str, ...] = (*_FIXED, *"SSSxVAF")


class RabbitFeed:
    """A queue of hostile deliveries, in memory.

    Attributes:
        left: number of messages that are not acknowledged.
    """

    destination = "topic:fuzz"
    options: dict[str, Any] = {}
    patched = source, "RabbitLink"

    def __init__(self, random: Random, _: Path) -> None:
        self.connection = RabbitConnection("c", ConnectionSettings(type="rabbitmq"))
        self._random = random
        self.waiting: deque[tuple[bytes, bytes]] = deque()
        self.left = 0

    def feed(self, hostile: int, last: bytes) -> int:
        """Queue `hostile` hostile messages and the last message."""
        self.waiting.extend(self._hostile() for _ in range(hostile))
        self.waiting.append((encode_fields(Fields(headers={"last": True})), last))
        self.left += hostile + 1
        return hostile + 1

    def link(self, *arguments: Any) -> "FedLink":
        """A link in the place of the connector's own link."""
        return FedLink(self, *arguments)

    def _hostile(self) -> tuple[bytes, bytes]:
        random = self._random
        properties = _properties(random)
        return damaged(random, properties) if random.random() < 0.35 else properties, mutations.body(random)


class FedLink:
    """The part of a server that the source uses: it delivers up to the prefetch, and redelivers."""

    fault = None

    def __init__(
        self, feed: RabbitFeed, _where: str, _broker: Any, _changed: Any, deliver: Callable[..., None]
    ) -> None:
        self._feed = feed
        self._deliver = deliver
        self._prefetch = 0
        self._tag = 0
        self._unacknowledged: dict[int, tuple[bytes, bytes]] = {}

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def ask(self, _: Any) -> None:
        """Answer every question as if everything existed."""

    def consume(self, _: str, prefetch: int, *, exclusive: bool = False) -> None:
        """Begin to deliver."""
        self._prefetch = prefetch

    def check(self) -> None:
        """Deliver as many messages as the prefetch allows."""
        frames = []
        while self._feed.waiting and len(self._unacknowledged) < self._prefetch:
            self._tag += 1
            self._unacknowledged[self._tag] = one = self._feed.waiting.popleft()
            frames.append(_frames(self._tag, *one))
        deliveries, end, _ = small_deliveries(b"".join(frames))
        assert (len(deliveries), end) == (len(frames), sum(map(len, frames)))
        for delivery in deliveries:
            self._deliver(delivery)

    def tell(self, action: Callable[[Any], object]) -> None:
        """Carry out acknowledgements."""
        action(self)

    def basic_ack(self, tag: int, multiple: bool) -> None:  # as pika has it
        """Acknowledge one delivery, or all deliveries up to its tag."""
        for one in [one for one in self._unacknowledged if one == tag or (multiple and one < tag)]:
            del self._unacknowledged[one]
            self._feed.left -= 1

    def begin(self, _: Any) -> "Future[Any]":
        """Take a request, whose answer is there at once."""
        answer: Future[Any] = Future()
        answer.set_result(None)
        return answer

    def finish(self, answer: "Future[Any]") -> Any:
        """Return the answer of the request."""
        return answer.result()

    def close(self) -> None:
        """Give back all messages that are not acknowledged."""
        self._feed.waiting.extendleft(reversed(self._unacknowledged.values()))
        self._unacknowledged = {}


def _frames(tag: int, properties: bytes, body: bytes) -> bytes:
    method = _DELIVER + struct.pack(">Q?", tag, False) + b"\0\0"
    pieces = [_frame(1, method), _frame(2, struct.pack(">HHQ", 60, 0, len(body)) + properties)]
    return b"".join([*pieces, _frame(3, body)] if body else pieces)


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def _properties(random: Random) -> bytes:
    """All properties that the protocol has, with a table of headers of any kind."""
    short = lambda one: text(one).encode()[:255].decode(errors="ignore")  # noqa: E731
    values = [
        *(maybe(random, 0.2, short) for _ in range(2)),
        None,
        maybe(random, 0.3, lambda one: one.randrange(256)),
        maybe(random, 0.3, lambda one: one.randrange(256)),
        *(maybe(random, 0.2, short) for _ in range(4)),
        maybe(random, 0.2, lambda one: one.choice((0, 1, 2**32, 2**63, mutations.LARGEST))),
        *(maybe(random, 0.1, short) for _ in range(4)),
    ]
    fields = Fields(*values)
    encoded = encode_fields(fields)
    table = b"".join(_entry(random) for _ in range(random.randrange(6)))
    if not table:
        return encoded
    at = 2 + sum(1 + len(one.encode()) for one in fields[:2] if one is not None)
    flags = int.from_bytes(encoded[:2], "big") | 1 << 13
    return flags.to_bytes(2, "big") + encoded[2:at] + _counted(table) + encoded[at:]


def _counted(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def _entry(random: Random) -> bytes:
    name = random.choice(NAMES).encode()
    return bytes((len(name),)) + name + _value(random, 0)


def _value(random: Random, depth: int) -> bytes:
    kind = random.choice(_KINDS)
    if kind in _FIXED:
        size = _FIXED[kind]
        odd = (number(random) % 2**64).to_bytes(8, "big")[-size:].rjust(size, b"\0")
        return kind.encode() + (odd if random.random() < 0.7 else random.randbytes(size))
    if kind in "Sx":
        content = text(random).encode() if random.random() < 0.8 else random.randbytes(5)
        return kind.encode() + _counted(content)
    if kind == "A":
        return _nested(random, depth)
    if kind == "F":
        return b"F" + _counted(b"" if depth > 3 else bytes((1, 110)) + _value(random, depth + 1))
    return kind.encode()


def _nested(random: Random, depth: int) -> bytes:
    """An array of values; seldom an array in an array in an array."""
    content = b"" if depth > 3 else b"".join(_value(random, depth + 1) for _ in range(random.randrange(4)))
    if random.random() < 0.005:
        for _ in range(_DEEPEST):
            content = b"A" + _counted(content)
    return b"A" + _counted(content)
