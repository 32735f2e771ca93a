"""The log of a Delta table. A commit has the source as its `appId` and the last number of the batch as its version.

Delta does not compare versions: it would store a repeated one. So the sink leaves out messages that the table has. The
library compares the `appId` with those of commits that were made after the table was read, and refuses the commit if
one has the same.

The library syncs no file. The sink syncs the data file before the commit, and the log after it. A log file that a power
cut leaves empty counts as an empty commit, and the engine sends the messages again, since nothing confirmed them.
"""

import contextlib
import time
from collections.abc import Collection

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from connectors.lake.places import COLUMNS, DELTA_LOG, TablePlace
from connectors.lake.tables import Commit
from connectors.table_columns import check_columns
from correlator import durable
from correlator.errors import ConnectionLost

RETENTION = "delta.setTransactionRetentionDuration"
_NOTE = "correlator"
_PLAIN_WRITERS = (1, 2)
_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""Features of tables that do not matter to a writer that only appends rows with nullable columns."""
_MOST_SYNCED = 1000
_COMMITS_AT_ONCE = 64


class _Note(msgspec.Struct):
    """Additional data about the batch in a commit, beside the actions of Delta."""

    source: str
    first: int
    last: int
    refused: list[int]
    digest: str


_notes = msgspec.json.Decoder(_Note)


class DeltaLog:
    """The log of a Delta table; see `tables.TableLog`."""

    def __init__(self, place: TablePlace, columns: pa.Schema, *, sends_again: bool) -> None:
        self._place = place
        self._where = place.where
        self._columns = columns
        self._sends_again = sends_again
        self._table: DeltaTable | None = None

    def check(self) -> bool:
        """Refuse a table with other columns, or with features that this writer does not support."""
        self._place.check()
        path = self._place.path
        if (path / COLUMNS).exists():
            what = f"{path} is a table of format parquet"
            raise ConnectionLost("E7042", self._where, what, "", "Set format: parquet, or name another table")
        if not (path / DELTA_LOG).is_dir() or not DeltaTable.is_deltatable(str(path)):
            return False
        self._check(DeltaTable(str(path)))
        return True

    def open(self) -> None:
        """Open the table; make it if it does not exist. Afterwards, the commits of earlier lives are on disk."""
        self.check()
        self._place.make()
        path = str(self._place.path)
        with self._place.making():
            if not self.check():
                DeltaTable.create(path, self._columns)
        self._table = table = DeltaTable(path)
        self._sync(max(0, table.version() - _MOST_SYNCED), table.version())

    def last(self, source: str) -> int:
        """Return the version that Delta keeps for the source."""
        return self._opened.transaction_version(source) or 0

    def refused(self, source: str, first: int) -> Collection[int]:
        """Return the refused numbers, by reading the commits backwards to the one that contains `first`."""
        limit, found = _COMMITS_AT_ONCE, set[int]()
        while True:
            history = self._opened.history(limit)
            for entry in history:
                note = _note(entry.get(_NOTE))
                if note is not None and note.source == source:
                    found.update(one for one in note.refused if one >= first)
                    if note.first <= first:
                        return found
            if len(history) < limit:
                return found
            limit *= 4

    def commit(self, commit: Commit) -> None:
        """Commit the data file together with the version of the source."""
        table, version = self._opened, self._opened.version()
        self._place.check_in_place()
        note = _Note(commit.source, commit.first, commit.last, list(commit.refused), commit.digest)
        properties = CommitProperties(
            custom_metadata={_NOTE: msgspec.json.encode(note).decode()},
            app_transactions=[Transaction(commit.source, commit.last)],
        )
        try:
            table.create_write_transaction(_actions(commit), "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            what = f"another program has changed {self._place.path} at the same time: {error}"
            raise ConnectionLost("E7045", self._where, what, "", "The sender reads the table again") from error
        table.update_incremental()
        self._sync(version + 1, table.version())
        self._place.check_in_place()

    @property
    def _opened(self) -> DeltaTable:
        if self._table is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        return self._table

    def _check(self, table: DeltaTable) -> None:
        path = self._place.path
        check_columns(self._where, path, self._columns, pa.schema(table.schema().to_arrow()))
        what = self._obstacle(table)
        if what:
            allowed = "A Delta table of a lake has no partitions, constraints or special columns, and keeps every appId"
            raise ConnectionLost("E7042", self._where, f"{path} {what}", allowed)

    def _obstacle(self, table: DeltaTable) -> str:
        """Return why this writer must not write to the table; "" if it may."""
        protocol, metadata = table.protocol(), table.metadata()
        features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
        if protocol.min_writer_version not in (*_PLAIN_WRITERS, 7):
            return f"needs writers of version {protocol.min_writer_version}"
        if not features <= _FEATURES:
            return f"has the features {', '.join(sorted(features - _FEATURES))}"
        if metadata.partition_columns:
            return f"is partitioned by {', '.join(metadata.partition_columns)}"
        if "delta.invariants" in table.schema().to_json():
            return "has invariants of columns"
        if self._sends_again and RETENTION in metadata.configuration:
            return f"does not remember its messages for ever: {RETENTION} is set"
        return ""

    def _sync(self, first: int, last: int) -> None:
        """Sync the files of these versions."""
        log = self._place.path / DELTA_LOG
        endings = ("json", "checkpoint.parquet")
        of_versions = [f"{version:020}.{ending}" for version in range(first, last + 1) for ending in endings]
        for name in (*of_versions, "_last_checkpoint"):
            with contextlib.suppress(FileNotFoundError):  # the library may have removed old files of the log
                durable.sync_file(log / name)
        durable.sync_directory(log)


def _actions(commit: Commit) -> list[AddAction | RemoveAction]:
    file = commit.file
    if file is None:
        return []
    statistics = msgspec.json.encode({"numRecords": file.rows}).decode()
    return [AddAction(file.path, file.size, {}, time.time_ns() // 1_000_000, True, statistics)]


def _note(text: object) -> _Note | None:
    """Return the note of a commit; `None` for commits of other programs."""
    try:
        return _notes.decode(str(text))
    except msgspec.MsgspecError:
        return None
