"""Reads the tables of a store: as a batch at one moment, and dead letters as a stream."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from correlator.errors import StoreError
from correlator.storage import scanning
from correlator.storage.database import reading
from correlator.storage.scanning import Chosen, Part, StoreVersion
from pyspark_correlator.options import Reading
from pyspark_correlator.rows import SHAPES


class TablePart(InputPartition):
    """A part of a table, and the moment at which the table was divided; `None` if it was not."""

    def __init__(self, part: Part, share: int, moment: StoreVersion | None) -> None:
        super().__init__(share)
        self.part = part
        self.share = share
        self.moment = moment


class TableReader(DataSourceReader):
    """Reads a table at one moment.

    Each part is read in one transaction. If there are several, the store must not change between them: each compares
    the moment that it sees with the one at which the table was divided.
    """

    def __init__(self, options: Reading) -> None:
        self._options = options
        self._shape = SHAPES[options.table]
        self._chosen = Chosen()

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the table. Raises `StoreError`."""
        number = self._options.partitions
        if number == 1:
            return [TablePart(Part(), 0, None)]
        with reading(self._options.store) as connection:
            moment = scanning.moment(connection, self._options.where)
            if self._shape.table is None:
                return [TablePart(Part(), share, moment) for share in range(number)]
            parts = scanning.divide(connection, self._shape.table, number)
        return [TablePart(part, share, moment) for share, part in enumerate(parts)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of a part. Raises `StoreError`, E2205 among others, and `RecoveryRefused` for an altered row."""
        assert isinstance(partition, TablePart)
        with reading(self._options.store) as connection:
            moment = scanning.moment(connection, self._options.where)
            if partition.moment not in (None, moment):
                raise StoreError(
                    "E2205",
                    self._options.where,
                    "the engine has committed while the parts of the table were read, so they would not fit together",
                    "With partitions=1 a running engine does not matter",
                    "Read with partitions=1, or stop the engine, or read a copy: correlator db backup",
                )
            for value in self._values(connection, partition):
                yield self._shape.row(value)

    def _values(self, connection: Any, partition: TablePart) -> Iterator[Any]:
        if self._shape.table is None:
            return self._shape.scan(connection, self._chosen, partition.share, self._options.partitions)
        return self._shape.scan(connection, partition.part, self._chosen)


_LIMITS: Mapping[Any, Callable[[int], tuple[int | None, int | None]]] = {
    EqualTo: lambda value: (value, value),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value - 1),
    LessThanOrEqual: lambda value: (None, value),
}
"""For each comparison with a number: the lowest and the highest number that fit."""


class FilteringReader(TableReader):
    """A reader to which Spark offers filters. Spark refuses it unless its setting for pushing filters is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Apply conditions on the owner and on numbers; returns all others."""
        return [one for one in filters if not self._takes(one)]

    def _takes(self, one: Filter) -> bool:
        column, value = getattr(one, "attribute", None), getattr(one, "value", None)
        if column == (self._shape.owner,) and type(one) is EqualTo and isinstance(value, str):
            is_first = self._chosen.owner in (None, value)
            self._chosen = replace(self._chosen, owner=value) if is_first else self._chosen
            return is_first
        limits = _LIMITS.get(type(one))
        if self._shape.table is None or column != ("number",) or limits is None or not isinstance(value, int):
            return False
        self._limit(*limits(value))
        return True

    def _limit(self, least: int | None, most: int | None) -> None:
        chosen = self._chosen
        self._chosen = replace(
            chosen,
            least=chosen.least if least is None else max(chosen.least, least),
            most=chosen.most if most is None else min(chosen.most, most),
        )


class LetterRange(InputPartition):
    """The dead letters above a number, up to another one."""

    def __init__(self, after: int, through: int) -> None:
        super().__init__(through)
        self.after = after
        self.through = through


class LetterStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads dead letters as a stream. An offset is the number of the last letter, and the epoch of the store.

    A store gives a number to one letter only, and numbers have no gaps. So a range can be read again until somebody
    replays, discards or sends a letter of it, and a missing letter shows.
    """

    def __init__(self, options: Reading) -> None:
        self._options = options
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first letter that is there."""
        with reading(self._options.store) as connection:
            moment = scanning.moment(connection, self._options.where)
            first = scanning.first_dead_letter(connection)
            return _offset(scanning.last_dead_letter(connection) if first is None else first - 1, moment)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many rows as the option says."""
        return ReadMaxRows(self._options.most_rows) if self._options.most_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the stream ends."""
        with reading(self._options.store) as connection:
            scanning.moment(connection, self._options.where)
            self._target = scanning.last_dead_letter(connection)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The last letter, or the one that the limit allows. Raises `StoreError` E2204 for another store."""
        with reading(self._options.store) as connection:
            moment = scanning.moment(connection, self._options.where)
            last = scanning.last_dead_letter(connection)
        if last < start["number"] or moment.epoch < start["epoch"]:
            raise StoreError(
                "E2204",
                self._options.where,
                f"is not the store of this stream, or an older copy of it: its last dead letter has the number {last}"
                f" and the stream is at {start['number']}",
                "",
                "Restore the store, or begin anew with another checkpoint directory",
            )
        if self._target is not None:
            last = min(last, max(self._target, start["number"]))
        if isinstance(limit, ReadMaxRows):
            last = min(last, start["number"] + limit.max_rows)
        return start if last == start["number"] else _offset(last, moment)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Divide the letters after `start`, up to and with `end`, into as many ranges as `partitions` says."""
        after, through = start["number"], end["number"]
        size = max(1, -(-(through - after) // self._options.partitions))
        return [LetterRange(at, min(at + size, through)) for at in range(after, through, size)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The letters of a range. Raises `StoreError` E2204 if one is missing."""
        assert isinstance(partition, LetterRange)
        expected = partition.after + 1
        row = SHAPES[self._options.table].row
        with reading(self._options.store) as connection:
            scanning.moment(connection, self._options.where)
            chosen = Chosen(least=expected, most=partition.through)
            for letter in scanning.dead_letters(connection, Part(), chosen):
                self._refuse_missing(expected, letter.number - 1)
                expected = letter.number + 1
                yield row(letter)
        self._refuse_missing(expected, partition.through)

    def _refuse_missing(self, first: int, last: int) -> None:
        first = max(first, self._options.missing_up_to + 1)
        if first > last:
            return
        raise StoreError(
            "E2204",
            self._options.where,
            f"the dead letters {first} to {last} are no longer there: somebody has replayed or discarded them, or the"
            " engine has sent them (dead_letter_sender)",
            "A stream never leaves out a letter by itself",
            f"To go on without them: missing_up_to={last}",
        )


def _offset(number: int, moment: StoreVersion) -> dict[str, int]:
    return {"number": number, "epoch": moment.epoch}
