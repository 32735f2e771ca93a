"""Tables of medians, as text and for JSON."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """The median of rounds, with the least and the greatest."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Of the values of all rounds."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], others: Sequence[float]) -> Spread | None:
    """Of the values of each round, one to the other: what slows a whole round down does not change them.

    `None` if one to divide by is 0: a processor time of less than one tick of its clock.
    """
    if not all(others):
        return None
    return spread([one / other for one, other in zip(ours, others, strict=True)])


class Row(NamedTuple):
    """A name, and a cell for each column; `None` for what was not measured."""

    name: str
    cells: Sequence[Spread | None]


class Table(NamedTuple):
    """What one measurement found.

    Attributes:
        title: what was measured.
        columns: names of the columns, with units.
        rows: figures.
        compared: ratios, with the same columns.
        goal: the goal in words; empty if there is none.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    compared: Sequence[Row] = ()
    goal: str = ""

    def __str__(self) -> str:
        first = max(len(row.name) for row in (*self.rows, *self.compared))
        plain = [(row.name, *map(_plain, row.cells)) for row in self.rows]
        compared = [(row.name, *map(_wide, row.cells)) for row in self.compared]
        lines = [self.title, _line(("", *self.columns), first), *(_line(cells, first) for cells in plain)]
        lines += [_line(cells, first) for cells in compared]
        return "\n".join(lines + ([f"goal: {self.goal}"] if self.goal else []))

    def as_json(self) -> dict[str, Any]:
        """Each row as an object, with each cell as an object of median, low and high."""
        return {
            "title": self.title,
            "goal": self.goal,
            "rows": [self._of_row(row) for row in self.rows],
            "ratios": [self._of_row(row) for row in self.compared],
        }

    def _of_row(self, row: Row) -> dict[str, Any]:
        cells = [None if cell is None else cell._asdict() for cell in row.cells]
        return {"name": row.name, **dict(zip(self.columns, cells, strict=True))}


_WIDTH = 26


def _line(cells: Sequence[str], first: int) -> str:
    name, *others = cells
    return f"  {name:{first}}" + "".join(f"{cell:>{_WIDTH}}" for cell in others)


def _plain(cell: Spread | None) -> str:
    return "-" if cell is None else _number(cell.median)


def _wide(cell: Spread | None) -> str:
    return "-" if cell is None else f"{_number(cell.median)} ({_number(cell.low)}-{_number(cell.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
