"""How long Spark plans, and what its user interface calls the jobs of a pipeline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from correlator.pipeline.repeatable import make_plan
from correlator.runtime.clock import Clock, SystemClock


class Planning:
    """Adds up the time in which Spark plans the batches of a pipeline. Used by the pipeline's thread.

    Args:
        clock: measures the time.

    Attributes:
        spent_s: the time so far, in seconds.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.spent_s = 0.0
        self._clock = clock or SystemClock()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the time of the block."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self.spent_s += self._clock.monotonic() - began

    def finish(self, query: DataFrame) -> None:
        """Let Spark make the plan that it will execute, and add the time. Spark makes the plan once for a query."""
        with self.measured():
            make_plan(query)


class Jobs:
    """Names the Spark jobs of one pipeline. Used by the pipeline's thread.

    Args:
        session: the Spark session.
        pipeline: name of the pipeline, which is the group of its jobs.
    """

    def __init__(self, session: SparkSession, pipeline: str) -> None:
        self._context = session.sparkContext
        self._group = group_of(pipeline)
        self._batch = "no batch"

    def begin(self, batch: pa.Table) -> None:
        """Note the batch to which the next jobs belong."""
        receivers, numbers = batch.column("receiver"), batch.column("number")
        first, last = (f"{receivers[at].as_py()} {numbers[at].as_py()}" for at in (0, batch.num_rows - 1))
        self._batch = f"{_counted(batch.num_rows, 'message')}, {first} to {last}"

    def begin_end(self, keys: Sequence[str]) -> None:
        """Note that the next jobs belong to the end of all input, for these keys."""
        self._batch = f"end of all input, {_counted(len(keys), 'key')}"

    def prepare(self) -> None:
        """Name the jobs that read files before a batch, including the first one."""
        self._batch = "before a batch"
        self.name("files of lookup steps")

    def name(self, steps: str) -> None:
        """Name the jobs that this thread runs next, by the steps that they run."""
        self._context.setJobGroup(self._group, f"{self._group}, {steps}: {self._batch}")


def group_of(pipeline: str) -> str:
    """The group of the Spark jobs of a pipeline."""
    return f"pipeline {pipeline}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
