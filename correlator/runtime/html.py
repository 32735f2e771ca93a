"""Tables of HTML by which a notebook shows objects of this package: every text is escaped, and there is no script."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from correlator.errors import printable

MOST_ROWS = 50
"""How many rows a table shows; a line below it says how many are left out."""
_LONGEST_TEXT = 200


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML."""
    shown = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>{len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
    return (
        f"<table><caption>{_escaped(caption)}</caption>"
        f"<thead><tr>{_cells(columns, 'th')}</tr></thead><tbody>{shown}</tbody></table>{more}"
    )


def _cells(values: Iterable[Any], tag: str) -> str:
    return "".join(f"<{tag}>{_escaped(value)}</{tag}>" for value in values)


def _escaped(value: Any) -> str:
    """Return a value as text that fits into HTML: on one line, cut if it is long, bytes decoded."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    text = printable(text)
    return escape(text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…")
