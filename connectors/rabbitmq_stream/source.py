"""The source of streams: one subscription. The server keeps its position, an offset under the receiver's name."""

import contextlib
import struct
from collections.abc import Sequence
from concurrent.futures import Future

from rstream import exceptions, schema
from rstream.constants import OffsetType

from connectors.ids import WantedIds
from connectors.progress import ReadProgress
from connectors.rabbitmq_server import ConnectionFault
from connectors.rabbitmq_stream.broker import StreamBroker
from connectors.rabbitmq_stream.chunk import PackedBatch, entries_of
from connectors.rabbitmq_stream.content import EntryOffset, decode
from connectors.rabbitmq_stream.destinations import StartOffset, StreamDestination
from connectors.rabbitmq_stream.feed import EntryRun, Feed, PackedRun
from connectors.rabbitmq_stream.link import StreamLink, Utf8, Wire
from correlator.connector import NOTHING, Chunk
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.settings import ReceiverSettings

_OFFSETS = 2**64
_SUBSCRIPTIONS = 256


class StreamSource:
    """Reads a stream from the acknowledged position of its receiver.

    The server keeps one offset: all messages up to it are acknowledged. If chunks are acknowledged in another order,
    the messages after the oldest unacknowledged chunk are redelivered after a reconnect.

    When the connection has ended, the next call raises `ConnectionLost`. The source drops messages that it has not
    returned by then, since they are redelivered.
    """

    def __init__(
        self, where: str, broker: StreamBroker, destination: StreamDestination, receiver: ReceiverSettings
    ) -> None:
        self._where = where
        self._broker = broker
        self._destination = destination
        self._stream = Utf8(destination.stream)
        self._name = Utf8(receiver.subscription)
        self._most = receiver.max_batch_size
        self._most_bytes = receiver.max_batch_bytes
        self._wanted_ids = WantedIds.of(receiver)
        self._link: StreamLink | None = None
        self._feed = self._new_feed(0, 0)
        self._progress = ReadProgress(0)
        self._proof: tuple[int, Future[int]] | None = None
        self._unreadable: ConnectionFault | None = None
        self._was_there = False

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of delivered messages that the source has not returned yet."""
        return self._feed.waiting_bytes

    def connect(self) -> None:
        """Connect, make the stream if the options say so, and continue after the stored offset.

        If the stream existed at an earlier call and is gone, the source makes it again and raises `ConnectionLost`
        W7020, so that the loss of its messages is reported.
        """
        link = self._open()
        try:
            position = self._begin(link)
            self._progress = ReadProgress(position)
            self._subscribe(link, StartOffset("offset", position))
        except BaseException:
            self.close()
            raise

    def peek(self, limit: int) -> Sequence[Message]:
        """Return the first messages of the stream, acknowledged or not. Changes nothing; close the
        source afterwards.
        """
        link = self._open()
        last = self._chunk_at(link, StartOffset("last"))
        if last is None:
            return ()
        self._progress = ReadProgress(0)
        self._subscribe(link, StartOffset("first"))
        messages: list[Message] = []
        while len(messages) < limit and self._feed.position < last.stop:
            chunk = self.receive(limit - len(messages), self._broker.timeout_s)
            if not chunk.messages:
                break
            messages += chunk.messages
        return messages

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take the next messages as `connector.Source.receive`: messages that were given back first, then new ones in
        order.

        Raises `ConnectionLost` when the connection has ended, or when the next message cannot be read.
        """
        link = self._connected()
        progress = self._progress
        most = min(max_messages, self._most - progress.held)
        start, until = progress.next()
        if self._feed.position > start:
            self._subscribe(link, StartOffset("offset", start))
        runs, reached = self._feed.take(start, until, most, timeout_s)
        self._ask_for_more(link)
        if runs:
            return self._chunk(runs)
        if self._unreadable is not None and self._feed.empty:
            raise self._unreadable.error(self._where)
        if reached and until is not None:  # the stream no longer contains what was given back
            progress.acknowledge(progress.take([until]))
        return NOTHING

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Store the acknowledged position if these messages move it.

        The server does not answer a stored offset. So the source asks for the offset after storing it, and the next
        call waits for the answer, which shows that the server has stored the offset.
        """
        link = self._connected()
        self._await_proof(link)
        if self._progress.acknowledge(tokens):
            self._proof = self._store(link, self._progress.position)

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these messages back: `receive` returns them again, before any new one.

        This does not concern other consumers.
        """
        self._connected()
        self._progress.reject(tokens)

    def close(self) -> None:
        """Close the connection after the acknowledgements; unacknowledged messages are redelivered at
        the next start.
        """
        if self._link is not None:
            with contextlib.suppress(ConnectionLost):
                self._await_proof(self._link)
            self._link.close()
        self._link = None
        self._proof = None

    def _open(self) -> StreamLink:
        self.close()
        self._link = link = StreamLink(self._where, self._broker, lambda: self._feed.end())  # noqa: PLW0108  # the present feed
        try:
            link.open()
            self._declare(link)
            link.ask(self._listen, self._stream)
        except BaseException:
            self.close()
            raise
        return link

    def _connected(self) -> StreamLink:
        if self._link is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        self._link.check()
        return self._link

    def _declare(self, link: StreamLink) -> None:
        lost = self._was_there and self._destination.declare and not link.exists(self._stream)
        link.open_at(self._destination)
        self._was_there = True
        if lost:
            what = f"the stream '{self._stream}' was gone and has been made again; its messages are lost"
            raise ConnectionLost("W7020", self._where, what)

    # --- offsets ---

    def _begin(self, link: StreamLink) -> int:
        """Return the offset at which to continue. If it depends on the present end of the stream, store
        it for the next start.
        """
        stored = link.ask(self._stored, self._stream)
        if stored is not None:
            return (stored + 1) % _OFFSETS
        start = self._destination.start
        if start.kind in ("first", "offset"):
            return start.number
        position = self._find(link, start)
        _, proof = self._store(link, position)
        link.finish(proof)
        return position

    async def _stored(self, wire: Wire) -> int | None:
        try:
            return await wire.query_offset(self._stream, self._name)
        except exceptions.OffsetNotFound:
            return None

    def _find(self, link: StreamLink, start: StartOffset) -> int:
        if start.kind == "timestamp" and (chunk := self._chunk_at(link, start)):
            return chunk.start
        chunk = self._chunk_at(link, StartOffset("last"))
        if chunk is None:
            return 0
        return chunk.start if start.kind == "last" else chunk.stop

    def _chunk_at(self, link: StreamLink, start: StartOffset) -> range | None:
        """Return the offsets of the chunk at which a subscription would begin; `None` if there is no such chunk yet."""
        self._subscribe(link, start)
        link.ask(self._settle, self._stream)
        return self._feed.first_chunk

    async def _settle(self, wire: Wire) -> None:
        """Wait for the existing chunks: the server sends them before it answers the next request."""
        await wire.stream_exists(self._stream)
        await wire.settle()

    def _store(self, link: StreamLink, position: int) -> "tuple[int, Future[int]]":
        """Store the offset before the position, and ask for it; the offset before 0 is the largest number."""
        offset = (position - 1) % _OFFSETS

        async def store(wire: Wire) -> int:
            await wire.store_offset(self._stream, self._name, offset)
            return await wire.query_offset(self._stream, self._name)

        return offset, link.begin(store, self._stream)

    def _await_proof(self, link: StreamLink) -> None:
        if self._proof is None:
            return
        (offset, proof), self._proof = self._proof, None
        stored = link.finish(proof)
        if stored != offset:
            what = f"offset {stored} is stored as '{self._name}' instead of {offset}: another receiver uses this name"
            todo = "Give one of them another id or durable_topic_subscription_name"
            raise ConnectionLost("E7027", self._where, what, "", todo)

    # --- the subscription ---

    def _new_feed(self, subscription: int, position: int) -> Feed:
        return Feed(subscription % _SUBSCRIPTIONS, position, self._most, self._most_bytes)

    def _subscribe(self, link: StreamLink, start: StartOffset) -> None:
        """Subscribe again, from another offset."""
        before = self._feed
        self._feed = feed = self._new_feed(before.subscription + 1, start.number if start.kind == "offset" else 0)
        self._unreadable = None

        async def subscribe(wire: Wire) -> None:
            with contextlib.suppress(exceptions.SubscriptionIDDoesNotExist):  # on the first call
                await wire.unsubscribe(before.subscription)
            await wire.subscribe(self._stream, feed.subscription, _specified(start), feed.room())

        link.ask(subscribe, self._stream)

    async def _listen(self, wire: Wire) -> None:
        await wire.listen(lambda chunk: self._delivered(wire, chunk))

    async def _delivered(self, wire: Wire, chunk: schema.Deliver) -> None:
        feed = self._feed
        if chunk.subscription_id != feed.subscription or self._unreadable is not None:
            return
        try:
            runs = _runs(chunk)
        except (ValueError, struct.error) as error:
            what = f"the chunk at offset {chunk.chunk_first_offset} of '{self._stream}' cannot be read ({error})"
            self._unreadable = ConnectionFault("E7028", what, "", "The server's files may be damaged: look at its log")
            feed.end()  # the messages before it are delivered first
            return
        feed.put(runs)
        if more := feed.room():
            await wire.credit(feed.subscription, more)

    def _ask_for_more(self, link: StreamLink) -> None:
        feed = self._feed
        if more := feed.room():
            link.begin(lambda wire: wire.credit(feed.subscription, more), self._stream)

    def _chunk(self, runs: Sequence[EntryRun]) -> Chunk:
        messages: list[Message] = []
        ends: list[int] = []
        wanted = self._wanted_ids
        for first, timestamp, entries in runs:
            for offset, entry in enumerate(entries, first):
                at = EntryOffset(self._destination.stream, offset, timestamp)
                messages.append(decode(entry, at, wants_id=wanted.unique_id, wants_source=wanted.source_id))
                ends.append(offset + 1)
        ends[-1] = runs[-1].end
        return Chunk(messages, self._progress.take(ends))


def _runs(chunk: schema.Deliver) -> list[EntryRun | PackedRun]:
    runs: list[EntryRun | PackedRun] = []
    at = chunk.chunk_first_offset
    for entries in entries_of(chunk.data, chunk.num_entries):
        if isinstance(entries, PackedBatch):
            runs.append(PackedRun(at, chunk.timestamp, entries))
        else:
            runs.append(EntryRun(at, chunk.timestamp, entries))
        at = runs[-1].end
    return runs


def _specified(start: StartOffset) -> schema.OffsetSpec:
    kind = OffsetType[start.kind.upper()]
    return schema.OffsetSpec.from_params(kind, start.number if start.kind in ("offset", "timestamp") else None)
