"""Removes dynamic receivers and senders once what they hold is handled or sent (FEATURES A1.16, A1.17)."""

from collections.abc import Callable

from correlator.core.commit import RegistryCommit
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.parts import Parts
from correlator.runtime.writer import RegistryRequest, Writer

LOOK_AGAIN_S = 0.02


class Remover(Actor):
    """Carries removals through: stop taking, wait until nothing is left, checkpoint, delete from the store.

    Args:
        parts: where the parts are.
        writer: `None` without persistence.
        checkpointer: `None` without persistence.
        removed: called when a part is gone from the store.
    """

    def __init__(
        self, parts: Parts, writer: Writer | None, checkpointer: Checkpointer | None, removed: Callable[[str], None]
    ) -> None:
        super().__init__("remover")
        self._parts = parts
        self._writer = writer
        self._checkpointer = checkpointer
        self._removed = removed
        self._pending: dict[str, int | RegistryRequest | None] = {}

    def begin(self, part_id: str) -> None:
        """Stop a part from taking anything new; any thread may call it."""
        receiver = self._parts.receivers.get(part_id)
        if receiver is not None:
            receiver.draining = True
            receiver.wake()
        else:
            self._parts.routes.closing |= {part_id}
        self._pending.setdefault(part_id, None)
        self.wake()

    def step(self) -> float | None:
        """Look at every removal under way."""
        for part_id, stage in list(self._pending.items()):
            self._advance(part_id, stage)
        return LOOK_AGAIN_S if self._pending else None

    def _advance(self, part_id: str, stage: int | RegistryRequest | None) -> None:
        if isinstance(stage, RegistryRequest):
            if stage.committed:
                self._end(part_id)
        elif not self._empty(part_id):
            self._pending[part_id] = None
        elif stage is None:
            self._pending[part_id] = self._checkpointer.ask() if self._checkpointer is not None else 0
        elif self._checkpointer is None or self._checkpointer.answered(stage):
            self._delete(part_id)

    def _empty(self, part_id: str) -> bool:
        receiver = self._parts.receivers.get(part_id)
        if receiver is not None:
            queues = [thread.queue for thread in self._parts.contexts.values()]
            return receiver.quiet and not any(queue.backlog(part_id) for queue in queues)
        return self._parts.senders[part_id].idle

    def _delete(self, part_id: str) -> None:
        domains = self._parts.domains_only_of(part_id)
        request = RegistryRequest(RegistryCommit(removed=[part_id]), self.wake, domains)
        self._pending[part_id] = request
        if self._writer is None:
            request.committed = True
        else:
            self._writer.submit(request)

    def _end(self, part_id: str) -> None:
        part = self._parts.receivers.get(part_id) or self._parts.senders[part_id]
        part.stop()
        self._parts.forget(part_id)
        del self._pending[part_id]
        self._removed(part_id)
