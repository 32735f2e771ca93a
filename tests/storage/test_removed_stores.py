"""Somebody removes or replaces the store, or a part of it, while the engine runs: nothing is taken for committed."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from correlator.errors import ConnectionLost, Fenced, StoreError
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.storage import files
from correlator.storage.store import SqlStore
from tests.servers import PostgresServer
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened


def remove(*endings: str) -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        for ending in endings:
            path.with_name(path.name + ending).unlink()

    return apply


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_directory(path: Path) -> None:
    move_directory(path)
    path.parent.mkdir()


def replace_by_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def replace_all_by_copies(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name("copies"))
    move_directory(path)
    path.parent.with_name("copies").rename(path.parent)


def replace_by_another_store(path: Path) -> None:
    other = path.with_name("other.db")
    store = SqlStore(f"sqlite:///{other}", "alpha")
    opened(store)
    store.close()
    other.replace(path)


CHANGES = {
    "the database": remove(""),
    "the write-ahead log": remove("-wal"),
    "its index": remove("-shm"),
    "all files": remove("", "-wal", "-shm", ".lock"),
    "the directory moved": move_directory,
    "another directory": replace_directory,
    "a copy": replace_by_copy,
    "a copy of all": replace_all_by_copies,
    "another store": replace_by_another_store,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "store.db"


def restore_with_times(path: Path) -> None:
    """As a tool does that puts back a copy of the directory file by file, with the times of all."""
    before = path.parent.stat()
    replace_by_copy(path)
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES["a copy with all times"] = restore_with_times


@pytest.fixture(params=[False, True], ids=["new", "settled"])
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the directory has last changed so long ago that a commit relies on the time of this change."""
    if request.param:
        monkeypatch.setattr(files, "_COARSEST_NS", -10_000_000_000)
    return bool(request.param)


def tick(path: Path) -> None:
    """Wait until the clock of the file system has gone on, in steps of up to 10 ms."""
    other = path.parent.with_name("other")
    other.touch()
    while other.stat().st_ctime_ns <= path.parent.stat().st_ctime_ns:
        other.touch()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_files_that_are_removed_or_replaced(
    make_store: MakeStore, path: Path, change: Callable[[Path], object]
) -> None:
    """The commit that follows is no commit: what it holds is neither acknowledged nor released."""
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [values.received(1, 1)])
    tick(path)
    change(path)
    with pytest.raises(StoreError, match="E3112 .*was removed or replaced while it was in use") as stopped:
        store.commit(2, [values.received(2, 1)])
    assert type(stopped.value) is StoreError  # which ends the engine


def test_what_the_engine_and_sqlite_do_themselves_is_no_change(make_store: MakeStore, path: Path) -> None:
    """Checkpoints of the log, other readers, a copy, a second program that opens and closes the database."""
    store = make_store(f"sqlite:///{path}")
    opened(store)
    for number in range(1, 40):
        store.commit(number, [values.received(number, 1)])
        with sqlite3.connect(path) as other:
            other.execute("SELECT count(*) FROM receive_log").fetchone()
            if number % 10 == 0:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.close()


def test_commits_look_at_the_files_only_if_their_directory_has_just_changed(
    make_store: MakeStore, path: Path, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux makes the next write to a file slower if somebody has asked for its times."""
    asked: list[str] = []
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [values.received(1, 1)])
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **options: asked.append(str(name)) or stat(name, **options))
    store.commit(2, [values.received(2, 1)])
    assert (f"{path}-wal" in asked) != settled
    tick(path)
    path.with_name("new").touch()
    asked.clear()
    store.commit(3, [values.received(3, 1)])
    assert f"{path}-wal" in asked


@pytest.mark.usefixtures("settled")
def test_files_of_an_embedded_broker(path: Path) -> None:
    """What is sent after that is not confirmed. This sink makes no empty broker in its place; the next process does."""
    options = {"store": f"sqlite:///{path}"}
    broker = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=options))
    sink = broker.sink(SenderSettings(id="s", connection="c", destination="queue:q"))
    sink.connect()
    assert not any(sink.send([Outgoing(1, "life", "queue:q", Message(b"1"))]))
    tick(path)
    for file in (path, path.with_name("store.db-wal"), path.with_name("store.db-shm")):
        os.unlink(file)  # noqa: PTH108  # as `rm` does
    with pytest.raises(ConnectionLost, match="E3112"):
        sink.send([Outgoing(2, "life", "queue:q", Message(b"2"))])
    with pytest.raises(ConnectionLost, match="E7003 .*the broker's file is gone"):
        sink.connect()
    sink.close()
    sink = broker.sink(SenderSettings(id="s", connection="c", destination="queue:q"))
    sink.connect()
    assert not any(sink.send([Outgoing(2, "life", "queue:q", Message(b"2"))]))
    sink.close()
    source = broker.source(ReceiverSettings(id="r", connection="c", destination="queue:q"))
    source.connect()
    assert [message.body for message in source.receive(10, 0.0).messages] == [b"2"]
    source.close()


DROPS = {
    "the schema": ("DROP SCHEMA {schema} CASCADE", StoreError, "E3005"),
    "a table": ("DROP TABLE {schema}.receive_log", StoreError, "E3005"),
    "the engine's table": ("DROP TABLE {schema}.engine", StoreError, "E3005"),
    "a column": ("ALTER TABLE {schema}.receive_log DROP COLUMN first", StoreError, "E3005"),
    "the engine's row": ("DELETE FROM {schema}.engine", Fenced, "E3202"),
}


@pytest.mark.postgres
@pytest.mark.parametrize(("statement", "kind", "code"), DROPS.values(), ids=DROPS)
def test_what_is_dropped_in_postgres(
    make_store: MakeStore, postgres_server: PostgresServer, statement: str, kind: type[StoreError], code: str
) -> None:
    url = postgres_server.fresh_schema()
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    with store._opened().transaction() as connection:
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    postgres_server.execute(statement.format(schema=schema), url)
    with pytest.raises(StoreError, match=code) as stopped:
        store.commit(2, [values.received(2, 1)])
    assert type(stopped.value) is kind


def test_the_engines_row_is_deleted_in_sqlite(make_store: MakeStore, path: Path) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM engine")
    other.close()
    with pytest.raises(Fenced, match="E3202"):
        store.commit(1, [values.received(1, 1)])
