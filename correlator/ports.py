"""The protocols between the engine and what it stands on: a store, and processors of whole batches."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import Recovered, StateSegment, Write
from correlator.core.steps import ConfiguredStep


class Store(Protocol):
    """The one durable truth of an engine.

    A start calls `read` and then `take_over`, in the thread that starts the engine; between the two it may take as long
    as it needs, and may give up. Afterwards the store is the writer thread's.
    """

    def read(self) -> Recovered:
        """Lock the store, bring its schema up to date, and read what it holds; writes nothing else.

        Raises `StoreError` when the store cannot be used, `Fenced` when another engine owns it; it is closed then.
        """
        ...

    def take_over(self, recovered: Recovered) -> None:
        """Take the epoch `recovered.epoch`: from now on this engine commits, and no engine before it.

        Args:
            recovered: what `read` has returned.

        Raises `Fenced` when the store has changed since it was read, by another engine or by a command, and any other
        `StoreError` when the store cannot be written. The caller then ends the start and closes the store.
        """
        ...

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Write all in one transaction that checks epoch and `number` (the previous one plus 1).

        Raises `StoreBusy` when nothing was written and it may be tried again, `CommitUnknown` when the answer was
        lost, `Fenced` when another engine took over, any other `StoreError` when the engine must stop at once.
        """
        ...

    def resolve(self, number: int) -> bool:
        """After `CommitUnknown`: whether transaction `number` was committed. Raises as `commit`."""
        ...

    def confirm_lock(self) -> float | None:
        """While nothing is to be committed: check that this engine still has the lock, if a lock can be lost.

        Returns the seconds until it is to be asked again, `None` for never. Raises as `commit`; after `CommitUnknown`
        `resolve` is asked for the transaction that would come next.
        """
        ...

    def read_state(self, numbers: Sequence[int]) -> Sequence[StateSegment]:
        """State segments by number, for cleaning."""
        ...

    def close(self) -> None:
        """Give up the lock and close; never raises."""
        ...


class StateView(Protocol):
    """Read access to the keyed state that earlier batches left."""

    def get(self, owner: str, key: bytes) -> bytes | None:
        """The value of one key."""
        ...

    def items(self, owner: str) -> Iterable[tuple[bytes, bytes]]:
        """All keys of an owner."""
        ...


class Processor(Protocol):
    """What a context does with whole batches: a pipeline on Spark.

    The thread that starts the engine calls `open`, afterwards one thread all else.

    `process` must be a function of its arguments alone: after a crash the same messages come again, perhaps cut into
    other batches. It changes nothing itself; the engine applies the effects. An exception stops the engine.

    Attributes:
        name: of the pipeline; part of the names of its state.
        receivers: ids of the receivers whose messages it is given.
        senders: ids of the senders that it may send to; none of them can be removed while it runs.
        max_rows: most messages of one batch.
        max_bytes: bytes of bodies that close a batch.
    """

    name: str
    receivers: Sequence[str]
    senders: Sequence[str]
    max_rows: int
    max_bytes: int

    @property
    def steps(self) -> Sequence[ConfiguredStep]:
        """The steps that keep state, once it is open; their names begin with that of the processor and a '/'."""
        ...

    def open(self) -> None:
        """Start what processing needs, before the store lets the engine write; raises `ConfigError`."""
        ...

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """Work out the effects of the batch."""
        ...

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Effects of the end of all input, once every source has ended (files): close windows, flush."""
        ...

    def close(self) -> None:
        """Let go; never raises."""
        ...
