"""Which message each confirm settles. Pure: told what happened, says what is settled and what may be published next.

A publication has no answer of its own. The server counts those of a channel from 1 and confirms, or refuses, a number
or all numbers up to one. An unroutable message is returned *before* it is confirmed and without its number, so it is
found by its message id (traps T38 and T43).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from connectors.rabbitmq.destinations import Route
from correlator.errors import SendRejected

MOST_OUTSTANDING = 1000
"""Messages published and not confirmed."""
MOST_OUTSTANDING_BYTES = 8 * 1024 * 1024
"""Bytes of their bodies; a larger message goes alone."""


class RabbitPublication(NamedTuple):
    """A message ready to be published.

    Attributes:
        where: how messages of errors call it.
    """

    route: Route
    properties: bytes
    body: bytes
    message_id: str
    where: str


class BatchInFlight:
    """A batch on its way, over one channel after another. Owned by the I/O thread until it is over.

    Args:
        count: messages in it.
        prepare: what is to be published for the message at a place of the batch, or why it cannot be. Asked when it is
            its turn, so that only what is outstanding is held twice.

    Attributes:
        results: `None` for what the server has, or has not yet refused.
        settled: messages that are confirmed or refused; grows while the server works.
        cautious: whether only one message may be outstanding: the next channel that is closed is closed because of it.
    """

    def __init__(self, count: int, prepare: Callable[[int], RabbitPublication | SendRejected]) -> None:
        self.results: list[SendRejected | None] = [None] * count
        self.cautious = False
        self._prepare = prepare
        self._unsettled = set(range(count))
        self.begin_channel(0)

    @property
    def over(self) -> bool:
        """Whether every message is settled."""
        return not self._unsettled

    @property
    def settled(self) -> int:
        """Messages that are settled."""
        return len(self.results) - len(self._unsettled)

    def begin_channel(self, published: int) -> None:
        """Everything unsettled is published on this channel, on which so many messages were published before."""
        self._ahead = sorted(self._unsettled, reverse=True)
        for index in self._ahead:
            self.results[index] = None  # what was returned on another channel may be routed on this one
        self._outstanding: dict[int, int] = {}
        self._publications: dict[int, RabbitPublication] = {}
        self._published = published
        self._bytes = 0

    def channel_closed(self, code: str, text: str) -> None:
        """The server closed the channel: because of the only message that was outstanding, which is refused then.

        When there were more, one of them is the cause; what is unsettled goes one by one from now on.
        """
        if self.cautious:
            for index in self._outstanding.values():
                self._reject(index, SendRejected(code, self._publications[index].where, text))
        self.cautious = True

    def next(self) -> Iterator[RabbitPublication]:
        """What may be published now, in order; each counts as published when it is handed out."""
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
        """The server has them."""
        for index, _ in self._take(tag, multiple=multiple):
            self._unsettled.discard(index)

    def refused(self, tag: int, *, multiple: bool) -> None:
        """The server does not take them."""
        for index, publication in self._take(tag, multiple=multiple):
            what = "the broker refused it (nack): a queue is full, or has failed"
            self._reject(index, SendRejected("E8102", publication.where, what))

    def returned(self, message_id: str | None, text: str) -> None:
        """The server found no queue for it; it will be confirmed all the same, and be refused nevertheless."""
        for index in self._outstanding.values():
            publication = self._publications[index]
            if publication.message_id == message_id and self.results[index] is None:
                self.results[index] = _unrouted(publication, text)
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
        """What a confirm is about, no more outstanding."""
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
