"""Pauses receivers and senders, lets them go on, and waits until they have nothing left to do (docs/control.md)."""

import threading
from collections.abc import Callable

from correlator.errors import UsageError
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger
from correlator.runtime.parts import Parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.sender import Sender
from correlator.runtime.timeline import Timeline

LOOK_AGAIN_S = 0.02


class Pausing:
    """Carries the orders out. Any thread may call its methods.

    A pause belongs to the life of the engine: nothing stores it.

    Args:
        parts: the parts of the engine.
        checkpointer: takes the checkpoints; `None` without a store.
        clock: monotonic seconds.
        timeline: gets each pause and its end.
        wait: waits until a part may have made progress, at most the given seconds.
    """

    def __init__(
        self,
        parts: Parts,
        checkpointer: Checkpointer | None,
        clock: Clock,
        timeline: Timeline,
        wait: Callable[[float], None],
    ) -> None:
        self._parts = parts
        self._checkpointer = checkpointer
        self._clock = clock
        self._timeline = timeline
        self._wait = wait
        self._changing = threading.Lock()

    def pause(self, part_id: str) -> None:
        """Pause a part, unless it is paused. Raises `UsageError` E8307 for an unknown id."""
        part = self._part(part_id)
        with self._changing:
            if not part.paused:
                part.pause()
                self._tell("paused", part)

    def resume(self, part_id: str) -> None:
        """End the pause of a part, if there is one. Raises `UsageError` E8307 for an unknown id."""
        part = self._part(part_id)
        with self._changing:
            if part.paused:
                part.go_on()
                self._tell("resumed", part)

    def drain(self, part_id: str, timeout: float, wanted: Callable[[], bool]) -> bool:
        """Wait until a part has nothing left to do, and a checkpoint has recorded this. A receiver is paused first.

        Args:
            part_id: id of the part.
            timeout: longest wait in seconds.
            wanted: returns whether to go on waiting.

        Returns whether this happened in time.

        Raises:
            UsageError: E8307, unknown id; E8308, a sender is paused, or a receiver was resumed meanwhile.
        """
        part = self._part(part_id)
        deadline = self._clock.monotonic() + timeout
        if isinstance(part, Receiver):
            self.pause(part_id)
        while wanted() and (left := deadline - self._clock.monotonic()) > 0:
            if self._nothing_left(part):
                recorded = self._record(left)
                if recorded and self._nothing_left(part):
                    return True
            elif isinstance(part, Sender) and self._parts.staged(part_id):
                self._record(left)
            else:
                self._wait(min(left, LOOK_AGAIN_S))
        return False

    def _nothing_left(self, part: Receiver | Sender) -> bool:
        name = part.settings.id
        if isinstance(part, Sender):
            if part.paused:
                raise UsageError("E8308", f"sender {name}", "is paused, so it sends nothing", "", "Resume it first")
            return not self._parts.to_send(part)
        if not part.paused:
            raise UsageError("E8308", f"receiver {name}", "was resumed meanwhile", "", "Repeat the command")
        return part.quiet and not any(thread.queue.backlog(name) for thread in self._parts.contexts.values())

    def _record(self, timeout: float) -> bool:
        checkpointer = self._checkpointer
        return checkpointer is None or checkpointer.wait_answered(checkpointer.ask(), timeout)

    def _part(self, part_id: str) -> Receiver | Sender:
        part = self._parts.receivers.get(part_id) or self._parts.senders.get(part_id)
        if part is None:
            known = ", ".join(sorted([*self._parts.receivers, *self._parts.senders])) or "none"
            raise UsageError("E8307", f"'{part_id}'", "no receiver or sender has this id", f"There are: {known}")
        return part

    def _tell(self, what: str, part: Receiver | Sender) -> None:
        kind = "receiver" if isinstance(part, Receiver) else "sender"
        named = {kind: part.settings.id}
        get_logger(**named).info(f"the {kind} is {what}")
        self._timeline.add(what, **named)
