"""SQLite files: how they are opened so that a commit survives a power cut, and the store in such a file.

`open_durable` opens the files of stores and of embedded brokers. It reads back whether SQLite has accepted the
settings that make commits durable, and does not change a file of another application.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy import exc as sql_errors

from correlator import durable
from correlator.errors import StoreError
from correlator.processes import LockFile, never_finalize
from correlator.storage import failures, files
from correlator.storage.failures import damaged, errors_of_sqlite, is_damage
from correlator.storage.owned import Database, foreign

NO_DATABASE = "E3010"
PAGES_TIDIED = 10_000
LARGEST_IDLE_WAL = 64 * 1024 * 1024
"""Size in bytes to which SQLite cuts a WAL that grew during a long read, when it starts the WAL again (trap T5)."""
_LAYOUT = ("page_size = 16384", "auto_vacuum = INCREMENTAL")
"""Settings of a new store: its rows hold batches, so fewer and larger pages make a commit cheaper."""


def path_of(url: URL) -> Path:
    """Return the absolute path of the file that an address names.

    Symbolic links in it are not resolved, so that `files` can refuse them.
    """
    return Path(os.path.abspath(url.database or ""))  # noqa: PTH100  # `resolve` would follow the links we refuse


def open_durable(path: Path, application_id: int, *, layout: Sequence[str] = ()) -> sqlite3.Connection:
    """Open a file for writing, with a WAL and a sync at every commit. A file of another application is not changed.

    Args:
        path: a file that exists; it may be empty.
        application_id: the number in the header of a file of the expected kind. The caller writes it.
        layout: pragmas that an empty file gets, such as its page size.

    Raises:
        StoreError: E3003, the file belongs to another application; E3106, SQLite does not accept the settings.
        sqlite3.Error: any other failure.
    """
    raw = _dial(path, "rw")
    try:
        _refuse_foreign(raw, str(path), application_id)
        if not _count_objects(raw):
            for pragma in layout:
                raw.execute(f"PRAGMA {pragma}")
        _make_durable(raw, str(path))
    except BaseException:
        raw.close()
        raise
    return raw


def _refuse_foreign(raw: sqlite3.Connection, where: str, application_id: int) -> None:
    found = read_pragma(raw, "application_id")
    if found != application_id and (found or _count_objects(raw)):
        raise foreign(where)


def _make_durable(raw: sqlite3.Connection, where: str) -> None:
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute(f"PRAGMA journal_size_limit = {LARGEST_IDLE_WAL:d}")
    raw.execute("PRAGMA fullfsync = ON")  # for macOS, where a plain sync reaches only the cache of the disk
    if read_pragma(raw, "journal_mode") != "wal" or read_pragma(raw, "synchronous") != 2:
        raise StoreError("E3106", where, "SQLite does not accept WAL with synchronous=FULL", "", "")
    _count_objects(raw)  # reading creates the files beside the database, which `files.OpenFiles` looks for


def _count_objects(raw: sqlite3.Connection) -> int:
    (objects,) = raw.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(objects)


def read_pragma(raw: sqlite3.Connection, name: str) -> Any:
    """Return the value of a pragma."""
    return raw.execute(f"PRAGMA {name}").fetchone()[0]


def _dial(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection with explicit transactions: the transactions that the driver opens itself do not include DDL
    (trap T66).
    """
    uri = f"file:{quote(os.fsencode(path))}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=failures.BUSY_TIMEOUT_S
    )


def writing_engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Make an engine of SQLAlchemy over the connections of `connect`, whose transactions take the write lock as they
    begin.

    A transaction that took the lock at its first write would fail if another transaction had written since its first
    read.
    """
    return _engine(connect, "BEGIN IMMEDIATE")


def deferring_engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Make an engine like `writing_engine`, whose transactions take the write lock at their first write.

    So it disturbs no writer while it only reads. A transaction must either read or write, for the reason that
    `writing_engine` gives.
    """
    return _engine(connect, "BEGIN")


def open_reader(path: Path) -> Engine:
    """Make an engine of SQLAlchemy whose connections can only read; they neither write nor checkpoint the WAL (trap
    T6).

    Raises:
        StoreError: E3010, there is no such file.
    """
    if not path.exists():
        todo = "Start the engine once, or name another store"
        raise StoreError(NO_DATABASE, str(path), "there is no store yet", "", todo)
    return _engine(lambda: _dial(path, "ro"), "BEGIN")


def _engine(connect: Callable[[], sqlite3.Connection], begin: str) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def copy_while_running(path: Path, target: Path) -> None:
    """Write a consistent copy of a file, even while its owner writes to it; takes no lock.

    Raises:
        StoreError: as `storage.database.reading`.
        OSError: the target cannot be written.
    """
    with errors_of_sqlite(str(path)), contextlib.closing(_dial(path, "ro")) as raw:
        _copy(raw, str(path), target)


def _copy(raw: sqlite3.Connection, where: str, target: Path) -> None:
    """Let SQLite write a copy of the database. The target appears only when the copy is complete and durable."""
    partial = files.beside(target, ".part")
    partial.unlink(missing_ok=True)
    os.close(durable.create_private(partial))
    with errors_of_sqlite(where):
        raw.execute("VACUUM INTO ?", (str(partial),))
    durable.sync_file(partial)
    partial.replace(target)
    durable.sync_directory(target.parent)


def structural_damage(connection: Connection) -> list[str]:
    """Describe the damage of the pages and indices of a file; at most 100 findings.

    If the damage ends the check early, the last finding is the error of SQLite. Raises all other errors of SQLAlchemy.
    """
    found: list[str] = []
    try:
        for finding in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
            found += [line for line in finding.splitlines() if line != "ok" and not line.startswith("***")]
    except sql_errors.DatabaseError as error:
        if not is_damage(error):
            raise
        found.append(str(error.orig))
    return found


class SqliteDatabase(Database):
    """A store in a SQLite file. A lock on a file beside it shows that its owner lives."""

    def __init__(self, url: URL, application_id: int) -> None:
        self.path = path_of(url)
        super().__init__(str(self.path), application_id)
        self._lock: LockFile | None = None

    def _open(self) -> None:
        files.prepare(self.path)
        self._lock = files.lock(self.path)
        self.engine = writing_engine(self._dial)
        self._connect()

    def _connect(self) -> None:
        self._connection = self.engine.connect()
        self._files = files.OpenFiles(self.path)
        never_finalize(self._connection)  # in a forked child, closing would remove the WAL that the parent uses

    def _dial(self) -> sqlite3.Connection:
        with errors_of_sqlite(self.where):
            raw = open_durable(self.path, self.application_id, layout=_LAYOUT)
            self._settle(raw)
        return raw

    def _settle(self, raw: sqlite3.Connection) -> None:
        # An engine soon deletes what it receives, so SQLite need not copy most pages of a larger WAL.
        raw.execute("PRAGMA wal_autocheckpoint = 2048")
        # Some builds of SQLite overwrite deleted rows with zeros, and so write each message once more to the WAL.
        raw.execute("PRAGMA secure_delete = FAST")

    def reconnect(self) -> None:
        """Open the file again. The lock was never lost."""
        self._hang_up()
        with self.translated():
            self._connect()

    def confirm_lock(self, *, at_once: bool = False) -> float | None:  # noqa: ARG002
        """Return `None`: a lock on a file is only lost with its process."""
        return None

    def stamp(self, connection: Connection, schema: int) -> None:
        """Write the kind and the schema number into the header of the file, which other programs read, too."""
        connection.exec_driver_sql(f"PRAGMA application_id = {self.application_id:d}")
        connection.exec_driver_sql(f"PRAGMA user_version = {schema:d}")

    def back_up(self, suffix: str) -> Path | None:
        """Let SQLite write a copy of the database. The copy appears only when it is complete and durable."""
        target = files.beside(self.path, suffix)
        _copy(self._raw(), self.where, target)
        return target

    def check_integrity(self) -> None:
        """Check the structure of every page."""
        with errors_of_sqlite(self.where):
            (verdict,) = self._raw().execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(self.where, verdict)

    def tidy(self) -> None:
        """Free at most `PAGES_TIDIED` pages; without this a file never gets smaller (trap T68)."""
        with errors_of_sqlite(self.where):  # `execute` stops after one page: its steps have no rows
            self._raw().executescript(f"PRAGMA incremental_vacuum({PAGES_TIDIED:d})")

    def _raw(self) -> sqlite3.Connection:
        raw = self.connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        return raw

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_files(self) -> None:
        self._files.check()
