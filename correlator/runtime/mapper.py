"""Maps what a receiver takes in: in the receiver's thread at the end of a batch, or meanwhile in others (rule A9.9)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from correlator.core.mapping import Mapped, ReceiveMapping
from correlator.events import Message

FEWEST_PER_THREAD = 64
"""Messages that are worth the hand-over to another thread."""


class Mapper:
    """The messages of the present batch on their way to events. Owner: the receiver's thread.

    Args:
        mapping: safe for threads, since it keeps nothing between two calls.
        extra_threads: how many map while the owner receives; 0 maps in the owner's thread.
        name: of the threads.
        engine_time: engine time.
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
        """More messages of the batch, in order."""
        if self._pool is None:
            self._messages.extend(messages)
            return
        size = max(FEWEST_PER_THREAD, -(-len(messages) // self._threads))
        for first in range(0, len(messages), size):
            part = messages[first : first + size]
            self._parts.append(self._pool.submit(self.mapping.map, part, self._engine_time()))

    def finish(self) -> Mapped:
        """The whole batch, in order; waits for what is not mapped yet. It stays the present batch until `forget`."""
        if self._pool is None:
            return self.mapping.map(self._messages, self._engine_time())
        return _joined([part.result() for part in self._parts])

    def forget(self) -> None:
        """The batch is acknowledged, or given up: its messages come again."""
        self._messages = []
        self._parts = []

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _joined(parts: Sequence[Mapped]) -> Mapped:
    whole = Mapped()
    for part in parts:
        whole.join(part)
    return whole
