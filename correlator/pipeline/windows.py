"""The `aggregate` step: a keyed monitor with windows in event time. Pure; runs in Spark's Python workers."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar

from correlator.core.keyed import KeyedMonitor
from correlator.errors import ConfigError, MappingError, quoted
from correlator.pipeline.columns import python_type
from correlator.pipeline.envelope import TIME

_NAME = re.compile(r"\s*(count|sum|min|max|avg|first|last)\s*(?=\()", re.IGNORECASE)
_LEXEME = re.compile(
    r"--[^\n]*|/\*.*?\*/"
    r"|[rR]'[^']*'|[rR]\"[^\"]*\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"
    r"|\w+|.",
    re.DOTALL,
)
"""A comment, a text, a quoted name, a word or a sign; only a sign is a bracket or a comma of the expression itself."""
_QUOTES = ("'", '"', "`")
"""A quotation mark that begins a text or a name which does not end."""
_EXACT = Context(prec=80, traps=[Inexact])
"""Adds all decimals of Spark without rounding."""
_SHORT = ("tinyint", "smallint", "int", "bigint")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MORE_DIGITS, _MOST_DIGITS = 10, 38
"""The additional digits of a sum of decimals compared with its argument, as in Spark, and the largest number of digits
of a decimal."""
CLOSED = "closed"
"""The column that tells, with updates, whether a window is closed."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fold = Callable[[Any, Any], Any]
Limits = tuple[int | Decimal, int | Decimal] | None


@dataclass(frozen=True, slots=True)
class Call:
    """One value of a window: an aggregate function and its argument, a Spark expression."""

    function: str
    argument: str


def parse_call(text: str, where: str) -> Call:
    """Parse a call such as `sum(dep_delay)`.

    Raises:
        ConfigError: E1512, the text is not one call of an aggregate function with one argument.
    """
    name = _NAME.match(text)
    argument = _argument(text[name.end() :]) if name is not None else None
    if name is None or argument is None:
        allowed = "Use count(*), or count, sum, min, max, avg, first or last of one expression"
        todo = "To calculate with results, use a 'select' after this step"
        raise ConfigError("E1512", where, f"{quoted(text)} is not an aggregate", allowed, todo)
    function = name[1].lower()
    return Call(function, "1" if (function, argument) == ("count", "*") else argument)


def _argument(text: str) -> str | None:
    """The expression between the first bracket of the text and the last one; `None` if other text follows, or if there
    is no expression, or more than one.
    """
    depth = 0
    for lexeme in _LEXEME.finditer(text.rstrip()):
        sign = lexeme[0]
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign, 0)
        if depth == 0:
            argument = text[1 : lexeme.start()].strip()
            return argument if argument and lexeme.end() == len(text.rstrip()) else None
        if (sign == "," and depth == 1) or sign in _QUOTES:
            return None
    return None


def sum_of(total: Any, value: Any) -> Any:
    """The exact sum of two numbers."""
    return _EXACT.add(total, value) if isinstance(value, Decimal) else total + value


def _mean(parts: Any, value: Any) -> Any:
    count, total = parts or (0, 0)
    return (count + 1, total + value)


_FOLDS: dict[str, Fold] = {
    "count": lambda count, _: (count or 0) + 1,
    "sum": lambda total, value: value if total is None else sum_of(total, value),
    "min": lambda least, value: value if least is None else min(least, value),
    "max": lambda most, value: value if most is None else max(most, value),
    "avg": _mean,
    "first": lambda first, value: value if first is None else first,
    "last": lambda _, value: value,
}
"""Each function makes the new intermediate result from the old one (`None` at the beginning) and a value."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a window.

    Attributes:
        name: name of its column.
        function: the aggregate function.
        argument: Spark's type of its argument.
    """

    name: str
    function: str
    argument: str

    @property
    def result(self) -> str:
        """Spark's type of the column."""
        if self.function == "count" or (self.function == "sum" and self.argument in _SHORT):
            return "bigint"
        if self.function == "avg" or (self.function == "sum" and self.argument == "float"):
            return "double"
        if self.function == "sum" and (decimal := _DECIMAL.fullmatch(self.argument)) is not None:
            return f"decimal({min(int(decimal[1]) + _MORE_DIGITS, _MOST_DIGITS)},{decimal[2]})"
        return self.argument

    @property
    def limits(self) -> Limits:
        """The smallest and the largest sum; `None` if the value has no limits."""
        if self.function != "sum":
            return None
        if (decimal := _DECIMAL.fullmatch(self.result)) is not None:
            most = Decimal(10 ** int(decimal[1]) - 1).scaleb(-int(decimal[2]), _EXACT)
            return (most.copy_negate(), most)
        return (-(2**63), 2**63 - 1) if self.result == "bigint" else None


def check_limits(key: str, value: Value, total: Any, limits: Limits) -> None:
    """Raise `MappingError` E5107 for a sum that its column cannot hold."""
    if limits is not None and not limits[0] <= total <= limits[1]:
        what = f"the sum '{value.name}' would be {total}, which is no {value.result.upper()}"
        raise MappingError("E5107", f"key {key}", what)


class Windows(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """The open windows of one key: the intermediate results of the values, by the start of the window in microseconds
    since the epoch.

    An input row has the arguments `v0`, `v1`, …; a window gives one output when it closes, and with `updates` also one
    for each row that changes it.
    """

    length: ClassVar[int]
    every: ClassVar[int]
    lateness: ClassVar[int]
    updates: ClassVar[bool]
    values: ClassVar[tuple[Value, ...]]
    limits: ClassVar[tuple[Limits, ...]]

    if TYPE_CHECKING:  # the types of the values are known to each step only
        open: dict[int, Sequence[Any]]

    def on_event(self, row: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Add the row to its open windows. With `updates`, returns these windows in the order of time.

        Raises:
            MappingError: E5104 if a window of the row reaches beyond the times that Python knows, E5105 if all its
                windows are closed, E5107 if a sum would become larger than its type allows. The row then counts in
                none of its windows.
        """
        starts = [start for start in self._starts(row[TIME]) if self._closes(start) > self.time]
        if not starts:
            raise MappingError("E5105", f"key {self.key}", f"late: its windows are closed, event time is {self.time}")
        for start in starts:
            self.open[start] = self._folded(self.open.get(start, [None] * len(self.values)), row)
            self.wake_at(self._closes(start), str(start))
        return [self._output(start, self.open[start], closed=False) for start in reversed(starts) if self.updates]

    def on_time(self, name: str) -> Iterator[dict[str, Any]]:
        """Close a window. If the lateness was changed meanwhile, its timer may fire too early, or twice."""
        start = int(name)
        if start not in self.open:
            return
        if (closes := self._closes(start)) > self.time:
            self.wake_at(closes, name)
            return
        yield self._output(start, self.open.pop(start), closed=True)

    def _output(self, start: int, folded: Sequence[Any], *, closed: bool) -> dict[str, Any]:
        results = [_result(value.function, folded[at]) for at, value in enumerate(self.values)]
        return output_row(self.key, start, start + self.length, results, closed if self.updates else None)

    def _folded(self, before: Sequence[Any], row: dict[str, Any]) -> Sequence[Any]:
        """The intermediate results with the values of one more row."""
        folded = list(before)
        for at, value in enumerate(self.values):
            if (new := row[f"v{at}"]) is not None:
                folded[at] = _FOLDS[value.function](folded[at], new)
                check_limits(self.key, value, folded[at], self.limits[at])
        return folded

    def _starts(self, event_time: datetime) -> Sequence[int]:
        time = microseconds(event_time)
        last = time - time % self.every
        starts = range(last, time - self.length, -self.every)
        if starts[-1] < FIRST or last + self.length + self.lateness > LAST:
            what = f"a window of event time {event_time} is not in the years 1 to 9999"
            raise MappingError("E5104", f"key {self.key}", what)
        return starts

    def _closes(self, start: int) -> datetime:
        return moment(start + self.length + self.lateness)


def _result(function: str, folded: Any) -> Any:
    if function == "count":
        return folded or 0
    return folded[1] / folded[0] if function == "avg" and folded else folded


def microseconds(time: datetime) -> int:
    """A time in microseconds since 1970."""
    return (time - EPOCH) // timedelta(microseconds=1)


def moment(microseconds: int) -> datetime:
    """The time at this number of microseconds since 1970."""
    return EPOCH + timedelta(microseconds=microseconds)


def output_row(key: Any, start: int, end: int, results: Sequence[Any], closed: bool | None) -> dict[str, Any]:
    """The output for a window or session, whose times are in microseconds since 1970.

    Args:
        key: the key.
        start: the first moment.
        end: the moment after it.
        results: the result of each value.
        closed: the value of the column `CLOSED`; `None` if the step does not have this column.
    """
    values = {f"v{at}": result for at, result in enumerate(results)}
    row = {"key": key, "window_start": moment(start), "window_end": moment(end), **values}
    return row if closed is None else {**row, CLOSED: closed}


FIRST = microseconds(datetime.min.replace(tzinfo=UTC))
LAST = microseconds(datetime.max.replace(tzinfo=UTC))
"""The first and the last time that Python knows, in microseconds since 1970."""


@cache
def windows_class(
    length_s: float, every_s: float, lateness_s: float, values: Sequence[Value], *, updates: bool = False
) -> type[Windows]:
    """The class for one `aggregate` step, whose state has the types of its values."""
    return type(
        "Windows",
        (Windows,),
        {
            "__annotations__": {"open": _open_type(values)},
            "open": {},
            "length": round(length_s * 1e6),
            "every": round(every_s * 1e6),
            "lateness": round(lateness_s * 1e6),
            "updates": updates,
            "values": tuple(values),
            "limits": tuple(value.limits for value in values),
        },
    )


def _open_type(values: Sequence[Value]) -> Any:
    """The type of `open`: `dict[int, tuple[int | None, …]]`, with a type for each value of the step."""
    folded = tuple(_folded_type(value.function, python_type(value.argument, value.name)) for value in values)
    return GenericAlias(dict, (int, GenericAlias(tuple, folded)))


def _folded_type(function: str, of: type[Any]) -> Any:
    if function == "count":
        return int | None
    return GenericAlias(tuple, (int, of)) | None if function == "avg" else of | None
