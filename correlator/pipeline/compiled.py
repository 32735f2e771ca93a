"""A compiled pipeline: a chain of stages that Spark executes for each batch.

A local Spark runs most batches in the way that `small` describes. For any other batch, all stages together are one
Spark job, which Spark plans anew; only a keyed step with very much state first reads the keys of the batch.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from correlator.core.steps import ConfiguredStep
from correlator.pipeline.arrow_rows import KEYED_SCHEMA
from correlator.pipeline.envelope import GROUPED, KEY, LIVE, PART, POSITION, TIME, live_row
from correlator.pipeline.lookup import Lookup
from correlator.pipeline.planning import Jobs, Planning
from correlator.pipeline.small import SmallBatches
from correlator.pipeline.spec import DecodeStep
from correlator.pipeline.stages import KeyedWork, Stage, steps_of
from correlator.ports import StateView

FEW_KEYS = 5_000
"""If a step has state for at most this number of keys, all of it goes to Spark; if it has more, only the state of the
keys in the batch."""

INPUT = pa.schema(
    [
        (POSITION, pa.int64()),
        ("receiver", pa.string()),
        ("number", pa.int64()),
        ("body", pa.binary()),
        ("key", pa.string()),
        ("destination", pa.string()),
        ("correlation_id", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""The messages of a batch in the form for Spark."""


@dataclass
class CompiledPipeline:
    """What Spark executes for each batch of a pipeline. Used by the pipeline's thread.

    Attributes:
        session: the Spark session.
        stages: the stages in order; only the last one has no work.
        keyed: the keyed steps by step number, with their fingerprints.
        senders: the sender of each route by step number.
        decodes: the decode steps by step number, to explain malformed bodies.
        lookups: files that are joined.
        small: runs most batches; `None` if Spark is not local.
        jobs: names the Spark jobs.
        planning: measures how long Spark plans.
    """

    session: SparkSession
    jobs: Jobs
    planning: Planning
    stages: list[Stage] = field(default_factory=list)
    keyed: dict[int, ConfiguredStep] = field(default_factory=dict)
    senders: dict[int, str] = field(default_factory=dict)
    decodes: dict[int, DecodeStep] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)
    small: SmallBatches | None = None
    _crowded: set[str] = field(default_factory=set)
    _listed: set[int] = field(default_factory=set)

    def begin(self, state: StateView) -> None:
        """Remember the keys of the store that will be due; forget the keys that the last batch has deleted."""
        for stage in self.stages:
            work = stage.work
            if isinstance(work, KeyedWork) and work.expires is not None:
                if work.number not in self._listed:
                    self._listed.add(work.number)
                    self.note(work.number, state.items(work.owner))
                work.due.forget_gone(work.reader(state))

    def note(self, number: int, states: Iterable[tuple[bytes, bytes]]) -> None:
        """Remember keys of a keyed step whose state has changed, with their states."""
        keyed = (stage.work for stage in self.stages if isinstance(stage.work, KeyedWork))
        work = next(one for one in keyed if one.number == number)
        if work.expires is not None:
            for key, data in states:
                work.due.note(key.decode(), data)

    def refresh(self, engine_time: float) -> None:
        """Read joined files again if they are older than their steps allow. Raises `ConfigError` as `Lookup`."""
        self.jobs.prepare()
        changed = [lookup for lookup in self.lookups if lookup.refresh(engine_time)]
        if changed and self.small is not None:
            self.small.forget_plans()

    def close(self) -> None:
        """Remove views and cached content from the session, which other pipelines may share; its JVM may be dead."""
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            for stage in self.stages:
                self.session.catalog.dropTempView(stage.view)
            for lookup in self.lookups:
                lookup.close()

    def run(self, table: pa.Table, state: StateView) -> pa.Table:
        """The effects of a batch (`INPUT`) in any order, as `envelope.collect_sql` gives them."""
        self.jobs.begin(table)
        if (small := self._small_for(table)) is not None:
            return small.run(table, 0, state)
        return self._run(self.session.createDataFrame(table), 0, state)

    def failing(self, table: pa.Table, state: StateView) -> str:
        """The name of the step with Python code that fails on a batch, after all stages together have failed on it.

        If several steps have Python code, the stages run again up to each of them. Empty if each of them succeeds.
        """
        working = [at for at, stage in enumerate(self.stages) if stage.work is not None]
        for at in working:
            if len(working) == 1:
                return _where(self.stages[at])
            try:
                self._run(self.session.createDataFrame(table), 0, state, at)
            except (PySparkException, Py4JError):
                return _where(self.stages[at])
        return ""

    def conclude(self, at: int, keys: list[str], state: StateView) -> pa.Table:
        """The effects of the end of all input for keys of the stage `at`, in this stage and the later ones, in the form
        of `run`.

        The position of an effect is the index of its key.
        """
        work = self.stages[at].work
        assert isinstance(work, KeyedWork)
        self.jobs.begin_end(keys)
        rows = [live_row(position, "", {KEY: key, TIME: None}) for position, key in enumerate(keys)]
        markers = pa.Table.from_pylist(rows, KEYED_SCHEMA)
        states = work.states(keys, state)
        if (small := self._small_for(markers)) is not None:
            return small.run(work.worked(markers, states, ending=True), at + 1, state)
        return self._run(work.apply(self.session.createDataFrame(markers), states, ending=True), at + 1, state)

    def _small_for(self, rows: pa.Table) -> SmallBatches | None:
        return self.small if self.small is not None and self.small.takes(rows.num_rows) else None

    def _run(self, rows: DataFrame, first: int, state: StateView, last: int | None = None) -> pa.Table:
        """The rows after the stage `last`, or the effects after all stages."""
        kept: list[DataFrame] = []
        stages = self.stages[first:] if last is None else self.stages[first : last + 1]
        self.jobs.name(steps_of(stages))
        try:
            for stage in stages:
                if stage.reads_twice and stage is not self.stages[0]:
                    kept.append(rows.persist())
                rows = self._query(stage, rows)
                if isinstance(stage.work, KeyedWork):
                    rows = self._worked(stage.work, rows, state, kept)
                elif stage.work is not None:
                    rows = stage.work.apply(rows)
            self.planning.finish(rows)
            return rows.toArrow()
        finally:
            for frame in kept:
                frame.unpersist()

    def _query(self, stage: Stage, rows: DataFrame) -> DataFrame:
        """The rows that the SQL of a stage makes, analyzed by Spark."""
        with self.planning.measured():
            rows.createOrReplaceTempView(stage.view)
            return self.session.sql(f"{stage.text} {GROUPED}" if isinstance(stage.work, KeyedWork) else stage.text)

    def _worked(self, work: KeyedWork, rows: DataFrame, state: StateView, kept: list[DataFrame]) -> DataFrame:
        if work.expires is None:
            return work.apply(rows, self._states(work, rows, state, kept))
        kept.append(rows.persist())
        places = rows.where(LIVE).select(POSITION, PART, LIVE, KEY, TIME).toArrow()
        keys = set(places.column(KEY).to_pylist())
        clock, states = work.clock(places, state), work.states(keys, state)
        made = work.apply(rows, states, clock=clock)
        followed = work.followed(clock, keys, state) if clock is not None else None
        if followed is None or not followed.num_rows:
            return made
        return made.unionAll(self.session.createDataFrame(followed, work.schema))

    def _states(self, work: KeyedWork, rows: DataFrame, state: StateView, kept: list[DataFrame]) -> dict[str, bytes]:
        """The stored state of every key that may be among the rows."""
        if work.owner not in self._crowded:
            some = list(islice(state.items(work.owner), FEW_KEYS + 1))
            if len(some) <= FEW_KEYS:
                return {key.decode(): value for key, value in some}
            self._crowded.add(work.owner)
        kept.append(rows.persist())
        keys = rows.where(LIVE).select(KEY).distinct().toArrow().column(0).to_pylist()
        return work.states(keys, state)


def _where(stage: Stage) -> str:
    assert stage.work is not None
    return stage.work.place
