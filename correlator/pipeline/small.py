"""Batches in a local Spark: Spark plans each part of a pipeline once, and executes the plan for every batch.

Planning takes most of the time of a small batch. So the plan does not contain the rows of a batch: it reads them from a
file, which is replaced before each execution. A *section* is a part of a pipeline that is one plan. The keyed steps,
which follow sections, run in the thread of the pipeline. Their functions are the same that run in Spark's workers for
large batches (`compiled`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from correlator.pipeline import row_files
from correlator.pipeline.envelope import KEY, PART, POSITION
from correlator.pipeline.memory import Memory
from correlator.pipeline.planning import Jobs, Planning
from correlator.pipeline.stages import KeyedWork, Stage, steps_of
from correlator.ports import StateView

MOST_ROWS = 5_000
"""The largest number of rows that one core processes alone."""
MOST_KEYED_ROWS = 20_000
"""The largest number of rows in a batch whose keyed steps run in the thread of the pipeline. To plan a batch for the
workers takes longer than its keyed steps take in this thread."""
_IN_ORDER = [(name, "ascending") for name in (KEY, POSITION, PART)]


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a pipeline that Spark has planned.

    Attributes:
        source: the file from which the plan reads its rows.
        parts: how many cores share these rows.
        plan: makes the rows of the section.
        work: the keyed step that follows, if there is one.
        after: the number of the stage with which the next section begins; `None` at the end of the pipeline.
        steps: its steps, in the form for Spark's user interface.
    """

    source: Path
    parts: int
    plan: DataFrame
    work: KeyedWork | None
    after: int | None
    steps: str


class SmallBatches:
    """Runs batches of one pipeline, in its thread.

    Args:
        session: a local Spark.
        stages: the stages of the pipeline.
        directory: the directory for the files from which the plans read; nobody else uses it.
        jobs: names the Spark jobs.
        planning: measures how long Spark plans.

    Attributes:
        memory: the results of the sections for earlier messages, if messages are processed again and again; otherwise
            `None`.
    """

    def __init__(
        self, session: SparkSession, stages: Sequence[Stage], directory: Path, jobs: Jobs, planning: Planning
    ) -> None:
        self.memory: Memory | None = None
        self._session = session
        self._stages = stages
        self._directory = directory
        self._jobs = jobs
        self._planning = planning
        self._cores = session.sparkContext.defaultParallelism
        self._sections: dict[tuple[int, int], _Section] = {}
        self._deferred: set[int] = set()
        """The sections whose plan for one core was needed once, and not made then."""

    def takes(self, rows: int) -> bool:
        """Whether a batch with this number of rows must run here."""
        return rows <= MOST_KEYED_ROWS or not any(isinstance(stage.work, KeyedWork) for stage in self._stages)

    def run(self, rows: pa.Table, first: int, state: StateView) -> pa.Table:
        """The effects of rows that come to the stage `first`."""
        at: int | None = first
        while at is not None:
            parts = 1 if rows.num_rows <= MOST_ROWS else self._cores
            section = self._section(at, parts)
            rows = self._executed(section, rows)
            if section.work is not None:
                rows = _worked(section.work, rows, state)
            at = section.after
        return rows

    def forget_plans(self) -> None:
        """Plan all sections anew: a file with which they join rows was read again."""
        self._sections.clear()
        if self.memory is not None:
            self.memory = Memory()

    def _executed(self, section: _Section, rows: pa.Table) -> pa.Table:
        def execute(some: pa.Table) -> pa.Table:
            row_files.replace(section.source, some, section.parts)
            self._jobs.name(section.steps)
            return section.plan.toArrow()

        return execute(rows) if self.memory is None else self.memory.recall(section.source, rows, execute)

    def _section(self, first: int, parts: int) -> _Section:
        """The section that begins with a stage; planned before if possible.

        The first small batch after a larger one uses the plan of that one: two cores process a few rows almost as fast
        as one does, and some runs have no other small batch.
        """
        known = self._sections.get((first, parts))
        if known is None and parts == 1 and first not in self._deferred:
            self._deferred.add(first)
            known = self._sections.get((first, self._cores))
        return known or self._new_section(first, parts)

    def _new_section(self, first: int, parts: int) -> _Section:
        with self._planning.measured():
            section = self._sections[first, parts] = self._analyzed(first, parts)
        self._planning.finish(section.plan)
        return section

    def _analyzed(self, first: int, parts: int) -> _Section:
        source = self._directory / f"{first}-{parts}.arrow"
        rows = row_files.read(self._session, source, parts, self._stages[first].schema)
        at, work = first, None
        while True:
            stage = self._stages[at]
            rows.createOrReplaceTempView(stage.view)
            rows = self._session.sql(stage.text)
            at += 1
            if isinstance(stage.work, KeyedWork):
                work = stage.work
                break
            if stage.work is not None:
                rows = stage.work.apply(rows)
            # The function of a `python` step runs once for each row, also if the next stage reads the rows twice.
            if at == len(self._stages) or self._stages[at].reads_twice:
                break
        after = at if at < len(self._stages) else None
        return _Section(source, parts, rows, work, after, steps_of(self._stages[first:at]))


def _worked(work: KeyedWork, rows: pa.Table, state: StateView) -> pa.Table:
    keys = {key for key in rows.column(KEY).to_pylist() if key is not None}
    clock = work.clock(rows, state)
    made = work.worked(rows.sort_by(_IN_ORDER), work.states(keys, state), clock=clock)
    return made if clock is None else pa.concat_tables([made, work.followed(clock, keys, state)])
