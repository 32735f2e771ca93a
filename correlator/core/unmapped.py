"""Stored messages that a start could not map: each becomes one dead letter, even if several contexts have to handle it.

In a run, `None` takes the place of the event of such a message. The cut in which the first context has passed this
place holds the dead letter, too. Until all contexts have passed it, the store has a note that the dead letter exists.
So no later start writes a second dead letter. No later start gives the message to a context, even if it can be mapped
again, because a replay of the dead letter gives the message to all contexts.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from correlator.core.commit import StateEntry
from correlator.core.queue import InputQueue
from correlator.events import DeadLetter

OWNER = "unmapped"
"""Owner of the notes in the state log; the key is the receiver, the value the numbers of the messages."""

_numbers: msgspec.msgpack.Decoder[list[int]] = msgspec.msgpack.Decoder(list[int])


class Unmapped:
    """The unmapped messages of all receivers in one life. Used by the start, then by each cut, one at a time.

    Args:
        stored: the notes of the store, by receiver.
    """

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self._written = {key.decode(): data for key, data in stored.items()}
        self._told = {receiver: _numbers.decode(data) for receiver, data in self._written.items()}
        self._letters: dict[tuple[str, int], DeadLetter] = {}
        self._held: dict[tuple[str, str], list[int]] = {}

    @property
    def letters(self) -> Sequence[DeadLetter]:
        """The dead letters of messages that no context has passed yet."""
        return list(self._letters.values())

    def leave_out(
        self, context: str, receiver: str, first: int, events: Sequence[Any], letters: Iterable[DeadLetter]
    ) -> Sequence[Any]:
        """Keep the dead letters that the store lacks. Return the events, with `None` for messages whose dead letter the
        store has.

        Args:
            context: name of the context that gets the events. For each receiver, the calls are in the order of its
                numbers.
            receiver: id of the receiver.
            first: number of the first message.
            events: the events of all messages; `None` for a message that cannot be mapped.
            letters: the dead letters of the messages that cannot be mapped.
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
        """Return the dead letters of messages that a context has passed since the last cut, and the changed notes.

        Args:
            queues: the queues of all contexts.
            consumed: for each receiver, the last number that all contexts have passed.
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
