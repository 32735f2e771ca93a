"""Turns the steps of a pipeline into stages that Spark executes (`compiled`).

Spark analyzes each step over empty views while the step is compiled, so an error in an expression names its step.
"""

# ruff: noqa: S608  the SQL is made of the pipeline file, which is trusted like a program

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_string

from correlator.configuration import import_object
from correlator.configuration.problems import item, member
from correlator.core.keyed import KeyedMonitor
from correlator.core.steps import ConfiguredStep
from correlator.errors import ConfigError, UsageError, quoted
from correlator.handlers import refuse_deferred
from correlator.pipeline import steps as sql
from correlator.pipeline.blame import NAMING, entries_of
from correlator.pipeline.columns import ddl_of, fields_of, python_type, refuse_no_number
from correlator.pipeline.compiled import INPUT, CompiledPipeline
from correlator.pipeline.envelope import (
    HIDDEN,
    HIDDEN_DDL,
    KEY,
    KEYED,
    MESSAGE,
    OF_MESSAGES,
    collect_sql,
    quote,
    visible,
)
from correlator.pipeline.facts import facts_of
from correlator.pipeline.formats import BINARY, columns_of_bodies
from correlator.pipeline.headers import check_header
from correlator.pipeline.lookup import Lookup
from correlator.pipeline.places import StepPlaces
from correlator.pipeline.planning import Jobs, Planning
from correlator.pipeline.repeatable import evaluate_constants, not_repeatable, plan_of
from correlator.pipeline.small import SmallBatches
from correlator.pipeline.spark import first_line, is_local
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    ExplodeStep,
    KeyedStep,
    LookupStep,
    MonitorStep,
    PipelineSettings,
    PythonStep,
    RouteStep,
    SelectStep,
    SqlStep,
    Step,
    WhereStep,
)
from correlator.pipeline.stages import KeyedWork, PythonWork, Stage
from correlator.pipeline.windows import CLOSED, Call, Value, parse_call
from correlator.pipeline.worker import (
    ArrowFunction,
    DecodeFunction,
    KeyedFunction,
    MonitorFactory,
    PairsMonitor,
    SessionsMonitor,
    UserMonitor,
    WindowsMonitor,
)
from correlator.runtime import phases

_ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias", "WithCTE", "CTERelationDef", "View")
_INPUT_ROWS = ("LogicalRDD", "LocalRelation")
_READ_AGAIN = "CTERelationRef"
_NODE = re.compile(r"^[ :]*[+:]- (\w+)", re.MULTILINE)


def compile_pipeline(
    session: SparkSession,
    pipeline: PipelineSettings,
    prefix: str,
    directories: tuple[str, ...],
    scratch: Path,
    places: StepPlaces,
    planning: Planning,
) -> CompiledPipeline:
    """Compile a pipeline.

    Args:
        session: the Spark session.
        pipeline: its settings.
        prefix: the beginning of the names of its temporary views.
        directories: further directories in which Python finds the modules that the pipeline names. The workers of a
            cluster find them in the package that they have got.
        scratch: a directory that is removed after the pipeline has ended.
        places: the places of the steps in their file.
        planning: measures how long Spark plans.

    Raises:
        ConfigError: E1511, Spark refuses an expression; E15xx, another mistake. The error names the step and the place
            of the setting.
        UsageError: E4117, a function of a `python` step is a coroutine. The error names the same.
    """
    is_on_this_host = is_local(session.sparkContext.master)
    looked_up = directories if is_on_this_host else ()
    compiled = _Compiler(session, pipeline, prefix, looked_up, places, planning).compile()
    if is_on_this_host:
        directory = scratch / prefix
        directory.mkdir(mode=0o700)
        compiled.small = SmallBatches(session, compiled.stages, directory, compiled.jobs, compiled.planning)
    return compiled


def not_row_by_row(plan: str) -> str:
    """The part of an analyzed query that depends on more than one row, by the text of its plan; empty if there is none.

    A node of the plan counts as such a part unless it is known to work row by row. A second read of the rows counts,
    too.
    """
    nodes = _NODE.findall(plan)
    others = (node for node in nodes if node not in (*_ROW_BY_ROW, *_INPUT_ROWS, _READ_AGAIN))
    reads = sum(node in _INPUT_ROWS for node in nodes), nodes.count(_READ_AGAIN)
    return next(others, "" if reads in ((1, 0), (1, 1)) else "a subquery")


class _Compiler:
    """Goes through the steps and keeps the columns that the next step sees.

    An error within a step has the path of the wrong setting as its place, or no place; `_compile_all` completes it.
    """

    def __init__(
        self,
        session: SparkSession,
        pipeline: PipelineSettings,
        prefix: str,
        directories: tuple[str, ...],
        places: StepPlaces,
        planning: Planning,
    ) -> None:
        self._session = session
        self._pipeline = pipeline
        self._prefix = prefix
        self._directories = directories
        self._places = places
        self._compiled = CompiledPipeline(session, Jobs(session, pipeline.name), planning)
        self._compiled.jobs.prepare()
        self._parts: list[tuple[str, str]] = []
        """The SQL of each part of a stage, and its step."""
        self._steps: list[str] = []
        self._reads_twice = False
        self._hidden: Sequence[str] = OF_MESSAGES
        self._columns: dict[str, str] = {}
        self._rows = sql.RowKind.RECEIVED
        self._where = f"pipeline {pipeline.name}"
        self._step = self._word = ""
        self._views: list[str] = []

    def compile(self) -> CompiledPipeline:
        """Compile all steps, and the last stage."""
        try:
            return self._compile_all()
        except BaseException:
            self._compiled.close()
            raise
        finally:
            for view in self._views:
                self._session.catalog.dropTempView(view)

    def _compile_all(self) -> CompiledPipeline:
        self._begin(from_arrow_schema(INPUT))
        self._add(sql.source_sql(self._view))
        for number, step in enumerate(self._pipeline.steps):
            self._step = f"step {number + 1} ({step.word})"
            self._where = f"pipeline {self._pipeline.name} {self._step}"
            phases.begin(_compiling(self._pipeline, number))
            self._steps.append(f"{number + 1} {step.word}")
            self._word = step.word
            try:
                self._compile(step, number)
            except (ConfigError, UsageError) as error:
                if error.where.endswith(self._where):  # a lookup names its place itself: it may fail later, too
                    raise
                where = self._placed(number, step, error.where or self._blamed(step))
                raise type(error)(error.code, where, error.what, error.allowed, error.todo) from error
            except (PySparkException, Py4JError) as error:
                where = self._placed(number, step, self._blamed(step))
                raise ConfigError("E1511", where, first_line(error), _known(self._columns)) from error
            self._rows = _rows_after(step, self._rows)
        self._step = ""
        self._end(collect_sql(self._last), None)
        return self._compiled

    def _compile(self, step: Step, number: int) -> None:
        match step:
            case DecodeStep():
                self._decode(step, number)
            case WhereStep():
                self._add_checked(sql.where_sql(step, self._last))
            case SelectStep():
                self._add_checked(sql.select_sql(step, self._last, self._hidden))
            case SqlStep():
                self._select(step)
            case ExplodeStep():
                self._explode(step)
            case LookupStep():
                self._lookup(step, number)
            case PythonStep():
                self._python(step, number)
            case MonitorStep() | AggregateStep() | CorrelateStep():
                self._keyed(step, number)
            case RouteStep():
                self._route(step, number)

    def _placed(self, number: int, step: Step, setting: str) -> str:
        """The place of a setting, and the step."""
        return f"{self._places.of(number, step, setting)} {self._where}".lstrip()

    def _blamed(self, step: Step) -> str:
        """The first setting whose expression Spark refuses by itself; empty if Spark accepts each of them."""
        match step:
            case SqlStep():
                return "query"
            case ExplodeStep():
                return "array"
            case LookupStep():
                return next((item("on", at) for at, name in enumerate(step.on) if name not in self._columns), "")
        before = ""
        for setting, entry in entries_of(step):
            try:
                self._checked(f"SELECT * FROM (SELECT {before}{entry} FROM {self._last})")
            except (ConfigError, PySparkException, Py4JError):
                return setting
            if isinstance(step, SelectStep):
                before += f"{entry}, "
        return ""

    @property
    def _view(self) -> str:
        return f"{self._prefix}_{len(self._compiled.stages)}"

    @property
    def _last(self) -> str:
        return f"{self._view}_{len(self._parts)}"

    def _begin(self, schema: StructType) -> None:
        """Begin a stage over rows of this schema."""
        self._parts, self._reads_twice, self._schema = [], False, schema
        self._stand_in(self._view, schema)

    def _end(self, text: str, work: PythonWork | KeyedWork | None) -> None:
        whole, pieces = "WITH ", []
        for at, (part, step) in enumerate(self._parts, start=1):
            whole += f"{', ' if at > 1 else ''}{self._view}_{at} AS ("
            pieces.append((len(whole), len(whole) + len(part), step))
            whole += f"{part})"
        pieces.append((len(whole) + 1, len(whole) + 1 + len(text), self._step))
        whole += f" {text}"
        self._compiled.stages.append(
            Stage(
                view=self._view,
                schema=self._schema,
                text=whole,
                reads_twice=self._reads_twice,
                work=work,
                steps=self._steps,
                pieces=pieces,
            )
        )
        self._steps = []
        if work is not None:
            self._begin(work.schema)

    def _add(self, text: str) -> None:
        """Add a SELECT and keep its columns; an empty view replaces it in the analysis of later texts."""
        self._add_analyzed(text, self._analyzed(text))

    def _add_checked(self, text: str) -> None:
        """Add a SELECT with expressions of the user, like `_add`."""
        self._add_analyzed(text, self._checked(text))

    def _add_analyzed(self, text: str, query: DataFrame) -> None:
        self._columns = self._columns_of(query.schema, self._hidden)
        self._parts.append((text, self._step))
        self._stand_in(self._last, query.schema)

    def _stand_in(self, view: str, schema: StructType) -> None:
        self._session.createDataFrame([], schema).createOrReplaceTempView(view)
        self._views.append(view)

    def _analyzed(self, text: str) -> DataFrame:
        try:
            return self._session.sql(text)
        except (AnalysisException, ParseException) as error:
            raise ConfigError("E1511", "", first_line(error), _known(self._columns)) from error

    def _checked(self, text: str) -> DataFrame:
        """Refuse an expression that depends on other rows, or that may have another value when the batch is processed
        again.
        """
        query = self._analyzed(text)
        found = not_row_by_row(plan_of(query))
        if found:
            todo = "Use 'aggregate' for groups, 'explode' for arrays, 'lookup' for joins, 'monitor' for order"
            raise ConfigError("E1516", "", f"depends on other rows ({found})", "A step sees one row", todo)
        self._check_repeatable(query, text)
        return query

    def _check_repeatable(self, query: DataFrame, text: str) -> None:
        found = not_repeatable(query, text)
        if found:
            what = f"{quoted(found)} may have another value when a batch is processed again after a crash"
            allowed = "Columns, constants and functions whose value follows from them alone"
            todo = (
                f"For a time use a column of the message, for an id concat({MESSAGE}.receiver, ':', {MESSAGE}.number), "
                "for chance a hash of a column"
            )
            raise ConfigError("E1525", "", what, allowed, todo)

    def _columns_of(self, schema: StructType, hidden: Sequence[str]) -> dict[str, str]:
        """The columns of the user with their types."""
        names = visible(schema.names, hidden, NAMING.get(self._word, ""))
        return {name: schema[name].dataType.simpleString() for name in names}

    def _decode(self, step: DecodeStep, number: int) -> None:
        if "body" not in self._columns:
            raise ConfigError("E1517", "format", "there is no column 'body'", _known(self._columns))
        if step.format in BINARY:
            self._decode_binary(step, number)
            return
        self._compiled.decodes[number] = step
        names = ["text"]
        if step.schema is not None:
            columns = self._parsed(step.schema)
            names = columns.names
            self._try_columns(step, columns)
            if step.options:
                self._try(step, "E1527", "options")
        reason = f"E5101 {self._where}: not {step.format} of the schema"
        self._add(sql.decode_sql(step, self._last, number, self._hidden, names, reason))

    def _decode_binary(self, step: DecodeStep, number: int) -> None:
        """Python decodes the bodies."""
        format_, found = columns_of_bodies(step)
        columns = self._parsed(", ".join(f"{quote(name)} {kind}" for name, kind in found.items()))
        text = sql.bodies_sql(self._last, self._hidden)
        rows = self._analyzed(text).schema
        schema = StructType([*(one for one in rows if one.name in self._hidden), *columns])
        function = DecodeFunction(format_, step.format, number, self._where, _arrow(schema))
        self._end(text, PythonWork(place=self._placed(number, step, ""), function=function, schema=schema))
        self._add(f"SELECT * FROM {self._view}")

    def _try(self, step: DecodeStep, code: str, setting: str) -> None:
        """Let Spark evaluate constants with the types and options of a step, so that errors do not wait for the first
        body.
        """
        try:
            evaluate_constants(self._session.sql(sql.trial_sql(step)))
        except (PySparkException, Py4JJavaError) as error:
            raise ConfigError(code, setting, f"{setting}: {first_line(error)}") from error

    def _try_columns(self, step: DecodeStep, columns: StructType) -> None:
        """Let Spark decode the columns of a step; the error names a column that it cannot decode."""
        plain = replace(step, options={})
        try:
            self._try(plain, "E1511", "schema")
        except ConfigError as error:
            for column in columns:
                alone = replace(plain, schema=StructType([column]).toDDL())
                try:
                    self._try(alone, "E1511", "schema")
                except ConfigError as found:
                    what = f"schema: column {quoted(column.name)} is {column.dataType.simpleString()}: "
                    raise ConfigError("E1511", "schema", what + found.what.removeprefix("schema: ")) from found
            raise error from error.__cause__

    def _parsed(self, ddl: str) -> StructType:
        try:
            found: DataType = _parse_datatype_string(ddl)
        except (PySparkException, Py4JJavaError) as error:
            raise ConfigError("E1511", "schema", f"schema: {first_line(error)}") from error
        if not isinstance(found, StructType):
            raise ConfigError("E1511", "schema", "schema: needs names and types", "Example: carrier STRING, delay INT")
        return found

    def _explode(self, step: ExplodeStep) -> None:
        visible([*self._hidden, step.name], self._hidden, "name")
        text = sql.explode_sql(step, self._last, self._columns)
        query = self._analyzed(text)
        self._check_repeatable(query, text)
        self._add_analyzed(text, query)

    def _select(self, step: SqlStep) -> None:
        seen = [MESSAGE] if MESSAGE in self._hidden else []
        asked = sql.query_sql(step, self._last, ", ".join([*map(quote, self._columns), *seen]))
        columns = self._columns_of(self._without_message(self._checked(asked).schema), hidden=())
        rows = sql.sql_sql(step, self._last, self._hidden, list(columns))
        self._add(f"{rows} UNION ALL {sql.beside_sql(self._last, self._hidden, columns)}")
        self._reads_twice = True

    def _without_message(self, schema: StructType) -> StructType:
        """The columns of a query without the message, which stays with the row. A column of its name is refused."""
        if MESSAGE not in self._hidden or schema.names.count(MESSAGE) != 1:
            return schema
        message = self._analyzed(f"SELECT {MESSAGE} FROM {self._last}").schema[MESSAGE].dataType
        return StructType([one for one in schema if (one.name, one.dataType) != (MESSAGE, message)])

    def _lookup(self, step: LookupStep, number: int) -> None:
        where = self._placed(number, step, "file" if step.file is not None else "table")
        lookup = Lookup(self._session, step, f"{self._prefix}_lookup_{number}", where)
        added = [name for name in lookup.columns if name not in step.on]
        clash = next((name for name in added if name in self._columns), None)
        if clash is not None:
            raise ConfigError("E1517", "", f"column '{clash}' is there already", "", "Rename one of them")
        self._compiled.lookups.append(lookup)
        self._add(sql.lookup_sql(step, self._last, lookup.view, added))

    def _route(self, step: RouteStep, number: int) -> None:
        if step.headers:
            for header in self._analyzed(f"SELECT {sql.header_columns(step)} FROM {self._last}").schema:
                check_header(header.name, header.dataType.simpleString(), member("headers", header.name))
        self._compiled.senders[number] = step.to
        self._add_checked(sql.route_sql(step, self._last, number, self._columns, self._rows))

    def _python(self, step: PythonStep, number: int) -> None:
        schema = self._analyzed(f"SELECT * FROM {self._last}").schema
        _arrow(schema)
        if step.schema is not None:
            hidden = [entry for entry in schema if entry.name in self._hidden]
            schema = StructType([*hidden, *self._parsed(step.schema)])
        refuse_deferred(import_object(step.function, "function"), "function")
        made = _arrow(schema, "schema" if step.schema is not None else "")
        function = ArrowFunction(step.function, self._directories, number, self._where, made)
        place = self._placed(number, step, "")
        self._end(f"SELECT * FROM {self._last}", PythonWork(place=place, function=function, schema=schema))
        self._add(f"SELECT * FROM {self._view}")

    def _keyed(self, step: KeyedStep, number: int) -> None:
        values = sql.keyed_values(step, self._columns, self._wanted(step))
        self._check_means(step)
        text = sql.keyed_sql(step, self._last, number, values, self._where)
        rows = self._checked(text).schema
        _arrow(rows)
        factory, output = self._machine(step, rows)
        schema = StructType([*self._parsed(HIDDEN_DDL), *output])
        configured = self._compiled.keyed[number] = self._configured(step, number, rows, factory())
        function = self._function(factory, number, schema)
        work = KeyedWork(
            place=self._placed(number, step, ""),
            number=number,
            name=configured.name,
            function=function,
            schema=schema,
            expires=step.expires,
        )
        self._end(text, work)
        before = self._columns
        self._hidden = HIDDEN
        self._add(sql.unpack_sql(step, self._view, before))

    def _configured(
        self, step: KeyedStep, number: int, rows: StructType, monitor: type[KeyedMonitor[Any, Any]]
    ) -> ConfiguredStep:
        prefix = f"{self._pipeline.name}/"
        key_type = self._analyzed(f"SELECT {step.key} AS {KEY} FROM {self._last}").schema[KEY].dataType.simpleString()
        values = {entry.name: entry.dataType.simpleString() for entry in rows if entry.name not in KEYED}
        return ConfiguredStep(
            name=f"{prefix}{self._pipeline.keyed_names()[number]}",
            facts=facts_of(step, key_type, values, self._columns, monitor),
            was=f"{prefix}{step.was}" if step.was is not None else "",
            decision=step.state or "",
            read=monitor.decode,
        )

    def _function(self, factory: MonitorFactory, number: int, schema: StructType) -> KeyedFunction:
        fields = list(_arrow(schema))
        hidden, visible = pa.schema(fields[: len(HIDDEN)]), pa.schema(fields[len(HIDDEN) :])
        return KeyedFunction(factory, number, self._where, visible, hidden, {})

    def _wanted(self, step: KeyedStep) -> list[str] | None:
        """The columns that a monitor's row type has, `None` for all."""
        if not isinstance(step, MonitorStep):
            return None
        if not _is_monitor(import_object(step.class_, "class")):
            what, allowed = f"{step.class_} is not a KeyedMonitor", "Write class Name(KeyedMonitor[Row, Output])"
            raise ConfigError("E1503", "class", what, allowed)
        row_type = UserMonitor(step.class_, self._directories)().row_type
        if row_type is dict:
            return None
        fields = fields_of(row_type)
        missing = next((name for name, required in fields.items() if required and name not in self._columns), None)
        if missing is not None:
            what = f"field '{missing}' of {row_type.__name__} is not a column"
            raise ConfigError("E1517", "class", what, _known(self._columns))
        return [name for name in fields if name in self._columns]

    def _machine(self, step: KeyedStep, rows: StructType) -> tuple[MonitorFactory, StructType]:
        """The monitor that runs in the workers, and the columns of its outputs."""
        match step:
            case MonitorStep():
                user = UserMonitor(step.class_, self._directories)
                return user, self._outputs(user().output_type)
            case CorrelateStep():
                return PairsMonitor(step.within, step.unmatched), self._parsed("first STRING, second STRING")
            case AggregateStep():
                return self._windows(step, rows)

    def _outputs(self, output_type: type[Any]) -> StructType:
        """The columns of a monitor's outputs; for `dict` the columns that the step sees."""
        if output_type is not dict:
            return self._parsed(ddl_of(output_type, output_type.__name__))
        columns = self._analyzed(f"SELECT {', '.join(map(quote, self._columns))} FROM {self._last}").schema
        return StructType([StructField(entry.name, entry.dataType) for entry in columns])

    def _windows(self, step: AggregateStep, rows: StructType) -> tuple[MonitorFactory, StructType]:
        calls = _calls(step)
        kinds = [rows[f"v{at}"].dataType.simpleString() for at in range(len(calls))]
        for call, kind, name in zip(calls, kinds, step.values, strict=True):
            refuse_no_number(call.function, call.argument, kind, member("values", name))
            python_type(kind, member("values", name))
        values = tuple(
            Value(name, call.function, kind) for name, call, kind in zip(step.values, calls, kinds, strict=True)
        )
        factory: MonitorFactory
        updates = step.output == "updates"
        if step.window is not None:
            factory = WindowsMonitor(step.window, step.every or step.window, step.lateness, values, updates)
        else:
            factory = SessionsMonitor(step.session or 0.0, step.lateness, values, updates)
        columns = "".join(f", v{at} {value.result}" for at, value in enumerate(values))
        columns += f", {CLOSED} BOOLEAN" if updates else ""
        return factory, self._parsed(f"key STRING, window_start TIMESTAMP, window_end TIMESTAMP{columns}")

    def _check_means(self, step: KeyedStep) -> None:
        """Refuse means of values that are no numbers; `keyed_sql` converts each argument, so only this text shows its
        type.
        """
        if not isinstance(step, AggregateStep):
            return
        calls = _calls(step)
        if all(call.function != "avg" for call in calls):
            return
        arguments = ", ".join(f"{call.argument} AS v{at}" for at, call in enumerate(calls))
        kinds = self._analyzed(f"SELECT {arguments} FROM {self._last}").schema
        for at, (call, name) in enumerate(zip(calls, step.values, strict=True)):
            if call.function == "avg":
                where = member("values", name)
                refuse_no_number("avg", call.argument, kinds[f"v{at}"].dataType.simpleString(), where)


def _calls(step: AggregateStep) -> list[Call]:
    return [parse_call(value, member("values", name)) for name, value in step.values.items()]


def _compiling(pipeline: PipelineSettings, number: int) -> str:
    step = pipeline.steps[number]
    name = f" {step.name}" if isinstance(step, KeyedStep) and step.name else ""
    return f"pipeline {pipeline.name}: compiling step {number + 1} of {len(pipeline.steps)} ({step.word}{name})"


def _rows_after(step: Step, rows: sql.RowKind) -> sql.RowKind:
    match step:
        case WhereStep() | RouteStep():
            return rows
        case DecodeStep() | MonitorStep() | AggregateStep() | CorrelateStep():
            return sql.RowKind.MADE
        case _:
            return sql.RowKind.MESSAGES if rows is sql.RowKind.RECEIVED else rows


def _is_monitor(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, KeyedMonitor)


def _arrow(schema: StructType, where: str = "") -> pa.Schema:
    """The columns in the form for Python. Raises `ConfigError` E1513 for a column of a type that Python cannot get."""
    fields = []
    for column in schema:
        kind = column.dataType.simpleString()
        try:
            fields += to_arrow_schema(StructType([column]), timezone="UTC")
        except PySparkException as error:
            what = f"column {quoted(column.name)} is {kind}, which Python cannot get"
            todo = "Convert it in a 'select' step before this one, or leave it out"
            raise ConfigError("E1513", where, what, "", todo) from error
    return pa.schema(fields)


def _known(columns: Mapping[str, str]) -> str:
    return f"Columns: {', '.join(f'{name} {kind}' for name, kind in columns.items())}" if columns else ""
