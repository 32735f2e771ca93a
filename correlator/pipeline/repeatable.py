"""Whether a query gives the same rows if a batch is processed again, by Spark's analysis of the query.

A batch is processed again after a crash, and parts of it are processed again when it is halved. The effects must then
be the same, so no part of a query may depend on chance, on the clock, or on the place or the user of its execution.
Only this module calls the Java objects behind PySpark: the text of a plan does not distinguish a function from a
literal with the same letters.
"""

# ruff: noqa: SLF001  PySpark has no public way to the expressions of a plan; tests/pipeline/test_spark_version.py allows this one

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_CATALYST = "org.apache.spark.sql.catalyst"
# Spark makes literals of these when it parses the text, so only the text shows them: DATE 'today'.
_MOMENT = re.compile(r"(?:date|timestamp\w*)\s*r?['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_NO_IV = "CAST('' AS BINARY)"


def plan_of(query: DataFrame) -> str:
    """The plan of an analyzed query in Spark's text form: a line for each operator, the last one first."""
    return str(query._jdf.queryExecution().analyzed().toString())


def make_plan(query: DataFrame) -> None:
    """Let Spark make the plan that it executes for a query; Spark keeps it with the query."""
    query._jdf.queryExecution().executedPlan()


def evaluate_constants(query: DataFrame) -> None:
    """Optimize a query, which evaluates its constant expressions; raises the errors of Spark. No job runs."""
    query._jdf.queryExecution().optimizedPlan()


def not_repeatable(query: DataFrame, text: str) -> str:
    """The part of a query that may have another value if the query runs again, as its author wrote it; empty if none.

    Args:
        query: the query, analyzed by Spark.
        text: the text of the query.
    """
    jvm: Any = query.sparkSession._jvm
    patterns = getattr(jvm, f"{_CATALYST}.trees.TreePattern")
    rules = getattr(jvm, f"{_CATALYST}.optimizer")
    plan = query._jdf.queryExecution().analyzed()
    whole = rules.ReplaceExpressions.apply(plan)
    found = (
        _changing(plan, patterns.CURRENT_LIKE())
        or _changing(whole, patterns.CURRENT_LIKE())
        or _moment_in_cast(whole, rules.SpecialDatetimeValues.apply(whole))
        or (_moment_in_literal(plan) if _MOMENT.search(text) else None)
        or (_without_iv(plan) if plan.containsPattern(patterns.RUNTIME_REPLACEABLE()) else None)
    )
    return _written(found) if found is not None else ""


def _changing(plan: Any, current: Any) -> Any:
    """A part that Spark calls nondeterministic, or whose value it sets when a query begins (time, user, time zone)."""

    def changes(expression: Any) -> bool:
        return not expression.deterministic() or bool(expression.containsPattern(current))

    for node in _nodes(plan):
        if not node.deterministic() or node.containsPattern(current):
            for expression in filter(changes, _items(node.expressions())):
                part = expression
                while (inner := next(filter(changes, _items(part.children())), None)) is not None:
                    part = inner
                return part
    return None


def _moment_in_cast(before: Any, after: Any) -> Any:
    """A text such as 'now' that a cast turns into a time. It is where Spark's rule for such texts has changed the
    plan.
    """
    if after.equals(before):
        return None
    for node, other in zip(_nodes(before), _nodes(after), strict=True):
        for pair in zip(_items(node.expressions()), _items(other.expressions()), strict=True):
            for one, made in _differing(*pair):
                if made.value() != 0:  # 'epoch' is always the same moment
                    return one
    return None


def _differing(before: Any, after: Any) -> Iterator[tuple[Any, Any]]:
    if after.equals(before):
        return
    if before.getClass().equals(after.getClass()):
        for pair in zip(_items(before.children()), _items(after.children()), strict=True):
            yield from _differing(*pair)
    else:
        yield before, after


def _moment_in_literal(plan: Any) -> Any:
    literals = (one for one in _expressions(plan) if _class_of(one) == "Literal")
    return next((one for one in literals if _MOMENT.match(_written(one))), None)


def _without_iv(plan: Any) -> Any:
    """An encryption without an initialization vector, for which Spark chooses a random one; only the mode ECB needs
    none.
    """
    encryptions = (one for one in _expressions(plan) if _class_of(one) == "AesEncrypt")
    return next((one for one in encryptions if one.mode().sql().upper() != "'ECB'" and one.iv().sql() == _NO_IV), None)


def _class_of(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _expressions(plan: Any) -> Iterator[Any]:
    for node in _nodes(plan):
        for expression in _items(node.expressions()):
            yield from _nodes(expression)


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in _items(tree.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(at) for at in range(sequence.size()))


def _written(expression: Any) -> str:
    """The text of an expression in its query; Spark's own text if Spark does not know its position."""
    origin = expression.origin()
    places = origin.sqlText(), origin.startIndex(), origin.stopIndex()
    if any(one.isEmpty() for one in places):
        return str(expression.sql())
    text, first, last = (one.get() for one in places)
    return str(text[first : last + 1])
