"""The replay of dead letters: their messages go back with new numbers, so that no number is ever used twice.

The message of a dead letter about a received message goes back into the receive log of its receiver, as if it had just
been received. It does not pass duplicate detection, which would drop it. The message of a dead letter about a send goes
back into the outbox of its sender. If several dead letters are about one received message (one for each handler that
failed), the message goes back only once.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from correlator.core.commit import Endpoint, OutboundSegment, ReceiveSegment, SenderCut
from correlator.core.pieces import pieces, size_of
from correlator.errors import UsageError
from correlator.events import SOURCE_ID, UNIQUE_ID, DeadLetter, Headers, Message, PropertyValue
from correlator.reliability import RECEIVING, SENDING, Reliability

Letter = tuple[int, DeadLetter]
"""A dead letter with its number in the store."""
_IDS = UNIQUE_ID, SOURCE_ID
REASON = "dead_letter_reason"
"""The property of a sent dead letter that tells why its message failed."""


class DeadLetterKind(StrEnum):
    """What failed when a message became a dead letter: the values of `DeadLetter.kind`."""

    MAPPING = "mapping"
    HANDLER = "handler"
    STEP = "step"
    SEND = "send"
    POISON = "poison"
    UNHANDLED = "unhandled"


class Segments(NamedTuple):
    """The segments of replayed dead letters for the receive log and for the outbox."""

    received: list[ReceiveSegment]
    outbound: list[OutboundSegment]


class DeadLetterReplay:
    """Gives the messages of dead letters the next numbers in the store of a stopped engine.

    Args:
        endpoints: the entries of the registry.
        last_numbers: for each receiver, the last number in use; a receiver that is missing has used none.
        senders: the senders in the last checkpoint.

    Attributes:
        refusals: why dead letters cannot go back (E2023). If there are any, the caller must not commit the segments.
    """

    def __init__(
        self, endpoints: Iterable[Endpoint], last_numbers: Mapping[str, int], senders: Sequence[SenderCut]
    ) -> None:
        self._endpoints = {endpoint.id: endpoint for endpoint in endpoints}
        self._last_numbers = dict(last_numbers)
        self._senders = {cut.sender: cut for cut in senders}
        self._brought_back: set[tuple[str, int]] = set()
        self.refusals: list[UsageError] = []

    @property
    def senders(self) -> list[SenderCut]:
        """The senders of the checkpoint, in the same order, with the numbers that follow those used by the replay."""
        return list(self._senders.values())

    def take(self, letters: Iterable[tuple[int, DeadLetter]]) -> Segments:
        """Make segments of numbered dead letters, in their order; called for one page after the other."""
        received: dict[str, list[Message]] = {}
        sent: dict[str, list[Message]] = {}
        for number, letter in letters:
            refusal = why_not(letter, self._endpoints) or self._not_in_checkpoint(letter)
            if refusal:
                self.refusals.append(refused(number, letter, refusal))
            elif letter.kind == "send":
                sent.setdefault(letter.origin, []).append(letter.message)
            elif self._is_first(letter):
                received.setdefault(receiver_of(letter), []).append(letter.message)
        return Segments(
            [self._received(receiver, row) for receiver, messages in received.items() for row in _rows(messages)],
            [self._outbound(sender, row) for sender, messages in sent.items() for row in _rows(messages)],
        )

    def _is_first(self, letter: DeadLetter) -> bool:
        """Whether no earlier dead letter was about the same message."""
        message = (letter.receiver, letter.number)
        if letter.number and message in self._brought_back:
            return False
        self._brought_back.add(message)
        return True

    def _received(self, receiver: str, messages: list[Message]) -> ReceiveSegment:
        first = self._last_numbers.get(receiver, 0) + 1
        self._last_numbers[receiver] = first + len(messages) - 1
        return ReceiveSegment(receiver, first, messages)

    def _outbound(self, sender: str, messages: list[Message]) -> OutboundSegment:
        cut = self._senders[sender]
        next_sequence = cut.next_sequence + len(messages)
        self._senders[sender] = SenderCut(sender, cut.source, next_sequence, cut.confirmed_through)
        return OutboundSegment(sender, cut.next_sequence, messages)

    def _not_in_checkpoint(self, letter: DeadLetter) -> str:
        if letter.kind == "send" and letter.origin not in self._senders:
            return f"the last checkpoint does not contain sender '{letter.origin}'"
        return ""


def why_not(letter: DeadLetter, endpoints: Mapping[str, Endpoint]) -> str:
    """The reason why the message of a dead letter cannot go back, by the entries of the registry; "" if it can."""
    name = letter.origin if letter.kind == "send" else receiver_of(letter)
    if not name:
        return "its cause is no received message, but a timer or an event from inside the engine"
    kind = "sender" if letter.kind == "send" else "receiver"
    endpoint = endpoints.get(name)
    if endpoint is None or endpoint.kind != kind:
        return f"{kind} '{name}' does not exist any more"
    reliability = Reliability(endpoint.reliability)
    stored = SENDING[reliability].stored if kind == "sender" else RECEIVING[reliability].stored
    return "" if stored else f"{kind} '{name}' is {reliability} and keeps nothing in the store"


def together(letters: Iterable[tuple[int, DeadLetter]]) -> list[list[int]]:
    """Group the numbers of dead letters by the message that they are about; sends, which are alone, come first."""
    sends: list[list[int]] = []
    received: dict[object, list[int]] = {}
    for number, letter in letters:
        if letter.kind == "send":
            sends.append([number])
        else:
            received.setdefault((receiver_of(letter), letter.number) if letter.number else number, []).append(number)
    return [*sends, *received.values()]


def forwarded(number: int, letter: DeadLetter) -> Message:
    """The message that a sender of dead letters sends for a dead letter: the same body, and properties that tell why.

    It goes to the sender's own destination, and does not expire with the original message. It does not have the unique
    id of that message as its own: a receiver that drops duplicates would drop the second of two dead letters about one
    message.
    """
    message = letter.message
    about: dict[str, PropertyValue] = {
        "dead_letter_number": number,
        "dead_letter_kind": letter.kind,
        "dead_letter_origin": letter.origin,
        REASON: letter.reason,
        "dead_letter_receiver": letter.receiver or None,
        "dead_letter_message": letter.number or None,
        "dead_letter_destination": message.destination,
        "dead_letter_unique_id": letter.unique_id or message.properties.get(UNIQUE_ID),
    }
    others = {name: value for name, value in message.properties.items() if name not in _IDS and name not in about}
    properties = {**others, **{name: value for name, value in about.items() if value is not None}}
    headers = msgspec.structs.replace(
        message.headers or Headers(), persistent=None, time_to_live_ms=None, expiration=None, delivery_delay_ms=None
    )
    return Message(message.body, properties, message.key, None, headers)


def receiver_of(letter: DeadLetter) -> str:
    """The receiver of the message; "" if there is none, or if an older version did not record it."""
    return letter.receiver or (letter.origin if letter.kind == "mapping" else "")


def _rows(messages: list[Message]) -> list[list[Message]]:
    """Divide messages, in order, into rows that are small enough for a database."""
    return [list(piece) for piece in pieces(messages, list(map(size_of, messages)), len(messages))]


def refused(number: int, letter: DeadLetter, why: str) -> UsageError:
    """The error for a dead letter that cannot go back."""
    where = f"dead letter {number}"
    todo = "Show it, and publish its message anew where it is needed; then discard it"
    return UsageError("E2023", where, f"({letter.kind}, {letter.origin}) cannot go back: {why}", "", todo)
