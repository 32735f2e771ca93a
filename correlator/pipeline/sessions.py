"""The `aggregate` step with sessions: windows that end when a key has no row for a while. Pure; runs in the workers."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar

from correlator.core.keyed import KeyedMonitor
from correlator.errors import MappingError
from correlator.pipeline.columns import python_type
from correlator.pipeline.envelope import TIME
from correlator.pipeline.windows import LAST, Limits, Value, check_limits, microseconds, moment, output_row, sum_of

_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "count": lambda one, other: one + other,
    "sum": sum_of,
    "min": min,
    "max": max,
    "avg": lambda one, other: (one[0] + other[0], one[1] + other[1]),
    "first": min,
    "last": max,
}
"""Each function makes one intermediate result of two. The intermediate results of `first` and `last` begin with the
number of their row."""
_Session = tuple[int, Sequence[Any]]
"""The time of the last row, and the intermediate result of each value."""


class Sessions(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """The open sessions of one key, by the time of their first row in microseconds since the epoch.

    An input row has the arguments `v0`, `v1`, …; a session gives one output when it closes, and with `updates` also one
    for each row that changes it. Each open session has one timer, whose name is the time of its first row; the timer
    may fire before the session closes.
    """

    gap: ClassVar[int]
    lateness: ClassVar[int]
    updates: ClassVar[bool]
    values: ClassVar[tuple[Value, ...]]
    limits: ClassVar[tuple[Limits, ...]]

    arrived: int = 0

    if TYPE_CHECKING:  # the types of the values are known to each step only
        open: dict[int, _Session]

    def on_event(self, row: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Let the row begin a session, or extend or join the open sessions that are near enough.

        With `updates`, returns the session of the row.

        Raises:
            MappingError: E5104 if the session would reach beyond the times that Python knows, E5105 if the row is late,
                E5107 if a sum would become larger than its type allows.
        """
        time = microseconds(row[TIME])
        if time + self.gap + self.lateness > LAST:
            what = f"a session with event time {row[TIME]} is not in the years 1 to 9999"
            raise MappingError("E5104", f"key {self.key}", what)
        near = [start for start, (last, _) in sorted(self.open.items()) if start - self.gap < time < last + self.gap]
        if not near and self._closes(time) <= self.time:
            raise MappingError("E5105", f"key {self.key}", f"late: its session is closed, event time is {self.time}")
        start = self._join(near, time, row)
        return [self._output(start, self.open[start], closed=False)] if self.updates else ()

    def on_time(self, name: str) -> Iterator[dict[str, Any]]:
        """Close a session, unless later rows have extended it or it is part of another one."""
        start = int(name)
        if start not in self.open:
            return
        last, _ = self.open[start]
        if (closes := self._closes(last)) > self.time:
            self.wake_at(closes, name)
            return
        yield self._output(start, self.open.pop(start), closed=True)

    def _output(self, start: int, session: _Session, *, closed: bool) -> dict[str, Any]:
        last, folded = session
        results = [_result(value.function, folded[at]) for at, value in enumerate(self.values)]
        return output_row(self.key, start, last + self.gap, results, closed if self.updates else None)

    def _join(self, near: Sequence[int], time: int, row: dict[str, Any]) -> int:
        """Make one session of a row and the sessions near it; returns the time of its first row."""
        self.arrived += 1
        joined = [self.open.pop(start) for start in near]
        first, last = min([time, *near]), max([time, *(end for end, _ in joined)])
        folded: Sequence[Any] = [None] * len(self.values)
        for one in (*(folds for _, folds in joined), self._of(row)):
            folded = [self._merged(at, *pair) for at, pair in enumerate(zip(folded, one, strict=True))]
        self.open[first] = last, folded
        if first not in near:
            self.wake_at(self._closes(last), str(first))
        return first

    def _of(self, row: dict[str, Any]) -> Sequence[Any]:
        """The intermediate results of a single row."""
        given = [row[f"v{at}"] for at in range(len(self.values))]
        pairs = zip(self.values, given, strict=True)
        return [None if one is None else self._single(value.function, one) for value, one in pairs]

    def _single(self, function: str, value: Any) -> Any:
        if function == "count":
            return 1
        if function == "avg":
            return (1, value)
        return (self.arrived, value) if function in ("first", "last") else value

    def _merged(self, at: int, one: Any, other: Any) -> Any:
        if one is None or other is None:
            return other if one is None else one
        merged = _MERGES[self.values[at].function](one, other)
        check_limits(self.key, self.values[at], merged, self.limits[at])
        return merged

    def _closes(self, last: int) -> datetime:
        return moment(last + self.gap + self.lateness)


def _result(function: str, folded: Any) -> Any:
    if function == "count":
        return folded or 0
    if folded is None:
        return None
    if function == "avg":
        return folded[1] / folded[0]
    return folded[1] if function in ("first", "last") else folded


@cache
def sessions_class(
    gap_s: float, lateness_s: float, values: Sequence[Value], *, updates: bool = False
) -> type[Sessions]:
    """The class for one `aggregate` step with sessions, whose state has the types of its values."""
    return type(
        "Sessions",
        (Sessions,),
        {
            "__annotations__": {"open": _open_type(values)},
            "open": {},
            "gap": round(gap_s * 1e6),
            "lateness": round(lateness_s * 1e6),
            "updates": updates,
            "values": tuple(values),
            "limits": tuple(value.limits for value in values),
        },
    )


def _open_type(values: Sequence[Value]) -> Any:
    """The type of `open`: `dict[int, tuple[int, tuple[int | None, …]]]`, with a type for each value of the step."""
    folded = GenericAlias(tuple, tuple(_folded_type(value) for value in values))
    return GenericAlias(dict, (int, GenericAlias(tuple, (int, folded))))


def _folded_type(value: Value) -> Any:
    if value.function == "count":
        return int | None
    of = python_type(value.argument, value.name)
    return GenericAlias(tuple, (int, of)) | None if value.function in ("avg", "first", "last") else of | None
