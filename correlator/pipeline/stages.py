"""The stages of a compiled pipeline.

A *stage* is one SQL text over a temporary view, followed by Python work on its Arrow batches or by nothing: steps that
are SQL fuse into one text, and only `monitor`, `aggregate`, `correlate` and `python` end a stage. The last stage
collects all effects of the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from correlator.pipeline.worker import ArrowFunction, KeyedFunction
from correlator.ports import StateView


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

    def states(self, keys: Iterable[str], state: StateView) -> dict[str, bytes]:
        """The stored state of each of these keys that has one."""
        return {key: value for key in keys if (value := state.get(self.owner, key.encode())) is not None}

    def apply(self, rows: DataFrame, states: dict[str, bytes], *, ending: bool = False) -> DataFrame:
        """The rows that the step makes."""
        return rows.mapInArrow(self.function(states, ending), self.schema)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One SQL text over its view, and the Python work that follows it.

    Attributes:
        view: name of the temporary view that the text reads.
        schema: of the view.
        text: the SQL.
        reads_twice: the text reads the view twice, so Spark keeps the rows that the stage before has made.
        work: the Python work, `None` for the last stage.
        steps: number and kind of each of its steps, as messages name them.
    """

    view: str
    schema: StructType
    text: str
    reads_twice: bool
    work: PythonWork | KeyedWork | None
    steps: Sequence[str]


def steps_of(stages: Sequence[Stage]) -> str:
    """The steps of some stages in a row, as Spark's user interface shows them."""
    steps = [step for stage in stages for step in stage.steps]
    return f"steps {', '.join(steps)}" if steps else "effects"
