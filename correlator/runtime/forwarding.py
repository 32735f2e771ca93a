"""Sends dead letters to the sender that the settings name (docs/dead-letters.md).

A dead letter waits in the store, like any message that nobody has handled. The forwarder reads it through the store
writer and stages its message in a context. The next checkpoint stores the send in the outbox and deletes the dead
letter, both in its transaction. So no crash loses a dead letter or sends it twice.
"""

from collections.abc import Callable, Sequence

from correlator.core.deadletters import Letter, forwarded
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.contexts import FULL_WAIT_S, ContextActor
from correlator.runtime.letters import Letters
from correlator.runtime.requests import LettersRequest
from correlator.runtime.writer import Writer

MOST = 100
"""The largest number of dead letters that one checkpoint moves into the outbox."""
_BUSY_WAIT_S = 0.05
"""Seconds until the next attempt, while a handler runs or somebody brings dead letters back."""


class Forwarder(Actor):
    """Moves dead letters into the outbox of a sender, in the order of their numbers.

    The dead letters of this sender itself stay in the store, since it cannot send them.

    Args:
        sender: id of the sender.
        letters: refuses to discard the dead letters that are on their way, and to bring them back.
        context: the context that stages the sends.
        writer: reads the dead letters.
        checkpointer: takes the checkpoints; the caller wakes the forwarder after each of them.
        hold: returns whether the outbox of the sender is full.
    """

    def __init__(
        self,
        sender: str,
        letters: Letters,
        context: ContextActor,
        writer: Writer,
        checkpointer: Checkpointer,
        hold: Callable[[], bool],
    ) -> None:
        super().__init__("dead-letters")
        self._sender = sender
        self._letters = letters
        self._context = context
        self._writer = writer
        self._checkpointer = checkpointer
        self._hold = hold
        self._more = True
        self._passed = 0
        self._reading = False
        self._found: Sequence[Letter] | None = None
        self._order: int | None = None

    @property
    def idle(self) -> bool:
        """Whether every dead letter of the store was looked at, and those to be sent are in the outbox."""
        return not (self._more or self._reading or self._found is not None or self._order is not None)

    def note(self) -> None:
        """Note that the store has got dead letters. Any thread may call it."""
        self._more = True
        self.wake()

    def step(self) -> float | None:
        """Go on with the dead letters that are on their way; otherwise look for others."""
        if self._order is not None:
            return self._conclude(self._order)
        if self._found is not None:
            return self._stage(self._found)
        return self._read() if self._more and not self._reading else None

    def _read(self) -> float | None:
        if self._hold():
            return FULL_WAIT_S
        if not self._letters.reserve(self._passed):
            return _BUSY_WAIT_S
        self._reading = True
        self._more = False  # before the store is read: whatever it gets afterwards is noted again
        self._writer.submit(LettersRequest(self._passed, MOST), self._read_done)
        return None

    def _read_done(self, found: Sequence[Letter]) -> None:
        """Take what the writer has read; called in its thread."""
        self._found = found
        self._reading = False
        self.wake()

    def _stage(self, found: Sequence[Letter]) -> float | None:
        own = [number for number, one in found if (one.kind, one.origin) == ("send", self._sender)]
        others = [(number, one) for number, one in found if number not in own]
        if others:
            if not self._context.lock.acquire(blocking=False):
                return _BUSY_WAIT_S
            try:
                for number, one in others:
                    self._context.context.staging.bring_back(self._sender, forwarded(number, one), number)
            finally:
                self._context.lock.release()
            self._order = self._checkpointer.ask()
        if found:
            self._passed = found[-1][0]
        self._more = self._more or len(found) == MOST
        self._found = None
        return self._conclude(self._order)

    def _conclude(self, order: int | None) -> float | None:
        """Look for others, unless the checkpoint is not durable yet, which the sends wait for."""
        if order is not None and not self._checkpointer.answered(order):
            return None
        self._order = None
        self._letters.release()
        return 0
