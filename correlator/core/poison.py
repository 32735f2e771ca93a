"""Poison messages: the engine finds them by notes in the store, and divides the noted messages until one is left.

How it works. Only a start makes notes, so normal operation has no cost. A start handles the messages that wait in the
store in *portions*: it notes a portion in the store, handles it, and deletes the note. If the next start finds a note,
the process has died while it handled this portion: its messages are *accused*. The start divides an accused portion (a
context of monitors takes its messages one at a time, a pipeline halves it) and notes each part alone. A single message
whose note is found for the second time is *condemned*: together with the death that left the message waiting, the
process has died three times while it handled this message. A condemned message becomes a dead letter and is not handled
again.

A process that is killed from outside while it handles such a portion leaves the same note. So an innocent message is
condemned only if the process was killed during two starts in a row: first while it handled a portion with this message,
then while it handled this message alone.

Owner: the thread that works through the queue.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from correlator.core.commit import Suspect
from correlator.core.queue import InputQueue, Run
from correlator.errors import HandlerFailed
from correlator.events import DeadLetter, Message

DEATHS = 2
"""How often a start must find the note of a single message until the message is condemned."""


class Portion(NamedTuple):
    """The next events of a queue that may be handled together.

    Attributes:
        size: how many places of the queue the portion covers.
        suspects: the notes to make about the events of the portion.
        accused: whether the process has died while it handled these events. If so, no note may contain these events
            together with others.
        condemned: whether the portion is one event that must not be handled again.
    """

    size: int
    suspects: list[Suspect]
    accused: bool = False
    condemned: bool = False


class Watchlist:
    """The accused events of one context at a start.

    Args:
        context: name of the context.
        found: the notes about all contexts that the start has found.
        encode: returns type name and bytes of an event from inside the engine.
        halving: whether accused events are divided into halves; otherwise one event is taken at a time.
    """

    def __init__(
        self,
        context: str,
        found: Sequence[Suspect],
        encode: Callable[[Any], tuple[str, bytes]],
        *,
        halving: bool = False,
    ) -> None:
        self._context = context
        self._found = [suspect for suspect in found if suspect.context == context]
        self._encode = encode
        self._halving = halving

    def portion(self, queue: InputQueue, most: int) -> Portion:
        """The next portion, of at most `most` places of the queue; its `size` is 0 when no event waits."""
        queue.enter()
        suspects: list[Suspect] = []
        count = 0
        for run in queue.runs():
            for position in range(run.position, len(run)):
                if count == most:
                    return Portion(count, suspects)
                if run.events[position] is not None:  # `None` stands for a dead letter, which is not handled
                    receiver, number = self._identity(run, position)
                    accused = self._accusation(receiver, number)
                    if accused is not None:
                        return Portion(count, suspects) if count else self._part(accused, run, position, number)
                    self._append(suspects, receiver, number)
                count += 1
        return Portion(count, suspects)

    def _part(self, accused: Suspect, run: Run, position: int, number: int) -> Portion:
        """The next part of accused events, which begins at this position with this number."""
        count = accused.last - accused.first + 1
        half = (count + 1) // 2 if self._halving else 1
        size = min(half, accused.last - number + 1, len(run) - position)
        part = Suspect(self._context, accused.receiver, number, number + size - 1, accused.deaths)
        return Portion(size, [part], accused=True, condemned=is_condemned(accused))

    def _identity(self, run: Run, position: int) -> tuple[str, int]:
        if run.receiver:
            return run.receiver, run.first + position
        name, content = self._encode(run.events[position])
        return "", zlib.crc32(content, zlib.crc32(name.encode()))

    def _accusation(self, receiver: str, number: int) -> Suspect | None:
        for suspect in self._found:
            if suspect.receiver == receiver and suspect.first <= number <= suspect.last:
                return suspect
        return None

    def _append(self, suspects: list[Suspect], receiver: str, number: int) -> None:
        last = suspects[-1] if suspects else None
        if last is not None and receiver and last.receiver == receiver and last.last + 1 == number:
            suspects[-1] = Suspect(self._context, receiver, last.first, number, 0)
        else:
            suspects.append(Suspect(self._context, receiver, number, number, 0))


def up_to(suspects: Sequence[Suspect], through: Mapping[str, int]) -> list[Suspect]:
    """Return the notes about messages up to a number; `through` has this number for each receiver."""
    found = [
        Suspect(one.context, one.receiver, one.first, min(one.last, through.get(one.receiver, 0)), one.deaths)
        for one in suspects
    ]
    return [one for one in found if one.first <= one.last]


def is_condemned(suspect: Suspect) -> bool:
    """Whether the note is about a single message, and was found often enough."""
    return suspect.first == suspect.last and suspect.deaths >= DEATHS


def dead_letter(suspect: Suspect, message: Message, engine_time: float) -> DeadLetter:
    """Make the dead letter (E5502) of a condemned message."""
    from_inside = f"message {suspect.first} of receiver '{suspect.receiver}'" if suspect.receiver else "an event"
    error = HandlerFailed(
        "E5502",
        f"context {suspect.context}",
        f"the process died {DEATHS + 1} times while it handled {from_inside}",
        "It is kept as a dead letter and not handled again",
        "Correct the code that handles it, then replay the dead letter",
    )
    return DeadLetter(
        kind="poison",
        origin=suspect.context,
        reason=str(error),
        message=message,
        time=engine_time,
        receiver=suspect.receiver,
        number=suspect.first if suspect.receiver else 0,
    )
