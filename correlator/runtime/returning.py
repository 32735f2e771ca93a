"""Stores and delivers the messages of dead letters again, in the thread of their receiver (docs/dead-letters.md)."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from correlator.core.commit import ReceiveCommit, ReceiveSegment
from correlator.core.intake import Intake, ReceiverState
from correlator.events import Message
from correlator.runtime.mapper import Mapper
from correlator.runtime.requests import ReturnRequest
from correlator.runtime.targets import Delivery
from correlator.runtime.writer import Writer

_LOOK_FOR_STOP_S = 0.2
"""Seconds between two looks, while a commit is awaited, whether the receiver is to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Returning:
    """A request to bring received messages back from dead letters.

    Attributes:
        letters: the messages, each with the numbers of the dead letters about it.
        done: called once, in the thread of the receiver, with the numbers of the dead letters whose messages are back.
            A message that still cannot be mapped stays a dead letter, and so do all if the receiver ends before.
    """

    letters: Sequence[tuple[Sequence[int], Message]]
    done: Callable[[Sequence[int]], None]


class Returns:
    """Brings messages of dead letters back as received messages. Owner: the thread of the receiver.

    Args:
        receiver: id of the receiver.
        intake: has the state and the numbers of the receiver.
        mapper: maps the messages.
        delivery: delivers the messages.
        writer: stores the messages; `None` for an engine without a store, which keeps no dead letters.
        stopping: returns whether the receiver is to stop.
    """

    def __init__(
        self,
        receiver: str,
        intake: Intake,
        mapper: Mapper,
        delivery: Delivery,
        writer: Writer | None,
        stopping: Callable[[], bool],
    ) -> None:
        self._receiver = receiver
        self._intake = intake
        self._mapper = mapper
        self._delivery = delivery
        self._writer = writer
        self._stopping = stopping
        self._waiting: deque[Returning] = deque()

    def add(self, returning: Returning) -> None:
        """Let a request wait until it is carried out; any thread may call it."""
        self._waiting.append(returning)

    def withdraw(self, returning: Returning) -> bool:
        """Take a request back, unless it is being carried out or is done; return whether it was so. Any thread may call
        it.
        """
        try:
            self._waiting.remove(returning)
        except ValueError:
            return False
        return True

    @property
    def due(self) -> bool:
        """Whether a request waits, and the receiver is between two batches, not paused and not draining."""
        if not self._waiting:
            return False
        intake = self._intake
        between = intake.state in (ReceiverState.DISCONNECTED, ReceiverState.RECEIVING) and not intake.batch.messages
        return between and not intake.gate.shut

    def carry_out(self) -> None:
        """Carry out the oldest request that waits.

        The thread waits for the commit, so that no batch takes the same numbers. If the engine stops before the answer,
        the next start finds in the store whether the messages are back.
        """
        try:
            returning = self._waiting.popleft()
        except IndexError:  # it was withdrawn
            return
        back: Sequence[int] = ()
        try:
            back = self._brought_back(returning.letters)
        finally:
            returning.done(back)

    def _brought_back(self, letters: Sequence[tuple[Sequence[int], Message]]) -> Sequence[int]:
        mapped = self._mapper.map([message for _, message in letters])
        failed = set(mapped.failed)
        numbers = [one for place, (some, _) in enumerate(letters) if place not in failed for one in some]
        if not mapped.messages or not self._stored(mapped.messages, numbers):
            return ()
        self._delivery.deliver(mapped.messages, mapped.events)
        return numbers

    def _stored(self, messages: Sequence[Message], numbers: Sequence[int]) -> bool:
        """Store these messages, delete their dead letters, and wait for the commit; return whether it has come."""
        assert self._writer is not None
        segment = ReceiveSegment(self._receiver, self._intake.next_number, messages)
        commit = ReceiveCommit(receiver=self._receiver, segment=segment, ids=None, returned=numbers)
        committed = threading.Event()
        self._writer.submit(ReturnRequest(commit), lambda _: committed.set())
        while not committed.wait(_LOOK_FOR_STOP_S):
            if self._stopping():
                return False
        return True

    def close(self) -> None:
        """End all requests that wait; their messages stay dead letters."""
        while self._waiting:
            self._waiting.popleft().done(())
