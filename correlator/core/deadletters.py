"""Dead letters go back to where they came from: under a new number, so that no number is ever used twice.

A letter about a received message goes back into the receive log of its receiver, as if it had just been received; the
duplicate detector is not asked, since it is the same message. A letter about a send goes back into the outbox of its
sender. Several letters about one received message (one for each handler that failed on it) bring it back once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from correlator.core.commit import Endpoint, OutboundSegment, ReceiveSegment, SenderCut
from correlator.core.pieces import pieces, size_of
from correlator.errors import UsageError
from correlator.events import DeadLetter, Message
from correlator.reliability import RECEIVING, SENDING, Reliability


class Segments(NamedTuple):
    """What some letters become in the receive log and in the outbox."""

    received: list[ReceiveSegment]
    outbound: list[OutboundSegment]


class Replay:
    """Gives letters the next numbers, as a stopped engine's store has them.

    Args:
        endpoints: the registry.
        last_numbers: for each receiver the last number that it has given; 0 for one that is missing.
        senders: of the last checkpoint.

    Attributes:
        senders: with the numbers that the letters took.
        refusals: why letters cannot go back (E2023); when there are any, nothing may be committed.
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
        """Every sender of the checkpoint, in its order."""
        return list(self._senders.values())

    def take(self, letters: Iterable[tuple[int, DeadLetter]]) -> Segments:
        """Segments for some letters, in the order of the letters; called for one page after the other."""
        received: dict[str, list[Message]] = {}
        sent: dict[str, list[Message]] = {}
        for number, letter in letters:
            refusal = self._why_not(letter)
            if refusal:
                self.refusals.append(_refused(number, letter, refusal))
            elif letter.kind == "send":
                sent.setdefault(letter.origin, []).append(letter.message)
            elif self._is_first(letter):
                received.setdefault(receiver_of(letter), []).append(letter.message)
        return Segments(
            [self._received(receiver, row) for receiver, messages in received.items() for row in _rows(messages)],
            [self._outbound(sender, row) for sender, messages in sent.items() for row in _rows(messages)],
        )

    def _is_first(self, letter: DeadLetter) -> bool:
        """Whether no earlier letter was about the same message."""
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

    def _why_not(self, letter: DeadLetter) -> str:
        name = letter.origin if letter.kind == "send" else receiver_of(letter)
        if not name:
            return "no received message stands behind it, but a timer or an event from inside the engine"
        kind = "sender" if letter.kind == "send" else "receiver"
        endpoint = self._endpoints.get(name)
        if endpoint is None or endpoint.kind != kind:
            return f"{kind} '{name}' does not exist any more"
        reliability = Reliability(endpoint.reliability)
        stored = SENDING[reliability].stored if kind == "sender" else RECEIVING[reliability].stored
        if not stored or (kind == "sender" and name not in self._senders):
            return f"{kind} '{name}' is {reliability} and keeps nothing in the store"
        return ""


def receiver_of(letter: DeadLetter) -> str:
    """The receiver that took the message in; "" when there is none, or when an older version did not note it."""
    return letter.receiver or (letter.origin if letter.kind == "mapping" else "")


def _rows(messages: list[Message]) -> list[list[Message]]:
    """The messages in order, as many in one row as a database takes."""
    return [list(piece) for piece in pieces(messages, list(map(size_of, messages)), len(messages))]


def _refused(number: int, letter: DeadLetter, why: str) -> UsageError:
    where = f"dead letter {number}"
    todo = "Show it, and publish its message anew where it is needed; then discard it"
    return UsageError("E2023", where, f"({letter.kind}, {letter.origin}) cannot go back: {why}", "", todo)
