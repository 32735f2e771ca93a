"""The schema: revisions and tables say the same, and an upgrade leaves a copy behind."""

import sqlite3
import stat
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from correlator.core import faults
from correlator.errors import Fenced
from correlator.storage import database, inspect, migrate, tables
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened
from tests.storage.victim import COMMITS, REVISIONS, tables_of


def test_revisions_and_tables_say_the_same(url: str) -> None:
    store = database.connect(url)
    migrate.bring_up(store)
    with store.transaction() as connection:
        options = {"compare_type": True, "version_table": migrate.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata) == []
    store.close()


def test_the_head_is_the_last_revision() -> None:
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_heads() == [migrate.HEAD]


def test_u10_an_upgrade_by_command(make_store: MakeStore, url: str) -> None:
    assert migrate.upgrade(url) == ("", migrate.HEAD)
    assert migrate.upgrade(url) == (migrate.HEAD, migrate.HEAD)
    store = make_store(url)
    assert opened(store).epoch == 1
    with pytest.raises(Fenced, match=r"E3201"):
        migrate.upgrade(url)


def test_there_is_no_way_down() -> None:
    for script in ScriptDirectory(str(migrate.SCRIPTS)).walk_revisions():
        assert not hasattr(script.module, "downgrade")


def test_u10_a_copy_is_made_before_an_upgrade(make_store: MakeStore, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = make_store(url)
    opened(store)
    for number in (1, 2, 3):
        store.commit(number, COMMITS[number - 1])
    store.close()
    (tmp_path / "store.db.backup-0004.part").write_text("a copy that was killed")
    owned = database.connect(url)
    migrate.bring_up(owned, head="0006", scripts=REVISIONS)
    owned.close()
    copy = tmp_path / "store.db.backup-0004"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with sqlite3.connect(copy) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    kept = make_store(f"sqlite:///{copy}")
    recovered = opened(kept)
    assert (recovered.commit, recovered.state is not None) == (3, True)
    assert list(recovered.state) == [values.state(1, a=b"1"), values.state(2, b=b"2")]


def test_t26_a_store_of_the_first_schema_is_brought_up(make_store: MakeStore, url: str) -> None:
    """Also when the first attempt fails between the change and its commit."""
    owned = database.connect(url)
    migrate.bring_up(owned, head="0001")
    assert "suspect" not in tables_of(owned)

    def fail(passed: str) -> None:
        if passed == "rec.migrate.step":
            raise ZeroDivisionError

    faults.install(fail)
    try:
        with pytest.raises(ZeroDivisionError):
            migrate.bring_up(owned)
    finally:
        faults.install(None)
    assert (migrate.revision(owned), "suspect" in tables_of(owned)) == ("0001", False)
    owned.close()
    assert opened(make_store(url)).suspects == []


def test_t26_what_a_start_had_noted_outlives_the_upgrade_that_adds_digests(make_store: MakeStore, url: str) -> None:
    owned = database.connect(url)
    migrate.bring_up(owned, head="0002")
    with owned.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO suspect VALUES ('main', 'orders', 7, 9, 1)")
    owned.close()
    assert opened(make_store(url)).suspects == [values.suspect(7, 9, 2)]


def test_t26_the_progress_of_receivers_outlives_the_upgrade_that_adds_digests(make_store: MakeStore, url: str) -> None:
    owned = database.connect(url)
    migrate.bring_up(owned, head="0003")
    with owned.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO receive_progress VALUES ('orders', 7, 9), ('bills', 0, 2)")
    owned.close()
    assert inspect.received(url).consumed == {"orders": 9, "bills": 2}, "before the upgrade"
    recovered = opened(make_store(url))
    assert (recovered.confirmed_batches, recovered.consumed) == ({"orders": 7}, {"orders": 9, "bills": 2})


def test_a_failing_revision_changes_nothing(make_store: MakeStore, url: str) -> None:
    """On both databases a revision is one transaction."""
    store = make_store(url)
    opened(store)
    store.commit(1, COMMITS[0])
    store.close()

    def fail(passed: str) -> None:
        if passed == "test.migrate.between":
            raise ZeroDivisionError

    owned = database.connect(url)
    faults.install(fail)
    try:
        with pytest.raises(ZeroDivisionError):
            migrate.bring_up(owned, head="0006", scripts=REVISIONS)
    finally:
        faults.install(None)
    assert "one" not in tables_of(owned)
    assert migrate.revision(owned) == "0004"
    owned.close()
    assert opened(make_store(url)).commit == 1
