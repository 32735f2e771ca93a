"""Finds the wrong setting of a step if Spark refuses the SQL of the whole step. Pure."""

from collections.abc import Iterator

from correlator.configuration.problems import member
from correlator.pipeline.envelope import ROW, quote
from correlator.pipeline.spec import AggregateStep, RouteStep, SelectStep, Step
from correlator.pipeline.windows import parse_call

NAMING = {
    "decode": "schema",
    "select": "columns",
    "sql": "query",
    "explode": "name",
    "python": "schema",
    "monitor": "class",
    "aggregate": "values",
}
"""The setting that names the columns of a step, by the kind of the step."""
_CONDITIONS = ("condition", "where", "first", "second")
_CASTS = {"key": "STRING", "event_time": "TIMESTAMP", "body": "BINARY", "destination": "STRING"}


def entries_of(step: Step) -> Iterator[tuple[str, str]]:
    """The settings of a step that are one expression each, with the expression as an entry of a SELECT.

    An entry of a `select` may use the entries before it.
    """
    for name in _CONDITIONS:
        if isinstance(text := getattr(step, name, None), str):
            yield name, f"CASE WHEN ({text}) THEN 1 END AS {ROW}"
    for name, kind in _CASTS.items():
        if isinstance(text := getattr(step, name, None), str):
            yield name, f"CAST({text} AS {kind}) AS {ROW}"
    match step:
        case SelectStep():
            yield from ((member("columns", name), f"{text} AS {quote(name)}") for name, text in step.columns.items())
        case AggregateStep():
            for name, text in step.values.items():
                yield member("values", name), f"{parse_call(text, '').argument} AS {ROW}"
        case RouteStep():
            yield from ((member("headers", name), f"{text} AS {ROW}") for name, text in step.headers.items())
