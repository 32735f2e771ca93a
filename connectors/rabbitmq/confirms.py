"""Finds out which message each publisher confirm settles, and which message may be published next.

The server numbers the publications of a channel from 1. A confirm (`ack`) or refusal (`nack`) has one number, or means
all numbers up to one. The server returns an unroutable message *before* it confirms it, and without its number, so the
message is found by its message id (traps T38 and T43). This module does no I/O.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from connectors.rabbitmq.destinations import Route
from correlator.errors import SendRejected

MOST_OUTSTANDING = 1000
"""Largest number of published messages that are not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Largest number of bytes of their bodies together; a larger message is sent alone."""


class RabbitPublication(NamedTuple):
    """A message that is ready to be published; `where` names it in errors."""

    route: Route
    properties: bytes
    body: bytes
    message_id: str
    where: str


class BatchInFlight:
    """A batch that is being published, over one channel or several. The I/O thread owns it until it is over.

    Args:
        count: messages in the batch.
        prepare: encodes the message with this index in the batch, or returns why the message is refused. It is called
            when the message is to be published, so that only outstanding messages are in memory twice.
        unheard: called with the route of a message that is not mandatory and that no queue got.

    Attributes:
        results: one for each message: `None` unless it is refused.
        settled: number of messages that are confirmed or refused; it grows while the server works.
        cautious: whether only one message may be outstanding, so that it is the cause if the server closes the channel.
    """

    def __init__(
        self,
        count: int,
        prepare: Callable[[int], RabbitPublication | SendRejected],
        unheard: Callable[[Route], None],
    ) -> None:
        self.results: list[SendRejected | None] = [None] * count
        self.cautious = False
        self._prepare = prepare
        self._unheard = unheard
        self._unsettled = set(range(count))
        self.begin_channel(0)

    @property
    def over(self) -> bool:
        """Return whether every message is confirmed or refused."""
        return not self._unsettled

    @property
    def settled(self) -> int:
        """Number of messages that are confirmed or refused."""
        return len(self.results) - len(self._unsettled)

    def begin_channel(self, published: int) -> None:
        """Publish all unsettled messages on another channel, which has published this number of messages before."""
        self._ahead = sorted(self._unsettled, reverse=True)
        for index in self._ahead:
            self.results[index] = None  # a message that was returned on another channel may be routed on this one
        self._outstanding: dict[int, int] = {}
        self._publications: dict[int, RabbitPublication] = {}
        self._published = published
        self._bytes = 0

    def channel_closed(self, code: str, text: str) -> None:
        """Note that the server has closed the channel because of one message.

        If only one message was outstanding, it is refused. Otherwise the unsettled messages are sent one by one from
        now on.
        """
        if self.cautious:
            for index in self._outstanding.values():
                self._reject(index, SendRejected(code, self._publications[index].where, text))
        self.cautious = True

    def next(self) -> Iterator[RabbitPublication]:
        """Yield the messages that may be published now, in order. A message counts as published as soon
        as it is yielded.
        """
        while self._ahead and self._has_room():
            index = self._ahead.pop()
            publication = self._prepare(index)
            if isinstance(publication, SendRejected):
                self._reject(index, publication)
                continue
            self._published += 1
            self._outstanding[self._published] = index
            self._publications[index] = publication
            self._bytes += len(publication.body)
            yield publication

    def confirmed(self, tag: int, *, multiple: bool) -> None:
        """Note that the server has stored these messages."""
        for index, _ in self._take(tag, multiple=multiple):
            self._unsettled.discard(index)

    def refused(self, tag: int, *, multiple: bool) -> None:
        """Note that the server refuses these messages."""
        for index, publication in self._take(tag, multiple=multiple):
            what = "the broker refused it (nack): a queue is full, or has failed"
            self._reject(index, SendRejected("E8102", publication.where, what))

    def returned(self, message_id: str | None, text: str) -> None:
        """Note that the server found no queue for a message. If the message is mandatory, it is refused."""
        for index in self._outstanding.values():
            publication = self._publications[index]
            if publication.message_id == message_id and self.results[index] is None:
                if publication.route.mandatory:
                    self.results[index] = _unrouted(publication, text)
                else:
                    self._unheard(publication.route)
                return

    def _reject(self, index: int, why: SendRejected) -> None:
        if self.results[index] is None:
            self.results[index] = why
        self._unsettled.discard(index)

    def _has_room(self) -> bool:
        if not self._outstanding:
            return True
        full = len(self._outstanding) >= MOST_OUTSTANDING or self._bytes >= MOST_OUTSTANDING_BYTES
        return not (self.cautious or full)

    def _take(self, tag: int, *, multiple: bool) -> list[tuple[int, RabbitPublication]]:
        """Remove the messages that a confirm settles from the outstanding ones; return their indexes."""
        tags = [tag]
        if multiple:
            tags = []
            for one in self._outstanding:  # in order
                if one > tag:
                    break
                tags.append(one)
        indexes = [self._outstanding.pop(one) for one in tags if one in self._outstanding]
        taken = [(index, self._publications.pop(index)) for index in indexes]
        self._bytes -= sum(len(publication.body) for _, publication in taken)
        return taken


def _unrouted(publication: RabbitPublication, text: str) -> SendRejected:
    route = publication.route
    to = f"no queue is bound to exchange '{route.exchange}' for '{route.routing_key}'"
    what = to if route.exchange else f"there is no queue '{route.routing_key}'"
    return SendRejected("E8101", publication.where, f"the message was not routed: {what} ({text})")
