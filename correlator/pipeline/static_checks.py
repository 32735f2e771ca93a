"""Finds mistakes in the steps of a pipeline without Spark, and needs neither Spark nor Arrow.

The checks follow the columns from step to step as the compiler (`compiler`) does, and report only what the compiler
certainly refuses, with the code that it gives. Where they cannot know the columns, they report nothing about them.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from correlator.configuration import import_object
from correlator.configuration.problems import item, member
from correlator.configuration.words import did_you_mean
from correlator.core.keyed import KeyedMonitor
from correlator.errors import ConfigError, quoted
from correlator.pipeline.columns import ddl_of, fields_of, python_type, refuse_no_number
from correlator.pipeline.ddl import Columns, Kind, columns_of, struct_of
from correlator.pipeline.envelope import HIDDEN, MESSAGE, OF_MESSAGES, RESERVED, visible
from correlator.pipeline.formats import BINARY, columns_of_bodies
from correlator.pipeline.headers import check_header
from correlator.pipeline.references import Path as Names
from correlator.pipeline.references import Query, References, references, simple_query
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
from correlator.pipeline.steps import MESSAGE_COLUMNS
from correlator.pipeline.windows import CLOSED, Call, Value, parse_call

_BOOLEAN, _STRING, _TIMESTAMP = Kind("boolean"), Kind("string"), Kind("timestamp")
_OF_MESSAGE = struct_of(
    [
        ("receiver", _STRING),
        ("number", Kind("bigint")),
        ("key", _STRING),
        ("destination", _STRING),
        ("correlation_id", _STRING),
        ("properties", Kind("map<string,string>")),
    ]
)
_VIEWS = "correlator_"
"""The beginning of the names of all temporary views; for Spark they take precedence over names of columns."""
_FIELDS_OF_ITS_OWN = ("array<", "map<", "struct<>", "variant", "void")
"""Types for which only Spark knows the meaning of a name after a '.'."""
_OF_SPARK = re.compile(r"[:*?\[{\\]")
"""Characters with a special meaning in a path for Spark, but not for Python."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+(?: [A-Za-z0-9_.-]+)*")
_MOST_HEADER_BYTES = 64 * 1024

Known = dict[str, Kind | None]
"""Columns with their types; `None` for a type that only Spark knows."""
Named = Sequence[tuple[str, Kind | None]]
"""Columns with their types, possibly with two columns of one name."""


class Mistake(NamedTuple):
    """A mistake that the compiler refuses.

    Attributes:
        step: the number of the step.
        error: its code, its text, and as its place the path of the setting within the step; empty for the step itself.
    """

    step: int
    error: ConfigError


@dataclass(slots=True)
class Checked:
    """The result for one pipeline.

    Attributes:
        mistakes: the mistakes in the order of the steps.
        unchecked: numbers of the steps with an expression that only Spark can check completely.
    """

    mistakes: list[Mistake] = field(default_factory=list)
    unchecked: set[int] = field(default_factory=set)


def check_steps(pipeline: PipelineSettings, spark_settings: Collection[str] = ()) -> Checked:
    """Check the steps of a pipeline. Modules that the steps name must be importable.

    Args:
        pipeline: the settings of the pipeline.
        spark_settings: names of the settings of Spark that the file changes. A setting about SQL may change the meaning
            of names in expressions, and a setting about Hadoop the meaning of paths. In these cases the checks leave
            out expressions or paths.
    """
    expressions = not any(name.startswith("spark.sql.") for name in spark_settings)
    files = not any(name.startswith("spark.hadoop.") for name in spark_settings)
    return _Checker(expressions=expressions, files=files).check(pipeline.steps)


class _Checker:
    """Goes through the steps and keeps the columns that the next step sees; `None` if they are unknown."""

    def __init__(self, *, expressions: bool, files: bool) -> None:
        self._expressions = expressions
        self._files = files
        self._checked = Checked()
        self._number = 0
        self._hidden: Sequence[str] = OF_MESSAGES
        self._columns: Known | None = {name: Kind(kind) for name, kind in MESSAGE_COLUMNS.items()}

    def check(self, steps: Iterable[Step]) -> Checked:
        """Check the steps in order, and return what was found. Raises nothing; called once."""
        for self._number, step in enumerate(steps):
            self._check(step)
        return self._checked

    def _check(self, step: Step) -> None:  # noqa: C901  a case for each kind of step
        match step:
            case DecodeStep():
                self._decode(step)
            case WhereStep():
                self._expression("condition", step.condition)
            case SelectStep():
                self._select(step)
            case SqlStep():
                self._sql(step)
            case ExplodeStep():
                self._explode(step)
            case LookupStep():
                self._lookup(step)
            case PythonStep():
                if step.schema is not None:
                    self._columns = self._visible("schema", self._schema(step.schema))
            case MonitorStep() | AggregateStep() | CorrelateStep():
                self._keyed(step)
            case RouteStep():
                self._route(step)

    def _report(self, setting: str, code: str, what: str, allowed: str = "", todo: str = "") -> None:
        self._checked.mistakes.append(Mistake(self._number, ConfigError(code, setting, what, allowed, todo)))

    def _refused(self, setting: str, error: ConfigError) -> None:
        self._report(setting, error.code, error.what, error.allowed, error.todo)

    def _visible(self, setting: str, columns: Named | None) -> Known | None:
        """The columns that a step makes, after a report of names that the compiler refuses."""
        if columns is None:
            return None
        try:
            visible([*self._hidden, *(name for name, _ in columns)], self._hidden, "")
        except ConfigError as error:
            self._refused(setting, error)
            return None
        return dict(columns)

    def _schema(self, ddl: str) -> Columns | None:
        try:
            return columns_of(ddl)
        except ConfigError as error:
            self._refused("schema", error)
            return None

    def _decode(self, step: DecodeStep) -> None:
        if self._columns is not None and "body" not in self._columns:
            self._report("", "E1517", "there is no column 'body'", _known(self._columns))
        if step.format in BINARY:
            self._columns = self._decoded(step)
        elif step.format == "text":
            self._columns = {"text": _STRING}
        else:
            columns = self._schema(step.schema or "")
            names = [name.lower() for name, _ in columns or []]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                self._report("schema", "E1511", f"schema: there are two columns '{twice}'", "", "Rename one of them")
                columns = None
            if step.format == "csv":
                self._plain(columns or [])
            self._columns = self._visible("schema", columns)

    def _decoded(self, step: DecodeStep) -> Known | None:
        """The columns of a binary format."""
        try:
            _, found = columns_of_bodies(step)
        except ConfigError as error:
            self._refused(error.where, error)
            return None
        return {name: _kind_of(kind) for name, kind in found.items()}

    def _plain(self, columns: Columns) -> None:
        for name, kind in columns:
            if not kind.is_plain:
                what = f"schema: column '{name}' is {kind.name}"
                self._report("schema", "E1511", what, "A value of csv has neither fields nor elements")

    def _select(self, step: SelectStep) -> None:
        made: Known = {}
        for name, value in step.columns.items():
            made[name] = self._expression(member("columns", name), value, made)
        for name in made:
            try:
                visible([*self._hidden, name], self._hidden, "")
            except ConfigError as error:
                self._refused(member("columns", name), error)
                self._columns = None
                return
        self._columns = made

    def _sql(self, step: SqlStep) -> None:
        self._checked.unchecked.add(self._number)
        words = step.query.split(None, 1)
        if words and words[0].upper() != "SELECT":
            self._report("query", "E1511", "does not begin with SELECT", "Write SELECT … FROM input WHERE …")
        query = simple_query(step.query)
        if query is None or self._columns is None or not self._expressions:
            self._columns = None
            return
        hidden, self._hidden = self._hidden, [name for name in self._hidden if name == MESSAGE]
        self._columns = self._queried(query, self._columns)
        self._hidden = hidden

    def _queried(self, query: Query, columns: Known) -> Known | None:
        """The columns that a query makes; `None` if Spark chooses the name of a column."""
        made: list[tuple[str, Kind | None]] = []
        for entry in query.items:
            if entry.name == "*":
                made += columns.items()
                continue
            if MESSAGE in self._hidden and entry.expression == entry.name == MESSAGE:
                continue
            others = ("input", *(name for name, _ in made))
            made.append((entry.name, self._expression("query", entry.expression, others)))
        if query.condition:
            self._expression("query", query.condition, ("input",))
        names = [name for name, _ in made]
        if not all(names):
            return None
        try:
            visible(names, (), "")
        except ConfigError as error:
            self._refused("query", error)
            return None
        return dict(made)

    def _explode(self, step: ExplodeStep) -> None:
        kind = self._expression("array", step.array)
        if kind is not None and not kind.name.startswith("array<"):
            self._report("array", "E1511", f"{quoted(step.array)} is {kind.name}, must be an array")
        try:
            visible([*self._hidden, step.name], self._hidden, "")
        except ConfigError as error:
            self._refused("name", error)
            self._columns = None
        if self._columns is not None:
            others = {name: one for name, one in self._columns.items() if name != step.name}
            self._columns = {**others, step.name: None}

    def _lookup(self, step: LookupStep) -> None:
        file = self._file_columns(step)
        for at, name in enumerate(step.on):
            if file is not None and name not in file:
                what = f"{step.file} has no column '{name}'"
                self._report(item("on", at), "E1518", what, f"Columns: {', '.join(file)}", did_you_mean(name, file))
            elif self._columns is not None:
                self._resolve(item("on", at), (name,), self._columns)
        if file is None or self._columns is None:
            self._columns = None
            return
        added = {name: None for name in file if name not in step.on}
        clash = next((name for name in added if name in self._columns), None)
        if clash is not None:
            self._report("", "E1517", f"column '{clash}' is there already", "", "Rename one of them")
        self._columns = {**self._columns, **added}

    def _file_columns(self, step: LookupStep) -> list[str] | None:
        if step.file is None:
            return None
        if step.schema is not None:
            try:
                columns = columns_of(step.schema)
            except ConfigError as error:
                self._report("schema", "E1518", f"{step.file}: {error.what}", error.allowed, error.todo)
                return None
            names = None if columns is None else [name for name, _ in columns]
            self._check_header(step, names)
            return names
        return _header(step.file) if step.format == "csv" and self._files else None

    def _check_header(self, step: LookupStep, names: list[str] | None) -> None:
        """Report a header that differs from the schema."""
        header = _header(step.file or "") if step.format == "csv" and self._files else None
        if header is None or names is None or list(map(str.lower, header)) == list(map(str.lower, names)):
            return
        what = f"{step.file}: the header is {quoted(', '.join(header))}, the schema has {quoted(', '.join(names))}"
        allowed, todo = "Both must name the same columns in the same order", "Correct the file or the schema"
        self._report("schema", "E1518", what, allowed, todo)

    def _keyed(self, step: KeyedStep) -> None:
        cls = _monitor(step.class_) if isinstance(step, MonitorStep) else None
        made: Named | None = None
        if cls is not None:
            self._row_type(cls)
        self._expression("key", step.key)
        if step.event_time is not None:
            self._expression("event_time", step.event_time)
        match step:
            case MonitorStep():
                made, setting = self._outputs(cls) if cls is not None else None, "class"
            case AggregateStep():
                made, setting = self._windows(step), "values"
            case CorrelateStep():
                self._expression("first", step.first)
                self._expression("second", step.second)
                row = self._row()
                made, setting = [("first", row), ("second", row)], ""
        self._hidden = HIDDEN
        self._columns = self._visible(setting, made)

    def _row(self) -> Kind | None:
        """The type of a struct with all columns; `None` if the type of a column is not known."""
        columns = [(name, kind) for name, kind in (self._columns or {}).items() if kind is not None]
        return struct_of(columns) if self._columns is not None and len(columns) == len(self._columns) else None

    def _row_type(self, cls: type[KeyedMonitor[Any, Any]]) -> None:
        """Report the fields of the monitor's row type that are not columns."""
        if cls.row_type is dict or self._columns is None:
            return
        try:
            fields = fields_of(cls.row_type)
        except ConfigError as error:
            self._refused("class", error)
            return
        known = {name.lower() for name in self._columns}
        for name, required in fields.items():
            if required and name.lower() not in known:
                what = f"field '{name}' of {cls.row_type.__name__} is not a column"
                self._report("class", "E1517", what, _known(self._columns), did_you_mean(name, self._columns))

    def _outputs(self, cls: type[KeyedMonitor[Any, Any]]) -> Named | None:
        """The columns of a monitor's outputs; for `dict` the columns that the step sees."""
        if cls.output_type is dict:
            return None if self._columns is None else list(self._columns.items())
        try:
            return columns_of(ddl_of(cls.output_type, cls.output_type.__name__))
        except ConfigError as error:
            self._refused("class", error)
            return None

    def _windows(self, step: AggregateStep) -> Named:
        made: list[tuple[str, Kind | None]] = [
            (step.key if step.key.isidentifier() else "key", _STRING),
            ("window_start", _TIMESTAMP),
            ("window_end", _TIMESTAMP),
        ]
        for at, (name, value) in enumerate(step.values.items()):
            made.append((name, self._value(member("values", name), value, at)))
        return [*made, (CLOSED, _BOOLEAN)] if step.output == "updates" else made

    def _value(self, setting: str, value: str, at: int) -> Kind | None:
        """The type of a value of a window."""
        try:
            call = parse_call(value, "")
        except ConfigError as error:
            self._refused(setting, error)
            return None
        kind = self._expression(setting, call.argument, [f"v{other}" for other in range(at)])
        if kind is not None and self._refused_type(setting, call, kind):
            return None
        if kind is None and call.function not in ("avg", "count"):
            return None
        return Kind(Value("", call.function, "" if kind is None else kind.name).result)

    def _route(self, step: RouteStep) -> None:
        for name in ("where", "body", "destination", "key"):
            if (expression := getattr(step, name)) is not None:
                self._expression(name, expression)
        for name, value in step.headers.items():
            kind = self._expression(member("headers", name), value)
            if kind is not None:
                self._header(name, kind)

    def _header(self, name: str, kind: Kind) -> None:
        try:
            check_header(name, kind.name, "")
        except ConfigError as error:
            self._refused(member("headers", name), error)

    def _refused_type(self, setting: str, call: Call, kind: Kind) -> bool:
        """Whether values of this type cannot be aggregated, after a report of this."""
        try:
            refuse_no_number(call.function, call.argument, kind.name, setting)
            if call.function != "avg" and not kind.is_plain:
                python_type(kind.name, setting)
        except ConfigError as error:
            self._refused(setting, error)
            return True
        return False

    def _expression(self, setting: str, text: str, others: Iterable[str] = ()) -> Kind | None:
        """Check an expression; returns its type if it is only a column.

        Args:
            setting: the setting that holds it.
            text: the expression.
            others: further names that it may use in addition to the columns.
        """
        read = references(text) if self._expressions else References()
        if not read.complete or (read.paths and self._columns is None):
            self._checked.unchecked.add(self._number)
        if self._columns is None:
            return None
        taken = {name.lower() for name in others}
        kinds = [self._resolve(setting, path, self._columns, taken) for path in dict.fromkeys(read.paths)]
        return kinds[0] if read.complete and kinds else None

    def _resolve(self, setting: str, path: Names, columns: Known, others: Collection[str] = ()) -> Kind | None:
        """The type of a column or field; reports a column or field that does not exist."""
        name, *fields = path
        lower = name.lower()
        found = [kind for column, kind in columns.items() if column.lower() == lower]
        if lower == MESSAGE and MESSAGE in self._hidden:
            found = [_OF_MESSAGE]
        elif not found:
            is_hidden = lower in RESERVED and lower != MESSAGE
            if lower not in others and not is_hidden and not (fields and lower.startswith(_VIEWS)):
                what = f"{quoted(name)} is not a column"
                self._report(setting, "E1511", what, _known(columns), did_you_mean(name, columns))
            return None
        kind = found[0] if len(found) == 1 else None
        for at, one in enumerate(fields, start=1):
            if kind is None or kind.name.startswith(_FIELDS_OF_ITS_OWN):
                return None
            kind = self._field(setting, ".".join(path[:at]), kind, one)
        return kind

    def _field(self, setting: str, owner: str, kind: Kind, name: str) -> Kind | None:
        found = [one for field_name, one in kind.fields.items() if field_name.lower() == name.lower()]
        if not found:
            allowed = f"Fields: {', '.join(kind.fields)}" if kind.fields else f"Its type is {kind.name}"
            self._report(
                setting,
                "E1511",
                f"{quoted(owner)} has no field {quoted(name)}",
                allowed,
                did_you_mean(name, kind.fields),
            )
        return found[0] if len(found) == 1 else None


def _kind_of(ddl: str) -> Kind | None:
    columns = columns_of(f"c {ddl}")
    return None if columns is None else columns[0][1]


def _monitor(path: str) -> type[KeyedMonitor[Any, Any]] | None:
    """The class of a monitor step; `None` if it cannot be used, which other checks report."""
    try:
        found = import_object(path)
    except ConfigError:
        return None
    return found if isinstance(found, type) and issubclass(found, KeyedMonitor) else None


def _header(name: str) -> list[str] | None:
    """The columns of a CSV file if it can be read, and if Spark certainly reads its header in the same way."""
    file = Path(name)
    if _OF_SPARK.search(name) or file.name[:1] in ("_", ".") or file.suffix.lower() not in (".csv", ".txt"):
        return None
    try:
        with file.open("rb") as content:
            line = content.readline(_MOST_HEADER_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None
    columns = line.rstrip("\r\n").split(",")
    lower = {column.lower() for column in columns}
    return columns if len(lower) == len(columns) and all(map(_PLAIN_NAME.fullmatch, columns)) else None


def _known(columns: Known) -> str:
    shown = (name if kind is None else f"{name} {kind.name}" for name, kind in columns.items())
    return f"Columns: {', '.join(shown)}" if columns else ""
