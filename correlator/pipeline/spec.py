"""The settings of a pipeline file, typed and with defaults. Needs no Spark.

Expressions are Spark SQL over the columns of the row. Before `decode` these are `body BINARY`, `key STRING` and
`properties MAP<STRING, STRING>`; after it they are the columns of the schema. The column `_message` (`receiver`,
`number`, `key`, `destination`, `correlation_id`, `properties`) exists until a step makes new rows (`monitor`,
`aggregate`, `correlate`). A step sees one row at a time: nothing may depend on other rows of the batch.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import msgspec

from correlator.configuration.files import EngineFile
from correlator.errors import ConfigError, quoted
from correlator.pipeline.decode_options import check_options
from correlator.settings import Bytes, Count, Identifier, ImportPath, Seconds, SomeSeconds

Sql = Annotated[str, msgspec.Meta(min_length=1)]
Format = Literal["json", "csv", "avro", "protobuf", "text"]
FileFormat = Literal["csv", "json", "parquet"]
Output = Literal["final", "updates"]
_OF_FORMATS = {
    "json": ("schema", "options"),
    "csv": ("schema", "options"),
    "avro": ("schema", "schema_file", "writer_schema"),
    "protobuf": ("descriptor", "message"),
    "text": (),
}
"""The settings of a `decode` step that each format takes in addition to `format`."""
_DURATIONS = ("window", "session", "every", "lateness", "within", "expires")
_LONGEST = 100 * 366 * 86_400.0
_DECISION = re.compile(r"(keep|discard) [0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The Spark session that all pipelines of an engine share.

    Attributes:
        master: where Spark runs; `local[*]` is this machine with all its cores, `spark://HOST:PORT` a cluster.
        python: the Python of Spark's workers, as a path or a name on their PATH. By default it is the Python of the
            engine if the master is local; on a cluster it is the variable PYSPARK_PYTHON, or else `python3`.
        config: any setting of Spark by its name; it replaces the engine's own value of this setting.
    """

    master: str = "local[*]"
    python: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """Makes columns of the message body; a body that does not fit becomes a dead letter (E5101).

    Attributes:
        format: the format of the body; `text` makes one column `text`.
        schema: the columns as Spark DDL (`carrier STRING, dep_delay INT`); for `avro` the Avro schema as JSON.
        schema_file: path of a file with the Avro schema, instead of `schema`.
        writer_schema: the Avro schema with which the bodies were written, as JSON; by default it is the schema of the
            columns.
        descriptor: path of a file with a protobuf descriptor set that includes the imported files.
        message: the full name of the protobuf message type, such as `shop.Order`.
        options: options of Spark's reader of `json` or `csv`, such as `delimiter` or `timestampFormat`.
    """

    word: ClassVar[str] = "decode"

    format: Format
    schema: str | None = None
    schema_file: str | None = None
    writer_schema: str | None = None
    descriptor: str | None = None
    message: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = _OF_FORMATS.get(self.format, ())  # code may have set any value
        for name in ("schema", "schema_file", "writer_schema", "descriptor", "message", "options"):
            if getattr(self, name) and name not in taken:
                formats = [one for one, names in _OF_FORMATS.items() if name in names]
                what, allowed = f"format {self.format} has {quoted(name)}", f"It is for {' and '.join(formats)}"
                raise ConfigError("E1510", name, what, allowed, "Remove it")
        missing = self._missing()
        if missing:
            raise ConfigError("E1510", "decode", f"format {self.format} {missing}")
        check_options(self.format, self.options)

    def _missing(self) -> str:
        """The missing setting that the format needs; empty if none is missing."""
        match self.format:
            case "json" | "csv" if self.schema is None:
                return "has no 'schema'"
            case "avro" if (self.schema is None) == (self.schema_file is None):
                return "needs exactly one of 'schema' and 'schema_file'"
            case "protobuf" if self.descriptor is None or self.message is None:
                return "needs 'descriptor' and 'message'"
            case _:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereStep:
    """Keeps the rows for which the condition is true.

    Attributes:
        condition: a boolean expression.
    """

    word: ClassVar[str] = "where"
    shorthand: ClassVar[str] = "condition"

    condition: Sql


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectStep:
    """Replaces the columns.

    Attributes:
        columns: name of each new column and its expression, in this order.
    """

    word: ClassVar[str] = "select"
    shorthand: ClassVar[str] = "columns"

    columns: Mapping[str, Sql]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    """A SELECT over the relation `input`, which contains the rows. It chooses rows and computes columns.

    Attributes:
        query: `SELECT … FROM input WHERE …`, without joins, groups, windows, order or limit: other steps do these.
    """

    word: ClassVar[str] = "sql"
    shorthand: ClassVar[str] = "query"

    query: Sql


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodeStep:
    """One row for each element of an array; none for an empty array or NULL.

    Attributes:
        array: an expression whose value is the array.
        name: the column that holds the element; it replaces a column of that name, such as the array's own.
    """

    word: ClassVar[str] = "explode"

    array: Sql
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupStep:
    """Adds the columns of a record in a file or table: the record with the same values in the columns of `on`.

    A row without a match has NULL in these columns. The step uses the content that it has read last, so this is the
    only step whose result does not depend on the messages alone.

    Attributes:
        on: columns that both the rows and the file have; no two records of the file may have the same values in them.
        file: path of a file that Spark can read.
        format: the format of the file.
        schema: the columns of the file as DDL; required for json, optional for csv (which has a header line).
        table: the name of a Spark table, instead of a file.
        broadcast: whether Spark sends the whole file to every worker, instead of moving rows.
        refresh: the age at which the engine reads the content again; by default it reads the content once.
    """

    word: ClassVar[str] = "lookup"

    on: tuple[str, ...]
    file: str | None = None
    format: FileFormat = "csv"
    schema: str | None = None
    table: str | None = None
    broadcast: bool = True
    refresh: Seconds | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.table is None):
            raise ConfigError("E1510", "lookup", "needs exactly one of 'file' and 'table'")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """A function on Arrow batches: takes a `pyarrow.RecordBatch`, returns one with a row for each row, in order.

    How Spark divides rows into batches is not defined, so a row must not depend on other rows. If the function raises
    an error, the step calls it again with halves of the batch; a single row with which it fails becomes a dead letter
    (E5106).

    Attributes:
        function: import path `module:function`.
        schema: the columns of its result as DDL; by default the columns of its input.
    """

    word: ClassVar[str] = "python"
    shorthand: ClassVar[str] = "function"

    function: ImportPath
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSettings:
    """The common settings of steps that keep state for each key.

    Attributes:
        name: name of the step, by which the store identifies its state; unique among the steps of the pipeline. By
            default it is the kind of the step with its position among the steps of that kind, such as `aggregate#0`. If
            a step has a name, steps may be added and removed before it. A name contains neither `/` nor `#`.
        was: the former name or position of the step; the first start moves the stored state to the new name.
        state: what a start does with state that no longer fits the step: `keep FINGERPRINT` uses it,
            `discard FINGERPRINT` deletes it. The refused start names the fingerprint. The setting is for that one
            change and has no effect afterwards.
        expires: how far the event time of a key without rows may lag behind the event time of the step. From then on,
            the event time of the key follows at this distance: its timers fire, its windows close, its waiting rows are
            given up, and its state is deleted when it has no timer, window or waiting row left. By default nothing
            happens to a key without rows.
    """

    name: Identifier | None = None
    was: Identifier | None = None
    state: str | None = None
    expires: Seconds | None = None

    def __post_init__(self) -> None:
        if self.name is not None and ("/" in self.name or "#" in self.name):
            raise ConfigError("E1510", "name", f"{quoted(self.name)} has a '/' or '#' in it", "They are for places")
        if self.state is not None and not _DECISION.fullmatch(self.state):
            allowed = "Write keep FINGERPRINT or discard FINGERPRINT, as the error of the refused start shows it"
            raise ConfigError("E1510", "state", f"{quoted(self.state)} is no decision", allowed)
        for name in _DURATIONS:
            if (getattr(self, name, None) or 0.0) > _LONGEST:
                raise ConfigError("E1510", name, "is longer than 100 years")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorStep(KeyedSettings):
    """A `KeyedMonitor`: state per key in the store; its outputs are the rows of the next step.

    Attributes:
        class_: import path `module:Class`.
        key: the key of the state; a row where it cannot be used becomes a dead letter (E5104).
        event_time: a timestamp, for timers in event time; a row where it cannot be used becomes a dead letter (E5104).
    """

    word: ClassVar[str] = "monitor"

    class_: ImportPath
    key: Sql
    event_time: Sql | None = None

    def __post_init__(self) -> None:
        KeyedSettings.__post_init__(self)
        if self.expires is not None and self.event_time is None:
            raise ConfigError("E1510", "monitor", "has 'expires', but no 'event_time'", "'expires' is event time")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateStep(KeyedSettings):
    """Windows or sessions per key in event time: outputs one row for each window or session, when it closes.

    The event time of a key is the latest event time of the rows of this key that have arrived so far; a window closes
    when this time reaches the end of the window plus `lateness`, or at the end of all input. A row whose windows are
    all closed is late and becomes a dead letter (E5105). The new row has the key, `window_start`, `window_end` and the
    values.

    Attributes:
        key: the key of the windows. The output has it in a text column. The column has the same name if `key` is a
            plain name, and the name `key` otherwise.
        event_time: the event time of the row, a timestamp.
        window: the length of a window; either this or `session` is required.
        session: the gap that ends a session. A session is a window from its first row until this time after its last
            row.
        values: name of each column and `count(*)`, or `count`, `sum`, `min`, `max`, `avg`, `first` or `last` of an
            expression; NULL does not count.
        every: the time between the starts of two windows, at most the length; by default the length.
        lateness: how long, in event time, a window or session waits for rows that come out of order.
        output: `final` outputs a window or session when it closes; `updates` outputs it also with each row that changes
            it. A column `closed` then tells the last row of a window from the rows before it.
    """

    word: ClassVar[str] = "aggregate"

    key: Sql
    event_time: Sql
    window: SomeSeconds | None = None
    session: SomeSeconds | None = None
    values: Mapping[str, Sql]
    every: SomeSeconds | None = None
    lateness: Seconds = 0.0
    output: Output = "final"

    def __post_init__(self) -> None:
        KeyedSettings.__post_init__(self)
        if (self.window is None) == (self.session is None):
            raise ConfigError("E1510", "aggregate", "needs exactly one of 'window' and 'session'")
        if self.every is not None and self.window is None:
            raise ConfigError("E1510", "aggregate", "has 'every' and 'session'", "'every' is for 'window'")
        if self.every is not None and self.window is not None and self.every > self.window:
            what = f"'every' is {self.every:g}s, longer than 'window' ({self.window:g}s): rows would be in no window"
            raise ConfigError("E1510", "aggregate", what, "'every' is at most as long as 'window'")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelateStep(KeyedSettings):
    """Pairs of rows of one key that belong together: a `first` and a `second` that are at most `within` apart.

    They may arrive in either order. A row pairs once, with the oldest row that waits. The row of a pair has two
    columns, `first` and `second`, each with all columns of its row. The step drops rows of neither kind.

    Attributes:
        key: the key that both rows have.
        event_time: the event time of the row, a timestamp.
        first: the condition that rows of the first kind fulfil; a row that fulfils both conditions is of this kind.
        second: the condition that rows of the second kind fulfil.
        within: the longest distance of the two rows in event time.
        unmatched: whether the step also outputs rows without a partner, with NULL in the other column.
    """

    word: ClassVar[str] = "correlate"

    key: Sql
    event_time: Sql
    first: Sql
    second: Sql
    within: Seconds
    unmatched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStep:
    """Sends the rows; they also go on to the next step.

    Attributes:
        to: id of a sender.
        where: the condition for sending a row; all rows go on to the next step.
        body: the body; NULL is an empty body. By default the body is the JSON of all columns. A row that has the
            columns body, key and properties, and that neither a decode step nor a keyed step has made, is sent as a
            message.
        destination: a destination instead of the sender's; NULL for the sender's.
        key: the message key.
        headers: application properties, and the standard headers `correlation_id`, `reply_to`, `type`, `priority`,
            `persistent` and `time_to_live_ms`; a property or header whose value is NULL is left out.
    """

    word: ClassVar[str] = "route"
    shorthand: ClassVar[str] = "to"

    to: Identifier
    where: Sql | None = None
    body: Sql | None = None
    destination: Sql | None = None
    key: Sql | None = None
    headers: Mapping[str, Sql] = field(default_factory=dict)


KeyedStep = MonitorStep | AggregateStep | CorrelateStep
Step = (
    DecodeStep
    | WhereStep
    | SelectStep
    | SqlStep
    | ExplodeStep
    | LookupStep
    | PythonStep
    | MonitorStep
    | AggregateStep
    | CorrelateStep
    | RouteStep
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """A pipeline: receivers, steps, senders.

    Attributes:
        name: unique among the pipelines; part of the names of its state.
        from_: ids of the receivers whose messages it processes.
        steps: the steps, in order.
        max_batch_rows: the most messages in a batch.
        max_batch_bytes: the bytes of bodies at which a batch ends.
    """

    name: Identifier
    from_: tuple[str, ...]
    steps: tuple[Step, ...]
    max_batch_rows: Count = 100_000
    max_batch_bytes: Bytes = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for setting, taken in (("name", self.keyed_names().values()), ("was", self._renamed())):
            names = list(taken)
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigError("E1510", f"pipeline {self.name}", f"two steps have {setting} {quoted(twice)}")

    def keyed_names(self) -> dict[int, str]:
        """The name of each keyed step by its number: its own name, or its kind and position (`monitor:CLASS#0`)."""
        names: dict[int, str] = {}
        kinds: list[str] = []
        for at, step in enumerate(self.steps):
            if isinstance(step, KeyedStep):
                kind = _kind(step)
                names[at] = step.name or f"{kind}#{kinds.count(kind)}"
                kinds.append(kind)
        return names

    def _renamed(self) -> list[str]:
        return [step.was for step in self.steps if isinstance(step, KeyedStep) and step.was is not None]


def _kind(step: KeyedStep) -> str:
    return f"monitor:{step.class_.rpartition(':')[2]}" if isinstance(step, MonitorStep) else step.word


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFile(EngineFile):
    """A pipeline file.

    Attributes:
        spark: the Spark session.
        pipelines: the pipelines.
    """

    spark: SparkSettings = SparkSettings()
    pipelines: tuple[PipelineSettings, ...] = ()

    @property
    def readers(self) -> Mapping[str, Sequence[str]]:
        """The receivers that each pipeline and each bridge names, by the name of the pipeline or bridge."""
        pipelines = {one.name: one.from_ for one in self.pipelines}
        return {**pipelines, **{one.name: one.from_ for one in self.bridges}}

    @property
    def taken(self) -> Collection[str]:
        """Ids of the receivers whose messages go to pipelines or bridges, and to no monitor."""
        return {receiver for receivers in self.readers.values() for receiver in receivers}
