"""Steps as SQL: each is one SELECT over the step before. Text only; Spark parses it (plan.py).

Every relation has hidden columns beside the user's, and one row of it may be two things at once:

- `_live`: the row goes on to the next step. Rows that a condition drops only stop being live.
- `_out`: what the row has caused so far: sends, dead letters. It travels with the row to the end, where all of it is
  collected at once; so a pipeline that sends in the middle is still one pass over its rows.
- `_position`: the message in the batch that the row comes from; `_part`: order among rows of one message, as text that
  sorts (eight hexadecimal digits for each step that made several rows of one).

Expressions of the user are evaluated for live rows only (`CASE WHEN _live`): a dead row must not fail again.
"""

# ruff: noqa: S608  all text here is SQL, made of the pipeline file, which is trusted like a program

from collections.abc import Mapping
from enum import Enum, auto

from correlator.errors import ConfigError
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
from correlator.pipeline.windows import Call, parse_call
from correlator.pipeline.worker import DEAD, FORWARD, HIDDEN, MESSAGE, REWRITE, SEND

OUT = (
    "ARRAY<STRUCT<kind: INT, step: INT, key: STRING, body: BINARY, destination: STRING, headers: STRING, "
    "properties: STRING>>"
)
NOTHING = f"CAST(array() AS {OUT})"
HIDDEN_DDL = f"_position BIGINT, _part STRING, _live BOOLEAN, _out {OUT}"
RESERVED = frozenset((*HIDDEN, MESSAGE, "_key", "_time", "_row", "_bad", "_index"))
MESSAGE_COLUMNS = {"body": "binary", "key": "string", "properties": "map<string,string>"}
STANDARD_HEADERS = ("correlation_id", "reply_to", "type", "priority", "persistent", "time_to_live_ms")


class Rows(Enum):
    """What the rows of a relation are."""

    RECEIVED = auto()
    """Messages as they came."""
    MESSAGES = auto()
    """Messages that a step may have changed."""
    MADE = auto()
    """Rows that a step has made of messages: what they are sent as is for the route to say."""


_JSON = """map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'ignoreNullFields', 'false')"""
# Rows of one key meet in one worker, in order; those that only carry what they send are spread over all.
GROUPED = "DISTRIBUTE BY coalesce(_key, CAST(_position AS STRING)) SORT BY _key, _position, _part"
_REJECTED = "_rejected"


def quote(name: str) -> str:
    """A name as SQL reads it, whatever it contains."""
    return f"`{name.replace('`', '``')}`"


def text(value: str) -> str:
    """A string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def source_sql(view: str) -> str:
    """The rows of a batch as it comes from the processor."""
    message = "named_struct('receiver', receiver, 'number', number, 'key', key, 'destination', destination, "
    message += "'correlation_id', correlation_id, 'properties', properties)"
    hidden = f"_position, '' AS _part, true AS _live, {NOTHING} AS _out, {message} AS {MESSAGE}"
    return f"SELECT {hidden}, body, key, properties FROM {view}"


def decode_sql(step: DecodeStep, source: str, number: int, hidden: str, names: list[str], reason: str) -> str:
    """Columns from bodies; a body that does not fit goes to `_out` with the reason and is live no more."""
    rest = ", ".join(name for name in hidden.split(", ") if name not in ("_live", "_out"))
    decoded = f"SELECT *, CASE WHEN _live THEN {parsed(step)} END AS _row FROM {source}"
    judged = f"SELECT *, _live AND {_malformed(step)} AS _bad FROM ({decoded})"
    columns = "".join(f", _row.{quote(name)} AS {quote(name)}" for name in names)
    return (
        f"SELECT {rest}, _live AND NOT _bad AS _live, {_with_dead('_bad', number, text(reason))} AS _out{columns} "
        f"FROM ({judged})"
    )


def parsed(step: DecodeStep) -> str:
    """The body as a struct."""
    body = "CAST(body AS STRING)"
    options = {"columnNameOfCorruptRecord": _REJECTED, "allowSingleQuotes": "false", **step.options}
    option_map = f"map({', '.join(f'{text(name)}, {text(value)}' for name, value in options.items())})"
    schema = step.schema or ""
    match step.format:
        case "csv":
            return f"from_csv({body}, {text(f'{schema}, {_REJECTED} STRING')}, {option_map})"
        case "json":
            return f"from_json({body}, {text(f'{schema}, {_REJECTED} STRING')}, {option_map})"
        case "avro":
            return f"from_avro(body, {text(schema)}, map('mode', 'PERMISSIVE'))"
        case "text":
            return f"named_struct('text', {body})"


def _malformed(step: DecodeStep) -> str:
    if step.format == "avro":
        return "_row IS NULL"
    conditions = ["body IS NULL", "NOT is_valid_utf8(CAST(body AS STRING))"]
    if step.format != "text":
        conditions += ["_row IS NULL", f"_row.{_REJECTED} IS NOT NULL", "trim(CAST(body AS STRING)) = ''"]
    return f"({' OR '.join(conditions)})"


def where_sql(step: WhereStep, source: str) -> str:
    """Rows for which the condition is not true are live no more."""
    return f"SELECT * EXCEPT (_live), {_true(step.condition)} AS _live FROM {source}"


def select_sql(step: SelectStep, source: str, hidden: str) -> str:
    """New columns instead of the old."""
    columns = "".join(f", {_guarded(value)} AS {quote(name)}" for name, value in step.columns.items())
    return f"SELECT {hidden}{columns} FROM {source}"


def query_sql(step: SqlStep, source: str, visible: str) -> str:
    """The user's SELECT as it stands."""
    return f"SELECT * FROM (WITH input AS (SELECT {visible} FROM {source}) {step.query})"


def sql_sql(step: SqlStep, source: str, hidden: str, columns: list[str]) -> str:
    """The user's SELECT with the hidden columns added; what earlier steps put into `_out` stays out (`beside_sql`).

    Hidden columns are renamed on the way, so that `SELECT *` does not have them twice.
    """
    select, *rest = step.query.split(None, 1)
    if select.upper() != "SELECT":
        raise ConfigError("E1511", "sql", "does not begin with SELECT", "Write SELECT … FROM input WHERE …")
    names = hidden.split(", ")
    carried = ", ".join(f"{NOTHING if name == '_out' else name} AS {name}_" for name in names)
    restored = ", ".join(f"{name}_ AS {name}" for name in names)
    visible = ", ".join(quote(name) for name in columns)
    rows = f"WITH input AS (SELECT * FROM {source} WHERE _live) SELECT {carried}, {' '.join(rest)}"
    return f"SELECT {restored}, {visible} FROM ({rows})"


def beside_sql(source: str, hidden: str, columns: Mapping[str, str]) -> str:
    """What a relation has in `_out`, as rows of the given columns that are not live."""
    dead = hidden.replace("_live", "false AS _live")
    nulls = "".join(f", CAST(NULL AS {ddl}) AS {quote(name)}" for name, ddl in columns.items())
    return f"SELECT {dead}{nulls} FROM {source} WHERE size(_out) > 0"


def explode_sql(step: ExplodeStep, source: str, columns: Mapping[str, str]) -> str:
    """A row for each element; `_out` stays with the first, so that nothing is sent twice."""
    others = f"* EXCEPT ({quote(step.name)})" if step.name in columns else "*"
    elements = f"posexplode_outer({_guarded(step.array)}) AS (_index, {quote(step.name)})"
    return (
        "SELECT * EXCEPT (_index, _part, _live, _out), "
        "concat(_part, lpad(hex(coalesce(_index, 0)), 8, '0')) AS _part, _live AND _index IS NOT NULL AS _live, "
        f"CASE WHEN coalesce(_index, 0) = 0 THEN _out ELSE {NOTHING} END AS _out "
        f"FROM (SELECT {others}, {elements} FROM {source})"
    )


def lookup_sql(step: LookupStep, source: str, view: str, columns: list[str]) -> str:
    """Columns of the one record of the view that matches."""
    hint = "/*+ BROADCAST(found) */ " if step.broadcast else ""
    added = "".join(f", found.{quote(name)}" for name in columns)
    equal = " AND ".join(f"rows.{quote(name)} = found.{quote(name)}" for name in step.on)
    return f"SELECT {hint}rows.*{added} FROM {source} AS rows LEFT JOIN {view} AS found ON {equal}"


def route_sql(step: RouteStep, source: str, number: int, columns: Mapping[str, str], rows: Rows) -> str:
    """A send in `_out` for each live row that the condition lets through."""
    kind, key, body, properties = _sent(step, columns, rows)
    standard = [f"{kind} AS kind", f"{number} AS step", f"{key} AS key", f"{body} AS body"]
    standard += [f"CAST({step.destination or 'NULL'} AS STRING) AS destination", f"{_headers(step)} AS headers"]
    entry = f"struct({', '.join(standard)}, {properties} AS properties)"
    condition = _true(step.where) if step.where else "_live"
    sending = f"CASE WHEN {condition} THEN concat(_out, array({entry})) ELSE _out END"
    return f"SELECT * EXCEPT (_out), CAST({sending} AS {OUT}) AS _out FROM {source}"


def _sent(step: RouteStep, columns: Mapping[str, str], rows: Rows) -> tuple[int, str, str, str]:
    """Kind, key, body and properties of what a route sends."""
    key, nothing = f"CAST({step.key or 'NULL'} AS STRING)", "CAST(NULL AS STRING)"
    if step.body is not None:
        return SEND, key, f"CAST({step.body} AS BINARY)", nothing
    if rows is Rows.RECEIVED:
        return FORWARD, key, "CAST(NULL AS BINARY)", nothing
    if rows is Rows.MESSAGES and columns == MESSAGE_COLUMNS:
        return REWRITE, f"coalesce({key}, `key`)", "body", "to_json(properties)"
    return SEND, key, f"CAST({json_of(columns)} AS BINARY)", nothing


def json_of(columns: Mapping[str, str]) -> str:
    """The columns as one JSON text, in their order."""
    return f"to_json(struct({', '.join(quote(name) for name in columns)}), {_JSON})"


def _headers(step: RouteStep) -> str:
    if not step.headers:
        return "CAST(NULL AS STRING)"
    return f"to_json(struct({', '.join(f'{value} AS {quote(name)}' for name, value in step.headers.items())}))"


def keyed_sql(step: KeyedStep, source: str, number: int, values: Mapping[str, str], where: str) -> str:
    """The rows that a keyed step takes: `_key`, `_time` and the values; without a key or time they are dead letters."""
    time = f"CAST({step.event_time} AS TIMESTAMP)" if step.event_time else "CAST(NULL AS TIMESTAMP)"
    keyed = f"SELECT *, {_guarded(f'CAST({step.key} AS STRING)')} AS _key, {_guarded(time)} AS _time FROM {source}"
    missing = "_key IS NULL OR _time IS NULL" if step.event_time else "_key IS NULL"
    judged = f"SELECT *, _live AND ({missing}) AS _bad FROM ({keyed})"
    what = "key or event time is NULL" if step.event_time else "key is NULL"
    columns = "".join(f", {_guarded(value)} AS {quote(name)}" for name, value in values.items())
    dead = _with_dead("_bad", number, text(f"E5104 {where}: {what}"))
    return (
        f"SELECT * FROM (SELECT _position, _part, {_wanted(step)} AND NOT _bad AS _live, {dead} AS _out, _key, _time"
        f"{columns} FROM ({judged})) WHERE _live OR size(_out) > 0"
    )


def _wanted(step: KeyedStep) -> str:
    """Whether the step looks at a row at all."""
    return _true(f"({step.first}) OR ({step.second})") if isinstance(step, CorrelateStep) else "_live"


def keyed_values(step: KeyedStep, columns: Mapping[str, str], wanted: list[str] | None, where: str) -> dict[str, str]:
    """Name and expression of each value that a keyed step's worker needs; `wanted`: fields of a monitor's row type."""
    match step:
        case MonitorStep():
            return {name: quote(name) for name in (columns if wanted is None else wanted)}
        case AggregateStep():
            calls = [parse_call(value, f"{where} {name}") for name, value in step.values.items()]
            return {f"v{at}": _argument(call) for at, call in enumerate(calls)}
        case CorrelateStep():
            return {"side": f"CASE WHEN {step.first} THEN 'first' ELSE 'second' END", "row": json_of(columns)}


def _argument(call: Call) -> str:
    return f"CAST({call.argument} AS DOUBLE)" if call.function == "avg" else call.argument


def result_type(function: str, kind: str) -> str:
    """The type of a window's value, of an argument of this type."""
    if function == "count" or (function == "sum" and kind in ("tinyint", "smallint", "int")):
        return "BIGINT"
    return "DOUBLE" if function == "avg" or (function == "sum" and kind == "float") else kind


def unpack_sql(step: KeyedStep, source: str, hidden: str, columns: Mapping[str, str]) -> str:
    """The rows that a keyed step gives, as its user sees them."""
    match step:
        case MonitorStep():
            return f"SELECT * FROM {source}"
        case AggregateStep():
            key = quote(step.key if step.key.isidentifier() else "key")
            values = "".join(f", v{at} AS {quote(name)}" for at, name in enumerate(step.values))
            return f"SELECT {hidden}, key AS {key}, window_start, window_end{values} FROM {source}"
        case CorrelateStep():
            ddl = text(", ".join(f"{quote(name)} {kind}" for name, kind in columns.items()))
            sides = ", ".join(f"from_json({side}, {ddl}, {_JSON}) AS {side}" for side in ("first", "second"))
            return f"SELECT {hidden}, {sides} FROM {source}"


def _guarded(expression: str) -> str:
    return f"CASE WHEN _live THEN ({expression}) END"


def _true(condition: str) -> str:
    return f"coalesce(CASE WHEN _live THEN ({condition}) END, false)"


def _with_dead(condition: str, number: int, reason: str) -> str:
    entry = f"struct({DEAD} AS kind, {number} AS step, CAST(NULL AS STRING) AS key, CAST({reason} AS BINARY) AS body, "
    entry += "CAST(NULL AS STRING) AS destination, CAST(NULL AS STRING) AS headers, CAST(NULL AS STRING) AS properties)"
    return f"CAST(CASE WHEN {condition} THEN concat(_out, array({entry})) ELSE _out END AS {OUT})"
