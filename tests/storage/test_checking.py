"""`db check` on both databases: every damage is found and named, and nothing is changed."""

import hashlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from correlator.core.commit import RegistryCommit, SuspectCommit
from correlator.errors import StoreError
from correlator.storage import checking, database, migrate
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened

EDITS = {
    "checkpoint": ("UPDATE checkpoint SET crc = crc + 1", "checkpoint 3: content does not match its digest"),
    "receive_log": ("UPDATE receive_log SET last = 77", "receive log of 'orders' from 1: content does not match"),
    "receive_progress": (
        "UPDATE receive_progress SET consumed = 9",
        "progress of receiver 'orders': content does not match its digest",
    ),
    "accepted_ids": ("UPDATE accepted_ids SET domain = 'x'", "ids of 'x' number 1: content does not match its digest"),
    "state_log": ("UPDATE state_log SET crc = 0 WHERE number = 2", "state 2: content does not match its digest"),
    "outbox": ("UPDATE outbox SET crc = 0", "outbox of 'alerts' from 1: content does not match its digest"),
    "dead_letter": ("UPDATE dead_letter SET origin = 'x'", "dead letter 1: content does not match its digest"),
    "endpoint": ("UPDATE endpoint SET kind = 'sender'", "registry of 'orders': content does not match its digest"),
    "suspect": ("UPDATE suspect SET deaths = 1", "note about 'main', 'orders' from 4: content does not match its"),
}


@pytest.fixture
def filled(make_store: MakeStore, url: str) -> str:
    """A closed store with rows in every table."""
    store = make_store(url)
    opened(store)
    parts = {
        "senders": [values.sender()],
        "state": [values.state(number, a=b"1" * 5000) for number in range(1, 101)],
        "outbound": [values.outbound(1, 50)],
        "dead_letters": [values.letter()],
    }
    noted = SuspectCommit(contexts=["main"], suspects=[values.suspect(4, 5)])
    registered = RegistryCommit(put=[values.endpoint("orders")])
    store.commit(1, [registered, values.received(1, 5, number=1, confirmed=1), values.checkpoint(3, **parts), noted])
    store.close()
    return url


def execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_141_an_intact_store_has_rows_in_every_table_and_no_damage(filled: str) -> None:
    structure, found = checking.check(filled)
    assert structure == []
    assert {one.table for one in found} == set(EDITS)
    assert [one.damages for one in found] == [[]] * len(EDITS)
    assert {one.table: one.intact for one in found}["state_log"] == 100
    assert all(one.intact for one in found)


@pytest.mark.parametrize("table", EDITS)
def test_148_a_row_that_was_edited_is_named_and_all_others_are_read(filled: str, table: str) -> None:
    statement, damage = EDITS[table]
    before = {one.table: one.intact for one in checking.check(filled)[1]}
    execute(filled, statement)
    found = {one.table: one for one in checking.check(filled)[1]}
    (told,) = found[table].damages
    assert told.startswith(damage)
    assert found[table].intact == before[table] - 1
    assert {one.table: one.intact for one in found.values() if one.table != table} == {
        name: rows for name, rows in before.items() if name != table
    }


def test_141_pages_that_were_overwritten_are_found_and_the_file_stays_as_it_was(
    make_store: MakeStore, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [values.checkpoint(1, state=[values.state(n, a=b"1" * 30_000) for n in range(1, 20)])])
    store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 16384 * 16384
    content[middle : middle + 3 * 16384] = b"\xff" * 3 * 16384
    path.write_bytes(content)
    structure, found = checking.check(f"sqlite:///{path}")
    assert structure
    assert any(one.damages for one in found if one.table == "state_log")
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content).digest()
    with pytest.raises(StoreError, match=rf"(?s)E3002 {path}: is damaged: .*Run: correlator db check sqlite:///{path}"):
        opened(make_store(f"sqlite:///{path}"))


def test_a_store_of_an_older_schema_is_checked_as_far_as_it_has_digests(url: str) -> None:
    owned = database.connect(url)
    migrate.bring_up(owned, head="0002")
    owned.close()
    assert {one.table for one in checking.check(url)[1]} == set(EDITS) - {"suspect", "receive_progress"}


def test_a_database_without_a_store(url: str) -> None:
    database.connect(url).close()
    with pytest.raises(StoreError, match="E3010 .*holds no store"):
        checking.check(url)
