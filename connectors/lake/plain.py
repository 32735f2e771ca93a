"""The log of a table of Parquet files: one file for each batch; it either exists or not.

`_log/SOURCE/LAST.json` names the data file of the batch that ends with number LAST. A process makes it by a link, which
fails if the name exists. A data file that no entry names is not a part of the table.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from connectors.created_once import create_once, make_durable_directory
from connectors.lake.places import (
    COLUMNS,
    DATA,
    DELTA_LOG,
    LOG,
    DataFile,
    TablePlace,
)
from connectors.lake.tables import Commit
from connectors.sidecars import read_whole
from connectors.table_columns import check_columns, type_from, type_text
from correlator import durable
from correlator.errors import ConnectionLost

VERSION = 1
_DIGITS = 20
_NUMBER = re.compile(r"[0-9]{20}")
_DATA_FILE = re.compile(r"[0-9]+-(?P<last>[0-9]+)-[0-9a-f]+\.parquet(?P<part>\.[0-9a-f]+\.part)?")


class Entry(msgspec.Struct, frozen=True):
    """An entry of the log.

    Attributes:
        source: the source id of the sender.
        first, last: numbers of the first and the last message.
        refused: numbers of refused messages between them.
        files: data files with the rows of the other messages; empty if all were refused.
        digest: digest of the input.
    """

    source: str
    first: int
    last: int
    refused: list[int]
    files: list[DataFile]
    digest: str


_decoder = msgspec.json.Decoder(Entry)


class _Columns(msgspec.Struct):
    version: int
    columns: list[tuple[str, str]]


_columns = msgspec.json.Decoder(_Columns)


class ParquetLog:
    """The log of an open table."""

    def __init__(self, place: TablePlace, columns: pa.Schema) -> None:
        self._place = place
        self._where = place.where
        self._columns = columns
        self._last: dict[str, int] = {}

    def check(self) -> bool:
        """Refuse a table with other columns."""
        self._place.check()
        path = self._place.path
        if (path / DELTA_LOG).exists():
            what = f"{path} is a table of format delta"
            raise ConnectionLost("E7042", self._where, what, "", "Set format: delta, or name another table")
        found = columns_in(self._where, path)
        if found is None:
            return False
        check_columns(self._where, path, self._columns, found)
        return True

    def open(self) -> None:
        """Open the table; make it if it does not exist. Remove old files that no entry names."""
        self.check()
        self._place.make()
        make_durable_directory(self._place.path / LOG)
        with self._place.making():
            if not self.check():
                columns = [(field.name, type_text(field.type)) for field in self._columns]
                create_once(self._place.path / COLUMNS, msgspec.json.encode(_Columns(VERSION, columns)))
        self._last = {}
        self._remove_old_files()

    def last(self, source: str) -> int:
        """Return the highest number among the names of the entries. They are on disk when this returns."""
        if source not in self._last:
            directory = self._place.directory(LOG, source)
            durable.sync_directory(directory)
            self._last[source] = max((int(path.stem) for path in _entries(directory)), default=0)
        return self._last[source]

    def refused(self, source: str, first: int) -> Collection[int]:
        """Return the refused numbers from the entries that end at `first` or later."""
        recent = [path for path in _entries(self._place.directory(LOG, source)) if int(path.stem) >= first]
        return {one for path in recent for one in read_entry(self._where, path).refused if one >= first}

    def commit(self, commit: Commit) -> None:
        """Make the entry. Raises `ConnectionLost` E7044 if there is a different one of this name."""
        self._place.check_in_place()
        files = [] if commit.file is None else [commit.file]
        entry = Entry(commit.source, commit.first, commit.last, list(commit.refused), files, commit.digest)
        path = self._place.directory(LOG, commit.source) / f"{commit.last:0{_DIGITS}}.json"
        if not create_once(path, msgspec.json.encode(entry)):
            found = read_entry(self._where, path)
            if found.digest != entry.digest:
                what = f"{path} was written by another engine: it names other messages"
                todo = "Find the engine that runs with a copy of this store"
                raise ConnectionLost("E7044", self._where, what, "Only one engine at a time writes with a source", todo)
        self._place.check_in_place()
        self._last[commit.source] = commit.last

    def _remove_old_files(self) -> None:
        """Remove data files of killed processes, except those of sources that a process uses now."""
        for directory in sorted((self._place.path / DATA).iterdir()):
            old = list(self._place.old_files(directory)) if directory.is_dir() else []
            if old:
                with self._place.unused(directory.name) as is_unused:
                    for path in self._unnamed(directory.name, old) if is_unused else ():
                        path.unlink(missing_ok=True)

    def _unnamed(self, name: str, old: Collection[Path]) -> Iterator[Path]:
        """Yield the data files that no entry names. An entry is read only if several files end with its number."""
        ours = [(path, match) for path in old if (match := _DATA_FILE.fullmatch(path.name)) is not None]
        ending = Counter(match["last"] for _, match in ours)
        for path, match in ours:
            entry = self._place.path / LOG / name / f"{int(match['last']):0{_DIGITS}}.json"
            if match["part"] or not entry.exists():
                yield path
            elif ending[match["last"]] > 1:
                named = {Path(file.path).name for file in read_entry(self._where, entry).files}
                if path.name not in named:
                    yield path


def columns_in(where: str, path: Path) -> pa.Schema | None:
    """Return the columns of a table of Parquet files; `None` if there is no table. Raises `ConnectionLost` E7044."""
    content = read_whole(path / COLUMNS)
    if content is None and next((path / LOG).glob("*/*.json"), None) is not None:
        content = read_whole(path / COLUMNS)  # another sender may have made the table meanwhile
        if content is None:
            what = f"{path / COLUMNS} is missing, and the table has rows"
            raise ConnectionLost("E7044", where, what, "", "Restore the file")
    if content is None:
        return None
    with _damaged(where, path / COLUMNS):
        found = _columns.decode(content)
        return pa.schema([(name, type_from(text)) for name, text in found.columns])


def read_entry(where: str, path: Path) -> Entry:
    """Read an entry of a log. Raises `ConnectionLost` E7044 if it is damaged."""
    with _damaged(where, path):
        return _decoder.decode(path.read_bytes())


def all_entries(where: str, path: Path) -> Iterator[Entry]:
    """Yield all entries of the log of a table, by source and number."""
    for entry in sorted((path / LOG).glob("*/*.json")):
        yield read_entry(where, entry)


@contextlib.contextmanager
def _damaged(where: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        raise ConnectionLost("E7044", where, f"{path} is damaged: {error}", "", "Restore the file") from error


def _entries(directory: Path) -> Iterator[Path]:
    return (path for path in directory.glob("*.json") if _NUMBER.fullmatch(path.stem))
