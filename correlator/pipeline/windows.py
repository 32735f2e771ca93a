"""The `aggregate` step: a keyed monitor with windows in event time. Pure; runs in Spark's Python workers."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar

from correlator.core.keyed import KeyedMonitor
from correlator.errors import ConfigError, MappingError
from correlator.pipeline.envelope import TIME

_CALL = re.compile(r"\s*(count|sum|min|max|avg|first|last)\s*\((.*)\)\s*", re.DOTALL | re.IGNORECASE)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fold = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One value of a window: an aggregate function and its argument, a Spark expression."""

    function: str
    argument: str


def parse_call(text: str, where: str) -> Call:
    """Parse a call such as `sum(dep_delay)`; raises `ConfigError` E1512 if it is no call of an aggregate function."""
    match = _CALL.fullmatch(text)
    if match is None:
        allowed = "Use count(*), or count, sum, min, max, avg, first or last of an expression"
        raise ConfigError("E1512", where, f"'{text}' is not an aggregate", allowed)
    function, argument = match[1].lower(), match[2].strip()
    return Call(function, "1" if (function, argument) == ("count", "*") else argument)


def _sum(total: Any, value: Any) -> Any:
    return value if total is None else total + value


def _mean(parts: Any, value: Any) -> Any:
    count, total = parts or (0, 0)
    return (count + 1, total + value)


_FOLDS: dict[str, Fold] = {
    "count": lambda count, _: (count or 0) + 1,
    "sum": _sum,
    "min": lambda least, value: value if least is None else min(least, value),
    "max": lambda most, value: value if most is None else max(most, value),
    "avg": _mean,
    "first": lambda first, value: value if first is None else first,
    "last": lambda _, value: value,
}
"""Each makes the new intermediate result from the old one (`None` at the beginning) and a value."""


class Windows(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """The open windows of one key: by start in microseconds since the epoch, the intermediate result of each value.

    An input row has the arguments `v0`, `v1`, …; a window gives one output when it closes.
    """

    length: ClassVar[int]
    every: ClassVar[int]
    lateness: ClassVar[int]
    functions: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:  # the types of the values are known to each step only
        open: dict[int, Sequence[Any]]

    def on_event(self, row: dict[str, Any]) -> None:
        """Add the row to its open windows.

        Raises:
            MappingError: E5104 if a window of the row reaches beyond the times that Python knows, E5105 if all its
                windows are closed.
        """
        starts = [start for start in self._starts(row[TIME]) if self._closes(start) > self.time]
        if not starts:
            raise MappingError("E5105", f"key {self.key}", f"late: its windows are closed, event time is {self.time}")
        for start in starts:
            folded = list(self.open.get(start, [None] * len(self.functions)))
            for at, function in enumerate(self.functions):
                if (value := row[f"v{at}"]) is not None:
                    folded[at] = _FOLDS[function](folded[at], value)
            self.open[start] = folded
            self.wake_at(self._closes(start), str(start))

    def on_time(self, name: str) -> Iterator[dict[str, Any]]:
        """Close a window. If the lateness was changed meanwhile, its timer may fire too early, or twice."""
        start = int(name)
        if start not in self.open:
            return
        if (closes := self._closes(start)) > self.time:
            self.wake_at(closes, name)
            return
        folded = self.open.pop(start)
        values = {f"v{at}": _result(function, folded[at]) for at, function in enumerate(self.functions)}
        yield {"key": self.key, "window_start": _moment(start), "window_end": _moment(start + self.length), **values}

    def _starts(self, event_time: datetime) -> Sequence[int]:
        time = _microseconds(event_time)
        last = time - time % self.every
        starts = range(last, time - self.length, -self.every)
        if starts[-1] < FIRST or last + self.length + self.lateness > LAST:
            what = f"a window of event time {event_time} is not in the years 1 to 9999"
            raise MappingError("E5104", f"key {self.key}", what)
        return starts

    def _closes(self, start: int) -> datetime:
        return _moment(start + self.length + self.lateness)


def _result(function: str, folded: Any) -> Any:
    if function == "count":
        return folded or 0
    return folded[1] / folded[0] if function == "avg" and folded else folded


def _microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


FIRST = _microseconds(datetime.min.replace(tzinfo=UTC))
LAST = _microseconds(datetime.max.replace(tzinfo=UTC))
"""The first and the last time that Python knows, in microseconds since 1970."""


@cache
def windows_class(
    length_s: float, every_s: float, lateness_s: float, functions: Sequence[str], types: Sequence[type[Any]]
) -> type[Windows]:
    """The class for one `aggregate` step, whose state has the types of its values."""
    return type(
        "Windows",
        (Windows,),
        {
            "__annotations__": {"open": _open_type(functions, types)},
            "open": {},
            "length": round(length_s * 1e6),
            "every": round(every_s * 1e6),
            "lateness": round(lateness_s * 1e6),
            "functions": tuple(functions),
        },
    )


def _open_type(functions: Sequence[str], types: Sequence[type[Any]]) -> Any:
    """The type of `open`: `dict[int, tuple[int | None, …]]`, with a type for each value of the step."""
    folded = tuple(_folded_type(function, of) for function, of in zip(functions, types, strict=True))
    return GenericAlias(dict, (int, GenericAlias(tuple, folded)))


def _folded_type(function: str, of: type[Any]) -> Any:
    if function == "count":
        return int | None
    return GenericAlias(tuple, (int, of)) | None if function == "avg" else of | None
