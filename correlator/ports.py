"""The protocols of the parts that an engine gets from outside: the store, and the processors of pipelines."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import Recovered, StateSegment, Write
from correlator.core.deadletters import Letter
from correlator.core.steps import ConfiguredStep


class Store(Protocol):
    """The database that holds everything which an engine must not forget.

    The thread that starts the engine calls `read` and then `take_over`. Between the two calls it may take as long as it
    needs, and may give up. Afterwards only the thread of the store writer calls the methods.
    """

    def read(self) -> Recovered:
        """Lock the store, bring its schema up to date, and read its content; writes nothing else.

        Raises `StoreError` when the store cannot be used, `Fenced` when another engine owns it; after an error the
        store is closed.
        """
        ...

    def take_over(self, recovered: Recovered) -> None:
        """Take the epoch `recovered.epoch`: from now on this engine commits, and no engine before it.

        Args:
            recovered: the result of `read`.

        Raises `Fenced` when the store has changed since it was read, by another engine or by a command, and any other
        `StoreError` when the store cannot be written. The caller then ends the start and closes the store.
        """
        ...

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Write everything in one transaction, which checks the epoch and the number of the transaction.

        Args:
            number: the number of the previous transaction plus 1.
            writes: the changes, in order.

        Raises `StoreBusy` when nothing was written and the caller may try again, `CommitUnknown` when the answer was
        lost, `Fenced` when another engine took over, any other `StoreError` when the engine must stop at once.
        """
        ...

    def resolve(self, number: int) -> bool:
        """After `CommitUnknown`: whether transaction `number` was committed. Raises the errors of `commit`."""
        ...

    def confirm_lock(self) -> float | None:
        """Check that this engine still has the lock, if a lock can be lost. Called while there is nothing to commit.

        Returns the number of seconds until the next call, `None` for no further call. Raises the errors of `commit`;
        after `CommitUnknown` the caller calls `resolve` for the transaction that would come next.
        """
        ...

    def read_state(self, numbers: Sequence[int]) -> Sequence[StateSegment]:
        """Read state segments by number. The writer calls it to compact the state log."""
        ...

    def read_letters(self, above: int, most: int) -> Sequence[Letter]:
        """Read the next dead letters with larger numbers than `above`, in the order of their numbers: at most `most`,
        and about 16 MiB together, but at least one. The writer calls it for the sender that dead letters go to.
        """
        ...

    def close(self) -> None:
        """Give up the lock and close; never raises."""
        ...


class StateView(Protocol):
    """Read access to the keyed state of a pipeline after the previous batch."""

    def get(self, owner: str, key: bytes) -> bytes | None:
        """Return the value of one key; `None` if the owner does not have the key."""
        ...

    def items(self, owner: str) -> Iterable[tuple[bytes, bytes]]:
        """Return all keys of an owner with their values."""
        ...


class Processor(Protocol):
    """The implementation of a pipeline: it computes the effects of whole batches of messages, on Spark for example.

    The thread that starts the engine calls `open`. Afterwards the thread of the pipeline's context calls all other
    methods.

    The result of `process` must depend on its arguments only: after a crash the method gets the same messages again,
    perhaps divided into other batches. The method changes nothing itself: the engine applies the effects. An exception
    stops the engine; only after `TryAgain` the engine calls the method again, with the same messages and perhaps more.

    Attributes:
        name: name of the pipeline; part of the names of its state.
        receivers: ids of the receivers whose messages it processes; none of them can be removed while it runs.
        senders: ids of the senders to which it may send; none of them can be removed while it runs.
        max_rows: largest number of messages of one batch.
        max_bytes: number of bytes of message bodies at which a batch is closed.
    """

    name: str
    receivers: Sequence[str]
    senders: Sequence[str]
    max_rows: int
    max_bytes: int

    @property
    def planned_s(self) -> float:
        """The seconds that `process` and `conclude` have spent so far on planning, before they computed."""
        ...

    @property
    def steps(self) -> Sequence[ConfiguredStep]:
        """The steps that keep state, after `open`. Each name begins with the name of the pipeline and a '/'."""
        ...

    def open(self) -> None:
        """Prepare for processing, before `Store.take_over`. Raises `ConfigError` if the pipeline cannot work."""
        ...

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """Compute the effects of a batch.

        Args:
            batch: the messages, in order.
            state: the keyed state after the previous batch.
            engine_time: seconds.
        """
        ...

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Compute the effects of the end of all input, such as due timers. Called when every source has ended.

        After `TryAgain` the engine calls it again.
        """
        ...

    def close(self) -> None:
        """Release its resources; never raises."""
        ...
