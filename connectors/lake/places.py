"""Where the files of a table are, and how they are made: private, durable, and never changed once they
have their name.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.created_once import make_durable_directory, name_of_source, named_once
from correlator import durable
from correlator.errors import ConnectionLost, StoreError, quoted
from correlator.options import parse_destination
from correlator.processes import LockFile
from correlator.storage import files

DELTA_LOG, LOG, LOCKS, DATA, COLUMNS = "_delta_log", "_log", "_locks", "data", "_columns.json"
"""The names below the directory of a table."""
OLD_S = 86_400.0
"""Seconds after which a file that no log names is removed."""
_MAKING_S = 5.0
_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


class DataFile(NamedTuple):
    """A file with rows.

    Attributes:
        path: its path below the directory of the table, with `/`.
        rows: number of rows.
        size: size in bytes.
    """

    path: str
    rows: int
    size: int


def table_name(destination: str) -> str | None:
    """Return the table that `queue:NAME` names; `None` for any other destination."""
    parsed = parse_destination(destination)
    is_table = parsed is not None and parsed.kind == "queue" and _TABLE.fullmatch(parsed.name)
    return parsed.name if parsed is not None and is_table else None


class TablePlace:
    """The directory of a table. Methods raise `OSError`, and `ConnectionLost` if the place is not safe."""

    def __init__(self, where: str, lake: Path, name: str) -> None:
        self.where = where
        self.path = lake / name
        self._lake = lake
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse links, files where directories belong, and network file systems. Changes nothing."""
        for path in (self._lake, self.path, *(self.path / name for name in (DELTA_LOG, LOG, LOCKS, DATA))):
            if path.is_symlink():
                what = f"{path} is a symbolic link"
                raise ConnectionLost("E7013", self.where, what, "A lake has none", "Name the real path")
            if path.exists() and not path.is_dir():
                raise ConnectionLost("E7042", self.where, f"{path} is not a directory", "", "Move the file away")
        try:
            files.refuse_network(self.path / DATA)
        except StoreError as error:
            what = f"{self.path} {error.what}"
            raise ConnectionLost("E7042", self.where, what, "A lake needs a local disk") from error

    def make(self) -> None:
        """Make the directories of the table, and remember which directory this is."""
        for path in (self.path, self.path / DATA, self.path / LOCKS):
            make_durable_directory(path)
        self._identity = self._found()

    def check_in_place(self) -> None:
        """Raise `ConnectionLost` E7043 if the directory of the table was removed or replaced since `make`."""
        if self._found() != self._identity:
            what = f"{self.path} was removed or replaced while it was in use"
            raise ConnectionLost("E7043", self.where, what, "", "Leave a table alone while a sender writes it")

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Within the block, exclude other processes from making the table. Raises `ConnectionLost`
        E7012 after a long wait.
        """
        taken = LockFile(self.path / LOCKS / "table.lock", os.O_CREAT | os.O_NOFOLLOW)
        try:
            if not taken.try_lock(_MAKING_S):
                what = f"another process has been making {self.path} for {_MAKING_S:g} s"
                raise ConnectionLost("E7012", self.where, what)
            yield
        finally:
            taken.close()

    def lock(self, source: str) -> LockFile:
        """Take the lock of a source. Raises `ConnectionLost` E7012 if another process writes with this source."""
        taken = LockFile(self._lock_path(name_of_source(source)), os.O_CREAT | os.O_NOFOLLOW)
        if not taken.try_lock():
            taken.close()
            what = f"source {quoted(source)} is in use by another sender, which writes to {self.path}"
            todo = "Stop the other engine: it runs with a copy of this store"
            raise ConnectionLost("E7012", self.where, what, "Only one sender at a time uses a source", todo)
        return taken

    def directory(self, kind: str, source: str) -> Path:
        """Return the directory of a source below `data` or `_log`; make it if it is missing."""
        path = self.path / kind / name_of_source(source)
        make_durable_directory(path)
        if path.is_symlink():
            raise ConnectionLost("E7013", self.where, f"{path} is a symbolic link", "A lake has none", "Remove it")
        return path

    def write(self, source: str, stem: str, rows: pa.Table) -> DataFile:
        """Write the rows to `data/SOURCE/STEM.parquet`, unless this file exists; on disk when this returns."""
        directory = self.directory(DATA, source)
        path = directory / f"{stem}.parquet"
        if path.exists():
            os.utime(path)  # a killed process has left it; now it no longer counts as old
        else:
            with named_once(path) as partial, os.fdopen(durable.create_private(partial), "wb") as file:
                pq.write_table(rows, file)
                file.flush()
                os.fsync(file.fileno())
        durable.sync_directory(directory)
        return DataFile(path.relative_to(self.path).as_posix(), rows.num_rows, path.stat().st_size)

    def old_files(self, directory: Path) -> Iterator[Path]:
        """Yield the files of a directory that were not changed for a day."""
        limit = time.time() - OLD_S
        with os.scandir(directory) as entries:
            yield from (Path(one.path) for one in entries if one.is_file(follow_symlinks=False) and _before(one, limit))

    @contextlib.contextmanager
    def unused(self, name: str) -> Iterator[bool]:
        """Yield whether no sender uses the source with this name; within the block none can begin to use it."""
        taken = LockFile(self._lock_path(name), os.O_CREAT | os.O_NOFOLLOW)
        try:
            yield taken.try_lock()
        finally:
            taken.close()

    def _lock_path(self, name: str) -> Path:
        return self.path / LOCKS / f"{name}.lock"

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def _before(entry: "os.DirEntry[str]", limit: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < limit
    except FileNotFoundError:  # another sender has renamed or removed the file since it was listed
        return False
