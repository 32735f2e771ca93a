"""The stages of a compiled pipeline.

A *stage* is one SQL text over a temporary view, followed by Python work on its Arrow batches or by nothing: steps that
are SQL fuse into one text, and only `monitor`, `aggregate`, `correlate`, `python` and a `decode` of a binary format end
a stage. The last stage collects all effects of the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from correlator.core.keyed import due_of
from correlator.core.steps import clock_of_step, owner_of
from correlator.errors import HandlerFailed
from correlator.pipeline import envelope
from correlator.pipeline.arrow_rows import KEYED_SCHEMA, in_place
from correlator.pipeline.clock import DueKeys, EventClock, clock_of
from correlator.pipeline.envelope import CLOCK, KEY, TIME
from correlator.pipeline.worker import ArrowFunction, DecodeFunction, KeyedFunction
from correlator.ports import StateView


@dataclass(frozen=True, kw_only=True)
class PythonWork:
    """A `python` step, or a `decode` step of a binary format, at the end of a stage.

    Attributes:
        place: of the step in its file, and the step, for messages.
        function: runs in the workers.
        schema: of the rows that the step makes.
    """

    place: str
    function: ArrowFunction | DecodeFunction
    schema: StructType

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows that the step makes."""
        return rows.mapInArrow(self.function, self.schema)


@dataclass(frozen=True, kw_only=True)
class KeyedWork:
    """A keyed step at the end of a stage.

    Attributes:
        place: of the step in its file, and the step, for messages.
        number: number of the step in its pipeline.
        name: PIPELINE/STEP.
        function: runs in the workers; a copy of it has the states of the keys of a batch.
        schema: of the rows that the step makes.
        expires: the distance at which keys follow the event time of the step; `None` if they do not.
    """

    place: str
    number: int
    name: str
    function: KeyedFunction
    schema: StructType
    expires: float | None

    @cached_property
    def owner(self) -> str:
        """The owner of the states of the keys in the store."""
        return owner_of(self.name)

    @cached_property
    def due(self) -> DueKeys:
        """The keys of a step with `expires` by the time at which they are due; the thread of the pipeline uses them."""
        return DueKeys(due_of)

    def reader(self, state: StateView) -> Callable[[str], bytes | None]:
        """Reads the stored state of a key."""
        return lambda key: state.get(self.owner, key.encode())

    def states(self, keys: Iterable[str], state: StateView) -> dict[str, bytes]:
        """The stored state of these keys, for each key that has one."""
        return {key: value for key in keys if (value := state.get(self.owner, key.encode())) is not None}

    def apply(
        self, rows: DataFrame, states: dict[str, bytes], *, clock: EventClock | None = None, ending: bool = False
    ) -> DataFrame:
        """The rows that the step makes."""
        return rows.mapInArrow(replace(self.function, states=states, clock=clock, ending=ending), self.schema)

    def worked(
        self, rows: pa.Table, states: dict[str, bytes], *, clock: EventClock | None = None, ending: bool = False
    ) -> pa.Table:
        """The rows that the step makes, in this thread; raises `HandlerFailed` E5510 if the step fails."""
        return self._called(replace(self.function, states=states, clock=clock, ending=ending), rows)

    def clock(self, rows: pa.Table, state: StateView) -> EventClock | None:
        """The event time of the step during a batch; `None` if the step does not need it.

        Args:
            rows: the rows that go into the step, with place, key and time.
            state: the state before the batch.
        """
        if self.expires is None:
            return None
        return clock_of(in_place(rows), self.expires, state.get(clock_of_step(self.name), b""))

    def followed(self, clock: EventClock, present: Iterable[str], state: StateView) -> pa.Table:
        """The rows of the keys that follow the event time of the step without a row of their own in the batch.

        One more row carries the new event time of the step.
        """
        due = self.due.until(clock.last, self.reader(state))
        for key in present:
            due.pop(key, None)
        position = clock.places[0][0]
        markers = [envelope.live_row(position, "", {KEY: key, TIME: None}) for key in sorted(due)]
        function = replace(self.function, states=due, clock=clock, following=True)
        made = self._called(function, pa.Table.from_pylist(markers, KEYED_SCHEMA))
        if clock.stored == state.get(clock_of_step(self.name), b""):
            return made
        time = envelope.carrier(position, "", envelope.effect(CLOCK, self.number, None, clock.stored))
        return pa.concat_tables([made, pa.Table.from_pylist([time], made.schema)])

    def _called(self, function: KeyedFunction, rows: pa.Table) -> pa.Table:
        try:
            made = list(function(iter(rows.to_batches())))
        except Exception as error:
            what, todo = f"the step failed: {error}", "The batch is processed again at the next start"
            raise HandlerFailed("E5510", self.place, what, "", todo) from error
        return pa.Table.from_batches(made, pa.schema([*function.hidden, *function.schema]))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One SQL text over its view, and the Python work that follows it.

    Attributes:
        view: name of the temporary view that the text reads.
        schema: the schema of the view.
        text: the SQL.
        reads_twice: the text reads the view twice, so Spark keeps the rows that the previous stage has made.
        work: the Python work, `None` for the last stage.
        steps: number and kind of each of its steps, in the form for messages.
        pieces: the SQL of each step as a part of the text: its first character, the character after it, and the step.
    """

    view: str
    schema: StructType
    text: str
    reads_twice: bool
    work: PythonWork | KeyedWork | None
    steps: Sequence[str]
    pieces: Sequence[tuple[int, int, str]]


def step_with(stages: Iterable[Stage], first: int, last: int, fragment: str) -> str:
    """The step whose SQL has a fragment at a place of the text of its stage; empty if no step has it, or several have.

    Args:
        stages: the stages of the pipeline.
        first: index of the first character.
        last: index of the last character.
        fragment: the fragment, as Spark cuts it out of the text: it takes these indexes for those of UTF-16 units.
    """
    found = set()
    for stage in stages:
        cut = stage.text.encode("utf-16-le")[2 * first : 2 * last + 2].decode("utf-16-le", "replace")
        if fragment and cut == fragment:
            found |= {step for begin, end, step in stage.pieces if begin <= first and last < end}
    return found.pop() if len(found) == 1 else ""


def steps_of(stages: Sequence[Stage]) -> str:
    """The steps of some successive stages, in the form for Spark's user interface."""
    steps = [step for stage in stages for step in stage.steps]
    return f"steps {', '.join(steps)}" if steps else "effects"
