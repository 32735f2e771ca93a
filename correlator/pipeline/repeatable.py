"""Whether a query gives the same rows when a batch comes again, as Spark's analyzer knows it.

A batch comes again after a crash, and parts of it when it is halved. What it causes must then be the same, so no part
of a query may depend on chance, on the clock, or on where and by whom it is run. This is the one module that asks the
objects behind PySpark: the text of a plan does not tell a function from a literal of the same letters.
"""

# ruff: noqa: SLF001  PySpark has no public way to the expressions of a plan; tests/pipeline/test_spark_version.py allows this one

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_CATALYST = "org.apache.spark.sql.catalyst"
# Spark makes a literal of these as soon as it reads the text, so that only the text tells: DATE 'today'.
_MOMENT = re.compile(r"(?:date|timestamp\w*)\s*r?['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_NO_IV = "CAST('' AS BINARY)"


def not_repeatable(query: DataFrame, text: str) -> str:
    """What in a query may have another value when it is run again, as its author wrote it; empty when nothing may.

    Args:
        query: as Spark has analyzed it.
        text: of the query.
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
    """A part that Spark calls nondeterministic, or that it sets when a query begins (time, user, time zone)."""

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
    """A text such as 'now' that a cast makes a time of: the rule that does so has changed the plan there."""
    if after.equals(before):
        return None
    for node, other in zip(_nodes(before), _nodes(after), strict=True):
        for pair in zip(_items(node.expressions()), _items(other.expressions()), strict=True):
            for one, made in _differing(*pair):
                if made.value() != 0:  # 'epoch' is the same moment for ever
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
    """An encryption for which Spark draws an initialization vector, since none is given: every mode but ECB has one."""
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
    """An expression as it stands in the text of its query, where Spark knows the place."""
    origin = expression.origin()
    places = origin.sqlText(), origin.startIndex(), origin.stopIndex()
    if any(one.isEmpty() for one in places):
        return str(expression.sql())
    text, first, last = (one.get() for one in places)
    return str(text[first : last + 1])
