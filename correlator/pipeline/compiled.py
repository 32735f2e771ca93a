"""A compiled pipeline: a chain of stages that Spark executes for each batch.

A *stage* is one SQL text over a temporary view, followed by Python work on its Arrow batches or by nothing: steps that
are SQL fuse into one text, and only `monitor`, `aggregate`, `correlate` and `python` end a stage. The last stage
collects all effects of the rows. All stages together are one Spark job; only a keyed step with very much state first
asks for the keys of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from correlator.core.steps import ConfiguredStep
from correlator.pipeline.envelope import KEY, KEYED_DDL, LIVE, POSITION, TIME, live_row
from correlator.pipeline.lookup import Lookup
from correlator.pipeline.spec import DecodeStep
from correlator.pipeline.worker import ArrowFunction, KeyedFunction
from correlator.ports import StateView

FEW_KEYS = 5_000
"""If a step has state of at most so many keys, all of it goes to Spark; else only that of the keys in the batch."""

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
"""The messages of a batch as they go to Spark."""


@dataclass(frozen=True, kw_only=True)
class PythonWork:
    """A `python` step at the end of a stage."""

    function: ArrowFunction
    schema: StructType

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows that the step makes."""
        return rows.mapInArrow(self.function, self.schema)


@dataclass(frozen=True, kw_only=True)
class KeyedWork:
    """A keyed step at the end of a stage.

    Attributes:
        number: of the step in its pipeline.
        owner: the owner of its state in the store.
        function: makes the function that runs in the workers from the stored states of the keys of a batch, and from
            whether all input has ended.
        schema: of the rows that the step makes.
    """

    number: int
    owner: str
    function: Callable[[dict[str, bytes], bool], KeyedFunction]
    schema: StructType

    def apply(self, rows: DataFrame, states: dict[str, bytes], *, ending: bool = False) -> DataFrame:
        """The rows that the step makes."""
        return rows.mapInArrow(self.function(states, ending), self.schema)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One SQL text over its view, and the Python work that follows it.

    Attributes:
        view: name of the temporary view that the text reads.
        text: the SQL.
        reads_twice: the text reads the view twice, so Spark keeps the rows that the stage before has made.
        work: the Python work, `None` for the last stage.
    """

    view: str
    text: str
    reads_twice: bool
    work: PythonWork | KeyedWork | None


@dataclass
class CompiledPipeline:
    """What Spark executes for each batch of a pipeline. Used by the pipeline's thread.

    Attributes:
        session: the Spark session.
        stages: in order; only the last one has no work.
        keyed: the keyed steps by step number, with their fingerprints.
        senders: the sender of each route by step number.
        decodes: the decode steps by step number, to explain malformed bodies.
        lookups: files that are joined.
    """

    session: SparkSession
    stages: list[Stage] = field(default_factory=list)
    keyed: dict[int, ConfiguredStep] = field(default_factory=dict)
    senders: dict[int, str] = field(default_factory=dict)
    decodes: dict[int, DecodeStep] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)
    _crowded: set[str] = field(default_factory=set)

    def run(self, table: pa.Table, state: StateView) -> pa.Table:
        """The effects of a batch (`INPUT`) in any order, as `envelope.collect_sql` gives them."""
        return self._run(self.session.createDataFrame(table), 0, state)

    def conclude(self, at: int, keys: list[str], state: StateView) -> pa.Table:
        """The effects of the end of all input for keys of the stage `at`, in this stage and the later ones; as `run`.

        The position of an effect is the index of its key.
        """
        work = self.stages[at].work
        assert isinstance(work, KeyedWork)
        rows = [live_row(position, "", {KEY: key, TIME: None}) for position, key in enumerate(keys)]
        markers = self.session.createDataFrame(rows, KEYED_DDL)
        states = {key: value for key in keys if (value := state.get(work.owner, key.encode())) is not None}
        return self._run(work.apply(markers, states, ending=True), at + 1, state)

    def _run(self, rows: DataFrame, first: int, state: StateView) -> pa.Table:
        kept: list[DataFrame] = []
        try:
            for stage in self.stages[first:]:
                if stage.reads_twice and stage is not self.stages[0]:
                    kept.append(rows.persist())
                rows.createOrReplaceTempView(stage.view)
                rows = self.session.sql(stage.text)
                if isinstance(stage.work, KeyedWork):
                    rows = stage.work.apply(rows, self._states(stage.work.owner, rows, state, kept))
                elif stage.work is not None:
                    rows = stage.work.apply(rows)
            return rows.toArrow()
        finally:
            for frame in kept:
                frame.unpersist()

    def _states(self, owner: str, rows: DataFrame, state: StateView, kept: list[DataFrame]) -> dict[str, bytes]:
        """Stored state of every key that may be among the rows."""
        if owner not in self._crowded:
            some = list(islice(state.items(owner), FEW_KEYS + 1))
            if len(some) <= FEW_KEYS:
                return {key.decode(): value for key, value in some}
            self._crowded.add(owner)
        kept.append(rows.persist())
        keys = rows.where(LIVE).select(KEY).distinct().toArrow().column(0).to_pylist()
        return {key: value for key in keys if (value := state.get(owner, key.encode())) is not None}
