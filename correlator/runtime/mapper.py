"""Maps the messages of a receiver: in its thread when a batch is complete, or earlier in other threads (rule A9.9)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from correlator.core.mapping import Mapped, ReceiveMapping, joined
from correlator.events import Message

FEWEST_PER_THREAD = 64
"""The fewest messages that a thread gets at once: for fewer, the hand-over costs more time than it saves."""


class Mapper:
    """Maps the present batch. Owner: the receiver's thread.

    Args:
        mapping: maps messages; several threads may call it.
        extra_threads: number of threads that map while the owner receives; with 0 the owner maps.
        name: prefix of the names of these threads.
        engine_time: returns engine time.
    """

    def __init__(
        self, mapping: ReceiveMapping, extra_threads: int, name: str, engine_time: Callable[[], float]
    ) -> None:
        self.mapping = mapping
        self._threads = extra_threads
        self._engine_time = engine_time
        self._pool = ThreadPoolExecutor(extra_threads, f"{name}-mapping") if extra_threads else None
        self._messages: list[Message] = []
        self._parts: list[Future[Mapped]] = []

    def add(self, messages: Sequence[Message]) -> None:
        """Add the next messages of the batch; mapping threads, if there are any, begin to map them."""
        if self._pool is None:
            self._messages.extend(messages)
            return
        size = max(FEWEST_PER_THREAD, -(-len(messages) // self._threads))
        for first in range(0, len(messages), size):
            part = messages[first : first + size]
            self._parts.append(self._pool.submit(self.mapping.map, part, self._engine_time()))

    def finish(self) -> Mapped:
        """Return the whole batch, mapped and in order; wait for the mapping threads, or map in the calling thread.

        The batch stays the present one until `forget`.
        """
        if self._pool is None:
            return self.mapping.map(self._messages, self._engine_time())
        return joined(part.result() for part in self._parts)

    def map(self, messages: Sequence[Message]) -> Mapped:
        """Map messages that do not belong to the present batch, in the calling thread."""
        return self.mapping.map(messages, self._engine_time())

    def forget(self) -> None:
        """Drop the present batch: it is acknowledged, or the broker will redeliver its messages."""
        self._messages = []
        self._parts = []

    def close(self) -> None:
        """End the mapping threads, and wait until they have ended; they begin nothing new."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
