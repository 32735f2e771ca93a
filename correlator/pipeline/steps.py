"""Steps as SQL: each is one SELECT over the previous step. This module only makes text; Spark parses it (`compiler`).

Every relation has hidden columns in addition to the user's (`envelope`). Expressions of the user are evaluated for live
rows only: a row that was dropped must not fail again.
"""

# ruff: noqa: S608  all text here is SQL, made of the pipeline file, which is trusted like a program

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from correlator.configuration.problems import member
from correlator.errors import ConfigError
from correlator.pipeline.decode_options import FORMATS, canonical
from correlator.pipeline.envelope import (
    BAD,
    CARRIES,
    DEAD,
    FORWARD,
    HIDDEN,
    INDEX,
    KEY,
    LIVE,
    MESSAGE,
    NOTHING,
    OF_MESSAGES,
    OUT,
    PART,
    REJECTED,
    REWRITE,
    ROW,
    SEND,
    TIME,
    effect_sql,
    hidden_aside,
    hidden_back,
    hidden_sql,
    if_live,
    live_and,
    out_with,
    quote,
)
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    ExplodeStep,
    KeyedStep,
    LookupStep,
    MonitorStep,
    RouteStep,
    SelectStep,
    SqlStep,
    WhereStep,
)
from correlator.pipeline.windows import CLOSED, FIRST, LAST, Call, parse_call

MESSAGE_COLUMNS = {"body": "binary", "key": "string", "properties": "map<string,string>"}


class RowKind(Enum):
    """Whether the rows of a relation are messages."""

    RECEIVED = auto()
    """Unchanged messages."""
    MESSAGES = auto()
    """Messages that a step may have changed."""
    MADE = auto()
    """Rows that a step has made of messages; a route says what it sends of them."""


_BODY = "CAST(body AS STRING)"
_SPACE = " \t\r\n"
"""White space of JSON."""
_FORMATS = frozenset(name.lower() for name in FORMATS)
_TIMESTAMP_FORMAT = """'timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\""""
_TIME_FORMATS = f"""{_TIMESTAMP_FORMAT}, 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS\""""
_JSON = f"map({_TIMESTAMP_FORMAT}, 'ignoreNullFields', 'false')"
"""Options for reading JSON of columns. They set no format for TIMESTAMP_NTZ, so that it may have any fraction of a
second: JSON that an earlier version has stored has milliseconds."""
_WRITTEN_JSON = f"map({_TIME_FORMATS}, 'ignoreNullFields', 'false')"
_WRITTEN_HEADERS = f"map({_TIME_FORMATS})"


def text(value: str) -> str:
    """Return the value as a string literal of Spark SQL, in quotes, with backslashes, quotes and line ends escaped."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def source_sql(view: str) -> str:
    """The rows of a batch that comes from the processor."""
    message = "named_struct('receiver', receiver, 'number', number, 'key', key, 'destination', destination, "
    message += "'correlation_id', correlation_id, 'properties', properties)"
    hidden = hidden_sql(OF_MESSAGES, {PART: "''", LIVE: "true", OUT: NOTHING, MESSAGE: message})
    return f"SELECT {hidden}, body, key, properties FROM {view}"


def decode_sql(
    step: DecodeStep, source: str, number: int, hidden: Sequence[str], names: Sequence[str], reason: str
) -> str:
    """Columns from bodies; a body that does not fit the schema becomes a dead letter with the reason."""
    decoded = f"SELECT *, {if_live(parsed(step))} AS {ROW} FROM {source}"
    judged = f"SELECT *, {LIVE} AND {_malformed(step)} AS {BAD} FROM ({decoded})"
    kept = hidden_sql(hidden, {LIVE: f"{LIVE} AND NOT {BAD}", OUT: _with_dead(BAD, number, text(reason))})
    columns = "".join(f", {ROW}.{quote(name)} AS {quote(name)}" for name in names)
    return f"SELECT {kept}{columns} FROM ({judged})"


def bodies_sql(source: str, hidden: Sequence[str]) -> str:
    """The bodies, for a format that Python decodes."""
    return f"SELECT {hidden_sql(hidden)}, CAST(body AS BINARY) AS body FROM {source}"


def parsed(step: DecodeStep, body: str = "CAST(body AS STRING)") -> str:
    """The body as a struct, for a format that Spark decodes."""
    schema = step.schema or ""
    match step.format:
        case "csv":
            return f"from_csv({body}, {text(f'{schema}, {REJECTED} STRING')}, {_options(step)})"
        case "json":
            return f"from_json({body}, {text(f'{schema}, {REJECTED} STRING')}, {_options(step)})"
        case _:
            return f"named_struct('text', {body})"


def trial_sql(step: DecodeStep) -> str:
    """Decodes a constant and writes a time in each format of the options, so that Spark refuses options that it cannot
    use.
    """
    formats = (value for name, value in canonical(step.options).items() if name in _FORMATS)
    times = (f", date_format(TIMESTAMP '2026-01-05 10:00:00', {text(one)})" for one in formats)
    return f"SELECT {parsed(step, text('{}'))}{''.join(times)}"


def _options(step: DecodeStep) -> str:
    fixed = {"columnnameofcorruptrecord": REJECTED, "allowsinglequotes": "false"}
    options = {**fixed, **canonical(step.options)}
    return f"map({', '.join(f'{text(name)}, {text(value)}' for name, value in options.items())})"


def _malformed(step: DecodeStep) -> str:
    conditions = ["body IS NULL", f"NOT is_valid_utf8({_BODY})"]
    if step.format != "text":
        conditions += [f"{ROW} IS NULL", f"{ROW}.{REJECTED} IS NOT NULL", f"trim({_BODY}) = ''"]
    if step.format == "json":
        conditions.append(f"NOT ({_ends_with_object(step)})")
    return f"({' OR '.join(conditions)})"


def _ends_with_object(step: DecodeStep) -> str:
    """Whether only white space follows the object with which a body begins; Spark's parser ignores what follows it.

    If only white space follows the first `}`, this is the end of the object. In any other case Spark counts the
    elements of two arrays: `[BODY]` must have one element, and `[BODY,{}]` two. If a `]` in the body ended the array,
    both would have the same number, so one array is enough for a body without `]`. The line ends complete a comment,
    which an option may allow.
    """
    whole = f"locate('}}', {_BODY}) = length(rtrim({text(_SPACE)}, {_BODY}))"
    arrays = (f"concat('[', {_BODY}, {text(end)})" for end in ("\n]", "\n,{}]"))
    one, two = (f"coalesce(size(from_json({array}, 'ARRAY<STRUCT<>>', {_options(step)})), 0)" for array in arrays)
    return f"{whole} OR ({one} = 1 AND (locate(']', {_BODY}) = 0 OR {two} = 2))"


def where_sql(step: WhereStep, source: str) -> str:
    """Drops the rows for which the condition is not true."""
    return f"SELECT * EXCEPT ({LIVE}), {live_and(step.condition)} AS {LIVE} FROM {source}"


def select_sql(step: SelectStep, source: str, hidden: Sequence[str]) -> str:
    """Replaces the old columns with new ones."""
    columns = "".join(f", {if_live(value)} AS {quote(name)}" for name, value in step.columns.items())
    return f"SELECT {hidden_sql(hidden)}{columns} FROM {source}"


def query_sql(step: SqlStep, source: str, visible: str) -> str:
    """The user's SELECT, unchanged."""
    return f"SELECT * FROM (WITH input AS (SELECT {visible} FROM {source}) {step.query})"


def sql_sql(step: SqlStep, source: str, hidden: Sequence[str], columns: Sequence[str]) -> str:
    """The user's SELECT with the hidden columns added, but without the effects of earlier steps (`beside_sql`)."""
    select, *rest = step.query.split(None, 1)
    if select.upper() != "SELECT":
        raise ConfigError("E1511", "query", "does not begin with SELECT", "Write SELECT … FROM input WHERE …")
    shown = ", ".join(quote(name) for name in columns)
    rows = f"WITH input AS (SELECT * FROM {source} WHERE {LIVE}) SELECT {hidden_aside(hidden)}, {' '.join(rest)}"
    return f"SELECT {hidden_back(hidden)}, {shown} FROM ({rows})"


def beside_sql(source: str, hidden: Sequence[str], columns: Mapping[str, str]) -> str:
    """The rows of a relation that have effects, not live, with NULL in the given columns."""
    nulls = "".join(f", CAST(NULL AS {ddl}) AS {quote(name)}" for name, ddl in columns.items())
    return f"SELECT {hidden_sql(hidden, {LIVE: 'false'})}{nulls} FROM {source} WHERE {CARRIES}"


def explode_sql(step: ExplodeStep, source: str, columns: Mapping[str, str]) -> str:
    """A row for each element; the effects stay with the first row, so that nothing is sent twice."""
    others = f"* EXCEPT ({quote(step.name)})" if step.name in columns else "*"
    elements = f"posexplode_outer({if_live(step.array)}) AS ({INDEX}, {quote(step.name)})"
    return (
        f"SELECT * EXCEPT ({INDEX}, {PART}, {LIVE}, {OUT}), "
        f"concat({PART}, lpad(hex(coalesce({INDEX}, 0)), 8, '0')) AS {PART}, "
        f"{LIVE} AND {INDEX} IS NOT NULL AS {LIVE}, "
        f"CASE WHEN coalesce({INDEX}, 0) = 0 THEN {OUT} ELSE {NOTHING} END AS {OUT} "
        f"FROM (SELECT {others}, {elements} FROM {source})"
    )


def lookup_sql(step: LookupStep, source: str, view: str, columns: list[str]) -> str:
    """Adds columns of the record of the view that matches; at most one matches."""
    hint = "/*+ BROADCAST(found) */ " if step.broadcast else ""
    added = "".join(f", found.{quote(name)}" for name in columns)
    equal = " AND ".join(f"rows.{quote(name)} = found.{quote(name)}" for name in step.on)
    return f"SELECT {hint}rows.*{added} FROM {source} AS rows LEFT JOIN {view} AS found ON {equal}"


def route_sql(step: RouteStep, source: str, number: int, columns: Mapping[str, str], rows: RowKind) -> str:
    """A send for each live row for which the condition of the route is true."""
    kind, key, body, properties = _sent(step, columns, rows)
    destination = f"CAST({step.destination or 'NULL'} AS STRING)"
    sent = effect_sql(
        kind, number, key=key, body=body, destination=destination, headers=_headers(step), properties=properties
    )
    condition = live_and(step.where) if step.where else LIVE
    return f"SELECT * EXCEPT ({OUT}), {out_with(condition, sent)} AS {OUT} FROM {source}"


def _sent(step: RouteStep, columns: Mapping[str, str], rows: RowKind) -> tuple[int, str, str, str]:
    """Kind, key, body and properties of the messages that a route sends."""
    key, nothing = f"CAST({step.key or 'NULL'} AS STRING)", "CAST(NULL AS STRING)"
    if step.body is not None:
        return SEND, key, f"CAST({step.body} AS BINARY)", nothing
    if rows is RowKind.RECEIVED:
        return FORWARD, key, "CAST(NULL AS BINARY)", nothing
    if rows is RowKind.MESSAGES and columns == MESSAGE_COLUMNS:
        return REWRITE, f"coalesce({key}, `key`)", "body", "to_json(properties)"
    return SEND, key, f"CAST({json_of(columns)} AS BINARY)", nothing


def json_of(columns: Mapping[str, str]) -> str:
    """The columns as one JSON text, in their order."""
    return f"to_json(struct({', '.join(quote(name) for name in columns)}), {_WRITTEN_JSON})"


def _headers(step: RouteStep) -> str:
    if not step.headers:
        return "CAST(NULL AS STRING)"
    return f"to_json(struct({header_columns(step)}), {_WRITTEN_HEADERS})"


def header_columns(step: RouteStep) -> str:
    """The headers of a route as the columns of a SELECT."""
    return ", ".join(f"{value} AS {quote(name)}" for name, value in step.headers.items())


def keyed_sql(step: KeyedStep, source: str, number: int, values: Mapping[str, str], where: str) -> str:
    """The rows that go into a keyed step: key, event time and values; a row without a usable key or time becomes a dead
    letter.
    """
    time = f"CAST({step.event_time} AS TIMESTAMP)" if step.event_time else "CAST(NULL AS TIMESTAMP)"
    key = f"CAST({step.key} AS STRING)"
    keyed = f"SELECT *, {if_live(key)} AS {KEY}, {if_live(time)} AS {TIME} FROM {_wanted(step, source)}"
    judged = f"SELECT *, CASE WHEN {LIVE} THEN {_unusable(step, where)} END AS {BAD} FROM ({keyed})"
    dead = _with_dead(f"{BAD} IS NOT NULL", number, BAD)
    kept = hidden_sql(HIDDEN, {LIVE: f"{LIVE} AND {BAD} IS NULL", OUT: dead})
    usable = ", ".join(f"CASE WHEN {BAD} IS NULL THEN {name} END AS {name}" for name in (KEY, TIME))
    columns = "".join(f", {if_live(value)} AS {quote(name)}" for name, value in values.items())
    return f"SELECT * FROM (SELECT {kept}, {usable}{columns} FROM ({judged})) WHERE {LIVE} OR {CARRIES}"


def _wanted(step: KeyedStep, source: str) -> str:
    """The relation in which only the rows that go into the step are live; the other rows are dropped."""
    if not isinstance(step, CorrelateStep):
        return source
    wanted = live_and(f"({step.first}) OR ({step.second})")
    return f"(SELECT * EXCEPT ({LIVE}), {wanted} AS {LIVE} FROM {source})"


def _unusable(step: KeyedStep, where: str) -> str:
    """The reason why a row cannot go into a keyed step; NULL if it can."""
    reason = f"E5104 {where}: "
    null = f"{KEY} IS NULL OR {TIME} IS NULL" if step.event_time else f"{KEY} IS NULL"
    what = "key or event time is NULL" if step.event_time else "key is NULL"
    outside = " is not in the years 1 to 9999. A number is seconds since 1970."
    return (
        f"CASE WHEN {null} THEN {text(f'{reason}{what}')} "
        f"WHEN NOT is_valid_utf8({KEY}) THEN {text(f'{reason}the key is not UTF-8')} "
        f"WHEN unix_micros({TIME}) NOT BETWEEN {FIRST} AND {LAST} "
        f"THEN concat({text(f'{reason}event time ')}, CAST({TIME} AS STRING), {text(outside)}) END"
    )


def keyed_values(step: KeyedStep, columns: Mapping[str, str], wanted: list[str] | None) -> dict[str, str]:
    """Name and expression of each value that the worker of a keyed step gets.

    Args:
        step: the settings of the step.
        columns: Spark's types of the columns that the step sees.
        wanted: the columns that the row type of a monitor has, `None` for all.
    """
    match step:
        case MonitorStep():
            return {name: quote(name) for name in (columns if wanted is None else wanted)}
        case AggregateStep():
            calls = [parse_call(value, member("values", name)) for name, value in step.values.items()]
            return {f"v{at}": _argument(call) for at, call in enumerate(calls)}
        case CorrelateStep():
            return {"side": f"CASE WHEN {step.first} THEN 'first' ELSE 'second' END", "row": json_of(columns)}


def _argument(call: Call) -> str:
    return f"CAST({call.argument} AS DOUBLE)" if call.function == "avg" else call.argument


def unpack_sql(step: KeyedStep, source: str, columns: Mapping[str, str]) -> str:
    """The rows that a keyed step gives, with the columns that its user sees."""
    match step:
        case MonitorStep():
            return f"SELECT * FROM {source}"
        case AggregateStep():
            key = quote(step.key if step.key.isidentifier() else "key")
            values = "".join(f", v{at} AS {quote(name)}" for at, name in enumerate(step.values))
            closed = f", {CLOSED}" if step.output == "updates" else ""
            return f"SELECT {hidden_sql(HIDDEN)}, key AS {key}, window_start, window_end{values}{closed} FROM {source}"
        case CorrelateStep():
            ddl = text(", ".join(f"{quote(name)} {kind}" for name, kind in columns.items()))
            sides = ", ".join(f"from_json({side}, {ddl}, {_JSON}) AS {side}" for side in ("first", "second"))
            return f"SELECT {hidden_sql(HIDDEN)}, {sides} FROM {source}"


def _with_dead(condition: str, number: int, reason: str) -> str:
    return out_with(condition, effect_sql(DEAD, number, body=f"CAST({reason} AS BINARY)"))
