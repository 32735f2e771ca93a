"""Keeps the results of Spark for messages that are processed again and again, as in crash tests: Spark sees each
message once.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from correlator.pipeline.envelope import PART, POSITION
from correlator.pipeline.spark import DATA_ERRORS

MOST_MESSAGES = 50_000
"""The largest number of remembered results; a further result makes the object forget all of them."""
Execute = Callable[[pa.Table], pa.Table]
_Key = tuple[Hashable, bytes]


class _Group(NamedTuple):
    """The rows of one message, without their position in the batch, which differs from batch to batch."""

    key: _Key
    position: int
    rows: pa.Table


class Memory:
    """Remembers the rows that the SQL parts of a pipeline have made of the rows of each message.

    This changes no result: such a part handles each row by itself, and makes equal rows of equal rows
    (docs/pipelines.md, codes `E1516` and `E1525`). Used by the pipeline's thread.
    """

    def __init__(self) -> None:
        self._made: dict[_Key, pa.Table | Exception] = {}
        self._columns: dict[Hashable, pa.Table] = {}
        """For each part, a table without rows that has the columns which the part makes."""

    def recall(self, part: Hashable, rows: pa.Table, execute: Execute) -> pa.Table:
        """The rows that a part of the pipeline makes of these rows, in any order.

        Args:
            part: names the part.
            rows: the rows, with their positions in the batch.
            execute: the part; it gets only rows that it has not got before.

        Raises the errors of `execute`. If Spark has refused a value of a message, it raises the same error again.
        """
        groups = list(_groups(part, rows))
        if len(self._made) + len(groups) > MOST_MESSAGES:
            self._made = {}
        missing = [group for group in groups if group.key not in self._made]
        if missing or part not in self._columns:
            self._learn(part, rows.slice(0, 0), missing, execute)
        columns = self._columns[part]
        made = [columns]
        for group in groups:
            found = self._made[group.key]
            if isinstance(found, Exception):
                raise found.with_traceback(None)
            made.append(_at(group.position, found, columns))
        return pa.concat_tables(made)

    def _learn(self, part: Hashable, empty: pa.Table, missing: Sequence[_Group], execute: Execute) -> None:
        try:
            result = execute(pa.concat_tables([empty, *(_at(group.position, group.rows, empty) for group in missing)]))
        except DATA_ERRORS as error:
            if len(missing) == 1:
                self._made[missing[0].key] = error
            raise
        self._columns[part] = result.slice(0, 0)
        nothing = result.slice(0, 0).drop_columns([POSITION])
        made = {group.position: group.rows for group in _groups(part, result)}
        for group in missing:
            self._made[group.key] = made.get(group.position, nothing)


def _groups(part: Hashable, rows: pa.Table) -> Iterator[_Group]:
    order = [(name, "ascending") for name in (POSITION, PART) if name in rows.column_names]
    rows = rows.sort_by(order).combine_chunks()
    content, first = rows.drop_columns([POSITION]), 0
    for position, same in groupby(rows.column(POSITION).to_pylist()):
        some = content.take(pa.array(range(first, first + len(list(same)))))
        first += some.num_rows
        yield _Group((part, _bytes(some)), position, some)


def _bytes(rows: pa.Table) -> bytes:
    """The content of rows. No Python object could hold every value of Spark, such as a text that is not UTF-8.

    The rows are a copy: the bytes of a slice would depend on what is around it.
    """
    (batch,) = rows.combine_chunks().to_batches()
    content: bytes = batch.serialize().to_pybytes()
    return content


def _at(position: int, rows: pa.Table, like: pa.Table) -> pa.Table:
    """The rows with this position; their columns have the order of the table `like`."""
    whole = rows.append_column(POSITION, pa.array([position] * rows.num_rows, pa.int64()))
    return whole.select(like.column_names)
