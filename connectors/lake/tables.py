"""What the sink requires of the log of a table: one commit stores the rows of a batch together with the last number."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError

from connectors.lake.places import DataFile, TablePlace
from correlator.errors import ConnectionLost

TABLE_ERRORS = (OSError, DeltaError, pa.ArrowException)
"""Errors of the file system and of the libraries."""


def unusable(place: TablePlace, error: Exception) -> ConnectionLost:
    """Make the error of a table for one of `TABLE_ERRORS`."""
    return ConnectionLost("E7003", place.where, f"table {place.path} cannot be used: {error}")


class Commit(NamedTuple):
    """What one batch adds to a table.

    Attributes:
        source: the source id of the sender.
        first, last: numbers of the first and the last message.
        refused: numbers of the messages between them that were refused.
        file: file with the rows of the other messages; `None` if all were refused.
        digest: digest of the input.
    """

    source: str
    first: int
    last: int
    refused: Sequence[int]
    file: DataFile | None
    digest: str


class TableLog(Protocol):
    """The log of a table. It has one owner; methods raise `ConnectionLost`, and one of `TABLE_ERRORS`."""

    def check(self) -> bool:
        """Refuse a table that the sender cannot write. Changes nothing; returns whether the table exists."""
        ...

    def open(self) -> None:
        """Open the table; make it if it does not exist."""
        ...

    def last(self, source: str) -> int:
        """Return the number of the last message of the source that the table accounts for; 0 if there is none."""
        ...

    def refused(self, source: str, first: int) -> Collection[int]:
        """Return the numbers from `first` on that earlier commits of the source have refused."""
        ...

    def commit(self, commit: Commit) -> None:
        """Add a batch to the table: all of it or nothing; it is on disk when this returns."""
        ...
