"""Parts of queries that all sources use."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

_MOST = 2**30
"""Largest number of bytes: no database has a longer value, and each has a type for this number."""


def within(query: sa.Select[Any], order: Sequence[str], enough: int) -> sa.Select[Any]:
    """Limit a query to its first rows whose numbers in the column `taken` add up to `enough`, but at least one row.

    Args:
        query: a query with a column `taken`, and without an order that matters.
        order: names of the columns that order the result.
        enough: number of bytes.
    """
    rows = query.subquery("bounded")
    before = sa.func.sum(rows.c.taken).over(order_by=[rows.c[name] for name in order]) - rows.c.taken
    counted = sa.select(rows, before.label("before")).subquery("counted")
    by = [counted.c[name] for name in order]
    return sa.select(counted).where(counted.c.before < min(max(enough, 1), _MOST)).order_by(*by)


def size(content: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return the number of bytes of an expression; 0 for null."""
    return sa.func.coalesce(sa.func.length(content), 0)


def cut(content: sa.ColumnElement[Any], longest: int) -> sa.ColumnElement[Any]:
    """Return the first bytes of an expression: one more than `longest`, which shows that a content is longer."""
    return sa.func.substr(content, 1, min(longest, _MOST) + 1)
