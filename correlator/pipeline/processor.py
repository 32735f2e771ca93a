"""A pipeline as the engine sees it: batches in, effects out (`ports.Processor`).

What a batch contains makes no difference: sends of one sender are in the order of the messages that caused them,
state belongs to keys, and a message whose processing fails takes no other message with it. When Spark refuses a value
(division by zero, a cast, an overflow) the batch is cut in halves until the message is alone; it becomes a dead
letter and has no other effect. Everything else that goes wrong in Spark stops the engine: nothing has happened yet.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)

from correlator.core.commit import StateEntry
from correlator.errors import HandlerFailed
from correlator.events import DeadLetter, Headers, Message
from correlator.pipeline.malformed import why_malformed
from correlator.pipeline.plan import INPUT, KeyedWork, Plan, compile_plan
from correlator.pipeline.spark import SharedSession, first_line
from correlator.pipeline.spec import PipelineSettings
from correlator.pipeline.steps import STANDARD_HEADERS
from correlator.pipeline.worker import DEAD, SEND, make_importable
from correlator.ports import Delivered, Effects, StateView

CONCLUDED_AT_ONCE = 50_000
"""Most keys whose timers fire in one Spark job at the end of all input."""

_DATA_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
_views = itertools.count(1)


class SparkProcessor:
    """Runs a pipeline on Spark. Made in any thread, used by one.

    Args:
        pipeline: what it does.
        session: the engine's Spark session.
        directories: where modules that the pipeline names are looked up beside the usual places: the directory of
            the pipeline file.
    """

    def __init__(self, pipeline: PipelineSettings, session: SharedSession, directories: Iterable[str] = ()) -> None:
        self.name = pipeline.name
        self.receivers: Sequence[str] = pipeline.from_
        self.max_rows = pipeline.max_batch_rows
        self.max_bytes = pipeline.max_batch_bytes
        self._pipeline = pipeline
        self._shared = session
        self._directories = tuple(directories)
        self._plan: Plan | None = None

    def open(self) -> None:
        """Start Spark and compile the steps; raises `ConfigError` naming the step that cannot be used."""
        make_importable(self._directories)
        session = self._shared.acquire()
        try:
            self._plan = compile_plan(session, self._pipeline, f"correlator_{next(_views)}", self._directories)
        except BaseException:
            self._shared.release()
            raise

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """The effects of a batch; raises `HandlerFailed` E5510 when Spark fails for another reason than a value."""
        if not batch:
            return Effects()
        for lookup in self._opened.lookups:
            lookup.refresh(engine_time)
        return self._process(batch, state, engine_time)

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Fire the timers of every key, step by step: what a step gives may set timers of a later one."""
        plan, done = self._opened, Effects()
        for at, stage in enumerate(plan.stages):
            if isinstance(stage.work, KeyedWork):
                keys = sorted(key.decode() for key, _ in Overlay(state, done.state).items(stage.work.owner))
                for some in _slices(keys, CONCLUDED_AT_ONCE):
                    result = self._told(partial(plan.conclude, at, some, Overlay(state, done.state)))
                    done = _joined(done, self._effects(result, [_stand_in(key) for key in some], engine_time))
        return done

    def close(self) -> None:
        """Let go of Spark."""
        if self._plan is not None:
            self._plan = None
            self._shared.release()

    @property
    def _opened(self) -> Plan:
        assert self._plan is not None, "open comes first"
        return self._plan

    def _process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        try:
            table = input_table(batch, with_properties=self._opened.uses_properties)
            result = self._told(lambda: self._opened.run(table, state))
        except _DATA_ERRORS as error:
            if len(batch) == 1:
                return self._refused(batch[0], error, engine_time)
            return self._halved(batch, state, engine_time)
        return self._effects(result, batch, engine_time)

    def _halved(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        half = len(batch) // 2
        first = self._process(batch[:half], state, engine_time)
        second = self._process(batch[half:], Overlay(state, first.state), engine_time)
        return _joined(first, second)

    def _refused(self, cause: Delivered, error: Exception, engine_time: float) -> Effects:
        reason = f"E5103 pipeline {self.name}: {first_line(error)}"
        return Effects(dead_letters=[self._dead_letter(cause, reason, engine_time)])

    def _told(self, run: Any) -> pa.Table:
        """Run, and tell a failure of Spark in one line."""
        try:
            return run()
        except _DATA_ERRORS:
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
        senders, owners = self._opened.senders, self._opened.owners
        for position, kind, step, key, body, destination, headers in _in_order(result):
            if kind == SEND:
                sends.append((senders[step], _message(causes[position].message, key, body, destination, headers)))
            elif kind == DEAD:
                reason = self._explained(step, body.decode(), causes[position].message)
                dead.append(self._dead_letter(causes[position], reason, engine_time))
            else:
                state.append(StateEntry(owners[step], key.encode(), body))
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


class Overlay:
    """A view of state with some entries changed."""

    def __init__(self, below: StateView, changes: Sequence[StateEntry]) -> None:
        self._below = below
        self._changes: dict[str, dict[bytes, bytes | None]] = {}
        for entry in changes:
            self._changes.setdefault(entry.owner, {})[entry.key] = entry.value

    def get(self, owner: str, key: bytes) -> bytes | None:
        """The value of one key."""
        changed = self._changes.get(owner, {})
        return changed[key] if key in changed else self._below.get(owner, key)

    def items(self, owner: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys of an owner."""
        changed = self._changes.get(owner, {})
        yield from ((key, value) for key, value in self._below.items(owner) if key not in changed)
        yield from ((key, value) for key, value in changed.items() if value is not None)


def input_table(batch: Sequence[Delivered], *, with_properties: bool) -> pa.Table:
    """A batch as Spark takes it; properties as text, empty unless asked for since they cost much."""
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
        [_texts(message.properties) for message in messages] if with_properties else [[]] * len(batch),
    ]
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, INPUT.types, strict=True)], schema=INPUT)


def _texts(properties: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in properties.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else msgspec.json.encode(value).decode()


def _in_order(result: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows of a result in the order of the messages that caused them."""
    counted = result.append_column("_row", pa.array(range(result.num_rows), pa.int64()))
    order = [("_position", "ascending"), ("_part", "ascending"), ("_row", "ascending")]
    ordered = counted.take(pc.sort_indices(counted, sort_keys=order))
    names = ("_position", "kind", "step", "key", "body", "destination", "headers")
    return zip(*(ordered.column(name).to_pylist() for name in names), strict=True)


def _message(
    cause: Message, key: str | None, body: bytes | None, destination: str | None, headers: str | None
) -> Message:
    named: dict[str, Any] = msgspec.json.decode(headers) if headers else {}
    standard = {name: named.pop(name) for name in STANDARD_HEADERS if name in named}
    made = Headers(**standard) if standard else None
    if body is None:  # nothing decoded the message, so it goes on as it came
        properties = {**cause.properties, **named}
        return Message(cause.body, properties, cause.key if key is None else key, destination, made or _kept(cause))
    return Message(body, named, key, destination, made)


def _kept(cause: Message) -> Headers | None:
    """Those headers that mean the same at another broker."""
    headers = cause.headers
    if headers is None:
        return None
    return Headers(correlation_id=headers.correlation_id, type=headers.type, priority=headers.priority)


def _stand_in(key: str) -> Delivered:
    """Stands for the message of a dead letter that no message has caused but the end of all input."""
    return Delivered("", 0, Message(b"", key=key))


def _joined(first: Effects, second: Effects) -> Effects:
    state = {(entry.owner, entry.key): entry for entry in (*first.state, *second.state)}
    return Effects(
        [*first.sends, *second.sends],
        [state[place] for place in sorted(state)],
        [*first.dead_letters, *second.dead_letters],
    )


def _slices(keys: list[str], size: int) -> Iterator[list[str]]:
    yield from (keys[at : at + size] for at in range(0, len(keys), size))
