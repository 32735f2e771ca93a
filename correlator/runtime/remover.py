"""Removes dynamic receivers and senders once what they hold is handled or sent (FEATURES A1.16, A1.17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from correlator.core.commit import RegistryCommit
from correlator.runtime.actor import Actor
from correlator.runtime.writer import RegistryRequest

if TYPE_CHECKING:
    from correlator.runtime.engine import Engine

LOOK_AGAIN_S = 0.02


class Remover(Actor):
    """Carries removals through: stop taking, wait until nothing is left, checkpoint, delete from the store.

    Args:
        engine: whose parts are removed.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__("remover")
        self._engine = engine
        self._pending: dict[str, int | RegistryRequest | None] = {}

    def begin(self, part_id: str) -> None:
        """Stop a part from taking anything new; any thread may call it."""
        receiver = self._engine.receivers.get(part_id)
        if receiver is not None:
            receiver.draining = True
            receiver.wake()
        else:
            routes = self._engine.parts.routes
            routes.closing = routes.closing | {part_id}
        self._pending.setdefault(part_id, None)
        self.wake()

    def step(self) -> float | None:
        """Look at every removal under way."""
        for part_id, stage in list(self._pending.items()):
            self._advance(part_id, stage)
        return LOOK_AGAIN_S if self._pending else None

    def _advance(self, part_id: str, stage: int | RegistryRequest | None) -> None:
        engine = self._engine
        if isinstance(stage, RegistryRequest):
            if stage.committed:
                self._end(part_id)
        elif not self._empty(part_id):
            self._pending[part_id] = None
        elif stage is None:
            self._pending[part_id] = engine.checkpointer.ask() if engine.checkpointer is not None else 0
        elif engine.checkpointer is None or engine.checkpointer.answered(stage):
            self._delete(part_id)

    def _empty(self, part_id: str) -> bool:
        engine = self._engine
        receiver = engine.receivers.get(part_id)
        if receiver is not None:
            return receiver.quiet and not any(thread.queue.backlog(part_id) for thread in engine.contexts.values())
        return engine.senders[part_id].idle

    def _delete(self, part_id: str) -> None:
        request = RegistryRequest(RegistryCommit(removed=[part_id]), self.wake)
        self._pending[part_id] = request
        if self._engine.writer is None:
            request.committed = True
        else:
            self._engine.writer.submit(request)

    def _end(self, part_id: str) -> None:
        engine = self._engine
        part = engine.receivers.get(part_id) or engine.senders[part_id]
        part.stop()
        engine.forget(part_id)
        del self._pending[part_id]
