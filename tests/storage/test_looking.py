"""Looks at a store from outside, and what `reset` leaves of one: the commands of `correlator.cli` rest on these."""

from pathlib import Path

import pytest

from correlator.core.commit import ReceiveCommit, RegistryCommit
from correlator.core.dedup import DuplicateDetector, surely_acknowledged, window_contents
from correlator.errors import Fenced, RecoveryRefused, StoreError
from correlator.settings import DuplicateDetectionSettings
from correlator.storage import database, inspect, migrate
from correlator.storage.reset import contents, reset
from correlator.storage.witness import witness_of
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened

EMPTY = {
    "accepted_ids": (0, None),
    "checkpoint": (0, None),
    "dead_letter": (0, 0),
    "endpoint": (0, None),
    "outbox": (0, 0),
    "receive_log": (0, 0),
    "receive_progress": (0, None),
    "state_log": (0, None),
    "suspect": (0, None),
}
FILLED = EMPTY | {
    "accepted_ids": (1, None),
    "checkpoint": (1, None),
    "dead_letter": (1, 1),
    "endpoint": (2, None),
    "outbox": (2, 5),
    "receive_log": (2, 8),
    "receive_progress": (1, None),
    "state_log": (1, None),
}


@pytest.fixture
def filled(make_store: MakeStore, url: str) -> str:
    """A closed store after a checkpoint, with messages that wait on both sides."""
    store = make_store(url)
    opened(store)
    store.commit(1, [RegistryCommit(put=[values.endpoint("orders"), values.endpoint("alerts", "sender")])])
    store.commit(2, [values.received(1, 3, number=1, confirmed=1), values.received(4, 5)])
    parts = {"outbound": [values.outbound(1, 4), values.outbound(5, 1)], "dead_letters": [values.letter()]}
    store.commit(3, [values.checkpoint(2, state=[values.state(1, a=b"1")], **parts)])
    store.close()
    return url


def counted(url: str) -> dict[str, tuple[int, int | None]]:
    return {one.table: (one.rows, one.messages) for one in contents(url)}


# --- exists ---


def test_a_store_exists_when_an_engine_has_opened_it(make_store: MakeStore, url: str) -> None:
    database.connect(url).close()
    assert inspect.exists(url) is False
    opened(make_store(url))
    assert inspect.exists(url) is True


def test_a_look_for_a_store_makes_none(sqlite_url: str, tmp_path: Path) -> None:
    assert inspect.exists(sqlite_url) is False
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached_is_not_taken_for_one_without_a_store() -> None:
    with pytest.raises(StoreError, match=r"E3301 postgresql://u@127.0.0.1:1/d: cannot connect"):
        inspect.exists("postgresql://u@127.0.0.1:1/d")


# --- detectors ---


def test_the_detectors_are_those_that_a_start_would_restore(make_store: MakeStore, url: str) -> None:
    """What is not surely acknowledged stays beyond the window, what a removed receiver brought does not."""
    windows = DuplicateDetectionSettings(per_source_window_size=2, expiry_time=0.0)
    store = make_store(url)
    opened(store)
    store.commit(1, [RegistryCommit(put=[values.endpoint("orders"), values.endpoint("lone", domain="e")])])
    segments = [
        values.ids(1, "a", "b", "c", batch=1),
        values.ids(2, "d", "e", "f", batch=2),
        values.ids(1, "x", "y", "z", domain="e", receiver="lone"),
        values.ids(1, "u", "v", "w", domain="gone", receiver="removed", batch=7),
    ]
    writes = [ReceiveCommit(receiver=one.receiver, segment=None, ids=one) for one in segments]
    store.commit(2, [*writes, ReceiveCommit(receiver="orders", segment=None, ids=None, confirmed_batch=1)])
    store.close()
    found = inspect.detectors(url, windows)
    assert {name: known(one, "abcdefuvwxyz") for name, one in found.items()} == {
        "d": "def",
        "e": "xyz",
        "gone": "vw",
    }
    recovered = opened(make_store(url))
    for name, one in found.items():
        restored = DuplicateDetector(name, windows.per_source_window_size, windows.expiry_time)
        for segment in recovered.ids:
            if segment.domain == name:
                sure = surely_acknowledged(
                    segment, recovered.confirmed_batches, {"orders": segment.domain, "lone": segment.domain}
                )
                restored.restore([segment], sure)
        assert window_contents(one) == window_contents(restored)


def known(detector: DuplicateDetector, ids: str) -> str:
    """Which of these ids it would drop."""
    return "".join(one for one in ids if one in detector)


def test_a_database_without_a_store_has_no_detectors(url: str) -> None:
    database.connect(url).close()
    with pytest.raises(StoreError, match="E3010 .*holds no store"):
        inspect.detectors(url, DuplicateDetectionSettings())


# --- reset ---


def test_what_a_reset_would_remove_is_counted_in_rows_and_messages(filled: str) -> None:
    assert counted(filled) == FILLED


def test_a_new_store_has_nothing_to_remove(make_store: MakeStore, url: str) -> None:
    opened(make_store(url))
    assert counted(url) == EMPTY


def test_what_a_store_of_an_older_schema_has_not_is_not_counted(url: str) -> None:
    owned = database.connect(url)
    migrate.bring_up(owned, head="0001")
    owned.close()
    assert counted(url).keys() == EMPTY.keys() - {"suspect"}
    reset(url, None)
    assert counted(url) == EMPTY


def test_a_database_without_a_store_has_nothing_to_remove(url: str) -> None:
    database.connect(url).close()
    with pytest.raises(StoreError, match="E3010 .*holds no store. *\n?.*Start the engine once"):
        contents(url)


def test_a_reset_leaves_the_name_and_a_higher_epoch(make_store: MakeStore, filled: str, tmp_path: Path) -> None:
    """The witness goes with the checkpoints that it knows of: it would refuse the store at the next start."""
    witness = witness_of(tmp_path, "alpha", filled)
    assert witness is not None
    witness.write_bytes(b'{"name":"alpha","checkpoint":2}')
    reset(filled, witness)
    assert counted(filled) == EMPTY
    assert not witness.exists()
    with pytest.raises(RecoveryRefused, match="E4310 .*belongs to the engine 'alpha'"):
        opened(make_store(filled, "beta"))
    recovered = opened(make_store(filled, witness_directory=tmp_path))
    assert (recovered.epoch, recovered.commit, recovered.checkpoint) == (3, 3, 0)


def test_a_reset_of_a_store_without_a_witness(make_store: MakeStore, url: str, tmp_path: Path) -> None:
    store = make_store(url)
    opened(store)
    store.close()
    for witness in (None, tmp_path / "none.witness"):
        reset(url, witness)
    assert opened(make_store(url)).epoch == 4


def test_a_store_that_an_engine_has_open_is_not_emptied(make_store: MakeStore, filled: str) -> None:
    opened(make_store(filled))
    with pytest.raises(Fenced, match="E3201"):
        reset(filled, None)
    assert counted(filled) == FILLED
