"""Removes dynamic receivers and senders when all that they hold is handled or sent (rules A1.16 and A1.17)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from correlator.core.commit import RegistryCommit
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.parts import Parts
from correlator.runtime.requests import RegistryRequest
from correlator.runtime.writer import Writer

LOOK_AGAIN_S = 0.02


class Remover(Actor):
    """Carries removals out.

    The part takes no new messages. When it holds none any more, a checkpoint records this. Then the store deletes the
    part.

    Args:
        parts: the parts of the engine.
        writer: commits the deletion; `None` without a store.
        checkpointer: takes the checkpoints; `None` without a store.
        removed: called in this thread with the id of each part that the store no longer has.
    """

    def __init__(
        self, parts: Parts, writer: Writer | None, checkpointer: Checkpointer | None, removed: Callable[[str], None]
    ) -> None:
        super().__init__("remover")
        self._parts = parts
        self._writer = writer
        self._checkpointer = checkpointer
        self._removed = removed
        self._pending: dict[str, _Removal] = {}

    def begin(self, part_id: str) -> None:
        """Begin to remove a part, unless its removal has begun already: from now on the part takes no new messages.

        Any thread may call it, but only one at a time.
        """
        if self.removing(part_id):
            return
        receiver = self._parts.receivers.get(part_id)
        if receiver is not None:
            receiver.drain()
        else:
            self._parts.close_to_sends(part_id)
        self._pending[part_id] = _Removal(part_id)
        self.wake()

    def removing(self, part_id: str) -> bool:
        """Whether a part is being removed."""
        return part_id in self._pending

    def step(self) -> float | None:
        """Advance every removal as far as possible."""
        for removal in list(self._pending.values()):
            while self._advance(removal):
                pass
        return LOOK_AGAIN_S if self._pending else None

    def _advance(self, removal: "_Removal") -> bool:
        """Let a removal enter its next stage if that is possible now; return whether it has done so."""
        stage = removal.stage
        if stage is _Stage.EMPTYING and self._empty(removal.part_id):
            removal.asked = self._ask()
            removal.stage = _Stage.RECORDING_EMPTY
        elif stage is _Stage.RECORDING_EMPTY and self._answered(removal.asked):
            removal.stage = _Stage.EMPTYING
            if self._empty(removal.part_id):  # no message came meanwhile: the checkpoint records that it is empty
                self._take_leave(removal)
        elif stage is _Stage.RECORDING_GONE and self._answered(removal.asked):
            self._delete(removal)
        elif stage is _Stage.DELETED:
            self._forget(removal.part_id)
            self._removed(removal.part_id)
            del self._pending[removal.part_id]  # last: until then nobody may add the id again
            return False
        return removal.stage is not stage

    def _empty(self, part_id: str) -> bool:
        receiver = self._parts.receivers.get(part_id)
        if receiver is not None:
            queues = [thread.queue for thread in self._parts.contexts.values()]
            return receiver.quiet and not any(queue.backlog(part_id) for queue in queues)
        return self._parts.senders[part_id].idle

    def _ask(self) -> int:
        return self._checkpointer.ask() if self._checkpointer is not None else 0

    def _answered(self, number: int) -> bool:
        return self._checkpointer is None or self._checkpointer.answered(number)

    def _take_leave(self, removal: "_Removal") -> None:
        """Remove a sender from the registry before a checkpoint forgets the sender, but a receiver afterwards.

        Sender: a start restores each sender of the registry. If no checkpoint had its numbers any more, the sender
        would use them again for other messages. If a checkpoint holds a sender that is not in the registry, this has no
        effect. Receiver: if code adds a receiver with the same id again, no checkpoint may know the numbers of its
        predecessor.
        """
        part_id = removal.part_id
        if part_id in self._parts.senders:
            self._delete(removal)
            return
        self._forget(part_id)
        removal.asked = self._ask()
        removal.stage = _Stage.RECORDING_GONE

    def _forget(self, part_id: str) -> None:
        """End the thread of a part and remove the part from the parts, unless that was done before."""
        part = self._parts.receivers.get(part_id) or self._parts.senders.get(part_id)
        if part is not None:
            part.stop()
            part.join()
            self._parts.forget(part_id)

    def _delete(self, removal: "_Removal") -> None:
        if self._writer is None:
            removal.stage = _Stage.DELETED
            return

        def deleted(_: None) -> None:  # in the writer's thread
            removal.stage = _Stage.DELETED
            self.wake()

        removal.stage = _Stage.DELETING
        self._writer.submit(RegistryRequest(RegistryCommit(removed=[removal.part_id])), deleted)


class _Stage(Enum):
    """The stages of a removal."""

    EMPTYING = auto()
    RECORDING_EMPTY = auto()
    RECORDING_GONE = auto()
    DELETING = auto()
    DELETED = auto()


@dataclass(slots=True)
class _Removal:
    """A removal that has begun."""

    part_id: str
    stage: _Stage = _Stage.EMPTYING
    asked: int = 0
