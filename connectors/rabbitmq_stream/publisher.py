"""Publishes batches over one connection: declares publishers, packs messages into frames, settles confirms.

Only the I/O thread of a link uses it. The server identifies a publisher by its stream and name, and its messages by
their numbers: it confirms a number that is not above the highest stored one of that name, and does not store the
message. So the numbers of a name must reach the server in order. After a failure all unconfirmed numbers must be sent
again, the lowest first (trap T35). For this reason a failure of the server with any message ends the connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rstream import exceptions, schema

from connectors.rabbitmq_server import ConnectionFault
from connectors.rabbitmq_stream.link import Utf8, Wire
from correlator.errors import SendRejected

MOST_OUTSTANDING = 10_000
"""Largest number of published messages that are not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Largest number of bytes of these messages together; a larger message is sent alone."""
FRAME_OVERHEAD, MESSAGE_OVERHEAD = 13, 12
"""Bytes that a frame and each of its messages have in addition to the contents."""
_FULL_FRAME = 128 * 1024
_MOST_PUBLISHERS = 200


class StreamPublication(NamedTuple):
    """A message that is ready to be published.

    Attributes:
        name: name of its publisher; "" for a publisher whose repeats the server stores again.
        number: the number of the message under that name.
        where: name of the message in errors.
    """

    stream: str
    name: str
    number: int
    content: bytes
    where: str


class BatchInFlight:
    """A batch that is being published. The I/O thread changes it; any thread may read `settled`.

    Attributes:
        results: one for each message: `None` unless it is refused.
        settled: number of messages that are confirmed or refused; it grows while the server works.
    """

    def __init__(self, count: int, prepare: Callable[[int], StreamPublication | SendRejected]) -> None:
        self.results: list[SendRejected | None] = [None] * count
        self.settled = 0
        self.prepare = prepare

    def reject(self, index: int, why: SendRejected) -> None:
        """Refuse the message with this index; it is not published."""
        self.results[index] = why
        self.settled += 1


class _Publisher:
    """A declared publisher: a name on a stream.

    Attributes:
        number: number of the last message.
        frame: messages for the next frame.
    """

    def __init__(self, identifier: int, name: str) -> None:
        self.id = identifier
        self.name = name
        self.number = 0
        self.frame: list[schema.Message] = []
        self.frame_bytes = 0


class Publishing:
    """The publishers of one connection.

    Args:
        wire: the connection.
        fail: ends the connection.
    """

    def __init__(self, wire: Wire, fail: Callable[[ConnectionFault], None]) -> None:
        self._wire = wire
        self._fail = fail
        self._full_frame = min(_FULL_FRAME, wire.frame_max or _FULL_FRAME) - FRAME_OVERHEAD
        self._publishers: dict[tuple[str, str], _Publisher] = {}
        self._free = deque(range(_MOST_PUBLISHERS))
        self._outstanding: dict[tuple[int, int], int] = {}
        self._bytes = 0
        self._moved = asyncio.Event()
        self._flight: BatchInFlight | None = None
        wire.add_handler(schema.PublishConfirm, self._on_confirm, name="confirm")
        wire.add_handler(schema.PublishError, self._on_error, name="error")

    async def publish(self, flight: BatchInFlight) -> None:
        """Publish a batch, and return when each of its messages is confirmed or refused."""
        self._flight = flight
        refused: dict[str, ConnectionFault] = {}  # one decision for all messages of the batch
        for index in range(len(flight.results)):
            publication = flight.prepare(index)
            if isinstance(publication, SendRejected):
                flight.reject(index, publication)
                continue
            publisher = await self._publisher(publication, refused)
            if publisher is None:
                fault = refused[publication.stream]
                flight.reject(index, SendRejected(fault.code, publication.where, fault.what, fault.allowed, fault.todo))
                continue
            await self._publish(publisher, publication)
        await self._send_frames()
        await self._until(lambda: not self._outstanding)

    async def _publish(self, publisher: _Publisher, publication: StreamPublication) -> None:
        size = len(publication.content) + MESSAGE_OVERHEAD
        if publisher.frame_bytes + size > self._full_frame:
            await self._send_frame(publisher)
        if self._outstanding and not self._has_room(size):
            await self._send_frames()
            await self._until(lambda: not self._outstanding or self._has_room(size))
        publisher.number = publication.number if publication.name else publisher.number + 1
        publisher.frame.append(schema.Message(publisher.number, None, publication.content))
        publisher.frame_bytes += size
        self._outstanding[publisher.id, publisher.number] = size
        self._bytes += size

    def _has_room(self, size: int) -> bool:
        return len(self._outstanding) < MOST_OUTSTANDING and self._bytes + size <= MOST_OUTSTANDING_BYTES

    async def _send_frames(self) -> None:
        for publisher in self._publishers.values():
            await self._send_frame(publisher)

    async def _send_frame(self, publisher: _Publisher) -> None:
        if publisher.frame:
            messages, publisher.frame, publisher.frame_bytes = publisher.frame, [], 0
            await self._wire.send_publish_frame(schema.Publish(publisher.id, messages))

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._moved.clear()
            await self._moved.wait()

    async def _publisher(
        self, publication: StreamPublication, refused: dict[str, ConnectionFault]
    ) -> _Publisher | None:
        """Return the publisher of a message; `None` if the server refuses it, with the reason in `refused`."""
        known = self._publishers.get((publication.stream, publication.name))
        if known is not None or publication.stream in refused:
            return None if publication.stream in refused else known
        if not self._free:
            await self._give_up_oldest()
        publisher = _Publisher(self._free.popleft(), publication.name)
        try:
            await self._wire.declare_publisher(Utf8(publication.stream), Utf8(publication.name), publisher.id)
        except exceptions.StreamDoesNotExist:
            refused[publication.stream] = ConnectionFault("E8101", f"there is no stream '{publication.stream}'")
        except exceptions.AccessRefused:
            refused[publication.stream] = ConnectionFault(
                "E8107", f"the user may not publish to the stream '{publication.stream}'"
            )
        if publication.stream in refused:
            self._free.append(publisher.id)
            return None
        self._publishers[publication.stream, publication.name] = publisher
        return publisher

    async def _give_up_oldest(self) -> None:
        await self._send_frames()
        await self._until(lambda: not self._outstanding)
        oldest = next(iter(self._publishers))
        publisher = self._publishers.pop(oldest)
        await self._wire.delete_publisher(publisher.id)
        self._free.append(publisher.id)

    def _on_confirm(self, confirm: schema.PublishConfirm) -> None:
        identifier, pop = confirm.publisher_id, self._outstanding.pop
        for number in confirm.publishing_ids:
            self._bytes -= pop((identifier, number), 0)
        if self._flight is not None:
            self._flight.settled += len(confirm.publishing_ids)
        self._moved.set()

    def _on_error(self, error: schema.PublishError) -> None:
        codes: Sequence[int] = sorted({one.response_code for one in error.errors})
        self._fail(ConnectionFault("E7025", f"the server did not store a message (codes {', '.join(map(str, codes))})"))
