"""A pipeline on Spark as a `ports.Processor`: batches in, effects out.

How messages are cut into batches makes no difference: the sends of a sender have the order of the messages that caused
them, state belongs to keys, and a message whose processing fails affects no other message. If Spark refuses a value
(division by zero, a cast, an overflow), or if no message can carry a value that a route sends, the batch is cut in
halves until the message is alone; it becomes a dead letter and has no other effect. Any other error of Spark stops the
engine before the batch has any effect.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry
from correlator.core.messages import checked
from correlator.core.steps import ConfiguredStep, clock_of_step, owner_of
from correlator.errors import HandlerFailed, MappingError
from correlator.events import DeadLetter, Headers, Message
from correlator.pipeline.arrow_rows import in_order
from correlator.pipeline.compiled import INPUT, CompiledPipeline
from correlator.pipeline.compiler import compile_pipeline
from correlator.pipeline.envelope import CLOCK, DEAD, FORWARD, MESSAGE, REWRITE, SEND
from correlator.pipeline.halving import Overlay, in_halves, joined
from correlator.pipeline.headers import STANDARD_HEADERS, property_text
from correlator.pipeline.malformed import why_malformed
from correlator.pipeline.memory import Memory
from correlator.pipeline.places import StepPlaces
from correlator.pipeline.spark import DATA_ERRORS, SharedSession, first_line
from correlator.pipeline.spec import PipelineSettings, RouteStep
from correlator.pipeline.stages import KeyedWork
from correlator.pipeline.worker import make_importable
from correlator.ports import StateView

CONCLUDED_AT_ONCE = 50_000
"""The most keys whose timers fire in one Spark job at the end of all input."""

_OF_A_MESSAGE = (*DATA_ERRORS, MappingError, UnicodeDecodeError)
"""Errors that one message of a batch causes. The texts of Spark need not be UTF-8."""
_NOWHERE = StepPlaces()
_views = itertools.count(1)


class SparkProcessor:
    """Runs a pipeline on Spark. Made in any thread, used by one.

    Args:
        pipeline: its settings.
        session: the Spark session of the engine.
        directories: where modules that the pipeline names are looked up beside the usual places, such as the directory
            of the pipeline file.
        places: where the steps stand in their file, for the messages of errors.
        repeats: whether the same messages come again and again, as in crash tests: a local Spark then sees each of
            them once.
    """

    def __init__(
        self,
        pipeline: PipelineSettings,
        session: SharedSession,
        directories: Iterable[str] = (),
        places: StepPlaces = _NOWHERE,
        *,
        repeats: bool = False,
    ) -> None:
        self.name = pipeline.name
        self.receivers: Sequence[str] = pipeline.from_
        self.senders: Sequence[str] = [step.to for step in pipeline.steps if isinstance(step, RouteStep)]
        self.max_rows = pipeline.max_batch_rows
        self.max_bytes = pipeline.max_batch_bytes
        self._pipeline = pipeline
        self._shared = session
        self._directories = tuple(directories)
        self._places = places
        self._repeats = repeats
        self._reads_numbers = MESSAGE in repr(pipeline.steps).lower()
        self._compiled: CompiledPipeline | None = None

    @property
    def planned_s(self) -> float:
        """Seconds in which Spark has planned batches so far; 0 before `open` and after `close`."""
        return 0.0 if self._compiled is None else self._compiled.planning.spent_s

    @property
    def steps(self) -> Sequence[ConfiguredStep]:
        """The keyed steps; after `open`."""
        return list(self._opened.keyed.values())

    def open(self) -> None:
        """Start Spark and compile the steps; raises `ConfigError` E15xx, which names the step that cannot be used."""
        make_importable(self._directories)
        session = self._shared.acquire()
        try:
            self._compiled = compile_pipeline(
                session,
                self._pipeline,
                f"correlator_{next(_views)}",
                self._directories,
                self._shared.scratch,
                self._places,
            )
        except BaseException:
            self._shared.release()
            raise
        if self._repeats and self._compiled.small is not None:
            self._compiled.small.memory = Memory()

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """The effects of a batch; raises `HandlerFailed` E5510 if Spark fails for another reason than a value."""
        if not batch:
            return Effects()
        self._opened.refresh(engine_time)
        self._opened.begin(state)
        return self._process(batch, state, engine_time)

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Fire the timers of all keys, step by step: the rows that a step makes may set timers of a later step.

        A key whose rows Spark refuses becomes a dead letter without a body, and keeps its state: its timers fire again
        at the next end of all input. Raises `HandlerFailed` E5510 as `process`.
        """
        self._opened.begin(state)
        done = Effects()
        for at, stage in enumerate(self._opened.stages):
            if isinstance(stage.work, KeyedWork):
                keys = sorted(key.decode() for key, _ in Overlay(state, done.state).items(stage.work.owner))
                for some in _slices(keys, CONCLUDED_AT_ONCE):
                    done = joined(done, self._conclude(at, some, Overlay(state, done.state), engine_time))
        return done

    def close(self) -> None:
        """Release the Spark session, which ends when the last pipeline of this process has released it.

        Does nothing before `open` has succeeded, and at further calls.
        """
        if self._compiled is not None:
            self._compiled = None
            self._shared.release()

    @property
    def _opened(self) -> CompiledPipeline:
        assert self._compiled is not None, "open comes first"
        return self._compiled

    def _process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        def run(some: Sequence[Delivered], seen: StateView) -> Effects:
            table = input_table(some)
            if self._repeats and not self._reads_numbers:
                table = _without_numbers(table)
            return self._effects(self._run(lambda: self._opened.run(table, seen)), some, engine_time)

        return in_halves(batch, state, run, lambda one, error: self._refused(one, error, engine_time), _OF_A_MESSAGE)

    def _conclude(self, at: int, keys: Sequence[str], state: StateView, engine_time: float) -> Effects:
        def run(some: Sequence[Delivered], seen: StateView) -> Effects:
            ending = [one.message.key or "" for one in some]
            return self._effects(self._run(lambda: self._opened.conclude(at, ending, seen)), some, engine_time)

        stand_ins = [_stand_in(key) for key in keys]
        return in_halves(
            stand_ins, state, run, lambda one, error: self._refused(one, error, engine_time), _OF_A_MESSAGE
        )

    def _refused(self, cause: Delivered, error: Exception, engine_time: float) -> Effects:
        reason = f"E5103 pipeline {self.name}: {first_line(error)}"
        return Effects(dead_letters=[self._dead_letter(cause, reason, engine_time)])

    def _run(self, run: Any) -> pa.Table:
        """Run a function; a failure of Spark becomes an error with a message of one line."""
        try:
            return run()
        except DATA_ERRORS:
            raise
        except (PySparkException, Py4JError) as error:
            todo = "The batch is processed again at the next start"
            raise HandlerFailed(
                "E5510", f"pipeline {self.name}", f"Spark failed: {first_line(error)}", "", todo
            ) from error

    def _effects(self, result: pa.Table, causes: Sequence[Delivered], engine_time: float) -> Effects:
        sends: list[tuple[str, Message]] = []
        state: list[StateEntry] = []
        dead: list[DeadLetter] = []
        senders, keyed = self._opened.senders, self._opened.keyed
        for position, kind, step, key, body, *rest in in_order(result):
            if kind in (SEND, FORWARD, REWRITE):
                message = _message(kind, causes[position].message, key, body, *rest)
                sends.append((senders[step], checked(message)))
            elif kind == DEAD:
                reason = self._explained(step, body.decode(), causes[position].message)
                dead.append(self._dead_letter(causes[position], reason, engine_time))
            elif kind == CLOCK:
                state.append(StateEntry(clock_of_step(keyed[step].name), b"", body))
            else:
                state.append(StateEntry(owner_of(keyed[step].name), key.encode(), body))
                if body is not None:
                    self._opened.note(step, [(key.encode(), body)])
        state.sort(key=lambda entry: (entry.owner, entry.key))
        return Effects(sends, state, dead)

    def _explained(self, step: int, reason: str, message: Message) -> str:
        decode = self._opened.decodes.get(step)
        why = why_malformed(decode, message.body) if decode is not None else ""
        return f"{reason}{why}"

    def _dead_letter(self, cause: Delivered, reason: str, engine_time: float) -> DeadLetter:
        unique_id = cause.message.properties.get("uniqueMessageId")
        return DeadLetter(
            kind="step",
            origin=self.name,
            reason=reason,
            message=cause.message,
            unique_id=unique_id if isinstance(unique_id, str) else None,
            time=engine_time,
            receiver=cause.receiver,
            number=cause.number,
        )


def input_table(batch: Sequence[Delivered]) -> pa.Table:
    """A batch as an Arrow table for Spark; properties become text."""
    messages = [delivered.message for delivered in batch]
    headers = [message.headers for message in messages]
    columns = [
        range(len(batch)),
        [delivered.receiver for delivered in batch],
        [delivered.number for delivered in batch],
        [message.body for message in messages],
        [message.key for message in messages],
        [message.destination for message in messages],
        [None if one is None else one.correlation_id for one in headers],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, INPUT.types, strict=False)]
    return pa.table([*arrays, _texts(messages)], schema=INPUT)


def _without_numbers(table: pa.Table) -> pa.Table:
    """The batch without the numbers of messages: a message that comes again has another number."""
    zeros = pa.array([0] * table.num_rows, INPUT.field("number").type)
    return table.set_column(INPUT.get_field_index("number"), "number", zeros)


def _texts(messages: Sequence[Message]) -> pa.Array:
    """The properties of each message; flat lists take a quarter of the time of one list for each message."""
    ends, names, texts = [0], [], []
    for message in messages:
        for name, value in message.properties.items():
            if value is not None:
                names.append(name)
                texts.append(property_text(value))
        ends.append(len(names))
    return pa.MapArray.from_arrays(ends, pa.array(names, pa.string()), pa.array(texts, pa.string()))


def _message(
    kind: int,
    cause: Message,
    key: str | None,
    body: bytes | None,
    destination: str | None,
    headers: str | None,
    properties: str | None,
) -> Message:
    named: dict[str, Any] = msgspec.json.decode(headers) if headers else {}
    standard = {name: named.pop(name) for name in STANDARD_HEADERS if name in named}
    made = Headers(**standard) if standard else None
    if kind == FORWARD:
        forwarded = {**cause.properties, **named}
        return Message(cause.body, forwarded, cause.key if key is None else key, destination, made or _kept(cause))
    if kind == REWRITE:
        rewritten = {**_typed(properties, cause.properties), **named}
        return Message(body or b"", rewritten, key, destination, made or _kept(cause))
    return Message(body or b"", named, key, destination, made)


def _typed(properties: str | None, before: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a row; a property whose text has not changed keeps the type with which it came."""
    texts = msgspec.json.decode(properties, type=dict[str, str | None]) if properties else {}
    unseen: dict[str, Any] = {name: None for name, value in before.items() if value is None}
    same = {
        name: value for name, value in before.items() if value is not None and texts.get(name) == property_text(value)
    }
    return {**unseen, **{name: text for name, text in texts.items() if text is not None}, **same}


def _kept(cause: Message) -> Headers | None:
    """The headers that mean the same at another broker."""
    headers = cause.headers
    if headers is None:
        return None
    return Headers(correlation_id=headers.correlation_id, type=headers.type, priority=headers.priority)


def _stand_in(key: str) -> Delivered:
    """Stands for the message of a dead letter that the end of all input has caused."""
    return Delivered("", 0, Message(b"", key=key))


def _slices(keys: list[str], size: int) -> Iterator[list[str]]:
    yield from (keys[at : at + size] for at in range(0, len(keys), size))
