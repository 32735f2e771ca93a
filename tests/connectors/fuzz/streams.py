"""The feed of RabbitMQ streams: chunks of entries and of packed batches, at the link of the source."""

import gzip
import struct
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rstream import exceptions

from connectors.rabbitmq_stream import StreamConnection, source
from connectors.rabbitmq_stream import content as stream
from connectors.rabbitmq_stream.wire import encode_data_section
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings
from tests.connectors.fuzz import mutations
from tests.connectors.fuzz.mutations import LARGEST, NAMES, damaged, maybe, number, text

_SECTIONS = (0x70, 0x71, 0x72, 0x73, 0x74, 0x74, 0x74, 0x75, 0x76, 0x77, 0x78, 0x99)
_MOST_IN_A_CHUNK = 40
_DEEPEST = 600
_FIXED = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x73, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
_CODES: tuple[int, ...] = (*_FIXED, *[0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3] * 3, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0, 0x00)


class Delivered(NamedTuple):
    """A delivery as rstream returns it, with the fields that the source uses."""

    subscription_id: int
    chunk_first_offset: int
    timestamp: int
    num_entries: int
    data: bytes


class StreamFeed:
    """A stream with hostile chunks, in memory."""

    destination = "queue:fuzz"
    options: dict[str, Any] = {}
    patched = source, "StreamLink"

    def __init__(self, random: Random, _: Path) -> None:
        self.connection = StreamConnection("c", ConnectionSettings(type="rabbitmq_stream"))
        self._random = random
        self.chunks: list[Delivered] = []
        self.firsts: list[int] = []
        self.end = 0
        self.stored: int | None = None

    @property
    def left(self) -> int:
        """The number of messages that are not acknowledged."""
        return self.end - 1 - (-1 if self.stored is None else self.stored)

    def feed(self, hostile: int, last: bytes) -> int:
        """Append chunks of `hostile` messages, and a chunk of the last message; returns the number of messages."""
        begun = self.end
        while self.end - begun < hostile:
            self._append(min(hostile - (self.end - begun), self._random.randint(1, _MOST_IN_A_CHUNK)))
        self._put([_entry(stream.encode(Outgoing(1, "life", "", Message(last, {"last": True})), "ID:1", 0))], 1)
        return self.end - begun

    def link(self, *arguments: Any) -> "FedLink":
        """A link in the place of the connector's own link."""
        return FedLink(self, *arguments)

    def _append(self, most: int) -> None:
        entries, records = [], 0
        while records < most:
            if self._random.random() < 0.05 and most - records > 1:
                number = self._random.randint(1, most - records)
                entries.append(_batch(self._random, number))
            else:
                number = 1
                entries.append(_entry(_message(self._random)))
            records += number
        self._put(entries, records)

    def _put(self, entries: list[bytes], records: int) -> None:
        self.chunks.append(Delivered(0, self.end, 1_700_000_000_000, len(entries), b"".join(entries)))
        self.firsts.append(self.end)
        self.end += records


class FedLink:
    """The part of a RabbitMQ server that the source uses: chunks for credits, and the stored offset."""

    fault = None

    def __init__(self, feed: StreamFeed, *_: Any) -> None:
        self._feed = feed
        self._handle: Callable[[Any], Awaitable[None]]
        self._subscription = 0
        self._next = 0
        self._credits = 0
        self._delivering = False

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def open_at(self, _: Any) -> None:
        """Open the stream, which is there."""

    def exists(self, _: str) -> bool:
        """Always `True`."""
        return True

    def check(self) -> None:
        """Deliver as many chunks as there are credits."""
        while self._credits and self._next < len(self._feed.chunks):
            self._credits -= 1
            chunk = self._feed.chunks[self._next]._replace(subscription_id=self._subscription)
            self._next += 1
            _done(self._handle(chunk))

    def ask(self, request: Callable[["FedLink"], Coroutine[Any, Any, Any]], _: str) -> Any:
        """Answer a request at once."""
        return _done(request(self))

    def begin(self, request: Callable[["FedLink"], Coroutine[Any, Any, Any]], _: str) -> "Future[Any]":
        """Take a request, whose answer is there at once."""
        answer: Future[Any] = Future()
        answer.set_result(_done(request(self)))
        return answer

    def finish(self, answer: "Future[Any]") -> Any:
        """Return the answer of the request."""
        return answer.result()

    def close(self) -> None:
        """Do nothing: there is no connection."""

    # --- as the connection of rstream ---

    async def listen(self, handle: Callable[[Any], Awaitable[None]]) -> None:
        self._handle = handle

    async def query_offset(self, _stream: str, _name: str) -> int:
        if self._feed.stored is None:
            raise exceptions.OffsetNotFound
        return self._feed.stored

    async def store_offset(self, _stream: str, _name: str, offset: int) -> None:
        self._feed.stored = offset

    async def unsubscribe(self, _: int) -> None:
        self._credits = 0

    async def subscribe(self, _: str, subscription: int, at: Any, credit: int) -> None:
        self._subscription, self._credits = subscription, credit
        self._next = max(0, bisect_right(self._feed.firsts, getattr(at, "value", 0)) - 1)

    async def credit(self, _: int, more: int) -> None:
        self._credits += more


def _done(request: Any) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        request.send(None)
    except StopIteration as over:
        return over.value
    raise AssertionError("it waits")


def _entry(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def _batch(random: Random, number: int) -> bytes:
    """A batch of `number` messages, whose header seldom gives another number."""
    content = b"".join(_entry(_message(random)) for _ in range(number))
    size, compression = len(content), random.choice((0, 1, 1, 2, 4))
    packed = gzip.compress(content, 1) if compression == 1 else content
    if random.random() < 0.4:
        packed = damaged(random, packed)
        size = random.choice((size, len(packed), 2**32 - 1))
    return struct.pack(">BHII", 0x80 | compression << 4, number, size, len(packed)) + packed


def _message(random: Random) -> bytes:
    if random.random() < 0.1:
        return mutations.body(random)
    if random.random() < 0.4:
        encoded = stream.encode(Outgoing(1, "life", "", _plain(random)), text(random), 1_700_000_000_000)
    else:
        sections = [_section(random) for _ in range(random.randrange(5))]
        encoded = b"".join([*sections, maybe(random, 0.8, lambda one: encode_data_section(mutations.body(one))) or b""])
    return damaged(random, encoded) if random.random() < 0.35 else encoded


def _plain(random: Random) -> Message:
    headers = Headers(
        correlation_id=maybe(random, 0.5, text),
        reply_to=maybe(random, 0.5, lambda one: f"queue:q{text(one)}"),
        type=maybe(random, 0.5, text),
        priority=maybe(random, 0.5, lambda one: one.randrange(256)),
        time_to_live_ms=maybe(random, 0.2, lambda one: one.randrange(2**32)),
    )
    properties = {random.choice(NAMES): text(random), "x": random.choice((1.5, None, -(2**63), b"\xff"))}
    return Message(
        mutations.body(random), {**properties, "amqp_content_type": "a/b"}, maybe(random, 0.3, text), None, headers
    )


def _section(random: Random) -> bytes:
    """A described value of AMQP 1.0; mostly a list or a map, as the format requires."""
    code = random.choice(_SECTIONS)
    if random.random() < 0.2:
        return bytes((0x00, 0x53, code)) + _value(random, 0)
    pieces = [_value(random, 1) for _ in range(random.randrange(14))]
    if code in (0x71, 0x72, 0x74, 0x78):
        pieces = [one for value in pieces[:5] for one in (_text(random.choice(NAMES)), value)]
    content = b"".join(pieces)
    kind = 0xD1 if code in (0x71, 0x72, 0x74, 0x78) else 0xD0
    return bytes((0x00, 0x53, code)) + struct.pack(">BII", kind, len(content) + 4, len(pieces)) + content


def _text(value: str) -> bytes:
    content = value.encode()[:255]
    return bytes((0xA1, len(content))) + content


def _value(random: Random, depth: int) -> bytes:
    code = random.choice(_CODES)
    if code in _FIXED:
        size = _FIXED[code]
        odd = (random.choice((number(random) % 2**64, LARGEST))).to_bytes(8, "big")[-size:].rjust(size, b"\0")
        return bytes((code,)) + (odd[:size] if random.random() < 0.7 else random.randbytes(size))
    if 0xA0 <= code < 0xC0:
        content = text(random).encode()[:255]
        return bytes((code,)) + len(content).to_bytes(1 if code < 0xB0 else 4, "big") + content
    if code == 0x00:
        return b"\x00\xa1\x01a" * (_DEEPEST if random.random() < 0.01 else 1) + (
            b"\x40" if depth > 3 else _value(random, depth + 1)
        )
    pieces = [] if depth > 3 else [_value(random, depth + 1) for _ in range(random.randrange(4))]
    content = b"".join(pieces)
    width = 1 if code < 0xD0 or code == 0xE0 else 4
    count = len(pieces) if random.random() < 0.9 else 255
    size = (len(content) + width) % (1 << 8 * width)
    return bytes((code,)) + size.to_bytes(width, "big") + count.to_bytes(width, "big") + content
