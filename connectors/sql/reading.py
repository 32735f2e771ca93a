"""What the queries of all sources have in common."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

_MOST = 2**30
"""No database has a value with more bytes, and each has a type for this number."""


def within(query: sa.Select[Any], order: Sequence[str], enough: int) -> sa.Select[Any]:
    """The first rows of a query until the numbers of bytes in its column `taken` add up to `enough`; at least one row.

    Args:
        query: has a column `taken`, and no order that matters.
        order: names of its columns by which the result is ordered.
        enough: number of bytes.
    """
    rows = query.subquery("bounded")
    before = sa.func.sum(rows.c.taken).over(order_by=[rows.c[name] for name in order]) - rows.c.taken
    counted = sa.select(rows, before.label("before")).subquery("counted")
    by = [counted.c[name] for name in order]
    return sa.select(counted).where(counted.c.before < min(max(enough, 1), _MOST)).order_by(*by)


def size(content: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The number of bytes of an expression; 0 for null."""
    return sa.func.coalesce(sa.func.length(content), 0)


def cut(content: sa.ColumnElement[Any], longest: int) -> sa.ColumnElement[Any]:
    """The first bytes of an expression: one more than `longest`, so that a longer content is known as such."""
    return sa.func.substr(content, 1, min(longest, _MOST) + 1)
