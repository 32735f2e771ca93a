"""The context of a pipeline: its input queue, the keyed state of its steps, and what it has staged.

A processor gets whole batches of messages. It computes without the lock of its context, since nothing changes until
`BatchContext.apply` makes all effects of a batch at once. So a cut may fall at any time while a processor computes.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from correlator.core.commit import ContextCut, StateEntry, Suspect
from correlator.core.poison import dead_letter
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.staging import Staging
from correlator.core.statelog import put
from correlator.events import UNIQUE_ID, DeadLetter, Message


class Delivered(NamedTuple):
    """A message as a processor gets it.

    `number` is its place in the receiver's stream: numbers grow, and no number is used twice.
    """

    receiver: str
    number: int
    message: Message

    def dead_letter(self, origin: str, reason: str, engine_time: float) -> DeadLetter:
        """Return the dead letter of the message, for a processor with the name `origin`."""
        unique_id = self.message.properties.get(UNIQUE_ID)
        return DeadLetter(
            kind="step",
            origin=origin,
            reason=reason,
            message=self.message,
            unique_id=unique_id if isinstance(unique_id, str) else None,
            time=engine_time,
            receiver=self.receiver,
            number=self.number,
        )


class Effects(NamedTuple):
    """All effects of a processed batch. One checkpoint stores them together with the progress of the batch.

    Attributes:
        sends: (sender id, message), in order.
        state: changed keys.
        dead_letters: messages that could not be processed, with the reasons.
    """

    sends: Sequence[tuple[str, Message]] = ()
    state: Sequence[StateEntry] = ()
    dead_letters: Sequence[DeadLetter] = ()


class BatchContext:
    """The context of one pipeline.

    Owner: the processor's thread, which holds the lock of the context for each call that changes it; the checkpointer
    holds this lock during a cut.

    Args:
        name: name of the pipeline.

    Attributes:
        staging: the sends and dead letters that the next checkpoint takes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = InputQueue()
        self.staging = Staging()
        self._began = 0.0
        self._state: dict[str, dict[bytes, bytes]] = {}
        self._changes: dict[tuple[str, bytes], bytes | None] = {}

    # --- before the thread starts ---

    def load(self, state: Mapping[str, dict[bytes, bytes]]) -> None:
        """Take the keyed state: the state of the store, with the changes that the first checkpoint will write."""
        self._state = dict(state)

    def restore(self, cut: ContextCut, runs: Sequence[Run], engine_time: float) -> None:
        """Take the queue of a checkpoint. A start calls it.

        Args:
            cut: the context in the checkpoint.
            runs: the runs of the queue.
            engine_time: engine time of the checkpoint.
        """
        self._began = engine_time
        self.queue.restore(cut.entered, runs)

    def leave_out(self, suspect: Suspect) -> str:
        """Make a dead letter of the next message, which is condemned; returns the reason. A start calls it."""
        run = self.queue.runs()[0]
        letter = dead_letter(suspect, run.messages[run.position], self._began)
        self.queue.advance(run, run.position + 1)
        self.staging.add_dead_letter(letter)
        return letter.reason

    # --- state, as a processor reads it ---

    def get(self, owner: str, key: bytes) -> bytes | None:
        """The value of one key."""
        return self._state.get(owner, {}).get(key)

    def items(self, owner: str) -> Iterable[tuple[bytes, bytes]]:
        """All keys of an owner, with their values."""
        return list(self._state.get(owner, {}).items())

    # --- work ---

    def take(
        self, max_rows: int, max_bytes: int, most: int = sys.maxsize
    ) -> tuple[list[Delivered], list[tuple[Run, int]]]:
        """Return the next batch, and for each of its runs the position up to which the batch handles the run.

        The queue stays as it is until `apply` gets these positions. Back-pressure does not count the batch any more.

        Args:
            max_rows: largest number of messages of the batch.
            max_bytes: the batch ends when its bodies have this number of bytes.
            most: largest number of places of the queue that the batch covers; a message without an event covers a
                place, too.
        """
        self.queue.enter()
        batch: list[Delivered] = []
        reached: list[tuple[Run, int]] = []
        size = 0
        for run in self.queue.runs():
            position = run.position
            while position < len(run) and len(batch) < max_rows and size < max_bytes and most > 0:
                message = run.messages[position]
                if not run.events or run.events[position] is not None:  # `None`: a dead letter already
                    batch.append(Delivered(run.receiver, run.first + position, message))
                    size += len(message.body)
                position += 1
                most -= 1
            reached.append((run, position))
            self.queue.take(run, position)
            if position < len(run):
                break
        return batch, reached

    def apply(self, effects: Effects, reached: Sequence[tuple[Run, int]], routes: Routes) -> None:
        """Make all effects of a batch at once.

        Args:
            effects: the effects of the batch.
            reached: for each run of the batch, the position up to which the run is handled.
            routes: has the outboxes of all senders.

        Raises:
            UsageError: E8001 for an unknown sender, E8002 for a sender that is being removed; nothing has changed then.
        """
        outboxes, closing = routes.outboxes, routes.closing
        for sender, _ in effects.sends:
            if sender in closing or sender not in outboxes:
                raise routes.unsendable(f"pipeline {self.name}", sender)
        for sender, message in effects.sends:
            outbox = outboxes[sender]
            if outbox.stored:
                self.staging.sends[sender].append(message)
            else:
                outbox.enqueue(message)
        for entry in effects.state:
            put(self._state, entry)
            self._changes[entry.owner, entry.key] = entry.value
        for letter in effects.dead_letters:
            self.staging.add_dead_letter(letter)
        for run, position in reached:
            self.queue.advance(run, position)

    # --- the cut ---

    def cut(self) -> ContextCut:
        """Return the queue at this moment, for a checkpoint."""
        entered, queue = self.queue.cut(_no_events)
        return ContextCut(self.name, entered, queue)

    def take_state(self) -> list[StateEntry]:
        """Return the keys that have changed since the last cut."""
        changes, self._changes = self._changes, {}
        return [StateEntry(owner, key, value) for (owner, key), value in changes.items()]

    def awaits_time(self) -> bool:
        """Return `False`: windows and timers of pipelines follow event time."""
        return False


def _no_events(event: Any) -> tuple[str, bytes]:
    raise AssertionError(f"a pipeline's queue holds an event from inside: {event}")
