"""The steps of traced messages that sessions log, whatever the broker is; see `correlator.tracing`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from correlator import tracing
from correlator.errors import CorrelatorError, SendRejected
from correlator.events import Message, Outgoing
from correlator.tracing import DeliveryEvent


def sent(batch: Sequence[Outgoing]) -> list[Outgoing]:
    """Log that messages are passed to the connector; return those that are traced."""
    traced = [out for out in batch if tracing.traces(out.message)]
    for out in traced:
        tracing.log(DeliveryEvent.SENT, out.message_id, out.destination)
    return traced


def confirmed(traced: Sequence[Outgoing]) -> None:
    """Log that the broker has these messages."""
    for out in traced:
        tracing.log(DeliveryEvent.CONFIRMED, out.message_id, out.destination)


def failed(traced: Sequence[Outgoing], error: CorrelatorError) -> None:
    """Log that these messages were refused, or that their outcome is unknown."""
    for out in traced:
        tracing.log(DeliveryEvent.FAILED, out.message_id, out.destination, code=error.code)


def answered(traced: Sequence[Outgoing], batch: Sequence[Outgoing], results: Sequence[SendRejected | None]) -> None:
    """Log the broker's answers to a batch."""
    if traced:
        for out, rejected in zip(batch, results, strict=True):
            if not tracing.is_marked(out.message):
                continue
            if rejected is None:
                confirmed([out])
            else:
                failed([out], rejected)


class TracedDeliveries:
    """The traced messages that a consumer has fetched and not settled. The caller holds the lock of the session.

    Args:
        destination: the destination of the consumer.
    """

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._held: list[tuple[Any, str]] = []

    def dispatched(self, messages: Sequence[Message], tokens: Sequence[Any]) -> None:
        """Keep those of the fetched messages that are traced, and log each."""
        if tracing.is_on():
            for message, token in zip(messages, tokens, strict=True):
                if tracing.is_marked(message):
                    self._held.append((token, tracing.id_of(message)))
                    self._log(DeliveryEvent.DISPATCHED, self._held[-1:])

    def delivered(self, message: Message) -> None:
        """Log that the program gets a message, if it is traced."""
        if tracing.traces(message):
            tracing.log(DeliveryEvent.DELIVERED, tracing.id_of(message), self._destination)

    def acknowledged(self, tokens: Sequence[Any]) -> None:
        """Log that the traced messages among these are to be acknowledged."""
        self._log(DeliveryEvent.ACKNOWLEDGED, self._among(tokens))

    def settled(self, tokens: Sequence[Any]) -> None:
        """Log that the traced messages among these are acknowledged, and forget them."""
        self._end(DeliveryEvent.SETTLED, tokens)

    def returned(self, tokens: Sequence[Any] | None = None) -> None:
        """Log that the traced messages among these are redelivered, and forget them; by default all held messages."""
        self._end(DeliveryEvent.RETURNED, [token for token, _ in self._held] if tokens is None else tokens)

    def _end(self, event: DeliveryEvent, tokens: Sequence[Any]) -> None:
        if ended := self._among(tokens):
            self._log(event, ended)
            self._held = [pair for pair in self._held if not any(pair is one for one in ended)]

    def _among(self, tokens: Sequence[Any]) -> list[tuple[Any, str]]:
        """Return those of these messages that are traced and held.

        Compares tokens by identity, since a token may be of any type.
        """
        if not self._held:
            return []
        return [pair for pair in self._held if any(pair[0] is token for token in tokens)]

    def _log(self, event: DeliveryEvent, held: Sequence[tuple[Any, str]]) -> None:
        for _, message_id in held:
            tracing.log(event, message_id, self._destination)


@contextmanager
def settling(
    sends: Sequence[Outgoing], acknowledged: Sequence[tuple[TracedDeliveries, Sequence[Any]]]
) -> Iterator[None]:
    """Log the outcome for the messages of a transaction: the block carries out all of it or nothing."""
    traced = sent(sends)
    for deliveries, tokens in acknowledged:
        deliveries.acknowledged(tokens)
    try:
        yield
    except CorrelatorError as error:
        failed(traced, error)
        raise
    confirmed(traced)
    for deliveries, tokens in acknowledged:
        deliveries.settled(tokens)
