"""Unhandled messages: no listener waited for them in any of their contexts.

The contexts of a receiver handle its messages at different speeds. Each context reports the messages that it has
*left*, since no listener waited for them. A message is unhandled if all contexts have left it; this is decided when the
last context passes it. A cut stores the undecided messages, so that each message is decided exactly once, also after a
restart. A context that is no longer configured still counts until all others have passed the messages that it got,
since it may have handled them.
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
"""Owner of the undecided messages in the store; the key is the receiver."""

FOREVER = 2**63 - 1
"""The end of an open range of numbers: a context that no longer exists leaves all later messages."""

_stretches: msgspec.msgpack.Decoder[dict[str, list[tuple[int, int]]]] = msgspec.msgpack.Decoder(
    dict[str, list[tuple[int, int]]]
)


class _Left:
    """The last message of a receiver that a context has passed, and the messages that it has left.

    `stretches` has the left messages as (first number, last number), in growing order.
    """

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
        """Count the messages up to number `last` that the context did not get as left.

        They begin after `entered`; for a context that had gone before, they begin after the number at which it went.
        """
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
        """Whether the context has gone and got no message beyond this number."""
        return self.through == FOREVER and self.stretches[0] == (through + 1, FOREVER)

    def forget(self, through: int) -> None:
        """Drop the numbers up to `through`, which are decided.

        The result does not depend on the order in which contexts report, so that a replay stores the same.
        """
        if self.stretches and self.stretches[0][0] <= through:
            self.stretches = [(max(first, through + 1), last) for first, last in self.stretches if last > through]


class Unhandled:
    """The ledger of the unhandled messages of one receiver.

    The threads of the receiver's contexts call `passed`. The checkpointer calls `take_changes` while it holds the locks
    of all contexts.

    Args:
        receiver: id of the receiver.
        contexts: the contexts to which it delivers.
        dead_letters: whether an unhandled message becomes a dead letter.
        stored: whether the receiver's messages are in the receive log.
        changing: the lock that is held during a change.
        told: called with the count and an event, for the first unhandled message and whenever the count has doubled.

    Attributes:
        count: how many messages were unhandled in this life.
        stored: whether the store must keep the undecided messages.
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
        """Whether the receiver delivers to several contexts. If so, all of them must report which messages they have
        passed.
        """
        return len(self._left) > 1

    def passed(
        self, context: str, through: int, left: Iterable[tuple[int, Any, Message]], engine_time: float
    ) -> list[DeadLetter]:
        """Note that a context has passed all messages up to number `through`.

        Args:
            context: name of the calling context.
            through: the number of the last message that the context has passed.
            left: (number, event, message) of each message that it has left.
            engine_time: the time in seconds that dead letters get.

        Returns the dead letters of the messages that are now known to be unhandled; none if unhandled messages are only
        counted.
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
        """Forget the decided messages, and contexts that have gone and are no longer needed."""
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
        """How many dead letters this ledger has made in this life."""
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
        """Take the undecided messages of the last checkpoint.

        Args:
            stored: the undecided messages in the form of the store; `None` if it has none.
            through: for each context, the last number that it has handled.
            entered: for each context of the last checkpoint, even if it has gone, the last number that it got; a
                context that has gone has handled all its messages.
            given_after: for each context, the last number that it does not get.
            after: messages up to this number are not decided, since they were received before `unhandled: dead_letter`.
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
        """Return the entry of the undecided messages, if they have changed since the last call."""
        if not self.stored:
            return []
        undecided = {context: left.stretches for context, left in self._left.items()}
        now = msgspec.msgpack.encode(undecided) if any(undecided.values()) else None
        if now == self._written:
            return []
        self._written = now
        return [StateEntry(OWNER, self.receiver.encode(), now)]
