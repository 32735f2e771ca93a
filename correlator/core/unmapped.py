"""Stored messages that a start could not map: each becomes one dead letter, however many contexts and starts meet it.

In a run `None` takes the place of the event. The first context that passes it keeps the letter: both are in one cut. As
long as others have not passed it, the store says that it has its letter. So no start writes another one, and none hands
the message out, even if it can be mapped again: who brings the letter back brings the message to all contexts.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from correlator.core.commit import StateEntry
from correlator.core.queue import InputQueue
from correlator.events import DeadLetter

OWNER = "unmapped"
"""What the store keeps the numbers of such messages under; the key is the receiver."""

_numbers: msgspec.msgpack.Decoder[list[int]] = msgspec.msgpack.Decoder(list[int])


class Unmapped:
    """All of one life. Used at its start, then by `Checkpoint` while the contexts are parked.

    Args:
        stored: what the store holds, by receiver.
    """

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self._written = {key.decode(): data for key, data in stored.items()}
        self._told = {receiver: _numbers.decode(data) for receiver, data in self._written.items()}
        self._letters: dict[tuple[str, int], DeadLetter] = {}
        self._held: dict[tuple[str, str], list[int]] = {}

    @property
    def letters(self) -> Sequence[DeadLetter]:
        """About messages that no context has passed yet."""
        return list(self._letters.values())

    def leave_out(
        self, context: str, receiver: str, first: int, events: Sequence[Any], letters: Iterable[DeadLetter]
    ) -> Sequence[Any]:
        """The events of messages that a context gets again, without those that have, or are to have, a letter.

        Args:
            context: its name; for each receiver what it gets comes in the order of numbers.
            receiver: its id.
            first: number of the first message.
            events: of all, `None` for one that cannot be mapped.
            letters: about those.
        """
        told = set(self._told.get(receiver, ()))
        for letter in letters:
            if letter.number not in told:
                self._letters[receiver, letter.number] = letter
                self._held.setdefault((context, receiver), []).append(letter.number)
        return [None if number in told else event for number, event in enumerate(events, first)] if told else events

    def cut(
        self, queues: Mapping[str, InputQueue], consumed: Mapping[str, int]
    ) -> tuple[list[DeadLetter], list[StateEntry]]:
        """The letters about messages that a context has passed since the last cut, and what changed in the store.

        Args:
            queues: of all contexts.
            consumed: for each receiver the last number that all have passed.
        """
        letters: list[DeadLetter] = []
        for (context, receiver), numbers in self._held.items():
            passed = bisect_right(numbers, queues[context].handled_through(receiver)) if numbers else 0
            for number in numbers[:passed]:
                if (letter := self._letters.pop((receiver, number), None)) is not None:
                    letters.append(letter)
                    self._told.setdefault(receiver, []).append(number)
            del numbers[:passed]
        return letters, self._changes(consumed)

    def _changes(self, consumed: Mapping[str, int]) -> list[StateEntry]:
        entries: list[StateEntry] = []
        for receiver, numbers in list(self._told.items()):
            left = sorted(number for number in numbers if number > consumed.get(receiver, number))
            now = msgspec.msgpack.encode(left) if left else None
            if now != self._written.get(receiver):
                entries.append(StateEntry(OWNER, receiver.encode(), now))
            if now is None:
                del self._told[receiver]
                self._written.pop(receiver, None)
            else:
                self._told[receiver], self._written[receiver] = left, now
        return entries
