"""The link to a SQLite file: what interrupts and failures leave of its transactions and locks."""

import resource
import sqlite3
from pathlib import Path

import pytest

from connectors.embedded import database, gates
from connectors.embedded.link import open_link
from correlator.processes import LockFile


@pytest.fixture
def links(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "TIMEOUT_S", 0.2)
    opened = [open_link(f"sqlite:///{tmp_path}/broker.db") for _ in range(2)]
    yield opened
    for link in opened:
        link.close()


class Interrupted:
    """The driver's connection, which interrupts the thread after one statement."""

    def __init__(self, raw, statement):
        self._raw = raw
        self._statement = statement

    def execute(self, statement):
        result = self._raw.execute(statement)
        if statement == self._statement:
            raise KeyboardInterrupt
        return result

    def __getattr__(self, name):
        return getattr(self._raw, name)


def assert_as_before(link, other):
    """Nothing is locked, no transaction is open, and commits wait for the disk."""
    assert not link._raw.in_transaction
    assert link._raw.execute("PRAGMA synchronous").fetchone() == (2,)
    for one in (other, link):
        with one.transaction():
            pass


@pytest.mark.parametrize(
    "statement", ["PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE", "COMMIT", "PRAGMA synchronous = FULL"]
)
def test_an_interrupt_leaves_a_writing_link_as_it_was(links, monkeypatch, statement):
    link, other = links
    with monkeypatch.context() as patched:
        patched.setattr(link, "_raw", Interrupted(link._raw, statement))
        with pytest.raises(KeyboardInterrupt), link.transaction(synced=False):
            pass
    assert_as_before(link, other)


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT"])
def test_an_interrupt_leaves_a_reading_link_as_it_was(links, monkeypatch, statement):
    link, other = links
    with monkeypatch.context() as patched:
        patched.setattr(link, "_raw", Interrupted(link._raw, statement))
        with pytest.raises(KeyboardInterrupt), link.reading():
            pass
    assert_as_before(link, other)


def test_an_interrupt_just_after_the_file_was_locked_unlocks_it(links, monkeypatch):
    link, other = links
    try_lock = LockFile.try_lock

    def interrupted(file, wait_s=0.0):
        assert try_lock(file, wait_s)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LockFile, "try_lock", interrupted)
        with pytest.raises(KeyboardInterrupt), link.transaction():
            pass
    assert_as_before(link, other)


def test_a_link_that_gets_no_turn_leaves_the_turn_of_others_alone(links):
    link, other = links
    with other.transaction():
        with pytest.raises(TimeoutError), link.transaction():
            pass
        file = LockFile(link._gate.path)
        assert file.is_locked()
        file.close()
    assert_as_before(link, other)


def test_a_commit_that_fails_is_rolled_back(links):
    """SQLite leaves the transaction open then, as after SQLITE_BUSY."""
    link, other = links
    with link.transaction() as connection:
        cursor = connection.connection.cursor()
        cursor.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
        cursor.execute("CREATE TABLE child (n INTEGER REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED)")
    link._raw.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError), link.transaction(synced=False) as connection:
        connection.connection.cursor().execute("INSERT INTO child VALUES (1)")
    assert link._raw.execute("SELECT count(*) FROM child").fetchone() == (0,)
    assert_as_before(link, other)


def test_a_commit_for_which_the_disk_has_no_space_stores_nothing(links, monkeypatch):
    link, other = links
    with link.transaction() as connection:
        connection.connection.cursor().execute("CREATE TABLE t (content BLOB)")
    log = link._path.with_name("broker.db-wal")
    commit = database.commit

    def without_space(raw):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 10_000, hard))
        try:
            commit(raw)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(database, "commit", without_space)
        with pytest.raises(sqlite3.OperationalError, match="full|I/O"), link.transaction(synced=False) as connection:
            connection.connection.cursor().execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert other._raw.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert_as_before(link, other)


def test_a_failure_within_the_transaction_is_raised_though_sqlite_has_rolled_back(links):
    link, other = links
    link._raw.execute("PRAGMA max_page_count = 1")  # what the file has now
    with pytest.raises(sqlite3.OperationalError, match="full"), link.transaction(synced=False) as connection:
        connection.connection.cursor().execute("CREATE TABLE t AS SELECT zeroblob(1000000)")
    link._raw.execute("PRAGMA max_page_count = 1000000")
    assert_as_before(link, other)


def test_a_link_that_cannot_open_leaves_no_descriptor_open(tmp_path):
    (tmp_path / "broker.db.users").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            open_link(f"sqlite:///{tmp_path}/broker.db")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
