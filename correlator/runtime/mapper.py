"""Maps the messages of a receiver: in its thread when a batch is complete, or earlier in other threads (rule A9.9)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from correlator.core.mapping import Mapped, ReceiveMapping
from correlator.events import Message

FEWEST_PER_THREAD = 64
"""With fewer messages, the hand-over to another thread costs more than it saves."""


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
        """Add the next messages of the batch."""
        if self._pool is None:
            self._messages.extend(messages)
            return
        size = max(FEWEST_PER_THREAD, -(-len(messages) // self._threads))
        for first in range(0, len(messages), size):
            part = messages[first : first + size]
            self._parts.append(self._pool.submit(self.mapping.map, part, self._engine_time()))

    def finish(self) -> Mapped:
        """The whole batch, in order; waits until it is mapped. It stays the present batch until `forget`."""
        if self._pool is None:
            return self.mapping.map(self._messages, self._engine_time())
        return _joined([part.result() for part in self._parts])

    def forget(self) -> None:
        """Drop the batch: it is acknowledged, or the broker delivers its messages again."""
        self._messages = []
        self._parts = []

    def close(self) -> None:
        """End the mapping threads, and wait until each has ended; messages that no thread has begun to map stay
        unmapped.
        """
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _joined(parts: Sequence[Mapped]) -> Mapped:
    whole = Mapped()
    for part in parts:
        whole.join(part)
    return whole
