"""Sends dead letters to the sender that the settings name (docs/dead-letters.md).

A dead letter waits in the store, like any message that nobody has handled. The forwarder reads it through the store
writer and stages its message in a context. The next checkpoint stores the send in the outbox and deletes the dead
letter, both in its transaction. So no crash loses a dead letter or sends it twice.
"""

from collections.abc import Callable, Sequence

from correlator.core.deadletters import Letter, forwarded
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.contexts import FULL_WAIT_S
from correlator.runtime.letters import Letters
from correlator.runtime.requests import LettersRequest
from correlator.runtime.writer import Writer

MOST = 100
"""The largest number of dead letters that one checkpoint moves into the outbox; fewer if they are large."""
_BUSY_WAIT_S = 0.05
"""Seconds until the next look, while a handler runs, a checkpoint is taken or somebody brings dead letters back."""


class Forwarder(Actor):
    """Moves dead letters into the outbox of a sender, in the order of their numbers.

    The dead letters of this sender itself stay in the store, since it cannot send them.

    Args:
        sender: id of the sender.
        letters: stages the sends, and refuses other orders for the dead letters that are on their way.
        writer: reads the dead letters.
        checkpointer: takes the checkpoints.
        hold: returns whether the outbox of the sender is full.
    """

    def __init__(
        self,
        sender: str,
        letters: Letters,
        writer: Writer,
        checkpointer: Checkpointer,
        hold: Callable[[], bool],
    ) -> None:
        super().__init__("dead-letters")
        self._sender = sender
        self._letters = letters
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
        if self._order is not None and not self._checkpointer.answered(self._order):
            return _BUSY_WAIT_S  # nothing wakes it if an earlier checkpoint has the sends, and this one stores nothing
        self._order = None
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
        own = "send", self._sender
        others = [(number, one) for number, one in found if (one.kind, one.origin) != own]
        sends = [(number, self._sender, forwarded(number, one)) for number, one in others]
        if sends:
            self._order = self._letters.stage(sends, 0.0)
            if self._order is None:
                return _BUSY_WAIT_S
        if found:
            self._passed = found[-1][0]
            self._more = True
        self._found = None
        self._letters.release()
        return 0
