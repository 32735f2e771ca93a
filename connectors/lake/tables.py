"""What the sink requires of the log of a table: one commit names the rows of a batch and the last number together."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError

from connectors.lake.places import DataFile, TablePlace
from correlator.errors import ConnectionLost

TABLE_ERRORS = (OSError, DeltaError, pa.ArrowException)
"""Errors of the file system and of the libraries."""


def unusable(place: TablePlace, error: Exception) -> ConnectionLost:
    """The error of a table in which one of `TABLE_ERRORS` has occurred."""
    return ConnectionLost("E7003", place.where, f"table {place.path} cannot be used: {error}")


class Commit(NamedTuple):
    """What one batch adds to a table.

    Attributes:
        source: the source id of the sender.
        first, last: numbers of the first and the last message.
        refused: numbers of the messages between them that were refused.
        file: the file with the rows of the others; `None` if all were refused.
        digest: of the input.
    """

    source: str
    first: int
    last: int
    refused: Sequence[int]
    file: DataFile | None
    digest: str


class TableLog(Protocol):
    """The log of a table. One owner; each method raises `ConnectionLost`, and one of `TABLE_ERRORS`."""

    def check(self) -> bool:
        """Refuse a table that the sender cannot write. Changes nothing; returns whether there is a table."""
        ...

    def open(self) -> None:
        """Open the table; make it if there is none."""
        ...

    def last(self, source: str) -> int:
        """The number of the last message of the source that the table accounts for; 0 without one."""
        ...

    def refused(self, source: str, first: int) -> Collection[int]:
        """The numbers from `first` on that earlier commits of the source have refused."""
        ...

    def commit(self, commit: Commit) -> None:
        """Add a batch to the table: all of it or nothing; on disk when this returns."""
        ...
