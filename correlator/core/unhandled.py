"""Messages that no monitor handles: no listener in any of the contexts that they were delivered to waited for them.

Contexts are not equally far. A context notes which messages it has *left*; whoever is the last to pass a message that
all others have left finds that nobody handled it. What is not decided yet at a cut is part of it, so that a restart
decides it neither twice nor never. A context that is not configured any more counts until all others have passed what
it was given: it may be the one that has handled a message.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from correlator.core.commit import StateEntry
from correlator.errors import HandlerFailed
from correlator.events import DeadLetter, Message

OWNER = "unhandled"
"""What the store keeps undecided messages under; the key is the receiver."""

FOREVER = 2**63 - 1
"""The end of a stretch of numbers that has none: a context that is gone leaves all that follows."""

_stretches: msgspec.msgpack.Decoder[dict[str, list[tuple[int, int]]]] = msgspec.msgpack.Decoder(
    dict[str, list[tuple[int, int]]]
)


class _Left:
    """How far a context is with the messages of a receiver, and which of them it has left, as stretches of numbers."""

    __slots__ = ("stretches", "through")

    def __init__(self) -> None:
        self.through = 0
        self.stretches: list[tuple[int, int]] = []

    def add(self, number: int) -> None:
        if self.stretches and self.stretches[-1][1] == number - 1:
            self.stretches[-1] = (self.stretches[-1][0], number)
        else:
            self.stretches.append((number, number))

    def has(self, number: int) -> bool:
        at = bisect_right(self.stretches, number, key=lambda stretch: stretch[0]) - 1
        return at >= 0 and number <= self.stretches[at][1]

    def leave_what_it_is_not_given(self, entered: int, last: int) -> None:
        """All numbers up to `last` behind those that it was given: `entered`, or until it went away."""
        if self.stretches:
            first, end = self.stretches[-1]
            if end == FOREVER:
                del self.stretches[-1]
                entered = first - 1
            else:
                entered = max(entered, end)
        if entered < last:
            self.stretches.append((entered + 1, last))

    def is_over(self, through: int) -> bool:
        """Whether its context is gone, and was given nothing beyond this number."""
        return self.through == FOREVER and self.stretches[0] == (through + 1, FOREVER)

    def forget(self, through: int) -> None:
        """Nobody asks for these any more; what is kept must not depend on who came first, or a replay would differ."""
        if self.stretches and self.stretches[0][0] <= through:
            self.stretches = [(max(first, through + 1), last) for first, last in self.stretches if last > through]


class Unhandled:
    """What nobody handles of the messages of one receiver.

    Called by the threads of its contexts, one at a time; `take_changes` while all of them are parked.

    Args:
        receiver: its id.
        contexts: that it delivers to.
        dead_letters: whether such a message becomes a dead letter.
        stored: whether its messages come again from the store after a restart.
        changing: held while it changes.
        told: called with the count and an event: for the first one, and whenever the count has doubled.

    Attributes:
        count: of such messages in this life.
        stored: whether a restart must know what is undecided.
    """

    def __init__(
        self,
        receiver: str,
        contexts: Sequence[str],
        *,
        dead_letters: bool,
        stored: bool,
        changing: AbstractContextManager[Any],
        told: Callable[[int, Any], None],
    ) -> None:
        self.receiver = receiver
        self.count = 0
        self.stored = stored and dead_letters
        self._changing = changing
        self._told = told
        self._dead_letters = dead_letters
        self._left = {context: _Left() for context in contexts}
        self._after = 0
        self._written: bytes | None = None

    @property
    def shared(self) -> bool:
        """Whether several contexts decide, which must all tell what they have passed."""
        return len(self._left) > 1

    def passed(
        self, context: str, through: int, left: Iterable[tuple[int, Any, Message]], engine_time: float
    ) -> list[DeadLetter]:
        """A context has handled everything up to a number, but for what it left: (number, event, message).

        Returns the letters about what nobody has handled, if there are to be any.
        """
        with self._changing:
            nobody = [one for one in left if self._leave(context, one[0])]
            self._left[context].through = through
            self._forget()
            if nobody:
                self._count(len(nobody), nobody[-1][1])
        return [self._letter(*one, engine_time) for one in nobody] if self._dead_letters else []

    def _leave(self, context: str, number: int) -> bool:
        if number <= self._after:
            return False
        if self.shared:
            self._left[context].add(number)
        return all(left.has(number) for other, left in self._left.items() if other != context)

    def _forget(self) -> None:
        """Let go of what is decided."""
        reached = min(left.through for left in self._left.values())
        for context, left in list(self._left.items()):
            left.forget(reached)
            if left.is_over(reached):
                del self._left[context]

    def _count(self, more: int, event: Any) -> None:
        before = self.count
        self.count += more
        if self.count.bit_length() > before.bit_length():
            self._told(self.count, event)

    def _letter(self, number: int, event: Any, message: Message, engine_time: float) -> DeadLetter:
        error = HandlerFailed(
            "E5503",
            f"receiver {self.receiver}",
            f"no monitor listens for this {type(event).__name__}",
            "",
            "Add a listener, then bring the message back; or set 'unhandled' to warn or ignore",
        )
        return DeadLetter(
            kind="unhandled",
            origin=self.receiver,
            reason=str(error),
            message=message,
            time=engine_time,
            receiver=self.receiver,
            number=number,
        )

    @property
    def letters(self) -> int:
        """How many dead letters that were in this life."""
        return self.count if self._dead_letters else 0

    # --- the store ---

    def restore(
        self,
        stored: bytes | None,
        *,
        through: Mapping[str, int],
        entered: Mapping[str, int],
        given_after: Mapping[str, int],
        after: int,
    ) -> None:
        """Take up what was undecided.

        Args:
            stored: what the store holds.
            through: for each context the last number that it has handled.
            entered: for each context of the last checkpoint, gone or not, the last number that it had been given; one
                that is gone has handled all of them.
            given_after: for each context the last number that it is not given.
            after: the last number that is no matter.
        """
        self._after, self._written = after, stored
        kept = _stretches.decode(stored) if stored is not None else {}
        for context in (*kept, *entered):
            self._left.setdefault(context, _Left())
        for context, left in self._left.items():
            left.stretches = kept.get(context, [])
            left.through = through.get(context, FOREVER)
            last = given_after.get(context, 0) if context in through else FOREVER
            left.leave_what_it_is_not_given(entered.get(context, 0), last)
        self._forget()

    def take_changes(self) -> list[StateEntry]:
        """What is undecided, if that has changed since the last call."""
        if not self.stored:
            return []
        undecided = {context: left.stretches for context, left in self._left.items()}
        now = msgspec.msgpack.encode(undecided) if any(undecided.values()) else None
        if now == self._written:
            return []
        self._written = now
        return [StateEntry(OWNER, self.receiver.encode(), now)]
